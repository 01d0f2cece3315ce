"""`pgqueue doctor`: is everything well, and what to do if not.

Most checks are SQL functions (see doctor.sql); here are those that need a client: its version, its clock, what lies
between it and the server.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console
from rich.text import Text

from pgqueue import cli_output as out
from pgqueue import config, database
from pgqueue.cli_options import BROKEN, WARNING, AsJson, AsLines, DatabaseUrl, connected
from pgqueue.errors import PgqueueError, SchemaError

OK = "ok"
CODES = {OK: 0, "warning": WARNING, "broken": BROKEN}
MARKS = {OK: ("✓", "green"), "warning": ("!", "yellow"), "broken": ("✗", "bold red")}

Finding = dict[str, Any]


def doctor(as_json: AsJson = False, as_lines: AsLines = False, database_url: DatabaseUrl = None) -> None:
    """Is everything well? Each check with its verdict, what was found, and what to do about it.

    Exit codes: 0 all is well, 4 something deserves a look, 5 something is broken.
    """
    with connected(database_url) as conn:
        found = examine(conn, config.conninfo(database_url))
    worst = max((CODES[each["verdict"]] for each in found), default=0)
    if as_json or as_lines:
        out.show(found, {}, as_json, as_lines)
    else:
        _tell(found)
    raise typer.Exit(worst)


def examine(conn: psycopg.Connection[Any], conninfo: str) -> list[Finding]:
    """All findings: the client's first."""
    found = [_schema(conninfo), _clock(conn), _pooler(conn), _encryption(conn, conninfo)]
    try:
        checks = database.execute(conn, database.doctor())
        found.extend(checks)
    except SchemaError as error:
        found.append(_finding("checks", "broken", str(error), "pgqueue migrate"))
    return found


def _finding(name: str, verdict: str, finding: str, remedy: str | None = None) -> Finding:
    return {"name": name, "verdict": verdict, "finding": finding, "remedy": remedy}


def _schema(conninfo: str) -> Finding:
    from pgqueue import schema  # with alembic

    try:
        status = schema.status(conninfo)
    except PgqueueError as error:  # only its owner may ask
        return _finding("schema", OK, f"not looked at: {error}")
    if status.current:
        return _finding("schema", OK, status.describe())
    remedy = "upgrade this package" if status.newer else "pgqueue migrate"
    return _finding("schema", "broken" if status.revision is None else "warning", status.describe(), remedy)


def _clock(conn: psycopg.Connection[Any]) -> Finding:
    before = datetime.now(UTC)
    theirs = database.execute(conn, database.clock())
    after = datetime.now(UTC)
    off = max((theirs - after).total_seconds(), (before - theirs).total_seconds(), 0.0)
    said = f"this machine and the database are {out.duration(off)} apart"
    if off > 5:
        return _finding(
            "clock", "warning", said, "let both follow NTP: jobs go by the database's clock, logs by this one"
        )
    return _finding("clock", OK, said)


def _pooler(conn: psycopg.Connection[Any]) -> Finding:
    from pgqueue.pools import through_pooler

    if through_pooler(conn, database.execute(conn, database.backend_pid())):
        return _finding(
            "pooler", "warning", "a pooler (PgBouncer) lies in between: workers through it only poll",
            "pgqueue work --listen-url with a direct URL of the server",
        )  # fmt: skip
    return _finding("pooler", OK, "the connection is a direct one")


def _encryption(conn: psycopg.Connection[Any], conninfo: str) -> Finding:
    host = conn.info.host
    if not host or host.startswith("/") or host in ("localhost", "127.0.0.1", "::1"):
        return _finding("encryption", OK, "the server is on this machine")
    mode = str(conninfo_to_dict(conninfo).get("sslmode") or "prefer")
    if mode == "verify-full":
        return _finding("encryption", OK, "TLS, and the server's name is checked")
    used = "TLS is used" if conn.pgconn.ssl_in_use else "TLS is not used"
    return _finding("encryption", "warning", f"{used}; sslmode={mode} does not check who the server is",
                    "sslmode=verify-full in the database URL")  # fmt: skip


def _tell(found: list[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(each["name"]) for each in found)
    for each in found:
        mark, style = MARKS[each["verdict"]]
        line = Text.assemble((mark, style), f" {each['name']:{width}}  {out.said(each['finding'])}")
        console.print(line)
        if each["remedy"]:
            console.print(Text(f"  {'':{width}}  → {out.said(each['remedy'])}"))
    counts = {verdict: sum(each["verdict"] == verdict for each in found) for verdict in CODES}
    bad = [f"{counts[verdict]} {verdict}" for verdict in ("broken", "warning") if counts[verdict]]
    out.tell(", ".join(bad) or "all is well")
