"""Limits on workers that are processes and get killed: judged by the records of all attempts, not by samples.

PGQUEUE_LIMIT_JOBS makes it longer: 60000, say.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from pgqueue import App, RateLimited, Settings, Worker
from pgqueue import database as db
from pgqueue import worker as worker_module
from pgqueue.cli_work import parse_queues
from pgqueue.errors import ConfigError
from tests.support import Conn, job, rows, value, wait_until
from tests.worker.running import Process, run_burst

JOBS = int(os.environ.get("PGQUEUE_LIMIT_JOBS", "3000"))
WORKERS = 8 if JOBS > 10_000 else 4
Attempt = tuple[datetime, datetime, int]  # started, ended, job


def attempts(conn: Conn, by: str) -> dict[str, list[Attempt]]:
    """Every attempt that there was, of each queue or group, by its start."""
    found: dict[str, list[Attempt]] = {}
    for each in rows(
        conn,
        f"select {by} as key, j.started_at, j.finished_at, j.id from pgqueue.job_done j where j.status = 'completed'"
        f" union all select {by.replace('group_key', 'd.group_key')}, j.started_at, j.finished_at, j.job_id"
        " from pgqueue.job_attempt j join pgqueue.job d on d.id = j.job_id order by 2",
    ):
        found.setdefault(each["key"], []).append((each["started_at"], each["finished_at"], each["id"]))
    return found


def most_at_once(found: list[Attempt]) -> int:
    edges = sorted([(end, -1) for _, end, _ in found] + [(start, 1) for start, _, _ in found])
    now = most = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


def most_within(found: list[Attempt], window: timedelta) -> int:
    starts = [start for start, _, _ in found]
    first = most = 0
    for last, start in enumerate(starts):
        while starts[first] <= start - window:
            first += 1
        most = max(most, last - first + 1)
    return most


def live(conn: Conn) -> bool:
    return bool(value(conn, "select exists (select 1 from pgqueue.job_live)"))


@pytest.mark.timeout(1200)
def test_limits_hold_while_workers_are_killed(conn: Conn, start: Callable[..., Process]) -> None:
    rng = random.Random(JOBS)  # noqa: S311
    settings: dict[str, dict[str, Any]] = {
        "few": {"max_running": 5},
        "serial": {"group_max_running": 1},
        "pairs": {"group_max_running": 2, "fair": True, "max_running": 30},
        "slow": {"rate": JOBS // 40, "rate_seconds": 1, "rate_burst": 10},
        "free": {},
    }
    command = ("--queues", ",".join(settings), "-c", "20", "--lease", "2", "--poll", "0.3")
    workers = [start(*command).wait_ready() for _ in range(WORKERS)]
    for queue, limits in settings.items():
        db.execute(conn, db.set_queue(queue, limits))
        groups = [f"{queue}-{rng.randrange(50)}" for _ in range(JOBS // 5)] if queue in ("serial", "pairs") else None
        payloads = [{"seconds": rng.choice([0, 0, 0.002, 0.01])} for _ in range(JOBS // 5)]
        payloads[5::30] = [{"seconds": 0.7} for _ in payloads[5::30]]
        db.execute(conn, db.enqueue_many(queue, "rest", payloads, groups=groups, max_attempts=100))
    long = "select 1 from pgqueue.job_live where status = %s and (payload ->> 'seconds')::float > 0.1 limit 1"
    for _ in range(max(6, JOBS // 2000)):
        done = value(conn, "select count(*) from pgqueue.job_done")
        target = min(done + JOBS // 30, JOBS)
        wait_until(lambda target=target: value(conn, "select count(*) from pgqueue.job_done") >= target, 60)  # type: ignore[misc]
        # Best in the middle of a job that takes its time.
        wait_until(lambda: bool(rows(conn, long, "running")) or not rows(conn, long, "pending"), 60)
        busy = rows(
            conn,
            "select (w.info ->> 'pid')::int as pid from pgqueue.job_live j join pgqueue.worker w on w.id = j.worker_id"
            " where j.status = 'running' and w.lost_at is null"
            " order by (j.payload ->> 'seconds')::float desc, j.started_at desc limit 1",
        )
        victim = next((n for n, each in enumerate(workers) if busy and each.pid == busy[0]["pid"]), 0)
        workers[victim].send(signal.SIGKILL)
        workers[victim] = start(*command)
    wait_until(lambda: not live(conn), 600)

    assert value(conn, "select count(*) from pgqueue.job_done where status = 'completed'") == JOBS // 5 * 5
    by_queue = attempts(conn, "j.queue")
    assert most_at_once(by_queue["few"]) <= 5
    assert most_at_once(by_queue["pairs"]) <= 30
    assert most_within(by_queue["slow"], timedelta(seconds=1)) <= JOBS // 40 + 10
    by_group = attempts(conn, "group_key")
    for group, found in by_group.items():
        if group is not None:
            assert most_at_once(found) <= (1 if group.startswith("serial") else 2), group
        if group is not None and group.startswith("serial"):
            order = [id for _, _, id in found]
            assert all(before <= after for before, after in pairwise(order)), f"{group} ran out of order"
    assert value(conn, "select count(*) from pgqueue.job_live where holds_slot") == 0
    # Something was at stake: the limits were reached, and workers died with jobs in their hands.
    assert most_at_once(by_queue["few"]) == 5
    assert value(conn, "select count(*) from pgqueue.job_attempt where outcome = 'lost'") > 0


async def test_a_handler_that_is_rate_limited_slows_down_its_group(app: App, conn: Conn) -> None:
    began: list[int] = []

    @app.task(group=lambda tenant, **_: f"tenant:{tenant}")
    async def call(tenant: int, n: int) -> None:
        began.append(tenant)
        if tenant == 1:
            raise RateLimited(after=600)

    await call.aenqueue_many([call.s(1, n) for n in range(5)] + [call.s(2, n) for n in range(5)])
    await run_burst(app, concurrency=1)
    # Those that were claimed before the first one said so are not called back.
    assert began.count(1) < 5
    assert began.count(2) == 5
    assert value(conn, "select count(*) from pgqueue.job where attempt > 0 and status <> 'completed'") == 0


async def test_a_burst_does_not_end_because_somebody_holds_the_last_job_for_a_moment(
    app: App, conn: Conn, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def held() -> None: ...

    monkeypatch.setattr(worker_module, "BURST_ASKS", 12)  # two seconds
    handle = await held.aenqueue()
    with psycopg.connect(dsn) as other:
        other.execute("select 1 from pgqueue.job_live for update")
        burst = asyncio.create_task(run_burst(app))
        asked = (
            "select count(*) from pg_stat_activity where query like '%%complete_and_claim%%' and state = 'idle'"
            " and application_name = 'pgqueue worker' and datname = current_database()"
        )
        await asyncio.to_thread(wait_until, lambda: value(conn, asked) == 1)
    await burst
    assert job(conn, handle.id)["status"] == "completed"


async def test_a_group_may_come_from_the_arguments(app: App, conn: Conn) -> None:
    @app.task(group=lambda account, **_: f"account:{account}")
    async def bill(account: int) -> None: ...

    await bill.aenqueue(7)
    await bill.using(group="other").aenqueue(7)
    await bill.using(group=None).aenqueue(7)
    found = rows(conn, "select group_key from pgqueue.job order by id")
    assert [each["group_key"] for each in found] == ["account:7", "other", None]


async def test_reserved_slots_are_kept_for_their_queue(app: App, conn: Conn) -> None:
    most = 0
    urgent = asyncio.Event()

    @app.task
    async def slow() -> None:
        nonlocal most
        most = max(most, worker.busy)
        if most == 2:
            await critical.using(queue="critical", key="one").aenqueue()
        await urgent.wait()

    @app.task
    async def critical() -> None:
        urgent.set()
        worker.stop()

    await slow.using(queue="bulk").aenqueue_many([{}] * 10)
    worker = Worker(
        app, Settings(queues={"bulk": 9, "critical": 1}, reserved={"critical": 1}, concurrency=3, poll_seconds=0.1)
    )
    await worker.run()
    assert most == 2  # of three slots
    # Both slow jobs may have asked for it, one after the other.
    ended = "select count(*) from pgqueue.job where queue = 'critical' and status = 'completed'"
    assert value(conn, ended) == 1


def test_queues_are_given_with_weights_and_reserved_slots() -> None:
    assert parse_queues("critical=4:2,default,low=1:3") == (
        {"critical": 4, "default": 1, "low": 1},
        {"critical": 2, "low": 3},
    )
    with pytest.raises(ConfigError, match="reserved slots of critical must be a number from 1"):
        parse_queues("critical=4:x")
