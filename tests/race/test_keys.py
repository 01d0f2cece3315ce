"""Two transactions want one key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from psycopg import IsolationLevel

from pgqueue import database as db
from pgqueue.errors import KeyTaken
from tests.race.steps import (
    commit_or_rollback,
    complete,
    dead,
    finish,
    live_with_key,
    running,
    statuses,
    wait_blocked_by,
)
from tests.support import Conn, Rival, claim, claim_one, enqueue, job, value, worker

HOLD = timedelta(hours=1)


def keyed(conn: Conn, **options: object) -> db.Enqueued:
    return db.execute(conn, db.enqueue("q", "t", {"by": "rival"}, key="k", **options))  # type: ignore[arg-type]


def keyed_many(conn: Conn, keys: list[str], **options: object) -> list[db.Enqueued]:
    return db.execute(conn, db.enqueue_many("q", "t", [{}] * len(keys), keys=keys, **options))  # type: ignore[arg-type]


# --------------------------------------------------------------------------------- enqueue × enqueue


def test_an_enqueue_gets_the_id_of_the_uncommitted_holder_once_that_commits(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    first = keyed(holder)
    rival = Rival(other, keyed)
    rival.wait_blocked(dsn)
    holder.commit()
    assert first.created
    assert rival.result() == (first.id, False)
    assert statuses(conn) == {first.id: "pending"}


def test_an_enqueue_inserts_once_the_holder_of_its_key_rolls_back(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    first = keyed(holder)
    rival = Rival(other, keyed)
    rival.wait_blocked(dsn)
    holder.rollback()
    second = rival.result()
    assert second.created
    assert second.id != first.id
    assert statuses(conn) == {second.id: "pending"}


@commit_or_rollback
def test_a_raising_enqueue_raises_only_if_the_holder_commits(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    keyed(holder)
    rival = Rival(other, lambda c: keyed(c, on_conflict="raise"))
    rival.wait_blocked(dsn)
    finish(holder, end)
    if end == "commit":
        with pytest.raises(KeyTaken):
            rival.result()
    else:
        assert rival.result().created
    assert live_with_key(conn, "k") == 1


@commit_or_rollback
def test_a_replacing_enqueue_that_waited_leaves_one_job_with_its_own_payload(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    first = enqueue(holder, {"by": "holder"}, key="k")
    rival = Rival(other, lambda c: keyed(c, on_conflict="replace"))
    rival.wait_blocked(dsn)
    finish(holder, end)
    second = rival.result()
    assert (second.id == first, second.created) == ((True, False) if end == "commit" else (False, True))
    assert job(conn, second.id)["payload"] == {"by": "rival"}
    assert list(statuses(conn)) == [second.id]


def test_the_same_key_in_another_queue_does_not_wait(conn: Conn, holder: Conn, other: Conn) -> None:
    keyed(holder)
    other.execute("set lock_timeout = '100ms'")
    assert db.execute(other, db.enqueue("elsewhere", "t", key="k")).created


# -------------------------------------------------------------------------------- enqueue × complete


@commit_or_rollback
def test_an_enqueue_waits_for_the_complete_of_its_holder_and_never_returns_nothing(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (held,) = running(conn, key="k")
    assert complete(holder, worker_id, held) == []
    rival = Rival(other, keyed)
    rival.wait_blocked(dsn)
    finish(holder, end)
    got = rival.result()
    if end == "commit":
        assert got.created
        assert statuses(conn) == {held.id: "completed", got.id: "pending"}
    else:
        assert got == (held.id, False)
        assert statuses(conn) == {held.id: "running"}


def test_the_hold_of_a_job_that_completes_meanwhile_wins_over_the_waiting_enqueue(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (held,) = running(conn, key="k", key_ttl=HOLD)
    complete(holder, worker_id, held)
    rival = Rival(other, keyed)
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == (held.id, False)
    assert statuses(conn) == {held.id: "completed"}


def test_the_hold_of_a_job_that_is_cancelled_meanwhile_wins_over_the_waiting_enqueue(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    held = enqueue(conn, key="k", key_ttl=HOLD)
    assert db.execute(holder, db.cancel(held)) == "cancelled"
    rival = Rival(other, keyed)
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == (held, False)
    assert statuses(conn) == {held: "cancelled"}


def test_the_hold_of_a_job_that_completes_meanwhile_wins_over_the_waiting_bulk_enqueue(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (held,) = running(conn, key="k", key_ttl=HOLD)
    complete(holder, worker_id, held)
    rival = Rival(other, lambda c: keyed_many(c, ["j", "k", "l"]))
    rival.wait_blocked(dsn)
    holder.commit()
    j, k, m = rival.result()
    assert k == (held.id, False)
    assert statuses(conn) == {held.id: "completed", j.id: "pending", m.id: "pending"}


def test_a_hold_that_committed_during_a_repeatable_read_transaction_makes_its_enqueue_fail_and_write_nothing(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    worker_id, (held,) = running(conn, key="k", key_ttl=HOLD)
    caller = connect(autocommit=False)
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    caller.execute("select 1 from pgqueue.setting")
    complete(conn, worker_id, held)
    with pytest.raises(psycopg.errors.SerializationFailure):
        keyed(caller)
    caller.rollback()
    assert statuses(conn) == {held.id: "completed"}
    assert value(conn, "select count(*) from pgqueue.key_hold") == 1
    assert keyed(caller) == (held.id, False)


def test_an_enqueue_under_repeatable_read_that_waited_for_a_hold_fails_and_writes_nothing(
    conn: Conn, holder: Conn, connect: Callable[..., Conn], dsn: str
) -> None:
    worker_id, (held,) = running(conn, key="k", key_ttl=HOLD)
    complete(holder, worker_id, held)
    caller = connect(autocommit=False)
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    rival = Rival(caller, keyed)
    rival.wait_blocked(dsn)
    holder.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        rival.result()
    caller.rollback()
    assert statuses(conn) == {held.id: "completed"}


def test_a_bulk_enqueue_under_repeatable_read_that_misses_a_hold_fails_and_writes_nothing(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    worker_id, (held,) = running(conn, key="k", key_ttl=HOLD)
    caller = connect(autocommit=False)
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    caller.execute("select 1 from pgqueue.setting")
    complete(conn, worker_id, held)
    with pytest.raises(psycopg.errors.SerializationFailure):
        keyed_many(caller, ["j", "k"])
    caller.rollback()
    assert statuses(conn) == {held.id: "completed"}


def test_a_key_taken_after_the_snapshot_of_a_repeatable_read_transaction_makes_its_enqueue_fail(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    caller = connect(autocommit=False)
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    caller.execute("select 1 from pgqueue.setting")
    taken = keyed(conn)
    with pytest.raises(psycopg.errors.SerializationFailure):
        keyed(caller)
    caller.rollback()
    assert keyed(caller) == (taken.id, False)


# ----------------------------------------------------------------------------------- replace × claim


@commit_or_rollback
def test_a_replace_that_waited_for_a_claim_changes_the_waiting_job_or_adds_one_to_the_running(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    id = enqueue(conn, {"by": "first"}, key="k")
    worker_id = worker(conn)
    assert claim_one(holder, worker_id).payload == {"by": "first"}
    rival = Rival(other, lambda c: keyed(c, on_conflict="replace"))
    rival.wait_blocked(dsn)
    finish(holder, end)
    got = rival.result()
    if end == "commit":
        assert got.created
        assert statuses(conn) == {id: "running", got.id: "pending"}
        assert job(conn, id)["payload"] == {"by": "first"}
    else:
        assert got == (id, False)
        assert statuses(conn) == {id: "pending"}
    assert job(conn, got.id)["payload"] == {"by": "rival"}


@commit_or_rollback
def test_a_claim_passes_over_a_job_that_is_being_replaced(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    id = enqueue(conn, {"by": "first"}, key="k")
    worker_id = worker(conn)
    assert keyed(holder, on_conflict="replace") == (id, False)
    assert claim(other, worker_id, 10) == []
    finish(holder, end)
    assert claim_one(other, worker_id).payload == {"by": "rival" if end == "commit" else "first"}


def test_a_replace_that_waited_for_a_complete_adds_a_job(conn: Conn, holder: Conn, other: Conn, dsn: str) -> None:
    worker_id, (held,) = running(conn, key="k")
    complete(holder, worker_id, held)
    rival = Rival(other, lambda c: keyed(c, on_conflict="replace"))
    rival.wait_blocked(dsn)
    holder.commit()
    got = rival.result()
    assert got.created
    assert statuses(conn) == {held.id: "completed", got.id: "pending"}


# ---------------------------------------------------------------------------------------------- bulk


def test_two_bulk_enqueues_with_the_same_keys_in_opposite_orders_do_not_deadlock(
    conn: Conn, holder: Conn, other: Conn, third: Conn, dsn: str
) -> None:
    gate = enqueue(holder, key="b")
    one = Rival(other, lambda c: keyed_many(c, ["a", "b", "c"]))
    one.wait_blocked(dsn)
    two = Rival(third, lambda c: keyed_many(c, ["c", "a"]))
    two.wait_blocked(dsn)
    holder.commit()
    a, b, c = one.result()
    assert (a.created, b, c.created) == (True, (gate, False), True)
    assert two.result() == [(c.id, False), (a.id, False)]
    assert len(statuses(conn)) == 3


def test_two_replacing_bulk_enqueues_with_the_same_keys_in_opposite_orders_do_not_deadlock(
    conn: Conn, connect: Callable[..., Conn], other: Conn, third: Conn, dsn: str
) -> None:
    # The gates hold each call, past its first statement, until the other is there too.
    ids = {key: enqueue(conn, key=key) for key in ("a", "c", "gate1", "gate2", "halt")}
    gates = {}
    for key in ("gate1", "gate2", "halt"):
        gates[key] = connect(autocommit=False)
        gates[key].execute("select 1 from pgqueue.job_live where key = %s for update", [key])
    one = Rival(other, lambda c: keyed_many(c, ["gate1", "a", "halt", "c"], on_conflict="replace"))
    one.wait_blocked(dsn)
    two = Rival(third, lambda c: keyed_many(c, ["gate2", "c", "a"], on_conflict="replace"))
    two.wait_blocked(dsn)
    gates["gate1"].commit()
    wait_blocked_by(conn, other, gates["halt"])
    gates["gate2"].commit()
    wait_blocked_by(conn, third, other)
    gates["halt"].commit()
    assert [got.id for got in one.result()] == [ids[key] for key in ("gate1", "a", "halt", "c")]
    assert [got.id for got in two.result()] == [ids[key] for key in ("gate2", "c", "a")]


# ----------------------------------------------------------------------------------- retry × enqueue


@commit_or_rollback
def test_a_retry_waits_for_an_enqueue_of_its_key_and_is_refused_only_if_that_commits(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    (id,) = dead(conn, key="k")
    new = keyed(holder)
    rival = Rival(other, lambda c: db.execute(c, db.retry(id)))
    rival.wait_blocked(dsn)
    finish(holder, end)
    if end == "commit":
        with pytest.raises(KeyTaken):
            rival.result()
        assert statuses(conn) == {id: "dead", new.id: "pending"}
    else:
        assert rival.result() == "pending"
        assert statuses(conn) == {id: "pending"}


@commit_or_rollback
def test_an_enqueue_waits_for_a_retry_of_its_key_and_gets_the_retried_job(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    (id,) = dead(conn, key="k")
    assert db.execute(holder, db.retry(id)) == "pending"
    rival = Rival(other, keyed)
    rival.wait_blocked(dsn)
    finish(holder, end)
    got = rival.result()
    if end == "commit":
        assert got == (id, False)
    else:
        assert got.created
    assert live_with_key(conn, "k") == 1


def test_a_retry_that_waited_for_the_complete_of_its_keys_holder_respects_the_hold(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    (id,) = dead(conn, key="k")
    worker_id, (successor,) = running(conn, key="k", key_ttl=HOLD)
    complete(holder, worker_id, successor)
    rival = Rival(other, lambda c: db.execute(c, db.retry(id)))
    rival.wait_blocked(dsn)
    holder.commit()
    with pytest.raises(KeyTaken):
        rival.result()
    assert statuses(conn) == {id: "dead", successor.id: "completed"}
