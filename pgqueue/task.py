"""A task: a named function whose calls can be stored as jobs.

@app.task(queue="email", retry=Retry.exponential(), timeout=30)
async def send_receipt(order_id: int) -> None: ...

await send_receipt(7)                                        # just runs it
send_receipt.enqueue(7)                                      # stores a job
send_receipt.using(conn=session, key="receipt:7").enqueue(7) # in the caller's transaction
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast

from pgqueue import database
from pgqueue.arguments import Arguments, ParentResult
from pgqueue.batch import Batch, Shape, for_one
from pgqueue.database import Call, Enqueued, OnConflict
from pgqueue.errors import InvalidArgument
from pgqueue.handle import JobHandle
from pgqueue.payload import encode
from pgqueue.retry import Retry
from pgqueue.tracing import with_trace

if TYPE_CHECKING:
    from pgqueue.app import App

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Seconds = float | timedelta
Group = str | Callable[..., str | None] | None
Key = str | Callable[..., str | None] | None
Runs = Literal["loop", "thread", "process"]
Errors = type[BaseException] | tuple[type[BaseException], ...]


class EnqueueOptions(TypedDict, total=False):
    """What can be said of a job when it is enqueued; see `pgqueue.enqueue` in sql/functions/enqueue.sql."""

    queue: str
    key: Key  # a text; "args": made from task and arguments; or a function of the arguments
    on_conflict: OnConflict
    key_ttl: Seconds
    group: (
        str | Callable[..., str | None] | None
    )  # whom limits and turns are about; a text, or a function of the arguments
    priority: int
    run_at: datetime
    run_in: Seconds
    expires_at: datetime
    expires_in: Seconds
    max_attempts: int
    retry: Retry | Mapping[str, Any]
    timeout: Seconds
    tags: Sequence[str]
    meta: Mapping[str, Any]
    retain_for: Seconds


class UsingOptions(EnqueueOptions, total=False):
    conn: Any  # a connection, session or Django alias: see connections.py


_OPTIONS = UsingOptions.__optional_keys__


@dataclass(frozen=True, slots=True)
class Signature:
    """A call of a task that has not been enqueued yet: `send_receipt.s(7)`."""

    task: str
    payload: Mapping[str, Any]
    options: EnqueueOptions

    def call(self) -> Call[Enqueued]:
        return database.enqueue(
            self.options.get("queue", "default"), self.task, self.payload, **_common(self.options, self.task, self)
        )

    def described(self, result_of: Callable[[str, ParentResult], Any] | None = None) -> dict[str, Any]:
        """As sql/functions/enqueue_flow.sql takes it. `result_of` says which parent an argument comes from."""
        payload, results = dict(self.payload), {}
        if result_of is not None:
            for argument, value in self.payload.items():
                if isinstance(value, ParentResult):
                    results[argument] = result_of(argument, payload.pop(argument))
        if results and self.options.get("key") == "args":
            raise InvalidArgument(f'{self.task}: key="args" needs arguments that are known now')
        described = database.describe_job(
            self.options.get("queue", "default"), self.task, payload, **_common(self.options, self.task, self)
        )
        return {**described, "results": results} if results else described


@dataclass(frozen=True, slots=True)
class TaskSignature(Signature, Generic[R]):
    """A signature that knows what the call returns."""

    app: App = field(repr=False, compare=False)
    decode: Callable[[Any], R] | None = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Execution:
    """How the worker runs a task."""

    runs: Runs = "loop"
    transactional: bool = False
    at_most_once: bool = False
    never_retry: tuple[type[BaseException], ...] = ()
    retry_in: tuple[tuple[type[BaseException], float], ...] = ()
    memory_limit: int | None = None
    batch: Batch | None = None


class BoundTask(Generic[P, R]):
    """A task with options for the next enqueue: what `using()` returns."""

    def __init__(self, app: App, name: str, options: UsingOptions, task: Task[P, R] | None) -> None:
        self._app = app
        self._options = options
        self._task = task
        self.name = name

    def using(self, **options: Unpack[UsingOptions]) -> BoundTask[P, R]:
        check_options(options, f"task {self.name}")
        return BoundTask(self._app, self.name, cast(UsingOptions, {**self._options, **options}), self._task)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> TaskSignature[R]:
        """This call, to be enqueued later."""
        options = cast(EnqueueOptions, {name: value for name, value in self._options.items() if name != "conn"})
        decode = self._task and self._task.decode_result
        return TaskSignature(self.name, self._payload(args, kwargs), options, self._app, decode)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job. With `conn` in the caller's transaction; else it is committed at once."""
        return self._handle(self._app.execute(self.s(*args, **kwargs).call(), self._options.get("conn")))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return self._handle(await self._app.aexecute(self.s(*args, **kwargs).call(), self._options.get("conn")))

    def enqueue_many(self, calls: Iterable[Signature | Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Store many jobs in one statement: `t.enqueue_many([t.s(1), t.s(2)])`, or a mapping of arguments each."""
        made = self._app.execute(self._many(calls), self._options.get("conn"))
        return [self._handle(one) for one in made]

    async def aenqueue_many(self, calls: Iterable[Signature | Mapping[str, Any]]) -> list[JobHandle[R]]:
        made = await self._app.aexecute(self._many(calls), self._options.get("conn"))
        return [self._handle(one) for one in made]

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self._task is not None:
            return self._task.arguments.encode(args, kwargs)
        if args:
            raise InvalidArgument(f"task {self.name} is enqueued by name: give its arguments by name too")
        return dict(kwargs)

    def _handle(self, made: Enqueued) -> JobHandle[R]:
        return JobHandle(self._app, made.id, made.created, self._task and self._task.decode_result)

    def _many(self, calls: Iterable[Signature | Mapping[str, Any]]) -> Call[list[Enqueued]]:
        signatures = [call if isinstance(call, Signature) else self.s(**call) for call in calls]  # type: ignore[call-arg]
        options = cast(EnqueueOptions, {name: value for name, value in self._options.items() if name != "conn"})
        each = {"key", "group", "priority", "run_at"}
        for one in signatures:
            if one.task != self.name:
                raise InvalidArgument(f"enqueue_many of {self.name} got a call of {one.task}")
            if _without(one.options, each) != _without(options, each):
                raise InvalidArgument("in enqueue_many only key, group, priority and run_at may differ")
        keys = [_key(one.options, one) for one in signatures]
        groups = [group_of(one.options, one) for one in signatures]
        return database.enqueue_many(
            options.get("queue", "default"),
            self.name,
            [one.payload for one in signatures],
            keys=keys if any(key is not None for key in keys) else None,
            priorities=[one.options.get("priority", 0) for one in signatures],
            run_ats=[one.options.get("run_at") for one in signatures],
            groups=groups if any(group is not None for group in groups) else None,
            **_without(_common(options, self.name, None), each),
        )


class Task(BoundTask[P, R]):
    """A plain function as a task. `Task(...)` is what `@app.task` makes; calling it runs the function."""

    def __init__(
        self, app: App, function: Callable[..., Any], name: str, options: EnqueueOptions, execution: Execution
    ) -> None:
        super().__init__(app, name, cast(UsingOptions, options), self)
        self.function = function
        self.execution = execution
        functools.update_wrapper(self, function)
        self.name = name

    @functools.cached_property
    def arguments(self) -> Arguments:
        # Late: resources may be declared after the tasks that want them.
        return Arguments(self.function, self._app.is_injected)

    def decode_result(self, value: Any) -> R:
        return cast(R, self.arguments.decode_result(value))

    @property
    def options(self) -> EnqueueOptions:
        return cast(EnqueueOptions, self._options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class AsyncTask(Task[P, R]):
    """An `async def` as a task."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        return cast(Coroutine[Any, Any, R], self.function(*args, **kwargs))


class BatchTask(Task[[T], Any], Generic[T]):
    """A handler of many jobs at once: see batch.py. It is enqueued with one item, and called with a list of them."""

    def __init__(
        self, app: App, function: Callable[..., Any], name: str, options: EnqueueOptions, execution: Execution
    ) -> None:
        self.shape = Shape(function, name)
        super().__init__(app, for_one(self.shape), name, options, execution)

    @functools.cached_property
    def arguments(self) -> Arguments:
        self.function.__signature__ = self.shape.of_one()  # type: ignore[attr-defined]
        return Arguments(self.function, self._app.is_injected)

    def __call__(self, items: Sequence[T], /, **given: Any) -> Any:  # type: ignore[override]
        return self.shape.function(items, **given)


class AsyncBatchTask(BatchTask[T], AsyncTask[[T], Any]):
    """The same of an `async def`."""

    __call__ = BatchTask.__call__  # type: ignore[assignment]


# --------------------------------------------------------------------------------------------- details


def _common(options: EnqueueOptions, task: str, of: Signature | None) -> dict[str, Any]:
    """The options as the database module takes them."""
    found: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", options).items():
        if name == "queue" or value is None:
            continue
        if name in ("key_ttl", "run_in", "expires_in", "retain_for"):
            found[name] = span(value, name)
        elif name == "retry":
            found[name] = value.policy if isinstance(value, Retry) else value
        elif name == "timeout":
            if (seconds := span(value, name).total_seconds()) <= 0:
                raise InvalidArgument(f"timeout must be more than 0 seconds, not {value!r}")
            found["timeout_seconds"] = math.ceil(seconds)
        elif name == "key":
            found["key"] = _key(options, of) if of is not None else None
        elif name == "group":
            found["group"] = group_of(options, of) if of is not None else None
        else:
            found[name] = value
    if (meta := with_trace(found.get("meta"), options.get("queue", "default"), task)) is not None:
        found["meta"] = meta
    if "run_at" in found and "run_in" in found:
        raise InvalidArgument("give run_at or run_in, not both")
    if "expires_at" in found and "expires_in" in found:
        raise InvalidArgument("give expires_at or expires_in, not both")
    return found


def group_of(options: EnqueueOptions, of: Signature) -> str | None:
    group = options.get("group")
    return group(**of.payload) if callable(group) else group


def check_options(options: Mapping[str, Any], whose: str) -> None:
    if unknown := options.keys() - _OPTIONS:
        raise InvalidArgument(
            f"{whose}: there is no option {', '.join(sorted(unknown))}; known are {', '.join(sorted(_OPTIONS))}"
        )


def _key(options: EnqueueOptions, of: Signature) -> str | None:
    key = options.get("key")
    if callable(key):
        return key(**of.payload)
    if key == "args":
        encode(of.payload)  # refuses what would take dumps() for ever
        # Sorted, so that the order of keyword arguments does not matter.
        text = json.dumps(of.payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return f"{of.task}:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    return key


def _without(options: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def span(value: Seconds, name: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{name} must be seconds or a timedelta, not {value!r}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidArgument(f"{name} is out of range: {value!r}") from None


def _exceptions(task: str, given: Any) -> tuple[type[BaseException], ...]:
    found = tuple(given) if isinstance(given, (tuple, list, set)) else (given,)
    for each in found:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidArgument(f"task {task}: never_retry takes exception classes, not {each!r}")
    return found


def is_async_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(function)


def declare(
    app: App,
    function: Callable[..., Any],
    *,
    name: str | None = None,
    runs_in: Runs | None = None,
    transactional: bool = False,
    at_most_once: bool = False,
    never_retry: Errors = (),
    retry_in: Mapping[type[BaseException], Seconds] | None = None,
    memory_limit: int | None = None,
    batch: Batch | None = None,
    **options: Unpack[EnqueueOptions],
) -> Task[Any, Any]:
    """The task that `@app.task(...)` makes of a function."""
    chosen = name or getattr(function, "__name__", "")
    if not chosen or chosen == "<lambda>":
        raise InvalidArgument("a task needs a name: @app.task(name=…)")
    if unknown := set(options) - set(EnqueueOptions.__annotations__):
        raise InvalidArgument(f"task {chosen}: there is no option {', '.join(sorted(unknown))}")
    if at_most_once and options.setdefault("max_attempts", 1) != 1:
        raise InvalidArgument(f"task {chosen}: at_most_once means max_attempts=1")
    is_async = is_async_function(function)
    runs = runs_in or ("loop" if is_async else "thread")
    if is_async != (runs == "loop") or runs not in ("loop", "thread", "process"):
        raise InvalidArgument(
            f"task {chosen}: an async def runs in the loop, a def in a thread or a process, not in {runs!r}"
        )
    if memory_limit is not None and runs != "process":
        raise InvalidArgument(f'task {chosen}: only a task with runs_in="process" can have a memory limit')
    if transactional and runs == "process":
        raise InvalidArgument(f"task {chosen}: a transactional task runs in the loop or in a thread")
    if batch is not None and runs == "process":
        raise InvalidArgument(f"task {chosen}: a batch handler runs in the loop or in a thread")
    execution = Execution(
        runs,
        transactional,
        at_most_once,
        _exceptions(chosen, never_retry),
        tuple((kind, span(delay, "retry_in").total_seconds()) for kind, delay in (retry_in or {}).items()),
        memory_limit,
        batch,
    )
    if batch is not None:
        return (AsyncBatchTask if is_async else BatchTask)(app, function, chosen, options, execution)
    return (AsyncTask if is_async else Task)(app, function, chosen, options, execution)
