"""Steps that the tests of recurring jobs are made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pgqueue import database as db
from pgqueue.ticker import plan
from tests.support import Conn, row, value


def set_recurring(conn: Conn, name: str = "a", /, **settings: Any) -> str:
    return db.execute(conn, db.set_recurring(name, settings))


def remove(conn: Conn, name: str = "a") -> bool:
    return db.execute(conn, db.remove_recurring(name))


def definition(conn: Conn, name: str = "a") -> dict[str, Any]:
    return row(conn, "select * from pgqueue.recurring_job where name = %s", name)


def state(conn: Conn, name: str = "a") -> str:
    return str(value(conn, "select state from pgqueue.recurring_status where name = %s", name))


def now(conn: Conn) -> datetime:
    found: datetime = value(conn, "select clock_timestamp()")
    return found


def tick_at(
    conn: Conn, next_at: datetime | None = None, due: Sequence[datetime] = (), name: str = "a"
) -> list[db.Ticked]:
    """A tick with times of the test's own."""
    version = definition(conn, name)["version"]
    return db.execute(conn, db.tick(name, version, due, next_at)) or []


def backdate(conn: Conn, span: timedelta, name: str = "a") -> None:
    """Let the definition be older by so much: as if no ticker had run since, instead of waiting."""
    conn.execute(
        "update pgqueue.recurring_job set planned_from = planned_from - %(by)s, last_due_at = last_due_at - %(by)s,"
        " next_run_at = next_run_at - %(by)s, paused_at = paused_at - %(by)s, paused_until = paused_until - %(by)s,"
        " recheck_at = recheck_at - %(by)s where name = %(name)s",
        {"by": span, "name": name},
    )


def tick_all(conn: Conn) -> list[db.Ticked]:
    """What a ticker does in one look."""
    found = db.execute(conn, db.due_recurring())
    return [
        ticked
        for due in found.due
        for ticked in db.execute(conn, db.tick(due.name, due.version, *plan(due, found.now))) or []
    ]
