"""What commands on many jobs share: which are meant, whether that is really wanted, and a bar while it is done.

Everything goes in batches, each a transaction of its own. A job that has been dealt with does not match any more; so a
command may be killed midway and run again, and does nothing twice.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import psycopg
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pgqueue import cli_output as out
from pgqueue import database
from pgqueue.cli_options import NOT_SO, confirm, connected, not_so
from pgqueue.database import Call, Filter
from pgqueue.errors import PgqueueError

WAITING = ("blocked", "scheduled", "pending")
COUNTED = 1_000_000  # nobody needs to know more exactly how many it will be

PayloadOption = Annotated[
    str | None, typer.Option("--payload", "-p", metavar="JSON", help="JSON, @file, or - for standard input.")
]


def given(**where: Any) -> dict[str, Any]:
    """The conditions that were given, as job_filter() takes them."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in where.items()
        if value is not None
    }


def matching(filters: Filter) -> dict[str, Any]:
    return given(
        queue=filters.queue, task=filters.task, tag=filters.tag, error=filters.error, error_type=filters.error_type,
        fingerprint=filters.fingerprint, group_key=filters.group_key,
        finished_before=filters.finished_before, finished_after=filters.finished_after,
    )  # fmt: skip


def named_or_filtered(ids: Sequence[int] | None, where: Mapping[str, Any], every: bool) -> None:
    if ids and (where or every):
        raise typer.BadParameter("name jobs or filter them, not both")
    if not ids and not where and not every:
        raise typer.BadParameter("name jobs, or say which by a filter, or say --all")


def each(
    conn: psycopg.Connection[Any], ids: Sequence[int], call: Callable[[int], Call[Any]], dry_run: bool, would: str
) -> None:
    """One by one: that something cannot be done with one does not stop the others."""
    refused = 0
    for id in dict.fromkeys(ids):
        try:
            if dry_run:
                typer.echo(f"{id}: is {database.execute(conn, database.look_up(id)).status}; {would}")
            else:
                typer.echo(f"{id}: {database.execute(conn, call(id))}")
        except PgqueueError as error:
            refused += 1
            out.tell(f"{id}: {error}")
    if refused:
        raise typer.Exit(NOT_SO)


def ask(conn: psycopg.Connection[Any], where: Mapping[str, Any], verb: str, dry_run: bool, yes: bool) -> int:
    """How many it will be. Ends here if there are none, if it is a dry run, or if nobody wants it."""
    total = database.execute(conn, database.count_jobs(where, most=COUNTED))
    about = f"{'at least ' if total == COUNTED else ''}{out.plural(total, 'job')}"
    if total == 0:
        not_so("no job matches: nothing to do")
    if dry_run:
        typer.echo(f"would {verb} {about}")
        raise typer.Exit
    confirm(f"{verb.capitalize()} {about}?", yes)
    return total


def batches(title: str, total: int, one: Callable[[int], tuple[int, int | None]]) -> int:
    """`one(after_id)` does a batch and says how many jobs it was and the last id, None at the end."""
    done, after = 0, 0
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True,
    ) as progress:  # fmt: skip
        shown = progress.add_task(title, total=total)
        while True:
            count, last = one(after)
            done += count
            progress.update(shown, completed=done, total=max(total, done))
            if last is None:
                return done
            after = last


# ------------------------------------------------------------------------------------------------- retry


@dataclass(frozen=True)
class Again:
    """With what changes jobs run again."""

    payload: str | None = None
    max_attempts: int | None = None
    run_in: timedelta | None = None
    spread: timedelta | None = None


def retry(
    ids: Sequence[int] | None, status: Literal["dead", "cancelled"], filters: Filter, again: Again, *,
    every: bool, dry_run: bool, yes: bool, batch: int, database_url: str | None,
) -> None:  # fmt: skip
    """The jobs that are named, or all with this status that match."""
    where = matching(filters)
    named_or_filtered(ids, where, every)
    if not ids and (again.payload or again.max_attempts or again.run_in):
        raise typer.BadParameter("--payload, --max-attempts and --in are for jobs that are named; see --spread")
    with connected(database_url) as conn:
        if ids:
            each(conn, ids, _retry_one(again), dry_run, "would be retried if it is dead or cancelled")
            return
        total = ask(conn, {**where, "status": status}, "retry", dry_run, yes)
        spread = again.spread or timedelta(0)
        skipped = 0

        def one(after: int) -> tuple[int, int | None]:
            nonlocal skipped
            call = database.retry_many(filters, status=status, spread=spread, after_id=after, batch=batch)
            told = database.execute(conn, call)
            skipped += told.skipped
            return told.retried, told.last_id

        done = batches("retrying", total, one)
    typer.echo(
        f"retried {out.plural(done, 'job')}"
        + (f", spread over {out.duration(spread.total_seconds())}" if spread else "")
        + (f"; {skipped:,} stay, because another job has their key" if skipped else "")
    )


def _retry_one(again: Again) -> Callable[[int], Call[str]]:
    payload = None if again.payload is None else read_payload(again.payload)

    def call(id: int) -> Call[str]:
        wait = (again.run_in or timedelta(0)) + random.random() * (again.spread or timedelta(0))  # noqa: S311
        run_at = datetime.now(UTC) + wait if wait else None
        return database.retry(id, payload=payload, max_attempts=again.max_attempts, run_at=run_at)

    return call


def read_payload(text: str) -> dict[str, Any]:
    """The arguments of a task: JSON, @file, or - for standard input."""
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            raise typer.BadParameter(f"{text[1:]}: {error.strerror}", param_hint="--payload") from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"this is not JSON: {error}", param_hint="--payload") from None
    if not isinstance(found, dict):
        raise typer.BadParameter('a JSON object of arguments is needed: {"order_id": 7}', param_hint="--payload")
    return found
