from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.support import Conn, claim_one, enqueue, job, rows, value, worker

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def dead(conn: Conn, *, error: str = "boom", error_type: str = "ValueError", queue: str = "q", **options: Any) -> int:
    id = enqueue(conn, queue=queue, **options)
    w = worker(conn, [queue])
    claimed = claim_one(conn, w, [queue])
    db.execute(conn, db.fail(w, [db.Failure(id, claimed.token, error, error_type, fatal=True)]))
    return id


def completed(conn: Conn, **options: Any) -> int:
    id, w = enqueue(conn, **options), worker(conn)
    db.execute(conn, db.complete(w, [(id, claim_one(conn, w).token)]))
    return id


def purge(conn: Conn, where: db.Filter | None = None, *, status: Any = "dead", **options: Any) -> db.Purged:
    return db.execute(conn, db.purge(where or db.Filter(), status=status, **options))


def left(conn: Conn) -> set[int]:
    return {found["id"] for found in rows(conn, "select id from pgqueue.job")}


def test_dead_jobs_go_with_their_attempts(conn: Conn) -> None:
    gone = dead(conn)
    assert purge(conn) == (1, gone)
    assert left(conn) == set()
    assert value(conn, "select count(*) from pgqueue.job_attempt") == 0


def test_attempts_of_other_jobs_stay(conn: Conn) -> None:
    dead(conn, task="a")
    kept = dead(conn, task="b")
    purge(conn, db.Filter(task="a"))
    assert rows(conn, "select job_id from pgqueue.job_attempt") == [{"job_id": kept}]


@pytest.mark.parametrize("status", ["completed", "cancelled", "dead"])
def test_only_jobs_of_the_given_status_go(conn: Conn, status: str) -> None:
    ids = {"completed": completed(conn), "dead": dead(conn), "cancelled": enqueue(conn)}
    db.execute(conn, db.cancel(ids["cancelled"]))
    pending = enqueue(conn)
    assert purge(conn, status=status) == (1, ids.pop(status))
    assert left(conn) == {pending, *ids.values()}


def test_completed_jobs_go_from_day_partitions_and_from_the_default_one(conn: Conn) -> None:
    ids = [completed(conn, retain_for=timedelta(days=days)) for days in (1, 2, 900)]
    leaves = rows(conn, "select c.relname from pgqueue.job j join pg_class c on c.oid = j.tableoid")
    places = {leaf["relname"] for leaf in leaves}
    assert len(places) == 3
    assert "job_done_default" in places
    assert purge(conn, status="completed") == (3, max(ids))
    assert left(conn) == set()


@pytest.mark.parametrize(
    ("where", "matching", "other"),
    [
        (db.Filter(queue="a"), {"queue": "a"}, {"queue": "b"}),
        (db.Filter(task="a"), {"task": "a"}, {"task": "b"}),
        (db.Filter(error_type="KeyError"), {"error_type": "KeyError"}, {"error_type": "KeyErrors"}),
        (db.Filter(error="timed out"), {"error": "it timed out again"}, {"error": "it timed, out"}),
        (db.Filter(error="100%_"), {"error": "at 100%_ now"}, {"error": "at 100 now"}),
        (db.Filter(tag="a"), {"tags": ["b", "a"]}, {"tags": ["ab"]}),
        (db.Filter(tag="a"), {"tags": ["a"]}, {}),
        (db.Filter(queue="a", task="a"), {"queue": "a", "task": "a"}, {"queue": "a", "task": "b"}),
    ],
)
def test_only_jobs_that_match_the_filter_go(
    conn: Conn, where: db.Filter, matching: dict[str, Any], other: dict[str, Any]
) -> None:
    dead(conn, **matching)
    kept = dead(conn, **other)
    assert purge(conn, where).purged == 1
    assert left(conn) == {kept}


def test_finished_after_is_inclusive_and_finished_before_is_not(conn: Conn) -> None:
    ids = [dead(conn) for _ in range(4)]
    for hours, id in enumerate(ids):
        conn.execute("update pgqueue.job_dead set finished_at = %s where id = %s", [NOON + timedelta(hours=hours), id])
    where = db.Filter(finished_after=NOON + timedelta(hours=1), finished_before=NOON + timedelta(hours=3))
    assert purge(conn, where).purged == 2
    assert left(conn) == {ids[0], ids[3]}


def test_batches_reach_the_end(conn: Conn) -> None:
    ids = [dead(conn) for _ in range(7)]
    after, answers = 0, []
    while True:
        answer = purge(conn, after_id=after, batch=3)
        answers.append((answer.purged, answer.last_id))
        if answer.last_id is None:
            break
        after = answer.last_id
    assert answers == [(3, ids[2]), (3, ids[5]), (1, ids[6]), (0, None)]
    assert left(conn) == set()


def test_a_null_after_id_starts_at_the_beginning(conn: Conn) -> None:
    id = dead(conn)
    assert purge(conn, after_id=None) == (1, id)


def test_what_another_session_holds_is_left_alone(conn: Conn, connect: Callable[..., Conn]) -> None:
    held, free = dead(conn), dead(conn)
    other = connect(autocommit=False)
    other.execute("select 1 from pgqueue.job_dead where id = %s for update", [held])
    assert purge(conn) == (1, free)
    other.rollback()
    assert job(conn, held)["status"] == "dead"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": "pending"}, "only completed, cancelled or dead jobs can be purged"),
        ({"status": "running"}, "only completed, cancelled or dead jobs can be purged"),
        ({"status": None}, "only completed, cancelled or dead jobs can be purged"),
        ({"batch": 0}, "batch must be between 1 and 100000"),
        ({"batch": 100001}, "batch must be between 1 and 100000"),
        ({"batch": None}, "batch must be between 1 and 100000"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_goes(conn: Conn, options: dict[str, Any], message: str) -> None:
    id = dead(conn)
    with pytest.raises(InvalidArgument, match=message):
        purge(conn, **options)
    assert left(conn) == {id}
