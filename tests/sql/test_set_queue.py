from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.support import FIXED, Conn, claim_one, enqueue, job, row, rows, value, worker

SETTINGS: dict[str, Any] = {
    "max_attempts": 3,
    "max_crashes": 2,
    "retry": FIXED,
    "timeout_seconds": 60,
    "boost_seconds": 10,
    "retain_completed": "2 days",
    "retain_dead": "3 days",
}
STORED = SETTINGS | {"retain_completed": timedelta(days=2), "retain_dead": timedelta(days=3)}
BAD: list[tuple[Any, str]] = [
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": 32001}, "max_attempts"),
    ({"max_attempts": 70000}, "out of range"),
    ({"max_attempts": 2.5}, "invalid input syntax"),
    ({"max_attempts": "many"}, "invalid input syntax"),
    ({"max_attempts": True}, "invalid input syntax"),
    ({"max_attempts": {"a": 1}}, "bad"),
    ({"max_attempts": [1]}, "bad"),
    ({"max_crashes": 0}, "max_crashes"),
    ({"timeout_seconds": 0}, "timeout_seconds"),
    ({"timeout_seconds": 31536001}, "timeout_seconds"),
    ({"boost_seconds": -1}, "boost_seconds"),
    ({"boost_seconds": 100000001}, "boost_seconds"),
    ({"retain_completed": "-1 day"}, "retain_completed"),
    ({"retain_completed": "3651 days"}, "retain_completed"),
    ({"retain_completed": "soon"}, "invalid input syntax"),
    ({"retain_dead": "-1 day"}, "retain_dead"),
    ({"retain_dead": "infinity"}, "bad"),
    ({"retry": 5}, "bad retry policy"),
    ({"retry": []}, "bad retry policy"),
    ({"retry": "fixed"}, "bad retry policy"),
    ({"retry": {"type": "magic"}}, "bad retry policy"),
    ({"retry": {"type": "fixed"}}, "a fixed policy needs its delay"),
    ({"max_attempts": 7, "boost_seconds": -1}, "boost_seconds"),
]


def set_queue(conn: Conn, settings: Any, queue: str = "q") -> None:
    db.execute(conn, db.set_queue(queue, settings))


def set_defaults(conn: Conn, settings: Any) -> None:
    db.execute(conn, db.set_defaults(settings))


def stored(conn: Conn, table: str = "queue") -> dict[str, Any]:
    return row(conn, f"select {', '.join(SETTINGS)} from pgqueue.{table}")


# -------------------------------------------------------------------------------------------- set_queue


def test_every_setting_of_a_queue_can_be_set(conn: Conn) -> None:
    set_queue(conn, SETTINGS)
    assert stored(conn) == STORED


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_not_named_stays(conn: Conn, name: str) -> None:
    set_queue(conn, SETTINGS)
    set_queue(conn, {name: None})
    assert stored(conn) == STORED | {name: None}
    set_queue(conn, {name: SETTINGS[name]})
    assert stored(conn) == STORED


def test_nothing_named_changes_nothing(conn: Conn) -> None:
    set_queue(conn, SETTINGS)
    set_queue(conn, {})
    assert stored(conn) == STORED


def test_a_queue_says_nothing_about_what_was_never_set(conn: Conn) -> None:
    set_queue(conn, {"max_attempts": 3})
    assert stored(conn) == dict.fromkeys(SETTINGS) | {"max_attempts": 3}


def test_other_queues_are_not_changed(conn: Conn) -> None:
    set_queue(conn, SETTINGS, "a")
    set_queue(conn, {}, "b")
    assert row(conn, f"select {', '.join(SETTINGS)} from pgqueue.queue where queue = 'b'") == dict.fromkeys(SETTINGS)


def test_settings_keep_a_pause(conn: Conn) -> None:
    db.execute(conn, db.pause("q", reason="deploy"))
    set_queue(conn, SETTINGS)
    found = row(conn, "select paused_at, paused_reason, wake from pgqueue.queue")
    assert found["paused_at"] is not None
    assert found["wake"] is not None
    assert found["paused_reason"] == "deploy"


def test_settings_hold_for_jobs_that_wait_already(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    set_queue(conn, {"max_attempts": 1})
    (failed,) = db.execute(conn, db.fail(w, [db.Failure(id, claim_one(conn, w).token, "boom")]))
    assert failed.status == "dead"


@pytest.mark.parametrize("name", ["max_attempt", "payload_max_bytes", "wake", "queue", "id", "paused_at", ""])
def test_a_setting_that_does_not_exist_is_refused_and_the_known_are_named(conn: Conn, name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"there is no setting '{name}' Known: max_attempts, .*, shed_below\."):
        set_queue(conn, {"max_attempts": 3, name: 1})
    assert rows(conn, "select 1 from pgqueue.queue") == []


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_a_bad_value_is_refused_and_changes_nothing(conn: Conn, settings: Any, message: str) -> None:
    set_queue(conn, SETTINGS)
    with pytest.raises(InvalidArgument, match=message):
        set_queue(conn, settings)
    assert stored(conn) == STORED


@pytest.mark.parametrize("settings", ["[]", "1", "null", None])
def test_settings_of_a_queue_must_be_an_object(conn: Conn, settings: str | None) -> None:
    call = db.Call("select pgqueue.set_queue('q', $1::jsonb)", [settings], lambda _: None)
    with pytest.raises(InvalidArgument, match="settings must be a JSON object"):
        db.execute(conn, call)


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "a;b"])
def test_a_bad_queue_name_is_refused(conn: Conn, name: str) -> None:
    with pytest.raises(InvalidArgument, match="bad queue name"):
        set_queue(conn, {"max_attempts": 3}, name)


# ------------------------------------------------------------------------------------------ set_defaults


def test_every_default_can_be_set(conn: Conn) -> None:
    set_defaults(conn, SETTINGS | {"payload_max_bytes": 2048})
    assert stored(conn, "setting") == STORED
    assert value(conn, "select payload_max_bytes from pgqueue.setting") == 2048


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_that_is_not_named_stays(conn: Conn, name: str) -> None:
    before = stored(conn, "setting")
    set_defaults(conn, {name: SETTINGS[name]})
    assert stored(conn, "setting") == before | {name: STORED[name]}


def test_the_default_timeout_can_be_taken_back(conn: Conn) -> None:
    set_defaults(conn, {"timeout_seconds": 60})
    set_defaults(conn, {"timeout_seconds": None})
    assert value(conn, "select timeout_seconds from pgqueue.setting") is None


@pytest.mark.parametrize(
    "name",
    [
        "max_attempts",
        "max_crashes",
        "retry",
        "boost_seconds",
        "retain_completed",
        "retain_dead",
        "payload_max_bytes",
    ],
)
def test_a_default_without_which_nothing_holds_cannot_be_null(conn: Conn, name: str) -> None:
    before = stored(conn, "setting")
    with pytest.raises(InvalidArgument, match="null"):
        set_defaults(conn, {name: None})
    assert stored(conn, "setting") == before


@pytest.mark.parametrize(("settings", "message"), [*BAD, ({"payload_max_bytes": 1023}, "payload_max_bytes")])
def test_a_bad_default_is_refused_and_changes_nothing(conn: Conn, settings: Any, message: str) -> None:
    before = stored(conn, "setting")
    with pytest.raises(InvalidArgument, match=message):
        set_defaults(conn, settings)
    assert stored(conn, "setting") == before


@pytest.mark.parametrize("name", ["paused_at", "id", "nonsense"])
def test_a_default_that_does_not_exist_is_refused(conn: Conn, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"there is no setting '{name}'.*payload_max_bytes"):
        set_defaults(conn, {name: 1})


@pytest.mark.parametrize("settings", ["[]", "1", "null", None])
def test_defaults_must_be_an_object(conn: Conn, settings: str | None) -> None:
    call = db.Call("select pgqueue.set_defaults($1::jsonb)", [settings], lambda _: None)
    with pytest.raises(InvalidArgument, match="settings must be a JSON object"):
        db.execute(conn, call)


def test_a_queue_that_says_nothing_follows_the_defaults(conn: Conn) -> None:
    set_defaults(conn, {"max_attempts": 1})
    id, w = enqueue(conn), worker(conn)
    (failed,) = db.execute(conn, db.fail(w, [db.Failure(id, claim_one(conn, w).token, "boom")]))
    assert failed.status == "dead"


def test_a_raised_payload_limit_holds_for_python_too(conn: Conn) -> None:
    set_defaults(conn, {"payload_max_bytes": 1048576})
    id = enqueue(conn, {"text": "x" * 500_000})
    assert len(job(conn, id)["payload"]["text"]) == 500_000


@pytest.mark.parametrize("name", ["retain_completed", "retain_dead"])
@pytest.mark.parametrize("bare", [30, "30", " 7.5 "])
def test_a_retention_without_a_unit_is_refused(conn: Conn, name: str, bare: object) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} needs a unit"):
        db.execute(conn, db.set_queue("q", {name: bare}))
    with pytest.raises(InvalidArgument, match=f"{name} needs a unit"):
        db.execute(conn, db.set_defaults({name: bare}))
