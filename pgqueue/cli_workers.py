"""`pgqueue workers …`: who works, on what, and how to let one go."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue import cli_output as out
from pgqueue import database
from pgqueue.cli_options import AsJson, AsLines, DatabaseUrl, DryRun, OfQueue, Yes, confirm, connected, not_so

app = typer.Typer(name="workers", help="Workers: who works, on what; let one end.", no_args_is_help=True)

COLUMNS: out.Columns = {
    "ID": "id",
    "STATE": "state",
    "RUNNING": "running",
    "SLOTS": lambda row: row["info"].get("concurrency"),
    "BEAT": lambda row: out.duration(row["beat_age_seconds"]),
    "UP": lambda row: out.age(row["started_at"]),
    "VERSION": lambda row: row["info"].get("version"),
    "NAME": "name",
    "QUEUES": "queues",
}
JOBS: out.Columns = {
    "ID": "id",
    "QUEUE": "queue",
    "TASK": "task",
    "TRY": "attempt",
    "RUNS": lambda row: out.duration(row["running_seconds"]),
    "TIMEOUT": lambda row: out.duration(row["timeout_seconds"]),
    "PROGRESS": "progress",
}


@app.command("list")
def list_workers(
    queue: OfQueue = None, as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None
) -> None:
    """List workers. silent: no heartbeat within its lease, the next sweep takes its jobs; lost: that has happened."""
    with connected(database_url) as conn:
        found = database.execute(conn, database.worker_status())
    found = [row for row in found if queue is None or queue in row["queues"]]
    out.show(found, COLUMNS, as_json, as_lines)
    if not found:
        out.tell("no worker: start one with `pgqueue work -A module:app`")


@app.command()
def show(id: int, as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """One worker: what it runs, which tasks it knows."""
    with connected(database_url) as conn:
        found = out.first(database.execute(conn, database.worker_status(id)))
        if found is None:
            not_so(f"there is no worker {id}")
        jobs = database.execute(conn, database.running_job(id))
    if as_json or as_lines:
        typer.echo(out.to_json({**found, "jobs": jobs}))
        return
    out.show_one({**{name: value for name, value in found.items() if name != "info"}, **found["info"]}, False)
    if jobs:
        typer.echo()
        out.table(jobs, JOBS)


@app.command()
def drain(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Workers.")] = None,
    queue: OfQueue = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let workers finish what they run, and end, with exit code 0.

    Whoever looks after their processes (systemd, Kubernetes) may start new ones.
    """
    if bool(ids) + bool(queue) + every != 1:
        raise typer.BadParameter("name workers, or say --queue, or --all")
    with connected(database_url) as conn:
        if not ids:
            ids = [
                row["id"] for row in database.execute(conn, database.worker_status())
                if row["state"] in ("alive", "draining") and (every or queue in row["queues"])
            ]  # fmt: skip
            if not ids:
                not_so("no live worker matches")
            if not dry_run:
                confirm(f"Drain {out.plural(len(ids), 'worker')}?", yes)
        missing = 0
        for id in ids:
            if dry_run:
                typer.echo(f"would drain worker {id}")
            elif database.execute(conn, database.drain(id)):
                typer.echo(f"worker {id} drains: it finishes what it runs, and ends")
            else:
                missing += 1
                out.tell(f"there is no live worker {id}")
    if missing:
        raise typer.Exit(3)
