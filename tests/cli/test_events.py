from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from pgqueue import database as db
from tests.cli.conftest import Run
from tests.support import Conn, enqueue, wait_until


@pytest.fixture(autouse=True)
def off_afterwards(conn: Conn) -> Iterator[None]:
    yield
    db.execute(conn, db.set_events(False))


def test_tail_says_how_to_switch_events_on(run: Run) -> None:
    told = run("jobs", "tail")
    assert (told.code, "pgqueue events on" in told.err) == (1, True)
    assert run("events", "on").code == 2, "nobody can answer"
    assert run("events", "on", "--yes").code == 0
    assert run("jobs", "tail", "--for", "0").code == 0
    assert run("events", "off").code == 0


def test_tail_follows_what_happens_and_filters(conn: Conn, dsn: str, run: Run) -> None:
    run("events", "on", "--yes")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pgqueue", "jobs", "tail", "--jsonl", "-q", "email"],
        env={**os.environ, "DATABASE_URL": dsn}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
    reader.start()
    try:
        # It has begun when it sees what we do.
        wait_until(lambda: bool(lines) or not enqueue(conn, queue="email"), 30)
        enqueue(conn, queue="other")
        id = enqueue(conn, queue="email")
        db.execute(conn, db.cancel(id))
        wait_until(lambda: any('"cancelled"' in line for line in lines))
    finally:
        process.kill()
        process.wait()
        reader.join(5)
        process.stdout.close()
    told = [json.loads(line) for line in lines]
    assert {each["queue"] for each in told} == {"email"}
    assert [each["status"] for each in told if each["job_id"] == id] == ["pending", "cancelled"]
