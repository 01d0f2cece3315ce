"""The app whose workers and tickers a chaos run kills: handlers of every kind, which write down that they ran."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg

from pgqueue import INJECTED, App, Job, Retry, Snooze
from tests.chaos.ledger import recorded

SOON = Retry.fixed(0.2)
QUEUES = ("default", "few", "serial", "apart")
MAX_RUNNING = {"few": 3}
GROUP_MAX_RUNNING = {"serial": 1}
EVERY = {"each-second": 1.0, "every-other": 2.0}

app = App(name="chaos")


@app.task(retry=SOON)
async def quick(job: Job = INJECTED) -> None:
    with recorded(job):
        pass


@app.task(retry=SOON)
async def nap(seconds: float, job: Job = INJECTED) -> None:
    with recorded(job):
        await asyncio.sleep(seconds)


@app.task(retry=SOON)
def in_thread(seconds: float, job: Job = INJECTED) -> None:
    with recorded(job):
        time.sleep(seconds)


@app.task(retry=SOON, queue="apart", runs_in="process")
def in_process(seconds: float, job: Job = INJECTED) -> None:
    with recorded(job):
        time.sleep(seconds)


@app.task(retry=SOON, transactional=True)
async def write(seconds: float, job: Job = INJECTED, conn: psycopg.AsyncConnection[Any] = INJECTED) -> None:
    with recorded(job):
        await conn.execute("insert into chaos.effect values (%s, %s, %s)", [job.id, job.token, os.getpid()])
        await asyncio.sleep(seconds)


@app.task(retry=SOON, transactional=True)
def write_in_thread(seconds: float, job: Job = INJECTED, conn: psycopg.Connection[Any] = INJECTED) -> None:
    with recorded(job):
        conn.execute("insert into chaos.effect values (%s, %s, %s)", [job.id, job.token, os.getpid()])
        time.sleep(seconds)


@app.task(retry=SOON, max_attempts=3)
async def fail_often(times: int, job: Job = INJECTED) -> None:
    """Dead, if `times` is three or more."""
    with recorded(job):
        if job.attempt <= times:
            raise ValueError(f"attempt {job.attempt} of {times} that fail")


@app.task(retry=SOON)
async def snooze(job: Job = INJECTED) -> None:
    with recorded(job):
        if job.token == 1:
            raise Snooze(0.5, "not yet")


@app.task
async def child(parent: int, job: Job = INJECTED) -> None:
    with recorded(job):
        pass


@app.task(retry=SOON)
async def bear(job: Job = INJECTED) -> None:
    with recorded(job):
        job.enqueue(child.s(job.id))


@app.task(retry=SOON)
async def part(n: int, job: Job = INJECTED) -> int:
    with recorded(job):
        return n


@app.task(retry=SOON)
async def total(items: list[int], job: Job = INJECTED) -> int:
    with recorded(job):
        return sum(items)


@app.recurring("every 1s", name="each-second", catch_up="all", catch_up_max=1000)
@app.recurring("every 2s", name="every-other", catch_up="all", catch_up_max=1000)
@app.task(retry=SOON)
async def ring(job: Job = INJECTED) -> None:
    with recorded(job):
        pass


TRANSACTIONAL = {"write", "write_in_thread"}
BEARING = {"bear"}
