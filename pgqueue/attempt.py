"""One attempt: runs the handler of a claimed job, wherever that is, and says how it ended."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pgqueue import tracing
from pgqueue.batch import outcomes
from pgqueue.children import Child, ChildError, Children
from pgqueue.database import Failure
from pgqueue.errors import LeaseLost, PayloadError
from pgqueue.job import Job, set_current_job
from pgqueue.outcomes import Cancel, Fatal, RateLimited, RetryLater, Snooze, Stopped
from pgqueue.task import AsyncTask, BatchTask, Task
from pgqueue.transactions import transaction, transaction_in_thread

if TYPE_CHECKING:
    from pgqueue.app import App

TRACEBACK_CHARACTERS = 20_000
ALONE_AFTER_CRASHES = 2  # a job whose workers died so often runs in a process of its own


class Attempt:
    """A claimed job that has been started."""

    __slots__ = (
        "batch",
        "begun",
        "child",
        "committed",
        "handle",
        "hard_at",
        "hung_up",
        "job",
        "started_at",
        "task",
        "timeless",
    )

    def __init__(self, job: Job, task: Task[Any, Any]) -> None:
        self.job = job
        self.task = task
        self.handle: asyncio.Task[None] | None = None
        self.batch: list[Attempt] | None = None  # those that run in one call with it, itself included
        self.begun = False  # a task that is cancelled before its first step never runs at all
        self.child: Child | None = None  # the process that runs it, if that is not the worker's own
        self.started_at = time.monotonic()
        self.hard_at: float | None = None  # when its patience with a handler that does not stop ends
        self.timeless = False  # it may keep the worker from anything else for as long as it wants
        self.hung_up = False  # its transaction's connection, since it did not stop
        self.committed = False  # a transactional task has completed itself


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended when it did not simply succeed."""

    kind: str  # failed, snoozed, throttled, cancelled, released, lost
    failure: Failure | None = None
    delay: float = 0.0
    reason: str | None = None


class Runner:
    """Runs handlers: async ones here, plain ones in threads or processes."""

    def __init__(
        self, app: App, threads: Executor, resources: dict[Any, Any], children: Children | None = None
    ) -> None:
        self._app = app
        self._children = children
        self._threads = threads
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        self._middleware = [*([tracing.span] if tracing.is_on() else []), *app.middleware]
        # Most tasks need nothing but their arguments: a shortcut that saves 2 µs a job.
        self._plain = {
            name
            for name, task in app.tasks.items()
            if isinstance(task, AsyncTask)
            and not self._middleware
            and not task.arguments.injected
            and not task.execution.transactional
        }

    def run(self, attempt: Attempt) -> Awaitable[Any]:
        """What the handler returns, to be awaited: a coroutine more around it would cost half a microsecond."""
        job, task = attempt.job, attempt.task
        set_current_job(job)
        payload = _payload(attempt)
        if task.name in self._plain and job.claimed.crashes < ALONE_AFTER_CRASHES:
            return cast("Awaitable[Any]", task.function(**task.arguments.decode(payload)))
        run = self._in_child(attempt) or self._in_worker(attempt)
        for middleware in reversed(self._middleware):
            run = _around(middleware, job, run)
        return run()

    async def run_batch(self, attempts: list[Attempt]) -> list[Any]:
        """What the handler of a batch task returned for each, or the exception that it raised for it."""
        task = attempts[0].task
        assert isinstance(task, BatchTask)  # noqa: S101
        found: dict[Attempt, Any] = {}
        items = []
        for attempt in attempts:
            try:
                attempt.job.heartbeat()  # it may have been stopped before it began
                items.append(task.arguments.decode(_payload(attempt))[task.shape.items])
                attempt.begun = True
            except (Exception, Stopped) as error:
                found[attempt] = error
        if good := [attempt for attempt in attempts if attempt not in found]:
            jobs = [attempt.job for attempt in good]
            arguments = task.shape.arguments(items, jobs)
            arguments |= {name: self._resources[kind] for name, kind in task.arguments.injected.items()
                          if kind in self._resources}  # fmt: skip
            run: Callable[[], Awaitable[Any]] = functools.partial(self._batch_handler, good, arguments)
            for middleware in reversed(self._middleware):
                run = _around(middleware, jobs[0], run)
            try:
                found.update(zip(good, outcomes(await run(), jobs), strict=True))
            except BaseException as error:  # even SystemExit
                found.update(dict.fromkeys(good, error))
        return [found[attempt] for attempt in attempts]

    async def _batch_handler(self, attempts: list[Attempt], arguments: dict[str, Any]) -> Any:
        task = attempts[0].task
        assert isinstance(task, BatchTask)  # noqa: S101
        function = task.shape.function
        if isinstance(task, AsyncTask):
            if not task.execution.transactional:
                return await function(**arguments)
            async with transaction(self._app, attempts) as given:
                given.results = outcomes(await function(**arguments, **given.arguments), [a.job for a in attempts])
            return given.results
        context = contextvars.copy_context()
        if task.execution.transactional:
            return await self._in_thread(context, transaction_in_thread, self._app, attempts, function, arguments)
        return await self._in_thread(context, function, **arguments)

    def _in_child(self, attempt: Attempt) -> Callable[[], Awaitable[Any]] | None:
        task, children = attempt.task, self._children
        if children is None or not children.available or task.name not in self._app.tasks:
            return None
        if attempt.job.claimed.crashes >= ALONE_AFTER_CRASHES:
            return lambda: children.run_alone(attempt)
        return (lambda: children.run(attempt)) if task.execution.runs == "process" else None

    def _in_worker(self, attempt: Attempt) -> Callable[[], Awaitable[Any]]:
        job, task = attempt.job, attempt.task
        arguments = dict(task.arguments.decode(job.claimed.payload))  # what is injected is not part of the payload
        for name, annotation in task.arguments.injected.items():
            if annotation is Job:
                arguments[name] = job
            elif annotation in self._resources:
                arguments[name] = self._resources[annotation]
        return lambda: self._handler(attempt, arguments)

    async def _handler(self, attempt: Attempt, arguments: dict[str, Any]) -> Any:
        task = attempt.task
        if isinstance(task, AsyncTask):
            if Job in task.arguments.injected.values():
                await attempt.job.aparents()  # reading them later would block the loop
            if not task.execution.transactional:
                return await task.function(**arguments)
            async with transaction(self._app, [attempt]) as given:
                given.results = [await task.function(**arguments, **given.arguments)]
            return given.results[0]
        context = contextvars.copy_context()
        if task.execution.transactional:
            (result,) = await self._in_thread(
                context, transaction_in_thread, self._app, [attempt], task.function, arguments
            )
            return result
        return await self._in_thread(context, task.function, **arguments)

    async def _in_thread(
        self, context: contextvars.Context, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        def call() -> Any:
            try:
                return context.run(function, *args, **kwargs)
            except StopIteration as error:
                # A future cannot carry it: whoever awaits it would wait for ever.
                raise RuntimeError("the handler raised StopIteration") from error

        return await self._loop.run_in_executor(self._threads, call)


def _payload(attempt: Attempt) -> dict[str, Any]:
    """The payload, if the job may run at all."""
    claimed = attempt.job.claimed
    if attempt.task.execution.at_most_once and claimed.attempt > 1:
        # Who enqueued it by name or in SQL need not know that it may have one attempt only.
        raise Fatal("it has been started before, and runs at most once")
    if type(claimed.payload) is not dict:
        raise PayloadError(f"the payload cannot be read: {getattr(claimed.payload, 'reason', claimed.payload)}")
    return claimed.payload


def _around(middleware: Any, job: Job, run: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return lambda: middleware(job, run)


def ending(attempt: Attempt, error: BaseException) -> Ending:
    """What becomes of an attempt whose handler raised."""
    job, rules = attempt.job, attempt.task.execution
    if isinstance(error, LeaseLost) and attempt.batch and job.stop_reason is None and not rules.at_most_once:
        return Ending("released")  # what the batch wrote is rolled back, because another of its jobs is somebody else's
    if job.stop_reason == "lease_lost" or isinstance(error, LeaseLost):
        return Ending("lost")
    if isinstance(error, ChildError):
        failed = error.failure and error.failure._replace(fatal=error.failure.fatal or rules.at_most_once)
        return Ending(error.kind, failed, error.delay, error.reason)
    if isinstance(error, (asyncio.CancelledError, Stopped)):
        if job.stop_reason == "cancelled":
            return Ending("cancelled")
        if job.stop_reason == "shutdown":
            if not rules.at_most_once or not attempt.begun:
                return Ending("released")
            error = Fatal("its worker shut down while it ran, and it runs at most once")
        if job.stop_reason == "timeout":
            error = TimeoutError(f"timed out after {job.claimed.timeout_seconds} s")
    if isinstance(error, (Snooze, RateLimited)):
        kind = "throttled" if isinstance(error, RateLimited) else "snoozed"
        return Ending(kind, delay=error.seconds, reason=str(error))
    if isinstance(error, Cancel):
        return Ending("cancelled", reason=str(error) or "cancelled by its handler")
    fatal = (
        rules.at_most_once
        or isinstance(error, Fatal)
        or (rules.never_retry != () and isinstance(error, rules.never_retry))
    )
    retry_in = error.seconds if isinstance(error, RetryLater) else None
    if retry_in is None:
        retry_in = next((seconds for kind, seconds in rules.retry_in if isinstance(error, kind)), None)
    return Ending("failed", failure(job, error, retry_in, fatal))


def failure(job: Job, error: BaseException, retry_in: float | None = None, fatal: bool = False) -> Failure:
    try:
        message = str(error)
    except Exception:  # a __str__ of the user's
        message = "(its message cannot be shown)"
    return Failure(
        job.id, job.token, message or type(error).__name__, type(error).__name__, _traceback(error), retry_in, fatal
    )


def _traceback(error: BaseException) -> str | None:
    if error.__traceback__ is None:
        return None
    try:
        text = "".join(traceback.format_exception(error, limit=-50))
    except Exception:
        return None
    # The end says what happened; the beginning where it came from.
    half = TRACEBACK_CHARACTERS // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n…\n{text[-half:]}"
