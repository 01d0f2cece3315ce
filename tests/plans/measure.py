"""What a call touched: scans and index entries by PostgreSQL's own counters, and buffers by EXPLAIN.

Counters, not plans: they see what really ran inside a function, and need no extension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from pgqueue import database as db
from tests.support import Conn, rows, value

FILL = """
  insert into pgqueue.job_live (rank_at, run_at, enqueued_at, priority, status, queue, task, payload)
  select ago + i * interval '1 ms', ago, ago, 0, %s, 'q', 't', '{}'
  from generate_series(1, %s) i, (select now() - interval '1 hour' as ago) a"""


@dataclass(frozen=True)
class Touched:
    """`entries`: index entries read, by index of job_live; `seq_scans`: of job_live."""

    seq_scans: int
    entries: dict[str, int]


def fill(conn: Conn, count: int, status: str = "pending") -> None:
    conn.execute(FILL, [status, count])


def touched(conn: Conn, run: Callable[[Conn], Any]) -> Touched:
    """Runs it in a transaction, which it leaves committed."""
    counters = (
        "select c.relname as name, c.relkind = 'r' as heap, pg_stat_get_xact_numscans(c.oid) as scans,"
        " pg_stat_get_xact_tuples_returned(c.oid) as entries from pg_class c"
        " where c.oid = 'pgqueue.job_live'::regclass"
        " or c.oid in (select indexrelid from pg_index where indrelid = 'pgqueue.job_live'::regclass)"
    )
    with conn.transaction():
        before = {row["name"]: row for row in rows(conn, counters)}
        run(conn)
        after = {row["name"]: row for row in rows(conn, counters)}
    seq = 0
    entries = {}
    for name, row in after.items():
        scans = row["scans"] - before[name]["scans"]
        if row["heap"]:
            seq = scans
        elif scans:
            entries[name] = row["entries"] - before[name]["entries"]
    return Touched(seq, entries)


def buffers(conn: Conn, call: db.Call[Any]) -> int:
    """Buffers that a call touches, its nested statements included; the call takes effect."""
    with psycopg.RawCursor(conn) as cursor:
        cursor.execute(f"explain (analyze, buffers, timing off, format json) {call.query}", call.params)
        found = cursor.fetchone()
    assert found is not None
    plan = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def running_leases(conn: Conn, worker_id: int, count: int) -> list[tuple[int, int]]:
    found = rows(
        conn,
        "select id, token from pgqueue.job_live where worker_id = %s and status = 'running' order by id limit %s",
        worker_id, count,
    )  # fmt: skip
    assert len(found) == count
    return [(row["id"], row["token"]) for row in found]


def hints_on(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.lane where hint > '-infinity'"))
