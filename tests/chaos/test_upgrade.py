"""A release goes in while everything works: `pgqueue migrate` under load, old and new workers side by side.

Nothing has been released yet, so the next release is made here: a copy of this one with another version, a revision
that changes the tables which every claim and every completion writes, and functions that differ. What is shown is what
docs/operations.md promises of the order of an upgrade: migrate first, then restart workers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import pgqueue
from pgqueue import schema
from pgqueue.errors import SchemaError
from tests.conftest import MakeDatabase
from tests.support import Conn, rows, value, wait_until
from tests.worker.running import ROOT, Process, processes
from tests.worker.test_processes import all_completed, put

Start = Callable[..., Process]
EFFECT = "create table effect (job_id bigint, attempt int, pid int, at timestamptz default clock_timestamp())"
REVISION = '''"""What the next release might need."""

from pgqueue.schema import run_script

revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(
        "alter table pgqueue.job add column next_release integer;"
        " alter table pgqueue.worker add column next_release integer not null default 7;"
        " alter table pgqueue.job_attempt add column next_release text;"
        " alter table pgqueue.queue add column next_release integer;"
        " create index next_release on pgqueue.job_dead (next_release)"
    )
'''


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    folder = tmp_path / "next"
    for name in ("pgqueue", "sql", "migrations"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "pgqueue" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{pgqueue.__version__}"', '"99.0"'))
    head = max(path.stem[:4] for path in (ROOT / "migrations" / "versions").glob("*.py"))
    (folder / "migrations" / "versions" / "9999_next.py").write_text(REVISION.format(head=head))
    for function in (folder / "sql" / "functions").glob("*.sql"):
        function.write_text(function.read_text().replace("\nbegin\n", "\nbegin\n  -- the next release\n", 1))
    return folder


@pytest.fixture
def fresh(make_database: MakeDatabase) -> str:
    dsn = make_database()
    schema.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(EFFECT)
    return dsn


@pytest.fixture
def start(fresh: str, tmp_path: Path) -> Iterator[Start]:
    yield from processes(fresh, tmp_path)


class Load(threading.Thread):
    """Enqueues by the functions of the release under test until it is told to stop; an error ends it."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._enough = threading.Event()
        self.ids: list[int] = []
        self.longest = 0.0  # seconds that a transaction took
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                while not self._enough.wait(0.03):
                    began = time.monotonic()
                    self.ids += put(conn, "write", 5, seconds=0.01) + put(conn, "quick", 5)
                    self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._enough.set()
        self.join(30)


def migrate(folder: Path, dsn: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pgqueue", "migrate", "-d", dsn], cwd=folder, env={"PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def completed(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.job_done"))


def test_a_release_goes_in_under_load_and_old_and_new_workers_work_side_by_side(
    fresh: str, start: Start, next_release: Path
) -> None:
    old = [start("-c", "10", "--lease", "10").wait_ready() for _ in range(2)]
    load = Load(fresh)
    load.start()
    with psycopg.connect(fresh, autocommit=True) as conn:
        wait_until(lambda: completed(conn) > 200, 60)
        assert "9999" in migrate(next_release, fresh)
        migrated_at = value(conn, "select clock_timestamp()")
        new = Process(fresh, next_release / "worker.log", "-c", "10", "--lease", "10", package=next_release)
        try:
            new.wait_ready()
            versions = "select distinct info ->> 'version' as v from pgqueue.worker where lost_at is null"
            assert {each["v"] for each in rows(conn, versions)} == {pgqueue.__version__, "99.0"}
            since = "select count(*) from effect where at > %s and pid = any (%s)"
            # The old and the new ones have each done something since.
            wait_until(lambda: value(conn, since, migrated_at, [each.pid for each in old]) > 50, 60)
            wait_until(lambda: value(conn, since, migrated_at, [new.pid]) > 20, 60)
            load.stop()
            wait_until(lambda: all_completed(conn, load.ids), 60)
            assert load.error is None
            assert len(load.ids) > 300
            effects = {each["job_id"]: each["n"] for each in rows(
                conn, "select job_id, count(*) as n from effect group by job_id")}  # fmt: skip
            tasks = rows(conn, "select id from pgqueue.job where task = 'write'")
            assert effects == {each["id"]: 1 for each in tasks}
            # Nobody lost anything, nothing failed, nobody complained.
            assert rows(conn, "select * from pgqueue.job_attempt") == []
            said = [line for each in (*old, new) for line in each.logged() if line["level"] in ("warning", "error")]
            assert [line["message"] for line in said] == []
            assert [each.process.poll() for each in (*old, new)] == [None] * 3
        finally:
            load.stop()
            new.end()


def test_the_old_package_does_not_take_the_new_functions_back(fresh: str, next_release: Path) -> None:
    migrate(next_release, fresh)
    with pytest.raises(SchemaError, match="newer than this"):
        schema.migrate(fresh)
    assert schema.status(fresh).installed_by == "99.0"


def test_a_worker_that_comes_before_the_schema_says_what_to_do(make_database: MakeDatabase, tmp_path: Path) -> None:
    early = Process(make_database(), tmp_path / "early.log")
    try:
        assert early.wait(60) not in (0, None)
        assert "run `pgqueue migrate`" in early._log.read_text()
    finally:
        early.end()
