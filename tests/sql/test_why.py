"""One staged situation for each reason that why knows."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import __version__
from pgqueue import database as db
from pgqueue.errors import JobNotFound
from tests.support import FIXED, Conn, claim, claim_one, enqueue, lose, make_due, value


def why(conn: Conn, id: int) -> list[dict[str, Any]]:
    return db.execute(conn, db.why(id))


def reason(conn: Conn, id: int) -> tuple[str, str]:
    first = why(conn, id)[0]
    return first["reason"], first["explanation"]


def reasons(conn: Conn, id: int) -> list[str]:
    return [each["reason"] for each in why(conn, id)]


def serve(conn: Conn, queue: str = "q", concurrency: int = 5, **info: Any) -> int:
    """A worker that knows everything and is of this version."""
    told = {"version": __version__, "tasks": ["t"], "concurrency": concurrency, **info}
    return db.execute(conn, db.register_worker("host:1", [queue], 30, told))


def fail(conn: Conn, w: int, claimed: db.ClaimedJob, **how: Any) -> None:
    db.execute(conn, db.fail(w, [db.Failure(claimed.id, claimed.token, "no answer", "TimeoutError", **how)]))


# ------------------------------------------------------------------------------------------------- it ended


def test_completed(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.complete(w, [(id, claimed.token)]))
    assert reasons(conn, id) == ["completed"]
    assert "at attempt 1" in reason(conn, id)[1]


def test_cancelled_with_the_reason_that_was_given(conn: Conn) -> None:
    id = enqueue(conn)
    db.execute(conn, db.cancel(id, "ordered twice"))
    assert reasons(conn, id) == ["cancelled"]
    assert "before it ever ran: ordered twice" in reason(conn, id)[1]
    assert why(conn, id)[0]["remedy"] == f"pgqueue jobs retry {id}"


def test_cancelled_because_it_had_expired(conn: Conn) -> None:
    id = enqueue(conn, expires_in=timedelta(hours=1))
    conn.execute("update pgqueue.job_live set expires_at = now() - interval '1 s'")
    db.execute(conn, db.sweep())
    assert reasons(conn, id) == ["expired"]
    assert "not started before" in reason(conn, id)[1]


def test_dead_because_its_attempts_were_used_up(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn, max_attempts=2, retry=FIXED)
    fail(conn, w, claim_one(conn, w))
    make_due(conn, id)
    fail(conn, w, claim_one(conn, w))
    assert reasons(conn, id) == ["dead_attempts"]
    assert "after 2 of 2 attempts; last error: TimeoutError: no answer" in reason(conn, id)[1]
    assert f"pgqueue dead retry {id}" in why(conn, id)[0]["remedy"]


def test_dead_because_the_error_is_not_retried(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn)
    fail(conn, w, claim_one(conn, w), fatal=True)
    assert reasons(conn, id) == ["dead_fatal"]
    assert "at attempt 1 of 5" in reason(conn, id)[1]


def test_dead_because_its_workers_died(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn, max_attempts=1)
    claim_one(conn, w)
    lose(conn, w)
    db.execute(conn, db.sweep())
    assert reasons(conn, id) == ["dead_lost"]


# ------------------------------------------------------------------------------------------------- it runs


def test_running(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.progress(w, id, claimed.token, 0.4))
    assert reasons(conn, id) == ["running"]
    assert "attempt 1" in reason(conn, id)[1]
    assert "progress 0.4" in reason(conn, id)[1]


def test_running_on_a_worker_that_is_gone(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn)
    claim_one(conn, w)
    conn.execute("update pgqueue.worker set lost_at = now() where id = %s", [w])
    assert reasons(conn, id)[0] == "ghost"
    conn.execute("delete from pgqueue.worker")
    assert reasons(conn, id)[0] == "ghost"
    assert why(conn, id)[0]["remedy"] == "pgqueue sweep"


def test_running_on_a_worker_that_hangs(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn)
    claim_one(conn, w)
    lose(conn, w)
    assert reason(conn, id)[0] == "silent"
    assert "has not beaten for 1 d, its lease is 30 s" in reason(conn, id)[1]


def test_running_although_it_was_asked_to_stop(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn)
    claim_one(conn, w)
    db.execute(conn, db.cancel(id, "wrong file"))
    assert reason(conn, id)[0] == "cancel_requested"
    assert "wrong file" in reason(conn, id)[1]


def test_running_for_longer_than_its_time_out(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn, timeout_seconds=60)
    claim_one(conn, w)
    conn.execute("update pgqueue.job_live set started_at = now() - interval '1 h'")
    assert reason(conn, id)[0] == "overdue"
    assert "for 1 h, longer than its time-out of 1 min" in reason(conn, id)[1]


# ------------------------------------------------------------------------------------------ its time has not come


def test_waiting_for_its_time(conn: Conn) -> None:
    serve(conn)
    id = enqueue(conn, run_in=timedelta(hours=2))
    assert reasons(conn, id) == ["future"]
    assert "due in 2 h" in reason(conn, id)[1] or "due in 1 h 59 min" in reason(conn, id)[1]


def test_waiting_for_its_next_attempt(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn, retry=FIXED)
    fail(conn, w, claim_one(conn, w))
    assert reasons(conn, id) == ["retry"]
    assert reason(conn, id)[1].startswith("attempt 1 of 5 failed; the next in ")
    assert reason(conn, id)[1].endswith("last error: TimeoutError: no answer")


def test_waiting_because_it_snoozed(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.snooze(w, [(id, claimed.token)], [3600]))
    assert reasons(conn, id) == ["snoozed"]


def test_waiting_because_its_worker_died_twice(conn: Conn) -> None:
    id = enqueue(conn, retry=FIXED)
    for _ in range(2):
        w = serve(conn)
        claim_one(conn, w)
        lose(conn, w)
        db.execute(conn, db.sweep())
    serve(conn)
    assert reasons(conn, id) == ["retry_lost"]


def test_due_but_nobody_has_looked(conn: Conn) -> None:
    id = enqueue(conn, run_in=timedelta(hours=2))
    make_due(conn, id)
    assert reasons(conn, id) == ["due", "no_worker"]


def test_expired_but_not_swept_yet(conn: Conn) -> None:
    serve(conn)
    id = enqueue(conn, expires_in=timedelta(hours=1))
    conn.execute("update pgqueue.job_live set expires_at = now() - interval '1 s'")
    assert reasons(conn, id) == ["expired"]
    assert why(conn, id)[0]["remedy"] == "pgqueue sweep"


def test_retried_only_after_it_expires(conn: Conn) -> None:
    w, id = serve(conn), enqueue(conn, expires_in=timedelta(seconds=30), retry=FIXED)
    fail(conn, w, claim_one(conn, w))
    assert reasons(conn, id) == ["expires_first", "retry"]


def flow(conn: Conn, *jobs: dict[str, Any]) -> list[int]:
    graph = {"jobs": [{"queue": "q", "task": "t", **job} for job in jobs]}
    return db.execute(conn, db.enqueue_flow(graph)).job_ids


def test_its_parents_have_not_ended(conn: Conn) -> None:
    w = serve(conn)
    ids = flow(conn, *({"name": f"p{n}"} for n in range(5)), {"name": "last", "after": [f"p{n}" for n in range(5)]})
    claimed = claim(conn, w, 2)
    db.execute(conn, db.complete(w, [(claimed[0].id, claimed[0].token)]))
    first = why(conn, ids[-1])[0]
    assert first["reason"] == "parents"
    assert first["explanation"] == (
        f"it runs after 5 jobs, of which 4 have not ended: p1 (job {ids[1]}, running), p2 (job {ids[2]}, pending),"
        f" p3 (job {ids[3]}, pending) and 1 more"
    )
    assert first["remedy"] == f"pgqueue why {ids[1]}"


def test_one_of_its_parents_died(conn: Conn) -> None:
    w = serve(conn)
    ids = flow(
        conn, {"name": "a"}, {"name": "b"}, {"name": "last", "after": ["a", {"job": "b", "on_death": "continue"}]}
    )
    for claimed in claim(conn, w, 2):
        fail(conn, w, claimed, fatal=True)
    first = why(conn, ids[-1])[0]
    assert first["reason"] == "parent_dead"
    assert f"of which 1 died or was cancelled: a (job {ids[0]}, dead); it waits until" in first["explanation"]
    assert first["remedy"] == f"pgqueue dead retry {ids[0]}"


def test_its_flow_has_stopped_it(conn: Conn) -> None:
    w = serve(conn)
    ids = flow(
        conn, {"name": "a"}, {"name": "b", "after": ["a"], "on_death": "stop"},
        {"name": "c", "after": ["b"], "on_death": "stop"},
    )  # fmt: skip
    fail(conn, w, claim_one(conn, w), fatal=True)
    first = why(conn, ids[2])[0]
    assert first["reason"] == "stopped"
    assert f"its parent b (job {ids[1]}) was cancelled" in first["explanation"]
    assert first["remedy"] == f"pgqueue jobs retry {ids[0]}"  # it brings all of them back


# ------------------------------------------------------------------------------------------------ held up


def test_its_queue_is_paused(conn: Conn) -> None:
    serve(conn)
    id = enqueue(conn)
    db.execute(conn, db.pause("q", reason="mail provider is down"))
    assert reasons(conn, id)[0] == "paused"
    assert "(mail provider is down)" in reason(conn, id)[1]
    assert why(conn, id)[0]["remedy"] == "pgqueue queues resume q"
    conn.execute("update pgqueue.queue set paused_until = now() - interval '1 s'")
    assert reasons(conn, id) == ["waiting"]


def test_no_live_worker_serves_its_queue(conn: Conn) -> None:
    id = enqueue(conn)
    serve(conn, "other")
    assert reason(conn, id) == ("no_worker", "no live worker serves queue q")
    lose(conn, serve(conn))
    assert "the last of 1 that did was heard of 1 d ago" in reason(conn, id)[1]


def test_all_workers_of_its_queue_drain(conn: Conn) -> None:
    id = enqueue(conn)
    db.execute(conn, db.drain(serve(conn)))
    assert reasons(conn, id)[0] == "draining"


def test_live_workers_do_not_know_its_task(conn: Conn) -> None:
    id = enqueue(conn, task="unheard_of")
    serve(conn)
    assert reason(conn, id)[0] == "unknown_task"
    assert "none of the live workers" in reason(conn, id)[1]
    serve(conn, tasks=["unheard_of"])
    assert "1 of 2 of the live workers" in reason(conn, id)[1]


def test_the_schema_is_of_another_version_than_the_workers(conn: Conn) -> None:
    id = enqueue(conn)
    serve(conn, version="99.0")
    assert reason(conn, id)[0] == "versions"
    assert "the workers that serve queue q are of 99.0" in reason(conn, id)[1]
    serve(conn)
    assert "versions" not in reasons(conn, id)


def test_somebody_holds_a_snapshot_open(
    conn: Conn, connect: Callable[..., Conn], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(conn)
    id = enqueue(conn)
    with connect(autocommit=False, application_name="nightly report") as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select 'how many' from pgqueue.setting")
        found = db.execute(conn, db.held_snapshots(timedelta(0)))
        mine = next(each for each in found if each["pid"] == holder.info.backend_pid)
        assert "nightly report" in mine["name"]
        assert mine["query"] == "idle in transaction: select 'how many' from pgqueue.setting"
        assert reasons(conn, id) == ["waiting"], "a moment is no reason"
        # Older than five minutes cannot be staged by backdating; so what counts as old is made shorter.
        definition = value(conn, "select pg_get_functiondef('pgqueue.why_held'::regproc)")
        with conn.transaction(force_rollback=True):
            conn.execute(definition.replace("'5 minutes'", "'0'"))
            assert reasons(conn, id) == ["held_snapshot", "waiting"]
            assert f"session {holder.info.backend_pid} has held a snapshot open" in reason(conn, id)[1]
            assert why(conn, id)[0]["remedy"] == f"select pg_terminate_backend({holder.info.backend_pid})"


# ---------------------------------------------------------------------------------------------- its turn


def test_all_slots_are_taken(conn: Conn) -> None:
    w = serve(conn, concurrency=2)
    for _ in range(5):
        enqueue(conn)
    claim(conn, w, 2)
    last = enqueue(conn)
    assert reason(conn, last) == (
        "busy",
        "all 2 slots of the workers that serve queue q are taken; 3 jobs come before it",
    )


def test_it_waits_for_its_turn_by_the_order_of_claims(conn: Conn) -> None:
    serve(conn)
    db.execute(conn, db.set_queue("q", {"boost_seconds": 60}))
    low, normal, high = (enqueue(conn, priority=priority) for priority in (-5, 0, 5))
    assert [reason(conn, id)[1].split(": ")[1] for id in (high, normal, low)] == [
        "it is the next", "1 job comes before it", "2 jobs come before it",
    ]  # fmt: skip
    conn.execute("update pgqueue.job_live set rank_at = rank_at - interval '1 h' where id = %s", [low])
    assert reason(conn, low)[1].endswith("it is the next")


def test_there_is_no_such_job(conn: Conn) -> None:
    with pytest.raises(JobNotFound):
        why(conn, 10**12)


# ------------------------------------------------------------------------------------------------- queues


def about(conn: Conn, queue: str = "q") -> list[str]:
    return [each["reason"] for each in db.execute(conn, db.why_queue(queue))]


def test_a_queue_says_what_holds_it_up(conn: Conn) -> None:
    with pytest.raises(JobNotFound):
        about(conn)
    serve(conn)
    assert about(conn) == ["empty"]
    assert db.execute(conn, db.why_queue("q"))[0]["explanation"] == "nothing waits"
    enqueue(conn, run_in=timedelta(hours=1))
    assert "due in" in db.execute(conn, db.why_queue("q"))[0]["explanation"]
    enqueue(conn, task="unheard_of")
    assert about(conn) == ["unknown_task", "backlog"]
    db.execute(conn, db.pause("q"))
    conn.execute("delete from pgqueue.worker")
    assert about(conn) == ["paused", "no_worker", "backlog"]


def test_a_queue_says_when_it_will_be_empty(conn: Conn) -> None:
    serve(conn)
    for _ in range(10):
        enqueue(conn)
    conn.execute(
        "insert into pgqueue.tally (at, jobs, outcome, queue, task)"
        " values (date_trunc('minute', now() - interval '2 min'), 300, 'completed', 'q', 't')"
    )
    told = db.execute(conn, db.why_queue("q"))[0]["explanation"]
    assert told.startswith("10 jobs wait, the first of them for 0 s; ")
    # Of the last five minutes and what has passed of this one.
    assert re.search(r"; (0\.[89]|1\.0) a second have completed", told)
