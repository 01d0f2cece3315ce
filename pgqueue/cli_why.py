"""`pgqueue why`: why a job does not run, or ended as it did; what holds up a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue import cli_output as out
from pgqueue import database
from pgqueue.cli_options import AsJson, DatabaseUrl, OfQueue, connected


def why(
    id: Annotated[int | None, typer.Argument(metavar="[ID]", help="A job.")] = None,
    queue: OfQueue = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Why does this job not run, or why did it end so? The reason first, what else holds, and what changes it."""
    if (id is None) == (queue is None):
        raise typer.BadParameter("name one job, or --queue")
    with connected(database_url) as conn:
        found = database.execute(conn, database.why(id) if id is not None else database.why_queue(queue or ""))
    if as_json:
        typer.echo(out.to_json(found))
        return
    for number, row in enumerate(found):
        typer.echo(f"{'also: ' if number else ''}{out.said(row['explanation'])}")
        if row["remedy"]:
            typer.echo(f"  → {out.said(row['remedy'])}")
