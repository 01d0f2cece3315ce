from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from pgqueue import database as db
from tests.support import Conn, enqueue, job, value


def due(conn: Conn, ago: str = "1 hour", queue: str = "q") -> int:
    id = enqueue(conn, queue=queue, run_at=datetime.now(UTC) + timedelta(hours=1))
    conn.execute("update pgqueue.job_live set run_at = clock_timestamp() - %s::interval where id = %s", [ago, id])
    return id


def test_due_jobs_become_pending_and_others_stay(conn: Conn) -> None:
    first, later = due(conn), enqueue(conn, run_at=datetime.now(UTC) + timedelta(minutes=1))
    assert db.execute(conn, db.promote("q")) == 1
    assert (job(conn, first)["status"], job(conn, later)["status"]) == ("pending", "scheduled")


def test_a_promoted_job_ranks_by_its_time_but_at_most_half_a_second_back(conn: Conn) -> None:
    long_ago, just_now = due(conn), due(conn, "10 ms")
    before = value(conn, "select clock_timestamp()")
    db.execute(conn, db.promote("q"))
    assert job(conn, just_now)["rank_at"] == job(conn, just_now)["run_at"]
    assert (
        timedelta(0) <= job(conn, long_ago)["rank_at"] - (before - timedelta(milliseconds=500)) < timedelta(seconds=5)
    )
    assert job(conn, long_ago)["run_at"] < before - timedelta(minutes=59)


def test_the_longest_due_are_promoted_first_and_no_more_than_asked(conn: Conn) -> None:
    second, first, third = due(conn, "2 hours"), due(conn, "3 hours"), due(conn, "1 hour")
    assert db.execute(conn, db.promote("q", 2)) == 2
    assert [job(conn, id)["status"] for id in (first, second, third)] == ["pending", "pending", "scheduled"]
    assert db.execute(conn, db.promote("q", 2)) == 1
    assert db.execute(conn, db.promote("q", 2)) == 0


def test_only_the_named_queue_is_promoted(conn: Conn) -> None:
    other = due(conn, queue="other")
    assert db.execute(conn, db.promote("q")) == 0
    assert db.execute(conn, db.promote("unknown")) == 0
    assert job(conn, other)["status"] == "scheduled"


def test_jobs_that_others_hold_are_skipped(conn: Conn, connect: Callable[..., Conn]) -> None:
    locked, free, other = due(conn), due(conn), connect()
    with other.transaction():
        other.execute("select 1 from pgqueue.job_live where id = %s for update", [locked])
        assert db.execute(conn, db.promote("q")) == 1
    assert (job(conn, locked)["status"], job(conn, free)["status"]) == ("scheduled", "pending")
