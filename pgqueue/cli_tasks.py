"""`pgqueue tasks …`: tasks that are paused, have a circuit breaker, or fail everywhere; and what to do about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import psycopg
import typer

from pgqueue import cli_output as out
from pgqueue import cli_queues, database
from pgqueue.cli_options import (
    AsJson,
    AsLines,
    DatabaseUrl,
    DryRun,
    PauseFor,
    PauseUntil,
    Reason,
    connected,
    not_so,
    pause_end,
    setting,
    span,
)
from pgqueue.database import Call

app = typer.Typer(name="tasks", help="Tasks: pauses, circuit breakers, alarms.", no_args_is_help=True)

COLUMNS: out.Columns = {
    "TASK": "task",
    "CIRCUIT": lambda row: row["circuit"].replace("_", " ") if _has_circuit(row) else "",
    "FOR": lambda row: out.age(row["circuit_changed_at"]) if row["circuit"] != "closed" else "",
    "BLOCKED": "blocked",
    "BREAKER": lambda row: _breaker(row),
    "NOTE": lambda row: ", ".join(_notes(row)),
}
SPANS = ("breaker_window", "breaker_open")

TaskName = Annotated[str, typer.Argument(metavar="TASK")]


def _has_circuit(row: out.Row) -> bool:
    return row["breaker_rate"] is not None or row["circuit"] != "closed"


def _breaker(row: out.Row) -> str:
    if row["breaker_rate"] is None:
        return ""
    window, opened = out.duration(row["breaker_window"]), out.duration(row["breaker_open"])
    return f"{row['breaker_rate']:.0%} of {row['breaker_min']} in {window}, for {opened}"


def _notes(row: out.Row) -> list[str]:
    notes = []
    if row["paused"]:
        until = f" for {out.age(row['paused_until']).lstrip('+')}" if row["paused_until"] else ""
        notes.append(f"paused{until}{': ' + row['paused_reason'] if row['paused_reason'] else ''}")
    if row["circuit"] != "closed":
        notes.append(row["circuit_reason"] or "")
    if row["circuit"] == "open":
        at = row["circuit_probe_at"]
        notes.append(f"probed in {out.duration(_left(at))}" if at else "until somebody closes it")
    if row["circuit"] == "half_open":
        notes.append(f"probe: job {row['circuit_probe']}")
    if row["alarmed_at"]:
        notes.append(f"fails everywhere since {out.age(row['alarmed_at'])}")
    return [note for note in notes if note]


def _left(moment: datetime) -> float:
    return max((moment - datetime.now(UTC)).total_seconds(), 0)


@app.command("list")
def list_tasks(as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """List tasks that are paused, have a circuit breaker, or fail everywhere; what they hold back."""
    with connected(database_url) as conn:
        found = database.execute(conn, database.task_status())
    out.show(found, COLUMNS, as_json, as_lines)
    if not found:
        out.tell("no task has a pause, a circuit breaker or an alarm")


@app.command()
def show(task: TaskName, as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """One task: pause and circuit, which live workers know it, its last hour in each queue."""
    with connected(database_url) as conn:
        found = out.first(database.execute(conn, database.task_status(task)))
        workers = [
            row["name"]
            for row in database.execute(conn, database.worker_status())
            if row["state"] in ("alive", "draining") and task in (row["info"].get("tasks") or ())
        ]
        queues = database.execute(conn, database.stats(datetime.now(UTC) - timedelta(hours=1), task=task))
    if found is None and not workers and not queues:
        not_so(f"nothing is known of a task {task!r}: no setting, no live worker that has it, no job in the last hour")
    known = {"task": task, **(found or {}), "workers": workers}
    if as_json or as_lines:
        typer.echo(out.to_json({**known, "queues": queues}))
        return
    out.show_one({name: value for name, value in known.items() if value is not False}, False)
    if not workers:
        out.tell("no live worker knows it")
    if queues:
        typer.echo("\nin the last hour:")
        out.table(queues, cli_queues.STATS)


@app.command()
def pause(
    task: TaskName,
    length: PauseFor = None,
    until: PauseUntil = None,
    reason: Reason = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Claim no more jobs of a task, in any queue. What runs goes on; jobs can still be enqueued."""
    end = pause_end(length, until)
    with connected(database_url) as conn:
        row = _do(conn, task, database.pause_task(task, until=end, reason=reason))
    _tell(row, as_json, f"{task} is paused" + (f" until {out.said(end)}" if end else f": pgqueue tasks resume {task}"))


@app.command()
def resume(task: TaskName, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """End a pause."""
    with connected(database_url) as conn:
        if not database.execute(conn, database.resume_task(task)):
            not_so(f"{task} is not paused")
        row = _row(conn, task)
    held = "" if row["circuit"] == "closed" else f", but its circuit is {row['circuit'].replace('_', ' ')}"
    _tell(row, as_json, f"{task} goes on{held}")


@app.command("set")
def set_task(
    task: TaskName,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="breaker_rate=null takes it away.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Set the circuit breaker of a task: breaker_rate=0.5 breaker_min=20 breaker_window=60s breaker_open=30s

    When half of at least 20 attempts within a minute fail, no job of it starts for 30 seconds, on any worker; then one
    does, and what becomes of it decides. What is not named keeps its value, else has that of the example.
    """
    wanted = dict(_setting(text) for text in settings)
    with connected(database_url) as conn, conn.transaction(force_rollback=dry_run):
        before = out.first(database.execute(conn, database.task_status(task)))
        row = _do(conn, task, database.set_task(task, wanted))
    now = _breaker(row) or "no circuit breaker"
    _tell(row, as_json, f"{task}: {(before and _breaker(before)) or 'none'} → {now}" if dry_run else f"{task}: {now}")


def _setting(text: str) -> tuple[str, Any]:
    name, value = setting(text)
    if name in SPANS and isinstance(value, str):
        return name, span(value).total_seconds()
    return name, value


@app.command("open")
def open_circuit(
    task: TaskName, reason: Reason = None, as_json: AsJson = False, database_url: DatabaseUrl = None
) -> None:
    """Open the circuit of a task by hand: no job of it is claimed until somebody closes it."""
    with connected(database_url) as conn:
        row = _do(conn, task, database.force_circuit(task, "open", reason))
    _tell(row, as_json, f"the circuit of {task} is open: pgqueue tasks close {task}")


@app.command("close")
def close_circuit(task: TaskName, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """Close the circuit of a task: its jobs go on."""
    with connected(database_url) as conn:
        before = out.first(database.execute(conn, database.task_status(task)))
        if before is None or before["circuit"] == "closed":
            not_so(f"the circuit of {task} is closed")
        row = _do(conn, task, database.force_circuit(task, "closed"))
    held = f", but it is paused: pgqueue tasks resume {task}" if row["paused"] else ""
    _tell(row, as_json, f"the circuit of {task} is closed{held}")


def _do(conn: psycopg.Connection[Any], task: str, call: Call[Any]) -> out.Row:
    database.execute(conn, call)
    return _row(conn, task)


def _row(conn: psycopg.Connection[Any], task: str) -> out.Row:
    (row,) = database.execute(conn, database.task_status(task))
    return row


def _tell(row: out.Row, as_json: bool, text: str) -> None:
    typer.echo(out.to_json(row) if as_json else text)
