"""The ticker, in this process and as real processes."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import signal
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqueue import App, Ticker, TickerSettings, embedded, schema
from pgqueue import database as db
from tests.sql.recurring import backdate, definition, set_recurring, state
from tests.support import Conn, job, row, rows, value, wait_until
from tests.worker.proxy import Proxy
from tests.worker.running import Process, processes, run_burst

Start = Callable[..., Process]
RECURRING = "tests.worker.recurring_app:app"
HOUR = timedelta(hours=1)


@asynccontextmanager
async def ticking(app: App, **settings: Any) -> AsyncIterator[Ticker]:
    ticker = Ticker(app, TickerSettings(**settings))
    task = asyncio.create_task(ticker.run())
    started = asyncio.create_task(ticker.started.wait())
    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        started.cancel()
        await task
    try:
        yield ticker
    finally:
        ticker.stop()
        await task


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


def fired(conn: Conn, name: str = "a") -> int:
    query = "select count(*) from pgqueue.recurring_run where name = %s and outcome = 'enqueued'"
    return int(value(conn, query, name))


def poke(conn: Conn) -> None:
    """What any change does."""
    conn.execute("select pg_notify('pgqueue', 'recurring changed')")


# ---------------------------------------------------------------------------------------------- in this process


async def test_what_is_due_becomes_a_job_that_knows_its_due_time(app: App, conn: Conn) -> None:
    app.name = "shop"

    @app.recurring("every 1h", "eu", name="a")
    @app.task(queue="r")
    async def report(region: str) -> str:
        return region

    async with ticking(app):
        await until(lambda: state(conn) == "scheduled")
        backdate(conn, HOUR)
        poke(conn)
        await until(lambda: fired(conn) == 1)
    made = job(conn, definition(conn)["last_job_id"])
    assert (made["queue"], made["payload"]) == ("r", {"region": "eu"})
    await run_burst(app, queues={"r": 1})
    assert job(conn, made["id"])["result"] == "eu"


async def test_a_change_wakes_a_sleeping_ticker(app: App, conn: Conn) -> None:
    async with ticking(app, poll_seconds=60):
        set_recurring(conn, task="t", every="1 s")
        await until(lambda: fired(conn) >= 2)
        db.execute(conn, db.pause_recurring("a"))
        seen = fired(conn)
        db.execute(conn, db.resume_recurring("a"))
        await until(lambda: fired(conn) > seen)


async def test_without_notifications_a_change_is_seen_at_the_next_poll(app: App, conn: Conn) -> None:
    async with ticking(app, poll_seconds=0.1, listen=False):
        set_recurring(conn, task="t", every="1 s")
        await until(lambda: fired(conn) >= 1)


async def test_a_ticker_sleeps_until_something_is_due(app: App, conn: Conn, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = db.due_recurring

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(*arguments)

    monkeypatch.setattr(db, "due_recurring", counted)
    set_recurring(conn, task="t", every="1 day")
    async with ticking(app) as ticker:
        await until(lambda: state(conn) == "scheduled")
        before = looks
        await asyncio.sleep(2)  # what must not happen has no state to wait for
        assert looks - before <= 2
        assert ticker.ready


@pytest.mark.parametrize("offset", [3600.0, -3600.0])
async def test_a_ticker_whose_own_clock_is_an_hour_off_changes_nothing(
    app: App, conn: Conn, monkeypatch: pytest.MonkeyPatch, offset: float
) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=offset)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(UTC).replace(tzinfo=None)

    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + offset)
    for module in ("ticker", "cron"):
        monkeypatch.setattr(f"pgqueue.{module}.datetime", Wrong)
    set_recurring(conn, task="t", every="30 minutes", catch_up="all")
    set_recurring(conn, "b", task="t", every="1 s")
    async with ticking(app):
        await until(lambda: fired(conn, "b") >= 2)
        assert fired(conn) <= 1
        following = definition(conn)["next_run_at"]
        at = value(conn, "select clock_timestamp()")
        assert at < following <= at + timedelta(minutes=30)


async def test_one_bad_definition_is_said_once_the_others_go_on_and_it_heals_by_itself(
    app: App, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    set_recurring(conn, "bad", task="t", cron="0 9 * * *", timezone="Mars/Olympus")
    set_recurring(conn, "worse", task="t", cron="0 0 30 2 *")
    set_recurring(conn, "good", task="t", every="1 s")
    with caplog.at_level(logging.INFO, "pgqueue.ticker"):
        async with ticking(app), ticking(app):
            await until(lambda: fired(conn, "good") >= 2)
            assert (state(conn, "bad"), state(conn, "worse")) == ("broken", "broken")
            assert "there is no time zone 'Mars/Olympus'" in definition(conn, "bad")["broken_reason"]
            backdate(conn, timedelta(minutes=1), "bad")  # looked at again, broken still
            poke(conn)
            await until(lambda: definition(conn, "bad")["recheck_at"] > value(conn, "select clock_timestamp()"))
            # The zone is there again, and nobody has touched the definition by a function of ours.
            conn.execute("update pgqueue.recurring_job set timezone = 'UTC' where name = 'bad'")
            backdate(conn, timedelta(minutes=1), "bad")
            poke(conn)
            await until(lambda: state(conn, "bad") == "scheduled")
    said = [each.getMessage() for each in caplog.records if " bad " in each.getMessage()]
    assert len([each for each in said if "is broken" in each]) == 1
    assert len([each for each in said if "works again" in each]) == 1


async def test_a_task_that_no_worker_knows_is_broken_until_one_does(app: App, conn: Conn) -> None:
    stranger = db.execute(conn, db.register_worker("w", ["r"], info={"tasks": ["x"]}))
    set_recurring(conn, task="gone", queue="r", every="1 s")
    async with ticking(app):
        await until(lambda: state(conn) == "broken")
        assert definition(conn)["broken_reason"] == "no worker of its queue knows the task 'gone'"
        assert fired(conn) == 0
        db.execute(conn, db.retire_worker(stranger))
        db.execute(conn, db.register_worker("w", ["r"], info={"tasks": ["gone"]}))
        backdate(conn, timedelta(minutes=1))
        poke(conn)
        await until(lambda: fired(conn) >= 1)
        assert state(conn) == "scheduled"


async def test_an_enqueue_that_is_refused_breaks_that_definition_only(app: App, conn: Conn) -> None:
    set_recurring(conn, "big", task="t", every="1 s", payload={"a": "x" * 2000})
    set_recurring(conn, "good", task="t", every="1 s")
    db.execute(conn, db.set_defaults({"payload_max_bytes": 1024}))
    async with ticking(app):
        await until(lambda: fired(conn, "good") >= 2)
        assert state(conn, "big") == "broken"
        assert "at most 1024" in definition(conn, "big")["broken_reason"]


async def test_a_row_that_somebody_holds_does_not_stop_the_others_nor_is_it_asked_for_in_a_loop(
    app: App, conn: Conn, connect: Callable[..., Conn], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0
    tick = db.tick

    def counted(*arguments: Any) -> Any:
        nonlocal ticks
        ticks += arguments[0] == "held"
        return tick(*arguments)

    monkeypatch.setattr(db, "tick", counted)
    set_recurring(conn, "held", task="t", every="1 s")
    set_recurring(conn, "good", task="t", every="1 s")
    holder = connect(autocommit=False)
    holder.execute("select 1 from pgqueue.recurring_job where name = 'held' for update")
    async with ticking(app):
        await until(lambda: fired(conn, "good") >= 3)
        assert 0 < ticks < 40
        assert fired(conn, "held") == 0
        holder.rollback()
        await until(lambda: fired(conn, "held") >= 1)


async def test_a_declaration_that_cannot_be_stored_is_said_and_the_others_are_there(
    app: App, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    class Late:
        pass

    @app.recurring("@daily", name="late")
    @app.recurring("@daily", 1, name="good")
    @app.task
    async def work(n: int, late: Late) -> None: ...  # nobody ever declares this resource

    set_recurring(conn, "late", task="t", every="1 day")
    with caplog.at_level(logging.INFO, "pgqueue.ticker"):
        app.name = "shop"
        async with ticking(app):
            pass
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert len(said) == 2
    assert all("is not what the code says" in each for each in said)


async def test_a_broken_connection_is_made_anew_and_nothing_is_missed(app: App, conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 s", catch_up="all")
    async with ticking(app):
        await until(lambda: fired(conn) >= 1)
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'pgqueue ticker%'"
            " and datname = current_database()"
        )
        before = fired(conn)
        await until(lambda: fired(conn) >= before + 2)
    assert gaps(conn) == []


async def test_a_database_that_does_not_answer_for_a_while_costs_nothing_but_time(
    dsn: str, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    set_recurring(conn, task="t", every="1 s", catch_up="all")
    with Proxy(dsn) as proxy:
        app = App(proxy.conninfo)
        async with ticking(app):
            await until(lambda: fired(conn) >= 1)
            proxy.drop()
            await until(lambda: any("the database is not there" in each.getMessage() for each in caplog.records))
            proxy.heal()
            before = fired(conn)
            await until(lambda: fired(conn) >= before + 2)
    assert gaps(conn) == []


def gaps(conn: Conn) -> list[dict[str, Any]]:
    """Due times of a definition `every 1 s` that are missing between its first and its last."""
    return rows(
        conn,
        "select n.name, s as due_at"
        " from (select name, min(due_at), max(due_at) from pgqueue.recurring_run group by name) n,"
        " generate_series(n.min, n.max, interval '1 second') s"
        " where not exists (select 1 from pgqueue.recurring_run r where r.name = n.name and r.due_at = s)",
    )


# ------------------------------------------------------------------------------------------------ as a process


def test_the_server_crashes_twice_and_no_due_time_is_missed_or_doubled(tmp_path: Path) -> None:
    with (
        embedded.temporary(settings={"fsync": "on"}) as server,
        contextmanager(processes)(server.url(), tmp_path) as start,
    ):
        schema.migrate(server.url())
        tickers = [start(app=RECURRING, command="cron").wait_ready() for _ in range(2)]
        for _ in range(2):
            with psycopg.connect(server.url(), autocommit=True) as conn:
                set_recurring(conn, task="t", every="1 s", catch_up="all")
                before = fired(conn)
                wait_until(lambda conn=conn, before=before: fired(conn) > before)  # type: ignore[misc]
            server.restart("immediate")
        with psycopg.connect(server.url(), autocommit=True) as conn:
            before = fired(conn)
            wait_until(lambda: fired(conn) >= before + 2, 30)
            assert gaps(conn) == []
            assert value(conn, "select count(*) from pgqueue.job") == fired(conn)
        for ticker in tickers:
            ticker.send(signal.SIGTERM)
            assert ticker.wait() == 0


def test_a_ticker_reconciles_ticks_answers_probes_and_stops_cleanly(conn: Conn, start: Start) -> None:
    ticker = start("--http", "127.0.0.1:0", app=RECURRING, command="cron").wait_ready()
    found = {each["name"]: each for each in rows(conn, "select * from pgqueue.recurring_job")}
    assert set(found) == {"report", "by-distance"}
    assert {each["source"] for each in found.values()} == {"tests.worker.recurring_app:app"}
    assert (found["report"]["cron"], found["report"]["timezone"]) == ("0 9 * * 1-5", "Europe/Berlin")
    assert found["report"]["payload"] == {"region": "eu"}
    (line,) = (each["message"] for each in ticker.logged() if "probes at" in each["message"])
    url = line.removeprefix("probes at ").split("/healthz")[0]
    for path in ("/healthz", "/readyz", "/metrics"):
        with urllib.request.urlopen(url + path, timeout=5) as answer:  # noqa: S310
            assert answer.status == 200
    ticker.send(signal.SIGTERM)
    assert ticker.wait() == 0
    assert ticker.said("stopped after 0 jobs")
    left = "application_name like 'pgqueue tick%%' and datname = current_database()"
    assert value(conn, f"select count(*) from pg_stat_activity where {left}") == 0


def test_a_ticker_without_a_schema_or_without_rights_says_so_and_fails(conn: Conn, start: Start, dsn: str) -> None:
    ticker = start("-d", psycopg.conninfo.make_conninfo(dsn, options="-c role=pgqueue_reader"), app=RECURRING,
                   command="cron")  # fmt: skip
    assert ticker.wait() == 1
    ticker = start("-d", psycopg.conninfo.make_conninfo(dsn, dbname="postgres"), app=RECURRING, command="cron")
    assert ticker.wait() == 1


def test_a_worker_ticks_too_if_it_is_asked_to(conn: Conn, start: Start) -> None:
    worker = start("--cron", "-q", "r", app=RECURRING).wait_ready()
    wait_until(lambda: rows(conn, "select 1 from pgqueue.recurring_job where planned") != [])
    backdate(conn, timedelta(days=1), "by-distance")
    poke(conn)
    wait_until(lambda: row(conn, STATUS, "by-distance")["last_status"] == "completed")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


STATUS = "select last_status from pgqueue.recurring_status where name = %s"


@pytest.mark.timeout(300)
def test_ten_tickers_killed_at_random_moments_make_exactly_one_job_for_each_of_a_thousand_due_times(
    conn: Conn, start: Start
) -> None:
    """Time passes by backdating: definitions and record alike are moved back by whole seconds, so that many due times
    lie behind at once, and whoever has computed something before has computed it for another version."""
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")  # pytest shows it when the test fails
    dice = random.Random(seed)  # noqa: S311
    names = [f"d{n}" for n in range(10)]
    for name in names:
        set_recurring(conn, name, task="t", every="1 s", catch_up="all", catch_up_max=1000)
    tickers = [start(app=RECURRING, command="cron") for _ in range(10)]
    for ticker in tickers:
        ticker.wait_ready()
    kills, moment = 0, threading.Event()
    while value(conn, "select count(*) from pgqueue.recurring_run") < 1000:
        for name in dice.sample(names, 5):
            pass_time(conn, name, timedelta(seconds=dice.randrange(1, 12)))
        # Ones that tick, not ones that are just starting: else there would soon be nobody left to disturb.
        wait_until(lambda: sum(ticker.said("ticking") for ticker in tickers) >= 5, 60)
        victims = [n for n, ticker in enumerate(tickers) if ticker.said("ticking")]
        poke(conn)
        for victim in dice.sample(victims, dice.randrange(1, 3)):
            moment.wait(dice.random() * 0.02)
            tickers[victim].send(signal.SIGKILL)
            tickers[victim].wait()
            kills += 1
            tickers[victim] = start(app=RECURRING, command="cron")
    for ticker in tickers:
        ticker.send(signal.SIGKILL)
        ticker.wait()
    print(f"{kills + 10} kills")
    assert kills >= 20
    runs = rows(conn, "select name, due_at, outcome, job_id from pgqueue.recurring_run where name = any (%s)", names)
    assert len(runs) >= 1000
    assert {each["outcome"] for each in runs} == {"enqueued"}
    found = rows(conn, "select id from pgqueue.job where meta ->> 'recurring' = any (%s)", names)
    made = {each["id"] for each in found}
    assert {each["job_id"] for each in runs} == made
    assert len(made) == len(runs)
    assert gaps(conn) == []
    assert rows(conn, "select 1 from pgqueue.recurring_job where missed_at is not null") == []


def pass_time(conn: Conn, name: str, span: timedelta) -> None:
    with conn.transaction():
        conn.execute("select 1 from pgqueue.recurring_job where name = %s for update", [name])
        far = timedelta(days=10_000)  # in two steps: moved by less, rows would collide with those not yet moved
        for by in (far, span - far):
            conn.execute("update pgqueue.recurring_run set due_at = due_at - %s where name = %s", [by, name])
        backdate(conn, span, name)
        conn.execute("update pgqueue.recurring_job set version = version + 1 where name = %s", [name])
