"""`pgqueue recurring …`: recurring jobs on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, TypeVar

import psycopg
import typer
from rich.console import Console

from pgqueue import app as app_module
from pgqueue import config, database, recurring_text
from pgqueue.cli_options import NOT_SO, DatabaseUrl, connected
from pgqueue.cron import Schedule, zone_named
from pgqueue.database import Call, RecurringStatus
from pgqueue.errors import ConfigError, InvalidArgument, JobNotFound
from pgqueue.recurring import seconds

T = TypeVar("T")
SHOWN_RUNS = 5

app = typer.Typer(name="recurring", help="Recurring jobs: what is enqueued again and again.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For programs.")]
Name = Annotated[str, typer.Argument(help="Its name, as in `recurring list`.")]


class CatchUp(Enum):
    skip = "skip"
    latest = "latest"
    all = "all"


class Overlap(Enum):  # a StrEnum has a method named replace
    allow = "allow"
    skip = "skip"
    replace = "replace"


TaskName = Annotated[str | None, typer.Option("--task", "-t", help="The task that its jobs run.")]
When = Annotated[str | None, typer.Option("--schedule", "-s", help="'0 9 * * 1-5', '@daily' or 'every 90s'.")]
Zone = Annotated[str | None, typer.Option("--tz", help="Whose wall clock a cron expression follows [UTC].")]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="The queue of its jobs [default].")]
Group = Annotated[str | None, typer.Option("--group", "-g", help="The group of its jobs: a tenant, an account.")]
Payload = Annotated[str | None, typer.Option("--payload", "-p", help="The task's arguments, a JSON object.")]
CatchUpOption = Annotated[
    CatchUp | None, typer.Option("--catch-up", help="What becomes of due times without a ticker [latest].")
]
CatchUpMax = Annotated[int | None, typer.Option(help="With --catch-up all: so many at most [100].")]
OverlapOption = Annotated[Overlap | None, typer.Option("--overlap", help="While its last job is live [allow].")]
Span = Annotated[str | None, typer.Option(metavar="90s|5m|2h|1d")]
Moment = Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601; without an offset: in --tz.")]
Priority = Annotated[int | None, typer.Option(min=-100, max=100, help="Of its jobs [0].")]
Attempts = Annotated[int | None, typer.Option(min=1, max=32000, help="Of its jobs; else as the queue says.")]
Timeout = Annotated[int | None, typer.Option(min=1, help="Of its jobs, in seconds; else as the queue says.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Of its jobs; may be given again.")]


# ----------------------------------------------------------------------------------------------- looking


@app.command("list")
def list_all(database_url: DatabaseUrl = None, as_json: Json = False) -> None:
    """All of them, with their state, next due time and last job."""
    found = _run(database.recurring_status(), database_url)
    if as_json:
        return _print_json([each._asdict() for each in found])
    if not found:
        typer.echo("no recurring jobs: declare one with @app.recurring, or use `pgqueue recurring add`")
        return None
    return _console().print(recurring_text.list_table(found))


@app.command()
def show(name: Name, database_url: DatabaseUrl = None, as_json: Json = False) -> None:
    """Everything about one, its last runs included. Exits with 3 if it is broken or late."""
    with connected(database_url) as conn:
        status = _one(conn, name)
        (detail,) = database.execute(conn, database.recurring_detail(name))
        runs = database.execute(conn, database.recurring_history(name, SHOWN_RUNS))
    if as_json:
        known = {**status._asdict(), **detail._asdict(), "runs": [each._asdict() for each in runs]}
        _print_json(known)
    else:
        console = _console()
        console.print(recurring_text.facts_table(status, detail))
        if runs:
            console.print()
            console.print(recurring_text.runs_table(runs, status.timezone))
    if status.state in ("broken", "late"):
        raise typer.Exit(NOT_SO)


@app.command("next")
def next_runs(
    name: Annotated[str, typer.Argument(help="Its name; or a schedule in quotes: '0 9 * * 1-5', 'every 90s'.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many.")] = 5,
    tz: Annotated[str | None, typer.Option("--tz", help="For a schedule: whose wall clock.")] = None,
    database_url: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """When it is due next, in its own zone and in UTC, and what its schedule says in plain language."""
    after, ends_at, note = datetime.now(UTC), None, None
    if " " in name.strip() or name.startswith("@"):
        schedule = Schedule.parse(name, tz or "UTC")
    elif tz is not None:
        raise typer.BadParameter("a recurring job has its own zone", param_hint="--tz")
    else:
        with connected(database_url) as conn:
            status = _one(conn, name)
            (detail,) = database.execute(conn, database.recurring_detail(name))
        schedule = Schedule.of(detail.cron, detail.every, status.timezone, status.starts_at)
        ends_at = status.ends_at
        # The clock that counts is the database's.
        first = recurring_text.next_of(status) or max(after, status.starts_at or after)
        after = first - timedelta(microseconds=1)
        note = None if status.state == "scheduled" else f"it is {status.state}"
    times: list[datetime] = []
    at = schedule.next(after)
    while at is not None and len(times) < count and (ends_at is None or at <= ends_at):
        times.append(at)
        at = schedule.next(at)
    if as_json:
        said = {"schedule": str(schedule), "timezone": schedule.timezone, "description": schedule.describe()}
        zone = zone_named(schedule.timezone)
        return _print_json(
            {**said, "note": note, "next": [{"local": at.astimezone(zone), "utc": at.astimezone(UTC)} for at in times]}
        )
    zoned = "" if schedule.every is not None else f", {schedule.timezone}"
    typer.echo(f"{schedule}: {schedule.describe()}{zoned}{f'; {note}' if note else ''}")
    return _console().print(recurring_text.next_table(times, schedule.timezone) if times else "never again")


# ----------------------------------------------------------------------------------------------- changing


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A name for it.")],
    schedule: Annotated[str, typer.Argument(help="'0 9 * * 1-5', '@daily' or 'every 90s'.")],
    task: Annotated[str, typer.Argument(help="The task that its jobs run.")],
    payload: Payload = None,
    queue: Queue = None,
    group: Group = None,
    tz: Zone = None,
    catch_up: CatchUpOption = None,
    catch_up_max: CatchUpMax = None,
    overlap: OverlapOption = None,
    jitter: Span = None,
    expires_in: Span = None,
    starts_at: Moment = None,
    ends_at: Moment = None,
    priority: Priority = None,
    max_attempts: Attempts = None,
    timeout: Timeout = None,
    tag: Tags = None,
    app_name: Annotated[
        str | None, typer.Option("--app", "-A", help="module:app, to check the task and its arguments.")
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make one. Code that declares the same name later leaves it alone, and says so."""
    given = locals()
    settings = _settings(given, tz)
    if app_name is not None:
        known = app_module.load(config.load(app=app_name).app or "")
        if task not in known.tasks:
            raise InvalidArgument(f"{app_name} has no task {task!r}")
        known.tasks[task].arguments.decode(settings.get("payload", {}))
        if queue is None:
            settings["queue"] = known.tasks[task].options.get("queue", "default")
    _run(database.set_recurring(name, settings, True), database_url)
    typer.echo(f"added {name}: {Schedule.parse(schedule, tz or 'UTC').describe()}, {tz or 'UTC'}")


@app.command()
def edit(
    name: Name,
    schedule: When = None,
    task: TaskName = None,
    payload: Payload = None,
    queue: Queue = None,
    group: Group = None,
    tz: Zone = None,
    catch_up: CatchUpOption = None,
    catch_up_max: CatchUpMax = None,
    overlap: OverlapOption = None,
    jitter: Span = None,
    expires_in: Span = None,
    starts_at: Moment = None,
    ends_at: Moment = None,
    priority: Priority = None,
    max_attempts: Attempts = None,
    timeout: Timeout = None,
    tag: Tags = None,
    unset: Annotated[
        list[str] | None, typer.Option(help="Back to the default: ends_at, jitter, tags, …; may be given again.")
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Change one; what is not named stays. An edit of what an app declares holds until that declaration changes."""
    given = locals()
    with connected(database_url) as conn:
        before = _one(conn, name)
        if schedule is None and tz is not None and not before.schedule.startswith("every "):
            schedule = before.schedule  # it must make sense in the new zone, too
        settings = _settings({**given, "schedule": schedule}, tz or before.timezone)
        unsets = [each.replace("-", "_") for each in unset or []]
        settings |= dict.fromkeys("group_key" if each == "group" else each for each in unsets)
        if not settings:
            raise typer.BadParameter("say what to change, for example --schedule 'every 5m'")
        database.execute(conn, database.set_recurring(name, settings, False))
    typer.echo(f"changed {name}")
    if before.owner == "code":
        typer.echo(f"{before.source} declares it: this edit holds until that declaration changes", err=True)


@app.command()
def remove(
    name: Name,
    although_declared: Annotated[
        bool,
        typer.Option("--although-declared", help="Even if an app declares it, which is gone or has a new name."),
    ] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Forget one. The jobs that it made stay."""
    if not _run(database.remove_recurring(name, although_declared), database_url):
        raise JobNotFound(f"there is no recurring job {name!r}")
    typer.echo(f"removed {name}")


@app.command()
def pause(
    name: Name,
    for_: Annotated[str | None, typer.Option("--for", metavar="90s|5m|2h|1d", help="It ends by itself then.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="For those who wonder.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Nothing is due until `resume`, or the given time; what would have been is not made up for."""
    span = None if for_ is None else _span(for_, "--for")
    _run(database.pause_recurring(name, pause_for=span, reason=reason), database_url)
    typer.echo(f"paused {name}" + (f" for {for_}" if for_ else ""))


@app.command()
def resume(name: Name, database_url: DatabaseUrl = None) -> None:
    """End a pause; exits with 3 if it was not paused."""
    if not _run(database.resume_recurring(name), database_url):
        typer.echo(f"{name} was not paused")
        raise typer.Exit(NOT_SO)
    typer.echo(f"resumed {name}")


@app.command()
def run(name: Name, database_url: DatabaseUrl = None, as_json: Json = False) -> None:
    """Enqueue one job at once, whatever the schedule says; prints its id."""
    id = _run(database.run_recurring_now(name), database_url)
    _print_json({"name": name, "job_id": id}) if as_json else typer.echo(f"job {id}")


# --------------------------------------------------------------------------------------------- details


def _settings(given: Mapping[str, Any], zone: str | None) -> dict[str, Any]:
    """The options of `add` and `edit` that were given, as columns of recurring_job."""
    settings: dict[str, Any] = {
        name: value.value if isinstance(value, Enum) else value
        for name in ("task", "queue", "catch_up", "catch_up_max", "overlap", "priority", "max_attempts")
        if (value := given[name]) is not None
    }
    for name, column in {"tz": "timezone", "timeout": "timeout_seconds", "tag": "tags", "group": "group_key"}.items():
        if given[name]:
            settings[column] = given[name]
    for name in ("jitter", "expires_in"):
        if given[name] is not None:
            settings[name] = seconds(_span(given[name], f"--{name.replace('_', '-')}"))
    for name in ("starts_at", "ends_at"):
        if given[name] is not None:
            settings[name] = _moment(given[name], zone, f"--{name.replace('_', '-')}")
    if given["payload"] is not None:
        settings["payload"] = _payload(given["payload"])
    if given["schedule"] is not None:
        found = Schedule.parse(given["schedule"], zone or "UTC")
        settings |= {"cron": found.cron} if found.every is None else {"every": seconds(found.every)}
    return settings


def _payload(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--payload is not JSON: {error}") from None


def _span(text: str, flag: str) -> timedelta:
    if text.strip() in ("0", "0s"):
        return timedelta(0)
    try:
        return Schedule.parse(f"every {text}").every or timedelta(0)
    except InvalidArgument:
        raise ConfigError(f"{flag} takes a time span like 90s, 5m or 1h30m, not {text!r}") from None


def _moment(text: str, zone: str | None, flag: str) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{flag} takes a time like 2027-01-31T09:00, not {text!r}") from None
    return (found if found.utcoffset() is not None else found.replace(tzinfo=zone_named(zone or "UTC"))).isoformat()


def _run(call: Call[T], database_url: str | None) -> T:
    with connected(database_url) as conn:
        return database.execute(conn, call)


def _one(conn: psycopg.Connection[Any], name: str) -> RecurringStatus:
    found = database.execute(conn, database.recurring_status(name))
    if not found:
        raise JobNotFound(f"there is no recurring job {name!r}")
    return found[0]


def _console() -> Console:
    # A pipe has no width: whoever reads it wants whole lines.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 250)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value.isoformat()
