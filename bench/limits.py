"""What limits cost: the same claims and completions in queues with and without them, interleaved in one run.

    python -m bench.limits          claim + complete, batches of 100, 4 connections, 10,000 groups
    python -m bench.limits circuit  claims of a task beside 100,000 jobs of one whose circuit is open

Runs where bench.core runs; needs pgbench.
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import ExitStack

import psycopg

from bench.core import PAYLOAD, SETTINGS, database, pgbench
from pgqueue import embedded, schema

SCRIPT = r"""
select coalesce(array_agg(id), '{}') as ids, coalesce(array_agg(token), '{}') as tokens
from pgqueue.claim(:client_id + 1, '{default}', 100) where id is not null \gset
select pgqueue.complete(:client_id + 1, :ids, :tokens);
"""
GROUPS = 10_000
JOBS = 400_000
VARIANTS: dict[str, tuple[str, bool]] = {
    # settings of the queue, and whether its jobs have groups
    "unlimited": ("{}", False),
    "unlimited beside limited ones": ("{}", False),
    "groups that mean nothing": ("{}", True),
    "max_running 1000": ('{"max_running": 1000}', False),
    "rate 1,000,000/s": ('{"rate": 1000000, "rate_burst": 1000000}', False),
    "serial groups": ('{"group_max_running": 1}', True),
    "fair": ('{"fair": true}', True),
    "fair, 2 of each group": ('{"fair": true, "group_max_running": 2}', True),
}


def fill(dsn: str, settings: str, grouped: bool, jobs: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for number in range(8):
            conn.execute("select pgqueue.register_worker(%s, '{default}', 3600)", [f"bench {number}"])
        conn.execute("select pgqueue.set_queue('default', %s)", [settings])
        conn.execute(
            "select count(*) from generate_series(1, %s) n, lateral pgqueue.enqueue_many('default', 'noop',"
            " array(select %s::jsonb from generate_series(1, 1000)),"
            " group_keys => case when %s then"
            " array(select ((n * 1000 + m) %% %s)::text from generate_series(1, 1000) m) end, priority => 0 * n)",
            [jobs // 1000, PAYLOAD, grouped, GROUPS],
        )
        conn.execute("vacuum analyze pgqueue.job_live")


def rates(server: str, rounds: int, seconds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name, (settings, grouped) in VARIANTS.items():
            with database(server, "pgqueue_bench", schema.migrate) as dsn:
                fill(dsn, settings, grouped, JOBS)
                if name.startswith("unlimited beside"):
                    with psycopg.connect(dsn, autocommit=True) as conn:
                        conn.execute("select pgqueue.set_queue('other', '{\"max_running\": 5, \"fair\": true}')")
                with psycopg.connect(dsn) as conn:
                    before = _finished(conn)
                    pgbench(dsn, SCRIPT, 4, seconds)
                    conn.rollback()
                    found[name].append((_finished(conn) - before) / seconds)
        print({name: [round(rate) for rate in each] for name, each in found.items()}, flush=True)
    base = statistics.median(found["unlimited"])
    for name, each in found.items():
        print(f"{name:32} {statistics.median(each):>9,.0f} jobs/s   {statistics.median(each) / base:.2f}")


def _finished(conn: psycopg.Connection[tuple[int]]) -> int:
    row = conn.execute("select count(*) from pgqueue.job_done").fetchone()
    assert row is not None
    return row[0]


def circuit(server: str) -> None:
    """Claims of ten jobs, one after the other, each rolled back: plain, and behind 100,000 of a task that is open."""
    medians: dict[str, float] = {}
    for name in ("no circuit", "open circuit"):
        with database(server, "pgqueue_bench", schema.migrate) as dsn:
            fill(dsn, "{}", False, 1000)
            with psycopg.connect(dsn, autocommit=True) as conn:
                if name == "open circuit":
                    conn.execute("select pgqueue.force_circuit('bad', 'open')")
                    for _ in range(100):
                        conn.execute(
                            "select count(*) from pgqueue.enqueue_many('default', 'bad',"
                            " array(select %s::jsonb from generate_series(1, 1000)), priority => 50)",
                            [PAYLOAD],
                        )
                    parked, calls = 0, 0
                    while parked < 100_000:
                        conn.execute("select count(*) from pgqueue.claim(1, '{default}', 1)")
                        row = conn.execute("select count(*) from pgqueue.job_live where waits_for = 'task'").fetchone()
                        parked, calls = (row[0] if row else 0), calls + 1
                    print(f"100,000 jobs were parked by {calls} claims")
                    conn.execute("vacuum analyze pgqueue.job_live")
                waits = []
                for _ in range(300):
                    with conn.transaction(force_rollback=True):
                        found = conn.execute(
                            "with t as materialized (select clock_timestamp() as at), c as materialized"
                            " (select count(*) as n from t, lateral pgqueue.claim(1, '{default}', 10))"
                            " select c.n, extract(epoch from clock_timestamp() - t.at) * 1000 from t, c"
                        ).fetchone()
                        assert found is not None
                        assert found[0] == 10, found
                        waits.append(float(found[1]))
                medians[name] = statistics.median(waits)
        print(f"{name:14} claim of 10 jobs: {medians[name]:.3f} ms")
    print(f"ratio {medians['open circuit'] / medians['no circuit']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="rates", choices=["rates", "circuit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    args = parser.parse_args()
    with ExitStack() as stack:
        server = os.environ.get("DATABASE_URL") or stack.enter_context(embedded.temporary(SETTINGS)).url()
        if args.what == "rates":
            rates(server, args.rounds, args.seconds)
        else:
            circuit(server)


if __name__ == "__main__":
    main()
