from __future__ import annotations

import pytest

from tests.cli.conftest import Run
from tests.support import Conn, enqueue


def test_why_tells_the_reason_what_else_holds_and_what_changes_it(conn: Conn, run: Run) -> None:
    conn.execute("select pgqueue.pause('q', reason => 'deploy')")
    id = enqueue(conn)
    told = run("why", id)
    lines = told.out.splitlines()
    assert told.code == 0
    assert lines[0].startswith("queue q has been paused for ")
    assert lines[1] == "  → pgqueue queues resume q"
    assert lines[2] == "also: no live worker serves queue q"
    assert [each["reason"] for each in run("why", id, "--json").json()] == ["paused", "no_worker", "waiting"]
    assert run("why", "--queue", "q").out.startswith("queue q has been paused for ")


@pytest.mark.parametrize("arguments", [(), ("1", "--queue", "q"), ("abc",)])
def test_why_wants_one_job_or_one_queue(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("why", *arguments).code == 2


def test_why_of_nothing_is_exit_code_3(run: Run) -> None:
    assert run("why", 10**12).code == 3
    assert run("why", "--queue", "nope").code == 3
