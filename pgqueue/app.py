"""The app: where tasks are declared, jobs enqueued and asked about.

app = App()                       # DATABASE_URL, or the embedded PostgreSQL in development

@app.task(queue="email")
async def send_receipt(order_id: int) -> None: ...
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from pgqueue import config, connections, database
from pgqueue.batch import Batch
from pgqueue.database import Call
from pgqueue.errors import ConfigError, InvalidArgument, PgqueueError
from pgqueue.events import Event, Hook
from pgqueue.flows import FlowHandle
from pgqueue.handle import JobHandle
from pgqueue.job import Job, is_connection
from pgqueue.pools import Pools
from pgqueue.recurring import Recurring
from pgqueue.resources import Middleware, Resource
from pgqueue.task import (
    AsyncBatchTask,
    AsyncTask,
    BatchTask,
    BoundTask,
    EnqueueOptions,
    Errors,
    Runs,
    Seconds,
    Task,
    UsingOptions,
    check_options,
    declare,
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Decorator:
    """What `@app.task(...)` with options returns: keeps the types of the function that it decorates."""

    def __init__(self, make: Callable[[Callable[..., Any]], Task[Any, Any]]) -> None:
        self._make = make

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        return self._make(function)


class BatchDecorator(Decorator):
    """The same for a batch handler: what takes a list is enqueued item by item."""

    @overload  # type: ignore[override]
    def __call__(self, function: Callable[[list[T]], Coroutine[Any, Any, Any]]) -> AsyncBatchTask[T]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Any]) -> BatchTask[T]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        return self._make(function)


class App:
    """Tasks, and the database where their jobs live."""

    def __init__(self, database_url: str | None = None, *, name: str | None = None, pool_size: int = 4) -> None:
        self._database_url = database_url
        self.name = name  # what its recurring jobs belong to; else the location
        pools = self._pools = Pools(lambda: self.conninfo, pool_size)
        self.connection, self.aconnection = pools.connection, pools.aconnection
        self.engine, self.aengine = pools.engine, pools.aengine
        self.grow_pools = pools.grow
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.recurring = Recurring(self)
        self.resources: dict[Any, Resource] = {}
        self.middleware: list[Middleware] = []
        self.hooks: dict[Event, list[Hook]] = {}
        self.location: str | None = None  # the name that `load` found it by: child processes load it too

    @property
    def conninfo(self) -> str:
        return config.conninfo(self._database_url)

    def use(self, database_url: str) -> None:
        """Another database from now on."""
        if self._pools.open_async:
            raise PgqueueError("close the app before it uses another database: await app.aclose()")
        self.close()
        self._database_url = database_url

    # -- declaring

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        runs_in: Runs | None = None,
        transactional: bool = False,
        at_most_once: bool = False,
        never_retry: Errors = (),
        retry_in: Mapping[type[BaseException], Seconds] | None = None,
        memory_limit: int | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Decorator: ...
    @overload
    def task(
        self,
        *,
        batch: Batch,
        name: str | None = None,
        runs_in: Runs | None = None,
        transactional: bool = False,
        at_most_once: bool = False,
        never_retry: Errors = (),
        retry_in: Mapping[type[BaseException], Seconds] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> BatchDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Declare a task. Its name is what jobs are stored under: it stays when the function moves or is renamed.

        `runs_in`: "loop" (async def), "thread" (def, the default for it) or "process" (def: can be killed when its
        time is up, and limited in memory). `transactional`: what the handler writes on the connection that it is given
        commits together with the job's completion. `at_most_once`: never started twice, even if its worker dies or is
        stopped, unless the handler itself asks for it (`Snooze`, `RateLimited`) or an operator does (`retry`).
        `never_retry`, `retry_in`: rules by exception. `batch`: the handler takes a list, see batch.py.
        """

        def make(function: Callable[..., Any]) -> Task[Any, Any]:
            made = declare(self, function, **options)
            if made.name in self.tasks:
                raise InvalidArgument(f"there are two tasks named {made.name!r}: give one of them @app.task(name=…)")
            self.tasks[made.name] = made
            return made

        if function is None:
            return (BatchDecorator if options.get("batch") else Decorator)(make)
        return make(function)

    def resource(self, function: F) -> F:
        """Something opened once per worker and injected by type: the return annotation of a function or generator."""
        made = Resource(function)
        if made.provides in self.resources:
            raise InvalidArgument(f"there are two resources of type {made.provides!r}")
        self.resources[made.provides] = made
        return function

    def around(self, function: Middleware) -> Middleware:
        """Middleware: `async def timing(job, run): … return await run()` goes around every handler."""
        self.middleware.append(function)
        return function

    def on(self, event: Event) -> Callable[[F], F]:
        """A hook: `@app.on("dead")` on a function of one `JobEvent`."""

        def add(function: F) -> F:
            self.hooks.setdefault(event, []).append(function)
            return function

        return add

    def is_injected(self, annotation: Any) -> bool:
        return annotation is Job or annotation in self.resources or is_connection(annotation)

    # -- enqueueing by name

    def using(self, task: str, **options: Unpack[UsingOptions]) -> BoundTask[..., Any]:
        """A task by its name, which need not be imported here: `app.using("ship", queue="orders").enqueue(id=7)`."""
        check_options(options, f"task {task}")
        known = self.tasks.get(task)
        merged = {**(known.options if known else {}), **options}
        return BoundTask(self, task, cast(UsingOptions, merged), known)

    def enqueue(self, task: str, /, **arguments: Any) -> JobHandle[Any]:
        return self.using(task).enqueue(**arguments)

    async def aenqueue(self, task: str, /, **arguments: Any) -> JobHandle[Any]:
        return await self.using(task).aenqueue(**arguments)

    # -- asking and steering

    def job(self, id: int) -> JobHandle[Any]:
        return JobHandle(self, id)

    def flow(self, id: int) -> FlowHandle[Any]:
        return FlowHandle(self, id)

    def cancel(self, id: int, reason: str | None = None) -> str:
        return self.execute(database.cancel(id, reason))

    def retry(self, id: int, **changes: Any) -> str:
        return self.execute(database.retry(id, **changes))

    def pause(self, queue: str, *, until: datetime | None = None, reason: str | None = None) -> None:
        self.execute(database.pause(queue, until=until, reason=reason))

    def resume(self, queue: str) -> bool:
        return self.execute(database.resume(queue))

    def delete_queue(self, queue: str) -> bool:
        """Forget a queue and its settings; false if there is none. Refused while jobs or workers need it."""
        return self.execute(database.delete_queue(queue))

    def pause_task(self, task: str, *, until: datetime | None = None, reason: str | None = None) -> None:
        self.execute(database.pause_task(task, until=until, reason=reason))

    def resume_task(self, task: str) -> bool:
        return self.execute(database.resume_task(task))

    def pause_group(self, queue: str, group: str, *, until: datetime | None = None, reason: str | None = None) -> None:
        self.execute(database.pause_group(queue, group, until=until, reason=reason))

    def resume_group(self, queue: str, group: str) -> bool:
        return self.execute(database.resume_group(queue, group))

    def set_task(self, task: str, **settings: Any) -> None:
        """The circuit breaker of a task: see sql/functions/set_task.sql for what it is made of."""
        self.execute(database.set_task(task, settings))

    def set_queue(self, queue: str, **settings: Any) -> None:
        """Limits, retention and defaults of a queue: see sql/functions/set_queue.sql for what there is."""
        self.execute(database.set_queue(queue, settings))

    # -- running calls

    def execute(self, call: Call[T], conn: Any = None) -> T:
        """Run a call of the database module: on the given connection, else on one of the app's own."""
        if conn is not None:
            return connections.execute(conn, call)
        with self.connection() as own:
            return database.execute(own, call)

    async def aexecute(self, call: Call[T], conn: Any = None) -> T:
        if conn is not None:
            if connections.is_async(conn):
                return await connections.aexecute(conn, call)
            return connections.execute(conn, call)
        async with self.aconnection() as own:
            return await database.aexecute(own, call)

    def close(self) -> None:
        """Close the connections. The app can be used again afterwards."""
        self._pools.close()

    async def aclose(self) -> None:
        await self._pools.aclose()


def load(name: str) -> App:
    """The app named `package.module:attribute`."""
    module_name, _, attribute = name.partition(":")
    if not module_name:
        raise ConfigError("no app: name it with -A module:app, PGQUEUE_APP, or app in pgqueue.toml")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module {error.name!r} here (looking for the app {name!r})") from None
        raise
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, App):
            raise ConfigError(f"{module_name} has no App named {attribute!r}")
        found.location = name
        return found
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if len(set(map(id, apps.values()))) != 1:
        raise ConfigError(f"{module_name} has {len(apps)} apps: say which, -A {module_name}:name")
    attribute, found = next(iter(apps.items()))
    found.location = f"{module_name}:{attribute}"
    return found
