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


def retry_many(conn: Conn, where: db.Filter | None = None, **options: Any) -> db.RetriedMany:
    return db.execute(conn, db.retry_many(where or db.Filter(), **options))


def live(conn: Conn) -> set[int]:
    return {found["id"] for found in rows(conn, "select id from pgqueue.job_live")}


def test_all_dead_jobs_are_retried_with_fresh_attempts(conn: Conn) -> None:
    ids = [dead(conn), dead(conn)]
    assert retry_many(conn) == (2, 0, max(ids))
    assert [(job(conn, id)["status"], job(conn, id)["attempt"]) for id in ids] == [("pending", 0)] * 2


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
def test_only_jobs_that_match_the_filter_are_retried(
    conn: Conn, where: db.Filter, matching: dict[str, Any], other: dict[str, Any]
) -> None:
    yes, no = dead(conn, **matching), dead(conn, **other)
    assert retry_many(conn, where).retried == 1
    assert live(conn) == {yes}
    assert job(conn, no)["status"] == "dead"


def test_finished_after_is_inclusive_and_finished_before_is_not(conn: Conn) -> None:
    ids = [dead(conn) for _ in range(4)]
    for hours, id in enumerate(ids):
        conn.execute("update pgqueue.job_dead set finished_at = %s where id = %s", [NOON + timedelta(hours=hours), id])
    where = db.Filter(finished_after=NOON + timedelta(hours=1), finished_before=NOON + timedelta(hours=3))
    assert retry_many(conn, where).retried == 2
    assert live(conn) == {ids[1], ids[2]}


def test_cancelled_jobs_are_retried_only_when_asked_for(conn: Conn) -> None:
    cancelled, died = enqueue(conn), dead(conn, queue="other")
    db.execute(conn, db.cancel(cancelled))
    assert retry_many(conn, status="cancelled").retried == 1
    assert live(conn) == {cancelled}
    assert job(conn, died)["status"] == "dead"


def test_batches_reach_the_end_and_retry_each_job_once(conn: Conn) -> None:
    ids = [dead(conn) for _ in range(7)]
    after, answers = 0, []
    while True:
        answer = retry_many(conn, after_id=after, batch=3)
        answers.append((answer.retried, answer.last_id))
        if answer.last_id is None:
            break
        after = answer.last_id
    assert answers == [(3, ids[2]), (3, ids[5]), (1, ids[6]), (0, None)]
    assert live(conn) == set(ids)


def test_skipped_jobs_do_not_stop_the_paging(conn: Conn) -> None:
    blocked = [dead(conn, key=f"k{n}") for n in range(2)]
    free = dead(conn)
    for n in range(2):
        enqueue(conn, key=f"k{n}")
    assert retry_many(conn, batch=2) == (0, 2, blocked[1])
    assert retry_many(conn, batch=2, after_id=blocked[1]) == (1, 0, free)
    assert [job(conn, id)["status"] for id in blocked] == ["dead", "dead"]


def test_a_job_whose_key_a_finished_job_holds_is_skipped(conn: Conn) -> None:
    id = dead(conn, key="k")
    db.execute(conn, db.cancel(enqueue(conn, key="k", key_ttl=timedelta(hours=1))))
    assert retry_many(conn) == (0, 1, id)


def test_of_two_dead_jobs_with_one_key_one_is_retried(conn: Conn) -> None:
    first, second = dead(conn, key="k"), dead(conn, key="k")
    assert retry_many(conn) == (1, 1, second)
    assert live(conn) == {first}


def test_repeating_a_run_retries_nothing_twice(conn: Conn) -> None:
    dead(conn)
    retry_many(conn)
    assert retry_many(conn) == (0, 0, None)


def test_spread_puts_the_start_times_into_that_interval(conn: Conn) -> None:
    for _ in range(20):
        dead(conn)
    before = value(conn, "select clock_timestamp()")
    assert retry_many(conn, spread=timedelta(hours=1)).retried == 20
    after = value(conn, "select clock_timestamp()")
    found = rows(conn, "select status, run_at, rank_at from pgqueue.job_live")
    assert {each["status"] for each in found} == {"scheduled"}
    assert all(before <= each["run_at"] <= after + timedelta(hours=1) for each in found)
    assert all(each["run_at"] == each["rank_at"] for each in found)
    # Twenty even draws all within one tenth of the hour: once in 10^18 runs.
    starts = [each["run_at"] for each in found]
    assert max(starts) - min(starts) > timedelta(minutes=6)


def test_what_another_session_holds_is_left_alone(conn: Conn, connect: Callable[..., Conn]) -> None:
    held, free = dead(conn), dead(conn)
    other = connect(autocommit=False)
    other.execute("select 1 from pgqueue.job_dead where id = %s for update", [held])
    assert retry_many(conn) == (1, 0, free)
    other.rollback()
    assert live(conn) == {free}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": "completed"}, "only dead or cancelled jobs can be retried"),
        ({"status": None}, "only dead or cancelled jobs can be retried"),
        ({"batch": 0}, "batch between 1 and 100000"),
        ({"batch": 100001}, "batch between 1 and 100000"),
        ({"batch": None}, "batch between 1 and 100000"),
        ({"spread": timedelta(seconds=-1)}, "spread must be between"),
        ({"spread": timedelta(days=3651)}, "spread must be between"),
        ({"spread": None}, "spread must be between"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_retried(conn: Conn, options: dict[str, Any], message: str) -> None:
    dead(conn)
    with pytest.raises(InvalidArgument, match=message):
        retry_many(conn, **options)
    assert live(conn) == set()


def test_a_null_after_id_starts_at_the_beginning(conn: Conn) -> None:
    id = dead(conn)
    assert retry_many(conn, after_id=None) == (1, 0, id)
