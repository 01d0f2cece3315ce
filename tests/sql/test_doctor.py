"""Each check of doctor, well and staged otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pgqueue import __version__
from pgqueue import database as db
from tests.support import Conn, claim, claim_one, enqueue, lose, make_due, value, worker

CHECKS = [
    "workers", "versions", "upkeep", "tasks", "alarms", "circuits", "queues", "recurring", "dead_letters", "snapshots",
    "dead_rows", "autovacuum", "partitions", "connections", "durability", "roles",
]  # fmt: skip


def examine(conn: Conn, name: str) -> tuple[str, str, str | None]:
    """The first finding of a check: verdict, finding, remedy."""
    found = [each for each in db.execute(conn, db.doctor()) if each["name"] == name]
    return found[0]["verdict"], found[0]["finding"], found[0]["remedy"]


def serve(conn: Conn, **info: Any) -> int:
    told = {"version": __version__, "tasks": ["t"], "concurrency": 5, **info}
    return db.execute(conn, db.register_worker("host:1", ["q"], 30, told))


@contextmanager
def for_now(conn: Conn, *statements: str) -> Iterator[None]:
    with conn.transaction(force_rollback=True):
        for statement in statements:
            conn.execute(statement)
        yield


def test_a_healthy_queue_is_well_in_every_respect(conn: Conn) -> None:
    serve(conn)
    enqueue(conn)
    found = db.execute(conn, db.doctor())
    assert list(dict.fromkeys(each["name"] for each in found)) == CHECKS
    # The tests' own server may be set up to forget everything in a crash, and others may hold snapshots on it.
    ill = {each["name"]: each for each in found if each["verdict"] != "ok"}
    assert ill.keys() <= {"durability", "snapshots", "connections", "autovacuum"}, ill
    assert all(each["remedy"] for each in ill.values())


def test_jobs_that_nobody_serves(conn: Conn) -> None:
    enqueue(conn)
    verdict, finding, remedy = examine(conn, "workers")
    assert (verdict, remedy) == ("broken", "pgqueue work -A module:app --queues q")
    assert "queue q: 1 jobs wait" in finding
    db.execute(conn, db.pause("q"))
    assert examine(conn, "workers")[0] == "ok", "paused is how somebody wants it"


def test_a_silent_worker_and_lost_ones(conn: Conn) -> None:
    silent = serve(conn)
    lose(conn, silent)
    assert examine(conn, "workers")[:2] == ("warning", f"worker {silent} (host:1) has not beaten for 1 d")
    db.execute(conn, db.sweep())
    assert "1 workers were lost in the last hour" in examine(conn, "workers")[1]


def test_workers_of_several_versions(conn: Conn) -> None:
    serve(conn)
    assert examine(conn, "versions")[0] == "ok"
    serve(conn, version="99.0")
    verdict, finding, _ = examine(conn, "versions")
    assert (verdict, f"workers of {__version__} (1), 99.0 (1)" in finding) == ("warning", True)


def test_nobody_promotes_sweeps_or_rolls_up(conn: Conn) -> None:
    w = serve(conn)
    id = enqueue(conn)
    make_due(conn, id)
    assert examine(conn, "upkeep")[0] == "ok"
    conn.execute("update pgqueue.job_live set status = 'scheduled', run_at = now() - interval '1 h'")
    assert examine(conn, "upkeep")[0] == "broken"
    conn.execute("update pgqueue.job_live set status = 'pending'")
    claim_one(conn, w)
    lose(conn, w)
    assert examine(conn, "upkeep")[:2] == (
        "warning",
        "1 jobs have run for over a minute since their worker was lost",
    )
    conn.execute("delete from pgqueue.job_live")
    conn.execute(
        "insert into pgqueue.tally (at, jobs, outcome, queue, task)"
        " values (now() - interval '1 h', 1, 'dead', 'q', 't')"
    )
    assert examine(conn, "upkeep")[:2] == ("warning", "metrics have not been rolled up for 1 h")


def test_a_task_that_no_live_worker_knows(conn: Conn) -> None:
    serve(conn)
    enqueue(conn, task="unheard_of")
    verdict, finding, remedy = examine(conn, "tasks")
    assert verdict == "broken"
    assert finding == "queue q: no live worker that serves it knows task unheard_of"
    assert "pgqueue jobs cancel -q q -t unheard_of" in (remedy or "")
    serve(conn, tasks=["unheard_of"])
    assert examine(conn, "tasks")[0] == "ok"


def test_a_task_that_fails_everywhere(conn: Conn) -> None:
    w = serve(conn)
    for _ in range(20):
        enqueue(conn)
    failures = [db.Failure(each.id, each.token, "boom") for each in claim(conn, w, 20)]
    db.execute(conn, db.fail(w, failures))
    db.execute(conn, db.sweep())
    verdict, finding, remedy = examine(conn, "alarms")
    assert (verdict, "task t fails on every worker" in finding) == ("broken", True)
    assert "pgqueue tasks pause t" in (remedy or "")


def test_a_circuit_that_is_open(conn: Conn) -> None:
    db.execute(conn, db.set_task("t", {"breaker_min": 1}))
    w = serve(conn)
    for _ in range(3):
        enqueue(conn)
    failed = claim_one(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(failed.id, failed.token, "boom")]))
    assert claim(conn, w, 5) == []
    verdict, finding, remedy = examine(conn, "circuits")
    assert verdict == "broken"
    assert "task t: its circuit is open for" in finding
    assert "(1 of 1 attempts within 60 s failed); 2 jobs are held back" in finding
    assert (remedy or "").endswith("pgqueue tasks close t")
    conn.execute("update pgqueue.task set circuit_probe_at = now()")
    db.execute(conn, db.sweep_limits())
    assert examine(conn, "circuits")[0] == "warning", "half open: it is being seen to"
    db.execute(conn, db.force_circuit("t", "open", "by hand"))
    assert examine(conn, "circuits")[0] == "warning", "that is how somebody wants it"
    db.execute(conn, db.force_circuit("t", "closed"))
    assert examine(conn, "circuits")[0] == "ok"


def test_a_queue_that_is_nearly_full_or_full(conn: Conn) -> None:
    serve(conn)
    db.execute(conn, db.set_queue("q", {"max_depth": 10}))
    for _ in range(7):
        enqueue(conn)
    assert examine(conn, "queues")[0] == "ok"
    enqueue(conn)
    assert examine(conn, "queues")[:2] == ("warning", "queue q: 8 of at most 10 jobs wait: it is nearly full")
    for _ in range(2):
        enqueue(conn)
    verdict, finding, remedy = examine(conn, "queues")
    assert (verdict, finding) == ("broken", "queue q: 10 of at most 10 jobs wait: enqueue() refuses more")
    assert (remedy or "").startswith("pgqueue why --queue q;")
    db.execute(conn, db.set_queue("q", {"shed_below": 0}))
    assert examine(conn, "queues")[0] == "warning"


def test_recurring_jobs_that_are_broken_late_or_of_a_task_that_nobody_knows(conn: Conn) -> None:
    serve(conn)
    db.execute(conn, db.set_recurring("nightly", {"task": "t", "queue": "q", "every": "1 h"}))
    assert examine(conn, "recurring") == ("ok", "1 are as they should be", None)
    conn.execute("update pgqueue.recurring_job set planned = true, next_run_at = now() - interval '1 h'")
    verdict, finding, remedy = examine(conn, "recurring")
    assert (verdict, "due for 1 h, and nobody has made its job" in finding) == ("warning", True)
    assert remedy == "let a ticker run: pgqueue cron -A module:app"
    version = value(conn, "select version from pgqueue.recurring_job")
    db.execute(conn, db.mark_recurring("nightly", version, "no zone X"))
    verdict, finding, _ = examine(conn, "recurring")
    assert (verdict, finding.endswith(": no zone X")) == ("broken", True)
    db.execute(conn, db.set_recurring("nightly", {"task": "u", "every": "2 h"}))
    verdict, finding, _ = examine(conn, "recurring")
    assert (verdict, finding) == ("broken", "recurring job nightly: no live worker that serves queue q knows task u")
    db.execute(conn, db.pause_recurring("nightly"))
    assert examine(conn, "recurring")[0] == "ok", "paused is how somebody wants it"


@pytest.mark.parametrize(
    ("table", "column"),
    [("job_attempt", "finished_at"), ("job_step", "saved_at"), ("job_log", "logged_at"), ("event", "at")],
)
def test_rows_of_today_in_a_default_partition(conn: Conn, table: str, column: str) -> None:
    serve(conn)
    rest = {
        "job_attempt": "(job_id, started_at, token, attempt, queue, task, outcome, finished_at)"
        " values (1, now(), 1, 1, 'q', 't', 'failed', now())",
        "job_step": "(job_id, token, queue, name, saved_at) values (1, 1, 'q', 's', now())",
        "job_log": "(job_id, token, queue, level, message, logged_at) values (1, 1, 'q', 'info', 'x', now())",
        "event": "(xid, job_id, token, attempt, status, queue, task, at)"
        " values ('1', 1, 1, 1, 'dead', 'q', 't', now())",
    }[table]
    day = value(conn, "select to_char(now() at time zone 'UTC', 'YYYYMMDD')")
    with for_now(conn, f"drop table pgqueue.{table}_{day}", f"insert into pgqueue.{table} {rest}"):
        found = [each["finding"] for each in db.execute(conn, db.doctor()) if each["name"] == "partitions"]
        assert any(f"{table}_default holds rows of today" in each for each in found)


def test_more_jobs_die_than_usual(conn: Conn) -> None:
    def died(ago: str, jobs: int) -> None:
        conn.execute(
            "insert into pgqueue.tally (at, jobs, outcome, queue, task)"
            " values (date_trunc('minute', now() - %s::interval), %s, 'dead', 'q', 't')",
            [ago, jobs],
        )

    died("10 min", 9)
    assert examine(conn, "dead_letters")[0] == "ok", "nine are no alarm"
    died("10 min", 21)
    died("5 h", 240)
    assert examine(conn, "dead_letters")[0] == "ok", "thirty after ten an hour are no alarm"
    died("5 min", 1)
    assert examine(conn, "dead_letters") == (
        "warning",
        "queue q: 31 jobs died in the last hour; in the day before it were 10.0 an hour",
        "pgqueue dead groups --queue q --newer 1h",
    )


def test_a_held_transaction_is_named_by_its_process_and_query(conn: Conn, connect: Callable[..., Conn]) -> None:
    definition = value(conn, "select pg_get_functiondef('pgqueue.doctor_snapshots'::regproc)")
    with connect(autocommit=False, application_name="nightly report") as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select 'for a report' from pgqueue.setting")
        pid = holder.info.backend_pid
        with for_now(conn, definition.replace("'1 minute'", "'0'")):
            found = [each for each in db.execute(conn, db.doctor()) if each["name"] == "snapshots"]
            mine = next(each for each in found if f"session {pid}" in each["finding"])
    assert mine["verdict"] == "warning"
    assert "select 'for a report' from pgqueue.setting" in mine["finding"]
    assert f"pg_terminate_backend({pid})" in mine["remedy"]


def test_dead_entries_at_the_head_of_a_lane(conn: Conn) -> None:
    enqueue(conn)
    assert examine(conn, "dead_rows")[0] == "ok"
    definition = value(conn, "select pg_get_functiondef('pgqueue.doctor_dead_rows'::regproc)")
    with for_now(conn, definition.replace("> 20", "> 0")):
        verdict, finding, remedy = examine(conn, "dead_rows")
    assert (verdict, "in queue q, priority 0" in finding) == ("warning", True)
    assert "vacuum pgqueue.job_live" in (remedy or "")


def test_autovacuum_switched_off_for_a_table(conn: Conn) -> None:
    with for_now(conn, "alter table pgqueue.job_live set (autovacuum_enabled = off)"):
        found = [each["finding"] for each in db.execute(conn, db.doctor()) if each["name"] == "autovacuum"]
    assert "autovacuum is switched off for pgqueue.job_live" in found


def test_partitions_that_are_missing_or_should_have_gone(conn: Conn) -> None:
    assert examine(conn, "partitions")[0] == "ok"
    tomorrow = value(conn, "select to_char((now() at time zone 'utc')::date + 1, 'YYYYMMDD')")
    with for_now(conn, f"drop table pgqueue.job_log_{tomorrow}"):
        assert "job_log has no partition for" in examine(conn, "partitions")[1]
    with for_now(
        conn,
        "create table pgqueue.job_done_20200101 partition of pgqueue.job_done"
        " for values from ('2020-01-01') to ('2020-01-02')",
    ):
        assert "1 days of job_done are over and not dropped, the oldest 20200101" in examine(conn, "partitions")[1]
    w = worker(conn)
    id = enqueue(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.complete(w, [(id, claimed.token)]))
    with for_now(conn, "update pgqueue.job_done set prune_at = now() + interval '300 days'"):
        assert "job_done_default is not empty" in examine(conn, "partitions")[1]


def test_connections_that_run_out(conn: Conn) -> None:
    definition = value(conn, "select pg_get_functiondef('pgqueue.doctor_connections'::regproc)")
    for share, verdict in (("0.0", "warning"), ("100", "ok")):
        with for_now(conn, definition.replace("0.8 *", f"{share} *").replace("0.95 *", "100 *")):
            assert examine(conn, "connections")[0] == verdict
    with for_now(conn, definition.replace("0.95 *", "0.0 *")):
        assert examine(conn, "connections")[0] == "broken"


def test_a_session_that_trades_durability_is_told(conn: Conn) -> None:
    with for_now(conn, "set local synchronous_commit = off"):
        found = [each for each in db.execute(conn, db.doctor()) if each["name"] == "durability"]
    assert {"verdict": "warning", "finding": "synchronous_commit is off"}.items() <= found[-1].items() or any(
        each["finding"] == "synchronous_commit is off" and each["verdict"] == "warning" for each in found
    )


def test_a_function_that_everybody_may_execute(conn: Conn) -> None:
    with for_now(conn, "grant execute on function pgqueue.pause to public"):
        verdict, finding, _ = examine(conn, "roles")
    assert (verdict, finding.startswith("everybody may execute pgqueue.pause(")) == ("broken", True)
    with for_now(conn, "revoke usage on schema pgqueue from pgqueue_reader"):
        assert examine(conn, "roles") == ("broken", "the role pgqueue_reader may not use the schema", "pgqueue migrate")


@pytest.mark.parametrize("role", ["pgqueue_producer", "pgqueue_worker", "pgqueue_reader"])
def test_only_operators_may_ask_the_doctor(conn: Conn, connect: Callable[..., Conn], role: str) -> None:
    other = connect()
    other.execute(f"set role {role}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute(other, db.doctor())
