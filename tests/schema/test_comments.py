"""Everything in the schema says what it is.

Exempt are the columns of partitions, whose meaning is that of the partitioned table, and the sequences that
are made for each queue (wake_1, came_1, went_1). Identity sequences belong to their column.
"""

from __future__ import annotations

import pytest

from tests.support import Conn, rows, worker

QUERIES = {
    "tables and views": "select c.relname as name from pg_class c where c.relnamespace = 'pgqueue'::regnamespace"
    " and c.relkind in ('r', 'p', 'v', 'm') and obj_description(c.oid, 'pg_class') is null",
    "columns": "select c.relname || '.' || a.attname as name from pg_class c join pg_attribute a on a.attrelid = c.oid"
    " where c.relnamespace = 'pgqueue'::regnamespace and c.relkind in ('r', 'p', 'v', 'm') and not c.relispartition"
    " and a.attnum > 0 and not a.attisdropped and col_description(c.oid, a.attnum) is null",
    "functions": "select p.proname as name from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace"
    " and obj_description(p.oid, 'pg_proc') is null",
    "sequences": "select c.relname as name from pg_class c where c.relnamespace = 'pgqueue'::regnamespace"
    r" and c.relkind = 'S' and c.relname !~ '^(wake|came|went)_\d+$' and obj_description(c.oid, 'pg_class') is null"
    " and not exists (select 1 from pg_depend d where d.objid = c.oid and d.classid = 'pg_class'::regclass"
    " and d.deptype = 'i')",
    "the schema": "select nspname as name from pg_namespace n where nspname = 'pgqueue'"
    " and obj_description(n.oid, 'pg_namespace') is null",
}


@pytest.mark.parametrize("what", QUERIES)
def test_everything_has_a_comment(conn: Conn, what: str) -> None:
    worker(conn)
    assert [found["name"] for found in rows(conn, QUERIES[what])] == []


@pytest.mark.parametrize("what", QUERIES)
def test_a_missing_comment_would_be_found(conn: Conn, what: str) -> None:
    statement = {
        "tables and views": "comment on view pgqueue.dead_job is null",
        "columns": "comment on column pgqueue.dead_job.id is null",
        "functions": "comment on function pgqueue.claim is null",
        "sequences": "comment on sequence pgqueue.job_id_seq is null",
        "the schema": "comment on schema pgqueue is null",
    }[what]
    with conn.transaction(force_rollback=True):
        conn.execute(statement)
        assert len(rows(conn, QUERIES[what])) == 1
