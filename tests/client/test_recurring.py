"""Declaring recurring jobs, and making them at run time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqueue import INJECTED, App, Job, Retry
from pgqueue import app as app_module
from pgqueue.errors import ConfigError, InvalidArgument, WrongStatus
from tests.sql.recurring import definition, state
from tests.support import Conn, job, rows


class Client: ...


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    made = App(dsn, name="shop")
    yield made
    made.close()


def test_a_declaration_says_what_the_database_needs(app: App) -> None:
    @app.recurring(
        "0 9 * * 1-5", "eu", kwargs={"limit": 3}, tz="Europe/Berlin", catch_up="all", catch_up_max=5, overlap="skip",
        jitter=30, expires_in=timedelta(hours=1), starts_at=datetime(2027, 1, 1, tzinfo=UTC), tags=["x"], priority=9,
    )  # fmt: skip
    @app.task(queue="reports", max_attempts=3, retry=Retry.fixed(5), timeout=30, priority=1, key="args")
    def report(region: str, limit: int = 10, job: Job = INJECTED) -> None: ...

    declared, faults = app.recurring.declared()
    assert faults == {}
    assert declared == {
        "report": {
            "task": "report", "queue": "reports", "payload": {"region": "eu", "limit": 3}, "cron": "0 9 * * 1-5",
            "timezone": "Europe/Berlin", "catch_up": "all", "catch_up_max": 5, "overlap": "skip",
            "jitter": "30.000000 seconds", "expires_in": "3600.000000 seconds",
            "starts_at": "2027-01-01T00:00:00+00:00",
            "tags": ["x"], "priority": 9, "max_attempts": 3, "retry": {"type": "fixed", "delay": 5, "jitter": "none"},
            "timeout_seconds": 30,
        }
    }  # fmt: skip
    report("eu")  # is the task still


def test_its_group_is_as_the_task_says_or_its_own(app: App) -> None:
    @app.recurring("@daily", "eu")
    @app.recurring("@daily", "us", name="of-its-own", group="americas")
    @app.recurring("@daily", "as", name="computed", group=lambda region: f"of {region}")
    @app.task(group=lambda region: f"region:{region}")
    def report(region: str) -> None: ...

    declared, faults = app.recurring.declared()
    assert faults == {}
    assert {name: each["group_key"] for name, each in declared.items()} == {
        "report": "region:eu", "of-its-own": "americas", "computed": "of as",
    }  # fmt: skip


def test_a_group_that_cannot_be_told_stops_no_other(app: App, conn: Conn) -> None:
    @app.recurring("@daily", "eu", group=lambda region: {"us": "x"}[region])
    @app.task
    def report(region: str) -> None: ...

    @app.recurring("@daily")
    @app.task
    def fine() -> None: ...

    declared, faults = app.recurring.declared()
    assert faults == {"report": "the group of report cannot be told from its arguments: KeyError('eu')"}
    assert declared["report"] == {}
    with pytest.raises(InvalidArgument, match="a group is a text, not 2"):
        app.recurring.set("x", "@daily", report.s("eu"), group=lambda region: len(region))  # type: ignore[arg-type,return-value]
    assert app.recurring.set("x", "@daily", report.s("eu"), group="g") == "added"
    assert definition(conn, "x")["group_key"] == "g"
    assert app.recurring.set("x", "@daily", report.s("eu")) == "changed"
    assert definition(conn, "x")["group_key"] is None


def test_several_stand_on_one_task_if_they_have_names(app: App) -> None:
    @app.recurring("every 90s", name="report-us", kwargs={"region": "us"})
    @app.recurring("@daily", "eu")
    @app.task
    async def report(region: str) -> None: ...

    declared, _ = app.recurring.declared()
    assert {name: each["payload"] for name, each in declared.items()} == {
        "report": {"region": "eu"},
        "report-us": {"region": "us"},
    }
    with pytest.raises(InvalidArgument, match=r"two recurring jobs named 'report': give one of them .*name="):
        app.recurring("@hourly", "us")(report)


BAD: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("0 0 30 2 *", "eu"), {}, "not a cron expression"),
    (("every 0s", "eu"), {}, "between 1 second"),
    (("@daily", "eu"), {"tz": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
    (("@daily", "eu"), {"catch_up": "some"}, "catch_up must be skip, latest or all, not 'some'"),
    (("@daily", "eu"), {"overlap": "yes"}, "overlap must be allow, skip or replace"),
    (("@daily", "eu"), {"starts_at": datetime(2027, 1, 1)}, "starts_at must be a datetime with a time zone"),
    (("@daily", "eu"), {"jitter": "long"}, "jitter must be seconds"),
    (("@daily", "eu"), {"run_at": datetime(2027, 1, 1, tzinfo=UTC)}, "no option run_at"),
    (("@daily",), {}, "missing the argument 'region'"),
    (("@daily", "eu", "us", "x"), {}, "at most 2 positional arguments"),
    (("@daily",), {"kwargs": {"regoin": "eu"}}, "did you mean 'region'"),
    (("@daily", 1j), {}, "which JSON does not have"),
    ((90, "eu"), {}, "a schedule is a text"),
]


@pytest.mark.parametrize(("arguments", "options", "told"), BAD, ids=lambda each: str(each)[:40])
def test_what_makes_no_sense_is_refused_where_it_is_declared(
    app: App, arguments: tuple[Any, ...], options: dict[str, Any], told: str
) -> None:
    @app.task
    async def report(region: str, limit: int = 3, job: Job = INJECTED) -> None: ...

    with pytest.raises(InvalidArgument, match=told):
        app.recurring(*arguments, **options)(report)
    assert app.recurring.declarations == {}


def test_a_resource_may_be_declared_later(app: App) -> None:
    @app.recurring("@daily", 1)
    @app.task
    async def ping(n: int, client: Client) -> None: ...

    @app.resource
    def client() -> Client:
        return Client()

    assert app.recurring.declared()[0]["ping"]["payload"] == {"n": 1}


def test_it_stands_above_the_task_of_the_same_app(app: App) -> None:
    def plain() -> None: ...

    with pytest.raises(InvalidArgument, match=r"stands above the @app.task"):
        app.recurring("@daily")(plain)  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match=r"stands above the @app.task"):
        app.recurring("@daily")(App().task(plain))


def test_an_app_is_known_by_its_name_or_by_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "located.py").write_text("from pgqueue import App\nmine = App()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert app_module.load("located").recurring.source == "located:mine"
    assert app_module.load("located:mine").recurring.source == "located:mine"
    assert App(name="shop").recurring.source == "shop"
    with pytest.raises(ConfigError, match="needs a name"):
        _ = App().recurring.source


# -------------------------------------------------------------------------------------------------- at run time


def test_a_definition_can_be_made_changed_run_paused_and_removed_at_run_time(app: App, conn: Conn) -> None:
    @app.task(queue="reports", max_attempts=3)
    def report(region: str) -> None: ...

    make = app.recurring.set
    assert make("customer-7", "0 2 * * *", report.s("eu"), tz="Asia/Kathmandu", overlap="skip", priority=2) == "added"
    made = definition(conn, "customer-7")
    assert (made["task"], made["queue"], made["payload"], made["max_attempts"]) == (
        "report",
        "reports",
        {"region": "eu"},
        3,
    )
    assert (made["cron"], made["timezone"], made["overlap"], made["owner"]) == (
        "0 2 * * *", "Asia/Kathmandu", "skip", "operator",
    )  # fmt: skip
    # Made anew as it stands there: what is not said any more is the default again.
    assert make("customer-7", "every 90s", report.s("us")) == "changed"
    made = definition(conn, "customer-7")
    assert (made["every"], made["cron"], made["timezone"], made["overlap"], made["priority"]) == (
        timedelta(seconds=90), None, "UTC", "allow", 0,
    )  # fmt: skip
    handle = app.recurring.run_now("customer-7")
    assert job(conn, handle.id)["payload"] == {"region": "us"}
    app.recurring.pause("customer-7", reason="moved")
    assert state(conn, "customer-7") == "paused"
    assert app.recurring.resume("customer-7") is True
    assert app.recurring.remove("customer-7") is True
    assert app.recurring.remove("customer-7") is False
    app.close()


async def test_the_same_from_async_code(app: App, conn: Conn) -> None:
    recurring = app.recurring
    assert await recurring.aset("a", "@daily", app.using("t", queue="q").s(n=1), catch_up="skip") == "added"
    assert definition(conn)["payload"] == {"n": 1}
    handle = await recurring.arun_now("a")
    assert await handle.astatus() == "pending"
    await recurring.apause("a", until=datetime.now(UTC) + timedelta(hours=1))
    assert await recurring.aresume("a") is True
    assert await recurring.aremove("a") is True
    await app.aclose()


def test_it_is_part_of_the_callers_transaction(app: App, conn: Conn, dsn: str) -> None:
    with psycopg.connect(dsn) as mine:
        app.recurring.set("a", "@daily", app.using("t").s(), conn=mine)
        assert rows(conn, "select 1 from pgqueue.recurring_job") == []
        mine.rollback()
    assert rows(conn, "select 1 from pgqueue.recurring_job") == []


def test_a_run_that_would_overlap_says_which_job_is_live(app: App, conn: Conn) -> None:
    app.recurring.set("a", "@daily", app.using("t").s(), overlap="skip")
    id = app.recurring.run_now("a").id
    with pytest.raises(WrongStatus, match=f"job {id} of recurring job 'a' is not finished"):
        app.recurring.run_now("a")
    app.close()
