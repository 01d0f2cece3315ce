"""The job that a handler is running, as the handler sees it.

    @app.task
    def import_file(path: str, job: Job = INJECTED) -> None:
        rows = job.step("download", download, path)      # not done again by a retry
        for n, row in enumerate(rows):
            job.heartbeat()                              # stops here when it was cancelled or timed out
            job.progress(n / len(rows))

`current_job()` gives the same object anywhere below the handler.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, cast, get_origin, overload

import psycopg

from pgqueue import database
from pgqueue.arguments import encode_value
from pgqueue.database import Call, ClaimedJob, Parent
from pgqueue.errors import InvalidArgument, LeaseLost, PgqueueError
from pgqueue.outcomes import Stopped

if TYPE_CHECKING:
    from pgqueue.flows import Plan
    from pgqueue.task import Signature

P = ParamSpec("P")
T = TypeVar("T")
StopReason = Literal["cancelled", "timeout", "shutdown", "lease_lost"]
Level = Literal["debug", "info", "warning", "error"]


class Reporter(Protocol):
    """What carries a job's words to the database: the worker, or a child process of it."""

    worker_id: int

    def execute(self, call: Call[T]) -> T: ...
    async def aexecute(self, call: Call[T]) -> T: ...
    def changed(self, job: Job) -> None:
        """The job has a new progress or log line, to be stored soon."""


class Graph(NamedTuple):
    """Jobs that a handler adds: a flow of their own, or (`hold` is not None) more of the flow that its job is in."""

    jobs: list[dict[str, Any]]
    hold: bool | None = None


class Job:
    """One attempt of one job."""

    __slots__ = (
        "_children",
        "_lines",
        "_parents",
        "_progress",
        "_reporter",
        "_steps",
        "claimed",
        "conn",
        "deadline",
        "stop_reason",
        "worker_id",
    )

    def __init__(self, claimed: ClaimedJob, reporter: Reporter) -> None:
        self.claimed = claimed
        self.worker_id = reporter.worker_id  # with the token it is the fence: the worker may get a new one meanwhile
        self._reporter = reporter
        self.deadline: float | None = None  # by time.monotonic(): when the attempt's time is up
        self.stop_reason: StopReason | None = None
        self.conn: Any = None  # of a transactional task
        self._steps: dict[str, Any] | None = None
        self._children: list[Signature | Graph] | None = None
        self._parents: dict[str, Parent] | None = None
        self._progress: Any = None
        self._lines: deque[tuple[datetime, str, str]] | None = None

    def __repr__(self) -> str:
        return f"<job {self.id}, {self.task}, attempt {self.attempt}>"

    id = property(lambda self: cast(int, self.claimed.id))
    token = property(lambda self: cast(int, self.claimed.token))
    task = property(lambda self: cast(str, self.claimed.task))
    queue = property(lambda self: cast(str, self.claimed.queue))
    attempt = property(lambda self: cast(int, self.claimed.attempt))
    max_attempts = property(lambda self: cast(int, self.claimed.max_attempts))
    group = property(lambda self: cast("str | None", self.claimed.group_key))
    priority = property(lambda self: cast(int, self.claimed.priority))
    enqueued_at = property(lambda self: cast(datetime, self.claimed.enqueued_at))
    meta = property(lambda self: cast("dict[str, Any]", self.claimed.meta or {}))

    @property
    def due_at(self) -> datetime | None:
        """When a recurring job's job was due, whenever it runs; None for any other."""
        return datetime.fromisoformat(self.meta["due_at"]) if "recurring" in self.meta else None

    # -- being stopped

    @property
    def cancel_requested(self) -> bool:
        """Somebody wants this attempt to end: look at `stop_reason` for why."""
        return self.stop_reason is not None

    @property
    def lease_lost(self) -> bool:
        """The job belongs to another worker now: nothing that this attempt says is accepted any more."""
        return self.stop_reason == "lease_lost"

    @property
    def seconds_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()

    def heartbeat(self) -> None:
        """For long work: raises `Stopped` if this attempt should end. (The lease needs no help of yours.)"""
        if self.stop_reason is not None:
            raise Stopped(self.stop_reason)

    # -- saying something

    def progress(self, value: Any) -> None:
        """How far it is: a number from 0 to 1, or any JSON value. Stored within half a second; the last one counts."""
        value = encode_value(value, "progress")
        database.encode_value(value)  # so that whoever says it gets the error
        self._progress = value
        self._reporter.changed(self)

    def log(self, message: str, level: Level = "info") -> None:
        """A line for people who look at this job."""
        if self._lines is None:
            self._lines = deque()
        self._lines.append((datetime.now(UTC), level, str(message)))
        self._reporter.changed(self)

    def unsaid(self) -> list[Call[bool]]:
        """What has been said since the last time, as calls; for the worker."""
        calls = []
        if self._progress is not None:
            value, self._progress = self._progress, None
            calls.append(database.progress(self.worker_id, self.id, self.token, value))
        if self._lines:
            # One by one: a handler's thread may be writing.
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            calls.append(database.log(self.worker_id, self.id, self.token, lines))
        return calls

    # -- flows

    @property
    def flow_id(self) -> int | None:
        """The flow that this job is in, or is the callback of."""
        return cast("int | None", self._flow.get("id"))

    @property
    def _flow(self) -> dict[str, Any]:
        flow = (self.claimed.meta or {}).get("flow")
        return flow if isinstance(flow, dict) else {}

    @property
    def parents(self) -> Mapping[str, Parent]:
        """How the jobs ended that this one runs after, by name: `job.parents["charge"].result`.

        They are read when they are first asked for; an async handler that has asked for its `Job` finds them read.
        """
        if self._parents is None:
            self._parents = {each.name: each for each in self._reporter.execute(database.load_parents(self.id))}
        return self._parents

    async def aparents(self) -> Mapping[str, Parent]:
        if self._parents is None:
            found = await self._reporter.aexecute(database.load_parents(self.id)) if "job" in self._flow else []
            self._parents = {each.name: each for each in found}
        return self._parents

    def enqueue(self, *what: Signature | Plan[Any], before_successors: bool = False) -> None:
        """Enqueue jobs, or flows, together with the completion of this one: `job.enqueue(other.s(1))`. If this attempt
        fails, they never existed.

        In a flow they become part of it and run after this job, except a call with a key, which may be the job of
        somebody else. `before_successors`: what runs after this job in the flow waits for them, too.
        """
        name = self._flow.get("job")
        if before_successors and name is None:
            raise InvalidArgument(f"job {self.id} is in no flow: nothing runs after it")
        if self._children is None:
            self._children = []
        for each in what:
            if hasattr(each, "layout"):
                graph = Graph(each.layout().jobs(name), None if name is None else before_successors)
            elif name is None or (each.options.get("key") is not None and not before_successors):
                self._children.append(each)
                continue
            else:
                job = each.described(lambda _, value: name if value.of is None else value.of)
                graph = Graph([job], before_successors)
            self._add(graph)

    def add_children(self, children: Iterable[Signature | Graph]) -> None:
        """What the same attempt has added in another process."""
        self._children = [*(self._children or []), *children]

    def _add(self, graph: Graph) -> None:
        children = cast("list[Signature | Graph]", self._children)
        if graph.hold is not None:
            for other in children:
                if isinstance(other, Graph) and other.hold == graph.hold:
                    other.jobs.extend([_moved(job, len(other.jobs)) for job in graph.jobs])
                    return
        children.append(graph)

    def added(self) -> list[Signature | Graph]:
        return self._children or []

    def children(self) -> list[Call[Any]]:
        """What has to be enqueued before the completion, in its transaction. What locks the flow comes last."""
        graphs = [each for each in self.added() if isinstance(each, Graph)]
        calls: list[Call[Any]] = [each.call() for each in self.added() if not isinstance(each, Graph)]
        calls += [database.enqueue_flow({"jobs": each.jobs}) for each in graphs if each.hold is None]
        for each in graphs:
            if each.hold is not None:
                calls.append(database.extend_flow(self.worker_id, self.id, self.token, each.jobs, each.hold))
        return calls

    # -- steps

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a part of the handler once: a retry gets the stored result instead.

        With an async function it is awaited: `await job.step("charge", charge, order)`. A step that was running when
        its worker died runs again: make it idempotent towards the outside, for example by the id of the job.
        """
        if inspect.iscoroutinefunction(function):
            return self._astep(name, function, args, kwargs)
        done = self._known_steps()
        if done is None:
            done = self._steps = self._reporter.execute(database.load_steps(self.id))
        if name in done:
            return done[name]
        self.heartbeat()
        result = encode_value(function(*args, **kwargs), f"result of step {name!r}")
        # On a connection of its own, and committed at once: the step has happened, whatever becomes of the attempt.
        saved = self._reporter.execute(self._save(name, result))
        return self._remember(done, name, result, saved)

    async def _astep(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        done = self._known_steps()
        if done is None:
            done = self._steps = await self._reporter.aexecute(database.load_steps(self.id))
        if name in done:
            return done[name]
        self.heartbeat()
        result = encode_value(await function(*args, **kwargs), f"result of step {name!r}")
        saved = await self._reporter.aexecute(self._save(name, result))
        return self._remember(done, name, result, saved)

    def _known_steps(self) -> dict[str, Any] | None:
        if self._steps is None and self.token == 1:
            self._steps = {}  # nobody has run it before
        return self._steps

    def _save(self, name: str, result: Any) -> Call[bool]:
        return database.save_step(self.worker_id, self.id, self.token, name, result)

    def _remember(self, done: dict[str, Any], name: str, result: Any, saved: bool) -> Any:
        if not saved:
            self.stop_reason = "lease_lost"
            raise LeaseLost(f"job {self.id} belongs to another worker: its step {name!r} could not be stored")
        done[name] = result
        return result


def _moved(job: dict[str, Any], by: int) -> dict[str, Any]:
    """A job of a graph whose positions have become others."""
    after, results = job.get("after"), job.get("results")
    if after:
        job = {
            **job,
            "after": [each + by if isinstance(each, int) else {**each, "job": each["job"] + by} for each in after],
        }
    if results:
        job = {**job, "results": {name: of + by if type(of) is int else of for name, of in results.items()}}
    return job


_current: ContextVar[Job] = ContextVar("pgqueue_job")


def current_job() -> Job:
    """The job that is running here."""
    try:
        return _current.get()
    except LookupError:
        raise PgqueueError("no job is running here") from None


def log_fields(job: Job | None = None) -> dict[str, Any]:
    """What a log line about a job carries, as `extra`; without one, about the job that is running here, if any."""
    job = job or _current.get(None)
    return {} if job is None else {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}


def set_current_job(job: Job) -> None:
    _current.set(job)


def is_connection(annotation: Any) -> bool:
    """Whether a transactional handler can ask for this."""
    types: set[Any] = {psycopg.Connection, psycopg.AsyncConnection}
    if "sqlalchemy.orm" in sys.modules:
        types.add(sys.modules["sqlalchemy.orm"].Session)
    if "sqlalchemy.ext.asyncio" in sys.modules:
        types.add(sys.modules["sqlalchemy.ext.asyncio"].AsyncSession)
    return (get_origin(annotation) or annotation) in types  # Connection[Any] too
