"""`pgqueue tasks …`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pgqueue import database as db
from tests.cli.conftest import Run
from tests.support import Conn, claim, claim_one, enqueue, row, value, worker


def status(conn: Conn) -> dict[str, Any]:
    return row(conn, "select * from pgqueue.task_status")


def test_without_any_decision_there_is_nothing_to_list(run: Run) -> None:
    told = run("tasks", "list")
    assert (told.code, told.out) == (0, "")
    assert "no task has a pause" in told.err
    assert run("tasks", "show", "t").code == 3


def test_a_task_is_paused_for_a_while_listed_and_resumed(conn: Conn, run: Run) -> None:
    told = run("tasks", "pause", "t", "--for", "2h", "--reason", "wrong prices")
    assert told.out.startswith("t is paused until ")
    assert timedelta(minutes=119) < value(conn, "select paused_until - now() from pgqueue.task") <= timedelta(hours=2)
    enqueue(conn)
    assert claim(conn, worker(conn)) == []
    (_, line) = run("tasks", "list").out.splitlines()
    assert line.split()[:2] == ["t", "1"]
    assert line.endswith(": wrong prices")
    assert run("tasks", "pause", "t", "--for", "2h", "--until", "2099-01-01T00:00:00Z").code == 2
    assert run("tasks", "pause", "a b").code == 1
    assert run("tasks", "resume", "t", "--json").json()["paused"] is False
    again = run("tasks", "resume", "t")
    assert (again.code, again.err) == (3, "t is not paused\n")


def test_a_breaker_is_set_changed_tried_and_taken_away(conn: Conn, run: Run) -> None:
    told = run("tasks", "set", "t", "breaker_rate=0.25", "breaker_min=8", "breaker_window=2m")
    assert told.out == "t: 25% of 8 in 2m, for 30s\n"
    told = run("tasks", "set", "t", "breaker_open=10m", "--dry-run")
    assert told.out == "t: 25% of 8 in 2m, for 30s → 25% of 8 in 2m, for 10m\n"
    assert status(conn)["breaker_open"] == 30
    assert run("tasks", "set", "t", "breaker_open=60", "--json").json()["breaker_open"] == 60
    assert run("tasks", "set", "t", "breaker_rate=null").out == "t: no circuit breaker\n"
    refused = run("tasks", "set", "t", "speed=9")
    assert (refused.code, "Known: breaker_rate" in refused.err) == (1, True)
    assert run("tasks", "set", "t", "breaker_rate").code == 2
    assert run("tasks", "set", "t").code == 2


def test_a_circuit_is_opened_and_closed_by_hand(conn: Conn, run: Run) -> None:
    told = run("tasks", "open", "t", "--reason", "provider is down")
    assert told.out == "the circuit of t is open: pgqueue tasks close t\n"
    w = worker(conn)
    id = enqueue(conn)
    assert claim(conn, w) == []
    (_, line) = run("tasks", "list").out.splitlines()
    assert line.split()[:2] == ["t", "open"]
    assert line.endswith("provider is down, until somebody closes it")
    run("tasks", "pause", "t")
    assert run("tasks", "resume", "t").out == "t goes on, but its circuit is open\n"
    assert run("tasks", "close", "t").out == "the circuit of t is closed\n"
    assert claim_one(conn, w).id == id
    again = run("tasks", "close", "t")
    assert (again.code, again.err) == (3, "the circuit of t is closed\n")


def test_a_task_that_is_paused_too_does_not_go_on_when_its_circuit_is_closed(run: Run) -> None:
    run("tasks", "open", "t")
    run("tasks", "pause", "t")
    assert run("tasks", "close", "t").out.endswith("but it is paused: pgqueue tasks resume t\n")


def test_what_a_circuit_waits_for_is_listed(conn: Conn, run: Run) -> None:
    run("tasks", "set", "t", "breaker_min=1")
    w = worker(conn)
    for _ in range(2):
        enqueue(conn)
    failed = claim_one(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(failed.id, failed.token, "boom", retry_in=600)]))
    assert claim(conn, w) == []
    assert "1 of 1 attempts within 60 s failed, probed in " in run("tasks", "list").out
    conn.execute("update pgqueue.task set circuit_probe_at = now(), alarmed_at = now()")
    db.execute(conn, db.sweep_limits())
    conn.execute("update pgqueue.task set alarmed_at = now()")
    told = run("tasks", "list").out
    assert "half open" in told
    assert f"probe: job {failed.id + 1}, fails everywhere since " in told


def test_one_task_is_shown_with_the_workers_that_know_it_and_its_last_hour(conn: Conn, run: Run) -> None:
    w = db.execute(conn, db.register_worker("host:1", ["q"], 30, {"tasks": ["t"]}))
    assert run("tasks", "show", "t", "--json").json() == {"task": "t", "workers": ["host:1"], "queues": []}
    id = enqueue(conn)
    db.execute(conn, db.complete(w, [(id, claim_one(conn, w).token)]))
    run("tasks", "set", "t", "breaker_rate=0.5")
    told = run("tasks", "show", "t")
    assert "circuit             closed" in told.out
    assert "workers             host:1" in told.out
    assert told.out.splitlines()[-1].split()[:3] == ["q", "t", "1"]
