"""A password in the database URL is nowhere to be read: not in logs, not in arguments, not in what fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.chaos.run import descendants
from tests.support import Conn, rows, value, wait_until
from tests.worker.proxy import Proxy
from tests.worker.running import Process
from tests.worker.test_processes import all_completed, put

PASSWORD = "open-sesame-4711"  # noqa: S105


@contextmanager
def started(dsn: str, log: Path, *arguments: str, command: str = "work", app: str) -> Iterator[Process]:
    process = Process(dsn, log, "--log-level", "debug", *arguments, command=command, app=app, PYTHONASYNCIODEBUG="1")
    try:
        yield process
    finally:
        process.end()


@pytest.mark.parametrize("url", [False, True])
def test_a_password_is_neither_logged_nor_an_argument_whatever_fails(
    dsn: str, conn: Conn, tmp_path: Path, url: bool
) -> None:
    conn.execute("drop table if exists effect")  # a handler that writes into it fails, in the database
    with Proxy(dsn) as proxy:
        secret = make_conninfo(proxy.conninfo, password=PASSWORD)
        if url:
            parts = dict(each.split("=", 1) for each in secret.split())
            secret = (
                f"postgresql://{parts.get('user', '')}:{PASSWORD}@{parts['host']}:{parts['port']}/{parts['dbname']}"
            )
        work, cron = tmp_path / "work.log", tmp_path / "cron.log"
        with (
            started(secret, work, "--lease", "2", "--poll", "0.2", app="tests.worker.apps:app") as worker,
            started(secret, cron, "--poll", "0.5", command="cron", app="tests.worker.recurring_app:app") as ticker,
        ):
            worker.wait_ready()
            ticker.wait_ready()
            ids = put(conn, "quick", 5)
            put(conn, "write", 1, seconds=0)
            put(conn, "nap_once_in_process", 1, seconds=0)
            wait_until(lambda: all_completed(conn, ids))
            wait_until(lambda: value(conn, "select count(*) from pgqueue.job_attempt") >= 2)
            family = [pid for each in (worker, ticker) for pid in (each.pid, *descendants(each.pid))]
            assert len(family) >= 4, "worker, heartbeat, child, ticker"
            for pid in family:
                assert PASSWORD.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            proxy.drop()
            wait_until(lambda: worker.said("not there") and ticker.said("not there"))
            proxy.heal()
            wait_until(lambda: worker.said("is back"), 40)
        told = work.read_text() + cron.read_text()
        assert "UndefinedTable" in told or "does not exist" in told
        assert PASSWORD not in told
        stored = rows(conn, "select error, traceback from pgqueue.job_attempt")
        assert stored
        assert not any(PASSWORD in str(each) for each in stored)
        found = rows(conn, "select query, application_name from pg_stat_activity where pid <> pg_backend_pid()")
        assert not any(PASSWORD in str(each) for each in found)
    assert PASSWORD not in str(sorted(os.environ.items()))
