"""Nothing grows: threads, files, connections, memory, over many starts and over many jobs.

PGQUEUE_LEAK_CYCLES and PGQUEUE_LEAK_JOBS make it bigger: 100 and 1000000 take about half an hour.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from pgqueue import INJECTED, App, Settings, Worker
from pgqueue import database as db
from tests.support import Conn, value, wait_until
from tests.worker.running import run_burst

CYCLES = int(os.environ.get("PGQUEUE_LEAK_CYCLES", "20"))
JOBS = int(os.environ.get("PGQUEUE_LEAK_JOBS", "20000"))
OBJECTS = 2000  # caches of this and that; a leak of one object a job, or a dozen a start, is more
NOW = {"type": "fixed", "delay": 0}
BACKENDS = "select count(*) from pg_stat_activity where datname = current_database() and application_name ~ %s"
MEGABYTES = 24.0  # what the allocator keeps for itself varies


class Left(NamedTuple):
    files: int
    threads: int
    connections: int
    objects: int
    megabytes: float


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """pytest keeps every line that is logged, which is a leak of its own."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
async def app(dsn: str, conn: Conn) -> AsyncIterator[App]:
    made = App(dsn)
    conn.execute("create table if not exists written (id bigint)")

    @made.task(name="quick")
    async def quick(n: int) -> dict[str, int]:
        return {"n": n}

    @made.task(name="in_thread")
    def in_thread(n: int) -> None: ...

    @made.task(name="fail")
    async def fail(n: int) -> None:
        raise ValueError(f"number {n}")

    @made.task(name="write", transactional=True)
    async def write(n: int, conn: psycopg.AsyncConnection[Any] = INJECTED) -> None:
        await conn.execute("insert into written values (%s)", [n])

    yield made
    await made.aclose()
    conn.execute("drop table written")


MIX = {"quick": 0.8, "in_thread": 0.1, "fail": 0.05, "write": 0.05}


def put(conn: Conn, count: int, mix: dict[str, float] = MIX) -> None:
    for task, share in mix.items():
        payloads = [{"n": n} for n in range(max(1, int(count * share)))]
        db.execute(conn, db.enqueue_many("default", task, payloads, max_attempts=2, retry=NOW))


def threads(others: Iterable[threading.Thread] = ()) -> set[threading.Thread]:
    """asyncio keeps those of to_thread() for itself."""
    return {each for each in threading.enumerate() if not each.name.startswith("asyncio")} - set(others)


def left(conn: Conn) -> Left:
    gc.collect()
    return Left(
        len(list(Path("/proc/self/fd").iterdir())),
        len(threads()),
        int(value(conn, BACKENDS, "^pgqueue")),
        len(gc.get_objects()),
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6,
    )


def assert_flat(before: Left, after: Left) -> None:
    assert after.files <= before.files
    assert after.threads <= before.threads
    assert after.connections <= before.connections
    assert after.objects < before.objects + OBJECTS
    assert after.megabytes < before.megabytes + MEGABYTES


@pytest.mark.timeout(max(300, CYCLES * 20))
async def test_a_worker_that_is_started_and_stopped_again_and_again_leaves_nothing_behind(app: App, conn: Conn) -> None:
    seen: list[Left] = []
    others = set(threading.enumerate())
    for _ in range(CYCLES):
        put(conn, 100)
        await run_burst(app)
        # A backend whose client has left is listed for a moment more.
        await asyncio.to_thread(wait_until, lambda: value(conn, BACKENDS, "^pgqueue (worker|beat|listen)") == 0)
        # So is a thread of a handler's that has just been told to end.
        await asyncio.to_thread(wait_until, lambda: not threads(others))
        seen.append(left(conn))
    # The first ones fill pools and caches.
    assert_flat(seen[CYCLES // 4], seen[-1])
    assert value(conn, "select count(*) from pgqueue.worker") == 0


@pytest.mark.timeout(max(300, JOBS // 200))
async def test_a_worker_that_works_on_and_on_does_not_grow(app: App, conn: Conn) -> None:
    worker = Worker(app, Settings(concurrency=10, poll_seconds=0.2))
    task = asyncio.create_task(worker.run())
    await worker.started.wait()

    async def work(count: int, mix: dict[str, float] = MIX) -> Left:
        for _ in range(4):
            put(conn, count // 4, mix)
            await asyncio.to_thread(
                wait_until, lambda: value(conn, "select count(*) from pgqueue.job_live") == 0, max(120, JOBS / 200)
            )
        return left(conn)

    try:
        # Threads and connections are made when so many are needed at once, and kept.
        await work(1000, {"write": 1})
        await work(1000, {"in_thread": 1})
        await work(JOBS // 4)
        before = await work(JOBS // 4)
        after = await work(JOBS // 2)
        assert_flat(before, after)
        assert worker.finished > JOBS
    finally:
        worker.stop()
        await asyncio.wait_for(task, 60)
