"""For the tests of programs that enqueue: a sandbox on a real PostgreSQL, and an inline mode without one.

    with Sandbox(app, conn) as queue:      # everything happens in the transaction of conn; the test rolls it back
        place_order(7)                     # code under test: send_receipt.enqueue(order_id=7)
        queue.assert_enqueued(send_receipt, order_id=7)
        assert queue.drain() == {"completed": 1}

    with inline(app):                      # enqueue runs the handler at once, arguments and result as JSON and back
        assert add.enqueue(1, 2).result() == 3

The seam is where an app gets its connections (`app.connection` and its three siblings) or, inline, `app.execute`: while
the block lasts, attributes of this one app stand in front of them, and the app itself knows nothing of tests.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from unittest.mock import patch

import psycopg
import sqlalchemy as sa
from psycopg.adapt import Transformer
from psycopg.pq import Format, TransactionStatus

from pgqueue import database
from pgqueue.app import App
from pgqueue.arguments import encode_value
from pgqueue.attempt import Attempt, Ending, Runner, ending
from pgqueue.database import Call, ClaimedJob, Enqueued, JobInfo
from pgqueue.errors import InvalidArgument, LeaseLost, PayloadError, PgqueueError
from pgqueue.job import Job, set_current_job
from pgqueue.outcomes import Outcome, Stopped
from pgqueue.payload import decode
from pgqueue.task import AsyncTask, Signature, Task, span
from pgqueue.transactions import transaction_in_thread
from pgqueue.worker import _unknown

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
AnyTask = Task[..., Any] | Signature | str
MANY = 1000  # drain() takes it for an endless loop
_LISTED = 20  # jobs in a failure's message
_TEXTS = 1009  # the oid of text[]


class StoredJob(NamedTuple):
    """A job as a test sees it."""

    id: int
    queue: str
    task: str
    payload: dict[str, Any]
    status: str
    attempt: int
    run_at: datetime
    key: str | None
    error_type: str | None
    error: str | None

    def __str__(self) -> str:
        return f"{_shown(self.task, self.payload)} in queue {self.queue}: {self.status}"


class Sandbox:
    """The queue of one test, in the open transaction of one connection.

    Nothing here commits: roll the connection back after the test. What the app enqueues without `conn` goes to that
    connection too, each call in a savepoint, so that an enqueue that is refused does not break the transaction.
    """

    def __init__(self, app: App, conn: psycopg.Connection[Any]) -> None:
        if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
            raise InvalidArgument("this connection commits each statement: give the sandbox one without autocommit")
        self.app = app
        self.conn = conn
        self.worker_id = 0
        names = ("connection", "aconnection", "engine", "aengine")
        self._patch = patch.multiple(app, **{name: getattr(self, name) for name in names})

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    # -- what the app gets instead of its pools

    @contextmanager
    def connection(self, _still_wanted: object = None) -> Iterator[psycopg.Connection[Any]]:
        with closing(self._borrow()) as borrowed:
            yield borrowed

    @asynccontextmanager
    async def aconnection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        with closing(self._borrow()) as borrowed:
            yield _AsyncBorrowed(borrowed)

    def engine(self) -> sa.Engine:
        return self._engine

    def aengine(self) -> AsyncEngine:
        from sqlalchemy.ext.asyncio import create_async_engine

        async def connect() -> _AsyncBorrowed:
            return _AsyncBorrowed(self._borrow())

        return create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=sa.NullPool)

    @cached_property
    def _engine(self) -> sa.Engine:
        return sa.create_engine("postgresql+psycopg://", creator=self._borrow, poolclass=sa.NullPool)

    def _borrow(self) -> Borrowed:
        with _handlers_kept(self.conn):
            return Borrowed(self.conn)

    # -- looking

    def jobs(self, task: AnyTask | None = None, /, *, queue: str | None = None, **arguments: Any) -> list[StoredJob]:
        """The jobs that are there, finished ones too, in the order of their enqueueing."""
        name, wanted = _wanted(task, arguments)
        query = f"select {', '.join(StoredJob._fields)} from pgqueue.job order by id"  # noqa: S608 - our own columns
        found = self.execute(Call(query, [], lambda rows: [StoredJob(*row) for row in rows]))
        return [
            job
            for job in found
            if name in (None, job.task) and queue in (None, job.queue) and wanted.items() <= job.payload.items()
        ]

    def assert_enqueued(
        self, task: AnyTask, /, *, count: int | None = None, queue: str | None = None, **arguments: Any
    ) -> list[StoredJob]:
        """There is such a job, or `count` of them; returns them. Arguments that are not named may be anything.

        For arguments called `count` or `queue`, and for a type checker, give a call: `assert_enqueued(task.s(7))`.
        """
        __tracebackhide__ = True
        found = self.jobs(task, queue=queue, **arguments)
        if (count is None and not found) or (count is not None and len(found) != count):
            often = "not enqueued" if not found else f"enqueued {len(found)} times"
            raise AssertionError(
                f"{_described(task, queue, arguments)} was {often}"
                f"{'' if count is None else f', expected {count}'}. {self._listed()}"
            )
        return found

    def refute_enqueued(self, task: AnyTask, /, *, queue: str | None = None, **arguments: Any) -> None:
        __tracebackhide__ = True
        if self.jobs(task, queue=queue, **arguments):
            raise AssertionError(f"{_described(task, queue, arguments)} was enqueued. {self._listed()}")

    def _listed(self) -> str:
        lines = [f"\n  {job}" for job in self.jobs()]
        more = f"\n  and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
        return f"What was enqueued:{''.join(lines[:_LISTED])}{more}" if lines else "Nothing was enqueued."

    # -- time

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass: what was scheduled within it is due now, what would have expired has.

        The clock is the database's and cannot be moved, so the rows are.
        """
        for statement in _ADVANCE:
            self.execute(Call(statement, [span(seconds, "seconds")], len))
        self._make_due(None)

    def _make_due(self, id: int | None) -> None:
        queues = self.execute(Call(_MAKE_DUE, [id], lambda rows: {row[0] for row in rows}))
        for queue in queues:
            self.execute(database.promote(queue))

    # -- running

    def drain(
        self,
        queue: str | None = None,
        *,
        with_retries: bool = False,
        raise_errors: bool = True,
        limit: int | None = None,
    ) -> Counter[str]:
        """Run what is pending, one after the other, and what that enqueues; returns how many attempts ended how:
        completed, failed, dead, snoozed, cancelled. `limit=1` runs one job.

        `with_retries`: what failed is tried again at once, until it succeeds or is dead.
        `raise_errors`: what a handler raised is recorded, as in production, and then raised here too, so that no test
        passes over a bug because it did not look at the numbers. Not raised are outcomes (`Snooze`, `Fatal`, …), which
        handlers mean, and with `with_retries` an error that is not the last.
        """
        with closing(self._claims(queue, limit)) as claims:
            return Counter(
                _drive(self.app, claimed.task, partial(self._attempt, claimed, with_retries, raise_errors))
                for claimed in claims
            )

    async def adrain(
        self,
        queue: str | None = None,
        *,
        with_retries: bool = False,
        raise_errors: bool = True,
        limit: int | None = None,
    ) -> Counter[str]:
        """`drain` for async tests: plain handlers run in a thread, as in a worker."""
        with closing(self._claims(queue, limit)) as claims:
            # Each in an asyncio task of its own, so that its current_job() does not become that of the test.
            attempts = (self._attempt(claimed, with_retries, raise_errors, False) for claimed in claims)
            return Counter([await asyncio.create_task(attempt) for attempt in attempts])

    def _claims(self, queue: str | None, limit: int | None) -> Generator[ClaimedJob]:
        # A queue of our own: the first to serve a queue makes others who want that wait for the end of its transaction.
        self.worker_id = self.execute(database.register_worker("sandbox", [f"sandbox_{os.getpid()}"], 86400))
        try:
            for _ in range(MANY if limit is None else limit):
                claimed = self.execute(database.claim(self.worker_id, [queue] if queue else self._queues(), 1))
                if not claimed:
                    return
                yield claimed[0]
            if limit is None:
                raise AssertionError(f"{MANY} jobs have run: does one enqueue itself without end? If not, give a limit")
        finally:
            self.execute(database.retire_worker(self.worker_id))

    def _queues(self) -> list[str]:
        query = "select distinct queue from pgqueue.job_live where status in ('pending', 'scheduled') order by queue"
        return self.execute(Call(query, [], lambda rows: [row[0] for row in rows]))

    async def _attempt(self, claimed: ClaimedJob, with_retries: bool, raise_errors: bool, here: bool) -> str:
        attempt = _start(self.app, claimed, self)
        outcome, error = "completed", None
        try:
            with self.connection():  # a handler that breaks the transaction breaks it only to here
                result = await _perform(self.app, attempt, here)
            if not attempt.committed:
                error = self._complete(attempt.job, result)
        except (Exception, Stopped, SystemExit) as raised:
            outcome, error = self._report(attempt.job, ending(attempt, raised)), raised
        if with_retries and outcome == "failed":
            self._make_due(claimed.id)
        elif raise_errors and error is not None and not isinstance(error, Outcome):
            raise error
        return outcome

    def _complete(self, job: Job, result: Any) -> BaseException | None:
        error = None
        try:
            result = encode_value(result, "result")
            database.encode_value(result)
        except PayloadError as unstorable:  # a worker logs it: to fail the job would do its work again
            error, result = unstorable, None
        with self.connection() as conn, conn.transaction():
            for call in job.children():
                database.execute(conn, call)
            if database.execute(conn, database.complete(job.worker_id, [(job.id, job.token)], [result])):
                raise LeaseLost(f"job {job.id} was taken from its attempt while it ran")
        return error

    def _report(self, job: Job, end: Ending) -> str:
        lease = [(job.id, job.token)]
        if end.failure is not None:
            (answer,) = self.execute(database.fail(job.worker_id, [end.failure]))
            return "failed" if answer.status in ("scheduled", "pending") else answer.status or "lost"
        if end.kind == "snoozed":
            self.execute(database.snooze(job.worker_id, lease, [end.delay]))
        elif end.kind == "throttled":
            self.execute(database.throttle(job.worker_id, lease, [end.delay]))
            return "snoozed"
        elif end.kind == "cancelled":
            self.execute(database.cancel_claimed(job.worker_id, lease, [end.reason]))
        return end.kind

    # -- what jobs say (see job.Reporter)

    def execute(self, call: Call[T]) -> T:
        with self.connection() as conn:
            return database.execute(conn, call)

    async def aexecute(self, call: Call[T]) -> T:
        return self.execute(call)

    def changed(self, job: Job) -> None:
        for call in job.unsaid():
            self.execute(call)


# --------------------------------------------------------------------------------------------- inline


@contextmanager
def inline(app: App) -> Iterator[None]:
    """Enqueueing runs the handler at once, in the caller, without a database; what it raises comes out of enqueue.

    Arguments and result become JSON and come back, so that what JSON cannot carry fails here and not in production.
    When a job should run, its key, retries and connection play no part.
    """
    runs = _Inline(app)
    with patch.multiple(app, execute=runs.execute, aexecute=runs.aexecute):
        yield


class _Inline:
    worker_id = 0

    def __init__(self, app: App) -> None:
        self._app = app
        self._finished: dict[int, JobInfo] = {}
        self._ids = itertools.count(1)

    def execute(self, call: Call[T], _conn: Any = None) -> T:
        jobs = self._jobs(call)
        for job in jobs or ():
            _drive(self._app, job.task, partial(self._run, job))
        return call.read(self._answer(call) if jobs is None else [Enqueued(job.id, True) for job in jobs])

    async def aexecute(self, call: Call[T], _conn: Any = None) -> T:
        jobs = self._jobs(call)
        for job in jobs or ():
            await asyncio.create_task(self._run(job, False))
        return call.read(self._answer(call) if jobs is None else [Enqueued(job.id, True) for job in jobs])

    def changed(self, job: Job) -> None:
        job.unsaid()

    def _jobs(self, call: Call[Any]) -> list[ClaimedJob] | None:
        """What the call would store, as a worker would claim it."""
        if (function := _function(call)) not in ("enqueue", "enqueue_many"):
            return None
        queue, task, payload = call.params[:3]
        payloads = (
            Transformer().get_loader(_TEXTS, Format.TEXT).load(payload.encode()) if "many" in function else [payload]
        )
        now = datetime.now(UTC)
        return [
            ClaimedJob(next(self._ids), 1, queue, task, decode(text), 1, 1, None, 0, 0, now, now, None)
            for text in payloads
        ]

    def _answer(self, call: Call[Any]) -> list[tuple[Any, ...]]:
        function = _function(call)
        if function == "look_up":
            found = self._finished.get(call.params[0])
            return [] if found is None else [found[1:]]
        if function in ("save_step", "load_steps"):
            return [(True,)] if function == "save_step" else []
        raise PgqueueError(f"inline() has no database, which {function} needs: test this with pgqueue.testing.Sandbox")

    async def _run(self, claimed: ClaimedJob, here: bool) -> None:
        attempt = _start(self._app, claimed, self)
        if attempt.task.execution.transactional:
            raise InvalidArgument(f"task {claimed.task} is transactional and inline() has no database: use Sandbox")
        text = database.encode_value(encode_value(await _perform(self._app, attempt, here), "result"))
        now = datetime.now(UTC)
        self._finished[claimed.id] = JobInfo(
            claimed.id, claimed.queue, claimed.task, "completed", 1, 1, None if text is None else decode(text),
            None, None, None, None, None, now, now, now, now,
        )  # fmt: skip
        for call in attempt.job.children():
            _ = self.execute(call) if here else await self.aexecute(call)


def _function(call: Call[Any]) -> str:
    """The SQL function that a call of database.py is named after."""
    found = re.search(r"pgqueue\.(\w+)\(", call.query)
    return found[1] if found else call.query


# ------------------------------------------------------------------------------------ one connection, many faces

_POINT = "pgqueue_test"
_numbers = itertools.count(1)


class Borrowed(psycopg.Connection[Any]):
    """Another face of an open connection, for code that would commit, roll back or close it.

    commit() sets a savepoint, rollback() goes back to the last one, close() gives the connection back. All faces set
    the same savepoint, and each one first a fence of its own: so no rollback passes below the face that is in use.
    """

    def __init__(self, lender: psycopg.Connection[Any]) -> None:
        super().__init__(lender.pgconn)
        self.lock = lender.lock
        self.prepare_threshold = None  # prepared statements of two faces would have the same names
        self._fence: str | None = f"{_POINT}_{next(_numbers)}"
        self.execute(f"savepoint {self._fence}; savepoint {_POINT}")

    def commit(self) -> None:
        if self._num_transactions:
            super().commit()  # raises
        if self._broken():
            self.rollback()
        self.execute(f"savepoint {_POINT}")

    def rollback(self) -> None:
        if self._num_transactions:
            super().rollback()  # raises
        if not self.closed:
            self.execute(f"rollback to {_POINT}")

    def close(self) -> None:
        fence, self._fence = self._fence, None
        if fence is not None and not self.closed:
            self.execute(f"rollback to {fence}; release {fence}" if self._broken() else f"release {fence}")

    def _broken(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.INERROR

    def __del__(self, *_: Any) -> None:
        pass  # psycopg would warn of an open connection: it is not ours


class _AsyncBorrowed(psycopg.AsyncConnection[Any]):
    """The same for async code. It waits without letting others run: so statements on one connection never overlap."""

    def __init__(self, face: Borrowed) -> None:
        with _handlers_kept(face):
            super().__init__(face.pgconn)
        self._face = face
        self.prepare_threshold = None

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return self._face.wait(gen, *args, **kwargs)

    async def commit(self) -> None:
        await super().commit() if self._num_transactions else self._face.commit()

    async def rollback(self) -> None:
        await super().rollback() if self._num_transactions else self._face.rollback()

    async def close(self) -> None:
        self._face.close()

    def __del__(self, *_: Any) -> None:
        pass


@contextmanager
def _handlers_kept(lender: psycopg.Connection[Any]) -> Iterator[None]:
    """A new face would take the notices and notifications of the old one."""
    kept = lender.pgconn.notice_handler, lender.pgconn.notify_handler
    yield
    lender.pgconn.notice_handler, lender.pgconn.notify_handler = kept


# --------------------------------------------------------------------------------------------- details

_ADVANCE = [
    "update pgqueue.job_live set run_at = greatest(run_at - $1::interval, '1970-01-02 00:00+00')"
    " where status = 'scheduled' returning 1",
    "update pgqueue.job_live set expires_at = expires_at - $1::interval"
    " where expires_at is not null and status <> 'running' returning 1",
    "update pgqueue.key_hold set held_until = held_until - $1::interval returning 1",
    "update pgqueue.queue set paused_until = paused_until - $1::interval where paused_until is not null returning 1",
]
# Due just now, in their order: a claim does not look far into the past, where a worker's hint may already be.
_MAKE_DUE = (
    "with due as (select id, row_number() over (order by run_at, id) as n from pgqueue.job_live"
    " where status = 'scheduled' and (run_at <= statement_timestamp() or id = $1::bigint))"
    " update pgqueue.job_live j"
    " set run_at = statement_timestamp() - interval '400 ms' + due.n * interval '1 microsecond'"
    " from due where j.id = due.id and j.status = 'scheduled' returning j.queue"
)


def _start(app: App, claimed: ClaimedJob, reporter: Sandbox | _Inline) -> Attempt:
    attempt = Attempt(Job(claimed, reporter), app.tasks.get(claimed.task) or _unknown(app, claimed.task))
    if claimed.timeout_seconds is not None:
        attempt.job.deadline = attempt.started_at + claimed.timeout_seconds
    return attempt


async def _perform(app: App, attempt: Attempt, here: bool) -> Any:
    """Run the handler. Resources are opened for each job: each may have an event loop of its own."""
    async with AsyncExitStack() as stack:
        opened = {kind: await made.open(stack) for kind, made in _resources(app, attempt.task).items()}
        if here:
            return _perform_here(app, attempt, opened)
        with ThreadPoolExecutor(1) as threads:
            return await Runner(app, threads, opened).run(attempt)


def _perform_here(app: App, attempt: Attempt, resources: Mapping[Any, Any]) -> Any:
    """A plain handler in the caller's thread, where a test has what belongs to a thread: Django's connections, say."""
    job, task = attempt.job, attempt.task
    set_current_job(job)
    given = {Job: job, **resources}
    injected = {name: given[kind] for name, kind in task.arguments.injected.items() if kind in given}
    arguments = {**task.arguments.decode(job.claimed.payload), **injected}
    if task.execution.transactional:
        return transaction_in_thread(app, [attempt], task.function, arguments)[0]
    return task.function(**arguments)


def _drive(app: App, name: str, attempt: Callable[[bool], Coroutine[Any, Any, T]]) -> T:
    """Run an attempt to its end from plain code, without an event loop if nothing in it needs one."""
    task = app.tasks.get(name) or _unknown(app, name)
    functions = [made.function for made in _resources(app, task).values()]
    is_async = any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in functions)
    if not (is_async or isinstance(task, AsyncTask) or app.middleware):
        try:
            contextvars.copy_context().run(attempt(True).send, None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("unreachable: nothing here waits")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(attempt(False))
    raise InvalidArgument(f"task {name} needs the event loop that runs here: await aenqueue(), or adrain() in a test")


def _resources(app: App, task: Task[Any, Any]) -> dict[Any, Any]:
    return {kind: app.resources[kind] for kind in task.arguments.injected.values() if kind in app.resources}


def _wanted(task: AnyTask | None, arguments: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The name and the arguments, as they are stored."""
    encoded = {name: encode_value(value, f"argument {name}") for name, value in arguments.items()}
    if isinstance(task, Signature):
        return task.task, {**task.payload, **encoded}
    return (task.name if isinstance(task, Task) else task), encoded


def _described(task: AnyTask, queue: str | None, arguments: Mapping[str, Any]) -> str:
    name, wanted = _wanted(task, arguments)
    return _shown(str(name), wanted) + (f" in queue {queue}" if queue else "")


def _shown(task: str, arguments: Mapping[str, Any]) -> str:
    return f"{task}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
