"""`pgqueue queues …`: how queues are, their settings and limits, their groups, pause and resume."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from pgqueue import cli_output as out
from pgqueue import database
from pgqueue.cli_options import (
    AsJson,
    AsLines,
    DatabaseUrl,
    DryRun,
    Limit,
    OfGroup,
    PauseFor,
    PauseUntil,
    QueueName,
    Reason,
    connected,
    not_so,
    pause_end,
    setting,
    span,
)

app = typer.Typer(name="queues", help="Queues: how they are, limits, groups, pause and resume.", no_args_is_help=True)

COLUMNS: out.Columns = {
    "QUEUE": "queue",
    "PENDING": "pending",
    "RUNNING": "running",
    "SCHEDULED": "scheduled",
    "BLOCKED": "blocked",
    "DEAD": "dead",
    "OLDEST": lambda row: out.duration(row["oldest_waiting_seconds"]),
    "WORKERS": "workers",
    "NOTE": lambda row: ", ".join(_notes(row)),
}
GROUPS: out.Columns = {
    "GROUP": "group_key",
    "RUNNING": "running",
    "NEXT": "next",
    "BLOCKED": "blocked",
    "STARTS": lambda row: _ahead(row["next_eligible_at"]),
    "NOTE": lambda row: _paused(row),
}


def _paused(row: out.Row) -> str:
    if not row["paused"]:
        return ""
    until = f" for {out.age(row['paused_until']).lstrip('+')}" if row["paused_until"] else ""
    return f"paused{until}{': ' + row['paused_reason'] if row['paused_reason'] else ''}"


def _ahead(moment: datetime | None) -> str:
    """How long from now; nothing for what has passed."""
    return out.age(moment) if moment is not None and moment > datetime.now(UTC) else ""


def _notes(row: out.Row) -> list[str]:
    waiting = row["pending"] + row["scheduled"] + row["blocked"]
    notes = [_paused(row)]
    if row["pending"] and not row["workers"]:
        notes.append("no live worker")
    if row["max_running"] is not None and row["running"] >= row["max_running"]:
        notes.append(f"all {row['max_running']} that may run do")
    if starts := _ahead(row["next_eligible_at"]):
        notes.append(f"nothing starts before {starts}")
    if row["max_depth"] is not None and waiting >= row["max_depth"]:
        notes.append(f"full at {row['max_depth']:,}")
    return [note for note in notes if note]


@app.command("list")
def list_queues(as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """List queues; what is above 100,000 is an estimate."""
    with connected(database_url) as conn:
        found = database.execute(conn, database.queue_status())
    out.show(found, COLUMNS, as_json, as_lines)
    if not found:
        out.tell("there is no queue yet: the first job makes one")


@app.command()
def show(
    queue: QueueName, as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None
) -> None:
    """One queue: depth, settings and limits in force, and the last hour of each of its tasks."""
    with connected(database_url) as conn:
        found = out.first(database.execute(conn, database.queue_status(queue)))
        if found is None:
            not_so(f"there is no queue {queue!r}")
        since = datetime.now(UTC) - timedelta(hours=1)
        tasks = database.execute(conn, database.stats(since, queue=queue))
    if as_json or as_lines:
        typer.echo(out.to_json({**found, "tasks": tasks}))
        return
    out.show_one(_in_short(found), False)
    if notes := _notes(found):
        typer.echo(f"\n{', '.join(notes)}")
    if tasks:
        typer.echo("\nin the last hour:")
        out.table(tasks, STATS)


def _in_short(row: out.Row) -> out.Row:
    """Rates as they are set; of what is about groups nothing, where nothing is limited by group."""
    shown = {name: _shown(row, name) for name in row if not name.endswith(("rate_seconds", "rate_burst"))}
    if row["group_max_running"] is None:
        del shown["group_on_retry"]
    return {name: value for name, value in shown.items() if value is not False or name == "paused"}


def _shown(row: out.Row, name: str) -> Any:
    if name in RATES and row.get(name) is not None:
        burst = row[f"{name}_burst"]
        return f"{row[name]}/{out.duration(row[f'{name}_seconds'])}{f', {burst} at once' if burst else ''}"
    return row.get(name)


RATES = ("rate", "group_rate")


@app.command("set")
def set_queue(
    queue: QueueName,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="null goes back to the default.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Change settings and limits of a queue, for jobs that wait already, too.

    max_attempts=3 retain_dead="60 days" retry=null timeout_seconds=30 boost_seconds=60

    max_running=10 rate=100/60s rate_burst=5 fair=true max_depth=10000 shed_below=0

    group_max_running=1 group_on_retry=step_aside group_rate=5/1s group_rate_burst=1

    retry is JSON: retry='{"type": "fixed", "delay": 10}'
    """
    wanted: dict[str, Any] = {}
    for text in settings:
        wanted |= _settings(*setting(text))
    # What of a rate was said along with it is shown along with it.
    named = [name for name in wanted if not name.endswith("_seconds") or name.removesuffix("_seconds") not in wanted]
    with connected(database_url) as conn:
        before = out.first(database.execute(conn, database.queue_status(queue))) or {}
        if dry_run:
            after = {**before, **wanted}
            for name in named:
                old = _said(before, name)
                new = "the default" if wanted[name] is None else _said({f"{name}_burst": None, **after}, name)
                typer.echo(f"{name}: {old} → {new}")
            return
        database.execute(conn, database.set_queue(queue, wanted))
        now = out.first(database.execute(conn, database.queue_status(queue))) or {}
    if as_json:
        typer.echo(out.to_json({name: now.get(name) for name in wanted}))
        return
    for name in named:
        typer.echo(f"{name}: {_said(now, name)}")


def _said(row: out.Row, name: str) -> str:
    return out.said(_shown(row, name)) or "unset"


def _settings(name: str, value: Any) -> dict[str, Any]:
    """rate=100/60s is two settings: 100 in 60 seconds."""
    if name in RATES and isinstance(value, str) and (found := re.fullmatch(r"(\d+)/(.+)", value)):
        length = found[2] if found[2][0].isdigit() else f"1{found[2]}"
        return {name: int(found[1]), f"{name}_seconds": span(length).total_seconds()}
    return {name: value}


@app.command()
def groups(
    queue: QueueName,
    group: OfGroup = None,
    limit: Limit = 50,
    as_json: AsJson = False,
    as_lines: AsLines = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Groups of a queue with limits by group: what runs, is next in line, is blocked; when the next may start."""
    with connected(database_url) as conn:
        found = database.execute(conn, database.group_status(queue, group, limit))
        if not found and not database.execute(conn, database.queue_status(queue)):
            not_so(f"there is no queue {queue!r}")
    out.show(found, GROUPS, as_json, as_lines)
    if not found:
        out.tell("no group is limited here, or has jobs that a claim has met")
    elif len(found) == limit:
        out.tell(f"there may be more: --limit {2 * limit}")


@app.command()
def pause(
    queue: QueueName,
    group: OfGroup = None,
    length: PauseFor = None,
    until: PauseUntil = None,
    reason: Reason = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Claim nothing more from a queue, or of a group of it. What runs goes on; jobs can still be enqueued."""
    end = pause_end(length, until)
    with connected(database_url) as conn:
        if group is None:
            database.execute(conn, database.pause(queue, until=end, reason=reason))
        else:
            database.execute(conn, database.pause_group(queue, group, until=end, reason=reason))
    if as_json:
        typer.echo(out.to_json({"queue": queue, "group_key": group, "paused": True, "paused_until": end}))
        return
    again = f"pgqueue queues resume {queue}" + ("" if group is None else f" --group {out.shell_word(group)}")
    typer.echo(f"{_named(queue, group)} is paused" + (f" until {out.said(end)}" if end else f": {again}"))


@app.command()
def resume(queue: QueueName, group: OfGroup = None, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """End a pause; or what a handler that was rate limited brought upon a queue or a group."""
    with connected(database_url) as conn:
        call = database.resume(queue) if group is None else database.resume_group(queue, group)
        if not database.execute(conn, call):
            not_so(f"{_named(queue, group)} is not paused")
    typer.echo(
        out.to_json({"queue": queue, "group_key": group, "paused": False})
        if as_json
        else f"{_named(queue, group)} goes on"
    )


def _named(queue: str, group: str | None) -> str:
    return queue if group is None else f"group {out.said(group)} of {queue}"


def _percentiles(kind: str) -> out.Column:
    return lambda row: " ".join(out.duration(row[f"{kind}_p{percent}_seconds"]) or "–" for percent in (50, 95, 99))


STATS: out.Columns = {
    "QUEUE": "queue",
    "TASK": "task",
    "DONE": "completed",
    "FAILED": "failed",
    "DEAD": "dead",
    "OTHER": lambda row: sum(row[name] for name in ("cancelled", "expired", "lost", "snoozed", "released")),
    "PER S": "per_second",
    "WAIT p50 p95 p99": _percentiles("wait"),
    "RUN p50 p95 p99": _percentiles("run"),
}
