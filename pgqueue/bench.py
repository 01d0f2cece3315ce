"""`pgqueue bench`: how fast the queue is on a database of the user's, and what limits it there.

It makes a database of its own, measures with it, and drops it: nobody's tables, jobs or workers are touched. Every
measure is a few seconds long; the worker is the one of `pgqueue work`.
"""

from __future__ import annotations

import os
import resource
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo

from pgqueue import cli_output as out
from pgqueue import config, schema
from pgqueue.bench_app import NOTE, app, began, noop
from pgqueue.errors import PgqueueError

BULK = 1000
MOST_JOBS = 300_000
CLIENTS = 8
WARM_UP = 5
PATIENCE_SECONDS = 30.0
SETTINGS = (
    "server_version fsync synchronous_commit full_page_writes synchronous_standby_names shared_buffers max_wal_size"
)
SPAN = "select count(*), extract(epoch from max(finished_at) - min(started_at))::float8 from pgqueue.job_done"


@dataclass
class Found:
    """What was measured; `say` is told of each step as it begins."""

    say: Callable[[str], None]
    settings: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, note: str = "") -> None:
        self.rows.append({"measure": what, "value": value, "unit": unit, "note": note})

    def value(self, what: str) -> float:
        return float(next(row["value"] for row in self.rows if row["measure"] == what))


def run(database_url: str | None, seconds: float, say: Callable[[str], None]) -> Found:
    url = config.conninfo(database_url)
    found = Found(say)
    with _database(url, say) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        app.use(dsn)
        try:
            _connection(found, conn, seconds)
            _enqueue(found, conn, dsn, seconds)
            _drain(found, conn, dsn, seconds)
            _latency(found, conn, dsn, jobs=int(30 * min(seconds, 2)))
        finally:
            app.close()
    found.notes += _limits(found)
    return found


@contextmanager
def _database(url: str, say: Callable[[str], None]) -> Iterator[str]:
    name = f"pgqueue_bench_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as admin:
        say(f"{config.describe(url)}: making the database {name}, which is dropped at the end")
        try:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise PgqueueError(
                "this makes a database of its own, and the user may not: name one who may with -d, or let a superuser"
                " say `alter role … createdb`"
            ) from error
    dsn = make_conninfo(url, dbname=name)
    try:
        schema.migrate(dsn)
        yield dsn
    finally:
        with psycopg.connect(url, autocommit=True) as admin:  # the first one may be gone by now
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


# ------------------------------------------------------------------------------------------------- measures


def _timed(seconds: float, do: Callable[[], Any], at_most: int = 100_000) -> list[float]:
    """Milliseconds of one call after the other."""
    times: list[float] = []
    ends_at = time.perf_counter() + seconds
    while (started := time.perf_counter()) < ends_at and len(times) < at_most:
        do()
        times.append(1000 * (time.perf_counter() - started))
    return sorted(times[WARM_UP:] or times)


def _percentile(times: list[float], percent: int) -> float:
    return times[min(len(times) * percent // 100, len(times) - 1)]


def _connection(found: Found, conn: Connection[Any], seconds: float) -> None:
    found.settings = {name: str(_one(conn, f"show {name}")) for name in SETTINGS.split()}
    found.say("round trips and commits …")
    trips = _timed(seconds / 4, lambda: conn.execute("select 1"))
    found.add("round trip", statistics.median(trips), "ms", f"p99 {_percentile(trips, 99):.3g} ms")
    conn.execute("create table probe (id bigint generated always as identity, note text)")
    insert = "insert into probe (note) values (%s)"
    durable = _timed(seconds / 2, lambda: conn.execute(insert, [NOTE]))
    conn.execute("set synchronous_commit = off")
    quick = _timed(seconds / 4, lambda: conn.execute(insert, [NOTE]))
    conn.execute("reset synchronous_commit")
    found.add("commit of a row", statistics.median(durable), "ms", f"p99 {_percentile(durable, 99):.3g} ms")
    flush = max(statistics.median(durable) - statistics.median(quick), 0)
    found.add("of that until it is durable", flush, "ms", "beside synchronous_commit = off")


def _enqueue(found: Found, conn: Connection[Any], dsn: str, seconds: float) -> None:
    found.say("enqueueing …")
    one = noop.using(conn=conn)
    times = _timed(seconds, lambda: one.enqueue(1), MOST_JOBS // 4)
    found.add("enqueue, one by one", 1000 / statistics.fmean(times), "jobs/s", f"p99 {_percentile(times, 99):.3g} ms")

    def client(_: int) -> int:
        with psycopg.connect(dsn, autocommit=True) as own:
            mine = noop.using(conn=own)
            return len(_timed(seconds, lambda: mine.enqueue(1), MOST_JOBS // 4)) + WARM_UP

    started = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        made = sum(clients.map(client, range(CLIENTS)))
    rate = made / (time.perf_counter() - started)
    found.add(f"enqueue, {CLIENTS} connections", rate, "jobs/s", "threads of one Python process")
    calls = [{"order_id": number} for number in range(BULK)]
    bulk = _timed(seconds, lambda: one.enqueue_many(calls), MOST_JOBS // BULK)
    found.add("enqueue in bulk", 1000 * BULK / statistics.fmean(bulk), "jobs/s", f"{BULK:,} in a call")


@contextmanager
def _worker(dsn: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """`pgqueue work`, as anybody would start it."""
    command = [sys.executable, "-m", "pgqueue", "work", "-A", "pgqueue.bench_app:app", "--log-level", "critical"]
    process = subprocess.Popen(
        [*command, *flags], env={**os.environ, "PGQUEUE_DATABASE_URL": dsn}, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()


def _drain(found: Found, conn: Connection[Any], dsn: str, seconds: float) -> None:
    """For twice the seconds, or until nothing is left; by the clock of the database."""
    found.say("one worker process, handlers that do nothing …")
    conn.execute("vacuum analyze")
    used = _children_cpu_seconds()
    with _worker(dsn, "--concurrency", "100") as worker:
        _until(lambda: bool(_one(conn, "select exists (select from pgqueue.job_done)")), worker)
        ends_at = time.monotonic() + 2 * seconds
        while time.monotonic() < ends_at and _one(conn, "select exists (select from pgqueue.job_live)"):
            time.sleep(0.1)
    used = _children_cpu_seconds() - used
    jobs, span = conn.execute(SPAN).fetchone() or (0, 0)
    if jobs and span:
        found.add("drain, one worker", jobs / span, "jobs/s", f"{jobs:,} jobs, each completed durably")
        busy = f"{100 * min(used / span, 1):.0f} % of the time" if used else ""
        found.add("processor time of the worker", 1e6 * used / jobs, "µs/job", busy)


def _children_cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def _latency(found: Found, conn: Connection[Any], dsn: str, jobs: int) -> None:
    found.say("single jobs, with nothing else to do …")
    conn.execute("truncate pgqueue.job_live")
    workers = int(_one(conn, "select count(*) from pgqueue.worker"))
    with _worker(dsn) as worker:
        _until(lambda: int(_one(conn, "select count(*) from pgqueue.worker")) > workers, worker)
        time.sleep(1)
        waits = []
        for number in range(jobs + WARM_UP):
            time.sleep(0.03)
            asked_at = time.time()
            handle = began.enqueue()
            started_at = handle.result(timeout=PATIENCE_SECONDS)
            if number >= WARM_UP:
                waits.append(1000 * (started_at - asked_at))
    waits.sort()
    found.add("enqueue to start", statistics.median(waits), "ms", f"p95 {_percentile(waits, 95):.3g} ms, idle")


def _until(true: Callable[[], bool], worker: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if worker.poll() is not None:
            raise PgqueueError(f"the worker ended with {worker.returncode}: start one yourself to see why")
        if time.monotonic() > deadline:
            raise PgqueueError("the worker does nothing: `pgqueue doctor` may know why")
        time.sleep(0.01)


def _one(conn: Connection[Any], query: str) -> Any:
    row = conn.execute(query).fetchone()
    return row[0] if row else None


# -------------------------------------------------------------------------------------------- what limits it


def _limits(found: Found) -> list[str]:
    """What a reader would conclude from the figures."""
    notes = []
    unsafe = [name for name in ("fsync", "full_page_writes") if found.settings[name] == "off"]
    if unsafe:
        notes.append(f"{' and '.join(unsafe)} off: a crash of the machine can destroy this database")
    trip, commit = found.value("round trip"), found.value("commit of a row")
    flush, single = found.value("of that until it is durable"), 1000 / found.value("enqueue, one by one")
    if trip > 1:
        notes.append(f"the network: a round trip takes {trip:.2g} ms; a worker near the database is faster")
    if flush > 0.5 * single:
        where = "the standby's answer" if found.settings["synchronous_standby_names"] else "the disk"
        notes.append(
            f"single enqueues wait for {where}, {flush:.2g} of {single:.2g} ms: several connections share one wait"
        )
    elif commit > 0.5 * single:
        notes.append(f"single enqueues are bound by the commit: {commit:.2g} of {single:.2g} ms")
    names = [row["measure"] for row in found.rows]
    if "drain, one worker" in names:
        busy = found.value("processor time of the worker") * found.value("drain, one worker") / 1e6
        if busy > 0.8:
            notes.append("the drain is bound by the worker's own processor: a second worker process adds to it")
        else:
            notes.append(f"the drain waits for the database: the worker computes {100 * busy:.0f} % of the time")
    return notes


def show(found: Found, as_json: bool) -> None:
    if as_json:
        shown = {"settings": found.settings, "measures": found.rows, "notes": found.notes}
        out.show_one(shown, as_json=True)
        return
    settings = {name: value for name, value in found.settings.items() if value}
    print("PostgreSQL " + settings.pop("server_version") + ": " + ", ".join(f"{k} {v}" for k, v in settings.items()))
    print()
    out.table(found.rows, {"MEASURE": "measure", "VALUE": "value", "UNIT": "unit", "NOTE": "note"})
    print()
    for note in found.notes:
        print(f"→ {note}")
