"""Batch handlers: one call for many jobs, each with its own outcome."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pgqueue import INJECTED, App, Batch, Cancel, Fatal, Job, Retry, RetryLater, Settings, Snooze, Worker
from pgqueue import database as db
from pgqueue.errors import InvalidArgument, PayloadError
from pgqueue.testing import Sandbox, inline
from tests.support import Conn, enqueue, job, row, rows, value, wait_until
from tests.worker.running import run_burst

LATER = Retry.fixed(60)


@dataclass
class Doc:
    id: int
    title: str = ""


class Index(list[int]): ...


def statuses(conn: Conn) -> Counter[str]:
    return Counter(each["status"] for each in rows(conn, "select status from pgqueue.job"))


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_gets_many_jobs_in_one_call_and_each_its_own_result(
    app: App, conn: Conn, is_async: bool
) -> None:
    calls: list[list[Doc]] = []

    def index(doc: list[Doc]) -> list[str]:
        calls.append(doc)
        return [f"{each.id}.html" for each in doc]

    async def aindex(doc: list[Doc]) -> list[str]:
        return index(doc)

    task: Any = app.task(name="index", batch=Batch(size=10, wait=0.2))(aindex if is_async else index)
    handles = await task.aenqueue_many([task.s(Doc(n, "x")) for n in range(25)])
    await run_burst(app)
    assert [len(call) for call in calls] == [10, 10, 5]
    assert calls[0][3] == Doc(3, "x")
    assert [await handle.aresult(0) for handle in handles] == [f"{n}.html" for n in range(25)]
    assert row(conn, "select payload from pgqueue.job where id = %s", handles[0].id) == {
        "payload": {"doc": {"id": 0, "title": "x"}}
    }


async def test_more_jobs_than_slots_fill_a_batch_which_takes_one_slot(app: App, conn: Conn) -> None:
    sizes: list[int] = []
    running = most = 0

    @app.task(batch=Batch(size=100, wait=1))
    async def index(n: list[int]) -> None:
        sizes.append(len(n))

    @app.task
    async def other() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    index.enqueue_many([index.s(n) for n in range(300)])
    other.enqueue_many([other.s()] * 30)
    await run_burst(app, concurrency=3)
    assert sizes == [100, 100, 100]
    assert most <= 3
    assert statuses(conn) == {"completed": 330}


async def test_what_has_come_within_the_wait_is_run(app: App, conn: Conn) -> None:
    sizes: list[int] = []

    @app.task(batch=Batch(size=1000, wait=0.05))
    async def index(n: list[int]) -> None:
        sizes.append(len(n))

    index.enqueue_many([index.s(n) for n in range(3)])
    await run_burst(app)
    assert sizes == [3]


async def test_each_job_ends_as_the_handler_says_of_it(app: App, conn: Conn) -> None:
    @app.task(batch=Batch(size=10), retry=LATER, retry_in={KeyError: 1000})
    async def sort(n: list[int]) -> list[Any]:
        ends = [1, ValueError("bad"), Fatal("never"), Snooze(100), Cancel("no"), RetryLater(500), KeyError("k"), None]
        return [ends[each] for each in n]

    ids = [each.id for each in sort.enqueue_many([sort.s(n) for n in range(8)])]
    await run_burst(app)
    found = [job(conn, id) for id in ids]
    assert [each["status"] for each in found] == [
        "completed", "scheduled", "dead", "scheduled", "cancelled", "scheduled", "scheduled", "completed",
    ]  # fmt: skip
    assert found[0]["result"] == 1
    assert (found[1]["error_type"], found[1]["error"], found[1]["attempt"]) == ("ValueError", "bad", 1)
    assert found[3]["attempt"] == 0
    assert found[4]["error"] == "no"
    assert [round(found[n]["retry_delay_seconds"]) for n in (1, 5, 6)] == [60, 500, 1000]


async def test_a_mapping_names_those_that_have_something_to_say(app: App, conn: Conn) -> None:
    @app.task(batch=Batch(size=10), retry=LATER)
    def sort(n: list[int], jobs: list[Job] = INJECTED) -> dict[int, Any]:
        assert [each.claimed.payload["n"] for each in jobs] == n
        return {
            each.id: ValueError("odd") if number % 2 else number for each, number in zip(jobs, n, strict=True) if number
        }

    ids = [each.id for each in sort.enqueue_many([sort.s(n) for n in range(3)])]
    await run_burst(app)
    found = [job(conn, id) for id in ids]
    assert [(each["status"], each["result"]) for each in found] == [
        ("completed", None), ("scheduled", None), ("completed", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("returned", [[1], "ab", {-1: 2}, 5])
async def test_an_answer_that_fits_no_jobs_fails_them_all(app: App, conn: Conn, returned: Any) -> None:
    @app.task(batch=Batch(size=10), retry=LATER)
    async def sort(n: list[int]) -> Any:
        return returned

    ids = [each.id for each in sort.enqueue_many([sort.s(n) for n in range(3)])]
    await run_burst(app)
    assert {job(conn, id)["error_type"] for id in ids} == {"TypeError"}


async def test_what_the_handler_raises_fails_all_and_a_payload_that_does_not_fit_only_itself(
    app: App, conn: Conn
) -> None:
    calls: list[list[int]] = []

    @app.task(batch=Batch(size=10), retry=LATER)
    async def sort(n: list[int]) -> None:
        calls.append(n)
        raise ValueError("all")

    good = [sort.enqueue(n).id for n in (1, 2)]
    bad = [enqueue(conn, payload, queue="default", task="sort") for payload in ({}, {"m": 1})]
    await run_burst(app)
    assert calls == [[1, 2]]
    assert {job(conn, id)["error_type"] for id in good} == {"ValueError"}
    assert {job(conn, id)["error_type"] for id in bad} == {"PayloadError"}


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_transactional_batch_is_one_transaction(app: App, conn: Conn, is_async: bool) -> None:
    conn.execute("drop table if exists seen")
    conn.execute("create table seen (n int, xid xid8 default pg_current_xact_id())")

    @app.task(batch=Batch(size=10), transactional=True, retry=LATER)
    async def astore(n: list[int], conn: psycopg.AsyncConnection[Any] = INJECTED) -> list[Any]:
        for each in n:
            await conn.execute("insert into seen values (%s)", [each])
        return [ValueError("two") if each == 2 else each for each in n]

    @app.task(batch=Batch(size=10), transactional=True, retry=LATER)
    def store(n: list[int], conn: psycopg.Connection[Any] = INJECTED) -> list[Any]:
        for each in n:
            conn.execute("insert into seen values (%s)", [each])
        return [ValueError("two") if each == 2 else each for each in n]

    task: Any = astore if is_async else store
    ids = [each.id for each in task.enqueue_many([task.s(n) for n in range(4)])]
    await run_burst(app)
    assert [job(conn, id)["status"] for id in ids] == ["completed", "completed", "scheduled", "completed"]
    assert job(conn, ids[3])["result"] == 3
    assert row(conn, "select count(*), count(distinct xid) as transactions from seen") == {
        "count": 4,
        "transactions": 1,
    }


async def test_a_job_that_belongs_to_another_rolls_its_transactional_batch_back_and_the_others_run_again(
    app: App, conn: Conn
) -> None:
    conn.execute("drop table if exists seen")
    conn.execute("create table seen (n int)")
    calls: list[list[int]] = []

    @app.task(batch=Batch(size=10, wait=0.1), transactional=True)
    async def store(n: list[int], conn: psycopg.AsyncConnection[Any] = INJECTED, jobs: list[Job] = INJECTED) -> None:
        calls.append(n)
        if len(calls) == 1:  # as if a sweep had given it to somebody else
            await asyncio.to_thread(steal, jobs[1].id)
        for each in n:
            await conn.execute("insert into seen values (%s)", [each])

    def steal(id: int) -> None:
        conn.execute("update pgqueue.job_live set token = token + 1 where id = %s", [id])

    ids = [each.id for each in store.enqueue_many([store.s(n) for n in range(3)])]
    worker = Worker(app, Settings(poll_seconds=0.1))
    running = asyncio.create_task(worker.run())
    await asyncio.to_thread(wait_until, lambda: statuses(conn)["completed"] == 2)
    worker.stop()
    await running
    assert sorted(calls[1]) == [0, 2]
    assert value(conn, "select array_agg(n order by n) from seen") == [0, 2]
    assert job(conn, ids[0])["attempt"] == 1  # what was nobody's fault costs no attempt


async def test_a_cancelled_job_of_a_batch_is_asked_and_the_others_go_on(app: App, conn: Conn) -> None:
    asked: list[bool] = []

    @app.task(batch=Batch(size=10, wait=0.1))
    async def slow(n: list[int], jobs: list[Job] = INJECTED) -> list[Any]:
        await asyncio.to_thread(lambda: db.execute(conn, db.cancel(jobs[1].id, "not this")))
        await asyncio.to_thread(wait_until, lambda: any(each.cancel_requested for each in jobs))
        asked.extend(each.cancel_requested for each in jobs)
        return [Cancel("as you say") if each.cancel_requested else n for each, n in zip(jobs, n, strict=True)]

    ids = [each.id for each in slow.enqueue_many([slow.s(n) for n in range(3)])]
    await run_burst(app)
    assert asked == [False, True, False]
    assert [job(conn, id)["status"] for id in ids] == ["completed", "cancelled", "completed"]


async def test_a_batch_whose_jobs_are_all_cancelled_is_interrupted(app: App, conn: Conn) -> None:
    started = threading.Event()

    @app.task(batch=Batch(size=2))
    async def slow(n: list[int]) -> None:
        started.set()
        await asyncio.sleep(60)

    ids = [each.id for each in slow.enqueue_many([slow.s(n) for n in range(2)])]
    running = asyncio.create_task(run_burst(app))
    await asyncio.to_thread(started.wait)
    for id in ids:
        await asyncio.to_thread(app.cancel, id)
    await running
    assert [job(conn, id)["status"] for id in ids] == ["cancelled", "cancelled"]


async def test_a_batch_has_the_shortest_time_of_its_jobs(app: App, conn: Conn) -> None:
    @app.task(batch=Batch(size=2), retry=LATER)
    async def slow(n: list[int]) -> None:
        await asyncio.sleep(60)

    ids = [enqueue(conn, {"n": seconds}, queue="default", task="slow", timeout_seconds=seconds) for seconds in (1, 600)]
    await run_burst(app)
    assert {job(conn, id)["error_type"] for id in ids} == {"TimeoutError"}


async def test_a_worker_that_drains_hands_a_forming_batch_back(app: App, conn: Conn) -> None:
    @app.task(batch=Batch(size=10, wait=10))
    async def index(n: list[int]) -> None: ...

    ids = [each.id for each in index.enqueue_many([index.s(n) for n in range(3)])]
    worker = Worker(app, Settings(poll_seconds=0.1))
    running = asyncio.create_task(worker.run())
    await asyncio.to_thread(wait_until, lambda: job(conn, ids[0])["status"] == "running")
    worker.stop()
    await running
    assert statuses(conn) == {"pending": 3}
    assert job(conn, ids[0])["attempt"] == 0


async def test_batches_that_find_no_slot_are_not_hoarded(app: App, conn: Conn) -> None:
    release = asyncio.Event()

    @app.task(batch=Batch(size=5, wait=5))
    async def index(n: list[int]) -> None:
        await release.wait()

    index.enqueue_many([index.s(n) for n in range(100)])
    worker = Worker(app, Settings(poll_seconds=0.1, concurrency=2, burst=True))
    running = asyncio.create_task(worker.run())
    # Two run; what was taken beyond that goes back, and no more is taken.
    await asyncio.to_thread(wait_until, lambda: statuses(conn) == {"running": 10, "pending": 90})
    release.set()
    await running
    assert statuses(conn) == {"completed": 100}
    assert value(conn, "select max(attempt) from pgqueue.job") == 1


async def test_the_children_of_a_batched_job_exist_exactly_if_it_completes(app: App, conn: Conn) -> None:
    @app.task
    async def child(n: int) -> None: ...

    @app.task(batch=Batch(size=10), retry=LATER)
    async def parent(n: list[int], jobs: list[Job] = INJECTED) -> list[Any]:
        for number, each in zip(n, jobs, strict=True):
            each.enqueue(child.s(number))
        return [ValueError() if number == 1 else None for number in n]

    parent.enqueue_many([parent.s(n) for n in range(3)])
    await run_burst(app)
    found = rows(conn, "select payload from pgqueue.job where task = 'child' order by id")
    assert [each["payload"] for each in found] == [{"n": 0}, {"n": 2}]


async def test_resources_and_middleware_go_around_the_batch_once(app: App, conn: Conn) -> None:
    seen: list[Any] = []

    @app.resource
    def open_index() -> Index:
        return Index()

    @app.around
    async def note(job: Job, run: Callable[[], Any]) -> Any:
        seen.append(job.task)
        return await run()

    @app.task(batch=Batch(size=10))
    def index(n: list[int], into: Index = INJECTED) -> None:
        into.extend(n)
        seen.append(list(into))

    index.enqueue_many([index.s(n) for n in range(3)])
    await run_burst(app)
    assert seen == ["index", [0, 1, 2]]


def test_a_sandbox_and_inline_run_a_batch_of_one(dsn: str, conn: Conn, connect: Callable[..., Conn]) -> None:
    app = App(dsn)

    @app.task(batch=Batch(size=10))
    def double(n: list[int], jobs: list[Job] = INJECTED) -> list[int]:
        assert len(jobs) == 1
        return [2 * each for each in n]

    assert double([1, 2], jobs=[1]) == [2, 4]  # the plain call runs the function
    with inline(app):
        assert double.enqueue(4).result() == 8
    with Sandbox(app, connect(autocommit=False)) as queue:
        handle = double.enqueue(5)
        assert queue.drain() == {"completed": 1}
        assert handle.result(0) == 10


def test_what_is_no_batch_handler_is_refused() -> None:
    app = App()
    with pytest.raises(InvalidArgument, match="1 to 1000"):
        Batch(size=0)
    with pytest.raises(InvalidArgument, match="0 to 10 seconds"):
        Batch(wait=60)
    with pytest.raises(InvalidArgument, match="one parameter without a default"):
        app.task(batch=Batch(), name="none")(lambda: None)  # type: ignore[arg-type,misc]

    @app.task(batch=Batch(), name="scalar")  # type: ignore[arg-type]
    def scalar(n: int) -> None: ...

    with pytest.raises(InvalidArgument, match="n is a list of items"):
        scalar.enqueue(1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="in the loop or in a thread"):

        @app.task(batch=Batch(), runs_in="process")
        def process(n: list[int]) -> None: ...


def test_the_item_is_checked_when_it_is_enqueued() -> None:
    app = App()

    @app.task(batch=Batch())
    def index(doc: list[Doc]) -> None: ...

    with pytest.raises(PayloadError):
        index.s(object())  # type: ignore[arg-type]
    assert index.s(Doc(1)).payload == {"doc": {"id": 1, "title": ""}}
