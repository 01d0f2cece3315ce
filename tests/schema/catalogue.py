"""The schema pgqueue as the catalogue tells it: one text for each fact, to be compared."""

from __future__ import annotations

import psycopg

from tests.support import Conn, rows

# Day partitions and the sequences of queues come and go with time and use; everything else is the schema.
LASTING = r"c.relname !~ '^((job_done|job_attempt|job_step|job_log|event)_\d{8}|(wake|came|went)_\d+$)'"
OURS = f"c.relnamespace = 'pgqueue'::regnamespace and {LASTING}"

FACTS = {
    "schema": "select nspname as name, concat_ws(' ', obj_description(oid, 'pg_namespace'), nspacl) as fact"
    " from pg_namespace where nspname = 'pgqueue'",
    "relation": "select c.relname as name, concat_ws(' ', c.relkind, c.relpersistence, c.reloptions, c.relacl,"
    " c.relispartition, pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid)) as fact"
    f" from pg_class c where {OURS}",
    "column": "select c.relname || '.' || a.attname as name, concat_ws(' ', format_type(a.atttypid, a.atttypmod),"
    " a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attacl, a.attnum,"
    " (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d where d.adrelid = c.oid"
    " and d.adnum = a.attnum)) as fact"
    f" from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped where {OURS}",
    "constraint": "select c.relname || '.' || k.conname as name, pg_get_constraintdef(k.oid) as fact"
    f" from pg_class c join pg_constraint k on k.conrelid = c.oid where {OURS}",
    "index": "select c.relname as name, pg_get_indexdef(c.oid) as fact from pg_class c"
    f" where c.relkind in ('i', 'I') and {OURS}",
    "view": f"select c.relname as name, pg_get_viewdef(c.oid) as fact from pg_class c where c.relkind = 'v' and {OURS}",
    "sequence": "select c.relname as name, concat_ws(' ', format_type(s.seqtypid, null), s.seqstart, s.seqincrement,"
    " s.seqmax, s.seqmin, s.seqcache, s.seqcycle) as fact"
    f" from pg_class c join pg_sequence s on s.seqrelid = c.oid where {OURS}",
    "trigger": "select c.relname || '.' || t.tgname as name, pg_get_triggerdef(t.oid) as fact"
    f" from pg_class c join pg_trigger t on t.tgrelid = c.oid and not t.tgisinternal where {OURS}",
    "function": "select p.oid::regprocedure::text as name, concat_ws(' ', pg_get_functiondef(p.oid), p.proacl) as fact"
    " from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace",
    "comment": "select c.relname || coalesce('.' || a.attname, '') as name, d.description as fact"
    " from pg_description d join pg_class c on c.oid = d.objoid and d.classoid = 'pg_class'::regclass"
    f" left join pg_attribute a on a.attrelid = c.oid and a.attnum = d.objsubid and d.objsubid > 0 where {OURS}",
    "function comment": "select p.oid::regprocedure::text as name, d.description as fact from pg_description d"
    " join pg_proc p on p.oid = d.objoid and d.classoid = 'pg_proc'::regclass"
    " where p.pronamespace = 'pgqueue'::regnamespace",
}


def facts(conninfo: str) -> dict[str, str]:
    """Every fact by its name, for example `index job_live_key`."""
    with psycopg.connect(conninfo, autocommit=True) as conn:
        # Definitions are printed relative to these.
        conn.execute("set search_path = pg_catalog")
        conn.execute("set timezone = 'UTC'")
        return {
            f"{kind} {each['name']}": each["fact"] or "" for kind, query in FACTS.items() for each in rows(conn, query)
        }


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    found = [f"only in the first: {name}" for name in sorted(one.keys() - other.keys())]
    found += [f"only in the second: {name}" for name in sorted(other.keys() - one.keys())]
    common = sorted(one.keys() & other.keys())
    return found + [f"{name}:\n  {one[name]}\n  {other[name]}" for name in common if one[name] != other[name]]


def run(conn: Conn, script: str) -> None:
    """As psql would: several statements, no parameters."""
    conn.execute(script)
