"""The traps into which queues in PostgreSQL have fallen, in the order of how badly they hurt.

Two of them need much data and have their tests elsewhere: 04, a snapshot that somebody holds, in
tests/plans/test_snapshot.py; 18, statistics that swing, in tests/plans/test_hot_functions.py.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from pgqueue import database as db
from tests.race.steps import complete, dead, fail, ghost, live_with_key, running, statuses
from tests.support import Conn, Rival, claim, claim_one, enqueue, job, make_due, rows, value, worker

TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def burst(conn: Conn) -> Conn:
    """4,000 jobs in a table that was bloated, nearly empty when it was analysed, and is not analysed since."""
    db.execute(conn, db.enqueue_many("q", "t", [{}] * 4000))
    conn.execute("delete from pgqueue.job_live")
    enqueue(conn)
    conn.execute("vacuum analyze pgqueue.job_live")
    db.execute(conn, db.enqueue_many("q", "t", [{}] * 4000))
    return conn


def test_trap_01_claim_never_takes_more_than_asked(burst: Conn) -> None:
    worker_id = worker(burst)
    assert len(claim(burst, worker_id, 5)) == 5
    assert value(burst, "select count(*) from pgqueue.job_live where status = 'running'") == 5
    enqueue(burst, priority=3)
    assert len(claim(burst, worker_id, 5)) == 5
    assert value(burst, "select count(*) from pgqueue.job_live where status = 'running'") == 10


def test_trap_01_promote_never_takes_more_than_asked(burst: Conn) -> None:
    burst.execute("update pgqueue.job_live set status = 'scheduled'")
    assert db.execute(burst, db.promote("q", 5)) == 5
    assert value(burst, "select count(*) from pgqueue.job_live where status = 'pending'") == 5


def test_trap_01_sweep_never_takes_more_than_asked(burst: Conn) -> None:
    burst.execute(
        "update pgqueue.job_live set status = 'running', worker_id = 0, started_at = now(), attempt = 1, token = 1"
    )
    assert db.execute(burst, db.sweep(5)).retried == 5
    assert value(burst, "select count(*) from pgqueue.job_live where status = 'pending'") == 5


def test_trap_02_one_key_cannot_live_in_pending_and_running_and_block_a_claim(conn: Conn) -> None:
    worker_id, (mine,) = running(conn, key="k")
    assert db.execute(conn, db.enqueue("q", "t", key="k")) == (mine.id, False)
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute(
            "insert into pgqueue.job (rank_at, run_at, enqueued_at, status, queue, task, key)"
            " values (now(), now(), now(), 'pending', 'q', 't', 'k')"
        )
    assert fail(conn, worker_id, mine, retry_in=0) == "pending"
    assert claim_one(conn, worker_id).id == mine.id
    assert live_with_key(conn, "k") == 1


def test_trap_03_enqueue_never_returns_nothing_when_the_keys_holder_finishes_meanwhile(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (mine,) = running(conn, key="k")
    complete(holder, worker_id, mine)
    rival = Rival(other, lambda c: enqueue(c, key="k"))
    rival.wait_blocked(dsn)
    holder.commit()
    assert job(conn, rival.result())["status"] == "pending"


def test_trap_05_future_jobs_are_not_in_the_way_of_a_claim(conn: Conn, holder: Conn) -> None:
    # A queue of its own: other tests leave dead entries behind.
    db.execute(conn, db.enqueue_many("future", "t", [{}] * 2000, run_at=TOMORROW))
    enqueue(conn, queue="future")
    worker_id = worker(conn, ["future"])
    read = "select pg_stat_get_xact_tuples_returned('pgqueue.job_live_claim'::regclass)"
    before = value(holder, read)
    assert len(claim(holder, worker_id, 10, ["future"])) == 1
    assert value(holder, read) - before <= 2


def test_trap_06_a_live_job_never_changes_its_partition(conn: Conn) -> None:
    where = "select c.relname from pgqueue.job j join pg_class c on c.oid = j.tableoid where j.id = %s"
    id = enqueue(conn, run_at=TOMORROW)
    places = [value(conn, where, id)]
    make_due(conn, id)
    worker_id = worker(conn)
    mine = claim_one(conn, worker_id)
    places.append(value(conn, where, id))
    fail(conn, worker_id, mine)
    places.append(value(conn, where, id))
    assert places == ["job_live"] * 3


def test_trap_06_whoever_waits_for_a_job_that_moves_away_gets_no_40001(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (mine,) = running(conn)
    complete(holder, worker_id, mine)
    rival = Rival(other, lambda c: db.execute(c, db.progress(worker_id, mine.id, mine.token, 1)))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() is False


def test_trap_07_a_stalled_worker_cannot_complete_somebody_elses_run(conn: Conn) -> None:
    stalled, (old,) = ghost(conn)
    db.execute(conn, db.sweep())
    new = claim_one(conn, worker(conn))
    assert (new.id, new.token) == (old.id, old.token + 1)
    assert complete(conn, stalled, old) == [old.id]
    assert complete(conn, stalled, new) == [old.id]
    assert statuses(conn) == {old.id: "running"}


def test_trap_08_hot_functions_touch_no_partition_that_they_do_not_need(conn: Conn, holder: Conn) -> None:
    worker_id, (one, two) = running(conn, 2)
    enqueue(conn)
    locked = (
        "select count(distinct relation) from pg_locks join pg_class c on c.oid = relation"
        " where pid = pg_backend_pid() and c.relkind = 'r' and c.relname ~ '^job_(done|dead)'"
    )
    claim(holder, worker_id)
    db.execute(holder, db.heartbeat(worker_id))
    db.execute(holder, db.promote("q"))
    assert fail(holder, worker_id, one) == "scheduled"
    assert value(holder, locked) == 0
    assert complete(holder, worker_id, two) == []
    assert value(holder, locked) == 1


def test_trap_09_a_busy_queue_does_not_notify_and_an_idle_one_does(conn: Conn, other: Conn) -> None:
    worker_id = worker(conn)
    other.execute("listen pgqueue")
    db.execute(conn, db.enqueue_many("q", "t", [{}] * 10))
    list(other.notifies(timeout=0.2))
    claim(conn, worker_id, 5)
    wake = value(conn, "select wake::text from pgqueue.queue where queue = 'q'")
    # Busy until a second from now; an hour, so that the speed of this machine does not matter.
    assert value(conn, f"select last_value > extract(epoch from now()) * 1000 from {wake}")
    conn.execute(f"select setval('{wake}', (extract(epoch from now()) * 1000)::bigint + 3600000)")
    for _ in range(50):
        enqueue(conn)
    assert list(other.notifies(timeout=0.2)) == []
    claim(conn, worker_id, 1000)
    enqueue(conn)
    assert [n.payload for n in other.notifies(timeout=5, stop_after=1)] == ["q"]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_trap_10_a_claim_with_a_fixed_snapshot_fails_instead_of_claiming_twice(
    conn: Conn, holder: Conn, level: IsolationLevel
) -> None:
    enqueue(conn)
    one, two = worker(conn), worker(conn)
    holder.isolation_level = level
    holder.execute("select 1 from pgqueue.setting")
    claim_one(conn, one)
    with pytest.raises(psycopg.errors.SerializationFailure):
        claim(holder, two)


def test_trap_11_a_bulk_enqueue_takes_its_keys_in_sorted_order(
    conn: Conn, holder: Conn, other: Conn, third: Conn, dsn: str
) -> None:
    enqueue(holder, key="m")
    rival = Rival(other, lambda c: db.execute(c, db.enqueue_many("q", "t", [{}] * 3, keys=["z", "m", "a"])))
    rival.wait_blocked(dsn)
    third.execute("set lock_timeout = '100ms'")
    assert db.execute(third, db.enqueue("q", "t", key="z")).created
    with pytest.raises(psycopg.errors.LockNotAvailable):
        enqueue(third, key="a")
    holder.commit()
    assert [got.created for got in rival.result()] == [False, False, True]


def test_trap_12_bulk_commands_of_operators_wait_for_nobody(conn: Conn, holder: Conn, other: Conn) -> None:
    a, b, c = dead(conn, 3)
    holder.execute("select 1 from pgqueue.job_dead where id = %s for update", [b])
    other.execute("set lock_timeout = '100ms'")
    assert db.execute(other, db.retry_many(db.Filter(queue="q"), batch=1)).retried == 1
    assert db.execute(other, db.purge(db.Filter(queue="q"), status="dead")).purged == 1
    assert statuses(conn) == {a: "pending", b: "dead"}
    assert c not in statuses(conn)


def test_trap_13_a_job_that_moves_to_the_future_meanwhile_is_not_claimed(conn: Conn, holder: Conn, other: Conn) -> None:
    id = enqueue(conn, key="k")
    worker_id = worker(conn)
    db.execute(holder, db.enqueue("q", "t", key="k", on_conflict="replace", run_at=TOMORROW))
    assert claim(other, worker_id) == []
    holder.commit()
    assert claim(other, worker_id) == []
    assert statuses(conn) == {id: "scheduled"}


def test_trap_13_a_claim_returns_what_its_order_is_made_of(conn: Conn) -> None:
    ids = [enqueue(conn) for _ in range(20)]
    conn.execute("update pgqueue.job_live set rank_at = rank_at - id * interval '1 second'")
    jobs = claim(conn, worker(conn), 20)
    assert [job.id for job in sorted(jobs, key=lambda job: job.rank_at)] == ids[::-1]


def test_trap_14_a_finished_status_cannot_be_written_into_the_live_leaf(conn: Conn) -> None:
    enqueue(conn)
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("update pgqueue.job_live set status = 'completed'")


# Trap 15 itself needs PgBouncer; what makes it harmless can be read from the catalogue.


def test_trap_15_no_function_leaves_anything_in_the_session(conn: Conn) -> None:
    functions = rows(
        conn,
        "select proname, lower(prosrc) as body from pg_proc where pronamespace = 'pgqueue'::regnamespace",
    )
    assert len(functions) > 30
    for function in functions:
        body = function["body"]
        assert "pg_advisory_lock(" not in body, function["proname"]
        assert "pg_try_advisory_lock(" not in body, function["proname"]
        assert ", false)" not in body.partition("set_config(")[2].partition(";")[0], function["proname"]
        for word in ("listen ", "prepare ", "create temp", "set session ", "declare cursor"):
            assert word not in body, (function["proname"], word)


def test_trap_15_a_call_of_every_worker_function_leaves_no_lock_and_no_setting(conn: Conn) -> None:
    settings = "select name, setting from pg_settings where source = 'session' order by 1"
    before = rows(conn, settings)
    worker_id, (mine, _) = running(conn, 2)
    db.execute(conn, db.heartbeat(worker_id))
    db.execute(conn, db.complete_and_claim(worker_id, [(mine.id, mine.token)], None, ["q"], 1))
    calls: list[db.Call[Any]] = [
        db.sweep(),
        db.promote("q"),
        db.refresh_hints(),
        db.ensure_partitions(),
        db.prune(),
    ]
    for call in calls:
        db.execute(conn, call)
    assert rows(conn, settings) == before
    assert rows(conn, "select 1 from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'") == []


def test_trap_16_no_function_pretends_to_commit_asynchronously(conn: Conn) -> None:
    settings = rows(
        conn,
        "select proname, proconfig::text as s from pg_proc"
        " where pronamespace = 'pgqueue'::regnamespace and proconfig is not null",
    )
    assert settings
    assert [f["proname"] for f in settings if "synchronous_commit" in f["s"]] == []


@pytest.mark.parametrize("many", [False, True])
def test_trap_16_an_enqueue_is_durable_though_its_caller_gave_durability_away(
    conn: Conn, holder: Conn, many: bool
) -> None:
    holder.execute("set synchronous_commit = off")
    holder.commit()
    call: db.Call[Any] = db.enqueue_many("q", "t", [{}]) if many else db.enqueue("q", "t")
    db.execute(holder, call)
    assert value(holder, "select current_setting('synchronous_commit')") == "on"
    holder.commit()
    assert value(holder, "select current_setting('synchronous_commit')") == "off"


@pytest.mark.parametrize("options", [{}, {"key": "k", "group": "g"}], ids=["plain", "key and group"])
def test_trap_17_a_claim_hopes_for_no_hot_update_and_writes_few_index_entries(
    conn: Conn, holder: Conn, options: dict[str, Any]
) -> None:
    """An index that mentions the status makes a claim write to all indexes that the row is then in. Without one, pages
    must be kept half empty to win anything, and less WAL is all that is won: claims were no faster. So pages stay full,
    the claim index mentions the status, and what is kept small is the number of indexes that a running job is in."""
    id = enqueue(conn, **options)
    worker_id = worker(conn)
    hot = "select pg_stat_get_xact_tuples_hot_updated('pgqueue.job_live'::regclass)"
    before = value(holder, hot)
    assert claim_one(holder, worker_id).id == id
    assert value(holder, hot) == before
    holder.commit()
    assert "fillfactor" not in value(
        conn, "select reloptions::text from pg_class where oid = 'pgqueue.job_live'::regclass"
    )
    written = {
        index["name"]
        for index in rows(
            conn,
            "select indexrelid::regclass::text as name, coalesce(pg_get_expr(indpred, indrelid), 'true') as holds"
            " from pg_index where indrelid = 'pgqueue.job_live'::regclass",
        )
        if value(conn, f"select count(*) from pgqueue.job_live where id = {id} and {index['holds']}")
    }
    few = {"pgqueue.job_live_pkey", "pgqueue.job_live_worker"}
    assert written == (few | {"pgqueue.job_live_key", "pgqueue.job_live_slot"} if options else few)


def test_trap_19_a_claim_that_commits_after_its_workers_row_is_gone_is_rescued(conn: Conn, holder: Conn) -> None:
    id = enqueue(conn)
    worker_id = worker(conn)
    claim_one(holder, worker_id)
    conn.execute("delete from pgqueue.worker where id = %s", [worker_id])
    holder.commit()
    assert db.execute(conn, db.sweep()).retried == 1
    assert statuses(conn) == {id: "pending"}


def test_each_of_the_nineteen_traps_has_a_test_with_its_number() -> None:
    found = {
        int(number)
        for path in Path(__file__).parents[1].rglob("test_*.py")
        for number in re.findall(r"^def test_trap_(\d\d)_", path.read_text(), re.MULTILINE)
    }
    assert found == set(range(1, 20))
