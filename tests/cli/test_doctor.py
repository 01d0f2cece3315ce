from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import __version__, cli_doctor
from pgqueue import database as db
from tests.cli.conftest import Run
from tests.conftest import MakeDatabase
from tests.support import Conn, enqueue

OURS = ("schema", "clock", "pooler", "encryption")


def only(monkeypatch: pytest.MonkeyPatch, *found: dict[str, Any]) -> None:
    """What the database answers: its own checks have their own tests."""
    monkeypatch.setattr(db, "doctor", lambda: db.Call("select 1", [], lambda _: list(found)))


def said(name: str, verdict: str) -> dict[str, Any]:
    return {"name": name, "verdict": verdict, "finding": "so it is", "remedy": "do something"}


@pytest.mark.parametrize(
    ("verdicts", "code"), [((), 0), (("ok",), 0), (("warning", "ok"), 4), (("broken", "warning"), 5)]
)
def test_the_exit_code_is_that_of_the_worst_finding(
    run: Run, monkeypatch: pytest.MonkeyPatch, verdicts: tuple[str, ...], code: int
) -> None:
    only(monkeypatch, *(said("x", verdict) for verdict in verdicts))
    assert run("doctor").code == code
    assert run("doctor", "--json").code == code


def test_findings_are_shown_with_their_remedies(conn: Conn, run: Run) -> None:
    enqueue(conn)
    told = run("doctor")
    assert told.code == 5
    lines = told.out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("✗ workers"))
    assert "no live worker serves it" in lines[at]
    assert lines[at + 1].strip() == "→ pgqueue work -A module:app --queues q"
    found = run("doctor", "--json").json()
    assert {each["name"] for each in found} >= {*OURS, "workers", "autovacuum", "roles"}
    assert {each["verdict"] for each in found if each["name"] in OURS} == {"ok"}


def test_without_a_schema_the_doctor_says_so_and_goes_on(make_database: MakeDatabase, run: Run) -> None:
    told = run("doctor", "--json", "-d", make_database())
    found = {each["name"]: each for each in told.json()}
    assert told.code == 5
    assert found["schema"]["remedy"] == found["checks"]["remedy"] == "pgqueue migrate"
    assert found["clock"]["verdict"] == "ok"


def test_functions_of_another_version_are_a_warning(conn: Conn, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    conn.execute("update pgqueue.installed set functions_sha256 = 'x' || functions_sha256")
    try:
        told = run("doctor", "--json")
    finally:
        conn.execute("update pgqueue.installed set functions_sha256 = substr(functions_sha256, 2)")
    assert told.code == 4
    assert told.json()[0]["remedy"] == "pgqueue migrate"
    assert __version__ in told.json()[0]["finding"]


def test_a_clock_that_is_off_is_a_warning(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    there = datetime.now(UTC) + timedelta(minutes=3)
    monkeypatch.setattr(db, "clock", lambda: db.Call("select 1", [], lambda _: there))
    told = run("doctor", "--json")
    assert (told.code, told.json()[1]["verdict"]) == (4, "warning")
    assert "3m" in told.json()[1]["finding"] or "2m59s" in told.json()[1]["finding"]


def test_a_pooler_in_between_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    monkeypatch.setattr(db, "backend_pid", lambda: db.Call("select 1", [], lambda _: 1))
    told = run("doctor", "--json")
    assert (told.code, "--listen-url" in told.json()[2]["remedy"]) == (4, True)


@pytest.mark.parametrize(
    ("host", "mode", "verdict"),
    [
        ("", "", "ok"), ("/var/run", "", "ok"), ("127.0.0.1", "", "ok"), ("db.example.org", "", "warning"),
        ("db.example.org", "require", "warning"), ("db.example.org", "verify-full", "ok"),
    ],
)  # fmt: skip
def test_a_connection_to_elsewhere_should_check_who_answers(host: str, mode: str, verdict: str) -> None:
    class Stub:
        class info:  # noqa: N801 - as psycopg's
            pass

        class pgconn:  # noqa: N801
            ssl_in_use = True

    stub: Any = Stub()
    stub.info.host = host
    conninfo = f"dbname=x{' sslmode=' + mode if mode else ''}"
    assert cli_doctor._encryption(stub, conninfo)["verdict"] == verdict
