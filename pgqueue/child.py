"""A child process of a worker: runs one job after another, and says what became of each. See children.py.

The main thread runs handlers. A second one listens to the worker, so that a handler can be told to stop; when the
worker is gone it ends the process. A third one stores progress and log lines, at most twice a second.

Resources are opened once per child, when a task first asks for them; plain functions and generators only, as there is
no event loop. A job that came here because its workers died (`Children.run_alone`) may be of any kind, and has one.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import json
import logging
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pgqueue import database, logs
from pgqueue.app import App, load
from pgqueue.arguments import encode_value
from pgqueue.attempt import Attempt, Ending, Runner, ending, failure
from pgqueue.children import LENGTH, pack
from pgqueue.database import Call, ClaimedJob
from pgqueue.errors import InvalidArgument, PayloadError, PgqueueError
from pgqueue.job import Graph, Job, log_fields, set_current_job
from pgqueue.link import apersist, persist
from pgqueue.outcomes import Stopped
from pgqueue.resources import Resource
from pgqueue.retry import Retry
from pgqueue.task import AsyncTask, Signature

logger = logging.getLogger("pgqueue.worker")
T = TypeVar("T")

SAY_SECONDS = 0.5
EXIT_ORPHANED = 1


def main() -> None:
    _die_with_the_worker()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # systemd, for one, sends it to all processes of a service. Not SIG_IGN: what a handler starts would inherit it.
        signal.signal(number, lambda *_: None)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    try:
        loop = JobLoop(connection)
    except (EOFError, OSError):
        os._exit(EXIT_ORPHANED)  # the worker was gone before it said anything
    loop.run()


class JobLoop:
    """The process, and what its jobs speak through (see job.Reporter)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        hello = self._receive()
        sys.path[:] = hello["path"]
        if hello["logs"] is not None:
            logs.set_up(*hello["logs"])
        self._location: str = hello["app"]
        self._conninfo: str = hello["conninfo"]
        self._app: App | None = None
        self._resources: dict[Any, Any] = {}
        self._closing = ExitStack()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._job: Job | None = None
        self._cancel: Callable[[], object] | None = None
        self._said = threading.Event()
        self._saying = threading.Lock()
        self.worker_id = 0
        for target in (self._listen, self._speak):
            threading.Thread(target=target, daemon=True).start()

    def run(self) -> None:
        with self._closing:
            while (job := self._jobs.get()) is not None:
                me = os.getpid()
                answer = self._attempt(job)
                if os.getpid() != me:
                    os._exit(0)  # the handler has forked, and this is the copy: it must not answer for us
                self._say(job)
                for stream in (sys.stdout, sys.stderr):
                    with suppress(OSError, ValueError):
                        stream.flush()
                self._connection.sendall(pack({**answer, "id": job.id, "token": job.token}))

    # -- one attempt

    def _attempt(self, job: Job) -> dict[str, Any]:
        attempt: Attempt | None = None
        try:
            app = self._load()
            if (task := app.tasks.get(job.task)) is None:
                raise PgqueueError(f"no task named {job.task!r} in {self._location}, as this process has imported it")
            attempt = Attempt(job, task)
            attempt.begun = True
            if job.claimed.timeout_seconds is not None:
                job.deadline = time.monotonic() + job.claimed.timeout_seconds
            self._connection.sendall(pack({"started": True, "id": job.id, "token": job.token}))
            if task.execution.runs == "process":
                result = contextvars.copy_context().run(self._call, app, attempt)
            else:
                result = asyncio.run(self._call_alone(app, attempt))
            children = [_packed(child) for child in job.added()]
        except BaseException as error:
            # Even SystemExit: a handler ends its attempt, never its process.
            end = ending(attempt, error) if attempt is not None else Ending("failed", failure(job, error))
            committed = attempt is not None and attempt.committed
            return {"kind": end.kind, "failure": end.failure, "delay": end.delay, "reason": end.reason,
                    "committed": committed}  # fmt: skip
        return {"result": _storable(job, result), "children": children, "committed": attempt.committed}

    def _load(self) -> App:
        if self._app is None:
            app = load(self._location)
            app.use(self._conninfo)
            app.middleware.clear()  # it stays in the worker
            self._closing.callback(app.close)
            self._app = app
        return self._app

    def _call(self, app: App, attempt: Attempt) -> Any:
        job, task = attempt.job, attempt.task
        set_current_job(job)
        arguments = dict(task.arguments.decode(job.claimed.payload))
        for name, annotation in task.arguments.injected.items():
            if annotation is Job:
                arguments[name] = job
            elif annotation in app.resources:
                if annotation not in self._resources:
                    self._resources[annotation] = self._open(app.resources[annotation], task.name)
                arguments[name] = self._resources[annotation]
        with _limited(task.execution.memory_limit):
            return task.function(**arguments)

    def _open(self, wanted: Resource, task: str) -> Any:
        function = wanted.function
        if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
            raise InvalidArgument(
                f"task {task} runs in a process, where there is no event loop: "
                f"the resource {function.__name__} must be a plain function or generator"
            )
        if inspect.isgeneratorfunction(function):
            return self._closing.enter_context(contextmanager(function)())
        return function()

    async def _call_alone(self, app: App, attempt: Attempt) -> Any:
        job, task = attempt.job, attempt.task
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        if isinstance(task, AsyncTask) and running is not None:
            self._cancel = lambda: loop.call_soon_threadsafe(running.cancel)
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(app.aclose)
                threads = stack.enter_context(ThreadPoolExecutor(1))
                wanted = [kind for kind in task.arguments.injected.values() if kind in app.resources]
                resources = {kind: await app.resources[kind].open(stack) for kind in wanted}
                if job.stop_reason is not None:
                    raise Stopped(job.stop_reason)
                return await Runner(app, threads, resources).run(attempt)
        finally:
            self._cancel = None

    # -- listening to the worker

    def _listen(self) -> None:
        try:
            while "end" not in (message := self._receive()):
                self._hear(message)
        except BaseException:
            os._exit(EXIT_ORPHANED)  # the worker is gone: whatever we do is nobody's any more
        self._jobs.put(None)

    def _receive(self) -> Any:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return json.loads(self._exactly(length))

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            received = self._connection.recv(min(length - len(data), 1 << 20))
            if not received:
                raise EOFError
            data += received
        return bytes(data)

    def _hear(self, message: dict[str, Any]) -> None:
        if "run" in message:
            row = message["run"]
            times = {name: datetime.fromisoformat(row[name]) for name in ("rank_at", "enqueued_at")}
            self.worker_id = message["worker_id"]
            self._job = Job(ClaimedJob(**{**row, **times}), self)  # here, so that a stop that follows at once finds it
            self._jobs.put(self._job)
        elif (job := self._job) is not None and (job.id, job.token) == (message["id"], message["token"]):
            job.stop_reason = message["stop"]
            if (cancel := self._cancel) is not None:
                with suppress(RuntimeError):  # its loop has just ended
                    cancel()

    # -- what jobs say (see job.Reporter)

    def execute(self, call: Call[T]) -> T:
        return persist(lambda: self._load().execute(call))

    async def aexecute(self, call: Call[T]) -> T:
        return await apersist(lambda: self._load().aexecute(call))

    def changed(self, job: Job) -> None:  # noqa: ARG002 - there is only one
        self._said.set()

    def _speak(self) -> None:
        while True:
            self._said.wait()
            self._said.clear()
            if (job := self._job) is not None:
                self._say(job)
            time.sleep(SAY_SECONDS)

    def _say(self, job: Job) -> None:
        try:
            with self._saying:  # in order, and all of it before the attempt's end is reported
                for call in job.unsaid():
                    if not self.execute(call) and job.stop_reason is None:
                        job.stop_reason = "lease_lost"
        except Exception as error:
            logger.warning("job %d: its progress could not be stored: %s", job.id, error, extra=log_fields(job))


def _storable(job: Job, result: Any) -> Any:
    try:
        value = encode_value(result, "result")
        database.encode_value(value)
    except PayloadError as error:
        # Its work is done: to fail it now would do it again.
        logger.warning("job %d (%s) completed, but its result cannot be stored: %s", job.id, job.task, error,
                       extra=log_fields(job))  # fmt: skip
        return None
    return value


def _packed(child: Signature | Graph) -> list[Any]:
    if isinstance(child, Graph):
        return list(child)
    options: dict[str, Any] = {**child.options}
    for name in ("key", "group"):
        if callable(options.get(name)):
            options[name] = options[name](**child.payload)
    if isinstance(retry := options.get("retry"), Retry):
        options["retry"] = retry.policy
    return [child.task, child.payload, encode_value(options, f"the options of {child.task}")]


@contextmanager
def _limited(memory_limit: int | None) -> Iterator[None]:
    """So many bytes for the job, beyond what this process has mapped already: that is hundreds of megabytes, little of
    it in use, and its size is nothing that the author of a task could know."""
    if memory_limit is None:
        yield
        return
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    limits = [_mapped() + memory_limit, *(limit for limit in (before, most) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


def _mapped() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        return 0


def _die_with_the_worker() -> None:
    """Even while C code holds the GIL and nobody listens; elsewhere than on Linux the listener must do."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    with suppress(OSError):
        # If memory runs out, the kernel should take the job and not the worker.
        Path("/proc/self/oom_score_adj").write_text("500")
