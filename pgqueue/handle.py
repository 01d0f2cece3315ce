"""A job as its enqueuer sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pgqueue import database
from pgqueue.database import JobInfo
from pgqueue.errors import JobCancelled, JobDead, ResultTimeout

if TYPE_CHECKING:
    from pgqueue.app import App

R = TypeVar("R")


class JobHandle(Generic[R]):
    """`created` is false when the key was taken: `id` is then the job that has it."""

    __slots__ = ("_app", "_decode", "created", "id")

    def __init__(self, app: App, id: int, created: bool = False, decode: Callable[[Any], R] | None = None) -> None:
        self._app = app
        self._decode = decode
        self.id = id
        self.created = created

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id}, created={self.created})"

    def info(self) -> JobInfo:
        """Everything that may be known of it, now. Raises `JobNotFound`."""
        return self._app.execute(database.look_up(self.id))

    async def ainfo(self) -> JobInfo:
        return await self._app.aexecute(database.look_up(self.id))

    def status(self) -> str:
        return self.info().status

    async def astatus(self) -> str:
        return (await self.ainfo()).status

    def result(self, timeout: float | timedelta | None = None) -> R:
        """What the handler returned, once it has. Raises `JobDead`, `JobCancelled` or `ResultTimeout`.

        Never wait inside the transaction that enqueued the job: nobody can see it before that commits.
        """
        for pause in pauses(timeout, f"job {self.id}"):
            info = self.info()
            if info.finished_at is not None:
                return self._read(info)
            time.sleep(pause)
        raise AssertionError("unreachable")

    async def aresult(self, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - the same as result()
        for pause in pauses(timeout, f"job {self.id}"):
            info = await self.ainfo()
            if info.finished_at is not None:
                return self._read(info)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def cancel(self, reason: str | None = None) -> str:
        """Cancel it, or ask it to stop if it runs. Returns the status after that."""
        return self._app.execute(database.cancel(self.id, reason))

    async def acancel(self, reason: str | None = None) -> str:
        return await self._app.aexecute(database.cancel(self.id, reason))

    def retry(self, **changes: Any) -> str:
        """Run it again if it is dead or cancelled; payload, max_attempts and run_at may be given anew."""
        return self._app.execute(database.retry(self.id, **changes))

    async def aretry(self, **changes: Any) -> str:
        return await self._app.aexecute(database.retry(self.id, **changes))

    def _read(self, info: JobInfo) -> R:
        if info.status == "dead":
            raise JobDead(f"job {info.id} ({info.task}) died after {info.attempt} attempts: {_error(info)}", info)
        if info.status == "cancelled":
            raise JobCancelled(f"job {info.id} ({info.task}) was cancelled: {_error(info)}", info)
        return self._decode(info.result) if self._decode else cast(R, info.result)


def _error(info: JobInfo) -> str:
    return f"{info.error_type}: {info.error}" if info.error_type else str(info.error)


def pauses(timeout: float | timedelta | None, what: str) -> Iterator[float]:
    """How long to wait before asking again: from 5 ms, growing to half a second, to the time-out."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    deadline = None if seconds is None else time.monotonic() + seconds
    pause = 0.005
    while True:
        left = pause if deadline is None else deadline - time.monotonic()
        yield max(min(pause, left), 0)
        if left <= 0:
            raise ResultTimeout(f"{what} has not finished within {seconds:g} s")
        pause = min(pause * 1.5, 0.5)
