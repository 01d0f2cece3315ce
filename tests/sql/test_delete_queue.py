from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from pgqueue import database as db
from pgqueue.errors import WrongStatus
from tests.support import Conn, Rival, claim, claim_one, enqueue, lose, row, rows, value, worker


def delete(conn: Conn, queue: str = "q") -> bool:
    return db.execute(conn, db.delete_queue(queue))


def traces(conn: Conn, queue: str = "q") -> list[str]:
    """Where something is left of it."""
    return [
        table
        for table in ("queue", "queue_gate", "queue_group", "lane")
        if rows(conn, f"select 1 from pgqueue.{table} where queue = %s", queue)
    ]


def sequences(conn: Conn) -> set[str]:
    names = rows(conn, "select relname from pg_class where relkind = 'S' and relname ~ '^(wake|came|went)_'")
    return {each["relname"] for each in names}


def used_and_empty(conn: Conn, queue: str = "q") -> None:
    """A queue with all that one can have, and no job any more."""
    db.execute(conn, db.set_queue(queue, {"max_running": 5, "group_max_running": 1, "max_depth": 100}))
    worker_id = worker(conn, [queue])
    enqueue(conn, queue=queue, group="g")
    done = claim_one(conn, worker_id, [queue])
    assert db.execute(conn, db.complete(worker_id, [(done.id, done.token)])) == []
    db.execute(conn, db.retire_worker(worker_id))


def let_a_month_pass(conn: Conn) -> None:
    """Sweep looks, a month goes by, sweep looks again."""
    for _ in range(2):
        conn.execute(
            "update pgqueue.queue set looked_at = looked_at - interval '31 days',"
            " unused_since = unused_since - interval '31 days'"
        )
        db.execute(conn, db.sweep())


def let_the_deleted_go(conn: Conn) -> None:
    for _ in range(3):
        conn.execute("update pgqueue.queue_gone set gone_at = gone_at - interval '1 day'")
        db.execute(conn, db.sweep())


def test_a_deleted_queue_leaves_nothing_in_the_end(conn: Conn) -> None:
    let_the_deleted_go(conn)
    before = sequences(conn)
    used_and_empty(conn)
    assert len(sequences(conn) - before) == 3
    assert delete(conn) is True
    assert traces(conn) == []
    let_the_deleted_go(conn)
    assert sequences(conn) <= before
    assert rows(conn, "select 1 from pgqueue.queue_gone") == []
    assert delete(conn) is False


def test_a_queue_that_was_never_there_is_not_deleted(conn: Conn) -> None:
    assert delete(conn, "nobody.knows.it") is False


@pytest.mark.parametrize("state", ["pending", "scheduled", "running", "blocked by its task", "blocked by its group"])
def test_a_queue_with_a_live_job_is_not_deleted(conn: Conn, state: str) -> None:
    if state == "blocked by its group":
        db.execute(conn, db.set_queue("q", {"group_max_running": 1}))
    enqueue(conn)
    if state == "running":
        worker_id = worker(conn)
        claim_one(conn, worker_id)
        lose(conn, worker_id)
    elif state == "blocked by its task":
        conn.execute("update pgqueue.job_live set status = 'blocked', waits_for = 'task'")
    elif state == "blocked by its group":
        conn.execute("update pgqueue.job_live set status = 'blocked', waits_for = 'group', group_key = 'g'")
    else:
        conn.execute("update pgqueue.job_live set status = %s", [state])
    with pytest.raises(WrongStatus, match="queue 'q' cannot be deleted: jobs of it wait or run"):
        delete(conn)
    assert "lane" in traces(conn)


def test_a_queue_that_a_worker_serves_is_not_deleted_until_it_is_gone(conn: Conn) -> None:
    worker_id = worker(conn)
    with pytest.raises(WrongStatus, match="worker test serves it"):
        delete(conn)
    lose(conn, worker_id)
    assert delete(conn) is True


def test_a_queue_of_a_recurring_job_is_not_deleted(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {}))
    conn.execute('select pgqueue.set_recurring(\'nightly\', \'{"queue": "q", "task": "t", "every": "1 day"}\')')
    with pytest.raises(WrongStatus, match="the recurring job nightly is for it"):
        delete(conn)


def test_its_finished_jobs_stay_and_an_enqueue_makes_it_anew(conn: Conn) -> None:
    used_and_empty(conn)
    delete(conn)
    assert value(conn, "select status from pgqueue.job where queue = 'q'") == "completed"
    id = enqueue(conn, group="g")
    db.execute(conn, db.sweep())
    assert row(conn, "select max_running, gated from pgqueue.queue where queue = 'q'") == {
        "max_running": None, "gated": False,
    }  # fmt: skip
    assert claim_one(conn, worker(conn)).id == id


@pytest.mark.parametrize("when", ["pending", "scheduled"])
def test_a_job_of_a_transaction_that_saw_the_queue_is_claimed_though_it_was_deleted_meanwhile(
    conn: Conn, connect: Callable[..., Conn], when: str
) -> None:
    used_and_empty(conn)
    slow = connect(autocommit=False)
    late = enqueue(slow)
    assert delete(conn) is True
    if when == "scheduled":
        slow.execute("update pgqueue.job_live set status = 'scheduled', rank_at = now(), run_at = now()")
    let_the_deleted_go(conn)
    assert len(rows(conn, "select 1 from pgqueue.queue_gone")) == 1, "somebody has seen it"
    slow.commit()
    assert claim(conn, worker(conn)) == []
    db.execute(conn, db.sweep())
    assert claim_one(conn, worker(conn)).id == late


def test_an_enqueue_that_has_read_the_queue_does_not_fail_when_it_is_deleted(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    used_and_empty(conn)
    slow = connect(autocommit=False)
    slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert value(slow, "select count(*) from pgqueue.queue where queue = 'q'") == 1
    assert delete(conn) is True
    assert enqueue(slow) > 0
    slow.rollback()


@pytest.mark.parametrize("rival", ["set_queue", "pause"])
def test_a_setting_that_meets_a_deletion_is_not_lost(
    conn: Conn, connect: Callable[..., Conn], dsn: str, rival: str
) -> None:
    used_and_empty(conn)
    holder, other = connect(autocommit=False), connect()
    assert delete(holder) is True
    setting: db.Call[None] = db.set_queue("q", {"max_attempts": 3}) if rival == "set_queue" else db.pause("q")
    waiting = Rival(other, lambda c: db.execute(c, setting))
    waiting.wait_blocked(dsn)
    holder.commit()
    waiting.result()
    found = row(conn, "select max_attempts, max_running, paused_at from pgqueue.queue where queue = 'q'")
    assert found["max_running"] is None
    assert found["max_attempts"] == 3 if rival == "set_queue" else found["paused_at"] is not None


# ------------------------------------------------------------------------------------ by itself


def test_sweep_forgets_a_queue_that_nobody_has_used_for_a_month(conn: Conn) -> None:
    conn.execute("update pgqueue.queue set looked_at = now()")
    worker_id = worker(conn, ["misspeled"])
    enqueue(conn, queue="misspeled")
    job = claim_one(conn, worker_id, ["misspeled"])
    db.execute(conn, db.complete(worker_id, [(job.id, job.token)]))
    let_a_month_pass(conn)
    assert "queue" in traces(conn, "misspeled"), "a worker serves it"
    db.execute(conn, db.retire_worker(worker_id))
    db.execute(conn, db.sweep())
    assert value(conn, "select unused_since from pgqueue.queue where queue = 'misspeled'") is None, (
        "an hour is not over"
    )
    let_a_month_pass(conn)
    assert traces(conn, "misspeled") == []


@pytest.mark.parametrize("why", ["setting", "pause", "job", "dead letter", "young"])
def test_sweep_keeps_a_queue_that_anybody_would_miss(conn: Conn, why: str) -> None:
    db.execute(conn, db.set_queue("q", {"max_attempts": 3} if why == "setting" else {}))
    if why == "pause":
        db.execute(conn, db.pause("q"))
    elif why in ("job", "dead letter"):
        enqueue(conn)
        worker_id = worker(conn)
        job = claim_one(conn, worker_id)
        if why == "dead letter":
            db.execute(conn, db.fail(worker_id, [db.Failure(job.id, job.token, "boom", fatal=True)]))
            db.execute(conn, db.retire_worker(worker_id))
        else:
            db.execute(conn, db.release(worker_id, [(job.id, job.token)]))
            lose(conn, worker_id)
    if why == "young":
        conn.execute("update pgqueue.queue set looked_at = looked_at - interval '2 hours'")
        db.execute(conn, db.sweep())
        conn.execute("update pgqueue.queue set unused_since = unused_since - interval '29 days'")
        db.execute(conn, db.sweep())
    else:
        let_a_month_pass(conn)
    assert "queue" in traces(conn)


def test_sweep_looks_at_a_bounded_number_of_queues_and_waits_for_nobody(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    for n in range(30):
        db.execute(conn, db.set_queue(f"q{n}", {}))
    let_a_month_pass(conn)
    assert value(conn, "select count(*) from pgqueue.queue") == 20, "ten of the thirty have had two turns"
    holder = connect(autocommit=False)
    conn.execute("update pgqueue.queue set unused_since = now() - interval '31 d', looked_at = now() - interval '2 h'")
    held = value(conn, "select queue from pgqueue.queue order by queue limit 1")
    holder.execute("select 1 from pgqueue.queue where queue = %s for update", [held])
    db.execute(conn, db.sweep())
    db.execute(conn, db.sweep())
    assert [each["queue"] for each in rows(conn, "select queue from pgqueue.queue")] == [held]
