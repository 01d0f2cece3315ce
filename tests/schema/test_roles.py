"""Who may do what: first as the catalogue has it, then by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import database as db
from pgqueue import embedded, schema
from tests.conftest import MakeDatabase
from tests.support import Conn, claim_one, enqueue, job, rows, value, worker

MAY: dict[str, set[str]] = {
    "pgqueue_producer": {"enqueue", "enqueue_many", "enqueue_flow", "look_up", "look_up_flow"},
    "pgqueue_worker": {
        "enqueue", "enqueue_many", "look_up", "save_step", "load_steps", "log", "release_unknown",
        "register_worker", "heartbeat", "retire_worker", "claim", "complete",
        "complete_and_claim", "fail", "release", "snooze", "progress", "cancel_claimed", "throttle", "sweep", "promote",
        "sweep_limits", "enqueue_flow", "extend_flow", "look_up_flow", "load_parents",
        "refresh_hints", "ensure_partitions", "prune", "retry_delay", "roll_up", "drain_requested",
        "due_recurring", "tick", "mark_recurring", "reconcile_recurring",
    },
    "pgqueue_operator": {
        "look_up_flow", "list_flow", "cancel_flow",
        "look_up", "cancel", "retry", "retry_many", "purge", "pause", "resume", "set_queue", "set_defaults", "sweep",
        "delete_queue",
        "pause_group", "resume_group", "pause_task", "resume_task", "set_task", "force_circuit", "sweep_limits",
        "promote", "ensure_partitions", "prune", "retry_delay", "check_retry", "stats", "drain",
        "list_jobs", "list_dead", "dead_groups", "count_jobs", "depth", "cancel_many", "why", "why_queue",
        "held_snapshots", "doctor", "totals", "gauges", "recurring_health", "events", "set_events",
        "timeline", "checks", "table_sizes", "record_audit",
        "set_recurring", "remove_recurring", "pause_recurring", "resume_recurring", "run_recurring_now",
    },
    "pgqueue_reader": {
        "stats", "list_jobs", "list_dead", "dead_groups", "count_jobs", "depth", "why", "why_queue",
        "totals", "gauges", "recurring_health", "events", "timeline", "checks", "table_sizes", "look_up_flow",
        "list_flow",
    },
}  # fmt: skip
REDACTED = {
    "queue_status", "running_job", "dead_job", "ghost_job", "worker_status", "recent_failure", "group_status",
    "task_status", "task_stats", "queue_stats", "recurring_status", "recurring_history", "flow_status",
    "job_status", "job_history", "audit_log",
}  # fmt: skip
SEES: dict[str, set[str]] = {
    "pgqueue_producer": set(),
    "pgqueue_worker": set(),
    "pgqueue_operator": REDACTED | {"attempt", "job_detail", "log_line", "step", "recurring_detail"},
    "pgqueue_reader": REDACTED,
}
ROLES = list(MAY)
FUNCTIONS = "from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace"
RELATIONS = "from pg_class c where c.relnamespace = 'pgqueue'::regnamespace"


@pytest.fixture
def as_role(connect: Callable[..., Conn]) -> Callable[[str], Conn]:
    """A connection that is a role which has nothing but the given one."""

    def open_one(role: str) -> Conn:
        connection = connect()
        connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        return connection

    return open_one


@contextmanager
def denied() -> Iterator[None]:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        yield


# --------------------------------------------------------------------------------------------- the catalogue


def test_every_function_runs_as_its_owner_with_a_pinned_path(conn: Conn) -> None:
    found = rows(conn, f"select p.proname as name, p.prosecdef as definer, p.proconfig as config {FUNCTIONS}")
    assert len(found) > 35
    assert [each["name"] for each in found if not each["definer"]] == []
    assert [each["name"] for each in found if "search_path=pgqueue, pg_temp" not in (each["config"] or [])] == []


def test_the_public_may_do_nothing(conn: Conn) -> None:
    # Grantee 0 is PUBLIC; without an ACL the default holds, which lets PUBLIC execute.
    query = (
        "select p.proname as name from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " where p.pronamespace = 'pgqueue'::regnamespace and a.grantee = 0"
    )
    assert rows(conn, query) == []
    query = (
        "select c.relname as name from pg_class c, aclexplode(c.relacl) a"
        " where c.relnamespace = 'pgqueue'::regnamespace and a.grantee = 0"
    )
    assert rows(conn, query) == []
    query = "select 1 from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'pgqueue' and a.grantee = 0"
    assert rows(conn, query) == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_execute_exactly_its_functions(conn: Conn, role: str) -> None:
    found = rows(conn, f"select p.proname as name {FUNCTIONS} and has_function_privilege(%s, p.oid, 'execute')", role)
    assert {each["name"] for each in found} == MAY[role]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_sees_exactly_its_views(conn: Conn, role: str) -> None:
    query = f"select c.relname as name {RELATIONS} and c.relkind = 'v' and has_table_privilege(%s, c.oid, 'select')"
    assert {each["name"] for each in rows(conn, query, role)} == SEES[role]


@pytest.mark.parametrize("role", ROLES)
def test_no_role_has_any_right_on_a_table_a_sequence_or_a_column(conn: Conn, role: str) -> None:
    worker(conn)
    tables = (
        f"select c.relname as name {RELATIONS} and c.relkind in ('r', 'p')"
        " and (has_table_privilege(%s, c.oid, 'select, insert, update, delete, truncate, references, trigger')"
        " or has_any_column_privilege(%s, c.oid, 'select, insert, update, references'))"
    )
    assert rows(conn, tables, role, role) == []
    sequences = (
        # case, because the planner may ask for the privilege before it looks at the kind
        f"select c.relname as name {RELATIONS}"
        " and case c.relkind when 'S' then has_sequence_privilege(%s, c.oid, 'usage, select, update') else false end"
    )
    assert rows(conn, sequences, role) == []
    views = (
        f"select c.relname as name {RELATIONS} and c.relkind = 'v'"
        " and has_table_privilege(%s, c.oid, 'insert, update, delete, truncate, references, trigger')"
    )
    assert rows(conn, views, role) == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_cannot_log_in_nor_create_anything_in_the_schema(conn: Conn, role: str) -> None:
    assert (
        value(conn, "select rolcanlogin or rolsuper or rolcreaterole from pg_roles where rolname = %s", role) is False
    )
    assert value(conn, "select has_schema_privilege(%s, 'pgqueue', 'usage')", role) is True
    assert value(conn, "select has_schema_privilege(%s, 'pgqueue', 'create')", role) is False


# --------------------------------------------------------------------------------------------------- by trying


def test_a_producer_enqueues_and_can_do_nothing_else(conn: Conn, as_role: Callable[[str], Conn]) -> None:
    w = worker(conn)
    producer = as_role("pgqueue_producer")
    id = enqueue(producer, {"a": 1}, key="k")
    assert [each.created for each in db.execute(producer, db.enqueue_many("q", "t", [{}, {}]))] == [
        True,
        True,
    ]
    calls: list[db.Call[Any]] = [db.claim(w, ["q"], 1), db.cancel(id), db.sweep(), db.pause("q")]
    for call in calls:
        with denied():
            db.execute(producer, call)
    for relation in ("job", "job_live", "key_hold", "setting", "queue_status", "job_detail"):
        with denied():
            rows(producer, f"select 1 from pgqueue.{relation}")
    assert job(conn, id)["status"] == "pending"


def test_a_worker_leads_its_whole_life(conn: Conn, as_role: Callable[[str], Conn]) -> None:
    agent = as_role("pgqueue_worker")
    w = worker(agent)
    ids = [enqueue(agent) for _ in range(6)]
    claimed = {each.id: each.token for each in db.execute(agent, db.claim(w, ["q"], 5))}
    leases = list(claimed.items())
    assert db.execute(agent, db.heartbeat(w)) == (True, [])
    assert db.execute(agent, db.progress(w, *leases[0], {"percent": 1})) is True
    assert db.execute(agent, db.complete(w, leases[0:1])) == []
    assert db.execute(agent, db.fail(w, [db.Failure(*leases[1], "boom", fatal=True)]))[0].status == "dead"
    assert db.execute(agent, db.release(w, leases[2:3])) == []
    assert db.execute(agent, db.snooze(w, leases[3:4], [60])) == []
    assert db.execute(agent, db.cancel_claimed(w, leases[4:5])) == []
    assert len(db.execute(agent, db.complete_and_claim(w, [], None, ["q"], 5)).jobs) == 2
    maintenance: list[db.Call[Any]] = [
        db.sweep(), db.promote("q"), db.refresh_hints(), db.ensure_partitions(), db.prune(),
        db.retry_delay({"type": "fixed", "delay": 1}, 1),
    ]  # fmt: skip
    for call in maintenance:
        db.execute(agent, call)
    assert db.execute(agent, db.retire_worker(w)) == 2
    forbidden: list[db.Call[Any]] = [db.cancel(ids[0]), db.retry(ids[0]), db.pause("q"), db.set_defaults({})]
    for call in forbidden:
        with denied():
            db.execute(agent, call)
    for relation in ("job", "worker", "job_detail", "queue_status"):
        with denied():
            rows(agent, f"select 1 from pgqueue.{relation}")


def test_an_operator_operates_and_sees_payloads_but_does_not_work(conn: Conn, as_role: Callable[[str], Conn]) -> None:
    id, w = enqueue(conn, {"a": 1}), worker(conn)
    operator = as_role("pgqueue_operator")
    assert value(operator, "select payload from pgqueue.job_detail where id = %s", id) == {"a": 1}
    assert db.execute(operator, db.cancel(id)) == "cancelled"
    assert db.execute(operator, db.retry(id)) == "pending"
    db.execute(operator, db.cancel(id))
    assert db.execute(operator, db.retry_many(db.Filter(), status="cancelled")).retried == 1
    db.execute(operator, db.cancel(id))
    assert db.execute(operator, db.purge(db.Filter(), status="cancelled")).purged == 1
    db.execute(operator, db.pause("q"))
    assert db.execute(operator, db.resume("q")) is True
    db.execute(operator, db.set_queue("q", {"max_attempts": 3}))
    db.execute(operator, db.set_defaults({"max_attempts": 4}))
    for view in SEES["pgqueue_operator"]:
        rows(operator, f"select * from pgqueue.{view}")
    calls: list[db.Call[Any]] = [db.enqueue("q", "t"), db.claim(w, ["q"], 1), db.register_worker("w", ["q"])]
    for call in calls:
        with denied():
            db.execute(operator, call)
    with denied():
        rows(operator, "select 1 from pgqueue.job")


def test_an_operator_defines_recurring_jobs_and_a_worker_ticks_them(conn: Conn, as_role: Callable[[str], Conn]) -> None:
    operator, agent, reader = (as_role(f"pgqueue_{role}") for role in ("operator", "worker", "reader"))
    secret = "4111-1111-1111-1111"  # noqa: S105
    db.execute(operator, db.set_recurring("a", {"task": "t", "every": "1 s", "payload": {"card": secret}}))
    db.execute(operator, db.pause_recurring("a"))
    db.execute(operator, db.resume_recurring("a"))
    db.execute(operator, db.run_recurring_now("a"))
    assert db.execute(operator, db.recurring_detail("a"))[0].payload == {"card": secret}
    (due,) = db.execute(agent, db.due_recurring()).due
    assert db.execute(agent, db.mark_recurring("a", due.version, "why")) is True
    assert db.execute(agent, db.tick("a", due.version, [], None)) == []
    declared = {"b": {"task": "t", "every": "1 s"}}
    assert [each.change for each in db.execute(agent, db.reconcile_recurring("shop", declared))] == ["added"]
    seen = db.execute(reader, db.recurring_status()), db.execute(reader, db.recurring_history("a"))
    assert [each.name for each in seen[0]] == ["a", "b"]
    assert secret not in repr(seen)
    refused: list[tuple[Conn, db.Call[Any]]] = [
        (agent, db.set_recurring("a", {})), (agent, db.run_recurring_now("a")), (agent, db.recurring_status()),
        (operator, db.tick("a", due.version, [], None)), (operator, db.due_recurring()),
        (operator, db.reconcile_recurring("shop", {})), (reader, db.recurring_detail("a")),
        (reader, db.run_recurring_now("a")), (as_role("pgqueue_producer"), db.set_recurring("a", {})),
    ]  # fmt: skip
    for who, call in refused:
        with denied():
            db.execute(who, call)
    assert db.execute(operator, db.remove_recurring("a")) is True


def test_a_reader_sees_no_payload_and_changes_nothing(conn: Conn, as_role: Callable[[str], Conn]) -> None:
    secret = "4111-1111-1111-1111"  # noqa: S105
    w = worker(conn)
    enqueue(conn, {"card": secret}, meta={"card": secret})
    claim_one(conn, w)
    enqueue(conn, {"card": secret}, meta={"card": secret})
    died = claim_one(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(died.id, died.token, "boom", fatal=True)]))
    reader = as_role("pgqueue_reader")
    seen = {view: rows(reader, f"select * from pgqueue.{view}") for view in REDACTED}
    assert all(seen[view] for view in ("queue_status", "running_job", "dead_job", "recent_failure"))
    assert secret not in repr(seen)
    assert not any({"payload", "result", "meta"} & each.keys() for found in seen.values() for each in found)
    calls: list[db.Call[Any]] = [db.enqueue("q", "t"), db.cancel(died.id), db.sweep(), db.claim(w, ["q"], 1)]
    for call in calls:
        with denied():
            db.execute(reader, call)
    for relation in ("job_detail", "attempt", "job", "job_dead", "installed"):
        with denied():
            rows(reader, f"select 1 from pgqueue.{relation}")


def test_temporary_objects_of_a_producer_do_not_hijack_a_function(conn: Conn, as_role: Callable[[str], Conn]) -> None:
    worker(conn)
    producer = as_role("pgqueue_producer")
    names = [
        each["name"] for each in rows(conn, f"select c.relname as name {RELATIONS} and c.relkind in ('r', 'p', 'v')")
    ]
    assert {"job_live", "queue", "lane", "setting", "key_hold"} <= set(names)
    for name in names:
        producer.execute(
            sql.SQL(
                "create temp table {} (queue text, priority smallint, payload_max_bytes integer, id bigint, key text,"
                " job_id bigint, held_until timestamptz, wake regclass)"
            ).format(sql.Identifier(name))
        )
    producer.execute("create temp table pg_class (relname text)")
    producer.execute("create temp sequence job_id_seq start 777")
    for function in ("clock_timestamp() returns timestamptz", "check_payload(jsonb, integer) returns void",
                     "wake(text) returns void", "held_key(text, text, boolean) returns bigint"):  # fmt: skip
        producer.execute(
            f"create function pg_temp.{function} language plpgsql as"
            " $$ begin raise exception 'hijacked as %', current_user; end $$"
        )
    producer.execute("set search_path = pg_temp, pgqueue, pg_catalog")
    id = enqueue(producer, {"a": 1}, key="k", tags=["x"])
    db.execute(producer, db.enqueue_many("q", "t", [{}, {}], keys=["a", "b"]))
    assert job(conn, id)["payload"] == {"a": 1}
    assert value(conn, "select count(*) from pgqueue.job_live") == 3
    assert value(producer, "select count(*) from pg_temp.job_live") == 0
    assert value(producer, "select count(*) from pg_temp.lane") == 0


# ------------------------------------------------------------------------------- without the right to create roles


def use(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    assert db.execute(conn, db.complete(w, [(id, claim_one(conn, w).token)])) == []
    assert job(conn, id)["status"] == "completed"
    db.execute(conn, db.sweep())
    db.execute(conn, db.prune())
    assert value(conn, "select count(*) from pgqueue.queue_status") == 1


@contextmanager
def owner_of(conninfo: str, name: str) -> Iterator[str]:
    """The same database as a role that owns it and may nothing else."""
    with psycopg.connect(conninfo, autocommit=True) as admin:
        owner, database = sql.Identifier(name), sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("create role {} nologin nocreaterole").format(owner))
        admin.execute(sql.SQL("alter database {} owner to {}").format(database, owner))
        try:
            yield make_conninfo(conninfo, options=f"-c role={name}")
        finally:
            admin.execute(sql.SQL("reassign owned by {} to current_user").format(owner))
            admin.execute(sql.SQL("drop owned by {}").format(owner))
            admin.execute(sql.SQL("drop role {}").format(owner))


def test_an_owner_without_further_rights_installs_beside_roles_that_exist(
    make_database: MakeDatabase, dsn: str
) -> None:
    conninfo = make_database()
    with owner_of(conninfo, f"owner_{psycopg.conninfo.conninfo_to_dict(conninfo)['dbname']}") as as_owner:
        assert schema.migrate(as_owner).current
        with psycopg.connect(as_owner, autocommit=True) as conn:
            assert value(conn, "select rolsuper or rolcreaterole from pg_roles where rolname = current_user") is False
            use(conn)
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("set role pgqueue_producer")
            assert enqueue(conn)


def test_an_owner_without_the_right_to_create_roles_installs_everything_else() -> None:
    # A cluster of its own: roles are shared by all databases, and elsewhere they exist already.
    with embedded.temporary(settings={"fsync": "off"}) as server:
        conninfo = server.url()
        with owner_of(conninfo, "shop") as as_owner:
            assert schema.migrate(as_owner).current
            with psycopg.connect(as_owner, autocommit=True) as conn:
                assert rows(conn, "select 1 from pg_roles where rolname like 'pgqueue\\_%'") == []
                assert value(conn, "select current_user") == "shop"
                use(conn)
