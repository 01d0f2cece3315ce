"""Workers, the sweeper and each other: every report is accepted from the holder of the lease, once."""

from __future__ import annotations

import pytest

from pgqueue import database as db
from pgqueue.errors import WorkerLost
from tests.race.steps import (
    commit_or_rollback,
    complete,
    fail,
    finish,
    ghost,
    outcomes,
    running,
    set_ranks,
    statuses,
)
from tests.support import Conn, Rival, claim, claim_one, enqueue, job, lose, row, value, worker


def sweep(conn: Conn) -> db.Swept:
    return db.execute(conn, db.sweep())


# ------------------------------------------------------------------------------------- claim × claim


@commit_or_rollback
def test_two_claims_never_get_the_same_job(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    ids = [enqueue(conn) for _ in range(10)]
    one, two = worker(conn), worker(conn)
    first = {job.id for job in claim(holder, one, 4)}
    second = {job.id for job in claim(other, two, 10)}
    assert len(first) == 4
    assert second == set(ids) - first
    finish(holder, end)
    again = {job.id for job in claim(other, two, 10)}
    assert again == (set() if end == "commit" else first)


def test_two_claims_over_two_lanes_never_get_the_same_job(conn: Conn, holder: Conn, other: Conn) -> None:
    ids = [enqueue(conn, priority=priority) for priority in (0, 5) for _ in range(10)]
    one, two = worker(conn), worker(conn)
    first = {job.id for job in claim(holder, one, 12)}
    second = {job.id for job in claim(other, two, 20)}
    assert len(first) == 12
    assert second == set(ids) - first


def test_a_claim_finds_free_jobs_behind_the_locked_heads_of_two_lanes(conn: Conn, holder: Conn, other: Conn) -> None:
    # One point of priority is worth 60 s: the free job is further behind its lane's head than the other lane's head.
    high, low, free = enqueue(conn, priority=1), enqueue(conn), enqueue(conn, priority=1)
    set_ranks(conn, {high: 200, low: 190, free: 100})
    worker_id = worker(conn)
    db.execute(holder, db.cancel(high))
    db.execute(holder, db.cancel(low))
    assert [job.id for job in claim(other, worker_id)] == [free]


def test_a_claim_finds_live_jobs_behind_the_expired_heads_of_two_lanes(conn: Conn) -> None:
    high, low, live = enqueue(conn, priority=1), enqueue(conn), enqueue(conn, priority=1)
    set_ranks(conn, {high: 200, low: 190, live: 100})
    conn.execute("update pgqueue.job_live set expires_at = clock_timestamp() where id = any(%s)", [[high, low]])
    assert [job.id for job in claim(conn, worker(conn))] == [live]


# ---------------------------------------------------------------------------------- complete × others


def test_two_batch_completes_in_opposite_orders_do_not_deadlock(
    conn: Conn, holder: Conn, other: Conn, third: Conn, dsn: str
) -> None:
    worker_id, (a, b, c) = running(conn, 3)
    holder.execute("select 1 from pgqueue.job_live where id = %s for update", [b.id])
    one = Rival(other, lambda conn: complete(conn, worker_id, a, b, c))
    one.wait_blocked(dsn)
    two = Rival(third, lambda conn: complete(conn, worker_id, c, a))
    two.wait_blocked(dsn)
    holder.commit()
    assert one.result() == []
    assert sorted(two.result()) == [a.id, c.id]
    assert set(statuses(conn).values()) == {"completed"}


def test_a_batch_fail_and_a_batch_complete_in_opposite_orders_do_not_deadlock(
    conn: Conn, holder: Conn, other: Conn, third: Conn, dsn: str
) -> None:
    worker_id, (a, b, c) = running(conn, 3)
    holder.execute("select 1 from pgqueue.job_live where id = %s for update", [b.id])
    failures = [db.Failure(job.id, job.token, "boom") for job in (c, b, a)]
    one = Rival(other, lambda conn: db.execute(conn, db.fail(worker_id, failures)))
    one.wait_blocked(dsn)
    two = Rival(third, lambda conn: complete(conn, worker_id, c, a))
    two.wait_blocked(dsn)
    holder.commit()
    assert [failed.status for failed in one.result()] == ["scheduled"] * 3
    assert sorted(two.result()) == [a.id, c.id]


@commit_or_rollback
def test_a_complete_sent_twice_is_accepted_once(conn: Conn, holder: Conn, other: Conn, dsn: str, end: str) -> None:
    worker_id, (mine,) = running(conn)
    assert complete(holder, worker_id, mine) == []
    rival = Rival(other, lambda c: complete(c, worker_id, mine))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == ([mine.id] if end == "commit" else [])
    assert statuses(conn) == {mine.id: "completed"}


@commit_or_rollback
def test_of_a_complete_and_a_fail_of_one_lease_exactly_one_is_accepted(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (mine,) = running(conn)
    complete(holder, worker_id, mine)
    rival = Rival(other, lambda c: fail(c, worker_id, mine))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == (None if end == "commit" else "scheduled")
    assert outcomes(conn, mine.id) == ([] if end == "commit" else ["failed"])


# ------------------------------------------------------------------------------------ sweep × others


@commit_or_rollback
def test_a_complete_that_waited_for_a_sweep_is_refused_if_the_sweep_commits(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (mine,) = ghost(conn)
    assert sweep(holder).retried == 1
    rival = Rival(other, lambda c: complete(c, worker_id, mine))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == ([mine.id] if end == "commit" else [])
    assert statuses(conn) == {mine.id: "pending" if end == "commit" else "completed"}


@commit_or_rollback
def test_a_sweep_passes_over_what_a_late_complete_is_finishing(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    worker_id, (done, left) = ghost(conn, 2)
    complete(holder, worker_id, done)
    assert sweep(other).retried == 1
    assert outcomes(conn, left.id) == ["lost"]
    finish(holder, end)
    assert sweep(other).retried == (0 if end == "commit" else 1)
    assert job(conn, done.id)["status"] == ("completed" if end == "commit" else "pending")


def test_of_a_stale_workers_batch_only_the_leases_that_it_still_has_are_accepted(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    worker_id, (a, b, c) = ghost(conn, 3)
    holder.execute("select 1 from pgqueue.job_live where id = %s for update", [b.id])
    assert sweep(other).retried == 2
    holder.commit()
    assert complete(other, worker_id, c, b, a) == [c.id, a.id]
    assert statuses(conn) == {a.id: "pending", b.id: "completed", c.id: "pending"}


def test_a_report_after_sweep_and_claim_by_another_worker_is_refused_and_changes_nothing(conn: Conn) -> None:
    stale, (old,) = ghost(conn)
    sweep(conn)
    fresh = worker(conn)
    new = claim_one(conn, fresh)
    assert new.id == old.id
    before = job(conn, old.id)
    assert complete(conn, stale, old) == [old.id]
    assert fail(conn, stale, old) is None
    assert db.execute(conn, db.release(stale, [(old.id, old.token)])) == [old.id]
    assert db.execute(conn, db.snooze(stale, [(old.id, old.token)], [1])) == [old.id]
    assert db.execute(conn, db.cancel_claimed(stale, [(old.id, old.token)])) == [old.id]
    assert db.execute(conn, db.progress(stale, old.id, old.token, 1)) is False
    assert job(conn, old.id) == before
    assert complete(conn, fresh, new) == []


def test_an_old_token_of_the_same_worker_is_refused(conn: Conn) -> None:
    worker_id, (old,) = running(conn)
    db.execute(conn, db.release(worker_id, [(old.id, old.token)]))
    new = claim_one(conn, worker_id)
    assert complete(conn, worker_id, old) == [old.id]
    assert complete(conn, worker_id, new) == []


@commit_or_rollback
def test_a_heartbeat_that_waited_for_a_sweep_learns_that_its_worker_is_lost(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, _ = ghost(conn)
    assert sweep(holder).lost_workers == 1
    rival = Rival(other, lambda c: db.execute(c, db.heartbeat(worker_id)))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result().alive is (end == "rollback")


@commit_or_rollback
def test_a_sweep_passes_over_a_worker_whose_heartbeat_is_in_flight(
    conn: Conn, holder: Conn, other: Conn, end: str
) -> None:
    worker_id, (mine,) = ghost(conn)
    assert db.execute(holder, db.heartbeat(worker_id)).alive
    swept = sweep(other)
    assert (swept.lost_workers, swept.retried) == (0, 0)
    finish(holder, end)
    swept = sweep(other)
    assert (swept.lost_workers, swept.retried) == ((0, 0) if end == "commit" else (1, 1))
    assert job(conn, mine.id)["status"] == ("running" if end == "commit" else "pending")


def test_a_lost_worker_neither_beats_nor_claims_again(conn: Conn) -> None:
    worker_id, _ = ghost(conn)
    sweep(conn)
    assert db.execute(conn, db.heartbeat(worker_id)) == (False, [])
    with pytest.raises(WorkerLost):
        claim(conn, worker_id)
    assert row(conn, "select lost_at is not null as lost from pgqueue.worker")["lost"]


def test_a_worker_past_its_lease_does_not_claim_before_it_beats(conn: Conn) -> None:
    worker_id = worker(conn)
    id = enqueue(conn)
    lose(conn, worker_id)
    with pytest.raises(WorkerLost):
        claim(conn, worker_id)
    assert db.execute(conn, db.heartbeat(worker_id)).alive
    assert claim_one(conn, worker_id).id == id


@commit_or_rollback
def test_a_second_sweep_returns_at_once_with_nothing(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    ghost(conn)
    assert sweep(holder).lost_workers == 1
    other.execute("set lock_timeout = '100ms'")
    assert sweep(other) == db.Swept(0, 0, 0, 0, 0, 0)
    finish(holder, end)
    assert sweep(other).lost_workers == (0 if end == "commit" else 1)


def test_a_sweep_rescues_what_a_retired_worker_claimed_in_flight(conn: Conn, holder: Conn, other: Conn) -> None:
    id = enqueue(conn)
    worker_id = worker(conn)
    claim_one(holder, worker_id)
    assert db.execute(other, db.retire_worker(worker_id)) == 0
    holder.commit()
    assert statuses(conn) == {id: "running"}
    assert sweep(conn).retried == 1
    assert statuses(conn) == {id: "pending"}


# -------------------------------------------------------------------------------------------- retire


def test_two_retirements_release_each_job_once_and_only_one_counts_it(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (a, b) = running(conn, 2)
    assert db.execute(holder, db.retire_worker(worker_id)) == 2
    rival = Rival(other, lambda c: db.execute(c, db.retire_worker(worker_id)))
    rival.wait_blocked(dsn)
    holder.commit()
    second = rival.result()
    for mine in (a, b):
        assert outcomes(conn, mine.id) == ["released"]
        assert (job(conn, mine.id)["attempt"], job(conn, mine.id)["status"]) == (0, "pending")
    assert second == 0


def test_a_retirement_that_waited_for_a_complete_does_not_count_that_job(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (done, left) = running(conn, 2)
    complete(holder, worker_id, done)
    rival = Rival(other, lambda c: db.execute(c, db.retire_worker(worker_id)))
    rival.wait_blocked(dsn)
    holder.commit()
    released = rival.result()
    assert statuses(conn) == {done.id: "completed", left.id: "pending"}
    assert released == 1


def test_a_retirement_that_rolls_back_leaves_the_job_to_the_second(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (mine,) = running(conn)
    db.execute(holder, db.retire_worker(worker_id))
    rival = Rival(other, lambda c: db.execute(c, db.retire_worker(worker_id)))
    rival.wait_blocked(dsn)
    holder.rollback()
    assert rival.result() == 1
    assert outcomes(conn, mine.id) == ["released"]
    assert value(conn, "select count(*) from pgqueue.worker") == 0
