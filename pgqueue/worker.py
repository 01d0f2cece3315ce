"""The worker: claims jobs, runs them, reports what became of them.

One coroutine, the pump, owns one connection and does nothing but "report what is finished, claim what is next" in one
round trip. While the answer is under way, handlers run and finish; so batches grow by themselves when there is much to
do, and a single job is reported within a millisecond when there is not. Beside it:

    beat      another process: keeps the worker's row, and so all its jobs, alive        beat.py
    listen    hears that there is work, or that a job should stop                        listen.py
    upkeep    sweeps, promotes, refreshes hints, prunes                                  upkeep.py
    watch     time-outs, cancellations, progress; jobs that were taken but not started   here
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import os
import platform
import random
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg

import pgqueue
from pgqueue import beat, database
from pgqueue.app import App
from pgqueue.arguments import encode_value
from pgqueue.attempt import ALONE_AFTER_CRASHES, Attempt, Ending, Runner, ending, failure
from pgqueue.batch import Forming
from pgqueue.beat import Beat
from pgqueue.children import Children
from pgqueue.database import Call, ClaimedJob, Encoded, Failure
from pgqueue.errors import PgqueueError, WorkerLost
from pgqueue.events import Event, JobEvent
from pgqueue.job import Job, StopReason, log_fields
from pgqueue.link import PATIENCE_SECONDS, ConnectionLost, Link, apersist, persist
from pgqueue.listen import listen
from pgqueue.pools import hang_up_on, hung_up_after
from pgqueue.task import AsyncTask, Execution, Task
from pgqueue.upkeep import upkeep

logger = logging.getLogger("pgqueue.worker")
T = TypeVar("T")

EXIT_DONE, EXIT_FAILED, EXIT_HUNG = 0, 1, 75  # 75: a handler did not stop; start me again
BATCH = 1000  # reports in one call
PREFETCH_SECONDS = 0.1  # what is taken ahead should be started within this time
PREFETCH_MOST = 2000
CLAIM_MOST = 1000
LINGER_SECONDS = 0.004  # while there is enough to do, reports wait this long for company
BUFFER_SECONDS = 1.0  # what was not started by then is handed back
WATCH_SECONDS = 0.25
RECONCILE_SECONDS = 15.0
BURST_ASKS = 3  # that nothing is there must be said so often before a burst ends: a sweep may hold a group for a moment
BURST_SECONDS = 60.0  # a worker in a burst waits so long for a limit: most rates are by the second or the minute
ASK_SECONDS = 0.01  # a queue that lets nothing start now is asked again this late at the earliest
SAY_SECONDS = 5.0
SILENT_SECONDS = 1.0  # who leaves waits no longer for a database that it has nothing to tell, or that does not answer
REPORT_BYTES = 4_000_000  # results in one call: PostgreSQL reads them at some 20 MB/s
GRACE_SECONDS = 5.0  # between asking a handler to stop and giving it up
BLOCKED_SECONDS = 2 * GRACE_SECONDS  # how far past its time-out a handler may block all that would give it up
AWAKE_SECONDS = 10.0  # a worker whose loop has not turned for so long is not ready
LATE_SECONDS = 2.0  # worth saying, now and then


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a worker works."""

    queues: Mapping[str, int] = field(default_factory=lambda: {"default": 1})  # and their weights
    reserved: Mapping[str, int] = field(default_factory=dict)  # slots that only this queue may use
    concurrency: int = 20
    lease_seconds: int = 30
    poll_seconds: float = 3.0  # the longest time a job may wait when no notification comes
    listen: bool = True
    listen_url: str | None = None
    drain_seconds: float = 30.0
    burst: bool = False
    max_jobs: int | None = None
    name: str | None = None


class Worker:
    """One worker process."""

    def __init__(self, app: App, settings: Settings | None = None) -> None:
        self.app = app
        self.settings = settings or Settings()
        self.worker_id = 0
        self.started = asyncio.Event()
        self.exit_code = EXIT_DONE
        self.finished = 0  # attempts
        self.polled_at = 0.0  # by time.monotonic(): the last good answer of the database
        self._conninfo = app.conninfo
        self._link = Link(self._conninfo, "worker", voice=True)
        self._beat = Beat(self._conninfo, self.settings.lease_seconds)
        self._running: dict[int, Attempt] = {}
        self._buffer: deque[tuple[ClaimedJob, float]] = deque()  # and when it was claimed
        self._forming: dict[str, Forming] = {}  # batches that are not full yet, by task
        self._batched = 0  # running jobs that have no slot of their own: all of a batch but one
        self._has_batches = any(task.execution.batch for task in app.tasks.values())
        self._done: list[tuple[int, int, Any]] = []
        self._endings: list[tuple[Attempt, Ending]] = []
        self._families: list[tuple[Attempt, Any]] = []  # completions that bring children
        self._unanswered: set[tuple[int, int]] = set()  # leases of which a report may or may not have arrived
        self._given_up: list[tuple[Attempt, Ending]] = []  # still running, though nobody waits for them
        self._changed: set[Job] = set()
        self._bell = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._more = True  # the last claim got all that it asked for
        self._noticed = False  # somebody says that there is work
        self._ask_at: float | None = None  # jobs wait that a limit does not let start before
        self._doubt = False  # a claim's answer may have been lost
        self._claimed = False  # since the last look for unknown jobs
        self._reconciled_at = time.monotonic()
        self._leased_until = 0.0
        self._rate = 0.0
        self._complaint = ""
        self._aside: set[asyncio.Future[Any]] = set()
        self._draining = False
        self._asked_at = math.inf  # since when the pump waits for an answer
        self._reporting = False  # and has told something
        self._unheard = False  # it left without the database
        self._starting = False  # _start_next is under way
        self.abandoned = False  # a handler did not stop
        self.killable = False  # when nothing else helps: only in a process that is ours
        self._timeless = 0  # running handlers that may block the worker: they have no time-out
        self._latest = -math.inf  # when the time of all others is over
        self._limit_at = math.inf
        self._looked_at = self._said_late_at = 0.0
        self._checked_cancels_at = 0.0
        self._hooked: set[str] = set(app.hooks)
        self.observe: Callable[[str, Event, float], None] | None = None  # task, what happened, seconds: for metrics

    # -- life

    async def run(self) -> int:
        """Work until told to stop; returns the exit code."""
        threads = ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix="pgqueue")
        if any(task.execution.transactional for task in self.app.tasks.values()):
            self.app.grow_pools(self.settings.concurrency + 2)  # each of them holds a connection while it runs
        async with AsyncExitStack() as stack:
            stack.callback(threads.shutdown, wait=False, cancel_futures=True)
            stack.push_async_callback(self.app.aclose)
            stack.push_async_callback(self._link.close)
            stack.push_async_callback(self._beat.stop)
            children = Children(self.app)
            stack.push_async_callback(children.close)
            resources = {kind: await made.open(stack) for kind, made in self.app.resources.items()}
            self._runner = Runner(self.app, threads, resources, children)
            if not await self._registered_or_stopped():
                return EXIT_DONE
            self.started.set()
            background = [asyncio.create_task(loop) for loop in (self._watch(), self._upkeep(), self._listen())]
            pump = asyncio.create_task(self._pump())
            try:
                await asyncio.wait([pump, *background], return_when=asyncio.FIRST_COMPLETED)
                for task in background:
                    if task.done() and (error := task.exception()) is not None:
                        raise error
                if pump.done():
                    await pump
            finally:
                # Again and again: a cancellation can be lost on its way (in a wait_for() of Python 3.11, for one).
                while pending := [task for task in (pump, *background) if not task.done()]:
                    for task in pending:
                        task.cancel()
                    await asyncio.wait(pending, timeout=0.5)
                if self._aside:
                    await asyncio.wait(self._aside, timeout=2)
                for each in list(self._aside):
                    each.cancel()
                self._beat.limit(math.inf)  # resources may take their time to close
            await self._retire()
        return self.exit_code

    @property
    def ready(self) -> bool:
        """It claims, and the database knows that it lives."""
        awake = time.monotonic() < self._looked_at + AWAKE_SECONDS
        return awake and self.started.is_set() and not self._draining and beat.now() < self._beat.leased_until

    @property
    def busy(self) -> int:
        """How many jobs are running."""
        return len(self._running)

    def stop(self) -> None:
        """Drain: claim no more, finish what runs, hand back the rest."""
        if not self._draining:
            self._draining = True
            self._stop_asked.set()
            self._stopped_at = time.monotonic()
            self._drain_until = self._stopped_at + self.settings.drain_seconds
            if self._running:
                logger.info(
                    "draining: %d jobs run, waiting up to %g s", len(self._running), self.settings.drain_seconds
                )
            self._bell.set()

    def limit_drain(self) -> None:
        """For a signal handler, which is heard even while the loop is blocked and `stop` is not."""
        with suppress(ValueError):  # the heartbeat has ended already
            if self.killable:
                self._beat.limit(time.monotonic() + self.settings.drain_seconds + self._after_drain())

    @staticmethod
    def _after_drain() -> float:
        return 2 * GRACE_SECONDS + 2 * SAY_SECONDS

    def _limit_blocking(self) -> None:
        """How long the loop may be blocked: until no running handler is within its time any more."""
        at = math.inf if self._timeless or self._latest == -math.inf else self._latest + BLOCKED_SECONDS
        if self._draining:
            at = min(at, self._drain_until + self._after_drain())
        if at != self._limit_at and self.killable:
            self._limit_at = at
            self._beat.limit(at)

    async def _registered_or_stopped(self) -> bool:
        """The database may not be there for hours; whoever loses patience may say so."""
        registering, stopped = asyncio.create_task(self._register()), asyncio.create_task(self._stop_asked.wait())
        await asyncio.wait([registering, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not registering.done():
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            return False
        await registering
        return True

    async def _register(self) -> None:
        name = self.settings.name or f"{socket.gethostname()}:{os.getpid()}"
        info = {
            "version": pgqueue.__version__, "python": platform.python_version(), "pid": os.getpid(),
            "host": socket.gethostname(), "concurrency": self.settings.concurrency, "tasks": sorted(self.app.tasks),
            "weights": dict(self.settings.queues), "reserved": dict(self.settings.reserved),
        }  # fmt: skip
        call = database.register_worker(name, list(self.settings.queues), self.settings.lease_seconds, info)
        sent_at = beat.now()
        self.worker_id = await self._surely(call)
        self._beat.start(self.worker_id, sent_at)
        self._leased_until = 0.0

    async def _retire(self) -> None:
        try:
            async with asyncio.timeout(SILENT_SECONDS if self._unheard else SAY_SECONDS):
                for call in self.last_words():
                    await self._link.run(call)
                released = await self._link.run(database.retire_worker(self.worker_id))
        except (TimeoutError, ConnectionLost, PgqueueError) as error:
            why = str(error) or "the database does not answer"
            ours = "; the sweep will take our jobs after the lease" if self._owes() else ""
            logger.warning("could not say good-bye: %s%s", why, ours)
        else:
            logger.info("stopped after %d attempts%s", self.finished, f", {released} handed back" if released else "")

    def last_words(self) -> list[Call[Any]]:
        """What must be said before `retire_worker`, which lets run again all that we hold; after a drain nothing."""
        done, calls = list(self._done), list[Call[Any]]()
        if done:
            calls.append(database.complete(self.worker_id, [(id, token) for id, token, _ in done], _results(done)))
        begun = [each for each in list(self._running.values()) if each.begun and each.task.execution.at_most_once]
        if begun:
            why = PgqueueError("its worker was stopped while it ran, and it runs at most once")
            calls.append(database.fail(self.worker_id, [failure(each.job, why, fatal=True) for each in begun]))
        return calls

    async def _surely(self, call: Call[T]) -> T:
        """For calls that do no harm when they are repeated."""
        while True:
            try:
                return await self._link.run(call)
            except ConnectionLost:
                continue

    # -- the pump

    async def _pump(self) -> None:
        called_at = poll_at = 0.0
        quiet = 0  # polls in a row that found nothing
        while True:
            if self._beat.lost and not self._draining:
                await self._lost("the database has declared this worker lost: it did not beat in time")
            self._start_next()
            now = time.monotonic()
            reports = bool(self._done or self._endings or self._families)
            if not reports and self._draining and await self._drained():
                if not self._given_up:
                    return
                # Last of all: as soon as they are reported others may run these jobs, and only our end ends them here.
                self._endings, self._given_up = self._given_up, []
                continue
            wants = (self._more and not self._buffer) or self._noticed or now >= poll_at
            if not (reports or (wants and self._room())):
                self._bell.clear()
                await self._wait_for_bell(0.1 if self._draining else 1.0 if wants else poll_at - now)
                continue
            # While handlers run, reports and notifications wait for company; not while slots are empty and jobs wait.
            pause = LINGER_SECONDS - (now - called_at)
            if pause > 0 and self._running and not self._more and len(self._done) < BATCH // 2:
                await asyncio.sleep(pause)
            called_at = self._asked_at = time.monotonic()
            self._reporting = reports
            try:
                found = await self._exchange()
            except ConnectionLost:
                self._doubt = True
                continue
            except WorkerLost as error:
                await self._lost(str(error))
                continue
            except (psycopg.Error, PgqueueError) as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    logger.error(
                        "the database refuses what this worker asks: %s; asking again", self._complaint.strip()
                    )
                await asyncio.sleep(1)
                continue
            finally:
                self._asked_at, self._reporting = math.inf, False
            self._complaint = ""
            # A job enqueued while we were busy may be committed when nobody notifies: look again soon, then less often.
            quiet = 0 if found else quiet + 1
            longest = self.settings.poll_seconds
            poll_at = time.monotonic() + min(longest, 0.025 * 2 ** min(quiet, 16)) * random.uniform(0.9, 1)  # noqa: S311
            if self._ask_at is not None:
                poll_at = min(poll_at, self._ask_at)
            waits = self._ask_at is not None and self._ask_at < time.monotonic() + BURST_SECONDS
            done = quiet >= BURST_ASKS and not (waits or self._more or self._noticed or self._busy())
            if self.settings.burst and done:
                self.stop()

    def _busy(self) -> bool:
        return bool(self._running or self._buffer or self._forming or self._done or self._endings or self._families)

    def _owes(self) -> bool:
        return self._busy() or self._reporting or bool(self._given_up)

    async def _wait_for_bell(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(max(seconds, 0), self._bell.set)
        try:
            await self._bell.wait()
        finally:
            timer.cancel()

    def _room(self) -> int:
        """How many jobs to ask for: free slots, and what can be started within PREFETCH_SECONDS."""
        if self._draining or self._lease_is_over():
            return 0
        # What is taken ahead has no slot yet, so nothing is, when slots are reserved.
        ahead = 0 if self.settings.reserved else min(int(self._rate * PREFETCH_SECONDS), PREFETCH_MOST)
        free = self.settings.concurrency + ahead - self._slots() - len(self._buffer)
        if self._forming and self._slots() < self.settings.concurrency:
            # A batch that begins has one slot, and room for as many as it still wants.
            free += sum(forming.batch.size - len(forming.jobs) for forming in self._forming.values())
        if self.settings.max_jobs is not None:
            held = len(self._running) + len(self._buffer) + sum(len(each.jobs) for each in self._forming.values())
            free = min(free, self.settings.max_jobs - self.finished - held)
        # Many small claims cost more than a few big ones. But half of what may be held is the most: the other half runs
        # while the answer is under way, so that worker and database work at the same time.
        return min(free, CLAIM_MOST) if not self._buffer or free > ahead // 8 else 0

    def _slots(self) -> int:
        """How many are in use: a batch has one."""
        return len(self._running) - self._batched

    async def _exchange(self) -> int:
        """Report and claim, in one round trip if nothing special happened; returns how many jobs were claimed."""
        if self._doubt or (self._claimed and time.monotonic() > self._reconciled_at + RECONCILE_SECONDS):
            released = await self._link.run(database.release_unknown(self.worker_id, self._known()))
            if released:
                logger.warning("%d jobs were claimed but their answer was lost: handed back", released)
            self._doubt = self._claimed = False
            self._reconciled_at = time.monotonic()
        if self._endings:
            await self._report_endings()
        if self._families:
            await self._report_families()
        few = _few(self._done)
        done, self._done = self._done[:few], self._done[few:]
        leases = [(id, token) for id, token, _ in done]
        room = self._room()
        own = self._own_room(room) if self.settings.reserved else {}
        if room:
            self._noticed = False
        try:
            claimed = await self._link.run(
                database.complete_and_claim(
                    self.worker_id, leases, _results(done), self._order(), room - sum(own.values()),
                )
            )  # fmt: skip
        except BaseException as error:
            self._done = done + self._done  # by the fence it does no harm to say it twice
            if isinstance(error, ConnectionLost):
                self._unanswered.update(leases)
            raise
        now = time.monotonic()
        if done:
            rate = len(done) / max(now - self.polled_at, 0.001)
            self._rate += (rate - self._rate) * 0.3
        self.polled_at = now
        if claimed.refused or self._unanswered:
            self._say_refused("results", leases, claimed.refused)
        count = self._take(claimed)
        for queue, most in own.items():
            count += self._take(
                await self._link.run(database.complete_and_claim(self.worker_id, [], None, [queue], most))
            )
        self._noticed |= claimed.freed
        if room:
            self._ask_at = None if claimed.ask_in is None else now + max(claimed.ask_in, ASK_SECONDS)
            self._more = count >= room
        return count

    def _say_refused(self, what: str, leases: list[tuple[int, int]], refused: list[int]) -> None:
        """Of what had to be said twice nobody knows whether it was heard the first time."""
        again = [id for id, token in leases if id in refused and (id, token) in self._unanswered]
        self._unanswered.difference_update(leases)
        if again:
            logger.info(
                "%d %s were said again, as no answer had come, and refused: they had arrived, or the leases were lost"
                " meanwhile: %s", len(again), what, again,
            )  # fmt: skip
        if lost := [id for id in refused if id not in again]:
            logger.warning("%d %s were refused: their leases were lost: %s", len(lost), what, lost)

    def _take(self, claimed: database.Claimed) -> int:
        if claimed.jobs:
            self._claimed = True
            now = time.monotonic()
            self._buffer.extend([(job, now) for job in claimed.jobs])
        return len(claimed.jobs)

    def _own_room(self, room: int) -> dict[str, int]:
        """How many of the free slots only their own queues may use."""
        busy = Counter(each.job.queue for each in self._running.values() if not each.batch or each.batch[0] is each)
        busy.update(job.queue for job, _ in self._buffer)
        own: dict[str, int] = {}
        for queue, slots in self.settings.reserved.items():
            if (most := min(slots - busy[queue], room - sum(own.values()))) > 0:
                own[queue] = most
        return own

    def _order(self) -> list[str]:
        """The queues, drawn by weight: each is first in proportion to it."""
        queues = self.settings.queues
        if len(queues) == 1:
            return list(queues)
        return sorted(queues, key=lambda queue: random.random() ** (1 / queues[queue]), reverse=True)  # noqa: S311

    def _known(self) -> list[int]:
        known = [*self._running, *(job.id for job, _ in self._buffer), *(id for id, _, _ in self._done)]
        known += [job.id for forming in self._forming.values() for job, _ in forming.jobs]
        return known + [attempt.job.id for attempt, _ in (*self._endings, *self._families, *self._given_up)]

    async def _report_endings(self) -> None:
        batch, self._endings = self._endings, []
        by_kind: dict[str, list[tuple[Attempt, Ending]]] = {}
        for attempt, end in batch:
            by_kind.setdefault(end.kind, []).append((attempt, end))
        try:
            for kind in list(by_kind):
                await self._report(kind, by_kind[kind])
                del by_kind[kind]
        except ConnectionLost:
            self._unanswered.update((attempt.job.id, attempt.job.token) for attempt, _ in by_kind[kind])
            self._endings += [each for group in by_kind.values() for each in group]
            raise
        except BaseException:
            self._endings += [each for group in by_kind.values() for each in group]
            raise

    async def _report(self, kind: str, group: list[tuple[Attempt, Ending]]) -> None:
        leases = [(attempt.job.id, attempt.job.token) for attempt, _ in group]
        run, worker_id = self._link.run, self.worker_id
        refused: list[int] = []
        if kind == "failed":
            failures = [end.failure for _, end in group if end.failure is not None]
            answers = {answer.id: answer for answer in await run(database.fail(worker_id, failures))}
            for attempt, end in group:
                answer = answers[attempt.job.id]
                if answer.status is None:
                    refused.append(answer.id)
                elif end.failure is not None:
                    self._say_failed(attempt, end.failure, answer)
        elif kind == "snoozed":
            refused = await run(database.snooze(worker_id, leases, [end.delay for _, end in group]))
        elif kind == "throttled":
            refused = await run(database.throttle(worker_id, leases, [end.delay for _, end in group]))
        elif kind == "cancelled":
            refused = await run(database.cancel_claimed(worker_id, leases, [end.reason for _, end in group]))
        elif kind == "released":
            refused = await run(database.release(worker_id, leases))
        if refused or self._unanswered:
            self._say_refused("reports", leases, refused)
        if kind != "failed":
            for attempt, end in group:
                if attempt.job.id not in refused:
                    self._tell("snoozed" if kind == "throttled" else kind, attempt, delay=end.delay)  # type: ignore[arg-type]

    def _say_failed(self, attempt: Attempt, failed: Failure, answer: database.Failed) -> None:
        job = attempt.job
        what = f"{failed.error_type}: {failed.error}"[:500]
        if answer.status == "dead":
            logger.error(
                "job %d (%s) died at attempt %d of %d: %s", job.id, job.task, job.attempt, job.max_attempts, what,
                extra=log_fields(job),
            )  # fmt: skip
        else:
            logger.warning("job %d (%s) failed at attempt %d of %d, next in %.1f s: %s", job.id, job.task, job.attempt,
                           job.max_attempts, answer.delay_seconds or 0, what, extra=log_fields(job))  # fmt: skip
        event: Event = "dead" if answer.status == "dead" else "cancelled" if answer.status == "cancelled" else "failed"
        self._tell(event, attempt, error=PgqueueError(what), delay=answer.delay_seconds)

    async def _report_families(self) -> None:
        """Completions whose children must exist exactly if they do."""
        while self._families:
            attempt, result = self._families[0]
            conn = await self._link.connection()
            job = attempt.job
            try:
                async with _patiently(conn), conn.transaction():
                    for call in job.children():
                        await database.aexecute(conn, call)
                    complete = database.complete(job.worker_id, [(job.id, job.token)], [result])
                    if await database.aexecute(conn, complete):
                        raise _Refused
            except _Refused:
                self._families.pop(0)
                if (job.id, job.token) not in self._unanswered:
                    self._tell("lease_lost", attempt)
                self._say_refused("results", [(job.id, job.token)], [job.id])
                continue
            except PgqueueError as error:  # a child that cannot be enqueued
                self._families.pop(0)
                self._endings.append((attempt, Ending("failed", failure(job, error))))
                continue
            except Exception as error:
                if isinstance(error, psycopg.Error) and self._link.is_gone(conn, error):
                    self._unanswered.add((job.id, job.token))
                    raise await self._link.lost(error) from error
                self._families.pop(0)
                self._endings.append((attempt, Ending("failed", failure(job, error))))
                continue
            self._families.pop(0)
            self._unanswered.discard((job.id, job.token))
            self._tell("completed", attempt)

    # -- starting and finishing

    def _start_next(self) -> None:
        self._starting = False
        buffer, running = self._buffer, self._running
        if not (buffer or self._forming):
            return
        most = self.settings.concurrency
        if self._draining or self._lease_is_over():
            return  # the watch hands them back
        if self._has_batches:
            self._start_batches()
        create = asyncio.get_running_loop().create_task
        while buffer and len(running) - self._batched < most:
            claimed, claimed_at = buffer.popleft()
            task = self.app.tasks.get(claimed.task)
            if task is not None and task.execution.batch is not None and claimed.crashes < ALONE_AFTER_CRASHES:
                self._form(task, claimed, claimed_at)
                continue
            attempt = self._begin(claimed, task)
            attempt.handle = create(self._run(attempt))
        self._limit_blocking()

    def _begin(self, claimed: ClaimedJob, task: Task[Any, Any] | None) -> Attempt:
        job = Job(claimed, self)
        attempt = Attempt(job, task or _unknown(self.app, claimed.task))
        if claimed.timeout_seconds is not None:
            job.deadline = attempt.started_at + claimed.timeout_seconds
            if attempt.task.execution.runs != "process":
                self._latest = max(self._latest, job.deadline)
        elif attempt.task.execution.runs != "process":
            attempt.timeless = True
            self._timeless += 1
        self._running[claimed.id] = attempt
        if "claimed" in self._hooked:
            self._tell("claimed", attempt)
        return attempt

    # -- batches

    def _form(self, task: Task[Any, Any], claimed: ClaimedJob, claimed_at: float) -> None:
        """Put it with the others of its task, until they are enough or have waited long enough."""
        forming = self._forming.get(task.name)
        if forming is None:
            assert task.execution.batch is not None  # noqa: S101
            forming = self._forming[task.name] = Forming(task, task.execution.batch)
            forming.timer = asyncio.get_running_loop().call_later(forming.batch.wait, self._due, forming)
        forming.jobs.append((claimed, claimed_at))
        if forming.ready:
            self._start_batches()

    def _due(self, forming: Forming) -> None:
        forming.due = True
        self._start_next()

    def _start_batches(self) -> None:
        for forming in list(self._forming.values()):
            if forming.ready and self._slots() < self.settings.concurrency:
                self._drop(forming)
                attempts = [self._begin(claimed, forming.task) for claimed, _ in forming.jobs]
                # One call has one time-out: the shortest.
                deadline = min((each.job.deadline for each in attempts if each.job.deadline is not None), default=None)
                for attempt in attempts:
                    attempt.batch = attempts
                    attempt.job.deadline = deadline
                self._batched += len(attempts) - 1
                handle = asyncio.get_running_loop().create_task(self._run_batch(attempts))
                for attempt in attempts:
                    attempt.handle = handle

    def _drop(self, forming: Forming) -> None:
        del self._forming[forming.task.name]
        if forming.timer is not None:
            forming.timer.cancel()

    async def _run_batch(self, attempts: list[Attempt]) -> None:
        found: list[Any] = []
        try:
            found = await self._runner.run_batch(attempts)
        except BaseException as error:
            found = [error] * len(attempts)
        self._batched -= len(attempts) - 1
        for attempt, outcome in zip(attempts, found, strict=True):
            raised = outcome if isinstance(outcome, BaseException) else None
            await self._run(attempt, (None if raised else outcome, raised))

    async def _run(self, attempt: Attempt, performed: tuple[Any, BaseException | None] | None = None) -> None:
        job = attempt.job
        try:
            await self._perform(attempt, performed)
        except BaseException as error:
            # Not the handler's own error: something in what it left us with. A slot must never be lost for it.
            logger.exception("job %d (%s): its attempt could not be concluded", job.id, job.task, extra=log_fields(job))
            self._ended(attempt, Ending("failed", failure(job, error)), error)
        finally:
            if self._running.get(job.claimed.id) is attempt:
                del self._running[job.claimed.id]
                self._timeless -= attempt.timeless
                self.finished += 1
                if self.finished == self.settings.max_jobs:
                    self.stop()
            if (self._buffer or self._forming) and not self._starting:
                # Once for all that finish in this round of the loop.
                self._starting = True
                asyncio.get_running_loop().call_soon(self._start_next)
            self._bell.set()

    async def _perform(self, attempt: Attempt, performed: tuple[Any, BaseException | None] | None) -> None:
        job = attempt.job
        result, raised = performed or (None, None)
        try:
            if performed is None:
                job.heartbeat()  # it may have been stopped before it began
                attempt.begun = True
                result = await self._runner.run(attempt)
        except BaseException as error:
            raised = error  # even SystemExit: a handler ends its attempt, never the worker
        if job in self._changed:
            with suppress(asyncio.CancelledError):
                await self._say(job)  # while the lease is ours
        if self._running.get(job.claimed.id) is not attempt:
            return  # given up before
        if raised is not None:
            self._ended(attempt, ending(attempt, raised), raised)
        elif job.stop_reason == "lease_lost":
            self._ended(attempt, Ending("lost"), None)
        elif attempt.committed:
            self._tell("completed", attempt)
        else:
            if result is not None:
                result = self._storable(job, result)
            if job._children:
                self._families.append((attempt, result))
            else:
                self._done.append((job.claimed.id, job.claimed.token, result))
                if self.observe is not None or "completed" in self._hooked:
                    self._tell("completed", attempt)

    def _ended(self, attempt: Attempt, end: Ending, error: BaseException | None) -> None:
        if self._running.get(attempt.job.id) is not attempt:
            return  # given up before
        if end.kind == "lost":
            logger.warning(
                "job %d (%s) belongs to another worker now: its result is dropped", attempt.job.id, attempt.job.task,
                extra=log_fields(attempt.job),
            )  # fmt: skip
            self._tell("lease_lost", attempt, error=error)
        elif attempt.committed:
            logger.debug("job %d raised after its commit", attempt.job.id, extra=log_fields(attempt.job))
        else:
            self._endings.append((attempt, end))

    def _storable(self, job: Job, result: Any) -> Any:
        try:
            text = database.encode_value(encode_value(result, "result"))
        except Exception as error:
            # Its work is done: to fail it now would do it again.
            logger.warning("job %d (%s) completed, but its result cannot be stored: %s", job.id, job.task, error,
                           extra=log_fields(job))  # fmt: skip
            return None
        return text and Encoded(text)

    def _tell(
        self, event: Event, attempt: Attempt, *, error: BaseException | None = None, delay: float | None = None
    ) -> None:
        if self.observe is not None:
            self.observe(attempt.task.name, event, time.monotonic() - attempt.started_at)
        if event not in self._hooked:
            return
        job = attempt.job
        told = JobEvent(
            event, job.id, job.task, job.queue, job.attempt, time.monotonic() - attempt.started_at, error, delay
        )
        for hook in self.app.hooks[event]:
            try:
                answer = hook(told)
                if inspect.isawaitable(answer):
                    self._beside(answer, job)
            except Exception:
                logger.exception("a hook for %s raised", event, extra=log_fields(job))

    def _beside(self, awaitable: Awaitable[Any], job: Job | None = None) -> None:
        """Run it beside everything else; a failure of it is only said."""
        future = asyncio.ensure_future(awaitable)
        self._aside.add(future)
        future.add_done_callback(self._aside.discard)
        future.add_done_callback(lambda future: _say_failure(future, job))

    # -- what jobs say (see job.Reporter)

    def execute(self, call: Call[T]) -> T:
        return persist(lambda: self.app.execute(call))

    async def aexecute(self, call: Call[T]) -> T:
        return await apersist(lambda: self.app.aexecute(call))

    def changed(self, job: Job) -> None:
        self._changed.add(job)

    async def _say(self, job: Job) -> None:
        self._changed.discard(job)
        try:
            for call in job.unsaid():
                async with asyncio.timeout(SAY_SECONDS):
                    accepted = await self.app.aexecute(call)
                if not accepted and job.stop_reason is None:
                    self._stop_attempt(job.id, job.token, "lease_lost")
        except Exception as error:
            why = str(error) or type(error).__name__
            logger.warning("job %d: its progress could not be stored: %s", job.id, why, extra=log_fields(job))

    # -- watching

    async def _watch(self) -> None:
        while True:
            wake_at = time.monotonic() + (WATCH_SECONDS if self._busy() else 2 * WATCH_SECONDS)
            await asyncio.sleep(wake_at - time.monotonic())
            self._say_late(time.monotonic() - wake_at)
            try:
                await self._look()
            except _Undrained:
                self._unheard = True
                if self._owes():
                    logger.error("the database does not answer: leaving without a report; the sweep will take our jobs")
                    self.exit_code, self.abandoned = EXIT_FAILED, True
                return
            except Exception:
                logger.exception("watching failed; going on")

    def _say_late(self, seconds: float) -> None:
        if seconds > LATE_SECONDS and time.monotonic() > self._said_late_at + 60:
            self._said_late_at = time.monotonic()
            logger.warning(
                "the event loop stood still for %.1f s, and all jobs of this worker with it, their time-outs and"
                " cancellations too: what blocks belongs into a plain def", seconds,
            )  # fmt: skip

    async def _look(self) -> None:
        now = time.monotonic()
        if self._draining:
            self._look_whether_drained(now)
        self._looked_at = now
        self._beat.ensure()
        if self._beat.lost:
            self._bell.set()  # the pump sees to it
        for attempt in list(self._running.values()):
            job = attempt.job
            if attempt.hard_at is not None and now >= attempt.hard_at:
                self._give_up(attempt)
            elif job.deadline is not None and now >= job.deadline and job.stop_reason is None:
                self._stop_attempt(job.id, job.token, "timeout")
        blocking = [each for each in self._running.values() if each.task.execution.runs != "process"]
        self._timeless = sum(each.timeless for each in blocking)
        self._latest = max((each.hard_at or each.job.deadline or -math.inf for each in blocking), default=-math.inf)
        self._limit_blocking()
        held = [(self._buffer[0][1], 0.0)] if self._buffer else []
        held += [(forming.jobs[0][1], forming.batch.wait) for forming in self._forming.values()]
        late = any(now - claimed_at > BUFFER_SECONDS + wait for claimed_at, wait in held)
        if held and (late or self._draining or self._lease_is_over()):
            await self._hand_back()
        for job in list(self._changed):
            self._beside(self._say(job))  # one that waits for a lock must not make the others wait
        if now - self._checked_cancels_at > 1 and any(now - each.started_at > 0.5 for each in self._running.values()):
            await self._check_cancels()

    def _look_whether_drained(self, now: float) -> None:
        """The pump sees to it, unless it waits for a database that does not answer."""
        silent = self._link.away or now > self._asked_at + SAY_SECONDS
        if not self._owes():
            over = silent or now > self._stopped_at + SILENT_SECONDS
        elif silent:
            self._stop_overdue()
            over = now >= self._drain_until + (GRACE_SECONDS if self._running else 0)
        else:
            over = now > self._drain_until + 2 * GRACE_SECONDS + SAY_SECONDS
        if over:
            raise _Undrained

    def _lease_is_over(self) -> bool:
        # Asked before every start: the shared memory is read only when the deadline that it last told has passed.
        now = beat.now()
        if now >= self._leased_until:
            self._leased_until = self._beat.leased_until
        return now >= self._leased_until

    async def _hand_back(self) -> None:
        """What was claimed but not started goes to others, its attempt refunded."""
        leases = [(job.id, job.token) for job, _ in self._buffer]
        self._buffer.clear()
        for forming in list(self._forming.values()):
            leases += [(job.id, job.token) for job, _ in forming.jobs]
            self._drop(forming)
        for id, token in leases:
            job = Job(ClaimedJob(id, token, "", "", {}, 0, 0, None, 0, 0, None, None, None), self)  # type: ignore[arg-type]
            self._endings.append((Attempt(job, _unknown(self.app, "")), Ending("released")))
        self._rate = 0.0
        self._bell.set()

    async def _check_cancels(self) -> None:
        self._checked_cancels_at = time.monotonic()
        sent_at = beat.now()
        try:
            async with asyncio.timeout(SAY_SECONDS):
                found = await self.app.aexecute(database.heartbeat(self.worker_id))
        except Exception as error:
            logger.debug("no heartbeat of our own: %s", error)
            return
        if found.alive:
            self._beat.beaten(sent_at)
        for id in found.cancel_ids:
            if (attempt := self._running.get(id)) is not None and attempt.job.stop_reason is None:
                self._stop_attempt(id, attempt.job.token, "cancelled")

    def _stop_attempt(self, id: int, token: int, reason: StopReason) -> None:
        """Ask a handler to stop; give it up if it does not."""
        attempt = self._running.get(id)
        if attempt is None or attempt.job.token != token:
            return
        job = attempt.job
        if job.stop_reason is not None and reason != "lease_lost":
            return  # the first reason counts: what timed out has failed, also while we drain
        job.stop_reason = reason
        if attempt.batch is not None and any(self._is_wanted(other) for other in attempt.batch):
            return  # the handler may ask job.cancel_requested; the others are not stopped for this one
        for other in attempt.batch or [attempt]:
            other.hard_at = time.monotonic() + GRACE_SECONDS
        if reason == "lease_lost":
            hang_up_on(job.conn)  # its transaction cannot commit any more, and its connection may be the one that hangs
        if attempt.child is not None:
            attempt.child.stop(reason)
        elif attempt.task.execution.runs != "thread" and attempt.handle is not None and attempt.begun:
            attempt.handle.cancel()  # one that has not begun sees the reason when it does

    def _is_wanted(self, attempt: Attempt) -> bool:
        return attempt.job.stop_reason is None and self._running.get(attempt.job.id) is attempt

    def _give_up(self, attempt: Attempt) -> None:
        """If it runs in this process it cannot be killed: report, drain, and let somebody start us anew."""
        job = attempt.job
        if attempt.child is not None:
            logger.warning("job %d (%s) does not stop (%s): killing its process", job.id, job.task, job.stop_reason,
                           extra=log_fields(job))  # fmt: skip
            attempt.hard_at = None
            attempt.child.kill()
            return
        if job.conn is not None and not attempt.hung_up:
            attempt.hung_up = True
            attempt.hard_at = time.monotonic() + GRACE_SECONDS
            hang_up_on(job.conn)
            return
        logger.error(
            "job %d (%s) does not stop (%s): giving it up. A thread cannot be killed, so this worker drains and exits"
            ' (a task with runs_in="process" can be killed)', job.id, job.task, job.stop_reason,
            extra=log_fields(job),
        )  # fmt: skip
        end = ending(attempt, asyncio.CancelledError())
        if end.kind == "lost" or attempt.committed:
            self._ended(attempt, end, None)
        else:
            self._given_up.append((attempt, end))
        self._running.pop(job.id, None)
        self.abandoned = True
        self.exit_code = EXIT_HUNG
        self.stop()
        self._bell.set()

    async def _drained(self) -> bool:
        if self._buffer or self._forming:
            await self._hand_back()
            return False
        if not self._running:
            return True
        self._stop_overdue()
        return False

    def _stop_overdue(self) -> None:
        if time.monotonic() >= self._drain_until:
            for attempt in list(self._running.values()):
                if attempt.job.stop_reason is None:
                    self._stop_attempt(attempt.job.id, attempt.job.token, "shutdown")
                    attempt.hard_at = time.monotonic() + min(GRACE_SECONDS, 2.0)

    async def _lost(self, why: str) -> None:
        """Our jobs belong to others: abandon them all, and begin anew under another id."""
        logger.error("%s: abandoning %d jobs and registering again", why, len(self._running) + len(self._buffer))
        for attempt in list(self._running.values()):
            self._stop_attempt(attempt.job.id, attempt.job.token, "lease_lost")
        self._buffer.clear()
        for forming in list(self._forming.values()):
            self._drop(forming)
        self._done.clear()
        self._endings.clear()
        self._families.clear()
        self._unanswered.clear()
        self._given_up.clear()
        if not self._draining:
            await self._register()
            self._noticed = True
        self._bell.set()

    # -- beside it

    async def _upkeep(self) -> None:
        link, queues = Link(self._conninfo, "upkeep"), list(self.settings.queues)
        await upkeep(link, queues, lambda: self.finished, lambda: self.worker_id, self._told_to_drain)

    async def _listen(self) -> None:
        if self.settings.listen:
            url = self.settings.listen_url
            await listen(Link(url or self._conninfo, "listen", voice=url is not None), self._heard)
        await asyncio.Event().wait()  # polling does it

    def _heard(self, text: str) -> None:
        if text == "" or text in self.settings.queues:
            self._noticed = True
            self._bell.set()
        elif text.startswith("circuit ") and (task := text.removeprefix("circuit ")) in self.app.tasks:
            logger.warning("the circuit of task %s is open: its jobs wait", task)
        elif text == f"cancel {self.worker_id}":
            self._checked_cancels_at = 0.0
            self._beside(self._check_cancels())
        elif text == f"drain {self.worker_id}":
            self._beside(self._check_drain())

    async def _check_drain(self) -> None:
        if await self.app.aexecute(database.drain_requested(self.worker_id)):  # anybody may notify
            self._told_to_drain()

    def _told_to_drain(self) -> None:
        if not self._draining:
            logger.info("an operator wants this worker to end")
            self.stop()


@asynccontextmanager
async def _patiently(conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    with hung_up_after(PATIENCE_SECONDS, conn):
        yield


class _Refused(Exception):
    pass


class _Undrained(Exception):
    """The database does not answer, and there is nothing to tell it, or no more time to."""


def _results(done: list[tuple[int, int, Any]]) -> list[Any] | None:
    return [result for _, _, result in done] if any(result is not None for _, _, result in done) else None


def _few(done: list[tuple[int, int, Any]]) -> int:
    """How many of them one call takes: not too many, and not too big."""
    size = 0
    for count, (_, _, result) in enumerate(done[:BATCH]):
        if result is not None:
            size += len(result)
            if size > REPORT_BYTES and count:
                return count
    return min(len(done), BATCH)


def _say_failure(task: asyncio.Future[Any], job: Job | None) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a hook raised: %r", error, extra=log_fields(job) if job is not None else None)


def _unknown(app: App, name: str) -> Task[Any, Any]:
    """Stands in for a task that this worker does not know: its attempts fail, the job waits for one that does."""

    async def unknown(**_: Any) -> None:
        raise UnknownTask(f"no task named {name!r} here: deploy its code, or start a worker that has it")

    return AsyncTask(app, unknown, name or "unknown", {}, Execution())


class UnknownTask(PgqueueError):
    """The job's task is not in the app of this worker."""
