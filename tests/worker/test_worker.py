"""What a worker does with its jobs, in this process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pgqueue import (
    INJECTED,
    App,
    Cancel,
    Fatal,
    Job,
    JobEvent,
    RateLimited,
    Retry,
    RetryLater,
    Settings,
    Snooze,
    Worker,
    current_job,
)
from pgqueue import database as db
from tests.support import Conn, claim_one, enqueue, job, lose, rows, value, wait_until, worker
from tests.worker.running import run_burst

NOW = Retry.fixed(0)


# ---------------------------------------------------------------------------------------------- running


async def test_async_and_plain_handlers_run_and_their_results_are_kept(app: App, conn: Conn) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def half(n: int) -> float:
        assert threading.current_thread() is not threading.main_thread()
        return n / 2

    doubled, halved = await double.aenqueue(21), await half.aenqueue(3)
    await run_burst(app)
    assert (await doubled.aresult(5), await halved.aresult(5)) == (42, 1.5)


async def test_many_jobs_run_in_order_with_one_slot(app: App) -> None:
    seen: list[int] = []

    @app.task
    async def note(n: int) -> None:
        seen.append(n)

    await note.aenqueue_many([note.s(n) for n in range(500)])
    await run_burst(app, concurrency=1)
    assert seen == list(range(500))


async def test_the_job_is_given_by_annotation_and_found_below(app: App) -> None:
    @app.task(queue="other", priority=7)
    async def who(job: Job = INJECTED) -> list[Any]:
        assert current_job() is job
        return [job.id, job.task, job.queue, job.attempt, job.priority, job.cancel_requested]

    handle = await who.aenqueue()
    await run_burst(app, queues={"other": 1})
    assert await handle.aresult(5) == [handle.id, "who", "other", 1, 7, False]


async def test_context_of_one_job_does_not_leak_into_the_next(app: App) -> None:
    import contextvars

    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    @app.task
    async def remember(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        return before

    handles = await remember.aenqueue_many([remember.s("a"), remember.s("b")])
    await run_burst(app, concurrency=1)
    assert [await handle.aresult(5) for handle in handles] == ["none", "none"]


async def test_a_result_that_cannot_be_stored_does_not_undo_the_work(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def odd() -> object:
        return object()

    handle = await odd.aenqueue()
    await run_burst(app)
    assert (await handle.ainfo()).status == "completed"
    assert "cannot be stored" in caplog.text


# --------------------------------------------------------------------------------------------- outcomes


@pytest.mark.parametrize(
    ("raised", "status", "attempt"),
    [
        (ValueError("boom"), "dead", 2),
        (Fatal("pointless"), "dead", 1),
        (Cancel("not needed"), "cancelled", 1),
        (Snooze(60), "scheduled", 0),
        (RateLimited(timedelta(minutes=1)), "scheduled", 0),
        (RetryLater(60, "later"), "scheduled", 1),
        (KeyError("rule"), "dead", 1),
        (LookupError("rule"), "scheduled", 1),
        (SystemExit(3), "dead", 2),
        (KeyboardInterrupt(), "dead", 2),
        (asyncio.CancelledError(), "dead", 2),
        (ValueError("NUL \0 and \ud800"), "dead", 2),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else str(each),
)
@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_what_a_handler_raises_decides_how_its_attempt_ends(
    app: App, conn: Conn, raised: BaseException, status: str, attempt: int, kind: str
) -> None:
    if kind == "thread" and isinstance(raised, asyncio.CancelledError):
        return  # nobody raises that in a thread

    if kind == "loop":

        @app.task(max_attempts=2, retry=NOW, never_retry=KeyError, retry_in={LookupError: 60})
        async def handler() -> None:
            raise raised
    else:

        @app.task(max_attempts=2, retry=NOW, never_retry=KeyError, retry_in={LookupError: 60}, name="handler")
        def plain() -> None:
            raise raised

    handle = await app.aenqueue("handler")
    await run_burst(app)
    found = job(conn, handle.id)
    assert (found["status"], found["attempt"]) == (status, attempt)


async def test_a_failed_attempt_leaves_its_traceback(app: App, conn: Conn) -> None:
    @app.task(max_attempts=1)
    async def handler() -> None:
        raise ValueError("here")

    handle = await handler.aenqueue()
    await run_burst(app)
    (attempt,) = rows(conn, "select error, error_type, traceback from pgqueue.job_attempt where job_id = %s", handle.id)
    assert (attempt["error"], attempt["error_type"]) == ("here", "ValueError")
    assert "in handler" in attempt["traceback"]


async def test_a_payload_that_does_not_fit_fails_and_the_worker_goes_on(app: App, conn: Conn) -> None:
    @app.task(max_attempts=1)
    async def handler(n: int) -> int:
        return n

    db.execute(conn, db.enqueue("default", "handler", {"m": 1}, max_attempts=1))
    conn.execute("select pgqueue.enqueue('default', 'handler', '{\"n\": 1e5000}', max_attempts => 1)")
    good = await handler.aenqueue(3)
    await run_burst(app)
    assert await good.aresult(5) == 3
    found = rows(conn, "select error_type from pgqueue.job where status = 'dead'")
    assert [each["error_type"] for each in found] == ["PayloadError", "PayloadError"]


async def test_an_attempt_that_takes_too_long_is_cancelled_and_retried(app: App, conn: Conn) -> None:
    @app.task(timeout=1, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    handle = await slow.aenqueue()
    await run_burst(app)
    assert job(conn, handle.id)["error"] == "timed out after 1 s"


async def test_at_most_once_means_one_attempt(app: App, conn: Conn) -> None:
    @app.task(at_most_once=True)
    async def once() -> None:
        raise ValueError

    handle = await once.aenqueue()
    await run_burst(app)
    assert (job(conn, handle.id)["status"], job(conn, handle.id)["attempt"]) == ("dead", 1)


async def test_at_most_once_holds_for_who_enqueues_without_knowing_it(app: App, conn: Conn) -> None:
    ran: list[int] = []

    @app.task(at_most_once=True)
    async def once(job: Job = INJECTED) -> None:
        ran.append(job.id)
        raise ValueError

    lost = enqueue(conn, queue="default", task="once", max_attempts=5)
    gone = worker(conn, ["default"])
    claim_one(conn, gone, ["default"])
    lose(conn, gone)
    assert db.execute(conn, db.sweep()).retried == 1
    failing = enqueue(conn, queue="default", task="once", max_attempts=5)
    await run_burst(app)
    assert ran == [failing]
    assert {(job(conn, id)["status"], job(conn, id)["error_type"]) for id in (failing, lost)} == {
        ("dead", "ValueError"), ("dead", "Fatal")
    }  # fmt: skip


# ------------------------------------------------------------------------------- steps, progress, children


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_a_finished_step_is_not_run_again_by_a_retry(app: App, conn: Conn, kind: str) -> None:
    ran: list[str] = []

    def charge(amount: int) -> dict[str, int]:
        ran.append("charge")
        return {"charged": amount}

    async def acharge(amount: int) -> dict[str, int]:
        return charge(amount)

    if kind == "loop":

        @app.task(retry=NOW)
        async def pay(job: Job = INJECTED) -> dict[str, int]:
            receipt = await job.step("charge", acharge, 7)
            if job.attempt < 3:
                raise ConnectionError
            return receipt
    else:

        @app.task(retry=NOW, name="pay")
        def pay_in_thread(job: Job = INJECTED) -> dict[str, int]:
            receipt = job.step("charge", charge, 7)
            if job.attempt < 3:
                raise ConnectionError
            return receipt

    handle = await app.aenqueue("pay")
    await run_burst(app)
    assert await handle.aresult(5) == {"charged": 7}
    assert ran == ["charge"]


async def test_progress_and_log_lines_are_stored(app: App, conn: Conn) -> None:
    @app.task
    def talk(job: Job = INJECTED) -> None:
        job.log("begun")
        job.progress(0.25)
        job.progress({"rows": 7})
        job.log("careful", "warning")

    handle = await talk.aenqueue()
    await run_burst(app)
    assert job(conn, handle.id)["progress"] == {"rows": 7}
    lines = rows(conn, "select level, message from pgqueue.job_log where job_id = %s order by logged_at", handle.id)
    assert [(line["level"], line["message"]) for line in lines] == [("info", "begun"), ("warning", "careful")]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
async def test_children_exist_exactly_if_the_attempt_completes(
    app: App, conn: Conn, fails: bool, transactional: bool
) -> None:
    @app.task(queue="children")
    async def child(n: int) -> None: ...

    async def spawn(job: Job) -> None:
        for n in range(3):
            job.enqueue(child.s(n))
        if fails:
            raise ValueError

    if transactional:

        @app.task(name="parent", transactional=True, max_attempts=1)
        async def writer(job: Job = INJECTED, conn: psycopg.AsyncConnection[Any] = INJECTED) -> None:
            await spawn(job)
    else:

        @app.task(name="parent", max_attempts=1)
        async def plain(job: Job = INJECTED) -> None:
            await spawn(job)

    handle = await app.aenqueue("parent")
    await run_burst(app)
    assert job(conn, handle.id)["status"] == ("dead" if fails else "completed")
    made = rows(conn, "select payload from pgqueue.job where queue = 'children' order by id")
    assert [each["payload"]["n"] for each in made] == ([] if fails else [0, 1, 2])


async def test_a_child_that_cannot_be_enqueued_fails_the_attempt(app: App, conn: Conn) -> None:
    @app.task(queue="no blanks allowed")
    async def child() -> None: ...

    @app.task(max_attempts=1)
    async def parent(job: Job = INJECTED) -> None:
        job.enqueue(child.s())

    handle = await parent.aenqueue()
    await run_burst(app)
    assert (job(conn, handle.id)["status"], job(conn, handle.id)["error_type"]) == ("dead", "InvalidArgument")


# ---------------------------------------------------------------------------------- transactional tasks


def take_over(conn: Conn, id: int) -> None:
    """What a sweep and another worker do to a job whose worker slept."""
    thief = worker(conn, ["default"])
    with conn.transaction():  # at once: the worker under test would claim it again
        conn.execute("update pgqueue.job_live set worker_id = null, status = 'pending' where id = %s", [id])
        claim_one(conn, thief, ["default"])


@pytest.mark.parametrize("kind", ["psycopg", "psycopg in a thread", "SQLAlchemy", "SQLAlchemy in a thread"])
@pytest.mark.parametrize("stale", [False, True])
async def test_writes_and_completion_commit_together_or_not_at_all(
    app: App, conn: Conn, kind: str, stale: bool
) -> None:
    conn.execute("drop table if exists effect")
    conn.execute("create table effect (job_id bigint)")
    insert = "insert into effect values ({})"

    def steal() -> None:
        if stale:
            take_over(conn, current_job().id)

    if kind == "psycopg":

        @app.task(name="write", transactional=True)
        async def one(conn: psycopg.AsyncConnection[Any] = INJECTED) -> str:
            await conn.execute(insert.format(current_job().id))
            await asyncio.to_thread(steal)
            return "written"
    elif kind == "psycopg in a thread":

        @app.task(name="write", transactional=True)
        def two(conn: psycopg.Connection[Any] = INJECTED) -> str:
            conn.execute(insert.format(current_job().id))
            steal()
            return "written"
    elif kind == "SQLAlchemy":

        @app.task(name="write", transactional=True)
        async def three(session: AsyncSession = INJECTED) -> str:
            await session.execute(text(insert.format(current_job().id)))
            await session.commit()  # ends a savepoint, not the transaction
            await asyncio.to_thread(steal)
            return "written"
    else:

        @app.task(name="write", transactional=True)
        def four(session: Session = INJECTED) -> str:
            session.execute(text(insert.format(current_job().id)))
            session.commit()
            steal()
            return "written"

    handle = await app.aenqueue("write")
    await run_burst(app)
    if stale:
        assert value(conn, "select count(*) from effect") == 0
        assert (job(conn, handle.id)["status"], job(conn, handle.id)["token"]) == ("running", 2)
    else:
        assert value(conn, "select count(*) from effect") == 1
        assert await handle.aresult(5) == "written"


async def test_a_transactional_handler_that_raises_leaves_nothing(app: App, conn: Conn) -> None:
    conn.execute("drop table if exists effect")
    conn.execute("create table effect (job_id bigint)")

    @app.task(transactional=True, retry=NOW)
    async def write(conn: psycopg.AsyncConnection[Any] = INJECTED, job: Job = INJECTED) -> None:
        await conn.execute("insert into effect values (%s)", [job.id])
        if job.attempt < 3:
            raise ValueError

    await write.aenqueue()
    await run_burst(app)
    assert value(conn, "select count(*) from effect") == 1


async def test_a_transactional_task_without_a_connection_says_what_to_write(app: App, conn: Conn) -> None:
    @app.task(transactional=True, max_attempts=1)
    async def write() -> None: ...

    handle = await write.aenqueue()
    await run_burst(app)
    assert "conn: psycopg.AsyncConnection = INJECTED" in job(conn, handle.id)["error"]


# --------------------------------------------------------------------------- resources, middleware, hooks


@dataclass
class Client:
    name: str


@dataclass
class Cache:
    size: int


async def test_resources_are_opened_once_and_closed(app: App) -> None:
    events: list[str] = []

    @app.resource
    async def client() -> AsyncIterator[Client]:
        events.append("open")
        yield Client("http")
        events.append("close")

    @app.resource
    def cache() -> Iterator[Cache]:
        yield Cache(3)
        events.append("close cache")

    @app.task
    async def use(client: Client = INJECTED, cache: Cache = INJECTED) -> list[Any]:
        events.append("use")
        return [client.name, cache.size]

    handles = await use.aenqueue_many([use.s(), use.s()])
    await run_burst(app)
    assert [await handle.aresult(5) for handle in handles] == [["http", 3]] * 2
    assert events == ["open", "use", "use", "close cache", "close"]


async def test_middleware_goes_around_every_handler(app: App) -> None:
    events: list[str] = []

    @app.around
    async def outer(job: Job, run: Callable[[], Awaitable[Any]]) -> Any:
        events.append(f"before {job.task}")
        try:
            return await run()
        finally:
            events.append("after")

    @app.around
    async def inner(job: Job, run: Callable[[], Awaitable[Any]]) -> Any:
        return (await run()) + 1

    @app.task
    def one() -> int:
        events.append("run")
        return 1

    handle = await one.aenqueue()
    await run_burst(app)
    assert await handle.aresult(5) == 2
    assert events == ["before one", "run", "after"]


async def test_hooks_hear_what_happens_and_do_no_harm(app: App) -> None:
    heard: list[tuple[str, str, int]] = []

    for event in ("claimed", "completed", "failed", "dead", "snoozed", "cancelled"):

        @app.on(event)
        async def hook(event: JobEvent) -> None:
            heard.append((event.event, event.task, event.attempt))
            raise RuntimeError("a hook of the user's")

    @app.task
    async def good() -> None: ...

    @app.task(max_attempts=2, retry=NOW)
    async def bad() -> None:
        raise ValueError

    await good.aenqueue()
    await bad.aenqueue()
    await run_burst(app, concurrency=1)
    await asyncio.sleep(0)
    assert heard == [
        ("claimed", "good", 1), ("completed", "good", 1), ("claimed", "bad", 1), ("failed", "bad", 1),
        ("claimed", "bad", 2), ("dead", "bad", 2),
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------- self-repair


async def test_a_claim_whose_answer_was_lost_is_handed_back(
    app: App, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.RECONCILE_SECONDS", 0.0)

    @app.task
    async def work() -> int:
        return 1

    running = Worker(app, Settings(poll_seconds=0.1))
    task = asyncio.create_task(running.run())
    await running.started.wait()
    lost = db.execute(conn, db.enqueue("elsewhere", "work")).id
    # The worker's own id, on another connection: nobody tells the worker what was claimed.
    assert claim_one(conn, running.worker_id, ["elsewhere"]).id == lost
    seen = await work.aenqueue()
    assert await seen.aresult(10) == 1
    other = await work.aenqueue()
    assert await other.aresult(10) == 1
    await asyncio.to_thread(wait_until, lambda: job(conn, lost)["status"] == "pending")
    assert job(conn, lost)["attempt"] == 0
    running.stop()
    assert await task == 0


@pytest.mark.parametrize("kind", ["result", "failure", "family"])
async def test_a_report_that_is_repeated_because_its_answer_was_lost_is_not_said_to_have_lost_its_lease(
    app: App, conn: Conn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    said: list[str] = []

    async def deaf(conn: Any, call: db.Call[Any]) -> Any:
        answer = await execute(conn, call)
        if REPORTS[kind] in call.query and call.params[1] != "{}" and not said:
            said.append("report")
            raise psycopg.errors.AdminShutdown("terminating connection")
        return answer

    execute = db.aexecute

    @app.task(max_attempts=1)
    async def work(job: Job = INJECTED) -> None:
        if kind == "failure":
            raise ValueError
        if kind == "family":
            job.enqueue(child.s())

    @app.task
    async def child() -> None: ...

    @app.on("lease_lost")
    def lost(event: JobEvent) -> None:
        said.append("lease_lost")

    handle = await work.aenqueue()
    if kind == "family":
        monkeypatch.setattr("psycopg.AsyncTransaction.__aexit__", _deaf_commit(said))
    else:
        monkeypatch.setattr(db, "aexecute", deaf)
    await run_burst(app)
    assert len(said) == 1
    assert job(conn, handle.id)["status"] == ("dead" if kind == "failure" else "completed")
    assert value(conn, "select count(*) from pgqueue.job") == (2 if kind == "family" else 1)
    assert "no answer had come" in caplog.text
    assert "their leases were lost" not in caplog.text


REPORTS = {"result": "pgqueue.complete_and_claim(", "failure": "pgqueue.fail("}


def _deaf_commit(said: list[str]) -> Any:
    """The first commit is carried out, and its answer lost."""
    leave = psycopg.AsyncTransaction.__aexit__

    async def left(self: psycopg.AsyncTransaction, *error: Any) -> Any:
        answer = await leave(self, *error)
        if not said and error == (None, None, None):
            said.append("commit")
            raise psycopg.errors.AdminShutdown("terminating connection")
        return answer

    return left


async def test_what_was_taken_ahead_is_handed_back_when_handlers_become_slow(
    app: App, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.BUFFER_SECONDS", 0.1)
    free = asyncio.Event()

    @app.task
    async def work(n: int) -> None:
        if n >= 2000:
            await free.wait()

    await work.aenqueue_many([work.s(n) for n in range(3000)])
    running = Worker(app, Settings(concurrency=5))
    task = asyncio.create_task(running.run())
    await asyncio.to_thread(
        wait_until,
        lambda: (
            value(conn, "select count(*) from pgqueue.job where status = 'running'") == 5
            and value(conn, "select count(*) from pgqueue.job where status = 'completed'") == 2000
        ),
    )
    free.set()
    await asyncio.to_thread(
        wait_until, lambda: value(conn, "select count(*) from pgqueue.job where status = 'completed'") == 3000
    )
    running.stop()
    await task
    assert value(conn, "select max(attempt) from pgqueue.job") == 1


async def test_what_was_taken_ahead_is_not_started_after_the_lease_but_handed_back(
    app: App, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.BUFFER_SECONDS", 60.0)
    over, free, started = [False], asyncio.Event(), list[int]()
    is_over = Worker._lease_is_over
    monkeypatch.setattr(Worker, "_lease_is_over", lambda self: over[0] or is_over(self))

    @app.task
    async def work(n: int) -> None:
        started.append(n)
        await free.wait()

    running = Worker(app, Settings(concurrency=1, poll_seconds=0.1))
    running._rate = 100.0  # so that it takes ahead
    first, second = await work.aenqueue_many([work.s(n) for n in (1, 2)])
    task = asyncio.create_task(running.run())
    await asyncio.to_thread(wait_until, lambda: started == [1] and len(running._buffer) == 1)
    over[0] = True
    free.set()
    await asyncio.to_thread(wait_until, lambda: job(conn, second.id)["status"] == "pending")
    assert (started, job(conn, second.id)["attempt"]) == ([1], 0)
    over[0] = False
    await second.aresult(10)
    running.stop()
    assert await task == 0
    assert (started, job(conn, first.id)["status"]) == ([1, 2], "completed")


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.SerializationFailure,  # 40001
        psycopg.errors.DeadlockDetected,  # 40P01
        psycopg.errors.LockNotAvailable,  # 55P03
        psycopg.errors.QueryCanceled,  # 57014
        psycopg.errors.DiskFull,  # 53100
        psycopg.errors.CannotConnectNow,  # 57P03
    ],
)
async def test_an_error_that_passes_costs_a_worker_no_job_and_no_attempt(
    app: App, conn: Conn, monkeypatch: pytest.MonkeyPatch, error: type[psycopg.Error]
) -> None:
    execute, raised = db.aexecute, Counter[str]()

    async def faulty(conn: Any, call: db.Call[Any]) -> Any:
        name = call.query.partition("pgqueue.")[2].partition("(")[0]
        if raised[name] < 7:  # more often than it asks at once
            raised[name] += 1
            raise error("it will pass")
        return await execute(conn, call)

    @app.task(max_attempts=1)
    async def work(n: int) -> int:
        if n == 2:
            raise Snooze(3600)
        if n == 3:
            raise ValueError
        return n

    handles = await work.aenqueue_many([work.s(n) for n in range(4)])
    monkeypatch.setattr(db, "aexecute", faulty)
    await run_burst(app)
    found = [job(conn, handle.id) for handle in handles]
    assert [each["status"] for each in found] == ["completed", "completed", "scheduled", "dead"]
    assert [each["attempt"] for each in found] == [1, 1, 0, 1]
    assert set(raised) >= {"register_worker", "complete_and_claim", "fail", "snooze", "retire_worker"}


async def test_a_worker_that_was_declared_lost_abandons_its_jobs_and_registers_again(
    app: App, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[bool] = []

    @app.task
    async def wait(job: Job = INJECTED) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(job.lease_lost)

    handle = await wait.aenqueue()
    running = Worker(app, Settings(queues={"default": 1}))
    task = asyncio.create_task(running.run())
    await asyncio.to_thread(wait_until, lambda: job(conn, handle.id)["status"] == "running")
    first = running.worker_id
    conn.execute("select pgqueue.pause('default')")
    conn.execute(
        "update pgqueue.worker set lost_at = now(), heartbeat_at = now() - interval '1 h' where id = %s", [first]
    )
    db.execute(conn, db.sweep())
    await asyncio.to_thread(wait_until, lambda: stopped == [True], 20)
    await asyncio.to_thread(wait_until, lambda: running.worker_id != first)
    assert "registering again" in caplog.text
    running.stop()
    await task
    db.execute(conn, db.sweep())  # the first may have found the worker's own sweep at work
    assert (job(conn, handle.id)["status"], job(conn, handle.id)["worker_id"]) == ("pending", None)


async def test_starting_and_stopping_leaves_nothing_behind(app: App, conn: Conn) -> None:
    @app.task
    def work() -> None: ...

    def left() -> tuple[int, int]:
        # asyncio keeps the threads of to_thread() for itself.
        threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio")]
        return len(list(Path("/proc/self/fd").iterdir())), len(threads)

    await work.aenqueue()
    await run_burst(app)
    before = left()
    for _ in range(10):
        await work.aenqueue()
        await run_burst(app)
    await app.aclose()
    with suppress(AssertionError):
        await asyncio.to_thread(wait_until, lambda: left() <= before, 5)
    files, threads = left()
    assert files <= before[0]
    assert threads <= before[1]
    # A backend whose client has left is listed for a moment more.
    ours = (
        "select count(*) from pg_stat_activity where application_name like 'pgqueue%%' and datname = current_database()"
    )
    await asyncio.to_thread(wait_until, lambda: value(conn, ours) == 0)
    assert rows(conn, "select 1 from pgqueue.worker") == []


async def test_weights_decide_how_often_a_queue_is_first(app: App) -> None:
    chosen = Worker(app, Settings(queues={"often": 9, "seldom": 1}))
    firsts = [chosen._order()[0] for _ in range(2000)]
    assert 0.8 < firsts.count("often") / 2000 < 0.98
    await chosen._beat.stop()


async def test_the_database_may_be_read_only_for_a_while(
    app: App, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    @app.task
    async def work() -> int:
        return 1

    running = Worker(app, Settings(poll_seconds=0.1))
    task = asyncio.create_task(running.run())
    await running.started.wait()
    name = conn.info.dbname
    conn.execute(f"alter database {name} set default_transaction_read_only = on")
    try:
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'pgqueue worker' and datname = current_database()"
        )
        await asyncio.to_thread(wait_until, lambda: "read-only" in caplog.text)
    finally:
        conn.execute(f"alter database {name} reset default_transaction_read_only")
    handle = db.execute(conn, db.enqueue("default", "work"))
    await asyncio.to_thread(wait_until, lambda: job(conn, handle.id)["status"] == "completed")
    running.stop()
    await task
    assert caplog.text.count("read-only") == 1
    assert "is back after" in caplog.text
