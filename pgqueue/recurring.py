"""Recurring jobs: declared on a task, or made at run time.

@app.recurring("0 9 * * 1-5", "eu", tz="Europe/Berlin")             # positional arguments of the task follow
@app.recurring("every 90s", name="report-us", kwargs={"region": "us"}, overlap="skip")
@app.task
async def report(region: str) -> None: ...

app.recurring.set("report-7", "0 2 * * *", report.s("eu"), tz="Asia/Kathmandu", conn=session)

What is declared becomes real when a ticker of the app starts, `pgqueue cron`: see
sql/functions/reconcile_recurring.sql.
"""

from __future__ import annotations

import builtins
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, cast

from pgqueue import database
from pgqueue.arguments import Arguments
from pgqueue.cron import Schedule
from pgqueue.errors import ConfigError, InvalidArgument, PgqueueError
from pgqueue.handle import JobHandle
from pgqueue.retry import Retry
from pgqueue.task import Group, Seconds, Signature, Task, group_of, span

if TYPE_CHECKING:
    from pgqueue.app import App

AnyTask = TypeVar("AnyTask", bound="Task[..., Any]")
CatchUp = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip", "replace"]


class RecurringOptions(TypedDict, total=False):
    """What can be said of a recurring job; see the table `recurring_job` in sql/tables.sql."""

    tz: str  # whose wall clock a cron expression follows
    starts_at: datetime
    ends_at: datetime
    jitter: Seconds  # each job starts up to this much later
    catch_up: CatchUp  # what becomes of due times that passed while no ticker ran
    catch_up_max: int
    overlap: Overlap  # while the last job is live
    expires_in: Seconds  # counted from the due time
    # As in enqueue; what is not said here is as the task says.
    queue: str
    group: Group
    priority: int
    max_attempts: int
    retry: Retry | Mapping[str, Any]
    timeout: Seconds
    tags: Sequence[str]
    meta: Mapping[str, Any]
    retain_for: Seconds


# A key, a delay or a moment says something about one enqueue: a task's own ones play no part here.
_OF_THE_TASK = ("queue", "group", "priority", "max_attempts", "retry", "timeout", "tags", "meta", "expires_in",
                "retain_for")  # fmt: skip
_SPANS = ("jitter", "expires_in", "retain_for")
_ALL = ("starts_at", "ends_at", "jitter", "catch_up", "catch_up_max", "overlap", "priority", "max_attempts", "retry",
        "timeout_seconds", "tags", "meta", "expires_in", "retain_for", "group_key")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `@app.recurring(...)` says of a task."""

    name: str
    schedule: str
    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: RecurringOptions

    def settings(self) -> dict[str, Any]:
        return settings_of(self.schedule, self.task.s(*self.args, **self.kwargs), self.options)


class Recurring:
    """`app.recurring`: the decorator, and what can be done at run time."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.declarations: dict[str, Declaration] = {}

    def __call__(
        self, schedule: str, /, *args: Any, name: str | None = None, kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[RecurringOptions],
    ) -> Callable[[AnyTask], AnyTask]:  # fmt: skip
        """Declare a recurring job of the task below: a cron expression or `every 90s`, then the task's own arguments.

        Its name is what operators see and what its history hangs on: the task's name, if nothing else is said. Of
        several on one task each but one needs a name.
        """

        def declare(task: AnyTask) -> AnyTask:
            if not isinstance(task, Task) or self._app.tasks.get(task.name) is not task:
                raise InvalidArgument("@app.recurring(…) stands above the @app.task of the same app")
            made = Declaration(name or task.name, schedule, task, args, kwargs or {}, options)
            if made.name in self.declarations:
                raise InvalidArgument(
                    f"there are two recurring jobs named {made.name!r}: give one of them @app.recurring(…, name=…)"
                )
            # A group that is a function of arguments is told when they are known for sure.
            payload = _checked_payload(self._app, made)
            settings_of(schedule, Signature(task.name, payload, _told(task.options)), _told(options))
            self.declarations[made.name] = made
            return task

        return declare

    @property
    def source(self) -> str:
        """What the database knows this app by, so that no other app retires what it declares."""
        found = self._app.name or self._app.location
        if found is None:
            raise ConfigError("an app that declares recurring jobs needs a name: App(name=…)")
        return found

    def declared(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Every declaration as the database takes it; and what is wrong with those that cannot be."""
        found: dict[str, dict[str, Any]] = {}
        faults: dict[str, str] = {}
        for name, each in self.declarations.items():
            try:
                found[name] = each.settings()
            except PgqueueError as error:
                found[name] = {}  # which the database refuses, too: it is declared still, so it is not retired
                faults[name] = str(error)
        return found, faults

    # -- at run time; with `conn` in the caller's transaction

    def set(
        self, name: str, schedule: str, call: Signature, *, conn: Any = None, **options: Unpack[RecurringOptions]
    ) -> str:
        """Make it, or make it anew: "added" or "changed". What is not said here is as the task says."""
        return self._app.execute(_set(name, schedule, call, options), conn)

    async def aset(
        self, name: str, schedule: str, call: Signature, *, conn: Any = None, **options: Unpack[RecurringOptions]
    ) -> str:
        return await self._app.aexecute(_set(name, schedule, call, options), conn)

    def remove(self, name: str, *, conn: Any = None) -> bool:
        """Forget it; the jobs that it made stay. False: there was none."""
        return self._app.execute(database.remove_recurring(name), conn)

    async def aremove(self, name: str, *, conn: Any = None) -> bool:
        return await self._app.aexecute(database.remove_recurring(name), conn)

    def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None, conn: Any = None) -> None:
        self._app.execute(database.pause_recurring(name, until=until, reason=reason), conn)

    async def apause(
        self, name: str, *, until: datetime | None = None, reason: str | None = None, conn: Any = None
    ) -> None:
        await self._app.aexecute(database.pause_recurring(name, until=until, reason=reason), conn)

    def resume(self, name: str, *, conn: Any = None) -> bool:
        return self._app.execute(database.resume_recurring(name), conn)

    async def aresume(self, name: str, *, conn: Any = None) -> bool:
        return await self._app.aexecute(database.resume_recurring(name), conn)

    def run_now(self, name: str, *, conn: Any = None) -> JobHandle[Any]:
        """One job at once, whatever the schedule says."""
        return JobHandle(self._app, self._app.execute(database.run_recurring_now(name), conn), True)

    async def arun_now(self, name: str, *, conn: Any = None) -> JobHandle[Any]:
        return JobHandle(self._app, await self._app.aexecute(database.run_recurring_now(name), conn), True)


# --------------------------------------------------------------------------------------------- details


def _set(name: str, schedule: str, call: Signature, options: RecurringOptions) -> database.Call[str]:
    settings = settings_of(schedule, call, options)
    return database.set_recurring(name, {**dict.fromkeys(_ALL), **settings})


def settings_of(schedule: str, call: Signature, options: RecurringOptions) -> dict[str, Any]:
    """A definition as the columns of recurring_job; `InvalidArgument` for what can be refused without a database."""
    if unknown := set(options) - set(RecurringOptions.__annotations__):
        raise InvalidArgument(f"a recurring job has no option {', '.join(sorted(unknown))}")
    of_task = {name: value for name, value in call.options.items() if name in _OF_THE_TASK}
    given: dict[str, Any] = {name: each for name, each in {**of_task, **options}.items() if each is not None}
    zone = given.pop("tz", "UTC")
    found = Schedule.parse(schedule, zone)
    settings: dict[str, Any] = {
        "task": call.task, "queue": given.pop("queue", "default"), "payload": dict(call.payload), "timezone": zone,
        **({"cron": found.cron} if found.every is None else {"every": seconds(found.every)}),
    }  # fmt: skip
    for name, value in given.items():
        if name in _SPANS:
            settings[name] = seconds(span(value, name))
        elif name == "timeout":
            settings["timeout_seconds"] = round(max(span(value, name).total_seconds(), 1))
        elif name == "retry":
            settings[name] = dict(value.policy if isinstance(value, Retry) else value)
        elif name in ("starts_at", "ends_at"):
            settings[name] = _moment(value, name)
        elif name == "tags":
            settings[name] = list(value)
        elif name == "group":
            settings["group_key"] = _group(value, call)
        else:
            settings[name] = value
    _check_choice(settings, "catch_up", typing.get_args(CatchUp))
    _check_choice(settings, "overlap", typing.get_args(Overlap))
    return settings


Options = TypeVar("Options", bound=Mapping[str, Any])


def _told(options: Options) -> Options:
    """Without a group that is yet to be computed."""
    return cast(Options, {name: each for name, each in options.items() if name != "group" or not callable(each)})


def _group(value: Group, call: Signature) -> str | None:
    try:
        found = group_of({"group": value}, call)
    except Exception as error:
        raise InvalidArgument(f"the group of {call.task} cannot be told from its arguments: {error!r}") from error
    if found is not None and not isinstance(found, str):
        raise InvalidArgument(f"a group is a text, not {found!r}")
    return found


def seconds(value: timedelta) -> str:
    """An interval as PostgreSQL reads it, to the microsecond."""
    return f"{value // timedelta(seconds=1)}.{value.microseconds:06} seconds"


def _moment(value: Any, name: str) -> str:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidArgument(f"{name} must be a datetime with a time zone, not {value!r}")
    return value.isoformat()


def _check_choice(settings: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> None:
    if settings.get(name, choices[0]) not in choices:
        raise InvalidArgument(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, not {settings[name]!r}")


def _checked_payload(app: App, made: Declaration) -> dict[str, Any]:
    """Like the task's own arguments, but without holding on to them: resources may be declared later. Only for a
    parameter that may be one of those is a missing argument no fault yet."""
    try:
        return Arguments(made.task.function, app.is_injected).encode(made.args, made.kwargs)
    except PgqueueError as error:
        parameters = inspect.signature(made.task.function).parameters
        given = set(list(parameters)[: len(made.args)]) | set(made.kwargs)
        if any(_may_be_resource(each) for name, each in parameters.items() if name not in given):
            return {}
        raise InvalidArgument(f"recurring job {made.name}: {error}") from error


def _may_be_resource(parameter: inspect.Parameter) -> bool:
    if parameter.default is not inspect.Parameter.empty:
        return False
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = getattr(builtins, annotation, cast(Any, object()))
    return annotation is not inspect.Parameter.empty and annotation not in vars(builtins).values()
