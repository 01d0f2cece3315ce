"""The ticker: makes jobs of recurring jobs when they are due.

Any number of them, anywhere: each asks the database what is due by the database's clock, computes due times, and hands
them to `tick`, which accepts them from one ticker and once. It then sleeps until the next due time; a notification
wakes it when a definition changes, and once a minute it looks anyway. Its own clock only measures how long it sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from pgqueue import database
from pgqueue.app import App
from pgqueue.cron import Schedule
from pgqueue.database import DueRecurring, Ticked
from pgqueue.errors import InvalidArgument, PgqueueError
from pgqueue.link import ConnectionLost, Link
from pgqueue.listen import listen

logger = logging.getLogger("pgqueue.ticker")

POLL_SECONDS = 60.0
SOON_SECONDS = 0.001  # not to ask again and again within the last millisecond
CHANGED = "recurring changed"  # what store_recurring() and its siblings notify


@dataclass(frozen=True, kw_only=True)
class TickerSettings:
    """How a ticker works."""

    poll_seconds: float = POLL_SECONDS  # the longest sleep: what a lost notification may cost
    listen: bool = True
    listen_url: str | None = None


class Ticker:
    """One ticker, in a process of its own or beside a worker."""

    def __init__(self, app: App, settings: TickerSettings | None = None) -> None:
        self.app = app
        self.settings = settings or TickerSettings()
        self.started = asyncio.Event()
        self.fired = 0  # jobs
        self.observe: Callable[[str, str], None] | None = None  # name, outcome: for metrics
        self._link = Link(app.conninfo, "ticker", voice=True)
        self._bell = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._stuck: dict[tuple[str, int], float] = {}  # what was due last time, and for how long to let it be
        self._answered_at = 0.0  # by time.monotonic()
        self._complaint = ""

    @property
    def ready(self) -> bool:
        """It has looked at the definitions not long ago."""
        late = time.monotonic() - self._answered_at > self.settings.poll_seconds + 30
        return self.started.is_set() and not self._stop_asked.is_set() and not late

    def stop(self) -> None:
        """There is nothing to finish: what it does, it does in single statements."""
        self._stop_asked.set()

    async def run(self) -> None:
        """Tick until told to stop. Raises what is wrong with the schema or the rights before the first look."""
        running = asyncio.create_task(self._run())
        listening = asyncio.create_task(self._listen())
        stopping = asyncio.create_task(self._stop_asked.wait())
        tasks: set[asyncio.Task[Any]] = {running, listening, stopping}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    await task
        finally:
            while pending := [task for task in tasks if not task.done()]:
                for task in pending:
                    task.cancel()
                await asyncio.wait(pending, timeout=0.5)
            await self._link.close()

    async def _listen(self) -> None:
        if self.settings.listen:
            url = self.settings.listen_url
            await listen(Link(url or self.app.conninfo, "ticker listen", voice=url is not None), self._heard)
        await asyncio.Event().wait()  # polling does it

    def _heard(self, text: str) -> None:
        if text in ("", CHANGED):
            self._bell.set()

    # -- the loop

    async def _run(self) -> None:
        await self._reconcile()
        while True:
            self._bell.clear()  # before we look: whatever changes from here on wakes us again
            try:
                seconds = await self._look()
            except ConnectionLost:
                continue  # the link waits
            except (psycopg.Error, PgqueueError) as error:
                if not self.started.is_set():
                    raise
                self._complain(error)
                seconds = 5.0
            await self._sleep(seconds)

    async def _reconcile(self) -> None:
        """What this app declares, and nothing of what others do."""
        declared, faults = self.app.recurring.declared()
        source = self.app.recurring.source if declared else self.app.name or self.app.location
        if source is None:
            return
        while True:
            try:
                changes = await self._link.run(database.reconcile_recurring(source, declared))
                break
            except ConnectionLost:
                continue
        for name, change, reason in changes:
            if change in ("conflict", "refused"):
                logger.error("recurring job %s is not what the code says: %s", name, faults.get(name, reason))
            else:
                logger.info("recurring job %s: %s", name, change)

    async def _look(self) -> float:
        """Do what is due; returns for how long nothing will be."""
        found = await self._link.run(database.due_recurring())
        self._answered_at = time.monotonic()
        self._complaint = ""
        if not self.started.is_set():
            self.started.set()
        for due in found.due:
            await self._tick(due, found.now)
        pause = self.settings.poll_seconds
        if found.wake_at is not None:
            pause = min(max((found.wake_at - found.now).total_seconds(), SOON_SECONDS), pause)
        return min(self._patience(found.due), pause)

    def _patience(self, due: list[DueRecurring]) -> float:
        """When to ask again for what was due just now: at once, since what is next has changed; but not if nothing has,
        because somebody has locked the row and takes his time."""
        self._stuck = {each[:2]: min(self._stuck[each[:2]] * 2 + 0.02, 1.0) if each[:2] in self._stuck else 0.0
                       for each in due}  # fmt: skip
        return min(self._stuck.values(), default=self.settings.poll_seconds)

    async def _tick(self, due: DueRecurring, now: datetime) -> None:
        try:
            self._check_task(due)
            times, following = plan(due, now)
            ticked = await self._link.run(database.tick(due.name, due.version, times, following))
        except ConnectionLost:
            raise
        except (PgqueueError, psycopg.Error) as error:
            await self._mark(due, error)
            return
        if ticked is None:
            return
        if due.broken:
            logger.info("recurring job %s works again", due.name)
        for each in ticked:
            self._tell(due, each)

    def _check_task(self, due: DueRecurring) -> None:
        """Workers are there, and none of them knows its task: a job would only fail. What another app declares is that
        app's business."""
        foreign = due.source is not None and due.source not in (self.app.name, self.app.location)
        if due.task_unknown and due.task not in self.app.tasks and not foreign:
            raise InvalidArgument(f"no worker of its queue knows the task {due.task!r}")

    async def _mark(self, due: DueRecurring, error: Exception) -> None:
        """Once, however many tickers stumble over it; the others go on."""
        if await self._link.run(database.mark_recurring(due.name, due.version, str(error).strip())):
            logger.error("recurring job %s is broken: %s; trying again every minute", due.name, str(error).strip())
        if self.observe is not None:
            self.observe(due.name, "broken")

    def _tell(self, due: DueRecurring, ticked: Ticked) -> None:
        if ticked.job_id is not None:
            self.fired += 1
            logger.debug("recurring job %s: job %d for %s", due.name, ticked.job_id, ticked.due_at.isoformat())
        else:
            level = logging.INFO if ticked.outcome == "expired" else logging.DEBUG
            logger.log(
                level, "recurring job %s: no job for %s: %s", due.name, ticked.due_at.isoformat(), ticked.outcome
            )
        if self.observe is not None:
            self.observe(due.name, ticked.outcome)

    def _complain(self, error: Exception) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            logger.error("the database refuses what this ticker asks: %s; asking again", self._complaint.strip())

    async def _sleep(self, seconds: float) -> None:
        """Until then, or until the bell rings."""
        timer = asyncio.get_running_loop().call_later(seconds, self._bell.set)
        try:
            await self._bell.wait()
        finally:
            timer.cancel()


def plan(due: DueRecurring, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The due times up to now, and the next one. `InvalidArgument` if the schedule cannot be understood here."""
    schedule = Schedule.of(due.cron, due.every, due.timezone, due.starts_at)
    until = now if due.ends_at is None else min(now, due.ends_at)
    following = schedule.next(max(now, due.after))
    if following is not None and due.ends_at is not None and following > due.ends_at:
        following = None
    return schedule.between(due.after, until, due.take), following
