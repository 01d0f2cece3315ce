"""`pgqueue top`: what keys do, and the real thing on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from pgqueue import cli_top
from pgqueue import database as db
from pgqueue.cli_top import Seen, View
from tests.cli.conftest import Run
from tests.support import Conn, claim, claim_one, enqueue, value, wait_until, worker


def drawn(view: View, height: int = 40) -> str:
    console = Console(width=160, height=height, file=io.StringIO())
    with console.capture() as captured:
        console.print(view.draw(height))
    return captured.get()


def queue_row(queue: str, **what: object) -> dict[str, object]:
    return {"queue": queue, "pending": 0, "running": 0, "scheduled": 0, "dead": 0, "oldest_waiting_seconds": None,
            "workers": 1, "paused": False, **what}  # fmt: skip


def seen(at: float, *queues: dict[str, object], done: dict[str, int] | None = None, error: str = "") -> Seen:
    return Seen(at, list(queues), [], [], [], done or {}, error)


def names(view: View) -> list[str]:
    return [row["queue"] for row in view.queues()]


def test_s_goes_through_the_columns_to_sort_by() -> None:
    view = View()
    a, b = queue_row("a", pending=1, dead=9), queue_row("b", pending=5, oldest_waiting_seconds=7)
    view.show(seen(0, a, b, done={"a": 0, "b": 0}))
    view.show(seen(10, a, b, done={"a": 50, "b": 20}))
    orders = {}
    for _ in cli_top.SORTS:
        orders[view.sort] = names(view)
        view.press("s")
    assert orders == {
        "queue": ["a", "b"], "pending": ["b", "a"], "rate": ["a", "b"], "oldest": ["b", "a"], "dead": ["a", "b"],
    }  # fmt: skip
    assert view.sort == "queue"
    assert "7.0 completed a second" in drawn(view)


def test_slash_filters_and_escape_ends_it() -> None:
    view = View()
    view.show(seen(0, queue_row("email"), queue_row("billing")))
    for key in "/mailx\x7f\r":
        view.press(key)
    assert (view.filter, view.typing, names(view)) == ("mail", False, ["email"])
    for key in "/q":
        view.press(key)
    assert not view.over, "a letter of the filter, not a key"
    view.press("\x1b")
    assert names(view) == ["billing", "email"]
    view.press("q")
    assert view.over


def test_a_database_that_is_gone_leaves_the_last_look_and_says_so() -> None:
    view = View()
    view.show(seen(0, queue_row("email")))
    view.show(seen(1, error="connection refused"))
    assert names(view) == ["email"]
    assert "connection refused" in drawn(view)
    view.show(seen(2, queue_row("email")))
    assert "connection refused" not in drawn(view)


def test_many_queues_fit_the_screen() -> None:
    view = View()
    view.show(seen(0, *(queue_row(f"q{n:04}") for n in range(1000))))
    told = drawn(view, height=30)
    assert len(told.splitlines()) <= 30
    assert "more" in told


def test_once_prints_what_there_is(conn: Conn, run: Run) -> None:
    w = db.execute(conn, db.register_worker("host:1", ["q"], 30, {"concurrency": 4}))
    for _ in range(3):
        enqueue(conn)
    failed, _ = claim(conn, w, 2)
    db.execute(conn, db.fail(w, [db.Failure(failed.id, failed.token, "no [red]answer[/red]", "TimeoutError")]))
    told = run("top", "--once")
    assert told.code == 0
    for text in ("1 worker, 1 of 4 slots busy", "TimeoutError: no", "running longest"):
        assert text in told.out
    assert run("top").code == 2, "this is no terminal"


@pytest.fixture
def terminal(dsn: str, conn: Conn) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    enqueue(conn, queue="email")
    enqueue(conn, queue="billing")
    claim_one(conn, worker(conn, ["email"]), ["email"])
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 140))
    # The terminal says how wide it is, not what started the tests.
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pgqueue", "top", "--every", "0.2"],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**environ, "DATABASE_URL": dsn, "TERM": "xterm"},
    )  # fmt: skip
    before = termios.tcgetattr(theirs)
    yield ours, process
    if process.poll() is None:
        process.kill()
    process.wait()
    assert termios.tcgetattr(theirs)[3] == before[3], "the terminal is as it was"
    os.close(ours)
    os.close(theirs)


def read_until(terminal: int, text: str, seconds: float = 20) -> str:
    told = ""
    deadline = time.monotonic() + seconds
    while text not in told:
        assert time.monotonic() < deadline, told
        if select.select([terminal], [], [], 0.1)[0]:
            told += os.read(terminal, 65536).decode(errors="ignore")
    return told


def test_on_a_terminal_it_refreshes_filters_and_quits(
    conn: Conn, terminal: tuple[int, subprocess.Popen[bytes]]
) -> None:
    screen, process = terminal
    read_until(screen, "billing")
    os.write(screen, b"s")
    read_until(screen, "by pending")
    os.write(screen, b"/mail\r")
    read_until(screen, "by pending, /mail")
    os.write(screen, b"h")
    read_until(screen, "held still")
    os.write(screen, b"h")
    enqueue(conn, queue="email_later")
    read_until(screen, "email_later")
    os.write(screen, b"q")
    assert process.wait(10) == 0


def test_a_queue_is_paused_only_after_a_yes_and_goes_on_likewise(
    conn: Conn, terminal: tuple[int, subprocess.Popen[bytes]]
) -> None:
    screen, process = terminal
    paused = "select array_agg(queue) from pgqueue.queue_status where paused"
    read_until(screen, "billing")
    os.write(screen, b"jjp")  # the second by name
    read_until(screen, "Pause email?")
    os.write(screen, b"n")
    os.write(screen, b"kkp")
    read_until(screen, "Pause billing?")
    assert value(conn, paused) is None
    os.write(screen, b"y")
    wait_until(lambda: value(conn, paused) == ["billing"])
    read_until(screen, "paused")
    os.write(screen, b"p")
    read_until(screen, "Resume billing?")
    os.write(screen, b"y")
    wait_until(lambda: value(conn, paused) is None)
    os.write(screen, b"q")
    assert process.wait(10) == 0
