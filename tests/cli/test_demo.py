from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue import demo
from tests.cli.test_migrate import pgqueue
from tests.support import Conn, value, wait_until


@pytest.fixture
def admin(server_url: str) -> Iterator[Conn]:
    with psycopg.connect(server_url, autocommit=True) as conn:
        yield conn
        conn.execute("drop database if exists pgqueue_demo with (force)")


def start_demo(server_url: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pgqueue", "demo", "-d", server_url]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_the_demo_shows_what_became_of_each_job(server_url: str, admin: Conn, tmp_path: Path) -> None:
    shown = pgqueue("demo", "-d", server_url, cwd=tmp_path, COLUMNS="100")
    assert shown.returncode == 0, shown.stderr
    expected = {
        "enqueued twice": ("completed", 1),
        "high priority": ("completed", 1),
        "delayed by 2 s": ("completed", 1),
        "fails twice first": ("completed", 3),
        "always fails": ("dead", 2),
        "cancelled in time": ("cancelled", 0),
        "its worker was killed": ("completed", 2),
        "of a flow": ("completed", 1),
        "after those three": ("completed", 1),
    }
    for story, (status, attempts) in expected.items():
        assert re.search(rf"{story} +{status} +{attempts} ", shown.stdout), shown.stdout
    # Of three seconds the beginning of the first one may have passed when the definition was made.
    assert len(re.findall(r"count_stock +recurring: count-stock +completed +1 ", shown.stdout)) in (2, 3)
    delayed = re.search(r"delayed by 2 s .*\+(\d+\.\d+) s", shown.stdout)
    assert delayed
    assert float(delayed[1]) >= 2
    assert "last start" in shown.stdout
    hints = shown.stdout.split("Try next:\n")[1].splitlines()
    assert len(hints) == 2
    for hint in hints:  # on the server that was used, and with no file that only a checkout has
        program, conninfo, *_ = shlex.split(hint)
        assert program == "psql"
        assert conninfo_to_dict(conninfo)["dbname"] == "pgqueue_demo"
        assert "password" not in conninfo_to_dict(conninfo)
    with psycopg.connect(make_conninfo(server_url, dbname="pgqueue_demo"), autocommit=True) as conn:
        assert conn.execute("select count(*) from pgqueue.job_live").fetchone() == (0,)
        rolled_back = conn.execute("select count(*) from pgqueue.job where payload @> '{\"order_id\": 666}'")
        assert rolled_back.fetchone() == (0,)


def test_a_demo_whose_database_goes_says_what_happened(server_url: str, admin: Conn) -> None:
    running = start_demo(server_url)
    wait_until(lambda: value(admin, "select count(*) from pg_stat_activity where datname = 'pgqueue_demo'") > 0)
    admin.execute("drop database pgqueue_demo with (force)")
    _, told = running.communicate(timeout=60)
    assert running.returncode == 1
    assert told == "Error: another demo is running, or somebody dropped pgqueue_demo: try again\n"


def test_a_reader_who_has_seen_enough_is_no_failure(server_url: str, admin: Conn) -> None:
    read, write = os.pipe()
    running = start_demo(server_url, stdout=write)
    os.close(write)
    os.close(read)
    _, told = running.communicate(timeout=60)
    assert (running.returncode, told) == (0, "")


def test_the_hints_name_the_checkouts_readme_only_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not any("README" in hint for hint in demo._try_next(None))
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "README.md").touch()
    assert any("sql/README.md" in hint for hint in demo._try_next(None))


def test_the_hints_show_no_password() -> None:
    hints = demo._try_next("postgresql://me:hunter2@db.example.org:5433/shop?sslmode=require")
    assert "psql 'user=me dbname=pgqueue_demo host=db.example.org port=5433 sslmode=require' -c" in hints[0]
    assert "hunter2" not in "".join(hints)


def test_the_help_says_that_a_database_is_made_anew(tmp_path: Path) -> None:
    assert "the database pgqueue_demo is made anew" in pgqueue("demo", "--help", cwd=tmp_path).stdout
