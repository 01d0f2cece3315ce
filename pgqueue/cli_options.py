"""Options that several commands take, and what they mean.

Exit codes of all commands, for scripts:

    0   done
    1   failed, or refused with a reason; also: not confirmed
    2   wrong usage
    3   not in the asked-for state: no such job, queue or worker; nothing matched; a migration is needed
    4   doctor: something deserves a look
    5   doctor: something is broken
    70  work: stopped at once by a second signal
    75  work: a handler did not stop (start it again)
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NoReturn

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict

from pgqueue import cli_output, config, database

NOT_SO, WARNING, BROKEN = 3, 4, 5
CONNECT_SECONDS = 10
LONGEST = 100 * 365 * 86400  # beyond it, times cannot be told from mistakes, and at last not be told at all

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")


def connect(database_url: str | None) -> psycopg.Connection[Any]:
    conninfo = config.conninfo(database_url)
    patience: Any = {} if "connect_timeout" in conninfo_to_dict(conninfo) else {"connect_timeout": CONNECT_SECONDS}
    return psycopg.connect(conninfo, autocommit=True, application_name="pgqueue cli", **patience)


@contextmanager
def connected(database_url: str | None) -> Iterator[psycopg.Connection[Any]]:
    with connect(database_url) as conn:
        yield conn


def span(text: str) -> timedelta:
    """`90s`, `10m`, `1h30m`, `2d`."""
    if not _SPAN.fullmatch(text.strip()):
        raise typer.BadParameter(f"{text!r} is not a time span: use 30s, 10m, 2h, 1h30m or 7d")
    total = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smhdw])", text))
    if total > LONGEST:
        raise typer.BadParameter(f"{text!r} is more than a hundred years")
    return timedelta(seconds=total)


def ago(text: str) -> datetime:
    """A span before now, or a moment as it stands: `2h`, `2026-11-05T03:00:00Z`."""
    if _SPAN.fullmatch(text.strip()):
        return datetime.now(UTC) - span(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a time span (2h) nor a time (2026-11-05T03:00:00Z)") from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone: end it with Z, or with +02:00")
    return moment


def _queues(incomplete: str) -> list[str]:
    """For the shell's completion: the queues there are, or nothing if the database does not answer at once."""
    try:
        with psycopg.connect(config.conninfo(), connect_timeout=2, autocommit=True) as conn:
            names = [row["queue"] for row in database.execute(conn, database.queue_status())]
    except Exception:
        return []
    return [name for name in names if name.startswith(incomplete)]


DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", "-d", metavar="URL", help="Else PGQUEUE_DATABASE_URL, DATABASE_URL, PG…, the embedded server."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Everything known, as JSON.")]
AsLines = Annotated[bool, typer.Option("--jsonl", help="As --json, one object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Jobs in one transaction.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="At most so many.")]

OfQueue = Annotated[str | None, typer.Option("--queue", "-q", help="Of this queue.", autocompletion=_queues)]
OfTask = Annotated[str | None, typer.Option("--task", "-t", help="Of this task.")]
OfTag = Annotated[str | None, typer.Option("--tag", help="With this tag.")]
OfError = Annotated[str | None, typer.Option("--error", help="Whose error contains this text.")]
OfErrorType = Annotated[str | None, typer.Option("--error-type", help="Whose error has this class.")]
Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", "-f", help="Of this group of errors: see `pgqueue dead groups`.")
]
OfGroup = Annotated[str | None, typer.Option("--group", "-g", help="Of this group: see `pgqueue queues groups`.")]
Older = Annotated[datetime | None, typer.Option(parser=ago, metavar="2d", help="Longer ago than this.")]
Newer = Annotated[datetime | None, typer.Option(parser=ago, metavar="1h", help="Not longer ago than this.")]
All = Annotated[bool, typer.Option("--all", help="Without any filter.")]
PauseFor = Annotated[
    timedelta | None, typer.Option("--for", parser=span, metavar="2h", help="End by itself after this.")
]
PauseUntil = Annotated[
    datetime | None, typer.Option("--until", parser=ago, metavar="TIME", help="End by itself at this time.")
]
Reason = Annotated[str | None, typer.Option(help="Why; others see it.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=_queues)]


def pause_end(length: timedelta | None, until: datetime | None) -> datetime | None:
    """When a pause ends by itself."""
    if length and until:
        raise typer.BadParameter("--for or --until, not both")
    return datetime.now(UTC) + length if length else until


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE; a value is JSON, or a text as it stands: `retain_dead=60 days`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def confirm(question: str, yes: bool) -> None:
    """Ask before something big. Where nobody can answer, --yes must have been given."""
    if yes:
        return
    if not sys.stdin.isatty():
        cli_output.tell(f"{question} Nobody can answer here: say --yes, or try --dry-run.")
        raise typer.Exit(2)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def not_so(text: str) -> NoReturn:
    """The answer is no."""
    cli_output.tell(text)
    raise typer.Exit(NOT_SO)
