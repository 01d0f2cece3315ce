from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, JobNotFound, KeyTaken, PayloadError, WrongStatus
from tests.support import Conn, Rival, claim_one, enqueue, job, rows, value, worker

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def dead(conn: Conn, payload: dict[str, Any] | None = None, **options: Any) -> int:
    """A dead letter."""
    id = enqueue(conn, payload, **options)
    w = worker(conn)
    db.execute(conn, db.fail(w, [db.Failure(id, claim_one(conn, w).token, "boom", "ValueError", fatal=True)]))
    assert job(conn, id)["status"] == "dead"
    return id


def retry(conn: Conn, id: int, **changes: Any) -> str:
    return db.execute(conn, db.retry(id, **changes))


def test_a_dead_job_runs_again_with_fresh_attempts_and_crashes(conn: Conn) -> None:
    id = dead(conn, {"a": 1}, max_attempts=3, priority=4, tags=["x"], key="k", timeout_seconds=9)
    conn.execute("update pgqueue.job_dead set crashes = 3, cancel_requested_at = now()")
    before = job(conn, id)
    assert retry(conn, id) == "pending"
    after = job(conn, id)
    assert (after["status"], after["attempt"], after["crashes"]) == ("pending", 0, 0)
    for kept in (
        "payload", "priority", "tags", "key", "max_attempts", "timeout_seconds", "enqueued_at", "token", "error",
        "error_type", "queue", "task",
    ):  # fmt: skip
        assert after[kept] == before[kept], kept
    for fresh in ("worker_id", "started_at", "finished_at", "prune_at", "cancel_requested_at"):
        assert after[fresh] is None, fresh
    assert after["rank_at"] > before["finished_at"]


def test_the_token_continues_so_that_reports_of_old_claims_stay_refused(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    old = claim_one(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(id, old.token, "boom", fatal=True)]))
    retry(conn, id)
    new = claim_one(conn, w)
    assert (new.id, new.token, new.attempt) == (id, old.token + 1, 1)
    assert db.execute(conn, db.complete(w, [(id, old.token)])) == [id]
    assert db.execute(conn, db.complete(w, [(id, new.token)])) == []


def test_the_history_of_a_retried_job_stays(conn: Conn) -> None:
    id = dead(conn)
    retry(conn, id)
    assert [attempt["error"] for attempt in rows(conn, "select * from pgqueue.job_attempt")] == ["boom"]


def test_a_cancelled_job_runs_again(conn: Conn) -> None:
    id = enqueue(conn)
    db.execute(conn, db.cancel(id))
    assert retry(conn, id) == "pending"
    assert claim_one(conn, worker(conn)).id == id


def test_an_expired_job_that_is_retried_does_not_expire_again(conn: Conn) -> None:
    id = enqueue(conn, expires_at=LATER)
    conn.execute("update pgqueue.job_live set expires_at = now() - interval '1 hour'")
    assert db.execute(conn, db.sweep()).expired == 1
    retry(conn, id)
    assert db.execute(conn, db.sweep()).expired == 0
    assert claim_one(conn, worker(conn)).id == id


def test_the_payload_can_be_changed(conn: Conn) -> None:
    id = dead(conn, {"a": 1})
    retry(conn, id, payload={"b": 2})
    assert claim_one(conn, worker(conn)).payload == {"b": 2}


def test_the_attempts_can_be_changed(conn: Conn) -> None:
    id = dead(conn, max_attempts=3)
    retry(conn, id, max_attempts=9)
    assert job(conn, id)["max_attempts"] == 9


def test_the_time_can_be_changed(conn: Conn) -> None:
    id = dead(conn)
    assert retry(conn, id, run_at=LATER) == "scheduled"
    found = job(conn, id)
    assert (found["status"], found["run_at"], found["rank_at"]) == ("scheduled", LATER, LATER)


def test_a_time_in_the_past_means_now_and_does_not_jump_the_queue(conn: Conn) -> None:
    id = dead(conn)
    first = enqueue(conn)
    assert retry(conn, id, run_at=datetime(2001, 1, 1, tzinfo=UTC)) == "pending"
    assert claim_one(conn, worker(conn)).id == first


def test_a_retried_job_waits_behind_those_that_wait_already(conn: Conn) -> None:
    id = dead(conn)
    first = enqueue(conn)
    retry(conn, id)
    assert claim_one(conn, worker(conn)).id == first


def test_a_retried_job_is_claimable_though_its_lane_was_gone(conn: Conn) -> None:
    id = dead(conn, priority=7)
    conn.execute("delete from pgqueue.lane")
    retry(conn, id)
    assert claim_one(conn, worker(conn)).id == id


@pytest.mark.parametrize("id", [987654321, None])
def test_a_job_that_does_not_exist_cannot_be_retried(conn: Conn, id: int) -> None:
    with pytest.raises(JobNotFound, match=f"there is no job {'null' if id is None else id}"):
        retry(conn, id)


@pytest.mark.parametrize("status", ["pending", "scheduled", "running", "completed"])
def test_a_job_that_is_neither_dead_nor_cancelled_cannot_be_retried(conn: Conn, status: str) -> None:
    id, w = enqueue(conn, run_at=LATER if status == "scheduled" else None), worker(conn)
    if status in ("running", "completed"):
        token = claim_one(conn, w).token
        if status == "completed":
            db.execute(conn, db.complete(w, [(id, token)]))
    before = job(conn, id)
    with pytest.raises(WrongStatus, match=f"job {id} is {status}: only a dead or cancelled job can be retried"):
        retry(conn, id)
    assert job(conn, id) == before


def test_a_job_whose_key_a_live_job_has_cannot_be_retried(conn: Conn) -> None:
    id = dead(conn, key="k")
    enqueue(conn, key="k")
    with pytest.raises(KeyTaken, match=f"job {id} cannot be retried: another job has its key 'k' in queue 'q'"):
        retry(conn, id)
    assert job(conn, id)["status"] == "dead"


def test_a_job_whose_key_another_finished_job_holds_cannot_be_retried(conn: Conn) -> None:
    id = dead(conn, key="k")
    holder = enqueue(conn, key="k", key_ttl=timedelta(hours=1))
    db.execute(conn, db.cancel(holder))
    with pytest.raises(KeyTaken):
        retry(conn, id)
    assert (job(conn, id)["status"], job(conn, holder)["status"]) == ("dead", "cancelled")


def test_a_hold_that_has_ended_does_not_stop_a_retry(conn: Conn) -> None:
    id = dead(conn, key="k")
    db.execute(conn, db.cancel(enqueue(conn, key="k", key_ttl=timedelta(hours=1))))
    conn.execute("update pgqueue.key_hold set held_until = now() - interval '1 s'")
    assert retry(conn, id) == "pending"


def test_a_job_that_holds_its_own_key_can_be_retried_and_gives_the_hold_back(conn: Conn) -> None:
    id = dead(conn, key="k", key_ttl=timedelta(hours=1))
    assert value(conn, "select count(*) from pgqueue.key_hold") == 1
    assert retry(conn, id) == "pending"
    assert value(conn, "select count(*) from pgqueue.key_hold") == 0
    assert enqueue(conn, key="k") == id


def test_the_same_key_in_another_queue_does_not_stop_a_retry(conn: Conn) -> None:
    id = dead(conn, key="k")
    enqueue(conn, key="k", queue="other")
    assert retry(conn, id) == "pending"


@pytest.mark.parametrize(
    "changes",
    [{"max_attempts": 0}, {"max_attempts": 32001}, {"run_at": datetime(9999, 12, 31, tzinfo=UTC)}],
)
def test_bad_changes_are_refused_and_the_job_stays_dead(conn: Conn, changes: dict[str, Any]) -> None:
    id = dead(conn)
    with pytest.raises(InvalidArgument, match=next(iter(changes))):
        retry(conn, id, **changes)
    assert job(conn, id)["status"] == "dead"


@pytest.mark.parametrize("payload", ["[]", "null", "1"])
def test_a_payload_that_is_not_an_object_is_refused(conn: Conn, payload: str) -> None:
    id = dead(conn)
    call = db.Call("select pgqueue.retry($1::bigint, $2::jsonb)", [id, payload], lambda _: None)
    with pytest.raises(PayloadError, match="a payload is a JSON object"):
        db.execute(conn, call)
    assert job(conn, id)["status"] == "dead"


def test_a_payload_that_is_too_big_is_refused(conn: Conn) -> None:
    id = dead(conn)
    db.execute(conn, db.set_defaults({"payload_max_bytes": 1024}))
    with pytest.raises(PayloadError, match="at most 1024"):
        retry(conn, id, payload={"a": "x" * 2000})


def test_two_retries_of_one_job_make_one_job(conn: Conn, connect: Callable[..., Conn], dsn: str) -> None:
    id = dead(conn)
    first = connect(autocommit=False)
    retry(first, id)
    rival = Rival(connect(), lambda other: retry(other, id))
    rival.wait_blocked(dsn)
    first.commit()
    with pytest.raises((WrongStatus, JobNotFound)):
        rival.result()
    assert job(conn, id)["status"] == "pending"


def test_a_retry_waits_for_an_enqueue_of_its_key(conn: Conn, connect: Callable[..., Conn], dsn: str) -> None:
    id = dead(conn, key="k")
    enqueueing = connect(autocommit=False)
    enqueue(enqueueing, key="k")
    rival = Rival(connect(), lambda other: retry(other, id))
    rival.wait_blocked(dsn)
    enqueueing.rollback()
    assert rival.result() == "pending"
