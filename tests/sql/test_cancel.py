from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from pgqueue import database as db
from pgqueue.errors import JobNotFound
from tests.support import (
    FIXED,
    Conn,
    Rival,
    claim,
    claim_one,
    enqueue,
    job,
    make_due,
    row,
    rows,
    value,
    worker,
)

LATER = datetime.now(UTC) + timedelta(days=1)


def cancel(conn: Conn, id: int, reason: str | None = None) -> str:
    return db.execute(conn, db.cancel(id, reason))


# ------------------------------------------------------------------------------------------------ cancel


def test_a_pending_job_is_cancelled_at_once(conn: Conn) -> None:
    id = enqueue(conn)
    assert cancel(conn, id, "not needed") == "cancelled"
    found = job(conn, id)
    assert (found["status"], found["error_type"], found["error"]) == ("cancelled", "Cancelled", "not needed")
    assert found["prune_at"] - found["finished_at"] == timedelta(days=7)
    assert claim(conn, worker(conn)) == []


def test_a_scheduled_job_is_cancelled_at_once(conn: Conn) -> None:
    id = enqueue(conn, run_at=LATER)
    assert cancel(conn, id) == "cancelled"
    assert job(conn, id)["status"] == "cancelled"


def test_a_blocked_job_is_cancelled_at_once(conn: Conn) -> None:
    id = enqueue(conn)
    conn.execute("update pgqueue.job_live set status = 'blocked' where id = %s", [id])
    assert cancel(conn, id) == "cancelled"
    assert job(conn, id)["status"] == "cancelled"


def test_a_job_cancelled_without_a_reason_says_cancelled(conn: Conn) -> None:
    id = enqueue(conn)
    cancel(conn, id)
    assert job(conn, id)["error"] == "cancelled"


def test_a_long_reason_is_cut(conn: Conn) -> None:
    id = enqueue(conn)
    cancel(conn, id, "x" * 5000)
    assert job(conn, id)["error"] == "x" * 4000


def test_cancelling_touches_no_other_job(conn: Conn) -> None:
    kept, gone = enqueue(conn), enqueue(conn)
    cancel(conn, gone)
    assert job(conn, kept)["status"] == "pending"


def test_a_running_job_is_asked_to_stop_and_goes_on(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    assert cancel(conn, id, "too slow") == "running"
    found = job(conn, id)
    assert (found["status"], found["worker_id"], found["error"]) == ("running", w, "too slow")
    assert found["cancel_requested_at"] is not None
    assert db.execute(conn, db.complete(w, [(id, token)])) == []
    assert job(conn, id)["status"] == "completed"


def test_asking_a_running_job_twice_keeps_the_time_of_the_first_and_the_reason_of_the_last(
    conn: Conn,
) -> None:
    id = enqueue(conn)
    claim_one(conn, worker(conn))
    cancel(conn, id, "first")
    asked = job(conn, id)["cancel_requested_at"]
    cancel(conn, id, "second")
    assert (job(conn, id)["cancel_requested_at"], job(conn, id)["error"]) == (asked, "second")
    cancel(conn, id)
    assert job(conn, id)["error"] == "second"


def test_a_finished_job_keeps_its_end_and_the_answer_says_which(conn: Conn) -> None:
    completed, cancelled, dead = enqueue(conn), enqueue(conn), enqueue(conn)
    cancel(conn, cancelled, "before")
    w = worker(conn)
    tokens = {claimed.id: claimed.token for claimed in claim(conn, w, 2)}
    db.execute(conn, db.complete(w, [(completed, tokens[completed])]))
    db.execute(conn, db.fail(w, [db.Failure(dead, tokens[dead], "boom", fatal=True)]))
    before = rows(conn, "select * from pgqueue.job order by id")
    assert [cancel(conn, id, "too late") for id in (completed, cancelled, dead)] == [
        "completed",
        "cancelled",
        "dead",
    ]
    assert rows(conn, "select * from pgqueue.job order by id") == before


@pytest.mark.parametrize("id", [987654321, None])
def test_a_job_that_does_not_exist_cannot_be_cancelled(conn: Conn, id: int) -> None:
    with pytest.raises(JobNotFound, match=f"there is no job {'null' if id is None else id}"):
        cancel(conn, id)


def test_the_key_of_a_cancelled_job_is_free(conn: Conn) -> None:
    id = enqueue(conn, key="k")
    cancel(conn, id)
    assert enqueue(conn, key="k") != id


def test_the_key_of_a_cancelled_job_stays_taken_for_its_ttl(conn: Conn) -> None:
    id = enqueue(conn, key="k", key_ttl=timedelta(hours=1))
    cancel(conn, id)
    assert enqueue(conn, key="k") == id
    held = row(conn, "select * from pgqueue.key_hold")
    assert (held["queue"], held["key"], held["job_id"]) == ("q", "k", id)
    assert held["held_until"] - job(conn, id)["finished_at"] == timedelta(hours=1)


def test_a_cancelled_job_that_is_not_retained_leaves_no_row(conn: Conn) -> None:
    id = enqueue(conn, retain_for=timedelta(0))
    assert cancel(conn, id) == "cancelled"
    assert value(conn, "select count(*) from pgqueue.job") == 0


def test_a_cancelled_job_is_kept_as_its_queue_says(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"retain_completed": "2 days"}))
    by_queue, by_itself = enqueue(conn), enqueue(conn, retain_for=timedelta(days=20))
    for id, days in ((by_queue, 2), (by_itself, 20)):
        cancel(conn, id)
        assert job(conn, id)["prune_at"] - job(conn, id)["finished_at"] == timedelta(days=days)


def test_a_cancel_waits_for_a_claim_in_flight_and_then_asks(conn: Conn, connect: Callable[..., Conn], dsn: str) -> None:
    id, w = enqueue(conn), worker(conn)
    claiming = connect(autocommit=False)
    claim_one(claiming, w)
    rival = Rival(connect(), lambda other: cancel(other, id))
    rival.wait_blocked(dsn)
    claiming.commit()
    assert rival.result() == "running"
    assert job(conn, id)["cancel_requested_at"] is not None


def test_a_cancel_that_loses_against_a_completion_says_completed(
    conn: Conn, connect: Callable[..., Conn], dsn: str
) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    completing = connect(autocommit=False)
    assert db.execute(completing, db.complete(w, [(id, token)])) == []
    rival = Rival(connect(), lambda other: cancel(other, id))
    rival.wait_blocked(dsn)
    completing.commit()
    assert rival.result() == "completed"


# ---------------------------------------------------------------------------------------- cancel_claimed


def test_the_worker_reports_a_cancelled_job_with_its_reason(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    assert db.execute(conn, db.cancel_claimed(w, [(id, token)], ["handler gave up"])) == []
    found = job(conn, id)
    assert (found["status"], found["error_type"], found["error"]) == (
        "cancelled",
        "Cancelled",
        "handler gave up",
    )
    attempt = row(conn, "select * from pgqueue.job_attempt")
    assert (attempt["job_id"], attempt["outcome"], attempt["error_type"], attempt["error"]) == (
        id,
        "cancelled",
        "Cancelled",
        "handler gave up",
    )
    assert (attempt["token"], attempt["attempt"], attempt["worker_id"]) == (token, 1, w)
    assert attempt["delay_seconds"] is None


def test_without_a_reason_of_the_worker_that_of_the_request_holds(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    cancel(conn, id, "customer left")
    db.execute(conn, db.cancel_claimed(w, [(id, token)]))
    assert job(conn, id)["error"] == "customer left"


def test_without_any_reason_it_says_cancelled(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    db.execute(conn, db.cancel_claimed(w, [(id, token)]))
    assert job(conn, id)["error"] == "cancelled"


def test_the_error_of_an_earlier_attempt_is_not_taken_for_the_reason(conn: Conn) -> None:
    id, w = enqueue(conn, retry=FIXED), worker(conn)
    db.execute(conn, db.fail(w, [db.Failure(id, claim_one(conn, w).token, "division by zero", "ZeroDivisionError")]))
    make_due(conn, id)
    token = claim_one(conn, w).token
    cancel(conn, id)
    db.execute(conn, db.cancel_claimed(w, [(id, token)]))
    assert (job(conn, id)["error_type"], job(conn, id)["error"]) == ("Cancelled", "cancelled")


def test_each_job_gets_its_own_reason_whatever_the_order(conn: Conn) -> None:
    first, second, w = enqueue(conn), enqueue(conn), worker(conn)
    tokens = {claimed.id: claimed.token for claimed in claim(conn, w, 2)}
    leases = [(second, tokens[second]), (first, tokens[first])]
    assert db.execute(conn, db.cancel_claimed(w, leases, ["of the second", None])) == []
    assert (job(conn, first)["error"], job(conn, second)["error"]) == ("cancelled", "of the second")


def test_jobs_whose_lease_is_gone_are_refused_and_unchanged(conn: Conn) -> None:
    mine, other, w = enqueue(conn), enqueue(conn), worker(conn)
    tokens = {claimed.id: claimed.token for claimed in claim(conn, w, 2)}
    leases = [(987654321, 1), (other, tokens[other] + 1), (mine, tokens[mine])]
    assert db.execute(conn, db.cancel_claimed(w, leases)) == [other, 987654321]
    assert (job(conn, mine)["status"], job(conn, other)["status"]) == ("cancelled", "running")
    assert db.execute(conn, db.cancel_claimed(worker(conn), [(other, tokens[other])])) == [other]
    assert job(conn, other)["status"] == "running"


def test_reporting_nothing_cancels_nothing(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    claim_one(conn, w)
    assert db.execute(conn, db.cancel_claimed(w, [])) == []
    assert job(conn, id)["status"] == "running"
