"""`pgqueue queues …`, `pgqueue workers …`, `pgqueue stats`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from pgqueue import database as db
from tests.cli.conftest import Run
from tests.conftest import MakeDatabase
from tests.support import Conn, claim, claim_one, enqueue, lose, row, value, worker


def test_queues_say_how_deep_they_are_and_what_is_wrong(conn: Conn, run: Run) -> None:
    enqueue(conn, queue="a")
    enqueue(conn, queue="b")
    db.execute(conn, db.pause("b", reason="deploy"))
    told = run("queues", "list")
    assert told.code == 0
    lines = {line.split()[0]: line for line in told.out.splitlines()}
    assert lines["a"].endswith("no live worker")
    assert "paused: deploy" in lines["b"]
    assert [each["queue"] for each in run("queues", "list", "--json").json()] == ["a", "b"]


def test_settings_are_set_shown_and_reset(conn: Conn, run: Run) -> None:
    told = run("queues", "set", "q", "max_attempts=3", "retain_dead=60 days", 'retry={"type": "fixed", "delay": 9}')
    assert told.out == 'max_attempts: 3\nretain_dead: 60d\nretry: {"type": "fixed", "delay": 9}\n'
    assert row(conn, "select max_attempts, retain_dead from pgqueue.queue") == {
        "max_attempts": 3, "retain_dead": timedelta(days=60),
    }  # fmt: skip
    assert run("queues", "set", "q", "max_attempts=null", "--dry-run").out == "max_attempts: 3 → the default\n"
    assert run("queues", "set", "q", "max_attempts=null").out == "max_attempts: 5\n"
    assert run("queues", "show", "q", "--json").json()["max_attempts"] == 5
    refused = run("queues", "set", "q", "speed=9")
    assert (refused.code, "Known: max_attempts" in refused.err) == (1, True)
    assert run("queues", "set", "q", "speed").code == 2


def test_a_queue_is_paused_for_a_while_and_resumed(conn: Conn, run: Run) -> None:
    run("queues", "pause", "q", "--for", "2h", "--reason", "deploy")
    found = row(conn, "select paused_until - now() as left, paused_reason from pgqueue.queue")
    assert timedelta(minutes=119) < found["left"] <= timedelta(hours=2)
    assert re.search("paused for (1h59m|2h): deploy", run("queues", "list").out)
    assert run("queues", "resume", "q").code == 0
    again = run("queues", "resume", "q")
    assert (again.code, again.err) == (3, "q is not paused\n")


def test_limits_are_set_and_shown_and_a_rate_is_one_word(conn: Conn, run: Run) -> None:
    told = run("queues", "set", "q", "max_running=3", "rate=100/60s", "group_rate=5/s", "fair=true", "max_depth=9")
    assert told.out == "max_running: 3\nrate: 100/1m\ngroup_rate: 5/1s\nfair: yes\nmax_depth: 9\n"
    limits = "max_running, rate, rate_seconds, group_rate, group_rate_seconds, fair, max_depth"
    assert row(conn, f"select {limits} from pgqueue.queue") == {
        "max_running": 3, "rate": 100, "rate_seconds": 60, "group_rate": 5, "group_rate_seconds": 1, "fair": True,
        "max_depth": 9,
    }  # fmt: skip
    assert run("queues", "set", "q", "rate=7/2h", "--dry-run").out == "rate: 100/1m → 7/2h\n"
    assert run("queues", "set", "q", "rate_burst=4", "--json").json() == {"rate_burst": 4}
    shown = dict(line.split(maxsplit=1) for line in run("queues", "show", "q").out.splitlines() if line[:1].islower())
    assert shown["rate"] == "100/1m, 4 at once"
    assert "group_on_retry" not in shown, "no group has a slot to hold"
    assert run("queues", "show", "q", "--json").json()["rate_seconds"] == 60
    assert run("queues", "set", "q", "rate=null").out == "rate: unset\n"
    assert run("queues", "set", "q", "rate=100/fortnight").code == 2
    assert run("queues", "set", "q", "max_running=0").code == 1


def test_queues_that_let_nothing_start_say_so(conn: Conn, run: Run) -> None:
    db.execute(conn, db.set_queue("q", {"max_running": 1, "max_depth": 2, "rate": 1, "rate_seconds": 3600}))
    w = worker(conn)
    for _ in range(2):
        enqueue(conn)
    claim(conn, w, 5)
    enqueue(conn)
    (_, line) = run("queues", "list").out.splitlines()
    assert "all 1 that may run do, nothing starts before +1h" in line or "nothing starts before +59m" in line
    assert line.endswith("full at 2")


def test_groups_are_listed_those_with_the_longest_line_first(conn: Conn, run: Run) -> None:
    assert run("queues", "groups", "nope").code == 3
    db.execute(conn, db.set_queue("q", {"group_max_running": 1}))
    assert "no group is limited" in run("queues", "groups", "q").err
    for group in "abbb":
        enqueue(conn, group=group)
    claim(conn, worker(conn), 9)
    db.execute(conn, db.pause_group("q", "a", reason="unpaid"))
    told = run("queues", "groups", "q")
    assert [line.split() for line in told.out.splitlines()[1:]] == [
        ["b", "1", "0", "2"],
        ["a", "1", "0", "0", "paused:", "unpaid"],
    ]
    assert [each["group_key"] for each in run("queues", "groups", "q", "--json").json()] == ["b", "a"]
    assert [each["blocked"] for each in run("queues", "groups", "q", "-g", "b", "--json").json()] == [2]
    assert "there may be more" in run("queues", "groups", "q", "-n", "1").err


def test_a_group_is_paused_and_resumed(conn: Conn, run: Run) -> None:
    id = enqueue(conn, group="a b")
    told = run("queues", "pause", "q", "--group", "a b", "--reason", "unpaid")
    assert told.out == "group a b of q is paused: pgqueue queues resume q --group 'a b'\n"
    w = worker(conn)
    assert claim(conn, w) == []
    assert value(conn, "select paused_at is null from pgqueue.queue where queue = 'q'")
    told = run("queues", "resume", "q", "-g", "a b", "--json")
    assert told.json() == {"queue": "q", "group_key": "a b", "paused": False}
    assert claim_one(conn, w).id == id
    again = run("queues", "resume", "q", "-g", "a b")
    assert (again.code, again.err) == (3, "group a b of q is not paused\n")


def test_what_a_rate_limited_handler_brought_upon_a_queue_can_be_ended(conn: Conn, run: Run) -> None:
    enqueue(conn)
    w = worker(conn)
    held = claim_one(conn, w)
    db.execute(conn, db.throttle(w, [(held.id, held.token)], [600]))
    assert run("queues", "resume", "q").out == "q goes on\n"
    assert run("queues", "resume", "q").code == 3


def test_a_queue_that_does_not_exist_is_exit_code_3(run: Run) -> None:
    assert run("queues", "show", "nope").code == 3


# ------------------------------------------------------------------------------------------------ workers


def test_workers_are_listed_with_their_state_and_shown_with_their_jobs(conn: Conn, run: Run) -> None:
    info = {"version": "1.2.3", "concurrency": 7, "tasks": ["t"]}
    w = db.execute(conn, db.register_worker("host:1", ["q"], 30, info))
    silent = worker(conn, ["r"])
    lose(conn, silent)
    id = enqueue(conn)
    claim_one(conn, w)
    found = {each["id"]: each["state"] for each in run("workers", "list", "--json").json()}
    assert found == {w: "alive", silent: "silent"}
    assert [each["id"] for each in run("workers", "list", "-q", "r", "--json").json()] == [silent]
    told = run("workers", "show", w)
    assert "1.2.3" in told.out
    assert told.out.splitlines()[-1].split()[:3] == [str(id), "q", "t"]
    assert run("workers", "show", 10**9).code == 3


def test_workers_are_drained_by_id_queue_or_all(conn: Conn, run: Run) -> None:
    one, two, three = worker(conn, ["a"]), worker(conn, ["b"]), worker(conn, ["b"])

    def drained() -> list[int]:
        return list(
            value(conn, "select array_agg(id order by id) from pgqueue.worker where drain_requested_at is not null")
            or []
        )

    assert run("workers", "drain").code == 2
    assert run("workers", "drain", one, "--all").code == 2
    assert run("workers", "drain", one, "--dry-run").out == f"would drain worker {one}\n"
    assert drained() == []
    assert run("workers", "drain", one).code == 0
    assert drained() == [one]
    assert run("workers", "drain", "--queue", "b").code == 2, "nobody can answer"
    assert run("workers", "drain", "--queue", "b", "--yes").code == 0
    assert drained() == [one, two, three]
    assert {each["state"] for each in run("workers", "list", "--json").json()} == {"draining"}
    assert run("workers", "drain", one, 10**9).code == 3


# -------------------------------------------------------------------------------------------------- stats


def test_stats_show_what_ended(conn: Conn, run: Run) -> None:
    assert "nothing ended" in run("stats").err
    w = worker(conn)
    for _ in range(3):
        enqueue(conn)
    done = claim(conn, w, 3)
    db.execute(conn, db.complete(w, [(each.id, each.token) for each in done[:2]]))
    db.execute(conn, db.fail(w, [db.Failure(done[2].id, done[2].token, "boom")]))
    (found,) = run("stats", "--json").json()
    assert (found["task"], found["completed"], found["failed"]) == ("t", 2, 1)
    assert 0 < found["run_p50_seconds"] <= found["run_p99_seconds"] < 60
    for by in ("task", "queue", "minute", "hour"):
        told = run("stats", "--by", by, "--since", "3h")
        assert (told.code, len(told.out.splitlines())) == (0, 2)
    assert run("stats", "--task", "other", "--json").json() == []
    assert run("stats", "--since", "yesterday").code == 2


# ---------------------------------------------------------------------------------- what would be needed


@pytest.mark.parametrize("command", ["jobs list", "dead groups", "queues list", "workers list", "stats", "jobs show 1"])
def test_without_a_schema_every_command_says_what_to_run(make_database: MakeDatabase, run: Run, command: str) -> None:
    told = run(*command.split(), "-d", make_database())
    assert (told.code, told.out) == (1, "")
    assert "run `pgqueue migrate`" in told.err


def test_without_the_right_the_role_that_has_it_is_named(conn: Conn, dsn: str, run: Run) -> None:
    name = "pgqueue_test_nobody"
    if not value(conn, "select to_regrole(%s)", name):
        conn.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
    url = psycopg.conninfo.make_conninfo(dsn, user=name)
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        pytest.skip("this server lets nobody in without a password")
    told = run("queues", "list", "-d", url)
    assert (told.code, "grant pgqueue_operator" in told.err) == (1, True)


def test_a_reader_can_look_at_everything_but_payloads(conn: Conn, connect: Callable[..., Conn]) -> None:
    w = worker(conn)
    enqueue(conn, {"card": "secret"})
    claim_one(conn, w)
    reader = connect()
    reader.execute("set role pgqueue_reader")
    calls = [db.queue_status(), db.queue_stats(), db.worker_status(), db.running_job(), db.recent_failure(),
             db.list_jobs({}), db.list_dead({}), db.dead_groups({})]  # fmt: skip
    seen = [db.execute(reader, call) for call in calls]
    assert "secret" not in repr(seen)
    assert db.execute(reader, db.count_jobs({})) == 1
    for call in (db.job_detail(1), db.attempt(1), db.log_line(1), db.step(1)):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute(reader, call)
