"""Child processes for tasks with `runs_in="process"`: handlers that can be killed, limited in memory, and may crash.

A child (child.py) is a fresh interpreter that imports the app by its name, so it runs the code that is on disk when it
starts. It runs one job after another and talks with the worker over a socket: a length, then JSON; never pickle.

    worker → child   hello: how to find the app and the database · run: a claimed job · stop: why · end: finish and go
    child → worker   started · then the answer: a result, or how else the attempt ended

A child that crashes costs its job one attempt and nobody else anything. Middleware stays in the worker, around the
whole call: it sees the result as JSON, and a `ChildError` in place of the handler's own exception, which never leaves
the child.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from pgqueue import logs
from pgqueue.database import Failure
from pgqueue.errors import InvalidArgument
from pgqueue.job import Graph
from pgqueue.outcomes import Stopped
from pgqueue.task import EnqueueOptions, Signature

if TYPE_CHECKING:
    from pgqueue.app import App
    from pgqueue.attempt import Attempt
    from pgqueue.job import StopReason

logger = logging.getLogger("pgqueue.worker")

IDLE_SECONDS = 60.0  # an idle child above one is ended after this time
START_SECONDS = 60.0  # what a job's time-out grants a new child for importing the app
END_SECONDS = 2.0  # between asking a child to end and killing it
LENGTH = struct.Struct("!I")


def pack(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


class ChildError(Exception):
    """How an attempt in a child ended when it did not simply succeed: what `attempt.ending` needs to know of it."""

    def __init__(self, kind: str, failure: Failure | None, delay: float = 0.0, reason: str | None = None) -> None:
        super().__init__(f"{failure.error_type}: {failure.error}" if failure else reason or kind)
        self.kind = kind
        self.failure = failure
        self.delay = delay
        self.reason = reason


class _Died(Exception):
    def __init__(self, code: int, started: bool) -> None:
        self.code = code
        self.started = started


class Children:
    """As many children as jobs that need one at the same time: started when needed, and used again."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._all: set[Child] = set()
        self._idle: list[Child] = []  # the last one is used next: the others may end
        in_processes = [task.name for task in app.tasks.values() if task.execution.runs == "process"]
        if in_processes and not self.available:
            raise InvalidArgument(f"task {in_processes[0]} runs in a process: start the worker with -A module:app")

    @property
    def available(self) -> bool:
        """A child finds the app by its name only."""
        return self._app.location is not None

    async def run(self, attempt: Attempt) -> Any:
        """What the handler returned, as JSON values."""
        return await self._run(attempt, alone=False)

    async def run_alone(self, attempt: Attempt) -> Any:
        """The same in a child of its own, for a task of any kind: it may have killed the workers that ran it before."""
        return await self._run(attempt, alone=True)

    async def _run(self, attempt: Attempt, alone: bool) -> Any:
        job = attempt.job
        times = {"rank_at": job.claimed.rank_at.isoformat(), "enqueued_at": job.claimed.enqueued_at.isoformat()}
        order = pack({"run": {**job.claimed._asdict(), **times}, "worker_id": job.worker_id})
        while True:
            child = self._idle.pop() if self._idle and not alone else await self._start()
            fresh = child.jobs == 0
            attempt.child = child
            try:
                answer = await child.run(attempt, order)
            except _Died as died:
                if child.killed and job.stop_reason is not None:
                    raise Stopped(job.stop_reason) from None
                if not died.started and not fresh:
                    continue  # it was dead before it got this job
                raise ChildError("failed", _death(attempt, died, alone)) from None
            except BaseException:
                child.kill()  # nobody waits for it any more: a middleware with a time-out of its own, say
                raise
            finally:
                attempt.child = None
            if alone:
                child.end()
            else:
                self._rest(child)
            return _outcome(attempt, answer)

    async def _start(self) -> Child:
        hello = {"app": self._app.location, "conninfo": self._app.conninfo, "path": sys.path, "logs": logs.chosen}
        child = await Child.start(pack(hello))
        self._all.add(child)
        child.gone.add_done_callback(lambda _: self._forget(child))
        return child

    def _rest(self, child: Child) -> None:
        if child in self._all:
            self._idle.append(child)
            child.rest = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._rested, child)

    def _rested(self, child: Child) -> None:
        if child in self._idle and len(self._idle) > 1:
            self._idle.remove(child)
            child.end()

    def _forget(self, child: Child) -> None:
        self._all.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    async def close(self) -> None:
        """End them all; those that still run a job are killed."""
        for child in self._all:
            if child in self._idle:
                child.end()
            elif not child.ending:
                child.kill()
        await asyncio.gather(*(child.gone for child in self._all))


class Child:
    """One child process, as the worker sees it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.jobs = 0
        self.ending = False
        self.killed = False
        self.rest: asyncio.TimerHandle | None = None  # when it has been idle for long
        self._process = process
        self._reader = reader
        self._writer = writer
        self._attempt: Attempt | None = None
        self._started = False
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._loop = asyncio.get_running_loop()
        self.gone = asyncio.create_task(self._live())

    @staticmethod
    async def start(hello: bytes) -> Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # In a session of its own: Ctrl-C is for the worker, which decides what becomes of its children.
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", "from pgqueue.child import main; main()", str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
                )  # fmt: skip
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()  # and so a child that is there already ends
            raise
        writer.write(hello)
        return Child(process, reader, writer)

    async def run(self, attempt: Attempt, order: bytes) -> dict[str, Any]:
        job = attempt.job
        if self.rest is not None:
            self.rest.cancel()
        if job.deadline is not None and self.jobs == 0:
            job.deadline += START_SECONDS
        self.jobs += 1
        self._attempt = attempt
        self._started = False
        self._answer = self._loop.create_future()
        if self.gone.done():
            raise _Died(self._process.returncode or 0, started=False)
        self._writer.write(order)
        if job.stop_reason is not None:
            self.stop(job.stop_reason)
        try:
            return await self._answer
        finally:
            self._attempt = self._answer = None

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to stop."""
        if self._attempt is not None:
            job = self._attempt.job
            self._writer.write(pack({"stop": reason, "id": job.id, "token": job.token}))

    def kill(self) -> None:
        self.killed = True
        with suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> None:
        """Let it close what it has opened; kill it if that takes long."""
        self.ending = True
        self._writer.write(pack({"end": True}))
        timer = self._loop.call_later(END_SECONDS, self.kill)
        self.gone.add_done_callback(lambda _: timer.cancel())

    async def _live(self) -> None:
        hearing = asyncio.create_task(self._hear())
        code = await self._process.wait()
        # The last words are in the socket; its end comes at once, unless the handler has forked.
        await asyncio.wait([hearing], timeout=0.5)
        hearing.cancel()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_Died(code, self._started))

    async def _hear(self) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                message = json.loads(await self._reader.readexactly(length))
                job = self._attempt.job if self._attempt is not None else None
                if job is None or (message["id"], message["token"]) != (job.id, job.token):
                    continue  # of another attempt: a copy that a handler has forked
                if "started" in message:
                    self._begin()
                elif self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)
        self._loop.call_later(1, self.kill)  # it can say nothing any more; mostly it is dead already

    def _begin(self) -> None:
        """The handler's time runs from now on."""
        self._started = True
        if self._attempt is not None and (seconds := self._attempt.job.claimed.timeout_seconds) is not None:
            self._attempt.job.deadline = time.monotonic() + seconds


def _outcome(attempt: Attempt, answer: dict[str, Any]) -> Any:
    attempt.committed = answer["committed"]
    if "kind" in answer:
        failure = answer["failure"] and Failure(*answer["failure"])
        raise ChildError(answer["kind"], failure, answer["delay"], answer["reason"])
    attempt.job.add_children(_unpacked(*child) for child in answer["children"])
    return answer["result"]


def _unpacked(first: Any, second: Any, options: dict[str, Any] | None = None) -> Signature | Graph:
    if options is None:
        return Graph(first, second)
    for name in {"run_at", "expires_at"} & options.keys():
        options[name] = datetime.fromisoformat(options[name])
    return Signature(first, second, cast(EnqueueOptions, options))


def _death(attempt: Attempt, died: _Died, alone: bool) -> Failure:
    if died.code >= 0:
        how = f"exited with code {died.code}"
    else:
        try:
            how = f"was killed by signal {-died.code} ({signal.Signals(-died.code).name})"
        except ValueError:
            how = f"was killed by signal {-died.code}"
    if not died.started:
        how += " before the handler began"
    if died.code == -signal.SIGKILL:
        how += "; if nobody did that, the machine was out of memory: give the task a memory_limit"
    # It has killed workers before, and now the process in which nothing else ran: it is the job.
    why = f"; {attempt.job.claimed.crashes} workers died with it before" if alone else ""
    message = f"the process that ran this job {how}{why}"
    return Failure(attempt.job.id, attempt.job.token, message, "ProcessDied", fatal=alone)
