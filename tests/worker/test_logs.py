"""What the log lines of a worker look like from outside, and that an application's own logging is left alone."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from pgqueue import cli
from pgqueue import database as db
from pgqueue.logs import JobFields
from tests.support import Conn, enqueue, job, lose, worker
from tests.worker.running import ROOT, Process

Start = Callable[..., Process]
APP = "tests.worker.log_app:app"


def fields(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line.get(name) for name in ("job_id", "task", "queue", "attempt")}


def lines_about(worker: Process, words: str) -> list[dict[str, Any]]:
    return [line for line in worker.logged() if words in line["message"]]


@pytest.mark.parametrize(
    ("task", "words", "level"),
    [
        ("fails", "failed at attempt 1 of 2", "warning"),
        ("fails", "died at attempt 2 of 2", "error"),
        ("unstorable", "its result cannot be stored", "warning"),
        ("unstorable_in_process", "its result cannot be stored", "warning"),
        ("says", "a word from a coroutine", "warning"),
        ("says_in_thread", "a word from a thread", "warning"),
        ("says_in_process", "a word from a process", "warning"),
        ("breaks_a_hook", "a hook for completed raised", "error"),
    ],
)
def test_a_line_about_a_job_says_which_and_of_what_task_queue_and_attempt(
    conn: Conn, start: Start, task: str, words: str, level: str
) -> None:
    before = enqueue(conn, queue="default", task="says_nothing")
    id = enqueue(conn, queue="default", task=task, max_attempts=2, retry={"type": "fixed", "delay": 0})
    worker = start("--burst", "-c", "1", app=APP)
    assert worker.wait() == 0
    assert job(conn, before)["status"] == "completed"
    (line,) = lines_about(worker, words)
    attempt = 2 if "attempt 2" in words else 1
    assert fields(line) == {"job_id": id, "task": task, "queue": "default", "attempt": attempt}
    assert line["level"] == level
    assert line["logger"] == ("shop.orders" if "a word" in words else "pgqueue.worker")
    assert line["at"].endswith("Z")


def test_a_line_about_a_job_whose_handler_does_not_stop_says_which(conn: Conn, start: Start) -> None:
    id = enqueue(conn, queue="default", task="hangs", timeout_seconds=1, max_attempts=1)
    worker = start(app=APP)
    assert worker.wait() == 75
    (line,) = lines_about(worker, "does not stop")
    assert fields(line) == {"job_id": id, "task": "hangs", "queue": "default", "attempt": 1}


def test_lines_about_the_worker_itself_are_about_no_job(conn: Conn, start: Start) -> None:
    enqueue(conn, queue="default", task="says_nothing")
    worker = start("--max-jobs", "1", app=APP)
    assert worker.wait() == 0
    lines = [*lines_about(worker, " serves "), *lines_about(worker, "stopped after")]
    assert len(lines) == 2
    assert [set(line) for line in lines] == [{"at", "level", "message", "logger"}] * 2


def test_on_a_terminal_a_word_of_the_application_says_its_logger_and_job(conn: Conn, start: Start) -> None:
    id = enqueue(conn, queue="default", task="says")
    worker = start("--burst", "--log-format", "text", app=APP)
    assert worker.wait() == 0
    assert f" warning shop.orders: a word from a coroutine (job {id})\n" in worker._log.read_text()


def test_an_application_that_configures_logging_has_its_own_way(conn: Conn, start: Start) -> None:
    enqueue(conn, queue="default", task="says")
    worker = start("--burst", app=APP, LOG_APP_CONFIGURES="1")
    assert worker.wait() == 0
    assert "MINE a word from a coroutine" in worker._log.read_text().splitlines()
    assert lines_about(worker, "a word") == []
    assert len(lines_about(worker, "stopped after")) == 1


def test_importing_pgqueue_leaves_logging_alone() -> None:
    code = (
        "import logging; before = logging.lastResort, logging.getLogRecordFactory()\n"
        "import pgqueue, pgqueue.cli\n"
        "assert logging.root.handlers == [] and logging.getLogger('pgqueue').handlers == []\n"
        "assert before == (logging.lastResort, logging.getLogRecordFactory())"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_filter_keeps_what_a_record_says_itself() -> None:
    record = logging.makeLogRecord({"name": "shop", "task": "mine"})
    assert JobFields().filter(record)
    assert record.__dict__["task"] == "mine"
    assert not hasattr(record, "job_id"), "no job is running here"


def test_sweep_as_a_command_says_what_it_did(conn: Conn, dsn: str) -> None:
    id = enqueue(conn)
    worker_id = worker(conn)
    db.execute(conn, db.claim(worker_id, ["q"], 1))
    lose(conn, worker_id)
    enqueue(conn, task="late", expires_at=None)
    conn.execute("update pgqueue.job_live set expires_at = now() - interval '1 s' where task = 'late'")
    answer = CliRunner().invoke(cli.app, ["sweep", "-d", dsn])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout.startswith("1 workers lost; 1 of their jobs wait again, 0 died, 0 cancelled; 1 expired, 0 ")
    assert job(conn, id)["status"] == "pending"
    again = CliRunner().invoke(cli.app, ["sweep", "-d", dsn])
    assert again.stdout.startswith("0 workers lost; 0 of their jobs wait again")


def test_sweep_as_a_command_without_a_schema_is_one_sentence(make_database: Callable[[], str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgqueue", "sweep", "-d", make_database()],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
