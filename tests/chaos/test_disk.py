"""The disk of the data is full for a while: a small file system of its own, which needs root on Linux."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import embedded, schema
from tests.chaos.run import small_disk
from tests.support import Conn, rows, value, wait_until
from tests.worker.running import Process
from tests.worker.test_faults import EFFECT, assert_each_effect_once
from tests.worker.test_processes import all_completed, put


def refused(conn: Conn, ids: list[int]) -> bool:
    try:
        ids += put(conn, "write", 100, seconds=0.02)
    except psycopg.errors.DiskFull:
        return True
    return False


def test_while_the_disk_is_full_everybody_waits_and_afterwards_all_is_done_once(tmp_path: Path) -> None:
    with embedded.temporary(settings={"autovacuum": "off"}) as server, small_disk(server) as disk:
        if isinstance(disk, str):
            pytest.skip(disk)
        with psycopg.connect(server.url(), autocommit=True) as conn:
            conn.execute(sql.SQL("create tablespace small location {}").format(str(disk.folder)))
            conn.execute("create database small tablespace small")
        url = make_conninfo(server.url(), dbname="small")
        schema.migrate(url)
        worker = Process(url, tmp_path / "worker.log", "--lease", "5", "--poll", "0.2")
        try:
            worker.wait_ready()
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute(EFFECT)
                ids = put(conn, "write", 100, seconds=0.02)
                with disk.full():
                    wait_until(lambda: refused(conn, ids), 60)
                    wait_until(lambda: worker.said("could not extend file"), 60)
                wait_until(lambda: all_completed(conn, ids), 240)
                assert_each_effect_once(conn, ids)
                assert value(conn, "select count(*) from pgqueue.job") == len(ids)
                # A handler that could not write has failed as any other does.
                errors = "select distinct error_type from pgqueue.job_attempt where outcome = 'failed'"
                assert {each["error_type"] for each in rows(conn, errors)} <= {"DiskFull"}
                others = "select count(*) from pgqueue.job_attempt where outcome not in ('lost', 'failed')"
                assert value(conn, others) == 0
            assert worker.process.poll() is None
        finally:
            worker.end()
