"""What the queue promises, said as plainly as possible: the model that test_queue.py compares the database with.

Time is counted in seconds that only `elapse` moves, and every duration of the test is a multiple of ten: so the moments
that a run really takes never decide anything.

A job that could be claimed is "pending" here, whatever keeps it: in the database it may still be scheduled although it
is due, or parked because of its group or its task. Which of these may be, `test_queue.py` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model import test_flows

LIVE = test_flows.LIVE
BAD = test_flows.BAD
RETRY_DELAY = 100
MAX_CRASHES = 5
NEVER = -math.inf


def ended(said: Mapping[int, str]) -> dict[int, str]:
    """Of what became of jobs, the ends."""
    return {id: status for id, status in said.items() if status in ("completed", "dead", "cancelled")}


@dataclass
class Job:
    id: int
    queue: str = "a"
    task: str = "t1"
    key: str | None = None
    key_ttl: int | None = None
    priority: int = 0
    group: str | None = None
    max_attempts: int = 3
    run_at: float = 0
    expires_at: float = math.inf
    kept: bool = True  # after it has ended
    attempt: int = 0
    crashes: int = 0
    token: int = 0
    worker: int | None = None


@dataclass
class Worker:
    lease: int
    beat: float
    gone: bool = False  # declared lost, or retired


@dataclass
class Rate:
    """A token bucket, as the moment when it is full again."""

    full_at: float = NEVER

    def tokens(self, now: float, step: float, burst: int) -> int:
        return math.floor((burst * step - max(self.full_at - now, 0)) / step + 1e-9)

    def charge(self, now: float, step: float, starts: int) -> None:
        self.full_at = max(self.full_at, now) + starts * step


@dataclass
class Pause:
    """paused: until this time; throttled: nothing starts before."""

    paused: float | None = None
    throttled: float = NEVER
    rate: Rate = field(default_factory=Rate)

    def stops(self, now: float) -> bool:
        return (self.paused is not None and self.paused > now) or self.throttled > now


@dataclass
class Recurring:
    every: int
    starts_at: float
    overlap: str
    catch_up: str
    catch_up_max: int
    after: float
    last_job: int | None = None
    paused: bool = False

    def due(self, now: float) -> list[float]:
        first = math.floor((self.after - self.starts_at) / self.every) + 1
        last = math.floor((now - self.starts_at) / self.every)
        return [self.starts_at + n * self.every for n in range(max(first, 0), last + 1)]


class World(test_flows.Model):
    """Jobs, keys, workers, limits; flows are those of the model of flows."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.jobs: dict[int, Job] = {}
        self.holds: dict[tuple[str, str], tuple[int, float]] = {}  # finished job that holds a key, until when
        self.workers: dict[int, Worker] = {}
        self.queues: dict[str, Pause] = {name: Pause() for name in "abf"}
        self.limits: dict[str, dict[str, Any]] = {name: {} for name in "abf"}
        self.groups: dict[tuple[str, str], Pause] = {}
        self.tasks: dict[str, Pause] = {}
        self.recurring: dict[str, Recurring] = {}
        self.flows: set[int] = set()
        self.completed = 0

    def status_is(self, *statuses: str) -> list[int]:
        return [id for id, status in self.status.items() if status in statuses]

    def group(self, job: Job) -> Pause:
        assert job.group is not None
        return self.groups.setdefault((job.queue, job.group), Pause())

    # -- coming

    def new(self, job: Job, flow: int = 0, parents: Mapping[int, str] | None = None, waits: bool = True) -> None:
        self.jobs[job.id] = job
        self.add(flow, job.id, dict(parents or {}), waits)

    def holder(self, queue: str, key: str | None) -> int | None:
        """The finished job that holds the key."""
        job_id, until = self.holds.get((queue, key or ""), (None, NEVER))
        return job_id if until > self.now else None

    def live_with(self, queue: str, key: str | None) -> int | None:
        for id in self.status_is(*LIVE):
            if key is not None and (self.jobs[id].queue, self.jobs[id].key) == (queue, key):
                return id
        return None

    # -- going

    def free(self, job: Job) -> bool:
        """It could start, as far as limits allow."""
        return (
            self.status[job.id] == "pending"
            and job.run_at <= self.now
            and job.expires_at > self.now
            and not self.queues[job.queue].stops(self.now)
            and not (job.task in self.tasks and self.tasks[job.task].stops(self.now))
            and not (job.group is not None and self.group(job).stops(self.now))
        )

    def holds_lease(self, worker: int, lease: tuple[int, int]) -> bool:
        job = self.jobs.get(lease[0])
        return job is not None and (job.worker, job.token) == (worker, lease[1])

    def start(self, id: int, worker: int) -> None:
        job = self.jobs[id]
        job.worker, job.token, job.attempt = worker, job.token + 1, job.attempt + 1
        self.status[id] = "running"

    def is_late(self, worker: int) -> bool:
        known = self.workers[worker]
        return known.gone or self.now - known.beat >= known.lease

    def finish(self, ended: Mapping[int, str]) -> None:
        """These end, and with them what hangs on them in flows."""
        before = {id for id in self.status if self.status[id] in LIVE}
        self.end(dict(ended))
        self._settle({id for id in before if self.status[id] not in LIVE})

    def _settle(self, ended: Iterable[int]) -> None:
        for id in ended:
            job = self.jobs[id]
            job.worker = None
            self.asked.discard(id)
            if job.key is not None and job.key_ttl is not None:
                self.holds[job.queue, job.key] = (id, self.now + job.key_ttl)
            if not job.kept and self.status[id] != "dead":
                del self.jobs[id], self.status[id], self.parents[id], self.open[id], self.flow_of[id]

    def wait(self, id: int, delay: float = 0, refund: bool = False) -> str:
        """A running job waits again; or it is to be cancelled, if somebody wants that. The caller tells `finish`."""
        job = self.jobs[id]
        job.worker = None
        if id in self.asked:
            return "cancelled"
        self.status[id] = "pending"
        job.attempt -= refund
        if delay > 0:
            job.run_at = self.now + delay
            if refund:
                job.crashes = 0
        return "scheduled" if delay > 0 else "pending"

    def fail(self, id: int, fatal: bool, retry_in: float | None) -> str:
        job = self.jobs[id]
        if id not in self.asked and (fatal or job.attempt >= job.max_attempts):
            return "dead"
        return self.wait(id, RETRY_DELAY if retry_in is None else retry_in)

    def cancel(self, id: int) -> str | None:
        """The answer; None: there is no such job."""
        status = self.status.get(id)
        if status in ("blocked", "pending"):
            self.finish({id: "cancelled"})
            return "cancelled"
        if status == "running":
            self.asked.add(id)
        return status

    def bring_back(self, id: int) -> None:
        """A retry; with what the end of this job had stopped."""
        before = dict(self.status)
        super().retry(id)
        for other, status in self.status.items():
            if status in LIVE and before[other] in BAD:
                job = self.jobs[other]
                job.attempt = job.crashes = 0
                job.expires_at, job.run_at = math.inf, self.now
                if job.key is not None and self.holds.get((job.queue, job.key), (0, 0))[0] == other:
                    del self.holds[job.queue, job.key]

    # -- what happens by itself

    def lose_workers(self) -> int:
        lost = [id for id, worker in self.workers.items() if not worker.gone and self.is_late(id)]
        for id in lost:
            self.workers[id].gone = True
        return len(lost)

    def rescue(self) -> dict[int, str]:
        """The jobs of workers that are gone wait again, or die."""
        said = {}
        for id in sorted(self.status_is("running")):
            job = self.jobs[id]
            assert job.worker is not None
            if not self.workers[job.worker].gone:
                continue
            job.crashes += 1
            if id not in self.asked and (job.attempt >= job.max_attempts or job.crashes >= MAX_CRASHES):
                said[id] = "dead"
            else:
                said[id] = self.wait(id, 0 if job.crashes == 1 else RETRY_DELAY)
        self.finish(ended(said))
        return said

    def expire(self) -> None:
        for id in self.status_is("pending"):
            if self.jobs[id].expires_at <= self.now:
                self.finish({id: "cancelled"})

    def end_pauses(self) -> None:
        """Of tasks and groups; that of a queue is over by its time, but stands there until somebody resumes."""
        for pause in (*self.tasks.values(), *self.groups.values()):
            if pause.paused is not None and pause.paused <= self.now:
                pause.paused = None

    def fire(self, name: str) -> list[tuple[str, float]]:
        """What becomes of the due times of a recurring job: outcome and time; then the caller enqueues."""
        recurring = self.recurring[name]
        due = recurring.due(self.now)
        if not due:
            return []
        take = {"skip": due[-1:] if due[-1] > self.now - 60 else [], "latest": due[-1:]}
        recurring.after = due[-1]
        return [("due", at) for at in take.get(recurring.catch_up, due[-recurring.catch_up_max :])]
