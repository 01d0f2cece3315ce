"""Flows on workers: results that reach children, fan-outs of unknown size, workers that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgqueue import INJECTED, App, Flow, Job, Retry, Settings, Worker, chain, current_job, gather, parent, parents
from pgqueue import database as db
from pgqueue.errors import InvalidArgument, JobCancelled, JobDead, KeyTaken, PgqueueError
from pgqueue.testing import Sandbox
from tests.support import Conn, job, row, rows, value, wait_until
from tests.worker.apps import app as process_app
from tests.worker.apps import step, total_of
from tests.worker.running import Process, run_burst


def tasks(app: App) -> dict[str, Any]:
    @app.task
    async def one(n: int) -> int:
        return n

    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    async def total(items: list[int]) -> int:
        return sum(items)

    @app.task(max_attempts=1)
    async def die() -> int:
        raise ValueError("boom")

    return dict(app.tasks)


async def test_a_chain_passes_each_result_on(app: App) -> None:
    t = tasks(app)
    handle = await chain(t["one"].s(5), t["double"].s(parent()), t["double"].s(parent())).aenqueue()
    await run_burst(app)
    assert await handle.aresult(0) == 20
    assert await handle.astatus() == "completed"
    assert await handle.aprogress() == 1
    assert [await each.aresult(0) for each in handle.jobs.values()] == [5, 10, 20]


async def test_a_gathering_collects_all_results_in_order(app: App) -> None:
    t = tasks(app)
    flow = gather(t["double"].s(n) for n in range(50)).then(t["total"].s(parents()))
    handle = await flow.aenqueue(name="sum")
    both = await gather(t["one"].s(1), chain(t["one"].s(2), t["double"].s(parent()))).aenqueue()
    await run_burst(app)
    assert await handle.aresult(0) == 2 * sum(range(50))
    assert (await handle.ainfo()).name == "sum"
    assert await both.aresult(0) == [1, 4]


async def test_a_graph_of_any_shape(app: App) -> None:
    t = tasks(app)
    order: list[str] = []

    @app.task
    async def note(name: str, of: int = 0) -> str:
        order.append(name)
        return f"{name}{of}"

    flow = Flow("diamond")
    top = flow.add(t["one"].s(3), name="top")
    left = flow.add(note.s("left", of=top.result))
    right = flow.add(note.s("right"), after=top)
    flow.add(note.s("bottom"), after=[left, right])
    handle = await flow.aenqueue()
    await run_burst(app)
    assert await handle.aresult(0) == "bottom0"
    assert order[-1] == "bottom"
    assert sorted(order[:2]) == ["left", "right"]
    results = {name: await each.aresult(0) for name, each in handle.jobs.items()}
    assert results["top"] == 3
    assert "left3" in results.values()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_asks_its_parents_how_they_ended(app: App, is_async: bool) -> None:
    t = tasks(app)

    def ask(job: Job) -> dict[str, Any]:
        assert job.flow_id is not None
        return {name: [each.outcome, each.result, each.error, each.task] for name, each in job.parents.items()}

    @app.task
    async def aasks(job: Job = INJECTED) -> dict[str, Any]:
        return ask(job)

    @app.task
    def asks(job: Job = INJECTED) -> dict[str, Any]:
        return ask(current_job())

    flow: Any = Flow()
    good, bad = flow.add(t["one"].s(7), name="good"), flow.add(t["die"].s(), name="bad")
    flow.add((aasks if is_async else asks).s(), after={good: "wait", bad: "continue"})
    handle = await flow.aenqueue()
    await run_burst(app)
    assert list(handle.jobs) == ["good", "bad", "aasks" if is_async else "asks"]
    assert await handle.aresult(0) == {"good": ["completed", 7, None, "one"], "bad": ["dead", None, "boom", "die"]}


async def test_a_job_in_no_flow_has_no_parents(app: App) -> None:
    @app.task
    async def asks(job: Job = INJECTED) -> bool:
        assert (job.flow_id, job.parents) == (None, {})
        with pytest.raises(InvalidArgument, match="in no flow"):
            job.enqueue(asks.s(), before_successors=True)
        return True

    handle = await asks.aenqueue()
    await run_burst(app)
    assert await handle.aresult(0)


@pytest.mark.parametrize("kind", ["loop", "thread", "transactional"])
async def test_a_fan_out_whose_size_nobody_knew(app: App, conn: Conn, kind: str) -> None:
    t = tasks(app)

    def spread(job: Job, n: int) -> None:
        for each in range(n):
            job.enqueue(t["double"].s(each), before_successors=True)
        job.enqueue(chain(t["one"].s(parent()), t["double"].s(parent())), before_successors=True)

    @app.task
    async def split(n: int, job: Job = INJECTED) -> int:
        spread(job, n)
        return 100

    @app.task
    def split_in_thread(n: int, job: Job = INJECTED) -> int:
        spread(job, n)
        return 100

    @app.task(transactional=True)
    async def split_in_transaction(n: int, conn: psycopg.AsyncConnection[Any] = INJECTED) -> int:
        spread(current_job(), n)
        return 100

    first: Any = {"loop": split, "thread": split_in_thread, "transactional": split_in_transaction}[kind]
    handle = await chain(first.s(4), t["total"].s(parents("double"))).aenqueue()
    await run_burst(app)
    # The last of the chain, which began with what split returned, is a double too.
    assert await handle.aresult(0) == 2 * (0 + 1 + 2 + 3) + 200
    info = await handle.ainfo()
    assert (info.total, info.completed, info.status) == (8, 8, "completed")


async def test_what_a_job_of_a_flow_enqueues_joins_it_and_runs_after_it(app: App, conn: Conn) -> None:
    t = tasks(app)

    @app.task
    async def first(job: Job = INJECTED) -> None:
        job.enqueue(t["one"].s(1), t["one"].using(key="mine").s(2))

    handle = await chain(first.s(), t["one"].s(0)).aenqueue()
    await run_burst(app)
    info = await handle.ainfo()
    assert (info.total, info.completed) == (3, 3)
    found = row(conn, "select flow_id, meta from pgqueue.job where key = 'mine'")
    assert (found["flow_id"], found["meta"]) == (None, None)


async def test_a_plain_job_enqueues_a_flow_of_its_own(app: App, conn: Conn) -> None:
    t = tasks(app)

    @app.task
    async def starts(job: Job = INJECTED) -> None:
        job.enqueue(gather(t["one"].s(n) for n in range(3)).then(t["total"].s(parents())))

    await starts.aenqueue()
    await run_burst(app)
    assert row(conn, "select total, completed from pgqueue.flow") == {"total": 4, "completed": 4}
    assert row(conn, "select result from pgqueue.job where task = 'total'") == {"result": 3}


async def test_children_of_an_attempt_that_fails_do_not_join_the_flow(app: App, conn: Conn) -> None:
    t = tasks(app)

    @app.task(retry=Retry.fixed(0), max_attempts=2)
    async def first(job: Job = INJECTED) -> None:
        job.enqueue(t["one"].s(1), before_successors=True)
        if job.attempt == 1:
            raise ValueError

    handle = await chain(first.s(), t["one"].s(0)).aenqueue()
    await run_burst(app)
    assert (await handle.ainfo()).total == 3


async def test_callbacks_say_how_a_flow_went(app: App, conn: Conn) -> None:
    t = tasks(app)
    heard: list[tuple[str, int | None]] = []

    @app.task
    async def hear(what: str, job: Job = INJECTED) -> None:
        heard.append((what, job.flow_id))

    calls: Any = {"on_done": hear.s("done"), "on_dead": hear.s("dead")}
    good = await chain(t["one"].s(1), t["double"].s(parent())).aenqueue(**calls)
    bad = await chain(t["die"].s(), t["one"].s(1)).aenqueue(**calls)
    passed = await chain(t["die"].s(), t["one"].s(1), on_death="continue").aenqueue(**calls)
    await run_burst(app)
    assert sorted(heard) == sorted([("done", good.id), ("dead", bad.id), ("dead", passed.id), ("done", passed.id)])
    assert [await each.astatus() for each in (good, bad, passed)] == ["completed", "stalled", "completed"]


async def test_waiting_for_a_flow_that_cannot_go_on_says_why(app: App) -> None:
    t = tasks(app)
    stalled = await chain(t["die"].s(), t["one"].s(1)).aenqueue(name="mine")
    failed = await chain(t["one"].s(1), t["die"].s()).aenqueue()
    cancelled = await chain(t["one"].s(1), t["one"].s(1)).aenqueue()
    await cancelled.acancel("no longer needed")
    await run_burst(app)
    with pytest.raises(JobDead, match=r"flow \d+ \(mine\) has stalled: job \d+ \(die\) is dead: ValueError: boom"):
        await stalled.aresult(5)
    with pytest.raises(JobDead, match=r"has failed: job \d+ \(die\) is dead"):
        await asyncio.to_thread(failed.result, 5)
    with pytest.raises(JobCancelled, match="no longer needed"):
        await cancelled.aresult(5)


async def test_a_running_job_of_a_cancelled_flow_is_stopped(app: App, conn: Conn) -> None:
    started = asyncio.Event()

    @app.task
    async def slow() -> None:
        started.set()
        await asyncio.sleep(60)

    handle = await chain(slow.s(), slow.s()).aenqueue()
    running = asyncio.create_task(run_burst(app))
    await started.wait()
    assert await handle.acancel("enough") == (1, 1)
    await running
    assert await handle.astatus() == "cancelled"
    assert {each["status"] for each in rows(conn, "select status from pgqueue.job")} == {"cancelled"}


async def test_a_chain_does_not_wait_for_a_poll_between_its_links(app: App, conn: Conn) -> None:
    t = tasks(app)
    handle = await chain(*[t["one"].s(n) for n in range(40)]).aenqueue()
    worker = Worker(app, Settings(poll_seconds=5, listen=False))
    running = asyncio.create_task(worker.run())
    # Forty polls would be minutes.
    await asyncio.to_thread(wait_until, lambda: handle.status() == "completed", 15)
    worker.stop()
    await running


def test_a_flow_commits_or_rolls_back_with_its_caller(dsn: str, conn: Conn, connect: Callable[..., Conn]) -> None:
    app = App(dsn)
    t = tasks(app)
    mine = connect(autocommit=False)
    flow = chain(t["one"].s(1), t["double"].s(parent()))
    flow.enqueue(conn=mine)
    mine.rollback()
    assert rows(conn, "select 1 from pgqueue.job union all select 1 from pgqueue.flow") == []
    handle = flow.enqueue(conn=mine)
    mine.commit()
    assert handle.info()[2:5] == ("running", 2, 1)
    assert app.flow(handle.id).status() == "running"
    app.close()


def test_a_sandbox_runs_a_flow(dsn: str, conn: Conn, connect: Callable[..., Conn]) -> None:
    app = App(dsn)
    t = tasks(app)

    @app.task
    def split(job: Job = INJECTED) -> None:
        job.enqueue(t["double"].s(1), t["double"].s(2), before_successors=True)

    with Sandbox(app, connect(autocommit=False)) as queue:
        handle = chain(split.s(), t["total"].s(parents("double"))).enqueue()
        assert queue.drain() == {"completed": 4}
        assert handle.result(0) == 6


def test_what_cannot_be_a_flow_is_refused(dsn: str, conn: Conn) -> None:
    app = App(dsn)
    t = tasks(app)
    one, double = t["one"], t["double"]
    attempts: list[tuple[Callable[[], Any], str]] = [
        (lambda: chain(double.s(parent())), "runs after 0 jobs"),
        (lambda: gather(one.s(1), one.s(2)).then(double.s(parent())), "runs after 2 jobs"),
        (lambda: chain(one.s(1), double.s(parent("two"))), 'takes the result of "two"'),
        (lambda: chain(one.s(1), 5), "made of calls"),  # type: ignore[call-overload]
        (lambda: chain(), "at least one job"),
        (lambda: chain(one.s(1), double.using(key="args").s(parent())), "known now"),
        (lambda: chain(one.s(1), one.using(on_conflict="skip", key="k").s(1)), "new jobs only"),
    ]
    for wrong, why in attempts:
        with pytest.raises(InvalidArgument, match=why):
            wrong().enqueue()
    flow, other = Flow(), Flow()
    step_of_other = other.add(one.s(1))
    with pytest.raises(InvalidArgument, match="steps of this flow"):
        flow.add(one.s(1), after=step_of_other)
    with pytest.raises(InvalidArgument, match="a step of another flow"):
        flow.add(double.s(step_of_other.result))
    with pytest.raises(PgqueueError, match="ParentResult"):
        double.enqueue(parent())
    one.using(key="k").enqueue(1)
    with pytest.raises(KeyTaken, match="the flow was not enqueued"):
        chain(one.s(1), one.using(key="k").s(1)).enqueue()
    assert value(conn, "select count(*) from pgqueue.job") == 1
    app.close()


def test_a_flow_that_loses_workers_all_the_time_runs_each_job_after_its_parents_and_once(
    conn: Conn, dsn: str, start: Callable[..., Process]
) -> None:
    process_app.use(dsn)
    chance = random.Random(7)  # noqa: S311
    widths = [6, 8, 4, 8, 1]
    plan: Any = None
    for width in widths:
        layer = gather(step.s(0.2 + chance.random() * 0.3) for _ in range(width))
        plan = layer if plan is None else plan.then(layer)
    handle = plan.then(total_of.s(parents())).enqueue()
    process_app.close()
    workers = [start("--lease", "2", "--concurrency", "4", "--poll", "0.1").wait_ready() for _ in range(2)]
    kills = 0
    while db.execute(conn, db.look_up_flow(handle.id)).status == "running":
        wait_until(lambda: value(conn, "select count(*) from pgqueue.job_live where status = 'running'") > 0
                   or db.execute(conn, db.look_up_flow(handle.id)).status != "running", 30)  # fmt: skip
        if kills < 6:
            workers.pop(0).send(signal.SIGKILL)
            workers.append(start("--lease", "2", "--concurrency", "4", "--poll", "0.1").wait_ready())
            kills += 1
    info = db.execute(conn, db.look_up_flow(handle.id))
    assert (info.status, info.completed) == ("completed", sum(widths) + 1)
    assert value(conn, "select count(*) from pgqueue.job_attempt where outcome = 'lost'") > 0
    # What each wrote in its transaction: once, and after all of its parents' had committed.
    written = {each["job_id"]: each["n"] for each in rows(conn, "select job_id, count(*) as n from effect group by 1")}
    assert set(written.values()) == {1}
    early = rows(conn, "select e.child_id from pgqueue.flow_edge e join effect c on c.job_id = e.child_id"
                       " join effect p on p.job_id = e.parent_id where p.at > c.at")  # fmt: skip
    assert early == []
    assert job(conn, list(handle.jobs.values())[-1].id)["result"] == 1
    assert os.getpid() not in {each["pid"] for each in rows(conn, "select pid from effect")}
