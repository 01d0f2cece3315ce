"""`pgqueue stats`, `pgqueue enqueue`."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from pgqueue import cli_bulk as bulk
from pgqueue import cli_output as out
from pgqueue import cli_queues, database
from pgqueue.cli_options import AsJson, AsLines, DatabaseUrl, DryRun, OfQueue, OfTask, ago, connected, span


class By(StrEnum):
    task = "task"
    queue = "queue"
    minute = "minute"
    hour = "hour"


def stats(
    since: Annotated[datetime, typer.Option(parser=ago, metavar="1h", help="A span before now, or a time.")] = "1h",  # type: ignore[assignment]
    until: Annotated[datetime | None, typer.Option(parser=ago, metavar="0s", help="Likewise; else now.")] = None,
    by: Annotated[By, typer.Option(help="A row for each of these.")] = By.task,
    queue: OfQueue = None,
    task: OfTask = None,
    as_json: AsJson = False,
    as_lines: AsLines = False,
    database_url: DatabaseUrl = None,
) -> None:
    """What ended, how long it had waited and run: counts and percentiles for any range, without reading jobs.

    Minutes are kept for two days, hours for 30.
    """
    with connected(database_url) as conn:
        found = database.execute(conn, database.stats(since, until, queue=queue, task=task, by=by.value))
    columns = dict(cli_queues.STATS)
    if by in (By.minute, By.hour):
        columns = {"AT": lambda row: f"{row['at']:%m-%d %H:%M}", **columns}
    if task is None and by is not By.task:
        del columns["TASK"]
    if by is By.queue:
        columns["ENQUEUED"] = lambda row: "" if row["enqueued"] is None else f"≈ {row['enqueued']:,}"
    out.show(found, columns, as_json, as_lines)
    if not found:
        out.tell("nothing ended in this time")


def enqueue(
    task: str,
    payload: bulk.PayloadOption = None,
    queue: Annotated[str, typer.Option("--queue", "-q", help="Into this queue.")] = "default",
    key: Annotated[str | None, typer.Option(help="Idempotency key: if it is taken, nothing is enqueued.")] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher comes first.")] = 0,
    run_in: Annotated[timedelta | None, typer.Option("--in", parser=span, metavar="10m", help="Not before.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Of this group: a tenant, an account.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, max=32_000, help="Dies after so many.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A label; may be repeated.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Enqueue a job and print its id: pgqueue enqueue send_receipt -q email -p '{"order_id": 7}'"""
    call = database.enqueue(
        queue, task, bulk.read_payload(payload) if payload is not None else {}, key=key, priority=priority,
        run_in=run_in, max_attempts=max_attempts, tags=tag or None, group=group,
    )  # fmt: skip
    with connected(database_url) as conn:
        if dry_run:
            with conn.transaction(force_rollback=True):
                database.execute(conn, call)
            out.tell("the database would accept it")
            return
        made = database.execute(conn, call)
    typer.echo(out.to_json(made._asdict()) if as_json else made.id)
    if not made.created:
        out.tell(f"nothing was enqueued: the key {key!r} is taken by this job")
