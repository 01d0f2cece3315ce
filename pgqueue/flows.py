"""Flows: jobs that run one after the other, enqueued whole in one call.

    chain(fetch.s(url), parse.s(parent()), store.s(parent())).enqueue()
    gather(resize.s(path, width) for width in (200, 800)).then(publish.s(parents())).enqueue(conn=session)

    flow = Flow("order 7", on_dead=alert.s("order 7"))
    charge = flow.add(charge_card.s(7))
    label = flow.add(print_label.s(7))
    flow.add(ship.s(receipt=charge.result), after=label, on_death="stop")
    handle = flow.enqueue()

Nothing is passed on by itself: an argument is a parent's result where the call says so. `parent()` is the one job
before, `parent("charge")` one by name, `parents()` the list of all, `step.result` (in a `Flow`) what this step returns.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from pgqueue import database
from pgqueue.arguments import ParentResult
from pgqueue.database import Call, CancelledFlow, EnqueuedFlow, FlowInfo, JobInfo
from pgqueue.errors import InvalidArgument, JobCancelled, JobDead
from pgqueue.handle import JobHandle, pauses
from pgqueue.task import Signature, TaskSignature

if TYPE_CHECKING:
    from pgqueue.app import App

R = TypeVar("R")
S = TypeVar("S")
OnDeath = Literal["wait", "stop", "continue"]


def parent(name: str | None = None) -> Any:
    """Stands for what a parent returns: the one named so, or the only one."""
    return ParentResult(name)


def parents(*names: str) -> Any:
    """Stands for a list of what the parents return, in order: all, or those of these names. `"part"` also means part-2,
    part-17, …: what jobs of a task are called when nobody names them."""
    return ParentResult(list(names) or True)


# ---------------------------------------------------------------------------------------------- layout


@dataclass(frozen=True, slots=True)
class _Node:
    signature: Signature
    name: str | None
    after: Mapping[int, OnDeath]
    on_death: OnDeath


class _Layout:
    """The jobs of a flow in an order in which parents come first, so that they can be named by their positions."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []

    def place(
        self, part: Signature | Plan[Any], after: Mapping[int, OnDeath], on_death: OnDeath, name: str | None = None
    ) -> list[int]:
        """Add it behind these; the positions of what comes last in it."""
        if isinstance(part, Plan):
            return part._lay(self, after)
        if not isinstance(part, Signature):
            raise InvalidArgument(f"a flow is made of calls like send_receipt.s(7), not of {part!r}")
        self.nodes.append(_Node(part, name, after, on_death))
        return [len(self.nodes) - 1]

    def last(self) -> list[int]:
        before = {position for node in self.nodes for position in node.after}
        return [position for position in range(len(self.nodes)) if position not in before]

    def jobs(self, under: str | None = None) -> list[dict[str, Any]]:
        """As sql/functions/enqueue_flow.sql takes them. `under`: the name of the job that adds them to its flow."""
        return [self._job(node, under) for node in self.nodes]

    def _job(self, node: _Node, under: str | None) -> dict[str, Any]:
        after = node.after

        def result_of(argument: str, value: ParentResult) -> Any:
            if isinstance(value.of, Step):
                return value.of.positions[0]
            if value.of is None and (len(after) > 1 or not (after or under)):
                raise InvalidArgument(
                    f"{node.signature.task}({argument}=parent()) runs after {len(after)} jobs: say which,"
                    ' parent("name"), or all of them, parents()'
                )
            return next(iter(after), under) if value.of is None else value.of

        job = node.signature.described(result_of)
        if node.name is not None:
            job["name"] = node.name
        if after:
            job["after"] = [
                position if when == node.on_death else {"job": position, "on_death": when}
                for position, when in after.items()
            ]
            job["on_death"] = node.on_death
        return job


# ----------------------------------------------------------------------------------------------- plans


class Plan(Generic[R]):
    """What can be enqueued as a flow. R is what its last job returns; of several last ones, a list."""

    @abstractmethod
    def _lay(self, layout: _Layout, after: Mapping[int, OnDeath]) -> list[int]: ...

    def then(self, part: TaskSignature[S] | Plan[S], *, on_death: OnDeath = "wait") -> Chain[S]:
        """What runs when all of this has ended. `on_death`: see `Flow.add`."""
        return Chain([self, part], on_death)

    def graph(
        self, name: str | None = None, on_done: Signature | None = None, on_dead: Signature | None = None
    ) -> dict[str, Any]:
        """The flow as sql/functions/enqueue_flow.sql takes it."""
        described: dict[str, Any] = {"jobs": self.layout().jobs()}
        for key, value in (("name", name), ("on_done", on_done and on_done.described()),
                           ("on_dead", on_dead and on_dead.described())):  # fmt: skip
            if value is not None:
                described[key] = value
        return described

    def _is_several(self) -> bool:
        """Whether its result is a list of what the last jobs returned."""
        return False

    def layout(self) -> _Layout:
        layout = _Layout()
        self._lay(layout, {})
        if not layout.nodes:
            raise InvalidArgument("a flow has at least one job")
        return layout

    def enqueue(
        self, *, conn: Any = None, name: str | None = None, on_done: Signature | None = None,
        on_dead: Signature | None = None,
    ) -> FlowHandle[R]:  # fmt: skip
        """Store all of it. With `conn` in the caller's transaction; else it is committed at once.

        `on_done` is enqueued when everything has ended well, `on_dead` when a first job dies.
        """
        app, call, layout = self._call(name, on_done, on_dead)
        return _handle(app, app.execute(call, conn), layout, self._is_several())

    async def aenqueue(
        self, *, conn: Any = None, name: str | None = None, on_done: Signature | None = None,
        on_dead: Signature | None = None,
    ) -> FlowHandle[R]:  # fmt: skip
        app, call, layout = self._call(name, on_done, on_dead)
        return _handle(app, await app.aexecute(call, conn), layout, self._is_several())

    def _call(
        self, name: str | None, on_done: Signature | None, on_dead: Signature | None
    ) -> tuple[App, Call[EnqueuedFlow], _Layout]:
        layout = self.layout()
        apps = [node.signature.app for node in layout.nodes if isinstance(node.signature, TaskSignature)]
        if not apps:
            raise InvalidArgument("which app? At least one call must be made by a task of it: task.s(…)")
        return apps[0], database.enqueue_flow(self.graph(name, on_done, on_dead)), layout


class Chain(Plan[R]):
    """One after the other."""

    def __init__(self, parts: Sequence[Signature | Plan[Any]], on_death: OnDeath = "wait") -> None:
        self._parts = parts
        self._on_death = on_death

    def _lay(self, layout: _Layout, after: Mapping[int, OnDeath]) -> list[int]:
        last = list(after)
        for part in self._parts:
            last = layout.place(part, after, self._on_death)
            after = dict.fromkeys(last, self._on_death)
        return last

    def _is_several(self) -> bool:
        last = self._parts[-1]
        return isinstance(last, Plan) and last._is_several()


Part = Signature | Plan[Any]


class Gather(Plan[R]):
    """Side by side."""

    def __init__(self, parts: Sequence[Signature | Plan[Any]]) -> None:
        self._parts = parts

    def _lay(self, layout: _Layout, after: Mapping[int, OnDeath]) -> list[int]:
        on_death: OnDeath = next(iter(after.values()), "wait")
        return [position for part in self._parts for position in layout.place(part, after, on_death)]

    def _is_several(self) -> bool:
        return True


@overload
def chain(first: Part, last: TaskSignature[R] | Plan[R], /, *, on_death: OnDeath = "wait") -> Chain[R]: ...
@overload
def chain(
    first: Part, second: Part, last: TaskSignature[R] | Plan[R], /, *, on_death: OnDeath = "wait"
) -> Chain[R]: ...
@overload
def chain(
    first: Part, second: Part, third: Part, last: TaskSignature[R] | Plan[R], /, *, on_death: OnDeath = "wait"
) -> Chain[R]: ...
@overload
def chain(*parts: Part, on_death: OnDeath = "wait") -> Chain[Any]: ...
def chain(*parts: Signature | Plan[Any], on_death: OnDeath = "wait") -> Chain[Any]:
    """Calls, or flows, one after the other. `on_death`: see `Flow.add`."""
    return Chain(parts, on_death)


@overload
def gather(*parts: TaskSignature[R] | Plan[R]) -> Gather[list[R]]: ...
@overload
def gather(parts: Iterable[TaskSignature[R] | Plan[R]], /) -> Gather[list[R]]: ...
def gather(*parts: Any) -> Gather[Any]:
    """Calls, or flows, side by side: `gather(a.s(), b.s())`, or of an iterable of them. `.then(total.s(parents()))`."""
    if len(parts) == 1 and not isinstance(parts[0], (Signature, Plan)):
        parts = tuple(parts[0])
    return Gather(parts)


class Step(Generic[R]):
    """Something in a `Flow` that others can run after."""

    __slots__ = ("flow", "positions")

    def __init__(self, flow: Flow, positions: tuple[int, ...]) -> None:
        self.flow = flow
        self.positions = positions

    @property
    def result(self) -> R:
        """Stands for what it returns, as an argument of another call; which then runs after it."""
        if len(self.positions) != 1:
            raise InvalidArgument(f"this step ends with {len(self.positions)} jobs: collect them with parents()")
        return cast(R, ParentResult(self))


class Flow(Plan[Any]):
    """Any directed graph, step by step. A circle cannot be built."""

    def __init__(
        self, name: str | None = None, *, on_done: Signature | None = None, on_dead: Signature | None = None
    ) -> None:
        self._name, self._on_done, self._on_dead = name, on_done, on_dead
        self._layout = _Layout()

    @overload
    def add(
        self,
        part: TaskSignature[R] | Plan[R],
        *,
        after: After = (),
        name: str | None = None,
        on_death: OnDeath = "wait",
    ) -> Step[R]: ...
    @overload
    def add(
        self, part: Signature, *, after: After = (), name: str | None = None, on_death: OnDeath = "wait"
    ) -> Step[Any]: ...
    def add(
        self, part: Signature | Plan[Any], *, after: After = (), name: str | None = None, on_death: OnDeath = "wait"
    ) -> Step[Any]:
        """A call, or a whole plan, that runs after these steps.

        `on_death`: when one of them dies or is cancelled, `"wait"` until somebody retries it; `"stop"`: this one, and
        what hangs on it, is cancelled (and comes back if the other is retried); `"continue"`: run all the same. A step
        may have its own: `after={charge: "stop", label: "continue"}`.
        """
        before: dict[int, OnDeath] = {}
        steps: Mapping[Step[Any], OnDeath] = (
            after if isinstance(after, Mapping)
            else dict.fromkeys([after] if isinstance(after, Step) else after, on_death)
        )  # fmt: skip
        for step, when in steps.items():
            if not isinstance(step, Step) or step.flow is not self:
                raise InvalidArgument(f"after takes steps of this flow, not {step!r}")
            before |= dict.fromkeys(step.positions, when)
        if name is not None and not isinstance(part, Signature):
            raise InvalidArgument("a plan of several jobs has no name of its own")
        if isinstance(part, Signature):
            for value in part.payload.values():
                if isinstance(value, ParentResult) and isinstance(value.of, Step):
                    if value.of.flow is not self:
                        raise InvalidArgument(f"{part.task} takes the result of a step of another flow")
                    before.setdefault(value.of.positions[0], on_death)
        return Step(self, tuple(self._layout.place(part, before, on_death, name)))

    def _lay(self, layout: _Layout, after: Mapping[int, OnDeath]) -> list[int]:
        offset = len(layout.nodes)
        for node in self._layout.nodes:
            if offset and any(
                isinstance(v, ParentResult) and isinstance(v.of, Step) for v in node.signature.payload.values()
            ):
                raise InvalidArgument("a Flow whose steps take results by step.result cannot be part of another")
            moved = {position + offset: when for position, when in node.after.items()} or after
            layout.nodes.append(_Node(node.signature, node.name, moved, node.on_death))
        return [position + offset for position in self._layout.last()]

    def _is_several(self) -> bool:
        return len(self._layout.last()) > 1

    def graph(
        self, name: str | None = None, on_done: Signature | None = None, on_dead: Signature | None = None
    ) -> dict[str, Any]:
        return super().graph(name or self._name, on_done or self._on_done, on_dead or self._on_dead)


After = Step[Any] | Iterable[Step[Any]] | Mapping[Step[Any], OnDeath]


# ---------------------------------------------------------------------------------------------- handle


class FlowHandle(Generic[R]):
    """A flow as its enqueuer sees it."""

    def __init__(
        self,
        app: App,
        id: int,
        jobs: Mapping[str, JobHandle[Any]] | None = None,
        last: Sequence[JobHandle[Any]] = (),
        is_several: bool = False,
    ) -> None:
        self._app = app
        self._last = last
        self._is_several = is_several
        self.id = id
        self.jobs = dict(jobs or {})  # by name

    def __repr__(self) -> str:
        return f"FlowHandle(id={self.id}, {len(self.jobs)} jobs)"

    def info(self) -> FlowInfo:
        """How many jobs have ended, and how. Raises `JobNotFound`."""
        return self._app.execute(database.look_up_flow(self.id))

    async def ainfo(self) -> FlowInfo:
        return await self._app.aexecute(database.look_up_flow(self.id))

    def status(self) -> str:
        """running, stalled (all that is left waits for something dead), cancelling, completed, failed or cancelled."""
        return self.info().status

    async def astatus(self) -> str:
        return (await self.ainfo()).status

    def progress(self) -> float:
        """The share of its jobs that have ended, from 0 to 1."""
        return self.info().progress

    async def aprogress(self) -> float:
        return (await self.ainfo()).progress

    def cancel(self, reason: str | None = None) -> CancelledFlow:
        """Cancel what waits, ask what runs to stop."""
        return self._app.execute(database.cancel_flow(self.id, reason))

    async def acancel(self, reason: str | None = None) -> CancelledFlow:
        return await self._app.aexecute(database.cancel_flow(self.id, reason))

    def result(self, timeout: float | timedelta | None = None) -> R:
        """What the last job returned, once all have ended; of several last ones a list. Raises `JobDead` or
        `JobCancelled` when it cannot go on because of one, `ResultTimeout`.

        Never wait inside the transaction that enqueued it: nobody can see it before that commits.
        """
        for pause in pauses(timeout, f"flow {self.id}"):
            info = self.info()
            if info.status == "completed":
                return self._read([job.result(0) for job in self._last])
            if info.status not in ("running", "cancelling"):
                job = None if info.trouble is None else JobHandle[Any](self._app, info.trouble).info()
                raise _trouble(info, job)
            time.sleep(pause)
        raise AssertionError("unreachable")

    async def aresult(self, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - the same as result()
        for pause in pauses(timeout, f"flow {self.id}"):
            info = await self.ainfo()
            if info.status == "completed":
                return self._read([await job.aresult(0) for job in self._last])
            if info.status not in ("running", "cancelling"):
                job = None if info.trouble is None else await JobHandle[Any](self._app, info.trouble).ainfo()
                raise _trouble(info, job)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _read(self, results: list[Any]) -> R:
        return cast(R, results if self._is_several else results[0] if results else None)


def _handle(app: App, made: EnqueuedFlow, layout: _Layout, is_several: bool) -> FlowHandle[Any]:
    jobs: list[JobHandle[Any]] = []
    for id, node in zip(made.job_ids, layout.nodes, strict=True):
        decode: Callable[[Any], Any] | None = getattr(node.signature, "decode", None)
        jobs.append(JobHandle(app, id, True, decode))
    last = [jobs[position] for position in layout.last()]
    return FlowHandle(app, made.id, dict(zip(made.names, jobs, strict=True)), last, is_several)


def _trouble(info: FlowInfo, job: JobInfo | None) -> Exception:
    what = f"flow {info.id}{f' ({info.name})' if info.name else ''}"
    if info.status == "cancelled":
        return JobCancelled(f"{what} was cancelled: {info.cancel_reason}", info)
    if job is None:
        return JobDead(f"{what} has {info.status}", info)
    why = f"{job.error_type}: {job.error}" if job.error_type else job.error
    return JobDead(f"{what} has {info.status}: job {job.id} ({job.task}) is {job.status}: {why}", info)
