"""The stream of events: off by default, complete when on, and read by a cursor that misses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.support import FIXED, Conn, claim, claim_one, enqueue, lose, make_due, rows, value, worker


@pytest.fixture
def events(conn: Conn) -> Iterator[Callable[[], list[tuple[Any, ...]]]]:
    """Switched on for this test; a call gives (job, status, attempt) of what is new."""
    db.execute(conn, db.set_events(True))
    cursor = db.execute(conn, db.events())[0]["cursor"]

    def new() -> list[tuple[Any, ...]]:
        nonlocal cursor
        found = db.execute(conn, db.events(cursor))
        cursor = found[-1]["cursor"] if found else cursor
        return [(each["job_id"], each["status"], each["attempt"]) for each in found]

    yield new
    db.execute(conn, db.set_events(False))


def test_events_are_off_and_cost_nothing_until_somebody_wants_them(conn: Conn) -> None:
    enqueue(conn)
    assert rows(conn, "select 1 from pgqueue.event") == []
    triggers = "select 1 from pg_trigger where tgrelid = 'pgqueue.job_live'::regclass"
    assert rows(conn, triggers) == []
    with pytest.raises(InvalidArgument, match="pgqueue events on"):
        db.execute(conn, db.events())
    db.execute(conn, db.set_events(True))
    db.execute(conn, db.set_events(True))
    assert len(rows(conn, triggers)) == 2
    db.execute(conn, db.set_events(False))
    db.execute(conn, db.set_events(False))
    assert rows(conn, triggers) == []


def test_the_whole_life_of_jobs_is_told(conn: Conn, events: Callable[[], list[tuple[Any, ...]]]) -> None:
    w = worker(conn)
    id = enqueue(conn, retry=FIXED, max_attempts=2)
    assert events() == [(id, "pending", 0)]
    claimed = claim_one(conn, w)
    assert events() == [(id, "running", 1)]
    db.execute(conn, db.progress(w, id, claimed.token, 0.5))
    assert events() == [], "its status has not changed"
    db.execute(conn, db.fail(w, [db.Failure(id, claimed.token, "boom", "ValueError")]))
    assert events() == [(id, "scheduled", 1)]
    make_due(conn, id)
    again = claim_one(conn, w)
    assert events() == [(id, "pending", 1), (id, "running", 2)]
    db.execute(conn, db.fail(w, [db.Failure(id, again.token, "boom", "ValueError")]))
    assert events() == [(id, "dead", 2)]
    db.execute(conn, db.retry(id))
    assert events() == [(id, "pending", 0)]
    last = claim_one(conn, w)
    db.execute(conn, db.complete(w, [(id, last.token)]))
    assert events() == [(id, "running", 1), (id, "completed", 1)]
    other = enqueue(conn, run_in=timedelta(hours=1))
    db.execute(conn, db.cancel(other))
    assert events() == [(other, "scheduled", 0), (other, "cancelled", 0)]
    assert value(conn, "select error_type from pgqueue.event where status = 'dead'") == "ValueError"


def test_batches_and_rescues_are_told(conn: Conn, events: Callable[[], list[tuple[Any, ...]]]) -> None:
    w = worker(conn)
    ids = [made.id for made in db.execute(conn, db.enqueue_many("q", "t", [{}] * 20))]
    jobs = claim(conn, w, 20)
    db.execute(conn, db.complete(w, [(job.id, job.token) for job in jobs[:15]]))
    lose(conn, w)
    db.execute(conn, db.sweep())
    found = events()
    assert [sum(status == each[1] for each in found) for status in ("pending", "running", "completed")] == [25, 20, 15]
    assert {each[0] for each in found} == set(ids)


def test_what_is_rolled_back_never_happened(conn: Conn, events: Callable[[], list[tuple[Any, ...]]]) -> None:
    with conn.transaction(force_rollback=True):
        enqueue(conn)
    assert events() == []


def test_a_transaction_that_commits_late_is_neither_missed_nor_told_twice(
    conn: Conn, connect: Callable[..., Conn], events: Callable[[], list[tuple[Any, ...]]]
) -> None:
    with connect(autocommit=False) as slow:
        late = enqueue(slow)
        first = enqueue(conn)
        assert events() == [(first, "pending", 0)], "it holds up nobody else's events"
        second = enqueue(conn)
        assert events() == [(second, "pending", 0)]
        slow.commit()
    assert events() == [(late, "pending", 0)]
    assert events() == []


def test_a_cursor_that_is_none_is_refused(conn: Conn, events: Callable[[], list[tuple[Any, ...]]]) -> None:
    for cursor in ("", "x", "5:3:"):
        with pytest.raises(InvalidArgument):
            db.execute(conn, db.events(cursor))


def test_days_of_events_are_dropped_when_the_next_day_is_over(conn: Conn) -> None:
    conn.execute(
        "insert into pgqueue.event (at, xid, job_id, token, attempt, status, queue, task)"
        " select now() - i * interval '1 day', pg_current_xact_id(), i, 0, 0, 'pending', 'q', 't'"
        " from generate_series(0, 9) i"
    )
    db.execute(conn, db.prune())
    assert value(conn, "select max(job_id) from pgqueue.event") == 1


def test_a_producer_without_rights_on_events_writes_them(
    conn: Conn, connect: Callable[..., Conn], events: Callable[[], list[tuple[Any, ...]]]
) -> None:
    producer = connect()
    producer.execute("set role pgqueue_producer")
    id = enqueue(producer)
    assert events() == [(id, "pending", 0)]
