"""`pgqueue dead …`: what died, why, and what to do about it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from pgqueue import cli_bulk as bulk
from pgqueue import cli_jobs, database
from pgqueue import cli_output as out
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
)

app = typer.Typer(name="dead", help="Dead letters: list, group, retry and purge them.", no_args_is_help=True)
PAGE = 1000

COLUMNS: out.Columns = {
    "ID": "id",
    "QUEUE": "queue",
    "TASK": "task",
    "TRY": "attempt",
    "DIED": lambda row: out.age(row["finished_at"]),
    "FINGERPRINT": "fingerprint",
    "ERROR": lambda row: f"{row['error_type']}: {row['error']}",
}
GROUPS: out.Columns = {
    "FINGERPRINT": "fingerprint",
    "JOBS": "jobs",
    "QUEUE": "queue",
    "TASK": "task",
    "FIRST": lambda row: out.age(row["first_at"]),
    "LAST": lambda row: out.age(row["last_at"]),
    "ERROR": lambda row: f"{row['error_type']}: {row['error']}",
}


def _filter(
    queue: str | None, task: str | None, tag: str | None, error: str | None, error_type: str | None,
    fingerprint: str | None, group: str | None, older: datetime | None, newer: datetime | None,
) -> database.Filter:  # fmt: skip
    return database.Filter(
        queue=queue, task=task, tag=tag, error=error, error_type=error_type, fingerprint=fingerprint, group_key=group,
        finished_before=older, finished_after=newer,
    )  # fmt: skip


def _cursor(text: str) -> tuple[datetime, int]:
    at, _, id = text.partition("/")
    try:
        return datetime.fromisoformat(at), int(id)
    except ValueError:
        raise typer.BadParameter("this is not what the page before said", param_hint="--before") from None


@app.command("list")
def list_dead(
    queue: OfQueue = None,
    task: OfTask = None,
    tag: OfTag = None,
    error: OfError = None,
    error_type: OfErrorType = None,
    fingerprint: Fingerprint = None,
    group: OfGroup = None,
    older: Older = None,
    newer: Newer = None,
    limit: Limit = 50,
    before: Annotated[str | None, typer.Option(help="Go on where the page before ended.")] = None,
    as_json: AsJson = False,
    as_lines: AsLines = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List dead letters, those that died last first."""
    where = bulk.matching(_filter(queue, task, tag, error, error_type, fingerprint, group, older, newer))
    cursor = _cursor(before) if before else None
    found: list[dict[str, Any]] = []
    with connected(database_url) as conn:
        while wanted := min(PAGE, limit - len(found)):
            page = database.execute(conn, database.list_dead(where, before=cursor, batch=wanted))
            found += page
            if len(page) < wanted:
                cursor = None
                break
            cursor = page[-1]["finished_at"], page[-1]["id"]
    out.show(found, COLUMNS, as_json, as_lines)
    if cursor:
        out.tell(f"there may be more: --before {cursor[0].isoformat()}/{cursor[1]}")
    elif not found:
        out.tell("no dead letter matches")


@app.command()
def groups(
    queue: OfQueue = None,
    task: OfTask = None,
    error: OfError = None,
    group: OfGroup = None,
    older: Older = None,
    newer: Newer = None,
    limit: Limit = 50,
    most: Annotated[int, typer.Option(min=1, help="Look at the newest so many dead letters.")] = 50_000,
    as_json: AsJson = False,
    as_lines: AsLines = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Dead letters by kind of error: messages that differ only in numbers, ids and quoted values are one group."""
    where = bulk.matching(_filter(queue, task, None, error, None, None, group, older, newer))
    with connected(database_url) as conn:
        found = database.execute(conn, database.dead_groups(where, most=most))
    out.show(found[:limit], GROUPS, as_json, as_lines)
    if not found:
        out.tell("no dead letter matches")
        return
    if len(found) > limit:
        out.tell(f"{len(found) - limit:,} smaller groups are not shown: --limit {len(found)}")
    if sum(each["jobs"] for each in found) >= most:
        out.tell(f"of the newest {most:,} dead letters")
    if not as_json and not as_lines:
        out.tell(f"one of them: pgqueue dead retry --fingerprint {found[0]['fingerprint']} --spread 10m --dry-run")


@app.command()
def show(id: int, as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """Everything about a dead letter, with the traceback of each attempt."""
    cli_jobs.show(id, as_json, as_lines, database_url)


@app.command()
def retry(
    ids: cli_jobs.Ids = None,
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
    payload: bulk.PayloadOption = None,
    max_attempts: cli_jobs.MaxAttempts = None,
    run_in: cli_jobs.In = None,
    spread: cli_jobs.Spread = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    batch: Batch = 1000,
    database_url: DatabaseUrl = None,
) -> None:
    """Run dead letters again, with fresh attempts: those named, or all that match."""
    filters = _filter(queue, task, tag, error, error_type, fingerprint, group, older, newer)
    again = bulk.Again(payload=payload, max_attempts=max_attempts, run_in=run_in, spread=spread)
    bulk.retry(ids, "dead", filters, again, every=every, dry_run=dry_run, yes=yes, batch=batch,
               database_url=database_url)  # fmt: skip


@app.command()
def purge(
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
    dry_run: DryRun = False,
    yes: Yes = False,
    batch: Batch = 1000,
    database_url: DatabaseUrl = None,
) -> None:
    """Remove dead letters for good, with their history. (They go by themselves after the queue's retain_dead.)"""
    filters = _filter(queue, task, tag, error, error_type, fingerprint, group, older, newer)
    where = bulk.matching(filters)
    bulk.named_or_filtered(None, where, every)
    with connected(database_url) as conn:
        total = bulk.ask(conn, {**where, "status": "dead"}, "remove", dry_run, yes)

        def one(after: int) -> tuple[int, int | None]:
            told = database.execute(conn, database.purge(filters, status="dead", after_id=after, batch=batch))
            return told.purged, told.last_id

        done = bulk.batches("removing", total, one)
    if not done:
        not_so("somebody else was faster: nothing is left")
    typer.echo(f"removed {out.plural(done, 'dead letter')}")
