"""`pgqueue jobs …`: find jobs, look at one, cancel and retry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import psycopg
import typer

from pgqueue import cli_bulk as bulk
from pgqueue import cli_output as out
from pgqueue import database
from pgqueue.cli_bulk import WAITING, PayloadOption
from pgqueue.cli_options import (
    All,
    AsJson,
    AsLines,
    Batch,
    DatabaseUrl,
    DryRun,
    Fingerprint,
    Limit,
    Newer,
    OfError,
    OfErrorType,
    OfGroup,
    OfQueue,
    OfTag,
    OfTask,
    Older,
    Yes,
    connected,
    not_so,
    span,
)

app = typer.Typer(name="jobs", help="Find jobs, look at one, cancel and retry them.", no_args_is_help=True)


class Status(StrEnum):
    blocked = "blocked"
    scheduled = "scheduled"
    pending = "pending"
    running = "running"
    completed = "completed"
    cancelled = "cancelled"
    dead = "dead"


class WaitsFor(StrEnum):
    group = "group"
    task = "task"


class Retryable(StrEnum):
    dead = "dead"
    cancelled = "cancelled"


PAGE = 1000

COLUMNS: out.Columns = {
    "ID": "id",
    "QUEUE": "queue",
    "TASK": "task",
    "STATUS": lambda row: f"{row['status']} ({row['waits_for']})" if row["waits_for"] else row["status"],
    "TRY": "attempt",
    "AGE": lambda row: out.age(row["enqueued_at"]),
    "WHEN": lambda row: _when(row),
    "ERROR": lambda row: f"{row['error_type']}: {row['error']}" if row["error_type"] else row["error"],
}


def _columns(rows: Sequence[out.Row]) -> out.Columns:
    """Groups are shown where there are any."""
    if not any(row["group_key"] for row in rows):
        return COLUMNS
    columns: dict[str, out.Column] = {}
    for name, column in COLUMNS.items():
        columns[name] = column
        if name == "TASK":
            columns["GROUP"] = "group_key"
    return columns


def _when(row: out.Row) -> str:
    """What the status is about: due in, running for, ended ago."""
    if row["status"] == "scheduled":
        return out.age(row["run_at"])
    return out.age(row["finished_at"] or row["started_at"] if row["status"] not in WAITING else None)


StatusOption = Annotated[list[Status] | None, typer.Option("--status", "-s", help="With this status; may be repeated.")]
WaitsForOption = Annotated[
    WaitsFor | None, typer.Option("--waits-for", help="Blocked by its group (no slot, not its turn), or by its task.")
]
Key = Annotated[str | None, typer.Option("--key", help="With this idempotency key.")]
WorkerId = Annotated[int | None, typer.Option("--worker", help="Run, or last run, by this worker.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Jobs.")]
In = Annotated[timedelta | None, typer.Option("--in", parser=span, metavar="10m", help="Not before this has passed.")]
MaxAttempts = Annotated[int | None, typer.Option(min=1, max=32_000, help="With so many attempts.")]
Spread = Annotated[
    timedelta | None, typer.Option(parser=span, metavar="10m", help="Start them at random times within this.")
]


@app.command("list")
def list_jobs(
    status: StatusOption = None,
    queue: OfQueue = None,
    task: OfTask = None,
    tag: OfTag = None,
    key: Key = None,
    error: OfError = None,
    error_type: OfErrorType = None,
    fingerprint: Fingerprint = None,
    group: OfGroup = None,
    waits_for: WaitsForOption = None,
    worker: WorkerId = None,
    older: Older = None,
    newer: Newer = None,
    limit: Limit = 50,
    before: Annotated[int | None, typer.Option(help="Go on below this id.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Look through everything, however long it takes.")] = False,
    as_json: AsJson = False,
    as_lines: AsLines = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List jobs, the newest first. Ages are of the enqueue. No payloads: see `pgqueue jobs show`."""
    statuses = [each.value for each in status or ()]
    where = bulk.given(
        status=statuses[0] if len(statuses) == 1 else statuses or None, queue=queue, task=task, tag=tag, key=key,
        error=error, error_type=error_type, fingerprint=fingerprint, group_key=group,
        waits_for=waits_for and waits_for.value, worker_id=worker, enqueued_before=older, enqueued_after=newer,
    )  # fmt: skip
    with connected(database_url) as conn:
        found, rest = _pages(conn, where, limit, before, deep)
    out.show(found, _columns(found), as_json, as_lines)
    if rest is not None:
        why = "there may be more" if len(found) == limit else "looked at 100,000 jobs; --deep goes on through all, or"
        out.tell(f"{why}: --before {rest}")
    elif not found:
        out.tell("no job matches")


def _pages(
    conn: psycopg.Connection[Any], where: Mapping[str, Any], limit: int, before: int | None, deep: bool
) -> tuple[list[dict[str, Any]], int | None]:
    """Up to `limit` rows, and the id below which to go on, or None at the end."""
    found: list[dict[str, Any]] = []
    while len(found) < limit:
        wanted = min(PAGE, limit - len(found))
        page = database.execute(conn, database.list_jobs(where, before=before, batch=wanted))
        stopped = bool(page) and page[-1]["status"] is None
        before = page[-1]["id"] if page else before
        found += page[:-1] if stopped else page
        if stopped and not deep:
            return found, before
        if not stopped and len(page) < wanted:
            return found, None
    return found, before


@app.command()
def show(id: int, as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """Everything about a job: its row, each attempt with its traceback, steps, and what its handler logged."""
    with connected(database_url) as conn:
        found = out.first(database.execute(conn, database.job_detail(id)))
        if found is None:
            not_so(f"there is no job {id}, or it has been pruned")
        attempts, steps, lines = (
            database.execute(conn, call(id)) for call in (database.attempt, database.step, database.log_line)
        )
    if as_json or as_lines:
        typer.echo(out.to_json({**found, "attempts": attempts, "steps": steps, "log": lines}))
        return
    empty = ("crashes", "token", "progress", "tags", "holds_slot")
    out.show_one({name: value for name, value in found.items() if value or name not in empty}, False)
    for attempt in attempts:
        ran = (attempt["finished_at"] or attempt["started_at"]) - attempt["started_at"]
        again = "" if attempt["delay_seconds"] is None else f", again after {out.duration(attempt['delay_seconds'])}"
        typer.echo(
            f"\nattempt {attempt['attempt']}: {attempt['outcome']}, started {out.said(attempt['started_at'])}"
            + (f", ran {out.duration(ran.total_seconds())}" if attempt["finished_at"] else "")
            + f", worker {attempt['worker_id']}{again}"
        )
        if attempt["error_type"] or attempt["error"]:
            typer.echo(f"  {out.said(attempt['error_type'])}: {out.said(attempt['error'])}")
        for line in out.said(attempt["traceback"], one_line=False).splitlines():
            typer.echo(f"  | {line}")
    for step in steps:
        typer.echo(f"\nstep {out.said(step['name'])}: {out.said(step['result'])}")
    for each in lines:
        typer.echo(f"\n{out.said(each['logged_at'])} {each['level']}: {out.said(each['message'])}")
    out.tell(f"\nWhy? pgqueue why {id}")


@app.command()
def cancel(
    ids: Ids = None,
    queue: OfQueue = None,
    task: OfTask = None,
    tag: OfTag = None,
    error: OfError = None,
    group: OfGroup = None,
    older: Older = None,
    newer: Newer = None,
    running: Annotated[bool, typer.Option("--running", help="Those that run, too: they are asked to stop.")] = False,
    every: All = False,
    reason: Annotated[str | None, typer.Option(help="Why; is kept with the job.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    batch: Batch = 1000,
    database_url: DatabaseUrl = None,
) -> None:
    """Cancel jobs: those named, or all that wait and match. A running one is asked to stop."""
    where = bulk.given(queue=queue, task=task, tag=tag, error=error, group_key=group,
                   enqueued_before=older and older.isoformat(), enqueued_after=newer and newer.isoformat())  # fmt: skip
    bulk.named_or_filtered(ids, where, every)
    with connected(database_url) as conn:
        if ids:
            bulk.each(conn, ids, lambda id: database.cancel(id, reason), dry_run, "would be cancelled if it is live")
            return
        where["status"] = [*WAITING, *(["running"] if running else [])]
        total = bulk.ask(conn, where, "cancel", dry_run, yes)
        asked = 0

        def one(after: int) -> tuple[int, int | None]:
            nonlocal asked
            told = database.execute(conn, database.cancel_many(where, reason=reason, after_id=after, batch=batch))
            asked += told.asked
            return told.cancelled + told.asked, told.last_id

        done = bulk.batches("cancelling", total, one)
    typer.echo(
        f"{out.plural(done - asked, 'job')} cancelled" + (f", {asked:,} running ones asked to stop" if asked else "")
    )


@app.command()
def retry(
    ids: Ids = None,
    status: Annotated[Retryable, typer.Option(help="Of the matching, these.")] = Retryable.dead,
    queue: OfQueue = None,
    task: OfTask = None,
    tag: OfTag = None,
    error: OfError = None,
    error_type: OfErrorType = None,
    fingerprint: Fingerprint = None,
    group: OfGroup = None,
    older: Older = None,
    newer: Newer = None,
    every: All = False,
    payload: PayloadOption = None,
    max_attempts: MaxAttempts = None,
    run_in: In = None,
    spread: Spread = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    batch: Batch = 1000,
    database_url: DatabaseUrl = None,
) -> None:
    """Run dead or cancelled jobs again: those named, or all that match; ages are of the end."""
    filters = database.Filter(
        queue=queue, task=task, tag=tag, error=error, error_type=error_type,
        fingerprint=fingerprint, group_key=group, finished_before=older, finished_after=newer,
    )  # fmt: skip
    again = bulk.Again(payload=payload, max_attempts=max_attempts, run_in=run_in, spread=spread)
    bulk.retry(ids, status.value, filters, again, every=every, dry_run=dry_run, yes=yes, batch=batch,
               database_url=database_url)  # fmt: skip
