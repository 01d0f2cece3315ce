"""The app that worker processes in tests load by name."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import INJECTED, App, Job, Retry, current_job

app = App()
NOW = Retry.fixed(0)


def record(conn: psycopg.Connection[Any]) -> None:
    job = current_job()
    conn.execute("insert into effect (job_id, attempt, pid) values (%s, %s, %s)", [job.id, job.attempt, os.getpid()])


def record_outside() -> None:
    """As a call to another system would: whatever becomes of the job, it has happened."""
    with psycopg.connect(app.conninfo, autocommit=True) as conn:
        record(conn)


@app.task
async def quick(n: int = 0) -> int:
    return n


@app.task(retry=NOW, max_attempts=100)
async def rest(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(retry=NOW)
async def nap(seconds: float) -> None:
    await asyncio.to_thread(record_outside)
    await asyncio.sleep(seconds)


@app.task(retry=NOW)
async def wait_for(path: str) -> None:
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.01)


@app.task(retry=NOW)
def nap_in_thread(seconds: float) -> None:
    record_outside()
    time.sleep(seconds)


@app.task(retry=NOW)
async def nap_aside(seconds: float) -> None:
    await asyncio.to_thread(nap_in_thread, seconds)


@app.task(transactional=True, retry=NOW, max_attempts=50)
async def write(seconds: float, conn: psycopg.AsyncConnection[Any] = INJECTED) -> None:
    job = current_job()
    await conn.execute(
        "insert into effect (job_id, attempt, pid) values (%s, %s, %s)", [job.id, job.attempt, os.getpid()]
    )
    await asyncio.sleep(seconds)


@app.task(transactional=True, retry=NOW, max_attempts=50)
def write_in_thread(seconds: float, conn: psycopg.Connection[Any] = INJECTED) -> None:
    record(conn)
    time.sleep(seconds)


@app.task(retry=NOW)
async def block_the_loop(seconds: float) -> None:
    record_outside()
    time.sleep(seconds)  # noqa: ASYNC251 - what a careless handler does


@app.task(retry=NOW)
def hold_the_gil(length: int) -> None:
    """A regular expression that backtracks, in C code that never lets another thread run."""
    record_outside()
    re.match(r"(a+)+$", "a" * length + "b")


@app.task(timeout=1, max_attempts=1)
def ignore_time(seconds: float) -> None:
    time.sleep(seconds)


@app.task(max_attempts=1)
def until_told(job: Job = INJECTED) -> None:
    record_outside()
    while True:
        job.heartbeat()
        time.sleep(0.01)


@app.task(at_most_once=True)
async def nap_once(seconds: float) -> None:
    await asyncio.to_thread(record_outside)
    await asyncio.sleep(seconds)


@app.task(at_most_once=True)
def nap_once_in_thread(seconds: float) -> None:
    record_outside()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        current_job().heartbeat()
        time.sleep(0.01)


@app.task(at_most_once=True, runs_in="process")
def nap_once_in_process(seconds: float) -> None:
    nap_once_in_thread(seconds)


@app.task(transactional=True, retry=NOW, max_attempts=50)
async def step(seconds: float, conn: psycopg.AsyncConnection[Any] = INJECTED) -> int:
    await asyncio.sleep(seconds)
    job = current_job()
    await conn.execute(
        "insert into effect (job_id, attempt, pid) values (%s, %s, %s)", [job.id, job.attempt, os.getpid()]
    )
    return 1


@app.task(retry=NOW, max_attempts=50)
async def total_of(items: list[int]) -> int:
    return sum(items)


# Its connections are gone just when the worker wants one for the next job, or the handler one for its steps.


def cut_connections() -> None:
    with psycopg.connect(app.conninfo, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'pgqueue' and datname = current_database()"
        )


@app.task(max_attempts=1)
async def lonely_parent(job: Job = INJECTED) -> str:
    await job.step("warm", warm)  # opens a connection
    cut_connections()
    return "from the parent"


async def warm() -> None: ...


def steps_of(job: Job) -> None:
    assert [each.result for each in job.parents.values()] == ["from the parent"]
    job.step("before", int)
    cut_connections()
    job.step("outside", record_outside)


@app.task(max_attempts=1)
async def lonely_in_loop(job: Job = INJECTED) -> None:
    await job.step("before", warm)
    cut_connections()
    await job.step("outside", asyncio.to_thread, record_outside)


@app.task(max_attempts=1)
def lonely_in_thread(job: Job = INJECTED) -> None:
    steps_of(job)


@app.task(max_attempts=1, runs_in="process")
def lonely_in_process(job: Job = INJECTED) -> None:
    steps_of(job)
