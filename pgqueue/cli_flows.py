"""`pgqueue flows …`: how flows are doing, as trees; cancel one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from pgqueue import cli_output as out
from pgqueue import database, flow_tree
from pgqueue.cli_options import AsJson, AsLines, DatabaseUrl, DryRun, Limit, Reason, Yes, confirm, connected
from pgqueue.database import FlowInfo
from pgqueue.flow_tree import Line

app = typer.Typer(name="flows", help="Flows: how far they are, as a tree; cancel one.", no_args_is_help=True)


class Status(StrEnum):
    running = "running"
    stalled = "stalled"
    cancelling = "cancelling"
    completed = "completed"
    failed = "failed"
    cancelled = "cancelled"


COLUMNS: out.Columns = {
    "ID": "id",
    "STATUS": "status",
    "ENDED": lambda row: f"{row['completed'] + row['dead'] + row['cancelled']:,} of {row['total']:,}",
    "DEAD": "dead",
    "AGE": lambda row: out.age(row["created_at"]),
    "TOOK": lambda row: out.said(row["ended_at"] and row["ended_at"] - row["created_at"]),
    "NAME": "name",
}


@app.command("list")
def list_flows(
    status: Annotated[Status | None, typer.Option("--status", "-s", help="With this status.")] = None,
    limit: Limit = 50,
    before: Annotated[int | None, typer.Option(help="Go on below this id.")] = None,
    as_json: AsJson = False,
    as_lines: AsLines = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List flows, the newest first. stalled: all that is left waits for something dead or cancelled."""
    with connected(database_url) as conn:
        found = database.execute(conn, database.flow_status(status and status.value, before, limit))
    out.show(found, COLUMNS, as_json, as_lines)
    if len(found) == limit:
        out.tell(f"there may be more: --before {found[-1]['id']}")
    elif not found:
        out.tell("no flow matches")


@app.command()
def show(id: int, as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """One flow as a tree: each job below those it runs after; many that stand alike are one line."""
    with connected(database_url) as conn:
        flow = database.execute(conn, database.look_up_flow(id))
        jobs = database.execute(conn, database.list_flow(id))
    if as_json or as_lines:
        typer.echo(out.to_json({**flow._asdict(), "progress": flow.progress, "jobs": [job._asdict() for job in jobs]}))
        return
    typer.echo(_headline(flow))
    typer.echo()
    out.table([{"line": line} for line in flow_tree.lines(jobs)], TREE)
    if flow.trouble is not None:
        out.tell(f"\nWhy? pgqueue why {flow.trouble}")


def _headline(flow: FlowInfo) -> str:
    ended = flow.completed + flow.dead + flow.cancelled
    took = out.age(flow.created_at) if flow.ended_at is None else out.said(flow.ended_at - flow.created_at)
    parts = [
        f"flow {flow.id}" + (f" ({out.said(flow.name)})" if flow.name else "") + f" {flow.status}",
        f"{ended:,} of {out.plural(flow.total, 'job')} ended",
        *(f"{count:,} {name}" for name, count in (("dead", flow.dead), ("cancelled", flow.cancelled)) if count),
        f"{'for' if flow.ended_at is None else 'took'} {took}",
        *([f"cancelled: {out.said(flow.cancel_reason)}"] if flow.cancel_reason else []),
    ]
    return ", ".join(parts)


def _status(line: Line) -> str:
    if len(line.jobs) == 1:
        return line.jobs[0].status
    return ", ".join(f"{count:,} {status}" for status, count in line.statuses.items())


def _ids(line: Line) -> str:
    first, last = line.jobs[0].job_id, line.jobs[-1].job_id
    return str(first) if first == last else f"{first} … {last}"


def _note(line: Line) -> str:
    first: Sequence[str | None] = [line.jobs[0].error_type, line.jobs[0].error] if len(line.jobs) == 1 else []
    return "; ".join(filter(None, [line.after, ": ".join(filter(None, first))]))


TREE: out.Columns = {
    "JOB": lambda row: "·  " * (row["line"].depth - 1) + "└─ " * (row["line"].depth > 0) + row["line"].label,
    "STATUS": lambda row: _status(row["line"]),
    "ID": lambda row: _ids(row["line"]),
    "QUEUE": lambda row: row["line"].jobs[0].queue,
    "TOOK": lambda row: _took(row["line"]),
    "": lambda row: _note(row["line"]),
}


def _took(line: Line) -> str:
    """From the first start to the last end."""
    starts = [job.started_at for job in line.jobs if job.started_at is not None]
    ends = [job.finished_at for job in line.jobs if job.finished_at is not None]
    return out.said(max(ends) - min(starts)) if starts and ends and line.ended == len(line.jobs) else ""


@app.command()
def cancel(
    id: int, reason: Reason = None, dry_run: DryRun = False, yes: Yes = False, database_url: DatabaseUrl = None
) -> None:
    """Cancel all of a flow that waits; what runs is asked to stop."""
    with connected(database_url) as conn:
        flow = database.execute(conn, database.look_up_flow(id))
        left = flow.total - flow.completed - flow.dead - flow.cancelled
        if dry_run:
            typer.echo(f"would cancel {out.plural(left, 'job')} of flow {id}")
            return
        if left:
            confirm(f"Cancel {out.plural(left, 'job')} of flow {id}?", yes)
        done = database.execute(conn, database.cancel_flow(id, reason))
    typer.echo(f"{out.plural(done.cancelled, 'job')} cancelled, {done.asked:,} asked to stop")
    if done.cancelled + done.asked < left:
        out.tell("the rest follows with the next sweeps")
