"""Prometheus metrics of the whole queue, asked of the database at each scrape: from one place, not from each worker.

What one worker process knows of itself it serves at its own /metrics: see probes.py. Needs prometheus-client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from pgqueue import database
from pgqueue.errors import PgqueueError

OUTCOMES = ("completed", "failed", "dead", "cancelled", "expired", "lost", "snoozed", "released", "retried")
STATUSES = ("pending", "scheduled", "blocked", "running", "dead")
STATES = ("alive", "draining", "silent", "lost")
# 1 ms to 9 h, each twice the one before: every fourth bucket of the database's own.
BOUNDS = range(-10, 16)

GAUGES = {
    "held_snapshot_seconds": "How long the oldest open transaction has kept dead rows from being removed",
    "held_snapshot_transactions": "How many transactions ago the oldest open one began",
    "lanes_with_hint": "Lanes whose claims start at a hint, because dead rows have piled up before it",
    "rollup_lag_seconds": "How long nobody has merged the metrics",
    "job_live_dead_rows": "Dead rows in the table of live jobs, by PostgreSQL's own estimate",
    "connections": "Client connections of the server",
    "max_connections": "How many there may be",
}

Connect = Callable[[], psycopg.Connection[Any]]
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Queues(Collector):
    """Collects when it is scraped. Without a database it says pgqueue_up 0, and nothing stale."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._conn: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()  # scrapes may overlap

    def describe(self) -> Sequence[Family]:
        return ()  # so that registering does not ask the database

    def collect(self) -> Iterator[Family]:
        began = time.monotonic()
        up = GaugeMetricFamily("pgqueue_up", "Whether the database answered")
        with self._lock:
            try:
                families = list(self._ask())
            except (psycopg.Error, PgqueueError, OSError):
                self.close()
                families = []
        up.add_metric([], bool(families))
        yield up
        yield from families
        took = GaugeMetricFamily("pgqueue_scrape_seconds", "How long the database took to answer")
        took.add_metric([], time.monotonic() - began)
        yield took

    def close(self) -> None:
        """It opens another connection when it is scraped again."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(psycopg.Error):
                conn.close()

    def _ask(self) -> Iterator[Family]:
        if self._conn is None or self._conn.closed:
            self._conn = self._connect()
        conn = self._conn
        yield from _queues(
            database.execute(conn, database.queue_stats()), database.execute(conn, database.queue_status())
        )
        yield _workers(database.execute(conn, database.worker_status()))
        yield from _tasks(database.execute(conn, database.task_status()))
        yield from _recurring(database.execute(conn, database.recurring_health()))
        yield from _totals(database.execute(conn, database.totals()))
        for name, value in database.execute(conn, database.gauges()).items():
            gauge = GaugeMetricFamily(f"pgqueue_{name}", GAUGES.get(name, name))
            gauge.add_metric([], value)
            yield gauge


def _queues(stats: database.Rows, status: database.Rows) -> Iterator[Family]:
    depth = GaugeMetricFamily(
        "pgqueue_queue_depth", "Jobs by status; above 100,000 an estimate", labels=["queue", "status"]
    )
    workers = GaugeMetricFamily("pgqueue_queue_workers", "Live workers that serve the queue", labels=["queue"])
    paused = GaugeMetricFamily("pgqueue_queue_paused", "1 while nothing is claimed", labels=["queue"])
    limits = {
        name: GaugeMetricFamily(f"pgqueue_queue_{name}", text, labels=["queue"])
        for name, text in {
            "max_running": "How many of its jobs may run at a time; only of queues with that limit",
            "max_depth": "How many of its jobs may wait; only of queues with that limit",
        }.items()
    }
    for row in status:
        for name, limit in limits.items():
            if row[name] is not None:
                limit.add_metric([row["queue"]], row[name])
        for each in STATUSES:
            depth.add_metric([row["queue"], each], row[each])
        workers.add_metric([row["queue"]], row["workers"])
        paused.add_metric([row["queue"]], row["paused"])
    oldest = GaugeMetricFamily(
        "pgqueue_queue_oldest_age_seconds", "How long the first pending job has waited; 0: none does", labels=["queue"]
    )
    work = GaugeMetricFamily(
        "pgqueue_queue_work_waiting_seconds", "Pending jobs times their average run: for autoscaling", labels=["queue"]
    )
    for row in stats:
        oldest.add_metric([row["queue"]], float(row["oldest_waiting_seconds"] or 0))
        if row["work_waiting_seconds"] is not None or row["pending"] == 0:
            work.add_metric([row["queue"]], row["work_waiting_seconds"] or 0)
    yield from (depth, workers, paused, oldest, work, *limits.values())


def _workers(rows: database.Rows) -> Family:
    workers = GaugeMetricFamily("pgqueue_workers", "Worker processes by state", labels=["state"])
    for state in STATES:
        workers.add_metric([state], sum(row["state"] == state for row in rows))
    return workers


def _tasks(rows: database.Rows) -> Iterator[Family]:
    """Of tasks that are paused, have a circuit breaker or fail everywhere; of the others there is nothing to say."""
    told: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
        "circuit_open": ("1 while the circuit is open, or half open", lambda row: row["circuit"] != "closed"),
        "task_paused": ("1 while no job of the task is claimed", lambda row: row["paused"]),
        "task_blocked": ("Jobs that a pause or the circuit holds back; up to 100,001", lambda row: row["blocked"]),
        "task_failing": ("1 while the task fails on every worker", lambda row: row["alarmed_at"] is not None),
    }
    for name, (text, value) in told.items():
        family = GaugeMetricFamily(f"pgqueue_{name}", text, labels=["task"])
        for row in rows:
            family.add_metric([row["task"]], value(row))
        yield family


def _recurring(rows: database.Rows) -> Iterator[Family]:
    broken = GaugeMetricFamily("pgqueue_recurring_broken", "1 while no job can be made of it", labels=["name"])
    late = GaugeMetricFamily("pgqueue_recurring_late", "1 while it is due and nobody makes its job", labels=["name"])
    age = GaugeMetricFamily(
        "pgqueue_recurring_success_age_seconds", "How long ago a job of it succeeded; at least, if that is 20 jobs ago",
        labels=["name"],
    )  # fmt: skip
    for row in rows:
        broken.add_metric([row["name"]], row["state"] == "broken")
        late.add_metric([row["name"]], row["state"] == "late")
        if row["success_age_seconds"] is not None:
            age.add_metric([row["name"]], row["success_age_seconds"])
    yield from (broken, late, age)


def _totals(rows: database.Rows) -> Iterator[Family]:
    labels = ["queue", "task"]
    jobs = CounterMetricFamily("pgqueue_jobs", "What became of jobs and attempts", labels=[*labels, "outcome"])
    waits = HistogramMetricFamily("pgqueue_job_wait_seconds", "From claimable to claimed", labels=labels)
    runs = HistogramMetricFamily("pgqueue_job_run_seconds", "From claimed to the end of the attempt", labels=labels)
    for row in rows:
        names = [row["queue"], row["task"]]
        for outcome in OUTCOMES:
            jobs.add_metric([*names, outcome], row[outcome])
        for family, kind in ((waits, "wait"), (runs, "run")):
            found = dict(zip(row[f"{kind}_buckets"], row[f"{kind}_counts"], strict=True))
            family.add_metric(names, *_histogram(found))
    yield from (jobs, waits, runs)


def _histogram(found: dict[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative, with bounds at powers of two, where ours coincide; the sum is that of the middles of our buckets."""
    buckets: list[tuple[str, float]] = [
        (str(2.0**power), sum(n for bucket, n in found.items() if bucket < 4 * power)) for power in BOUNDS
    ]
    buckets.append(("+Inf", sum(found.values())))
    return buckets, sum(n * 2 ** ((bucket + 0.5) / 4) for bucket, n in found.items())


def exposition(queues: Queues) -> str:
    """As text, in Prometheus' format."""
    return generate_latest(registry(queues)).decode()


def registry(queues: Queues) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(queues)
    return made
