"""What tally, roll_up and stats make of the ends of jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from tests.support import Conn, claim, claim_one, enqueue, lose, row, rows, value, worker

OUTCOMES = ("completed", "failed", "dead", "cancelled", "expired", "lost", "snoozed", "released", "retried")
ENDED = f"select {', '.join(OUTCOMES)} from pgqueue.task_stats"


def ended(conn: Conn) -> dict[str, int]:
    """What happened, without the zeros."""
    return {name: count for name, count in row(conn, ENDED).items() if count}


def complete(conn: Conn, w: int, claimed: db.ClaimedJob) -> None:
    assert db.execute(conn, db.complete(w, [(claimed.id, claimed.token)])) == []


def put(conn: Conn, at: str, jobs: int, wait: int | None = 0, run: int | None = 0, **columns: str) -> None:
    """A tally of some past minute."""
    conn.execute(
        "insert into pgqueue.tally (at, jobs, wait_bucket, run_bucket, outcome, queue, task)"
        f" values (date_trunc('minute', {at}), %s, %s, %s, %s, %s, %s)",
        [jobs, wait, run, columns.get("outcome", "completed"), columns.get("queue", "q"), columns.get("task", "t")],
    )


# ------------------------------------------------------------------------------------------ what is counted


def test_every_end_of_a_job_is_counted_once(conn: Conn) -> None:
    w = worker(conn)
    ids = [enqueue(conn) for _ in range(6)]
    done, failed, died, snoozed, released, stopped = claim(conn, w, 6)
    complete(conn, w, done)
    for claimed, fatal in ((failed, False), (died, True)):
        db.execute(conn, db.fail(w, [db.Failure(claimed.id, claimed.token, "boom", fatal=fatal)]))
    db.execute(conn, db.snooze(w, [(snoozed.id, snoozed.token)], [60]))
    db.execute(conn, db.release(w, [(released.id, released.token)]))
    db.execute(conn, db.cancel(stopped.id))
    db.execute(conn, db.cancel_claimed(w, [(stopped.id, stopped.token)]))
    assert ended(conn) == dict.fromkeys(("completed", "failed", "dead", "cancelled", "snoozed", "released"), 1)
    db.execute(conn, db.cancel(ids[4]))
    assert ended(conn)["cancelled"] == 2
    db.execute(conn, db.retry(died.id))
    assert ended(conn)["retried"] == 1


def test_a_lost_attempt_is_counted_and_one_that_was_the_last_is_a_death(conn: Conn) -> None:
    for max_attempts in (1, 5):
        enqueue(conn, max_attempts=max_attempts)
    w = worker(conn)
    claim(conn, w, 2)
    lose(conn, w)
    db.execute(conn, db.sweep())
    assert ended(conn) == {"lost": 1, "dead": 1}


def test_what_expired_is_counted_apart_from_what_somebody_cancelled(conn: Conn) -> None:
    for _ in range(3):
        enqueue(conn, expires_in=timedelta(hours=1))
    conn.execute("update pgqueue.job_live set expires_at = now() - interval '1 s'")
    db.execute(conn, db.sweep())
    assert ended(conn) == {"expired": 3}


def test_a_refused_report_counts_nothing(conn: Conn) -> None:
    enqueue(conn)
    w = worker(conn)
    claimed = claim_one(conn, w)
    assert db.execute(conn, db.complete(w, [(claimed.id, claimed.token + 1)])) == [claimed.id]
    assert rows(conn, ENDED) == []


def test_a_completion_that_is_rolled_back_is_not_counted(conn: Conn, connect: Callable[..., Conn]) -> None:
    enqueue(conn)
    w = worker(conn)
    claimed = claim_one(conn, w)
    with connect(autocommit=False) as other:
        complete(other, w, claimed)
        assert ended(other) == {"completed": 1}
        other.rollback()
    assert rows(conn, ENDED) == []
    complete(conn, w, claimed)
    assert ended(conn) == {"completed": 1}


def test_a_batch_of_equal_jobs_is_one_row(conn: Conn) -> None:
    w = worker(conn)
    db.execute(conn, db.enqueue_many("q", "t", [{}] * 100))
    db.execute(conn, db.enqueue_many("q", "u", [{}] * 50))
    jobs = claim(conn, w, 150)
    conn.execute("update pgqueue.job_live set rank_at = started_at - interval '10 s'")
    db.execute(conn, db.complete(w, [(job.id, job.token) for job in jobs]))
    assert [tuple(each.values()) for each in rows(conn, "select task, jobs from pgqueue.tally order by task")] == [
        ("t", 100), ("u", 50),
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_waits_and_runs_fall_into_the_bucket_of_their_length(conn: Conn, how: str) -> None:
    w = worker(conn)
    enqueue(conn)
    claimed = claim_one(conn, w)
    conn.execute(
        "update pgqueue.job_live set started_at = clock_timestamp() - interval '100 s',"
        " rank_at = clock_timestamp() - interval '103 s'"
    )
    if how == "complete":
        complete(conn, w, claimed)
    else:
        db.execute(conn, db.fail(w, [db.Failure(claimed.id, claimed.token, "boom")]))
    found = row(conn, "select wait_bucket, run_bucket from pgqueue.tally")
    assert found == {"wait_bucket": math.floor(4 * math.log2(3)), "run_bucket": math.floor(4 * math.log2(100))}


def test_a_clock_that_stepped_back_does_no_harm(conn: Conn) -> None:
    w = worker(conn)
    enqueue(conn)
    claimed = claim_one(conn, w)
    conn.execute("update pgqueue.job_live set started_at = now() + interval '1 h', rank_at = now() + interval '2 h'")
    complete(conn, w, claimed)
    least = math.floor(4 * math.log2(1e-4))
    assert row(conn, "select wait_bucket, run_bucket from pgqueue.tally") == {"wait_bucket": least, "run_bucket": least}


# ------------------------------------------------------------------------------------------------- roll_up


def test_rolling_up_changes_nothing_that_stats_say(conn: Conn) -> None:
    for number in range(40):
        put(conn, f"now() - interval '{number} minutes'", number + 1, wait=number % 7 - 3, run=number % 5)
        put(conn, f"now() - interval '{number} minutes'", 2, None, None, outcome="cancelled", task="u")
    asked = "select to_jsonb(s) - 'per_second' as stats, task, completed, cancelled from pgqueue.task_stats s"
    before = rows(conn, asked)
    assert [(each["task"], each["completed"], each["cancelled"]) for each in before] == [("t", 820, 0), ("u", 0, 80)]
    assert db.execute(conn, db.roll_up()) == 80
    assert value(conn, "select count(*) from pgqueue.tally") == 0
    assert rows(conn, asked) == before
    assert db.execute(conn, db.roll_up()) == 0


def test_rolling_up_twice_adds_up(conn: Conn) -> None:
    for wait, run in ((1, 5), (1, 6), (-4, 6)):
        put(conn, "now()", 10, wait, run)
        db.execute(conn, db.roll_up())
    found = rows(
        conn,
        "select completed, wait_buckets, wait_counts, run_buckets, run_counts from pgqueue.metric order by at",
    )
    assert len(found) == 3
    assert all(
        each == {"completed": 30, "wait_buckets": [-4, 1], "wait_counts": [10, 20], "run_buckets": [5, 6],
                 "run_counts": [10, 20]} for each in found
    )  # fmt: skip


def test_only_one_rolls_up_and_the_other_does_not_wait(conn: Conn, connect: Callable[..., Conn]) -> None:
    put(conn, "now()", 1)
    with connect(autocommit=False) as first:
        assert db.execute(first, db.roll_up()) == 1
        assert db.execute(conn, db.roll_up()) == 0
        first.rollback()
    assert db.execute(conn, db.roll_up()) == 1


def test_completions_do_not_wait_for_each_other_nor_for_the_roll_up(conn: Conn, connect: Callable[..., Conn]) -> None:
    w, other = worker(conn), worker(conn)
    for _ in range(3):
        enqueue(conn)
    first, second, third = claim_one(conn, w), claim_one(conn, other), claim_one(conn, w)
    with connect(autocommit=False) as one, connect(autocommit=False) as two, connect(autocommit=False) as rolling:
        for each in (one, two, rolling):
            each.execute("set lock_timeout = '5s'")
        complete(one, w, first)
        complete(two, other, second)
        db.execute(rolling, db.roll_up())
        complete(conn, w, third)
        for each in (rolling, one, two):
            each.commit()
    db.execute(conn, db.roll_up())
    assert ended(conn) == {"completed": 3}


def test_a_completion_that_commits_late_is_counted_in_its_own_minute(conn: Conn, connect: Callable[..., Conn]) -> None:
    with connect(autocommit=False) as slow:
        put(slow, "now() - interval '30 minutes'", 7)
        put(conn, "now()", 1)
        db.execute(conn, db.roll_up())
        slow.commit()
    assert ended(conn) == {"completed": 8}
    conn.execute("delete from pgqueue.queue_sample")
    db.execute(conn, db.roll_up())
    assert value(conn, "select count(*) from pgqueue.tally") == 0
    minutes = rows(conn, "select completed from pgqueue.metric where span_seconds = 60 order by at")
    assert [each["completed"] for each in minutes] == [7, 1]


def test_old_minutes_go_and_their_hours_stay(conn: Conn) -> None:
    enqueue(conn)
    put(conn, "now() - interval '3 days'", 5)
    put(conn, "now() - interval '40 days'", 9)
    db.execute(conn, db.roll_up())
    conn.execute("delete from pgqueue.queue_sample")
    db.execute(conn, db.roll_up())
    found = rows(conn, "select span_seconds, completed from pgqueue.metric order by span_seconds")
    assert [tuple(each.values()) for each in found] == [(0, 14), (3600, 5)]
    assert stats(conn, days=4)[0]["completed"] == 5


def test_queues_are_sampled_once_a_minute(conn: Conn) -> None:
    for _ in range(3):
        enqueue(conn)
    enqueue(conn, run_in=timedelta(hours=1))
    db.execute(conn, db.roll_up())
    db.execute(conn, db.roll_up())
    assert row(conn, "select queue, pending, scheduled, running, workers from pgqueue.queue_sample") == {
        "queue": "q", "pending": 3, "scheduled": 1, "running": 0, "workers": 0,
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------- stats


def stats(conn: Conn, by: str = "task", **since: float) -> list[dict[str, Any]]:
    return rows(conn, "select * from pgqueue.stats(%s, by => %s)", datetime.now(UTC) - timedelta(**since), by)


def test_percentiles_are_right_to_the_width_of_a_bucket(conn: Conn) -> None:
    waits = [0.001 * 1.01**n for n in range(1000)]  # 1 ms to 20 s
    for wait in waits:
        put(conn, "now() - interval '5 minutes'", 1, math.floor(4 * math.log2(wait)), 0)
    db.execute(conn, db.roll_up())
    (found,) = stats(conn, hours=1)
    for percent in (50, 95, 99):
        exact = waits[percent * 10 - 1]
        assert found[f"wait_p{percent}_seconds"] == pytest.approx(exact, rel=0.05)
    assert 1 <= found["run_p50_seconds"] <= found["run_p99_seconds"] <= 2**0.25
    assert found["run_mean_seconds"] == pytest.approx(1.09, abs=0.01)


def test_a_range_of_a_day_takes_hours_in_the_middle_and_minutes_at_its_ends(conn: Conn) -> None:
    for minutes in range(0, 25 * 60, 10):
        put(conn, f"now() - interval '{minutes} minutes'", 1)
    db.execute(conn, db.roll_up())
    for since in (timedelta(minutes=20), timedelta(minutes=95), timedelta(hours=7, minutes=33), timedelta(hours=24)):
        exact = value(
            conn,
            "select sum(completed) from pgqueue.metric where span_seconds = 60"
            " and at >= date_trunc('minute', now() - %s::interval)",
            since,
        )
        assert stats(conn, seconds=since.total_seconds())[0]["completed"] == exact


def test_stats_by_queue_minute_and_hour(conn: Conn) -> None:
    put(conn, "date_trunc('hour', now()) - interval '90 minutes'", 1)
    put(conn, "date_trunc('hour', now()) - interval '89 minutes'", 2, task="u")
    put(conn, "date_trunc('hour', now()) - interval '10 minutes'", 4, queue="r")
    db.execute(conn, db.roll_up())
    by_queue = stats(conn, "queue", hours=3)
    assert [(each["queue"], each["task"], each["completed"]) for each in by_queue] == [("q", None, 3), ("r", None, 4)]
    by_minute = stats(conn, "minute", hours=3)
    assert [(each["queue"], each["completed"]) for each in by_minute] == [("q", 1), ("q", 2), ("r", 4)]
    assert by_minute[1]["at"] - by_minute[0]["at"] == timedelta(minutes=1)
    by_hour = stats(conn, "hour", hours=3)
    assert [(each["queue"], each["completed"], each["at"].minute) for each in by_hour] == [("q", 3, 0), ("r", 4, 0)]
    only = rows(
        conn, "select task, completed from pgqueue.stats(now() - interval '3 h', of_queue => 'q', of_task => 'u')"
    )
    assert [tuple(each.values()) for each in only] == [("u", 2)]


def test_queue_stats_estimate_what_was_enqueued(conn: Conn) -> None:
    conn.execute(
        "insert into pgqueue.queue_sample select now() - interval '61 minutes', 'q', 10, 5, 0, 2, 0, 1, 0"
        " union all select now() - interval '5 s', 'q', 100, 5, 0, 2, 0, 1, 0"
    )
    enqueue(conn)
    put(conn, "now() - interval '5 minutes'", 30)
    put(conn, "now() - interval '5 minutes'", 3, outcome="dead")
    put(conn, "now() - interval '5 minutes'", 7, outcome="failed")
    assert value(conn, "select enqueued from pgqueue.queue_stats") == 30 + 3 + 90


def test_queue_stats_say_how_much_work_waits(conn: Conn) -> None:
    for _ in range(6):
        enqueue(conn)
    assert value(conn, "select work_waiting_seconds from pgqueue.queue_stats") is None
    put(conn, "now() - interval '3 hours'", 10, run=12)  # 8 to 9.5 s
    db.execute(conn, db.roll_up())
    assert value(conn, "select work_waiting_seconds from pgqueue.queue_stats") == pytest.approx(6 * 8.7, rel=0.01)
    put(conn, "now() - interval '3 minutes'", 10, run=0)  # 1 to 1.2 s
    assert value(conn, "select work_waiting_seconds from pgqueue.queue_stats") == pytest.approx(6 * 1.09, rel=0.01)


@pytest.mark.parametrize(
    "arguments", ["by => 'year'", "now() + interval '1 h'", "null", "now() - interval '1 h', now() - interval '2 h'"]
)
def test_stats_refuse_a_range_that_is_none(conn: Conn, arguments: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        conn.execute(f"select * from pgqueue.stats({arguments})")
    assert raised.value.sqlstate == "PQ001"


# --------------------------------------------------------------------------------------------------- drain


def test_a_worker_that_is_told_to_drain_finds_it_by_asking(conn: Conn) -> None:
    w, other = worker(conn), worker(conn)
    assert db.execute(conn, db.drain(w)) is True
    assert [db.execute(conn, db.drain_requested(each)) for each in (w, other)] == [True, False]


def test_only_a_live_worker_can_be_drained(conn: Conn) -> None:
    w = worker(conn)
    lose(conn, w)
    db.execute(conn, db.sweep())
    assert db.execute(conn, db.drain(w)) is False
    assert db.execute(conn, db.drain(10**9)) is False


@pytest.mark.parametrize("since", ["-infinity", "4713-01-01 BC", "infinity", "294276-12-31 23:59:59+00"])
def test_times_beyond_all_metrics_are_no_error_of_postgresql(conn: Conn, since: str) -> None:
    for until in ("infinity", "294276-12-31 23:59:59+00", "4712-01-01 BC", "-infinity"):
        try:
            rows(conn, "select * from pgqueue.stats(%s, %s)", since, until)
        except psycopg.Error as error:
            assert error.sqlstate == "PQ001"  # noqa: PT017
        with pytest.raises(psycopg.Error) as refused:
            rows(conn, "select * from pgqueue.timeline(%s, %s)", since, until)
        assert refused.value.sqlstate == "PQ001"
