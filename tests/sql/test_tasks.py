"""Tasks that are paused, and circuit breakers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.support import Conn, claim, enqueue, job, lose, row, rows, value, worker


def watch(conn: Conn, **settings: Any) -> None:
    db.execute(conn, db.set_task("bad", {"breaker_min": 4, **settings}))


def end(conn: Conn, w: int, *jobs: db.ClaimedJob, ok: bool) -> None:
    if ok:
        db.execute(conn, db.complete(w, [(each.id, each.token) for each in jobs]))
    else:
        db.execute(conn, db.fail(w, [db.Failure(each.id, each.token, "boom", retry_in=60) for each in jobs]))


def opened(conn: Conn) -> int:
    """A worker that has seen the circuit of the task open."""
    watch(conn)
    w = worker(conn)
    for _ in range(4):
        enqueue(conn, task="bad")
    end(conn, w, *claim(conn, w, 4), ok=False)
    assert circuit(conn) == "open"
    return w


def circuit(conn: Conn) -> str:
    return str(value(conn, "select circuit from pgqueue.task_status where task = 'bad'"))


def time_passes(conn: Conn) -> None:
    conn.execute("update pgqueue.task set circuit_probe_at = now()")
    db.execute(conn, db.sweep_limits())


def test_a_paused_task_waits_and_the_others_of_its_queue_go_on(conn: Conn) -> None:
    bad, good = enqueue(conn, task="bad"), enqueue(conn, task="good")
    db.execute(conn, db.pause_task("bad", reason="wrong"))
    w = worker(conn)
    assert [each.id for each in claim(conn, w, 5)] == [good]
    assert (job(conn, bad)["status"], job(conn, bad)["waits_for"]) == ("blocked", "task")
    assert row(conn, "select paused, paused_reason, blocked from pgqueue.task_status") == {
        "paused": True, "paused_reason": "wrong", "blocked": 1,
    }  # fmt: skip
    assert db.execute(conn, db.resume_task("bad")) is True
    assert db.execute(conn, db.resume_task("bad")) is False
    assert [each.id for each in claim(conn, w, 5)] == [bad]


def test_a_pause_with_an_end_ends_by_itself(conn: Conn) -> None:
    bad = enqueue(conn, task="bad")
    db.execute(conn, db.pause_task("bad", until=datetime.now(UTC) + timedelta(hours=1)))
    w = worker(conn)
    assert claim(conn, w, 5) == []
    conn.execute("update pgqueue.task set paused_until = now()")
    db.execute(conn, db.sweep_limits())
    assert [each.id for each in claim(conn, w, 5)] == [bad]


def test_a_job_that_held_its_groups_slot_passes_it_on_when_its_task_is_paused(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"group_max_running": 1}))
    first = enqueue(conn, task="good", group="g")
    bad, good = enqueue(conn, task="bad", group="g"), enqueue(conn, task="good", group="g")
    w = worker(conn)
    held = claim(conn, w, 5)
    assert [each.id for each in held] == [first]
    end(conn, w, *held, ok=True)
    db.execute(conn, db.pause_task("bad"))
    found = claim(conn, w, 5) or claim(conn, w, 5)
    assert [each.id for each in found] == [good]
    assert job(conn, bad)["waits_for"] == "task"


def test_a_circuit_opens_when_too_many_attempts_fail(conn: Conn) -> None:
    watch(conn, breaker_rate=0.5)
    w = worker(conn)
    for _ in range(7):
        enqueue(conn, task="bad")
    end(conn, w, *claim(conn, w, 2), ok=True)
    end(conn, w, *claim(conn, w, 1), ok=False)
    assert circuit(conn) == "closed"
    end(conn, w, *claim(conn, w, 1), ok=False)
    assert circuit(conn) == "open"
    assert value(conn, "select circuit_reason from pgqueue.task_status") == "2 of 4 attempts within 60 s failed"
    assert claim(conn, w, 5) == []


def test_failures_that_are_long_ago_open_nothing(conn: Conn) -> None:
    watch(conn)
    w = worker(conn)
    for _ in range(5):
        enqueue(conn, task="bad")
    end(conn, w, *claim(conn, w, 3), ok=False)
    conn.execute("update pgqueue.task_outcome set counted_at = counted_at - interval '2 minutes'")
    end(conn, w, *claim(conn, w, 1), ok=False)
    assert circuit(conn) == "closed"


def test_attempts_on_all_workers_count_together(conn: Conn) -> None:
    watch(conn)
    for _ in range(4):
        w = worker(conn)
        enqueue(conn, task="bad")
        end(conn, w, *claim(conn, w, 1), ok=False)
    assert circuit(conn) == "open"


def test_an_open_circuit_lets_one_job_through_and_closes_when_it_succeeds(conn: Conn) -> None:
    w = opened(conn)
    waiting = [enqueue(conn, task="bad") for _ in range(3)]
    assert claim(conn, w, 5) == []
    time_passes(conn)
    assert circuit(conn) == "half_open"
    probe = claim(conn, w, 5)
    assert [each.id for each in probe] == waiting[:1]
    assert claim(conn, w, 5) == []
    end(conn, w, *probe, ok=True)
    assert circuit(conn) == "closed"
    assert [each.id for each in claim(conn, w, 5)] == waiting[1:]


def test_a_probe_that_fails_opens_the_circuit_for_twice_as_long(conn: Conn) -> None:
    w = opened(conn)
    enqueue(conn, task="bad")
    assert claim(conn, w, 5) == []
    time_passes(conn)
    end(conn, w, *claim(conn, w, 5), ok=False)
    assert circuit(conn) == "open"
    ahead = value(conn, "select circuit_probe_at - now() from pgqueue.task")
    assert ahead.total_seconds() == pytest.approx(60, abs=5)
    assert "the probe, job" in value(conn, "select circuit_reason from pgqueue.task")


def test_a_probe_that_is_cancelled_is_replaced_by_another(conn: Conn) -> None:
    w = opened(conn)
    waiting = [enqueue(conn, task="bad") for _ in range(2)]
    claim(conn, w, 5)
    time_passes(conn)
    db.execute(conn, db.cancel(waiting[0]))
    time_passes(conn)
    assert [each.id for each in claim(conn, w, 5)] == waiting[1:]


def test_an_operator_can_force_a_circuit(conn: Conn) -> None:
    db.execute(conn, db.force_circuit("bad", "open", "provider is down"))
    bad = enqueue(conn, task="bad")
    w = worker(conn)
    assert claim(conn, w, 5) == []
    db.execute(conn, db.sweep_limits())
    assert circuit(conn) == "open"
    db.execute(conn, db.force_circuit("bad", "closed"))
    assert [each.id for each in claim(conn, w, 5)] == [bad]


def test_without_its_breaker_a_task_goes_on(conn: Conn) -> None:
    w = opened(conn)
    enqueue(conn, task="bad")
    assert claim(conn, w, 5) == []
    db.execute(conn, db.set_task("bad", {"breaker_rate": None}))
    assert circuit(conn) == "closed"
    assert len(claim(conn, w, 5)) == 1


def test_workers_are_told_when_a_circuit_opens(conn: Conn, connect: Any) -> None:
    listening = connect()
    listening.execute("listen pgqueue")
    opened(conn)
    assert "circuit bad" in [each.payload for each in listening.notifies(timeout=1, stop_after=5)]


def test_a_worker_that_is_killed_makes_no_task_fail_everywhere(conn: Conn) -> None:
    w = worker(conn)
    for _ in range(30):
        enqueue(conn, task="slow")
    claim(conn, w, 30)
    lose(conn, w)
    swept = db.execute(conn, db.sweep())
    assert (swept.lost_workers, swept.retried, swept.alarmed) == (1, 30, ())


def test_a_task_that_fails_everywhere_is_reported_once(conn: Conn) -> None:
    for _ in range(2):
        w = worker(conn)
        for _ in range(10):
            enqueue(conn, task="bad")
        end(conn, w, *claim(conn, w, 10), ok=False)
    good = worker(conn)
    for _ in range(20):
        enqueue(conn, task="mixed")
    held = claim(conn, good, 20)
    end(conn, good, *held[1:], ok=False)
    end(conn, good, held[0], ok=True)
    assert db.execute(conn, db.sweep()).alarmed == ("bad",)
    assert db.execute(conn, db.sweep()).alarmed == ()
    assert value(conn, "select alarmed_at is not null from pgqueue.task_status where task = 'bad'")
    conn.execute("update pgqueue.metric set at = at - interval '20 minutes' where span_seconds = 60")
    conn.execute("update pgqueue.task set alarmed_at = alarmed_at - interval '20 minutes'")
    db.execute(conn, db.sweep())
    assert value(conn, "select alarmed_at is null from pgqueue.task_status where task = 'bad'")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"breaker_rate": 2}, "breaker_rate"), ({"breaker_min": 0}, "breaker_min"), ({"rate": 1}, "no setting 'rate'")],
)
def test_a_bad_breaker_is_refused(conn: Conn, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        db.execute(conn, db.set_task("bad", settings))
    assert rows(conn, "select 1 from pgqueue.task") == []


@pytest.mark.parametrize("task", ["", "a b", "x" * 129])
def test_a_bad_task_name_is_refused(conn: Conn, task: str) -> None:
    for call in (db.pause_task(task), db.set_task(task, {}), db.force_circuit(task, "open")):
        with pytest.raises(InvalidArgument, match="bad task name"):
            db.execute(conn, call)
