from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli.conftest import Run
from tests.support import Conn, value

LEFT = "select count(*) from pg_database where datname like 'pgqueue\\_bench\\_%'"


def test_it_measures_in_a_database_of_its_own_which_is_gone_afterwards(run: Run, server_url: str, conn: Conn) -> None:
    before = value(conn, LEFT)
    answer = run("bench", "-d", server_url, "--seconds", "0.1")
    assert answer.code == 0, answer.err
    for what in ("round trip", "commit of a row", "enqueue, one by one", "drain, one worker", "enqueue to start"):
        assert what in answer.out
    assert "→" in answer.out
    assert "which is dropped at the end" in answer.err
    assert value(conn, LEFT) == before
    assert value(conn, "select count(*) from pgqueue.job") == 0  # nothing where we are


@pytest.fixture
def nobody(server_url: str, dsn: str) -> Iterator[str]:
    """A user who may not create databases."""
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute("create role bench_nobody login password 'x'")
        yield make_conninfo(dsn, user="bench_nobody", password="x")  # noqa: S106
        admin.execute("drop role bench_nobody")


def test_who_may_not_create_databases_is_told_so(run: Run, nobody: str) -> None:
    answer = run("bench", "-d", nobody)
    assert answer.code == 1
    assert "createdb" in answer.err
    assert "Traceback" not in answer.err


def test_json_has_the_settings_the_measures_and_what_limits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from pgqueue import bench

    found = bench.Found(print, {"server_version": "18"}, [{"measure": "round trip", "value": 1.0}], ["slow"])
    monkeypatch.setattr(bench, "run", lambda *_: found)
    assert json.loads(run("bench", "--json").out) == {
        "settings": {"server_version": "18"},
        "measures": [{"measure": "round trip", "value": 1.0}],
        "notes": ["slow"],
    }
