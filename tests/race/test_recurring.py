"""Tickers, operators and deploys at the same definition."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgqueue import database as db
from pgqueue.database import Ticked
from pgqueue.errors import WrongStatus
from tests.race.steps import commit_or_rollback, finish
from tests.sql.recurring import backdate, definition, now, set_recurring, state, tick_all, tick_at
from tests.support import Conn, Rival, rows, value

HOUR = timedelta(hours=1)
A = {"task": "t", "every": "1 hour"}


def due(conn: Conn) -> db.Call[list[Ticked] | None]:
    """A definition that is due; the tick that a ticker has prepared for it."""
    set_recurring(conn, **A)
    tick_all(conn)
    backdate(conn, HOUR)
    at = now(conn)
    return db.tick("a", definition(conn)["version"], [at - timedelta(seconds=1)], at + HOUR)


def jobs(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.job"))


@commit_or_rollback
def test_of_two_tickers_one_fires_and_the_other_does_not_wait(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    call = due(conn)
    assert db.execute(holder, call)
    assert db.execute(other, call) is None
    finish(holder, end)
    # A ticker that died before its commit has done nothing: the next one does it.
    assert bool(db.execute(other, call)) is (end == "rollback")
    assert jobs(conn) == 1


@commit_or_rollback
def test_a_tick_passes_over_what_is_being_changed(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    call = due(conn)
    set_recurring(holder, every="2 hours")
    assert db.execute(other, call) is None
    finish(holder, end)
    assert bool(db.execute(other, call)) is (end == "rollback")


@commit_or_rollback
def test_a_change_that_waited_for_a_tick_is_applied_after_it(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    call = due(conn)
    db.execute(holder, call)
    rival = Rival(other, lambda c: set_recurring(c, every="2 hours"))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == "changed"
    assert definition(conn)["every"] == timedelta(hours=2)
    assert jobs(conn) == (1 if end == "commit" else 0)


@commit_or_rollback
def test_a_pause_that_waited_for_a_tick_stops_the_next_one(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    call = due(conn)
    db.execute(holder, call)
    rival = Rival(other, lambda c: db.execute(c, db.pause_recurring("a")))
    rival.wait_blocked(dsn)
    finish(holder, end)
    rival.result()
    assert state(conn) == "paused"
    backdate(conn, HOUR)
    assert tick_all(conn) == []
    assert jobs(conn) == (1 if end == "commit" else 0)


@commit_or_rollback
def test_a_removal_that_waited_for_a_tick_leaves_its_job(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    call = due(conn)
    db.execute(holder, call)
    rival = Rival(other, lambda c: db.execute(c, db.remove_recurring("a")))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() is True
    assert jobs(conn) == (1 if end == "commit" else 0)
    assert rows(conn, "select 1 from pgqueue.recurring_job") == []


@commit_or_rollback
def test_a_run_by_hand_that_waited_for_a_tick_sees_its_job(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    call = due(conn)
    set_recurring(conn, overlap="skip")
    db.execute(holder, call)
    rival = Rival(other, lambda c: db.execute(c, db.run_recurring_now("a")))
    rival.wait_blocked(dsn)
    finish(holder, end)
    if end == "commit":
        with pytest.raises(WrongStatus, match="is not finished"):
            rival.result()
    else:
        rival.result()
    assert jobs(conn) == 1


@commit_or_rollback
def test_two_who_make_the_same_name_end_with_one(conn: Conn, holder: Conn, other: Conn, dsn: str, end: str) -> None:
    set_recurring(holder, **A)
    rival = Rival(other, lambda c: set_recurring(c, task="t", every="2 hours"))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == ("changed" if end == "commit" else "added")
    assert definition(conn)["every"] == timedelta(hours=2)


@commit_or_rollback
def test_two_processes_of_an_app_that_start_together_declare_once(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    call = db.reconcile_recurring("shop:app", {"a": A, "b": A})
    assert len(db.execute(holder, call)) == 2
    rival = Rival(other, lambda c: db.execute(c, call))
    rival.wait_blocked(dsn)
    finish(holder, end)
    changes = {each.change for each in rival.result()}
    assert changes == (set() if end == "commit" else {"added"})
    assert [each["name"] for each in rows(conn, "select name from pgqueue.recurring_job order by name")] == ["a", "b"]


def test_a_fault_is_news_to_one_ticker_only(conn: Conn, holder: Conn, other: Conn) -> None:
    due(conn)
    call = db.mark_recurring("a", definition(conn)["version"], "why")
    assert db.execute(holder, call) is True
    assert db.execute(other, call) is False, "it does not wait"
    holder.commit()
    assert db.execute(other, call) is False


def test_a_tick_does_not_wait_for_a_job_that_is_being_enqueued(conn: Conn, holder: Conn, other: Conn) -> None:
    call = due(conn)
    db.execute(holder, db.enqueue("default", "t", {}))
    assert db.execute(other, call)


def test_the_due_time_of_a_definition_made_anew_under_the_same_name_is_not_repeated(conn: Conn) -> None:
    call = due(conn)
    (ticked,) = db.execute(conn, call) or []
    db.execute(conn, db.remove_recurring("a"))
    set_recurring(conn, **A)
    backdate(conn, HOUR)
    assert tick_at(conn, now(conn) + HOUR, [ticked.due_at]) == []
    assert jobs(conn) == 1
