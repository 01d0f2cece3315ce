"""Batch handlers: one call for many jobs.

    @app.task(queue="search", batch=Batch(size=100, wait=0.05))
    async def index(doc: list[Doc]) -> list[str | Exception]: ...

    index.enqueue(Doc(7))                 # the payload is {"doc": …}: one item
    await index([Doc(7), Doc(8)])         # just runs it

The handler has one parameter, a list of items, and may ask for `jobs: list[Job] = INJECTED`, in the same order. It
returns None (all is well), a list with a result for each, or a mapping of ids of jobs to results (who is not named
completed without one); a result that is an exception is how this one job failed, snoozed, or was cancelled. What it
raises, all fail with.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pgqueue.arguments import INJECTED, resolve
from pgqueue.errors import InvalidArgument
from pgqueue.job import Job, current_job

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from pgqueue.database import ClaimedJob
    from pgqueue.task import Task


@dataclass(frozen=True, slots=True)
class Batch:
    """Up to `size` jobs in one call, or those that came within `wait` seconds of the first."""

    size: int = 100
    wait: float = 0.05

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= 1000 or not 0 <= self.wait <= 10:
            raise InvalidArgument("a batch has 1 to 1000 jobs and waits 0 to 10 seconds for them")


@dataclass(slots=True)
class Forming:
    """A batch that is not running yet: claimed jobs, and when each was claimed."""

    task: Task[Any, Any]
    batch: Batch
    jobs: list[tuple[ClaimedJob, float]] = field(default_factory=list)
    due: bool = False  # it has waited long enough
    timer: TimerHandle | None = None

    @property
    def ready(self) -> bool:
        return self.due or len(self.jobs) >= self.batch.size


class Shape:
    """How a batch handler wants to be called."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function = function
        self.signature = inspect.signature(function)
        wanted = [each for each in self.signature.parameters.values() if each.default is each.empty]
        if len(wanted) != 1 or wanted[0].kind is not wanted[0].POSITIONAL_OR_KEYWORD:
            raise InvalidArgument(
                f"task {name}: a batch handler has one parameter without a default, a list of items; what else it wants"
                " must be injected"
            )
        self.items = wanted[0].name
        self._name = name

    @functools.cached_property
    def jobs(self) -> str | None:
        """The parameter for the jobs themselves."""
        for name, parameter in self.signature.parameters.items():
            if parameter.default is INJECTED and _item(resolve(parameter.annotation, self.function)) is Job:
                return name
        return None

    def of_one(self) -> inspect.Signature:
        """The signature for one job: what it is enqueued with."""
        parameters = dict(self.signature.parameters)
        hint = resolve(parameters[self.items].annotation, self.function)
        item = Any if hint is inspect.Parameter.empty else _item(hint)
        if item is None:
            raise InvalidArgument(f"task {self._name}: {self.items} is a list of items, not {hint!r}")
        parameters[self.items] = parameters[self.items].replace(annotation=item)
        return self.signature.replace(parameters=list(parameters.values()), return_annotation=Any)

    def arguments(self, items: list[Any], jobs: list[Job]) -> dict[str, Any]:
        return {self.items: items} | ({self.jobs: jobs} if self.jobs else {})


def _item(hint: Any) -> Any:
    if hint is list:
        return Any
    return get_args(hint)[0] if get_origin(hint) in (list, Sequence) else None


def for_one(shape: Shape) -> Callable[..., Any]:
    """The handler as one job's own: for a job that runs alone, because workers died with it, and for tests."""

    def given(arguments: dict[str, Any]) -> dict[str, Any]:
        item = arguments.pop(shape.items)
        return {**arguments, **shape.arguments([item], [current_job()])}

    if inspect.iscoroutinefunction(inspect.unwrap(shape.function)):

        @functools.wraps(shape.function)
        async def acall(**arguments: Any) -> Any:
            return _only(await shape.function(**given(arguments)))

        return acall

    @functools.wraps(shape.function)
    def call(**arguments: Any) -> Any:
        return _only(shape.function(**given(arguments)))

    return call


def _only(returned: Any) -> Any:
    (outcome,) = outcomes(returned, [current_job()])
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def outcomes(returned: Any, jobs: Sequence[Job]) -> list[Any]:
    """What became of each of the jobs: a result, or an exception."""
    if returned is None:
        return [None] * len(jobs)
    if isinstance(returned, Mapping):
        if strange := returned.keys() - {job.id for job in jobs}:
            raise TypeError(f"the batch handler named jobs that it did not get: {sorted(strange, key=str)[:5]}")
        return [returned.get(job.id) for job in jobs]
    if isinstance(returned, (list, tuple)) and len(returned) == len(jobs):
        return list(returned)
    what = f"{len(returned)} of them" if isinstance(returned, (list, tuple)) else type(returned).__name__
    raise TypeError(f"a batch handler returns None, a list of {len(jobs)} results or a mapping by job id, not {what}")
