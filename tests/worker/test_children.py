"""Handlers in child processes: real ones, that are really killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pgqueue import App, InvalidArgument, Settings, Worker, database
from pgqueue import app as app_module
from pgqueue.child import EXIT_ORPHANED
from tests import support
from tests.support import Conn, rows, wait_until
from tests.worker.running import ROOT, Process, run_burst

LOCATION = "tests.worker.child_app:app"


@pytest.fixture
async def tasks(dsn: str, conn: Conn) -> AsyncIterator[App]:
    """The app of child_app.py, on an empty queue."""
    app = app_module.load(LOCATION)
    app.use(dsn)
    yield app
    await app.aclose()


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgqueue.worker.GRACE_SECONDS", 0.2)


@asynccontextmanager
async def working(app: App, **settings: Any) -> AsyncIterator[Worker]:
    worker = Worker(app, Settings(**{"poll_seconds": 0.1, "concurrency": 3, **settings}))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(running, 60)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, 40)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def attempt_of(conn: Conn, id: int) -> dict[str, Any]:
    return rows(conn, "select * from pgqueue.job_attempt where job_id = %s order by token desc limit 1", id)[0]


async def test_arguments_and_result_make_the_round_trip(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("echo", order={"id": 7, "due": "2026-01-31"}, note="ünïcode").id
    await run_burst(tasks)
    assert support.job(conn, id)["result"] == {"id": 7, "next": "2026-02-01", "note": "ünïcode", "job": id}


async def test_a_child_serves_many_jobs_and_opens_its_resources_once(tasks: App, conn: Conn) -> None:
    ids = [tasks.enqueue(task).id for task in ("pid", "pid", "opened", "opened")]
    await run_burst(tasks, concurrency=1)
    first, second, *opened = (support.job(conn, id)["result"] for id in ids)
    assert first == second != os.getpid()
    assert opened == [1, 1]
    assert is_gone(first)


async def test_an_async_resource_is_refused_with_a_reason(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("wants_remote").id
    await run_burst(tasks)
    assert "the resource remote must be a plain function" in attempt_of(conn, id)["error"]


async def test_a_result_that_cannot_be_stored_does_not_undo_the_work(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("unstorable").id
    await run_burst(tasks)
    job = support.job(conn, id)
    assert (job["status"], job["result"]) == ("completed", None)


async def test_an_exception_comes_with_its_traceback(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("fail").id
    await run_burst(tasks)
    assert support.job(conn, id)["status"] == "dead"
    attempt = attempt_of(conn, id)
    assert (attempt["error_type"], attempt["error"]) == ("ValueError", "no such thing ?")
    assert "child_app.py" in attempt["traceback"]
    assert "raise ValueError" in attempt["traceback"]


async def test_outcomes_and_rules_are_those_of_the_task(tasks: App, conn: Conn) -> None:
    ids = {
        how: tasks.using("end", queue=how).enqueue(how=how).id  # a rate is that of a whole queue
        for how in ("snooze", "rate", "later", "fatal", "cancel", "key", "lookup", "exit")
    }
    await run_burst(tasks, concurrency=2, queues=dict.fromkeys(ids, 1))
    jobs = {how: support.job(conn, id) for how, id in ids.items()}
    assert {how: job["status"] for how, job in jobs.items()} == {
        "snooze": "scheduled", "rate": "scheduled", "later": "scheduled", "fatal": "dead", "cancel": "cancelled",
        "key": "dead", "lookup": "scheduled", "exit": "scheduled",
    }  # fmt: skip
    assert (jobs["snooze"]["attempt"], jobs["rate"]["attempt"], jobs["later"]["attempt"]) == (0, 0, 1)
    for how in ("snooze", "rate", "later", "lookup"):
        assert 3500 < (jobs[how]["run_at"] - jobs[how]["enqueued_at"]).total_seconds() < 3700, how
    assert attempt_of(conn, ids["exit"])["error_type"] == "SystemExit"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("kill", "killed by signal 9 (SIGKILL); if nobody did that, the machine was out of memory"),
        ("exit", "exited with code 3"),
    ],
)
async def test_a_crash_costs_one_job_one_attempt_and_nobody_else_anything(
    how: str, message: str, tasks: App, conn: Conn, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    steady = tasks.enqueue("steady", until=str(stop)).id
    async with working(tasks) as worker:
        await until(lambda: support.job(conn, steady)["progress"] is not None)
        crashed = tasks.enqueue("crash", how=how).id
        await until(lambda: support.job(conn, crashed)["status"] == "dead")
        after = tasks.enqueue("pid").id
        await until(lambda: support.job(conn, after)["status"] == "completed")
        stop.touch()
        await until(lambda: support.job(conn, steady)["status"] == "completed")
    assert worker.exit_code == 0
    attempt = attempt_of(conn, crashed)
    assert attempt["error_type"] == "ProcessDied"
    assert message in attempt["error"]
    job = support.job(conn, steady)
    assert (job["result"], job["attempt"]) == (job["progress"], 1)


async def test_a_child_that_died_in_idleness_costs_nobody_an_attempt(tasks: App, conn: Conn) -> None:
    first = tasks.enqueue("pid").id
    async with working(tasks, concurrency=1):
        await until(lambda: support.job(conn, first)["status"] == "completed")
        os.kill(support.job(conn, first)["result"], signal.SIGKILL)
        second = tasks.enqueue("pid").id
        await until(lambda: support.job(conn, second)["status"] == "completed")
    assert support.job(conn, second)["attempt"] == 1
    assert support.job(conn, second)["result"] != support.job(conn, first)["result"]


async def test_idle_children_above_one_are_ended(
    tasks: App, conn: Conn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.children.IDLE_SECONDS", 0.05)
    ids = [tasks.enqueue("steady", until=str(tmp_path / "stop")).id for _ in range(2)]
    async with working(tasks):
        await until(lambda: all(support.job(conn, id)["progress"] is not None for id in ids))
        (tmp_path / "stop").touch()
        await until(lambda: all(support.job(conn, id)["status"] == "completed" for id in ids))
        pids = [support.job(conn, id)["result"] for id in ids]
        await until(lambda: sum(is_gone(pid) for pid in pids) == 1)
        again = tasks.enqueue("pid").id
        await until(lambda: support.job(conn, again)["status"] == "completed")
        assert support.job(conn, again)["result"] in pids


async def test_a_handler_hears_that_its_time_is_up(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("polite").id
    worker = await run_burst(tasks)
    attempt = attempt_of(conn, id)
    assert (attempt["error_type"], attempt["error"]) == ("TimeoutError", "timed out after 1 s")
    assert [line["message"] for line in rows(conn, "select message from pgqueue.job_log")] == ["stopped: timeout, True"]
    assert worker.exit_code == 0


@pytest.mark.usefixtures("little_patience")
async def test_a_handler_that_ignores_its_time_out_is_killed_and_the_worker_works_on(tasks: App, conn: Conn) -> None:
    id = tasks.using("endless", timeout=1).enqueue().id
    after = tasks.enqueue("pid").id
    worker = await run_burst(tasks, concurrency=1)
    job, attempt = support.job(conn, id), attempt_of(conn, id)
    assert (job["status"], attempt["error_type"], attempt["error"]) == ("dead", "TimeoutError", "timed out after 1 s")
    assert is_gone(job["progress"])
    assert support.job(conn, after)["status"] == "completed"
    assert worker.exit_code == 0


@pytest.mark.usefixtures("little_patience")
async def test_a_cancelled_handler_that_does_not_listen_is_killed(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("endless").id
    async with working(tasks):
        await until(lambda: support.job(conn, id)["progress"] is not None)
        await asyncio.to_thread(tasks.cancel, id)
        await until(lambda: support.job(conn, id)["status"] == "cancelled")
        await until(lambda: is_gone(support.job(conn, id)["progress"]))


@pytest.mark.usefixtures("little_patience")
async def test_a_job_that_outlasts_the_drain_is_handed_back(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("endless").id
    async with working(tasks, drain_seconds=0) as worker:
        await until(lambda: support.job(conn, id)["progress"] is not None)
    job = support.job(conn, id)
    assert (job["status"], job["attempt"]) == ("pending", 0)
    assert is_gone(job["progress"])
    assert worker.exit_code == 0


async def test_too_much_memory_is_an_ordinary_failure_and_the_limit_is_lifted_afterwards(
    tasks: App, conn: Conn
) -> None:
    ids = [tasks.enqueue("hungry", size=size).id for size in (50_000_000, 300_000_000, 50_000_000)]
    await run_burst(tasks, concurrency=1)
    assert [support.job(conn, id)["result"] for id in ids] == [50_000_000, None, 50_000_000]
    assert attempt_of(conn, ids[1])["error_type"] == "MemoryError"


async def test_what_a_job_says_is_stored(tasks: App, conn: Conn) -> None:
    id = tasks.enqueue("talk").id
    await run_burst(tasks)
    job = support.job(conn, id)
    assert (job["result"], job["progress"]) == (42, {"half": True})
    assert rows(conn, "select name, result from pgqueue.job_step") == [{"name": "count", "result": 21}]
    said = rows(conn, "select level, message from pgqueue.job_log order by logged_at")
    assert [(line["level"], line["message"]) for line in said] == [("info", "first"), ("warning", "last")]


async def test_a_step_is_refused_when_the_lease_is_gone(tasks: App, conn: Conn, tmp_path: Path) -> None:
    id = tasks.enqueue("steps_after", until=str(tmp_path / "stop")).id
    async with working(tasks, queues={"default": 1}) as worker:
        await until(lambda: support.job(conn, id)["progress"] == "waiting")
        support.lose(conn, worker.worker_id)
        database.execute(conn, database.sweep())
        (tmp_path / "stop").touch()
        await until(lambda: worker.finished == 1)
    assert rows(conn, "select * from pgqueue.job_step") == []
    assert support.job(conn, id)["status"] == "dead"  # by the sweep: it had one attempt


async def test_jobs_enqueued_with_the_completion_come_out_of_the_child(tasks: App, conn: Conn) -> None:
    tasks.enqueue("parent")
    await run_burst(tasks)
    child = support.row(conn, "select * from pgqueue.job where queue = 'later'")
    assert (child["task"], child["status"], child["tags"]) == ("pid", "scheduled", ["a"])
    assert child["timeout_seconds"] == 5 * 86_400


def test_children_end_when_their_worker_is_killed(
    start: Callable[..., Process], dsn: str, conn: Conn, tmp_path: Path
) -> None:
    app = App(dsn)
    ids = [app.using(task).enqueue(**arguments).id for task, arguments in
           (("steady", {"until": str(tmp_path / "never")}), ("endless", {}))]  # fmt: skip
    app.close()
    worker = start("-c", "2", app=LOCATION)
    wait_until(lambda: all(support.job(conn, id)["progress"] is not None for id in ids), 40)
    pids = [support.job(conn, id)["progress"] for id in ids]
    assert not any(is_gone(pid) for pid in pids)
    worker.send(signal.SIGKILL)
    wait_until(lambda: all(is_gone(pid) for pid in pids))


async def test_middleware_stays_in_the_worker_and_sees_what_came_of_it(
    tasks: App, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def watch(job: Any, run: Any) -> Any:
        try:
            seen.append(await run())
        except Exception as error:
            seen.append(str(error))
            raise

    monkeypatch.setattr(tasks, "middleware", [watch])
    tasks.enqueue("hungry", size=5)
    tasks.enqueue("end", how="key")
    await run_burst(tasks, concurrency=1)
    assert seen == [5, "KeyError: 'x'"]


def crashed_twice(conn: Conn, id: int) -> int:
    conn.execute("update pgqueue.job_live set crashes = 2 where id = %s", [id])
    return id


@pytest.mark.parametrize("task", ["alone", "alone_in_thread", "pid", "alone_and_transactional"])
async def test_a_job_whose_workers_died_runs_alone(task: str, tasks: App, conn: Conn) -> None:
    ids = [crashed_twice(conn, tasks.enqueue(task).id) for _ in range(2)]
    await run_burst(tasks, concurrency=1)
    jobs = [support.job(conn, id) for id in ids]
    assert [job["status"] for job in jobs] == ["completed", "completed"]
    first, second = (job["result"] for job in jobs)
    assert len({first, second, os.getpid()}) == 3
    assert is_gone(first)
    if task == "alone_and_transactional":
        assert [row["pid"] for row in rows(conn, "select pid from written")] == [first, second]
        conn.execute("drop table written")


async def test_a_job_that_would_kill_its_worker_kills_a_child(tasks: App, conn: Conn) -> None:
    id = crashed_twice(conn, tasks.enqueue("alone_and_dead").id)
    await run_burst(tasks)
    assert attempt_of(conn, id)["error_type"] == "ProcessDied"
    dead = support.job(conn, id)
    assert dead["status"] == "dead", "it is the job: no other worker should try"
    assert "2 workers died with it before" in dead["error"]


async def test_an_async_job_that_runs_alone_is_cancelled_when_its_time_is_up(tasks: App, conn: Conn) -> None:
    id = crashed_twice(conn, tasks.using("alone_for_ever", timeout=1).enqueue().id)
    await run_burst(tasks)
    assert attempt_of(conn, id)["error"] == "timed out after 1 s"


async def test_a_worker_whose_app_has_no_name_refuses_tasks_that_run_in_processes(app: App) -> None:
    @app.task(runs_in="process")
    def nameless() -> None: ...

    with pytest.raises(InvalidArgument, match="task nameless runs in a process: start the worker with -A module:app"):
        await Worker(app).run()


def test_a_child_whose_worker_goes_before_it_says_hello_leaves_without_a_word() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", "from pgqueue.child import main; main()", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        ours.close()
        theirs.close()
        assert child.communicate(timeout=30)[1] == b""
    assert child.returncode == EXIT_ORPHANED
