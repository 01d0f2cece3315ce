"""What an app declares becomes what is there, and nothing of anybody else's is touched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.sql.recurring import backdate, definition, set_recurring, state, tick_all
from tests.support import Conn, rows, value

A = {"task": "t", "every": "1 hour"}


def reconcile(conn: Conn, definitions: dict[str, dict[str, Any]], source: str = "shop:app") -> dict[str, str]:
    return {each.name: each.change for each in db.execute(conn, db.reconcile_recurring(source, definitions))}


def test_what_is_declared_is_added(conn: Conn) -> None:
    assert reconcile(conn, {"a": A, "b": {**A, "queue": "q"}}) == {"a": "added", "b": "added"}
    made = definition(conn)
    assert (made["owner"], made["source"], made["declared"], made["active"]) == ("code", "shop:app", A, True)


def test_the_same_declaration_again_changes_nothing(conn: Conn) -> None:
    reconcile(conn, {"a": A})
    tick_all(conn)
    before = definition(conn)
    assert reconcile(conn, {"a": A}) == {}
    assert definition(conn) == before


def test_a_changed_declaration_is_taken_over_whole(conn: Conn) -> None:
    reconcile(conn, {"a": {**A, "priority": 5, "tags": ["x"]}})
    assert reconcile(conn, {"a": {"task": "t", "cron": "0 9 * * *", "tags": ["y"]}}) == {"a": "changed"}
    made = definition(conn)
    assert (made["cron"], made["every"], made["priority"], made["tags"]) == ("0 9 * * *", None, 0, ["y"])
    assert made["planned"] is False


def test_a_change_that_leaves_the_schedule_leaves_the_next_due_time(conn: Conn) -> None:
    reconcile(conn, {"a": A})
    tick_all(conn)
    before = definition(conn)["next_run_at"]
    assert reconcile(conn, {"a": {**A, "payload": {"a": 1}}}) == {"a": "changed"}
    assert (definition(conn)["next_run_at"], definition(conn)["planned"]) == (before, True)


def test_what_is_declared_no_longer_is_retired_and_fires_no_more(conn: Conn) -> None:
    reconcile(conn, {"a": A, "b": A})
    tick_all(conn)
    assert reconcile(conn, {"b": A}) == {"a": "retired"}
    assert state(conn) == "retired"
    backdate(conn, timedelta(hours=3))
    backdate(conn, timedelta(hours=3), "b")
    assert [each.name for each in db.execute(conn, db.due_recurring()).due] == ["b"]
    tick_all(conn)
    assert value(conn, "select count(*) from pgqueue.recurring_run where name = 'a'") == 0
    assert value(conn, "select count(*) from pgqueue.recurring_run where name = 'b'") == 1
    assert reconcile(conn, {"b": A}) == {}


def test_what_is_declared_again_is_restored_and_counts_from_then_on(conn: Conn) -> None:
    reconcile(conn, {"a": {**A, "catch_up": "all"}})
    tick_all(conn)
    reconcile(conn, {})
    backdate(conn, timedelta(hours=5))
    assert reconcile(conn, {"a": {**A, "catch_up": "all"}}) == {"a": "restored"}
    assert tick_all(conn) == []
    assert state(conn) == "scheduled"


def test_what_operators_made_is_never_touched(conn: Conn) -> None:
    set_recurring(conn, "mine", task="t", every="1 day")
    set_recurring(conn, "a", task="mine", every="1 day")
    before = rows(conn, "select * from pgqueue.recurring_job order by name")
    (told,) = db.execute(conn, db.reconcile_recurring("shop:app", {"a": A}))
    assert told == ("a", "conflict", "an operator made it")
    assert reconcile(conn, {}) == {}
    assert rows(conn, "select * from pgqueue.recurring_job order by name") == before


def test_two_apps_in_one_database_leave_each_other_alone(conn: Conn) -> None:
    reconcile(conn, {"a": A})
    (told,) = db.execute(conn, db.reconcile_recurring("blog:app", {"a": {**A, "task": "other"}}))
    assert told == ("a", "conflict", "it belongs to the app shop:app")
    assert reconcile(conn, {"b": A}, "blog:app") == {"b": "added"}
    assert reconcile(conn, {}, "blog:app") == {"b": "retired"}
    assert (state(conn), definition(conn)["task"]) == ("new", "t")


def test_a_pause_outlives_every_deploy(conn: Conn) -> None:
    reconcile(conn, {"a": A})
    db.execute(conn, db.pause_recurring("a", reason="not today"))
    for declared in (A, {**A, "every": "2 hours"}):
        reconcile(conn, {"a": declared})
        assert state(conn) == "paused"
    reconcile(conn, {})
    reconcile(conn, {"a": A})
    assert (state(conn), definition(conn)["paused_reason"]) == ("paused", "not today")


def test_an_edit_holds_until_the_declaration_itself_changes(conn: Conn) -> None:
    reconcile(conn, {"a": A})
    set_recurring(conn, every="5 minutes")
    edited = definition(conn)
    assert edited["edited_at"] is not None
    assert reconcile(conn, {"a": A}) == {}
    assert definition(conn) == edited
    assert reconcile(conn, {"a": {**A, "every": "2 hours"}}) == {"a": "changed"}
    after = definition(conn)
    assert (after["every"], after["edited_at"]) == (timedelta(hours=2), None)


def test_one_that_makes_no_sense_is_refused_and_the_others_go_on(conn: Conn) -> None:
    reconcile(conn, {"b": A})
    told = db.execute(
        conn,
        db.reconcile_recurring("shop:app", {"a": {**A, "overlap": "yes"}, "b": {}, "c": A, "d": {**A, "payload": 1}}),
    )
    assert {each.name: each.change for each in told} == {"a": "refused", "b": "refused", "c": "added", "d": "refused"}
    reasons = {each.name: each.reason for each in told}
    assert reasons["a"] == "overlap must be allow, skip or replace"
    assert (definition(conn, "b")["every"], state(conn, "b")) == (timedelta(hours=1), "new"), "it is declared still"


@pytest.mark.parametrize("source", ["", "x" * 201, None])
def test_an_app_has_a_name(conn: Conn, source: Any) -> None:
    with pytest.raises(InvalidArgument, match="an app that has a name"):
        reconcile(conn, {"a": A}, source)
