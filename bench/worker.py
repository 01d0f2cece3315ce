"""The worker beside a peer's: the same jobs through pgqueue and pgqueuer, on the same server, by turns.

    python -m bench.worker drain      a backlog of no-op jobs through one worker process
    python -m bench.worker latency    from just before enqueue to the first line of the handler, one job at a time
    python -m bench.worker idle       what a worker costs that has nothing to do
    python -m bench.worker memory     how big a worker gets: the command `pgqueue work`, and the peer's bare worker
    python -m bench.worker all

Runs on the server in DATABASE_URL (of this machine, with track_commit_timestamp = on; it may create databases), else on
an embedded one with the durable settings of bench.core. The peer comes from pip, into a virtualenv in --peers-dir. Both
get a fresh database for every round and the size (concurrency, batch) that suited them best in a trial. What is printed
are medians, the spread in brackets, and ratios: single figures move by 15 to 35 % on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.core import SETTINGS, database
from pgqueue import embedded

SCRIPTS = Path(__file__).parent / "peers"
SIZES = (10, 20, 100, 500, 1000)
SETTLE_SECONDS = 3.0
IDLE_SECONDS = 20.0
LATENCY_JOBS = 300
LIBPQ = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}

Figures = dict[str, dict[str, list[float]]]  # measure → contestant → one value a round


@dataclass(frozen=True)
class Contestant:
    """A queue, and the script in peers/ that works for it."""

    name: str
    python: Path
    finished: str  # the table where finished jobs stand, and which rows count
    cli: Sequence[str] = ()  # what users start, as arguments of python

    def command(self, *arguments: object) -> list[str]:
        return [str(self.python), str(SCRIPTS / f"{self.name}_worker.py"), *map(str, arguments)]

    def run(self, dsn: str, *arguments: object) -> str:
        done = subprocess.run(
            self.command(*arguments), env=_environment(dsn), stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{self.name} {' '.join(map(str, arguments))} failed with {done.returncode}")
        return done.stdout

    def install(self, dsn: str) -> None:
        self.run(dsn, "install")


def _environment(dsn: str) -> dict[str, str]:
    named = {LIBPQ[key]: str(value) for key, value in conninfo_to_dict(dsn).items() if key in LIBPQ}
    return {**os.environ, **named, "DATABASE_URL": dsn}


def contestants(peers_dir: Path) -> list[Contestant]:
    folder = peers_dir / "pgqueuer"
    python = folder / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import pgqueuer, asyncpg"], check=False).returncode:
        print(f"installing pgqueuer into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pgqueuer[asyncpg]"], check=True)
    show = "from importlib.metadata import version; print(version('pgqueuer'))"
    print("pgqueuer", subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.strip())
    return [
        Contestant(
            "pgqueue",
            Path(sys.executable),
            "pgqueue.job_done where status = 'completed'",
            ("-m", "pgqueue", "work", "-A", "bench.peers.pgqueue_worker:app", "--log-level", "warning"),
        ),
        Contestant("pgqueuer", python, "pgqueuer_log where status = 'successful'"),
    ]


# --------------------------------------------------------------------------------------------- printing


def add(figures: Figures, measure: str, name: str, value: float) -> None:
    figures.setdefault(measure, {}).setdefault(name, []).append(value)


def show(title: str, figures: Figures) -> None:
    names = list(next(iter(figures.values())))
    print(f"\n{title}")
    print(f"{'':30}" + "".join(f"{name:>32}" for name in names) + f"{'ratio':>8}")
    for measure, by_name in figures.items():
        medians = [statistics.median(by_name[name]) if name in by_name else None for name in names]
        cells = "".join(f"{_cell(by_name.get(name, [])):>32}" for name in names)
        whole = len(medians) == 2 and medians[0] is not None and bool(medians[1])
        ratio = f"{medians[0] / medians[1]:.2f}" if whole and medians[0] is not None and medians[1] else ""
        print(f"{measure:30}{cells}{ratio:>8}")
    sys.stdout.flush()


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return _number(values[0])
    return f"{_number(statistics.median(values))} ({_number(min(values))}–{_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


# ---------------------------------------------------------------------------------------- what /proc says


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name: state, parent, ...; the times are fields 11 to 14."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _ticks(fields: Iterable[str]) -> float:
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    return _ticks(_stat(pid)[11:13])


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(_stat(int(folder.name))[1]) == pid:
                found.append(int(folder.name))
        except OSError:
            continue  # gone meanwhile
    return found


def rss_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


# ------------------------------------------------------------------------------------------- the server


def value(watcher: psycopg.Connection[Any], query: str, *params: object) -> Any:
    row = watcher.execute(query, params).fetchone()
    assert row is not None
    return row[0]


def backend_cpu_seconds(watcher: psycopg.Connection[Any], name: str) -> float:
    """What all backends have used that are gone: the server, their parent, has inherited it.

    Exact, and nobody needs to watch; autovacuum is in it. So wait until the database `name` has no more backends.
    """
    while value(watcher, "select count(*) from pg_stat_activity where datname = %s", name):
        time.sleep(0.05)
    time.sleep(0.1)  # from leaving the list to being gone
    server = int(_stat(watcher.info.backend_pid)[1])
    return _ticks(_stat(server)[13:15])


# ------------------------------------------------------------------------------------------------ drain


def drain_once(
    server: str, watcher: psycopg.Connection[Any], who: Contestant, jobs: int, size: int
) -> dict[str, float]:
    """From the first handler's start (wall clock) to the commit of the last completion (the server's, same machine).

    Commit timestamps tell the end to the microsecond, without anybody polling beside the worker, and alike for both.
    """
    name = f"pgqueue_bench_{who.name}"
    with database(server, name, who.install) as dsn:
        wal = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
        wal_before = value(watcher, wal)
        enqueue_seconds = float(who.run(dsn, "enqueue", jobs, "noop"))
        wal_enqueued = value(watcher, wal)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("vacuum analyze")
        cpu_before = backend_cpu_seconds(watcher, name)
        wal_started = value(watcher, wal)
        told = json.loads(who.run(dsn, "drain", size))
        backend_cpu = backend_cpu_seconds(watcher, name) - cpu_before
        wal_drained = value(watcher, wal)
        with psycopg.connect(dsn) as conn:
            query = "select count(*), extract(epoch from max(pg_xact_commit_timestamp(xmin)))::float8 from "
            row = conn.execute(query + who.finished).fetchone()
            assert row is not None
            finished, ended_at = row
    if finished != jobs:
        sys.exit(f"{who.name} finished {finished} jobs of {jobs}")
    return {
        "jobs/s": jobs / (ended_at - told["first_at"]),
        "worker CPU, µs/job": 1e6 * told["cpu_seconds"] / jobs,
        "backends CPU, µs/job": 1e6 * backend_cpu / jobs,
        "WAL of the drain, B/job": float(wal_drained - wal_started) / jobs,
        "WAL of the enqueue, B/job": float(wal_enqueued - wal_before) / jobs,
        "bulk enqueue, jobs/s": jobs / enqueue_seconds,
    }


def best_sizes(server: str, watcher: psycopg.Connection[Any], field: list[Contestant], jobs: int) -> dict[str, int]:
    """One trial of each size with a part of the jobs."""
    best: dict[str, int] = {}
    for who in field:
        rates = {size: drain_once(server, watcher, who, max(jobs // 2, 1000), size)["jobs/s"] for size in SIZES}
        best[who.name] = max(rates, key=lambda size: rates[size])
        tried = ", ".join(f"{size}: {rate:,.0f}" for size, rate in rates.items())
        print(f"{who.name}: size {best[who.name]} is best (jobs/s by size: {tried})", flush=True)
    return best


def drain(server: str, field: list[Contestant], jobs: int, rounds: int) -> None:
    with psycopg.connect(server, autocommit=True) as watcher:
        if value(watcher, "show track_commit_timestamp") != "on":
            sys.exit("drain needs a server with track_commit_timestamp = on")
        sizes = best_sizes(server, watcher, field, jobs)
        figures: Figures = {}
        for number in range(rounds):
            for who in field if number % 2 == 0 else field[::-1]:
                for measure, figure in drain_once(server, watcher, who, jobs, sizes[who.name]).items():
                    add(figures, measure, who.name, figure)
    show(f"drain: {jobs:,} no-op jobs, one worker process, {rounds} rounds", _in_order(figures, field))


def _in_order(figures: Figures, field: list[Contestant]) -> Figures:
    return {measure: {who.name: found[who.name] for who in field} for measure, found in figures.items()}


# ---------------------------------------------------------------------------- workers that wait for jobs


@dataclass(frozen=True)
class Serving:
    """A worker that runs, and what its handlers print."""

    pid: int
    output: Path

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()


@contextmanager
def serving(who: Contestant, dsn: str, size: int, every: int, *, real: bool = False) -> Iterator[Serving]:
    """`real`: the command that users start, with all that it imports, where the contestant has one."""
    command, environ = who.command("serve", size, every), _environment(dsn)
    if real and who.cli:
        command = [str(who.python), *who.cli, "-c", str(size)]
        environ |= {"BENCH_EVERY": str(every), "PYTHONPATH": str(SCRIPTS.parents[1])}
    with tempfile.NamedTemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=output)
        assert process.stdin is not None
        try:
            time.sleep(SETTLE_SECONDS)
            if process.poll() is not None:
                sys.exit(f"the worker of {who.name} ended with {process.returncode}")
            yield Serving(process.pid, Path(output.name))
        finally:
            process.stdin.close()
            if command[1:2] == ["-m"]:
                process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def latency(server: str, field: list[Contestant], jobs: int, rounds: int) -> None:
    figures: Figures = {}
    for number in range(rounds):
        for who in field if number % 2 == 0 else field[::-1]:
            waits = sorted(_waits(server, who, jobs))
            for percent in (50, 95, 99):
                add(figures, f"p{percent}, ms", who.name, 1000 * waits[min(len(waits) * percent // 100, jobs - 1)])
    show(f"latency: {jobs} single jobs, enqueue to handler, {rounds} rounds", _in_order(figures, field))


def _waits(server: str, who: Contestant, jobs: int) -> list[float]:
    warm_up = 10
    with database(server, f"pgqueue_bench_{who.name}", who.install) as dsn, serving(who, dsn, 20, 1) as worker:
        told = who.run(dsn, "trickle", jobs + warm_up).splitlines()
        deadline = time.monotonic() + 30
        while len(worker.lines()) < jobs + warm_up and time.monotonic() < deadline:
            time.sleep(0.1)
        asked, began = ({int(i): float(at) for i, at in map(str.split, lines)} for lines in (told, worker.lines()))
    if asked.keys() != began.keys():
        sys.exit(f"{who.name} began {len(began)} jobs of {len(asked)}")
    return [began[i] - asked[i] for i in asked if i >= warm_up]


def idle(server: str, field: list[Contestant], rounds: int) -> None:
    """All of them at the same time: an idle worker disturbs nobody.

    pg_stat_database is read from another database, so the watcher does not count; what autovacuum does there is
    measured before, without workers, and subtracted.
    """
    figures: Figures = {}
    names = {who.name: f"pgqueue_bench_{who.name}" for who in field}
    with psycopg.connect(server, autocommit=True) as watcher:

        def commits() -> dict[str, int]:
            query = "select xact_commit from pg_stat_database where datname = %s"
            return {who: value(watcher, query, name) for who, name in names.items()}

        for _ in range(rounds):
            with ExitStack() as stack:
                dsns = {who.name: stack.enter_context(database(server, names[who.name], who.install)) for who in field}
                time.sleep(SETTLE_SECONDS)
                empty = commits()
                time.sleep(IDLE_SECONDS)
                alone = {who: after - empty[who] for who, after in commits().items()}
                pids = {who.name: stack.enter_context(serving(who, dsns[who.name], 20, 1)).pid for who in field}
                time.sleep(SETTLE_SECONDS)
                beats = {who: children(pid) for who, pid in pids.items()}
                watched = [*pids.values(), *(pid for found in beats.values() for pid in found)]
                before, used = commits(), {pid: cpu_seconds(pid) for pid in watched}
                time.sleep(IDLE_SECONDS)
                after, used = commits(), {pid: cpu_seconds(pid) - then for pid, then in used.items()}
            for who, pid in pids.items():
                add(figures, "transactions/s", who, (after[who] - before[who] - alone[who]) / IDLE_SECONDS)
                add(figures, "worker CPU, %", who, 100 * used[pid] / IDLE_SECONDS)
                for child in beats[who]:
                    add(figures, "heartbeat process CPU, %", who, 100 * used[child] / IDLE_SECONDS)
    show(f"idle: {IDLE_SECONDS:.0f} s without jobs, {rounds} rounds", figures)


def memory(server: str, field: list[Contestant], jobs: int) -> None:
    figures: Figures = {}
    every = 100
    for who in field:
        with (
            database(server, f"pgqueue_bench_{who.name}", who.install) as dsn,
            serving(who, dsn, 100, every, real=True) as worker,
        ):
            passed = 0
            for mark in sorted({0, min(jobs, 100_000), jobs}):
                if mark > passed:
                    who.run(dsn, "enqueue", mark - passed, "tell")
                    while len(worker.lines()) < mark // every:
                        time.sleep(0.5)
                    time.sleep(SETTLE_SECONDS)
                passed = mark
                add(figures, f"worker after {mark:,}, MB", who.name, rss_megabytes(worker.pid))
                for child in children(worker.pid):
                    add(figures, f"heartbeat process, {mark:,}, MB", who.name, rss_megabytes(child))
    show("memory: resident, after so many jobs", figures)


# ------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["drain", "latency", "idle", "memory", "all"])
    parser.add_argument("--jobs", type=int, help="drain: 50,000, memory: 100,000, latency: 300 unless given")
    parser.add_argument("--rounds", type=int, default=3)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    parser.add_argument("--peers-dir", type=Path, default=cache / "pgqueue-bench", help="where the peer is installed")
    args = parser.parse_args()
    field = contestants(args.peers_dir)
    with ExitStack() as stack:
        settings = {**SETTINGS, "track_commit_timestamp": "on"}
        server = os.environ.get("DATABASE_URL") or stack.enter_context(embedded.temporary(settings)).url()
        with psycopg.connect(server) as conn:
            durable = [f"{name} {value(conn, f'show {name}')}" for name in ("fsync", "synchronous_commit")]
            print("PostgreSQL", conn.info.parameter_status("server_version"), *durable, sep=", ", flush=True)
        if args.what in ("drain", "all"):
            drain(server, field, args.jobs or 50_000, args.rounds)
        if args.what in ("latency", "all"):
            latency(server, field, LATENCY_JOBS if args.what == "all" else args.jobs or LATENCY_JOBS, args.rounds)
        if args.what in ("idle", "all"):
            idle(server, field, args.rounds)
        if args.what in ("memory", "all"):
            memory(server, field, args.jobs or 100_000)


if __name__ == "__main__":
    main()
