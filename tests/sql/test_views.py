from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from pgqueue import database as db
from tests.support import (
    FIXED,
    Conn,
    claim,
    claim_one,
    enqueue,
    job,
    lose,
    make_due,
    row,
    rows,
    value,
    worker,
)

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def fail(conn: Conn, w: int, claimed: db.ClaimedJob, *, fatal: bool = False) -> None:
    db.execute(conn, db.fail(w, [db.Failure(claimed.id, claimed.token, "boom", "ValueError", "line 1", fatal=fatal)]))


def picked(found: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(found[name] for name in names)


def about(seconds: int) -> Any:
    """At least so many seconds, and not much more: what happened within the test."""
    return pytest.approx(Decimal(seconds + 30), abs=Decimal(30))


# ------------------------------------------------------------------------------------------ queue_status


def test_queue_status_counts_the_jobs_of_each_status(conn: Conn) -> None:
    w = worker(conn)
    for _ in range(4):
        enqueue(conn)
    running, died, done, _ = claim(conn, w, 4)
    fail(conn, w, died, fatal=True)
    db.execute(conn, db.complete(w, [(done.id, done.token)]))
    for _ in range(3):
        enqueue(conn)
    conn.execute(
        "update pgqueue.job_live set status = 'blocked', waits_for = 'group', group_key = 'g' where id = %s",
        [enqueue(conn)],
    )
    enqueue(conn, run_at=LATER)
    enqueue(conn, run_at=LATER + timedelta(hours=1))
    found = row(conn, "select * from pgqueue.queue_status")
    assert picked(found, "queue", "pending", "scheduled", "blocked", "running", "dead") == (
        "q",
        3,
        2,
        1,
        2,
        1,
    )
    assert found["next_run_at"] == LATER
    assert running.id


def test_queue_status_says_how_long_the_oldest_pending_job_waits(conn: Conn) -> None:
    first = enqueue(conn)
    enqueue(conn)
    enqueue(conn, run_at=LATER)
    conn.execute("update pgqueue.job_live set rank_at = now() - interval '100 s' where id = %s", [first])
    assert value(conn, "select oldest_waiting_seconds from pgqueue.queue_status") == about(100)


def test_queue_status_shows_queues_without_jobs_and_queues_without_a_row(conn: Conn) -> None:
    db.execute(conn, db.set_queue("configured", {}))
    enqueue(conn, queue="enqueued")
    found = rows(conn, "select queue, pending, oldest_waiting_seconds is null as idle from pgqueue.queue_status")
    assert [tuple(each.values()) for each in found] == [("configured", 0, True), ("enqueued", 1, False)]


def test_queue_status_counts_live_workers_only(conn: Conn) -> None:
    worker(conn, ["q", "other"])
    worker(conn, ["q"])
    silent, lost = worker(conn, ["q"]), worker(conn, ["q"])
    lose(conn, silent)
    conn.execute("update pgqueue.worker set lost_at = now() where id = %s", [lost])
    found = rows(conn, "select queue, workers from pgqueue.queue_status")
    assert {each["queue"]: each["workers"] for each in found} == {"other": 1, "q": 2}


def test_queue_status_says_what_is_paused_and_why(conn: Conn) -> None:
    for queue in ("forever", "ended", "until", "working"):
        db.execute(conn, db.set_queue(queue, {}))
    db.execute(conn, db.pause("forever", reason="deploy"))
    db.execute(conn, db.pause("until", until=LATER))
    db.execute(conn, db.pause("ended", until=LATER))
    conn.execute("update pgqueue.queue set paused_until = now() - interval '1 s' where queue = 'ended'")
    found = {each["queue"]: each for each in rows(conn, "select * from pgqueue.queue_status")}
    assert {queue: each["paused"] for queue, each in found.items()} == {
        "ended": False,
        "forever": True,
        "until": True,
        "working": False,
    }
    assert found["forever"]["paused_reason"] == "deploy"
    assert found["until"]["paused_until"] == LATER


def test_queue_status_shows_the_settings_in_force(conn: Conn) -> None:
    own: dict[str, Any] = {
        "max_attempts": 3, "max_crashes": 2, "timeout_seconds": 9, "retry": FIXED, "boost_seconds": 7,
        "retain_completed": timedelta(days=1), "retain_dead": timedelta(days=2),
    }  # fmt: skip
    db.execute(conn, db.set_queue("a", own | {"retain_completed": "1 day", "retain_dead": "2 days"}))
    db.execute(conn, db.set_queue("b", {}))
    names = ", ".join(own)
    assert row(conn, f"select {names} from pgqueue.queue_status where queue = 'a'") == own
    defaults = row(conn, f"select {names} from pgqueue.setting")
    assert row(conn, f"select {names} from pgqueue.queue_status where queue = 'b'") == defaults


# ------------------------------------------------------------------------------------------- running_job


def test_running_job_shows_who_runs_what_and_since_when(conn: Conn) -> None:
    enqueue(conn, queue="other")
    id, w = enqueue(conn, key="k", priority=3, tags=["x"]), worker(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.progress(w, id, claimed.token, {"percent": 40}))
    db.execute(conn, db.cancel(id))
    conn.execute("update pgqueue.job_live set started_at = now() - interval '100 s'")
    conn.execute("update pgqueue.worker set heartbeat_at = now() - interval '10 s'")
    found = row(conn, "select * from pgqueue.running_job")
    assert picked(found, "id", "queue", "task", "key", "priority", "attempt", "token", "crashes") == (
        id, "q", "t", "k", 3, 1, 1, 0,
    )  # fmt: skip
    assert picked(found, "progress", "worker_id", "worker_name", "tags") == (
        {"percent": 40},
        w,
        "test",
        ["x"],
    )
    assert found["running_seconds"] == about(100)
    assert found["beat_age_seconds"] == about(10)
    assert found["cancel_requested_at"] is not None


def test_running_job_shows_the_timeout_in_force(conn: Conn) -> None:
    own, of_queue = enqueue(conn, timeout_seconds=5), enqueue(conn)
    of_default = enqueue(conn, queue="other")
    db.execute(conn, db.set_queue("q", {"timeout_seconds": 6}))
    db.execute(conn, db.set_defaults({"timeout_seconds": 7}))
    claim(conn, worker(conn), 9, ["q", "other"])
    found = rows(conn, "select id, timeout_seconds from pgqueue.running_job")
    assert {each["id"]: each["timeout_seconds"] for each in found} == {own: 5, of_queue: 6, of_default: 7}


def test_running_job_shows_a_job_whose_worker_is_gone(conn: Conn) -> None:
    id = enqueue(conn)
    claim_one(conn, worker(conn))
    conn.execute("delete from pgqueue.worker")
    assert row(conn, "select id, worker_name from pgqueue.running_job") == {"id": id, "worker_name": None}


# --------------------------------------------------------------------------------- dead_job, job_detail


def test_dead_job_lists_dead_letters_the_newest_first(conn: Conn) -> None:
    w, ids = worker(conn), []
    for key in ("a", "b"):
        ids.append(enqueue(conn, key=key, tags=["x"], priority=2))
        fail(conn, w, claim_one(conn, w), fatal=True)
    db.execute(conn, db.cancel(enqueue(conn)))
    conn.execute("update pgqueue.job_dead set finished_at = finished_at - interval '100 s' where id = %s", [ids[0]])
    newest, oldest = rows(conn, "select * from pgqueue.dead_job")
    assert [newest["id"], oldest["id"]] == [ids[1], ids[0]]
    assert picked(oldest, "queue", "task", "key", "priority", "attempt", "crashes", "error_type", "error", "tags") == (
        "q", "t", "a", 2, 1, 0, "ValueError", "boom", ["x"],
    )  # fmt: skip
    assert oldest["dead_seconds"] == about(100)
    assert oldest["prune_at"] == job(conn, ids[0])["prune_at"]


def test_job_detail_shows_everything_of_live_and_finished_jobs(conn: Conn) -> None:
    w = worker(conn)
    ids = [enqueue(conn, {"n": n}) for n in range(3)]
    fail(conn, w, claim_one(conn, w), fatal=True)
    done = claim_one(conn, w)
    db.execute(conn, db.complete(w, [(done.id, done.token)], [{"ok": 1}]))
    assert rows(conn, "select * from pgqueue.job_detail order by id") == [job(conn, id) for id in ids]


# ------------------------------------------------------------------------------- ghost_job, worker_status


def test_ghost_job_shows_running_jobs_whose_worker_is_silent_lost_or_missing(conn: Conn) -> None:
    held = {}
    for state in ("alive", "silent", "lost", "missing"):
        enqueue(conn)
        w = worker(conn)
        held[state] = (w, claim_one(conn, w).id)
    enqueue(conn)
    lose(conn, held["silent"][0])
    conn.execute("update pgqueue.worker set lost_at = now() where id = %s", [held["lost"][0]])
    conn.execute("delete from pgqueue.worker where id = %s", [held["missing"][0]])
    found = rows(
        conn,
        "select id, worker_id, worker_name, lost_at is not null as lost from pgqueue.ghost_job order by id",
    )
    assert [tuple(each.values()) for each in found] == [
        (held["silent"][1], held["silent"][0], "test", False),
        (held["lost"][1], held["lost"][0], "test", True),
        (held["missing"][1], held["missing"][0], None, False),
    ]
    assert db.execute(conn, db.sweep()).retried == 3
    assert rows(conn, "select 1 from pgqueue.ghost_job") == []


def test_worker_status_says_who_is_alive_silent_or_lost_and_what_it_holds(conn: Conn) -> None:
    alive, silent, lost = worker(conn, ["q", "r"]), worker(conn), worker(conn)
    for _ in range(3):
        enqueue(conn)
    claim(conn, alive, 2)
    lose(conn, silent)
    conn.execute("update pgqueue.worker set lost_at = now() where id = %s", [lost])
    found = rows(conn, "select * from pgqueue.worker_status")
    assert [picked(each, "id", "state", "running") for each in found] == [
        (alive, "alive", 2),
        (silent, "silent", 0),
        (lost, "lost", 0),
    ]
    assert picked(found[0], "name", "queues", "lease_seconds", "info") == ("test", ["q", "r"], 30, {})
    assert found[1]["beat_age_seconds"] == about(86400)


# ---------------------------------------------------------------------------------- attempt, recent_failure


def test_attempt_shows_each_claim_and_how_it_ended(conn: Conn) -> None:
    id, w = enqueue(conn, retry=FIXED), worker(conn)
    fail(conn, w, claim_one(conn, w))
    make_due(conn, id)
    db.execute(conn, db.release(w, [(id, claim_one(conn, w).token)]))
    last = claim_one(conn, w)
    query = (
        "select token, attempt, outcome, worker_id, delay_seconds from pgqueue.attempt where job_id = %s order by token"
    )
    before = [(1, 1, "failed", w, 60), (2, 2, "released", w, 0)]
    assert [tuple(each.values()) for each in rows(conn, query, id)] == [*before, (3, 2, "running", w, None)]
    db.execute(conn, db.complete(w, [(id, last.token)]))
    assert [tuple(each.values()) for each in rows(conn, query, id)] == [*before, (3, 2, "completed", w, None)]
    first = row(conn, "select * from pgqueue.attempt where job_id = %s and token = 1", id)
    assert picked(first, "queue", "task", "error_type", "error", "traceback") == (
        "q", "t", "ValueError", "boom", "line 1",
    )  # fmt: skip
    end = row(conn, "select * from pgqueue.attempt where job_id = %s and token = 3", id)
    assert picked(end, "started_at", "finished_at") == picked(job(conn, id), "started_at", "finished_at")


def test_a_job_that_never_ran_has_no_attempts(conn: Conn) -> None:
    enqueue(conn)
    db.execute(conn, db.cancel(enqueue(conn)))
    assert rows(conn, "select 1 from pgqueue.attempt") == []


def test_recent_failure_shows_what_failed_or_was_lost_within_an_hour_the_newest_first(conn: Conn) -> None:
    w = worker(conn)
    old, failed, released, lost = (enqueue(conn, retry=FIXED) for _ in range(4))
    fail(conn, w, claim_one(conn, w))
    fail(conn, w, claim_one(conn, w))
    db.execute(conn, db.release(w, [(released, claim_one(conn, w).token)]))
    db.execute(conn, db.cancel(released))
    claim_one(conn, w)
    lose(conn, w)
    db.execute(conn, db.sweep())
    conn.execute("update pgqueue.job_attempt set finished_at = now() - interval '61 min' where job_id = %s", [old])
    conn.execute("update pgqueue.job_attempt set started_at = finished_at - interval '9 s' where job_id = %s", [failed])
    found = rows(conn, "select * from pgqueue.recent_failure")
    assert [picked(each, "job_id", "outcome", "error_type", "delay_seconds") for each in found] == [
        (lost, "lost", "WorkerLost", 0),
        (failed, "failed", "ValueError", 60),
    ]
    assert picked(found[1], "queue", "task", "attempt", "error", "worker_id") == ("q", "t", 1, "boom", w)
    assert found[1]["ran_seconds"] == Decimal("9.000")
