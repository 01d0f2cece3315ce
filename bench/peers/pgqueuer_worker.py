"""pgqueuer as a contestant of bench.worker: the commands are those of pgqueue_worker.py.

On uvloop, as its own `pgq run`; all its tables logged, which is its default. It drains with a pool, so that it can
claim and report at the same time (three pairs of runs: 6,200, 7,600, 6,000 jobs/s beside 6,200, 3,800, 5,400 with one
connection, on a busy machine), and waits with one connection, because a pool sends a reset after every query. Its
payloads are bytes, so the handlers decode the JSON that ours get decoded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import resource
import sys
import time
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BULK = 1000
first: list[tuple[float, float]] = []
every = 0
handled = 0


async def noop(job: Any) -> None:
    json.loads(job.payload)
    if not first:
        first.append((time.time(), cpu_seconds()))


async def tell(job: Any) -> None:
    global handled
    now = time.monotonic()
    handled += 1
    if handled % every == 0:
        os.write(1, f"{json.loads(job.payload)['i']} {now}\n".encode())


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def install() -> None:
    conn = await asyncpg.connect()
    await Queries.from_asyncpg_connection(conn).install()
    await conn.close()


async def enqueue(count: int, task: str) -> None:
    conn = await asyncpg.connect()
    queries = Queries.from_asyncpg_connection(conn)
    started = time.monotonic()
    for start in range(0, count, BULK):
        payloads = [json.dumps({"i": i}).encode() for i in range(start, min(start + BULK, count))]
        await queries.enqueue([task] * len(payloads), payloads, [0] * len(payloads))
    print(time.monotonic() - started)
    await conn.close()


async def trickle(count: int) -> None:
    conn = await asyncpg.connect()
    queries = Queries.from_asyncpg_connection(conn)
    for i in range(count):
        await asyncio.sleep(random.uniform(0.02, 0.06))
        print(i, time.monotonic())
        await queries.enqueue("tell", json.dumps({"i": i}).encode())
    await conn.close()


def with_tasks(made: Any) -> Any:
    made.entrypoint("noop")(noop)
    made.entrypoint("tell")(tell)
    return made


async def drain(size: int) -> None:
    async with asyncpg.create_pool(min_size=2, max_size=4) as pool:
        await with_tasks(PgQueuer.from_asyncpg_pool(pool)).run(batch_size=size, mode=QueueExecutionMode.drain)
    print(json.dumps({"first_at": first[0][0], "cpu_seconds": cpu_seconds() - first[0][1]}))


async def serve(size: int) -> None:
    conn = await asyncpg.connect()
    worker = with_tasks(PgQueuer.from_asyncpg_connection(conn))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(0)
        worker.shutdown.set()

    loop.add_reader(0, stop)
    await worker.run(batch_size=size)
    await conn.close()


def main() -> None:
    global every
    logging.basicConfig(level=logging.WARNING)
    match sys.argv[1:]:
        case ["install"]:
            uvloop.run(install())
        case ["enqueue", count, task]:
            uvloop.run(enqueue(int(count), task))
        case ["trickle", count]:
            uvloop.run(trickle(int(count)))
        case ["drain", size]:
            uvloop.run(drain(int(size)))
        case ["serve", size, number]:
            every = int(number)
            uvloop.run(serve(int(size)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
