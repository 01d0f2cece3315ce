from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import KeyTaken, PayloadError
from tests.support import FIXED, Conn, claim_one, enqueue, job, make_due, row, rows, value, worker

HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


def jobs(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.job"))


def put(conn: Conn, payload: dict[str, Any] | None = None, **options: Any) -> db.Enqueued:
    return db.execute(conn, db.enqueue("q", "t", payload, **options))


# ---------------------------------------------------------------------------------------------- storing


def test_every_option_is_stored(conn: Conn) -> None:
    run_at, expires_at = now() + HOUR, now() + 2 * HOUR
    id = enqueue(
        conn,
        {"a": [1, "ü", None, True, 1.5]},
        queue="mail.out:1",
        task="send-it",
        key="k",
        key_ttl=HOUR,
        priority=-100,
        run_at=run_at,
        expires_at=expires_at,
        max_attempts=7,
        retry=FIXED,
        timeout_seconds=9,
        tags=["red", "große"],
        meta={"trace": "1"},
        retain_for=3 * HOUR,
    )
    stored = job(conn, id)
    expected = {
        "payload": {"a": [1, "ü", None, True, 1.5]},
        "queue": "mail.out:1",
        "task": "send-it",
        "key": "k",
        "key_ttl": HOUR,
        "priority": -100,
        "run_at": run_at,
        "rank_at": run_at,
        "expires_at": expires_at,
        "max_attempts": 7,
        "retry": FIXED,
        "timeout_seconds": 9,
        "tags": ["red", "große"],
        "meta": {"trace": "1"},
        "retain_for": 3 * HOUR,
        "status": "scheduled",
        "attempt": 0,
        "token": 0,
        "crashes": 0,
        "worker_id": None,
    }
    assert {name: stored[name] for name in expected} == expected


def test_a_job_without_options_is_pending_and_leaves_them_to_the_queue(conn: Conn) -> None:
    before = value(conn, "select clock_timestamp()")
    added = put(conn)
    stored = job(conn, added.id)
    assert added.created is True
    assert stored["status"] == "pending"
    assert stored["payload"] == {}
    assert stored["priority"] == 0
    assert before <= stored["rank_at"] == stored["run_at"] == stored["enqueued_at"]
    unset = ("key", "key_ttl", "expires_at", "max_attempts", "retry", "timeout_seconds", "tags", "meta", "retain_for")
    assert {name: stored[name] for name in unset} == dict.fromkeys(unset)


def test_a_run_at_in_the_past_is_kept_but_does_not_jump_the_line(conn: Conn) -> None:
    past = now() - 24 * HOUR
    stored = job(conn, enqueue(conn, run_at=past))
    assert (stored["status"], stored["run_at"]) == ("pending", past)
    assert stored["rank_at"] == stored["enqueued_at"]


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 100},
        {"priority": -100},
        {"queue": "q" * 128, "task": "t" * 128},
        {"key": "k" * 512},
        {"key": "ü" * 256},
        {"key": "k", "key_ttl": timedelta(days=3650)},
        {"key": "k", "key_ttl": timedelta(0)},
        {"run_at": datetime(9999, 12, 29, tzinfo=UTC)},
        {"run_at": datetime(1970, 1, 2, tzinfo=UTC)},
        {"max_attempts": 1},
        {"max_attempts": 32000},
        {"timeout_seconds": 1},
        {"timeout_seconds": 31_536_000},
        {"retain_for": timedelta(0)},
        {"retain_for": timedelta(days=3650)},
        {"tags": []},
        {"tags": ["x" * 128] * 32},
        {"meta": {"m": "x" * 16_000}},
    ],
)
def test_values_at_their_limits_are_accepted(conn: Conn, options: dict[str, Any]) -> None:
    id = enqueue(conn, **options)
    stored = job(conn, id)
    assert {name: stored[name] for name in options} == options


def test_a_payload_of_almost_the_limit_comes_back_unchanged(conn: Conn) -> None:
    payload = {"blob": "ü" * 131_000}
    enqueue(conn, payload)
    assert claim_one(conn, worker(conn)).payload == payload


def test_the_limit_of_payloads_is_a_setting(conn: Conn) -> None:
    db.execute(conn, db.set_defaults({"payload_max_bytes": 1024}))
    with pytest.raises(PayloadError, match="at most 1024"):
        enqueue(conn, {"a": "x" * 1100})
    assert enqueue(conn, {"a": "x" * 900}) > 0


def test_raising_the_limit_of_payloads_holds_for_python_too(conn: Conn) -> None:
    db.execute(conn, db.set_defaults({"payload_max_bytes": 1_000_000}))
    assert enqueue(conn, {"a": "x" * 300_000}) > 0


def test_plain_sql_with_named_arguments_enqueues(conn: Conn) -> None:
    made = row(
        conn,
        "select * from pgqueue.enqueue(queue => 'q', task => 't', payload => '{\"n\": 1}', priority => 5,"
        " run_at => now() + interval '1 day', key => 'k', tags => array['a'], key_ttl => '1 hour')",
    )
    stored = job(conn, made["id"])
    assert made["created"] is True
    assert (stored["status"], stored["priority"], stored["key"], stored["tags"]) == ("scheduled", 5, "k", ["a"])
    assert (stored["payload"], stored["key_ttl"]) == ({"n": 1}, HOUR)


def test_a_trigger_enqueues_in_the_transaction_that_fires_it(conn: Conn) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("create temp table orders (id int)")
        conn.execute(
            "create function pg_temp.ordered() returns trigger language plpgsql as $$ begin"
            " perform pgqueue.enqueue('q', 'ship', jsonb_build_object('order', new.id)); return new; end $$"
        )
        conn.execute("create trigger o after insert on orders for each row execute function pg_temp.ordered()")
        conn.execute("insert into orders values (1), (2)")
        found = rows(conn, "select payload from pgqueue.job where task = 'ship' order by id")
    assert [found_row["payload"] for found_row in found] == [{"order": 1}, {"order": 2}]
    assert jobs(conn) == 0


def test_a_rollback_leaves_no_job(conn: Conn) -> None:
    with conn.transaction(force_rollback=True):
        enqueue(conn, key="k")
        assert jobs(conn) == 1
    assert jobs(conn) == 0
    assert put(conn, key="k").created is True


def test_a_job_is_invisible_to_others_until_its_transaction_commits(conn: Conn, connect: Callable[..., Conn]) -> None:
    other, w = connect(), worker(conn)
    with conn.transaction():
        id = enqueue(conn)
        assert db.execute(other, db.claim(w, ["q"], 1)) == []
    assert claim_one(other, w).id == id


def test_enqueued_at_is_the_time_of_the_call_not_of_the_transaction(conn: Conn) -> None:
    with conn.transaction():
        first, second = (job(conn, enqueue(conn)) for _ in range(2))
        started = value(conn, "select now()")
    assert started < first["enqueued_at"] < second["enqueued_at"]


# ------------------------------------------------------------------------------------------- durability


def test_durable_commit_is_forced_on_until_the_end_of_the_callers_transaction(conn: Conn) -> None:
    conn.execute("set synchronous_commit = off")
    with conn.transaction():
        assert value(conn, "show synchronous_commit") == "off"
        enqueue(conn)
        assert value(conn, "show synchronous_commit") == "on"
        conn.execute("select 1")
        assert value(conn, "show synchronous_commit") == "on"
    assert value(conn, "show synchronous_commit") == "off"


def test_durable_commit_is_forced_on_for_a_single_statement(conn: Conn) -> None:
    conn.execute("set synchronous_commit = off")
    seen = value(conn, "select current_setting('synchronous_commit') from pgqueue.enqueue('q', 't') limit 1")
    assert (seen, value(conn, "show synchronous_commit")) == ("on", "off")


@pytest.mark.parametrize("chosen", ["local", "remote_write", "on", "remote_apply"])
def test_other_kinds_of_commit_stay_as_the_caller_chose_them(conn: Conn, chosen: str) -> None:
    conn.execute(f"set synchronous_commit = {chosen}".encode())
    with conn.transaction():
        enqueue(conn)
        assert value(conn, "show synchronous_commit") == chosen


# ------------------------------------------------------------------------------------------ keys, live


def waiting(conn: Conn) -> int:
    return enqueue(conn, {"old": True}, key="k", priority=1, tags=["old"])


def scheduled(conn: Conn) -> int:
    return enqueue(conn, {"old": True}, key="k", run_at=now() + HOUR, priority=1, tags=["old"])


def running(conn: Conn) -> int:
    id = waiting(conn)
    assert claim_one(conn, worker(conn)).id == id
    return id


@pytest.mark.parametrize("holder", [waiting, scheduled, running])
def test_skip_returns_the_live_job_and_changes_nothing(conn: Conn, holder: Callable[[Conn], int]) -> None:
    old = holder(conn)
    before = job(conn, old)
    assert put(conn, {"new": True}, key="k", priority=9) == (old, False)
    assert job(conn, old) == before
    assert jobs(conn) == 1


@pytest.mark.parametrize("holder", [waiting, scheduled, running])
def test_raise_refuses_and_names_the_job(conn: Conn, holder: Callable[[Conn], int]) -> None:
    old = holder(conn)
    with pytest.raises(KeyTaken, match=f"taken by job {old}"):
        put(conn, key="k", on_conflict="raise")
    assert jobs(conn) == 1


@pytest.mark.parametrize("holder", [waiting, scheduled])
def test_replace_gives_a_waiting_job_everything_new(conn: Conn, holder: Callable[[Conn], int]) -> None:
    old = holder(conn)
    before = job(conn, old)
    expires_at = now() + HOUR
    new: dict[str, Any] = {
        "priority": -3,
        "key_ttl": HOUR,
        "expires_at": expires_at,
        "max_attempts": 2,
        "retry": FIXED,
        "timeout_seconds": 4,
        "tags": ["new"],
        "meta": {"m": 1},
        "retain_for": HOUR,
    }
    answer = db.execute(conn, db.enqueue("q", "other", {"new": True}, key="k", on_conflict="replace", **new))
    after = job(conn, old)
    assert answer == (old, False)
    assert {name: after[name] for name in new} == new
    assert (after["task"], after["payload"], after["status"]) == ("other", {"new": True}, "pending")
    assert after["rank_at"] == after["run_at"] > before["enqueued_at"] == after["enqueued_at"]


def test_replace_forgets_options_that_are_not_repeated(conn: Conn) -> None:
    old = enqueue(conn, {"a": 1}, key="k", max_attempts=2, tags=["x"], expires_at=now() + HOUR, priority=4)
    put(conn, key="k", on_conflict="replace")
    after = job(conn, old)
    assert (after["payload"], after["max_attempts"], after["tags"], after["expires_at"]) == ({}, None, None, None)
    assert after["priority"] == 0


def test_replace_moves_a_pending_job_into_the_future(conn: Conn) -> None:
    old, run_at = waiting(conn), now() + HOUR
    put(conn, key="k", on_conflict="replace", run_at=run_at)
    after = job(conn, old)
    assert (after["status"], after["run_at"], after["rank_at"]) == ("scheduled", run_at, run_at)


def test_a_job_replaced_into_a_new_priority_is_claimed(conn: Conn) -> None:
    old = waiting(conn)
    put(conn, key="k", on_conflict="replace", priority=77)
    assert (claim_one(conn, worker(conn)).id, job(conn, old)["priority"]) == (old, 77)


def test_replace_of_a_running_job_gives_its_key_to_a_new_one(conn: Conn) -> None:
    old = running(conn)
    new = put(conn, {"new": True}, key="k", on_conflict="replace")
    assert new.created is True
    assert new.id != old
    assert (job(conn, old)["status"], job(conn, old)["key"], job(conn, old)["payload"]) == (
        "running",
        None,
        {"old": True},
    )
    assert (job(conn, new.id)["status"], job(conn, new.id)["key"]) == ("pending", "k")


def test_a_running_job_that_gave_its_key_away_completes_without_holding_it(conn: Conn) -> None:
    enqueue(conn, key="k", key_ttl=HOUR)
    w = worker(conn)
    old = claim_one(conn, w)
    new = put(conn, key="k", on_conflict="replace")
    assert db.execute(conn, db.complete(w, [(old.id, old.token)])) == []
    assert rows(conn, "select * from pgqueue.key_hold") == []
    assert put(conn, key="k") == (new.id, False)


def test_a_key_is_taken_only_within_its_queue(conn: Conn) -> None:
    enqueue(conn, key="k", queue="a")
    assert db.execute(conn, db.enqueue("b", "t", key="k", on_conflict="raise")).created is True


def test_keys_differ_by_case_and_blanks(conn: Conn) -> None:
    assert {put(conn, key=key).created for key in ("k", "K", "k ", " k")} == {True}


def test_a_key_is_taken_inside_its_own_transaction_too(conn: Conn) -> None:
    with conn.transaction():
        first = put(conn, key="k")
        assert put(conn, key="k") == (first.id, False)


# -------------------------------------------------------------------------------------- keys, finished


def completed(conn: Conn, id: int) -> None:
    w = worker(conn)
    held = claim_one(conn, w)
    assert db.execute(conn, db.complete(w, [(id, held.token)])) == []


def died(conn: Conn, id: int) -> None:
    w = worker(conn)
    held = claim_one(conn, w)
    assert db.execute(conn, db.fail(w, [db.Failure(id, held.token, "no", fatal=True)]))[0].status == "dead"


def cancelled(conn: Conn, id: int) -> None:
    assert db.execute(conn, db.cancel(id)) == "cancelled"


def cancelled_while_running(conn: Conn, id: int) -> None:
    w = worker(conn)
    held = claim_one(conn, w)
    assert db.execute(conn, db.cancel_claimed(w, [(id, held.token)])) == []


ENDS = [completed, died, cancelled, cancelled_while_running]


@pytest.mark.parametrize("end", ENDS)
def test_without_a_ttl_a_finished_job_frees_its_key(conn: Conn, end: Callable[[Conn, int], None]) -> None:
    end(conn, enqueue(conn, key="k"))
    assert put(conn, key="k", on_conflict="raise").created is True


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
@pytest.mark.parametrize("end", ENDS)
def test_a_ttl_holds_the_key_after_the_end(conn: Conn, end: Callable[[Conn, int], None], on_conflict: str) -> None:
    old = enqueue(conn, {"old": True}, key="k", key_ttl=HOUR)
    end(conn, old)
    before = job(conn, old)
    assert put(conn, {"new": True}, key="k", on_conflict=on_conflict) == (old, False)
    assert job(conn, old) == before
    assert jobs(conn) == 1


@pytest.mark.parametrize("end", ENDS)
def test_a_held_key_is_refused_with_raise(conn: Conn, end: Callable[[Conn, int], None]) -> None:
    old = enqueue(conn, key="k", key_ttl=HOUR)
    end(conn, old)
    with pytest.raises(KeyTaken, match=f"held by finished job {old}"):
        put(conn, key="k", on_conflict="raise")
    assert jobs(conn) == 1


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "replace"])
@pytest.mark.parametrize("end", ENDS)
def test_a_held_key_is_free_after_its_ttl(conn: Conn, end: Callable[[Conn, int], None], on_conflict: str) -> None:
    old = enqueue(conn, key="k", key_ttl=HOUR)
    end(conn, old)
    conn.execute("update pgqueue.key_hold set held_until = held_until - interval '61 minutes'")
    new = put(conn, key="k", on_conflict=on_conflict, key_ttl=HOUR)
    assert new.created is True
    # A second life of the key: its hold is renewed, not duplicated.
    end(conn, new.id)
    assert value(conn, "select job_id from pgqueue.key_hold where held_until > now()") == new.id


def test_the_ttl_counts_from_the_end_of_the_job(conn: Conn) -> None:
    id = enqueue(conn, key="k", key_ttl=HOUR, run_at=now() + HOUR)
    make_due(conn, id)
    completed(conn, id)
    held = row(conn, "select * from pgqueue.key_hold")
    assert (held["queue"], held["key"], held["job_id"]) == ("q", "k", id)
    assert held["held_until"] == job(conn, id)["finished_at"] + HOUR


def test_a_job_that_leaves_no_row_still_holds_its_key(conn: Conn) -> None:
    id = enqueue(conn, key="k", key_ttl=HOUR, retain_for=timedelta(0))
    completed(conn, id)
    assert jobs(conn) == 0
    assert put(conn, key="k") == (id, False)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_keys_work_under_a_fixed_snapshot(conn: Conn, isolation: str) -> None:
    completed(conn, enqueue(conn, key="held", key_ttl=HOUR))
    with conn.transaction():
        conn.execute(f"set transaction isolation level {isolation}".encode())
        assert put(conn, key="k").created is True
        assert put(conn, key="k").created is False
        assert put(conn, key="held").created is False
    assert value(conn, "select count(*) from pgqueue.key_hold") == 1


def test_a_replaced_job_starts_anew(conn: Conn) -> None:
    id = enqueue(conn, {"n": 1}, key="k", max_attempts=2, retry=FIXED)
    w = worker(conn)
    held = claim_one(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(held.id, held.token, "boom", "ValueError")]))
    enqueue(conn, {"n": 2}, key="k", max_attempts=1, on_conflict="replace")
    again = claim_one(conn, w)
    assert (again.id, again.payload, again.attempt, again.max_attempts, again.token) == (id, {"n": 2}, 1, 1, 2)
    assert (job(conn, id)["error"], job(conn, id)["retry_delay_seconds"]) == (None, None)
