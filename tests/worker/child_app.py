"""The app whose tasks run in child processes in test_children.py."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import INJECTED, App, Cancel, Fatal, Job, RateLimited, RetryLater, Snooze, current_job

app = App()


@dataclass
class Order:
    id: int
    due: date


class Cache:
    opened = 0


class Remote:
    pass


@app.resource
def cache() -> Iterator[Cache]:
    Cache.opened += 1
    yield Cache()


@app.resource
async def remote() -> AsyncIterator[Remote]:
    yield Remote()


@app.task(runs_in="process")
def echo(order: Order, note: str = "–") -> dict[str, Any]:
    assert isinstance(order.due, date)
    return {"id": order.id, "next": order.due + timedelta(days=1), "note": note, "job": current_job().id}


@app.task(runs_in="process")
def pid() -> int:
    return os.getpid()


@app.task(runs_in="process")
def opened(cache: Cache = INJECTED) -> int:
    return cache.opened


@app.task(runs_in="process", max_attempts=1)
def wants_remote(remote: Remote = INJECTED) -> None:
    raise AssertionError("not reached")


@app.task(runs_in="process")
def unstorable() -> object:
    return object()


@app.task(runs_in="process", max_attempts=1)
def fail() -> None:
    raise ValueError("no such thing \ud800")


OUTCOMES = {
    "snooze": Snooze(3600), "rate": RateLimited(3600), "later": RetryLater(3600, "come back"), "fatal": Fatal("never"),
    "cancel": Cancel("not needed"), "key": KeyError("x"), "lookup": IndexError("y"), "exit": SystemExit(4),
}  # fmt: skip


@app.task(runs_in="process", never_retry=KeyError, retry_in={IndexError: 3600})
def end(how: str) -> None:
    raise OUTCOMES[how]


@app.task(runs_in="process", max_attempts=1)
def crash(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


@app.task(runs_in="process", max_attempts=1)
def steady(until: str, job: Job = INJECTED) -> int:
    job.progress(os.getpid())
    while not Path(until).exists():
        job.heartbeat()
        time.sleep(0.01)
    return os.getpid()


@app.task(runs_in="process", max_attempts=1, timeout=1)
def polite(job: Job = INJECTED) -> None:
    try:
        while True:
            job.heartbeat()
            time.sleep(0.01)
    finally:
        job.log(f"stopped: {job.stop_reason}, {job.cancel_requested}")


@app.task(runs_in="process", max_attempts=1)
def endless(job: Job = INJECTED) -> None:
    job.progress(os.getpid())
    while True:
        pass


@app.task(runs_in="process", max_attempts=1, memory_limit=100_000_000)
def hungry(size: int) -> int:
    return len(bytearray(size))


@app.task(runs_in="process")
def talk(job: Job = INJECTED) -> int:
    job.log("first")
    job.progress({"half": True})
    twice = job.step("count", lambda: 21) * 2
    job.log("last", "warning")
    return twice


@app.task(runs_in="process", max_attempts=1)
def steps_after(until: str, job: Job = INJECTED) -> None:
    job.progress("waiting")
    while not Path(until).exists():
        time.sleep(0.01)
    job.step("late", lambda: 1)


@app.task(runs_in="process")
def parent(job: Job = INJECTED) -> None:
    due = datetime.now(UTC) + timedelta(days=1)
    job.enqueue(pid.using(queue="later", run_at=due, key=lambda: "the key", tags=("a",), timeout=timedelta(5)).s())


@app.task
async def alone() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task(max_attempts=1)
async def alone_for_ever(remote: Remote = INJECTED) -> None:
    await asyncio.sleep(3600)


@app.task(max_attempts=1)
async def alone_and_dead() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(transactional=True)
async def alone_and_transactional(conn: psycopg.AsyncConnection[Any] = INJECTED) -> int:
    await conn.execute("create table if not exists written (pid int)")
    await conn.execute("insert into written values (%s)", [os.getpid()])
    return os.getpid()


@app.task
def alone_in_thread(cache: Cache = INJECTED) -> int:
    assert isinstance(cache, Cache)
    return os.getpid()
