"""`pgqueue events …` and `pgqueue jobs tail`: every change of a job's status, as it happens."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from pgqueue import cli_jobs, database
from pgqueue import cli_output as out
from pgqueue.cli_options import AsLines, DatabaseUrl, OfQueue, OfTask, Yes, confirm, connected

app = typer.Typer(
    name="events", help="The stream of changes: off by default; what it costs is measured.", no_args_is_help=True
)
POLL_SECONDS = 0.5


@app.command()
def on(yes: Yes = False, database_url: DatabaseUrl = None) -> None:
    """Write an event for each change of a job's status from now on, kept until the next day (UTC) is over."""
    with connected(database_url) as conn:
        confirm(
            "Each change becomes a row more: a ninth of what one worker drains, two fifths where the database is the "
            "limit. Switch events on?",
            yes,
        )
        database.execute(conn, database.set_events(True))
    typer.echo("events are written: pgqueue jobs tail")


@app.command()
def off(database_url: DatabaseUrl = None) -> None:
    """Write no more events. Those that are there go with their day."""
    with connected(database_url) as conn:
        database.execute(conn, database.set_events(False))
    typer.echo("no events are written")


@cli_jobs.app.command()
def tail(
    ids: cli_jobs.Ids = None,
    queue: OfQueue = None,
    task: OfTask = None,
    seconds: Annotated[float | None, typer.Option("--for", min=0, help="End after so many seconds.")] = None,
    as_lines: AsLines = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Follow what happens to jobs, until Ctrl-C: all of them, or those named, of a queue, of a task."""
    until = None if seconds is None else time.monotonic() + seconds
    with connected(database_url) as conn:
        cursor: str | None = None
        while True:
            found = database.execute(conn, database.events(cursor))
            cursor = found[-1]["cursor"] if found else cursor
            for row in found:
                if row["job_id"] is not None and _wanted(row, ids, queue, task):
                    _print(row, as_lines)
            if until is not None and time.monotonic() >= until:
                return
            time.sleep(POLL_SECONDS if until is None else max(min(POLL_SECONDS, until - time.monotonic()), 0))


def _wanted(row: out.Row, ids: list[int] | None, queue: str | None, task: str | None) -> bool:
    return (
        (not ids or row["job_id"] in ids)
        and (queue is None or row["queue"] == queue)
        and (task is None or row["task"] == task)
    )


def _print(row: out.Row, as_lines: bool) -> None:
    if as_lines:
        typer.echo(out.to_json({name: value for name, value in row.items() if name != "cursor"}))
        return
    worker = f"  worker {row['worker_id']}" if row["status"] == "running" else ""
    error = f"  {out.said(row['error_type'])}" if row["error_type"] else ""
    typer.echo(
        f"{out.said(row['at'])}  {row['job_id']}  {row['queue']}  {row['task']}  {row['status']}"
        f"  attempt {row['attempt']}{worker}{error}"
    )
