"""Workers as real processes: killed, stopped, drained."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from pgqueue import App, cli, embedded, schema, serve
from pgqueue import database as db
from tests.support import Conn, enqueue, job, rows, value, wait_until
from tests.worker.running import Process

Start = Callable[..., Process]


def put(conn: Conn, task: str, count: int = 1, **payload: Any) -> list[int]:
    from tests.worker.apps import app

    options = {key: value for key, value in app.tasks[task].options.items() if key in ("max_attempts",)}
    if "retry" in app.tasks[task].options:
        options["retry"] = app.tasks[task].options["retry"].policy  # type: ignore[union-attr]
    if "timeout" in app.tasks[task].options:
        options["timeout_seconds"] = app.tasks[task].options["timeout"]
    made = db.execute(conn, db.enqueue_many("default", task, [payload] * count, **options))  # type: ignore[arg-type]
    return [one.id for one in made]


def running(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.job where status = 'running'"))


def effects(conn: Conn) -> int:
    return int(value(conn, "select count(*) from effect"))


def all_completed(conn: Conn, ids: list[int]) -> bool:
    done = value(conn, "select count(*) from pgqueue.job where id = any (%s) and status = 'completed'", ids)
    return bool(done == len(ids))


@pytest.mark.parametrize("task", ["write", "write_in_thread"])
def test_the_jobs_of_a_killed_worker_are_finished_by_another_with_their_effects_exactly_once(
    conn: Conn, start: Start, task: str
) -> None:
    victim = start("-c", "50", "--lease", "2").wait_ready()
    ids = put(conn, task, 50, seconds=0.4)
    wait_until(lambda: running(conn) == 50)
    victim.send(signal.SIGKILL)
    start("-c", "50", "--lease", "2")
    wait_until(lambda: all_completed(conn, ids), 60)
    found = rows(conn, "select job_id, count(*) as n from effect group by job_id")
    assert {each["job_id"]: each["n"] for each in found} == dict.fromkeys(ids, 1)


def test_a_worker_that_slept_past_its_lease_is_refused_says_so_and_goes_on(conn: Conn, start: Start) -> None:
    sleeper = start("--lease", "2").wait_ready()
    ids = put(conn, "write", 5, seconds=1)
    wait_until(lambda: running(conn) == 5)
    sleeper.send(signal.SIGSTOP)
    other = start("--lease", "2").wait_ready()
    wait_until(lambda: all_completed(conn, ids), 60)
    assert effects(conn) == 5
    other.send(signal.SIGTERM)
    assert other.wait() == 0
    sleeper.send(signal.SIGCONT)
    wait_until(lambda: sleeper.said("registering again"), 30)
    assert effects(conn) == 5
    assert {job(conn, id)["attempt"] for id in ids} == {2}
    again = put(conn, "quick")
    wait_until(lambda: all_completed(conn, again), 30)


@pytest.mark.parametrize(("task", "payload"), [("block_the_loop", {"seconds": 7}), ("hold_the_gil", {"length": 28})])
def test_a_handler_that_blocks_everything_for_longer_than_the_lease_keeps_it(
    conn: Conn, start: Start, task: str, payload: dict[str, Any]
) -> None:
    start("--lease", "2").wait_ready()
    (id,) = put(conn, task, **payload)
    wait_until(lambda: running(conn) == 1)
    began = time.monotonic()
    rival = start("--lease", "2").wait_ready()
    wait_until(lambda: all_completed(conn, [id]), 90)
    assert time.monotonic() - began > 2.5, "it did not block long enough to show anything"
    assert job(conn, id)["attempt"] == 1
    assert effects(conn) == 1
    assert not rival.said("workers were lost")


def test_a_handler_that_blocks_the_worker_past_its_time_out_loses_it_and_the_job_runs_elsewhere(
    conn: Conn, start: Start
) -> None:
    victim = start("--lease", "5", "--http", ":0").wait_ready()
    (base,) = probe_addresses(victim)
    id = enqueue(conn, {"seconds": 3600}, queue="default", task="block_the_loop", timeout_seconds=1)
    wait_until(lambda: effects(conn) == 1)
    wait_until(lambda: fetch(f"{base}/readyz")[0] == 503, 20)
    assert fetch(f"{base}/healthz")[0] == 200
    assert victim.wait(30) == -signal.SIGKILL
    assert "blocked by a handler past its time-out" in victim._log.read_text()
    start("--lease", "5")
    wait_until(lambda: job(conn, id)["attempt"] == 2, 30)
    assert (job(conn, id)["crashes"], job(conn, id)["error_type"]) == (1, "WorkerLost")


def test_a_worker_is_not_killed_while_a_handler_that_blocks_it_is_within_its_time(conn: Conn, start: Start) -> None:
    worker = start("-c", "2").wait_ready()
    hasty = enqueue(conn, {"seconds": 3600}, queue="default", task="nap", timeout_seconds=1, max_attempts=1)
    wait_until(lambda: running(conn) == 1)
    blocking = put(conn, "block_the_loop", seconds=16)
    wait_until(lambda: all_completed(conn, blocking), 40)
    wait_until(lambda: job(conn, hasty)["error"] == "timed out after 1 s")
    assert worker.process.poll() is None
    assert worker.said("the event loop stood still")


def test_sigterm_ends_a_worker_that_is_blocked_when_the_drain_time_is_over(conn: Conn, start: Start) -> None:
    worker = start("--drain", "0").wait_ready()
    put(conn, "block_the_loop", seconds=3600)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGTERM)
    assert worker.wait(40) == -signal.SIGKILL


def test_sigterm_lets_running_jobs_finish_and_claims_no_more(conn: Conn, start: Start) -> None:
    worker = start("-c", "2").wait_ready()
    ids = put(conn, "nap", 4, seconds=1.5)
    wait_until(lambda: effects(conn) == 2)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert sorted(job(conn, id)["status"] for id in ids) == ["completed", "completed", "pending", "pending"]
    assert rows(conn, "select 1 from pgqueue.worker") == []


@pytest.mark.parametrize("notified", [True, False])
def test_a_worker_that_an_operator_drains_finishes_what_runs_and_ends(conn: Conn, start: Start, notified: bool) -> None:
    worker = start("-c", "2").wait_ready()
    ids = put(conn, "nap", 4, seconds=1)
    wait_until(lambda: running(conn) == 2)
    if notified:
        conn.execute("select pgqueue.drain(id) from pgqueue.worker")
    else:  # the notification is lost
        conn.execute("update pgqueue.worker set drain_requested_at = now()")
    assert worker.wait() == 0
    assert worker.said("an operator wants this worker to end")
    finished = [job(conn, id)["status"] for id in ids].count("completed")
    assert finished == 2 if notified else finished >= 2
    assert {job(conn, id)["status"] for id in ids} <= {"completed", "pending"}


def test_a_notification_alone_does_not_end_a_worker(conn: Conn, start: Start) -> None:
    worker = start().wait_ready()
    conn.execute("select pg_notify('pgqueue', 'drain ' || id) from pgqueue.worker")
    ids = put(conn, "quick")
    wait_until(lambda: all_completed(conn, ids))
    assert worker.process.poll() is None


def test_a_worker_that_drains_keeps_its_leases_and_hears_of_cancellations(conn: Conn, start: Start) -> None:
    worker = start("-c", "2", "--lease", "2").wait_ready()
    (long,) = put(conn, "nap", seconds=6)
    (cancelled,) = put(conn, "until_told")
    wait_until(lambda: effects(conn) == 2)
    worker.send(signal.SIGTERM)
    wait_until(lambda: worker.said("draining"))
    rival = start("--lease", "2").wait_ready()
    assert db.execute(conn, db.cancel(cancelled)) == "running"
    wait_until(lambda: job(conn, cancelled)["status"] == "cancelled", 5)
    assert worker.wait() == 0
    assert (job(conn, long)["status"], job(conn, long)["attempt"]) == ("completed", 1)
    assert not rival.said("workers were lost")


def test_a_thread_that_a_handler_has_left_behind_does_not_keep_a_drained_worker(conn: Conn, start: Start) -> None:
    worker = start("--drain", "0.5").wait_ready()
    (id,) = put(conn, "nap_aside", seconds=3600)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert job(conn, id)["status"] == "pending"


@pytest.mark.parametrize("task", ["nap", "until_told"])
def test_what_does_not_finish_within_the_drain_time_is_handed_back_and_costs_no_attempt(
    conn: Conn, start: Start, task: str
) -> None:
    worker = start("--drain", "0.5").wait_ready()
    (id,) = put(conn, task, **({"seconds": 60} if task == "nap" else {}))
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert (job(conn, id)["status"], job(conn, id)["attempt"]) == ("pending", 0)


@pytest.mark.parametrize("task", ["nap", "nap_in_thread", "block_the_loop"])
def test_a_second_signal_ends_the_worker_at_once_and_its_jobs_are_handed_back(
    conn: Conn, start: Start, task: str
) -> None:
    worker = start("--drain", "60").wait_ready()
    (id,) = put(conn, task, seconds=30)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGINT)
    worker.send(signal.SIGTERM)
    asked = time.monotonic()
    assert worker.wait(10) == 70
    assert time.monotonic() - asked < 5  # a bound for a hang, on a slow machine
    assert (job(conn, id)["status"], job(conn, id)["attempt"]) == ("pending", 0)


@pytest.mark.parametrize("task", ["nap_once", "nap_once_in_thread", "nap_once_in_process"])
@pytest.mark.parametrize("signals", [1, 2])
def test_what_runs_at_most_once_is_not_handed_back_when_its_worker_is_stopped(
    conn: Conn, start: Start, task: str, signals: int
) -> None:
    worker = start("--drain", "0.5" if signals == 1 else "60").wait_ready()
    (id,) = put(conn, task, seconds=30)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGTERM)
    if signals == 2:
        worker.send(signal.SIGINT)
    assert worker.wait() == (0 if signals == 1 else 70)
    dead = job(conn, id)
    assert (dead["status"], dead["attempt"]) == ("dead", 1)
    assert "at most once" in dead["error"]


def test_a_thread_that_ignores_its_time_out_fails_and_its_worker_asks_to_be_started_again(
    conn: Conn, start: Start
) -> None:
    worker = start().wait_ready()
    (id,) = put(conn, "ignore_time", seconds=60)
    assert worker.wait(40) == 75
    dead = job(conn, id)
    assert (dead["status"], dead["error_type"]) == ("dead", "TimeoutError")
    assert worker.said("does not stop")


def test_a_thread_that_ignores_its_time_out_is_not_run_elsewhere_while_its_worker_drains(
    conn: Conn, start: Start
) -> None:
    worker = start("-c", "2").wait_ready()
    hung = enqueue(
        conn, {"seconds": 60}, queue="default", task="nap_in_thread", timeout_seconds=1, max_attempts=2,
        retry={"type": "fixed", "delay": 0},
    )  # fmt: skip
    (other,) = put(conn, "nap", seconds=9)
    wait_until(lambda: running(conn) == 2)
    start()
    wait_until(lambda: job(conn, hung)["attempt"] == 2, 40)
    assert worker.said("does not stop")
    wait_until(lambda: value(conn, "select count(*) from effect where job_id = %s", hung) == 2)
    _, second = rows(conn, "select at from effect where job_id = %s order by at", hung)
    assert second["at"] > job(conn, other)["finished_at"]
    assert worker.wait(20) == 75


@pytest.mark.parametrize("task", ["nap", "until_told"])
def test_a_running_job_learns_that_it_is_cancelled(conn: Conn, start: Start, task: str) -> None:
    start().wait_ready()
    (id,) = put(conn, task, **({"seconds": 60} if task == "nap" else {}))
    wait_until(lambda: running(conn) == 1)
    assert db.execute(conn, db.cancel(id, "changed my mind")) == "running"
    wait_until(lambda: job(conn, id)["status"] == "cancelled", 10)
    assert job(conn, id)["error"] == "changed my mind"


def test_an_idle_worker_is_woken_by_a_notification(conn: Conn, start: Start) -> None:
    start("--poll", "60").wait_ready()
    first = put(conn, "quick")
    wait_until(lambda: all_completed(conn, first), 10)
    listening = "select count(*) from pg_stat_activity where query = 'listen pgqueue' and datname = current_database()"
    wait_until(lambda: value(conn, listening) == 1)
    # Past the quick polls that follow work: only a notification can be that fast.
    wait_until(
        lambda: value(
            conn, "select max(query_start) < clock_timestamp() - interval '2 s' from pg_stat_activity"
            " where application_name = 'pgqueue worker' and datname = current_database()",
        ), 30,
    )  # fmt: skip
    second = put(conn, "quick")
    wait_until(lambda: all_completed(conn, second), 10)


def test_an_idle_worker_asks_at_most_once_a_second(tmp_path: Path) -> None:
    """Counted from outside, in a database of its own without autovacuum: claims, sweeps, heartbeats, pings, all of it.

    A rate cannot be staged: this one takes half a minute, in which nothing happens.
    """
    with ExitStack() as stack:
        server = stack.enter_context(embedded.temporary(settings={"autovacuum": "off", "fsync": "off"}))
        watcher = stack.enter_context(psycopg.connect(server.url(), autocommit=True))
        watcher.execute("create database idle")
        url = make_conninfo(server.url(), dbname="idle")
        schema.migrate(url)
        worker = Process(url, tmp_path / "log")
        stack.callback(worker.end)
        worker.wait_ready()

        def commits() -> int:
            return int(value(watcher, "select xact_commit from pg_stat_database where datname = 'idle'"))

        def passed(seconds: float) -> Callable[[], bool]:
            until = time.monotonic() + seconds
            return lambda: time.monotonic() > until

        wait_until(passed(6), 10)  # it asks more often at first: who enqueued before it came may commit now
        before, began = commits(), time.monotonic()
        wait_until(passed(30), 40)
        assert commits() - before <= time.monotonic() - began


def test_without_listening_polling_finds_the_job(conn: Conn, start: Start) -> None:
    start("--poll", "0.2", "--no-listen").wait_ready()
    ids = put(conn, "quick", 3)
    wait_until(lambda: all_completed(conn, ids), 20)
    listening = "application_name = 'pgqueue listen' and datname = current_database()"
    assert value(conn, f"select count(*) from pg_stat_activity where {listening}") == 0


def test_every_connection_may_be_terminated_again_and_again(conn: Conn, start: Start) -> None:
    worker = start("-c", "10", "--lease", "5").wait_ready()
    ids = put(conn, "write", 200, seconds=0.02)
    for _ in range(10):
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like 'pgqueue%' and datname = current_database() and pid <> pg_backend_pid()"
        )
        wait_for_progress(conn, ids)
    wait_until(lambda: all_completed(conn, ids), 60)
    assert effects(conn) == 200
    assert worker.process.poll() is None
    complaints = [line for line in worker.logged() if "not there" in line["message"]]
    assert len(complaints) <= 20, "it should say it once for each time"


def wait_for_progress(conn: Conn, ids: list[int]) -> None:
    count = "select count(*) from pgqueue.job where status = 'completed'"
    before = value(conn, count)
    wait_until(lambda: value(conn, count) > before or all_completed(conn, ids), 60)


def test_burst_ends_when_nothing_is_left(conn: Conn, start: Start) -> None:
    ids = put(conn, "quick", 100)
    worker = start("--burst", "--processes", "2")
    assert worker.wait() == 0
    assert all_completed(conn, ids)


def test_burst_runs_retries_that_are_due_and_does_not_wait_for_those_that_are_not(conn: Conn, start: Start) -> None:
    soon = enqueue(conn, queue="default", task="gone", max_attempts=3, retry={"type": "fixed", "delay": 0})
    later = enqueue(conn, queue="default", task="gone", max_attempts=3, retry={"type": "fixed", "delay": 60})
    assert start("--burst").wait() == 0
    assert (job(conn, soon)["status"], job(conn, soon)["attempt"]) == ("dead", 3)
    assert (job(conn, later)["status"], job(conn, later)["attempt"]) == ("scheduled", 1)


def test_burst_does_not_wait_for_a_limit_that_holds_for_an_hour(conn: Conn, start: Start) -> None:
    put(conn, "quick", 3)
    conn.execute("""select pgqueue.set_queue('default', '{"rate": 1, "rate_seconds": 3600, "rate_burst": 2}')""")
    assert start("--burst").wait() == 0
    statuses = "select array_agg(status::text order by id) from pgqueue.job"
    assert value(conn, statuses) == ["completed", "completed", "pending"]


def test_the_help_of_burst_says_that_it_does_not_wait_for_retries() -> None:
    shown = CliRunner().invoke(cli.app, ["work", "--help"], env={"COLUMNS": "200"}).output
    assert "no job can start now; jobs for later, retries that have to wait, and what" in " ".join(shown.split())


def test_max_jobs_ends_after_that_many(conn: Conn, start: Start) -> None:
    put(conn, "quick", 10)
    assert start("--max-jobs", "3", "-c", "1").wait() == 0
    assert value(conn, "select count(*) from pgqueue.job where status = 'completed'") == 3


def test_a_process_that_dies_is_started_again(conn: Conn, start: Start) -> None:
    worker = start("--processes", "2")
    wait_until(lambda: value(conn, "select count(*) from pgqueue.worker") == 2, 30)
    pid = value(conn, "select (info->>'pid')::int from pgqueue.worker order by id limit 1")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: value(conn, "select count(*) from pgqueue.worker") == 3, 30)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.said("starting it again")


@pytest.mark.parametrize(
    ("arguments", "app", "words"),
    [
        ((), "nope:app", "there is no module 'nope'"),
        (("--http", ":99998"), "tests.worker.apps:app", "--http takes host:port"),
    ],
)
def test_processes_that_are_wrongly_configured_end_all_with_one_sentence(
    conn: Conn, start: Start, arguments: tuple[str, ...], app: str, words: str
) -> None:
    worker = start("--processes", "2", *arguments, app=app)
    assert worker.wait() == 1
    (line,) = worker._log.read_text().splitlines()
    assert line.startswith("Error: ")
    assert words in line


@pytest.mark.parametrize(("code", "times"), [(75, 12), (1, 6)])
def test_a_process_that_asks_to_be_started_again_is_so_more_often_than_one_that_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, times: int
) -> None:
    starts = tmp_path / "starts"
    script = f"import sys; f = open({str(starts)!r}, 'a+'); f.write('x'); sys.exit({code} if f.tell() < 12 else 0)"
    monkeypatch.setattr(serve, "_this_command", lambda: ["-S", "-c", script])
    monkeypatch.setattr("random.uniform", lambda *_: 0)  # it waits for seconds between them
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert serve.supervise(1) == (0 if code == 75 else 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert len(starts.read_text()) == times


def test_a_worker_drains_when_its_terminal_hangs_up(conn: Conn, start: Start) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and children would inherit that
    worker = start()
    signal.signal(signal.SIGHUP, before)
    worker.wait_ready()
    (id,) = put(conn, "nap", seconds=1)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGHUP)
    assert worker.wait() == 0
    assert job(conn, id)["status"] == "completed"


def test_a_second_signal_reaches_a_worker_that_reloads(conn: Conn, start: Start) -> None:
    worker = start("--reload", "--drain", "60").wait_ready()
    (id,) = put(conn, "nap", seconds=60)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGTERM)
    wait_until(lambda: worker.said("draining"))
    worker.send(signal.SIGTERM)
    assert worker.wait(20) == 70
    assert (job(conn, id)["status"], job(conn, id)["attempt"]) == ("pending", 0)


def test_processes_drain_when_the_one_that_looked_after_them_is_killed(conn: Conn, start: Start) -> None:
    worker = start("--processes", "2").wait_ready()
    wait_until(lambda: value(conn, "select count(*) from pgqueue.worker") == 2, 30)
    ids = put(conn, "nap", seconds=3)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGKILL)
    wait_until(lambda: value(conn, "select count(*) from pgqueue.worker") == 0, 30)
    assert all_completed(conn, ids)
    assert sum("is gone" in line["message"] for line in worker.logged()) == 2


def test_reloading_and_several_processes_do_not_go_together(conn: Conn, start: Start) -> None:
    worker = start("--reload", "--processes", "2")
    assert worker.wait() == 1
    assert "--reload runs one process" in worker._log.read_text()


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_survive_a_hangup_that_nohup_ignores(conn: Conn, start: Start, processes: int) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        worker = start("--processes", str(processes))
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until(lambda: value(conn, "select count(*) from pgqueue.worker") == processes, 30)
    worker.send(signal.SIGHUP)
    ids = put(conn, "quick")
    wait_until(lambda: all_completed(conn, ids), 20)
    assert not worker.said("stopped after")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_the_probes_answer(conn: Conn, start: Start) -> None:
    worker = start("--http", ":0", "--drain", "30").wait_ready()
    line = next(line["message"] for line in worker.logged() if line["message"].startswith("probes at"))
    base = line.split()[2].removesuffix("/healthz,")
    (id,) = put(conn, "quick")
    wait_until(lambda: all_completed(conn, [id]), 20)
    assert fetch(f"{base}/healthz") == (200, "alive\n")
    wait_until(lambda: fetch(f"{base}/readyz")[0] == 200, 10)
    wait_until(
        lambda: 'pgqueue_attempts_total{outcome="completed",task="quick"} 1.0' in fetch(f"{base}/metrics")[1], 10
    )
    assert fetch(f"{base}/else")[0] == 404
    put(conn, "nap", seconds=3)
    wait_until(lambda: effects(conn) == 1)
    worker.send(signal.SIGTERM)
    wait_until(lambda: fetch(f"{base}/readyz")[0] == 503, 10)
    assert fetch(f"{base}/healthz")[0] == 200


def test_each_of_several_processes_has_probes_of_its_own(conn: Conn, start: Start, tmp_path: Path) -> None:
    beats = tmp_path / "beat"
    worker = start("--processes", "2", "--http", f":{free_ports(2)}", "--heartbeat-file", str(beats))
    wait_until(lambda: len(probe_addresses(worker)) == 2, 30)
    bases = probe_addresses(worker)
    wait_until(lambda: all(fetch(f"{base}/readyz")[0] == 200 for base in bases), 20)
    wait_until(lambda: {path.name for path in tmp_path.glob("beat*")} == {"beat.0", "beat.1"}, 20)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert not worker.said("starting it again")


def probe_addresses(worker: Process) -> set[str]:
    said = [line["message"] for line in worker.logged() if line["message"].startswith("probes at")]
    return {message.split()[2].removesuffix("/healthz,") for message in said}


def free_ports(count: int) -> int:
    """The first of so many in a row that are free just now."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))).getsockname()[1]
            with suppress(OSError, OverflowError):
                for port in range(first + 1, first + count):
                    stack.enter_context(closing(socket.create_server(("127.0.0.1", port))))
                return int(first)


def test_a_heartbeat_file_that_cannot_be_touched_is_said_once_and_ends_nothing(
    conn: Conn, start: Start, tmp_path: Path
) -> None:
    words = tmp_path / "words"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(words))
        systemd.settimeout(20)
        worker = start("--heartbeat-file", str(tmp_path / "no" / "beat"), NOTIFY_SOCKET=str(words))
        heard = [systemd.recv(100).decode() for _ in range(4)]
        assert heard == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]
        worker.send(signal.SIGTERM)
        wait_until(lambda: systemd.recv(100) == b"STOPPING=1")
    assert worker.wait() == 0
    assert len([line for line in worker.logged() if "cannot be touched" in line["message"]]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--http", ":99999"], "--http takes host:port, not ':99999'"),
        (["--http", "8080x"], "--http takes host:port"),
        (["--log-level", "loud"], "'loud' is not one of 'debug', 'info', 'warning', 'error', 'critical'"),
        (["--queues", "a=0"], "--queues: the weight of a must be a number from 1, not '0'"),
    ],
)
def test_a_flag_that_makes_no_sense_is_one_sentence(conn: Conn, start: Start, arguments: list[str], words: str) -> None:
    worker = start(*arguments)
    assert worker.wait() in (1, 2)
    said = worker._log.read_text()
    assert words in said
    assert "Traceback" not in said


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_job_of_a_task_that_nobody_knows_is_retried_and_dies_and_the_worker_lives(conn: Conn, start: Start) -> None:
    id = enqueue(conn, queue="default", task="gone", max_attempts=2, retry={"type": "fixed", "delay": 0})
    worker = start().wait_ready()
    wait_until(lambda: job(conn, id)["status"] == "dead", 20)
    assert (job(conn, id)["attempt"], job(conn, id)["error_type"]) == (2, "UnknownTask")
    good = put(conn, "quick")
    wait_until(lambda: all_completed(conn, good), 20)
    assert worker.process.poll() is None


def test_a_worker_without_a_database_waits_says_so_once_and_can_be_stopped(tmp_path: Path) -> None:
    worker = Process("postgresql://postgres@127.0.0.1:1/nowhere", tmp_path / "log", "--drain", "1")
    try:
        wait_until(lambda: worker.said("the database is not there"), 20)
        wait_until(lambda: len(worker.logged()) == 1)
        worker.send(signal.SIGTERM)
        assert worker.wait(20) == 0
        assert len([line for line in worker.logged() if "not there" in line["message"]]) == 1
    finally:
        worker.end()


def test_the_app_is_not_found_in_one_sentence(conn: Conn, start: Start) -> None:
    worker = start(app="no.such:app")
    assert worker.wait() == 1
    assert "there is no module 'no'" in worker._log.read_text()


def test_the_app_names_itself() -> None:
    from tests.worker import apps

    assert isinstance(apps.app, App)
