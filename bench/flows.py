"""What flows cost: the same no-op jobs through one worker process, free and in flows, by turns.

    python -m bench.flows [--jobs 10000] [--rounds 5]

    plain     jobs of no flow
    fan-in    jobs of one flow, and a last one that runs after all of them
    fan-out   a first job that all the others run after
    chains    flows of ten jobs, one after the other

A rate is jobs by the time from the first start to the last end, by the clock of the database; printed are medians, the
spread, and each beside plain. Enqueueing is timed apart. The server is that of bench.core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import psycopg

from bench.core import SETTINGS, database
from pgqueue import App, chain, embedded, gather, schema

SPAN = "select extract(epoch from max(finished_at) - min(started_at))::float8, count(*) from pgqueue.job_done"
CHAIN = 10

app = App()


@app.task
async def noop(i: int = 0) -> None:
    pass


def plain(jobs: int) -> None:
    for start in range(0, jobs, 1000):
        noop.enqueue_many([{"i": i} for i in range(start, min(start + 1000, jobs))])


def fan_in(jobs: int) -> None:
    gather(noop.s(i) for i in range(jobs)).then(noop.s()).enqueue()


def fan_out(jobs: int) -> None:
    chain(noop.s(), gather(noop.s(i) for i in range(jobs))).enqueue()


def chains(jobs: int) -> None:
    for _ in range(jobs // CHAIN):
        chain(*(noop.s(i) for i in range(CHAIN))).enqueue()


SHAPES: dict[str, Callable[[int], None]] = {"plain": plain, "fan-in": fan_in, "fan-out": fan_out, "chains": chains}


def once(server: str, shape: str, jobs: int) -> tuple[float, float]:
    """Seconds for enqueueing, jobs a second."""
    with database(server, "pgqueue_bench", schema.migrate) as dsn:
        app.use(dsn)
        started = time.monotonic()
        SHAPES[shape](jobs)
        enqueueing = time.monotonic() - started
        app.close()
        command = [sys.executable, "-m", "pgqueue", "work", "-A", "bench.flows:app", "--burst", "-c", "100"]
        subprocess.run([*command, "--log-level", "error"], env={**os.environ, "PGQUEUE_DATABASE_URL": dsn}, check=True)
        with psycopg.connect(dsn) as conn:
            seconds, count = conn.execute(SPAN).fetchone() or (0, 0)
    if count < jobs:
        sys.exit(f"{shape}: only {count} of {jobs} jobs completed")
    return enqueueing, count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    enqueueing: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    with ExitStack() as stack:
        server = os.environ.get("DATABASE_URL") or stack.enter_context(embedded.temporary(SETTINGS)).url()
        for _ in range(args.rounds):
            for shape in SHAPES:
                seconds, rate = once(server, shape, args.jobs)
                enqueueing[shape].append(seconds)
                rates[shape].append(rate)
    print(f"{args.jobs:,} jobs, {args.rounds} rounds\n{'':10}{'jobs/s':>24}{'beside plain':>14}{'enqueue, s':>12}")
    base = statistics.median(rates["plain"])
    for shape, found in rates.items():
        middle = statistics.median(found)
        cell = f"{middle:,.0f} ({min(found):,.0f}–{max(found):,.0f})"
        print(f"{shape:10}{cell:>24}{middle / base:>14.2f}{statistics.median(enqueueing[shape]):>12.2f}")


if __name__ == "__main__":
    main()
