"""pgqueue as a contestant of bench.worker. Every script in this folder understands the same commands:

install                 make the schema
enqueue COUNT TASK      in bulk; prints the seconds that it took
trickle COUNT           one by one, 20 to 60 ms apart; prints the job's number and the time before each call
drain SIZE              one worker until nothing is left; prints when its first handler began, and its CPU from there
serve SIZE EVERY        one worker until standard input ends; every so many jobs its handler prints number and time

`pgqueue work -A bench.peers.pgqueue_worker:app` works for the same app; EVERY is then in BENCH_EVERY.

The database is the one in DATABASE_URL and PGHOST, PGUSER, ...; times are time.monotonic(), the same in all processes,
except the one that is compared with the database's clock.
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

from pgqueue.app import App
from pgqueue.serve import collect_less
from pgqueue.worker import Settings, Worker

BULK = 1000
app = App(os.environ["DATABASE_URL"])
first: list[tuple[float, float]] = []  # when the first handler began by the wall clock, the CPU used until then
every = int(os.environ.get("BENCH_EVERY", "0"))
handled = 0


@app.task
async def noop(i: int) -> None:  # noqa: ARG001
    if not first:
        first.append((time.time(), cpu_seconds()))


@app.task
async def tell(i: int) -> None:
    global handled
    now = time.monotonic()
    handled += 1
    if handled % every == 0:
        os.write(1, f"{i} {now}\n".encode())


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def install() -> None:
    from pgqueue import schema  # alembic: the worker does not carry it

    schema.migrate(os.environ["DATABASE_URL"])


async def enqueue(count: int, task: str) -> None:
    chosen = app.using(task)
    async with app.aconnection() as conn:  # what opening the pool costs is not the question
        await conn.execute("select 1")
    started = time.monotonic()
    for start in range(0, count, BULK):
        await chosen.aenqueue_many([{"i": i} for i in range(start, min(start + BULK, count))])
    print(time.monotonic() - started)
    await app.aclose()


async def trickle(count: int) -> None:
    for i in range(count):
        await asyncio.sleep(random.uniform(0.02, 0.06))
        print(i, time.monotonic())
        await tell.aenqueue(i)
    await app.aclose()


async def drain(size: int) -> None:
    await Worker(app, Settings(burst=True, concurrency=size)).run()
    print(json.dumps({"first_at": first[0][0], "cpu_seconds": cpu_seconds() - first[0][1]}))


async def serve(size: int) -> None:
    worker = Worker(app, Settings(concurrency=size))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(0)
        worker.stop()

    loop.add_reader(0, stop)
    await worker.run()


def main() -> None:
    global every
    logging.basicConfig(level=logging.WARNING)
    collect_less()  # as `pgqueue work` does
    match sys.argv[1:]:
        case ["install"]:
            install()
        case ["enqueue", count, task]:
            asyncio.run(enqueue(int(count), task))
        case ["trickle", count]:
            asyncio.run(trickle(int(count)))
        case ["drain", size]:
            asyncio.run(drain(int(size)))
        case ["serve", size, number]:
            every = int(number)
            asyncio.run(serve(int(size)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
