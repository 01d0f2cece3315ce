from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.support import Conn, claim, claim_one, enqueue, job, row, rows, value, worker

FUTURE = datetime.now(UTC) + timedelta(days=1)


def pause(conn: Conn, queue: str = "q", *, until: datetime | None = None, reason: str | None = None) -> None:
    db.execute(conn, db.pause(queue, until=until, reason=reason))


def resume(conn: Conn, queue: str = "q") -> bool:
    return db.execute(conn, db.resume(queue))


def test_nothing_is_claimed_from_a_paused_queue_until_it_is_resumed(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    pause(conn)
    assert claim(conn, w) == []
    assert resume(conn) is True
    assert claim_one(conn, w).id == id


def test_other_queues_go_on(conn: Conn) -> None:
    enqueue(conn)
    id = enqueue(conn, queue="other")
    pause(conn)
    assert [c.id for c in claim(conn, worker(conn, ["q", "other"]), 10, ["q", "other"])] == [id]


def test_running_jobs_of_a_paused_queue_can_be_completed(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    pause(conn)
    assert db.execute(conn, db.complete(w, [(id, token)])) == []
    assert job(conn, id)["status"] == "completed"


def test_jobs_can_be_enqueued_into_a_paused_queue(conn: Conn) -> None:
    pause(conn)
    assert job(conn, enqueue(conn))["status"] == "pending"


def test_a_pause_remembers_when_until_when_and_why(conn: Conn) -> None:
    before = value(conn, "select clock_timestamp()")
    pause(conn, until=FUTURE, reason="deploy")
    found = row(conn, "select * from pgqueue.queue")
    assert before <= found["paused_at"] <= value(conn, "select clock_timestamp()")
    assert (found["paused_until"], found["paused_reason"]) == (FUTURE, "deploy")


def test_a_pause_ends_by_itself(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    pause(conn, until=FUTURE)
    assert claim(conn, w) == []
    conn.execute("update pgqueue.queue set paused_until = clock_timestamp() - interval '1 ms'")
    assert claim_one(conn, w).id == id


def test_a_second_pause_replaces_the_first(conn: Conn) -> None:
    pause(conn, until=FUTURE, reason="deploy")
    pause(conn)
    assert row(conn, "select paused_until, paused_reason from pgqueue.queue") == {
        "paused_until": None,
        "paused_reason": None,
    }


def test_a_long_reason_is_cut(conn: Conn) -> None:
    pause(conn, reason="x" * 2000)
    assert value(conn, "select paused_reason from pgqueue.queue") == "x" * 1000


def test_a_queue_that_nobody_has_seen_can_be_paused(conn: Conn) -> None:
    pause(conn, "new")
    id = enqueue(conn, queue="new")
    assert claim(conn, worker(conn, ["new"]), 1, ["new"]) == []
    assert job(conn, id)["status"] == "pending"


def test_a_pause_keeps_the_settings_of_the_queue(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"max_attempts": 3}))
    pause(conn)
    resume(conn)
    assert value(conn, "select max_attempts from pgqueue.queue") == 3


@pytest.mark.parametrize("until", [datetime.now(UTC) - timedelta(seconds=1), datetime(9999, 12, 31, tzinfo=UTC)])
def test_a_pause_must_end_ahead_and_before_the_year_9999(conn: Conn, until: datetime) -> None:
    with pytest.raises(InvalidArgument, match="a pause ends at a time that lies ahead"):
        pause(conn, until=until)
    assert rows(conn, "select 1 from pgqueue.queue") == []


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "ü", "a\n"])
def test_a_bad_name_cannot_be_paused(conn: Conn, name: str) -> None:
    with pytest.raises(InvalidArgument, match="bad queue name"):
        pause(conn, name)
    assert rows(conn, "select 1 from pgqueue.queue") == []


def test_resuming_what_is_not_paused_says_so(conn: Conn) -> None:
    assert resume(conn, "unknown") is False
    pause(conn)
    assert (resume(conn), resume(conn)) == (True, False)


def test_resuming_clears_the_end_and_the_reason(conn: Conn) -> None:
    pause(conn, until=FUTURE, reason="deploy")
    resume(conn)
    found = row(conn, "select * from pgqueue.queue")
    assert (found["paused_at"], found["paused_until"], found["paused_reason"]) == (None, None, None)
