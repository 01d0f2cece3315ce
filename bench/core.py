"""The SQL core by itself, without a Python worker: what the database can do.

    python -m bench.core rate [--baseline FILE]   claim + complete, 4 connections, batches of 100
    python -m bench.core history                  what the history of failed attempts costs
    python -m bench.core counting                 what the metrics cost, and the events if they are switched on
    python -m bench.core snapshot                 the same load with and without a snapshot held open

Runs on the server in DATABASE_URL, where it may create databases, else on an embedded one with the durable settings
below; rate, history and counting need pgbench. Everything is a ratio within one run: single figures move by 15 to 35 %
on a busy machine.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgqueue import embedded, schema

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "4GB", "autovacuum_naptime": "5s", "max_connections": "100"}
PAYLOAD = '{"order_id": 123456, "email": "someone@example.com", "template": "receipt", "note": "some 130 bytes"}'


@contextmanager
def database(server: str, name: str, load: Any) -> Iterator[str]:
    """A database of its own, dropped afterwards."""
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        dsn = psycopg.conninfo.make_conninfo(server, dbname=name)
        try:
            load(dsn)
            yield dsn
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def pgbench(dsn: str, script: str, clients: int, seconds: int) -> float:
    """Transactions a second."""
    binary = shutil.which("pgbench") or "pgbench"
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [binary, "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2))]
        out = subprocess.run(
            [*command, "-T", str(seconds), "-f", file.name, dsn], capture_output=True, text=True, check=False
        )
    if out.returncode:
        sys.exit(out.stderr)
    return float(next(line.split("=")[1].split()[0] for line in out.stdout.splitlines() if line.startswith("tps")))


OURS = r"""
select array_agg(id) as ids, array_agg(token) as tokens from pgqueue.claim(:client_id + 1, '{default}', 100) \gset
select pgqueue.complete(:client_id + 1, :ids, :tokens);
"""
BASELINE = r"""
select array_agg(job_id) as ids, array_agg(attempt) as attempts
from pgqueue.claim(:client_id + 1, '{default}', 100) \gset
select pgqueue.complete(:client_id + 1, :ids, :attempts);
"""


def fill_ours(dsn: str, jobs: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for number in range(8):
            conn.execute("select pgqueue.register_worker(%s, '{default}', 3600)", [f"bench {number}"])
        conn.execute(
            "select count(*) from generate_series(1, %s) n, lateral pgqueue.enqueue_many('default', 'noop',"
            " array(select %s::jsonb from generate_series(1, 1000)),"
            " keys => array(select n || ':' || m from generate_series(1, 1000) m))",
            [jobs // 1000, PAYLOAD],
        )
        conn.execute("vacuum analyze pgqueue.job_live")


def fill_baseline(dsn: str, jobs: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set search_path = pgqueue")
        conn.execute("insert into queue (queue) values ('default')")
        conn.execute("insert into queue_state (queue) values ('default')")
        conn.execute("insert into worker (name) select n::text from generate_series(1, 8) n")
        conn.execute("select ensure_partitions()")
        conn.execute(
            "select count(*) from generate_series(1, %s) n, lateral enqueue_many('default', 'noop',"
            " array(select %s::jsonb from generate_series(1, 1000)),"
            " array(select n || ':' || m from generate_series(1, 1000) m))",
            [jobs // 1000, PAYLOAD],
        )
        conn.execute("vacuum analyze job_live")


def rate(server: str, baseline: Path | None, rounds: int, seconds: int) -> None:
    results: dict[str, list[float]] = {"pgqueue": [], "baseline": []}
    for _ in range(rounds):
        if baseline:

            def load(dsn: str, text: str = baseline.read_text()) -> None:
                with psycopg.connect(dsn, autocommit=True) as conn:
                    conn.execute(text)

            with database(server, "pgqueue_bench_baseline", load) as dsn:
                fill_baseline(dsn, 600_000)
                with_path = psycopg.conninfo.make_conninfo(dsn, options="-c search_path=pgqueue")
                results["baseline"].append(100 * pgbench(with_path, BASELINE, 4, seconds))
        with database(server, "pgqueue_bench", schema.migrate) as dsn:
            fill_ours(dsn, 600_000)
            results["pgqueue"].append(100 * pgbench(dsn, OURS, 4, seconds))
        print({name: [round(r) for r in rates] for name, rates in results.items()}, flush=True)
    for name, rates in results.items():
        if rates:
            print(f"{name:10} claim + complete, 100 x 4: median {statistics.median(rates):,.0f} jobs/s")
    if results["baseline"]:
        ratio = statistics.median(results["pgqueue"]) / statistics.median(results["baseline"])
        print(f"ratio {ratio:.2f}")


FAILING = r"""
select array_agg(id) as ids, array_agg(token) as tokens, array_agg('boom'::text) as errors, array_agg(0.0) as delays
from pgqueue.claim(:client_id + 1, '{default}', 100) \gset
select count(*) from pgqueue.fail(:client_id + 1, :ids, :tokens, :errors, p_retry_in => :delays);
"""
NO_HISTORY = """
create or replace function pgqueue.record_attempt(p_job pgqueue.job, p_outcome text,
  p_delay_seconds double precision default null, p_error_type text default null, p_error text default null,
  p_traceback text default null) returns void language plpgsql as $$ begin end $$
"""


def history(server: str, rounds: int, seconds: int) -> None:
    """Claims that fail and wait again, with and without their row of history. A success writes none."""
    results: dict[str, list[float]] = {"with history": [], "without": []}
    for _ in range(rounds):
        for name, rates in results.items():
            with database(server, "pgqueue_bench", schema.migrate) as dsn:
                fill_ours(dsn, 100_000)
                with psycopg.connect(dsn, autocommit=True) as conn:
                    conn.execute("select pgqueue.set_defaults('{\"max_attempts\": 32000}')")
                    if name == "without":
                        conn.execute(NO_HISTORY)
                rates.append(100 * pgbench(dsn, FAILING, 4, seconds))
    for name, rates in results.items():
        print(f"{name:12} claim + fail, 100 x 4: median {statistics.median(rates):,.0f} jobs/s")
    ratio = statistics.median(results["with history"]) / statistics.median(results["without"])
    print(f"ratio {ratio:.2f}")


def _without_metrics() -> str:
    """complete() as it would be if it counted nothing."""
    text = next(path for path in schema.sql_files() if path.stem == "complete_claimed").read_text()
    before, counted, after = text.partition("  ), counted as (")
    assert counted
    return before + after[after.index("\n  )\n  select array_agg") + 1 :]


def counting(server: str, rounds: int, seconds: int, batches: tuple[int, ...] = (1, 20, 100)) -> None:
    """Claim + complete with 4 connections, as it is, without the metrics, and with events; by turns."""
    variants = {"as it is": "", "without metrics": _without_metrics(), "with events": "select pgqueue.set_events(true)"}
    for batch in batches:
        results: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds):
            for name in list(variants)[:: -1 if number % 2 else 1]:
                with database(server, "pgqueue_bench", schema.migrate) as dsn:
                    fill_ours(dsn, 20_000 * seconds if batch < 20 else 120_000 * seconds)
                    with psycopg.connect(dsn, autocommit=True) as conn:
                        conn.execute(variants[name] or "select 1")
                    results[name].append(batch * pgbench(dsn, OURS.replace("100)", f"{batch})"), 4, seconds))
        plain = statistics.median(results["without metrics"])
        for name, rates in results.items():
            median = statistics.median(rates)
            print(
                f"{name:16} claim + complete, {batch} x 4: median {median:,.0f} jobs/s, {median / plain:.3f}",
                flush=True,
            )


def _worker(dsn: str, stop: Event, done: Any, waits: Any, pid: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        pid.value = conn.info.backend_pid
        cursor = psycopg.RawCursor(conn)
        worker = cursor.execute("select pgqueue.register_worker('bench', '{default}', 3600)").fetchone()[0]  # type: ignore[index]
        ids: list[int] = []
        tokens: list[int] = []
        refreshed = 0.0
        while not stop.is_set():
            cursor.execute(
                "select id, token, task, extract(epoch from clock_timestamp() - rank_at),"
                " extract(epoch from clock_timestamp() - enqueued_at)"
                " from pgqueue.complete_and_claim($1, $2::bigint[], $3::int[], null, '{default}', 20)",
                [worker, ids, tokens],
            )
            rows = cursor.fetchall()
            done.value += len(rows)
            ids, tokens = [row[0] for row in rows], [row[1] for row in rows]
            for row in rows:
                if row[2] != "noop":
                    waits.put((row[2], float(row[4])))
            if time.monotonic() - refreshed > 0.2:
                refreshed = time.monotonic()
                cursor.execute("select pgqueue.refresh_hints()")


def _producer(dsn: str, stop: Event, consumed: list[Any]) -> None:
    # A backlog of about a second: a late commit should wait for its hint, not for the jobs in front of it.
    produced = 0
    with psycopg.connect(dsn, autocommit=True) as conn:
        while not stop.is_set():
            if produced - sum(c.value for c in consumed) > 10_000:
                time.sleep(0.005)
                continue
            conn.execute(
                "select count(*) from pgqueue.enqueue_many('default', 'noop',"
                " array(select %s::jsonb from generate_series(1, 500)), priority => %s)",
                [PAYLOAD, random.choice([0, 0, 0, 5, -5])],
            )
            produced += 500


def _probes(dsn: str, stop: Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        while not stop.is_set():
            conn.execute("select pgqueue.enqueue('default', 'probe', priority => 100)")
            stop.wait(0.25)


def _late(dsn: str, stop: Event) -> None:
    with psycopg.connect(dsn) as conn:
        while not stop.is_set():
            conn.execute("select pgqueue.enqueue('default', 'late')")
            stop.wait(3)
            conn.commit()
            stop.wait(2)


def _cpu_seconds(pids: list[Any]) -> float:
    """What the workers' backends have used: unlike a rate, it does not see a busy neighbour. 0 without /proc."""
    try:
        stats = [Path(f"/proc/{pid.value}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    except OSError:
        return 0.0
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def _load(dsn: str, jobs: int, held: bool) -> None:
    """The load of the design: two workers, batches of 20, mixed priorities, probes, late commits."""
    stop = mp.Event()
    waits: Any = mp.Queue()
    counts: list[Any] = [mp.Value("q", 0) for _ in range(2)]
    holder = psycopg.connect(dsn)
    if held:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pgqueue.job")
    pids: list[Any] = [mp.Value("i", 0) for _ in counts]
    workers = zip(counts, pids, strict=True)
    processes = [mp.Process(target=_worker, args=(dsn, stop, count, waits, pid)) for count, pid in workers]
    processes.append(mp.Process(target=_producer, args=(dsn, stop, counts)))
    processes += [mp.Process(target=_probes, args=(dsn, stop)), mp.Process(target=_late, args=(dsn, stop))]
    for process in processes:
        process.start()
    seen: list[tuple[int, float, float]] = []  # jobs, seconds, CPU seconds
    while not seen or seen[-1][0] < jobs:
        time.sleep(2)
        seen.append((sum(c.value for c in counts), time.monotonic(), _cpu_seconds(pids)))
    stop.set()
    samples: dict[str, list[float]] = {"probe": [], "late": []}
    while any(p.is_alive() for p in processes) or not waits.empty():
        if not waits.empty():
            task, wait = waits.get()
            samples[task].append(wait)
    holder.close()
    probes = sorted(samples["probe"])
    late = sorted(max(wait - 3, 0) for wait in samples["late"])
    third = len(seen) // 3

    def between(a: int, b: int) -> str:
        passed, seconds, cpu = (after - before for before, after in zip(seen[a], seen[b], strict=True))
        return f"{passed / seconds:>7,.0f} jobs/s, {1e6 * cpu / passed:>4.0f} µs"

    print(
        f"{'held' if held else 'free':5} {seen[-1][0]:>9,} jobs   first third {between(0, third)}"
        f"   last third {between(-1 - third, -1)}"
        f"   high-priority starts after {1000 * statistics.median(probes):.0f} ms (max {1000 * probes[-1]:.0f})"
        f"   late commit after {late[-1] if late else 0:.2f} s at most ({len(late)})",
        flush=True,
    )


def snapshot(server: str, jobs: int, rounds: int) -> None:
    for _ in range(rounds):
        for held in (False, True):
            with database(server, "pgqueue_bench", schema.migrate) as dsn:
                _load(dsn, jobs, held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rate", "history", "counting", "snapshot"])
    parser.add_argument("--baseline", type=Path, help="another implementation of claim and complete, as SQL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=400_000)
    args = parser.parse_args()
    with ExitStack() as stack:
        server = os.environ.get("DATABASE_URL") or stack.enter_context(embedded.temporary(SETTINGS)).url()
        with psycopg.connect(server) as conn:
            print("PostgreSQL", conn.info.parameter_status("server_version"))
        if args.what == "rate":
            rate(server, args.baseline, args.rounds, args.seconds)
        elif args.what == "history":
            history(server, args.rounds, args.seconds)
        elif args.what == "counting":
            counting(server, args.rounds, args.seconds)
        else:
            snapshot(server, args.jobs, args.rounds)


if __name__ == "__main__":
    main()
