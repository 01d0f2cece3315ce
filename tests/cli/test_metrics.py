"""`pgqueue metrics`: what Prometheus sees."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pgqueue import database as db
from pgqueue import exporter
from tests.cli.conftest import Run
from tests.support import Conn, claim, enqueue, lose, row, worker


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, /, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def test_queues_workers_and_what_ended_are_told(conn: Conn, run: Run) -> None:
    w = worker(conn)
    lose(conn, worker(conn))
    for _ in range(5):
        enqueue(conn)
    one, two, three, four = claim(conn, w, 4)
    db.execute(conn, db.complete(w, [(one.id, one.token), (two.id, two.token)]))
    db.execute(conn, db.roll_up())
    db.execute(conn, db.complete(w, [(three.id, three.token)]))
    db.execute(conn, db.fail(w, [db.Failure(four.id, four.token, "boom", fatal=True)]))
    told = run("metrics")
    found = parse(told.out)
    assert told.code == 0
    assert of(found, "pgqueue_up") == 1
    assert of(found, "pgqueue_queue_depth", queue="q", status="pending") == 1
    assert of(found, "pgqueue_queue_depth", queue="q", status="dead") == 1
    assert of(found, "pgqueue_queue_workers", queue="q") == 1
    assert of(found, "pgqueue_workers", state="silent") == 1
    assert of(found, "pgqueue_jobs_total", queue="q", task="t", outcome="completed") == 3, "merged or not"
    assert of(found, "pgqueue_jobs_total", queue="q", task="t", outcome="dead") == 1
    assert of(found, "pgqueue_job_run_seconds_count", queue="q", task="t") == 4
    assert of(found, "pgqueue_job_run_seconds_bucket", queue="q", task="t", le="+Inf") == 4
    assert (of(found, "pgqueue_queue_oldest_age_seconds", queue="q") or 0) > 0
    assert of(found, "pgqueue_queue_work_waiting_seconds", queue="q") is not None


def test_limits_circuits_and_recurring_jobs_are_told(conn: Conn, run: Run) -> None:
    w = worker(conn)
    db.execute(conn, db.set_queue("q", {"max_running": 4, "max_depth": 100}))
    db.execute(conn, db.force_circuit("t", "open"))
    db.execute(conn, db.pause_task("u"))
    conn.execute("update pgqueue.task set alarmed_at = now() where task = 'u'")
    enqueue(conn)
    assert claim(conn, w) == []
    for name in ("works", "fails", "new"):
        db.execute(conn, db.set_recurring(name, {"task": "v", "queue": "q", "every": "1 h"}))
    for name in ("works", "fails"):
        for _ in range(2):
            id = db.execute(conn, db.run_recurring_now(name))
            (held,) = claim(conn, w)
            if name == "works":
                db.execute(conn, db.complete(w, [(id, held.token)]))
            else:
                db.execute(conn, db.fail(w, [db.Failure(id, held.token, "boom", fatal=True)]))
    hour = "interval '1 h'"
    conn.execute(f"update pgqueue.recurring_run set due_at = due_at - {hour}, fired_at = fired_at - {hour}")
    db.execute(conn, db.run_recurring_now("works"))
    conn.execute("update pgqueue.job_done set finished_at = finished_at - interval '1 h'")
    found = parse(run("metrics").out)
    assert of(found, "pgqueue_queue_max_running", queue="q") == 4
    assert of(found, "pgqueue_queue_max_depth", queue="q") == 100
    assert [of(found, "pgqueue_circuit_open", task=task) for task in "tu"] == [1, 0]
    assert [of(found, "pgqueue_task_paused", task=task) for task in "tu"] == [0, 1]
    assert [of(found, "pgqueue_task_blocked", task=task) for task in "tu"] == [1, 0]
    assert [of(found, "pgqueue_task_failing", task=task) for task in "tu"] == [0, 1]
    assert of(found, "pgqueue_recurring_broken", name="works") == 0
    ages = [of(found, "pgqueue_recurring_success_age_seconds", name=name) for name in ("works", "fails", "new")]
    assert [age and round(age / 3600, 1) for age in ages] == [1, 1, None]
    version = row(conn, "select version from pgqueue.recurring_job where name = 'works'")["version"]
    db.execute(conn, db.mark_recurring("works", version, "no zone X"))
    conn.execute(
        "update pgqueue.recurring_job set planned = true, next_run_at = now() - interval '1 h' where name = 'fails'"
    )
    found = parse(run("metrics").out)
    assert of(found, "pgqueue_recurring_broken", name="works") == 1
    assert of(found, "pgqueue_recurring_late", name="fails") == 1
    db.execute(conn, db.pause_recurring("works"))
    assert of(parse(run("metrics").out), "pgqueue_recurring_broken", name="works") is None


def test_histograms_are_cumulative_with_bounds_at_powers_of_two() -> None:
    buckets, total = exporter._histogram({-60: 1, 0: 2, 3: 4, 4: 8, 100: 16})
    by_bound = {float(bound): count for bound, count in buckets}
    assert (by_bound[0.5], by_bound[1], by_bound[2], by_bound[4], by_bound[float("inf")]) == (1, 1, 7, 15, 31)
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert total > 16 * 2**25


def test_every_gauge_of_the_database_has_a_help_text(conn: Conn) -> None:
    assert db.execute(conn, db.gauges()).keys() == exporter.GAUGES.keys()


def test_counters_do_not_step_back_when_minutes_and_hours_are_pruned(conn: Conn, run: Run) -> None:
    enqueue(conn)
    for ago in ("3 days", "20 days"):
        conn.execute(
            "insert into pgqueue.tally (at, jobs, outcome, queue, task)"
            " values (date_trunc('minute', now() - %s::interval), 5, 'completed', 'q', 't')",
            [ago],
        )
    for _ in range(2):
        assert of(parse(run("metrics").out), "pgqueue_jobs_total", queue="q", task="t", outcome="completed") == 10
        conn.execute("delete from pgqueue.queue_sample")
        db.execute(conn, db.roll_up())


def test_without_a_database_it_says_so_and_nothing_stale(dsn: str) -> None:
    there: list[psycopg.Connection[object]] = []

    def connect() -> psycopg.Connection[object]:
        if there:
            raise psycopg.OperationalError("gone")
        there.append(psycopg.connect(dsn, autocommit=True))
        return there[0]

    queues = exporter.Queues(connect)
    assert of(parse(exporter.exposition(queues)), "pgqueue_up") == 1
    there[0].close()
    found = parse(exporter.exposition(queues))
    assert of(found, "pgqueue_up") == 0
    assert {name for name, _ in found} == {"pgqueue_up", "pgqueue_scrape_seconds"}


def test_a_database_that_cannot_be_looked_at_is_exit_code_1(run: Run) -> None:
    told = run("metrics", "-d", "postgresql://nobody@127.0.0.1:1/none")
    assert told.code == 1
    assert "pgqueue_up 0" in told.out


@pytest.fixture
def served(dsn: str, conn: Conn) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pgqueue", "metrics", "--http", ":0"],
        env={**os.environ, "DATABASE_URL": dsn}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr:
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found
        yield process, found[0]
        if process.poll() is None:
            process.kill()
        process.wait()


def test_it_serves_until_sigterm(conn: Conn, served: tuple[subprocess.Popen[str], str]) -> None:
    process, url = served
    for number in (1, 2):
        enqueue(conn)
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            found = parse(answer.read().decode())
        assert of(found, "pgqueue_queue_depth", queue="q", status="pending") == number
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
