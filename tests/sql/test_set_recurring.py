"""Making, changing, pausing and removing recurring jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, JobNotFound, KeyTaken, PayloadError, WrongStatus
from tests.sql.recurring import definition, remove, set_recurring, tick_at
from tests.support import Conn, job, row, rows, value

FUTURE = datetime.now(UTC) + timedelta(days=1)


def test_what_is_not_said_is_the_default(conn: Conn) -> None:
    assert set_recurring(conn, task="t", cron="0 9 * * *") == "added"
    made = definition(conn)
    expected = {
        "queue": "default", "payload": {}, "timezone": "UTC", "jitter": timedelta(0), "catch_up": "latest",
        "catch_up_max": 100, "overlap": "allow", "priority": 0, "owner": "operator", "active": True, "planned": False,
        "next_run_at": None, "version": 1, "source": None,
    }  # fmt: skip
    assert {name: made[name] for name in expected} == expected


def test_everything_that_can_be_said_is_stored(conn: Conn) -> None:
    settings = {
        "queue": "reports", "task": "report", "payload": {"region": "eu"}, "every": "90 seconds",
        "timezone": "Europe/Berlin",
        "starts_at": "2027-01-01T00:00:00+00:00", "ends_at": "2028-01-01T00:00:00+00:00", "jitter": "10 s",
        "catch_up": "all", "catch_up_max": 7, "overlap": "replace", "priority": 5, "max_attempts": 2,
        "retry": {"type": "fixed", "delay": 1}, "timeout_seconds": 60, "tags": ["a", "b"], "meta": {"team": "x"},
        "expires_in": "1 hour", "retain_for": "2 days", "group_key": "tenant:7",
    }  # fmt: skip
    set_recurring(conn, **settings)
    made = definition(conn)
    typed: dict[str, Any] = {
        "every": timedelta(seconds=90), "jitter": timedelta(seconds=10), "expires_in": timedelta(hours=1),
        "retain_for": timedelta(days=2), "starts_at": datetime(2027, 1, 1, tzinfo=UTC),
        "ends_at": datetime(2028, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    assert {name: made[name] for name in settings} == {**settings, **typed}
    assert made["cron"] is None


def test_what_is_not_named_stays_and_null_goes_back_to_the_default(conn: Conn) -> None:
    set_recurring(conn, task="t", cron="0 9 * * *", priority=5, tags=["a"], jitter="1 min", payload={"a": 1})
    assert set_recurring(conn, priority=None, payload={"a": 2}) == "changed"
    made = definition(conn)
    assert (made["priority"], made["payload"], made["tags"], made["jitter"]) == (
        0,
        {"a": 2},
        ["a"],
        timedelta(minutes=1),
    )
    set_recurring(conn, tags=None, jitter=None, payload=None)
    made = definition(conn)
    assert (made["payload"], made["tags"], made["jitter"]) == ({}, None, timedelta(0))


def test_cron_and_every_replace_each_other(conn: Conn) -> None:
    set_recurring(conn, task="t", cron="0 9 * * *")
    set_recurring(conn, every="5 minutes")
    assert (definition(conn)["cron"], definition(conn)["every"]) == (None, timedelta(minutes=5))
    set_recurring(conn, cron="@daily")
    assert (definition(conn)["cron"], definition(conn)["every"]) == ("@daily", None)


@pytest.mark.parametrize(
    "change",
    [{"cron": "1 9 * * *"}, {"timezone": "Asia/Kathmandu"}, {"starts_at": "2027-01-01T00:00Z"}, {"every": "1 day"}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_when_it_is_due_is_planned_anew_from_now_on(conn: Conn, change: dict[str, Any]) -> None:
    set_recurring(conn, task="t", cron="0 9 * * *")
    tick_at(conn)
    before = definition(conn)
    assert before["planned"]
    set_recurring(conn, **change)
    after = definition(conn)
    assert (after["planned"], after["next_run_at"]) == (False, None)
    assert after["version"] == before["version"] + 1
    assert after["planned_from"] > before["planned_from"]


def test_any_other_change_leaves_the_next_due_time_as_it_is(conn: Conn) -> None:
    set_recurring(conn, task="t", cron="0 9 * * *")
    tick_at(conn, FUTURE)
    set_recurring(conn, cron="0 9 * * *", payload={"a": 1}, catch_up="all", overlap="skip", queue="other")
    assert (definition(conn)["planned"], definition(conn)["next_run_at"]) == (True, FUTURE)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no task": ({"task": None}, "bad task name null"),
    "a bad task": ({"task": "a b"}, "bad task name"),
    "a bad queue": ({"queue": "a b"}, "bad queue name"),
    "neither cron nor every": ({"cron": None}, "either a cron expression or every"),
    "both": ({"cron": "* * * * *", "every": "1 s"}, "either a cron expression or every"),
    "a long expression": ({"cron": "1," * 200}, "1 to 256 characters"),
    "an empty expression": ({"cron": ""}, "1 to 256 characters"),
    "half a second": ({"every": "0.5 s"}, "between 1 second and 3650 days"),
    "eleven years": ({"every": "4015 days"}, "between 1 second and 3650 days"),
    "a month": ({"every": "1 month"}, "months differ"),
    "no interval": ({"every": "often"}, "bad settings .* invalid input syntax for type interval"),
    "an endless jitter": ({"jitter": "2 days"}, "jitter must be"),
    "a negative jitter": ({"jitter": "-1 s"}, "jitter must be"),
    "an unknown catch-up": ({"catch_up": "some"}, "catch_up must be"),
    "catching up a million": ({"catch_up_max": 1_000_000}, "catch_up_max must be"),
    "an unknown overlap": ({"overlap": "yes"}, "overlap must be"),
    "an unknown setting": ({"crom": "* * * * *"}, "no setting 'crom'"),
    "another's name": ({"name": "b"}, "no setting 'name'"),
    "a priority out of range": ({"priority": 101}, "priority must be"),
    "a priority that is no number": ({"priority": "high"}, "bad settings"),
    "a huge priority": ({"priority": 10**9}, "bad settings"),
    "a bad retry policy": ({"retry": {"type": "magic"}}, "retry"),
    "an end before the start": ({"starts_at": "2027-01-02", "ends_at": "2027-01-01"}, "must not lie before"),
    "a start in the year 10000": ({"starts_at": "9999-12-31T23:00Z"}, "between the years"),
    "infinity": ({"ends_at": "infinity"}, "between the years"),
    "a life shorter than the jitter": ({"jitter": "1 hour", "expires_in": "1 min"}, "longer than jitter"),
    "a big meta": ({"meta": {"a": "x" * 20_000}}, "meta must be"),
    "a control character in a tag": ({"tags": ["a\nb"]}, "tags must be"),
    "no zone": ({"timezone": ""}, "timezone must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_refused_and_changes_nothing(conn: Conn, case: str) -> None:
    settings, told = BAD[case]
    start = {"task": "t"} if settings.keys() == {"every"} else {"task": "t", "cron": "0 9 * * *"}
    with pytest.raises(InvalidArgument, match=told):
        set_recurring(conn, **{**start, **settings})
    assert rows(conn, "select 1 from pgqueue.recurring_job") == []
    set_recurring(conn, task="t", cron="0 9 * * *")
    before = definition(conn)
    with pytest.raises(InvalidArgument, match=told):
        set_recurring(conn, **settings)
    assert definition(conn) == before


@pytest.mark.parametrize("payload", [[], "text", 1, {"a": "x" * 300_000}])
def test_a_payload_is_judged_like_any_other(conn: Conn, payload: Any) -> None:
    with pytest.raises(PayloadError):
        set_recurring(conn, task="t", cron="0 9 * * *", payload=payload)


@pytest.mark.parametrize("settings", ["null", "[]", "1"])
def test_settings_are_an_object(conn: Conn, settings: str) -> None:
    with pytest.raises(psycopg.Error, match="JSON object"):
        conn.execute("select pgqueue.set_recurring('a', %s::jsonb)", [settings])


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "ü", None])
def test_a_bad_name_is_refused(conn: Conn, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="bad name"):
        set_recurring(conn, name, task="t", cron="0 9 * * *")


def test_a_new_one_must_not_exist_and_a_change_needs_one(conn: Conn) -> None:
    with pytest.raises(JobNotFound, match="no recurring job 'a'"):
        db.execute(conn, db.set_recurring("a", {"task": "t", "every": "1 s"}, False))
    assert db.execute(conn, db.set_recurring("a", {"task": "t", "every": "1 s"}, True)) == "added"
    with pytest.raises(KeyTaken, match="a recurring job 'a' already"):
        db.execute(conn, db.set_recurring("a", {"task": "t", "every": "2 s"}, True))
    assert db.execute(conn, db.set_recurring("a", {"every": "2 s"}, False)) == "changed"
    assert definition(conn)["every"] == timedelta(seconds=2)


def test_it_is_part_of_the_transaction(conn: Conn) -> None:
    with conn.transaction(force_rollback=True):
        set_recurring(conn, task="t", every="1 s")
    assert rows(conn, "select 1 from pgqueue.recurring_job") == []


# ------------------------------------------------------------------------------------------------- removing


def test_removing_forgets_the_definition_and_keeps_its_jobs(conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 s")
    id = db.execute(conn, db.run_recurring_now("a"))
    assert remove(conn) is True
    assert rows(conn, "select 1 from pgqueue.recurring_job") == []
    assert job(conn, id)["status"] == "pending"
    assert value(conn, "select count(*) from pgqueue.recurring_run") == 1
    assert remove(conn) is False


def test_what_an_app_declares_is_removed_only_if_that_is_said(conn: Conn) -> None:
    db.execute(conn, db.reconcile_recurring("shop:app", {"a": {"task": "t", "every": "1 s"}}))
    with pytest.raises(WrongStatus, match=r"declared by shop:app, .* bring it back Pause it"):
        remove(conn)
    assert db.execute(conn, db.remove_recurring("a", True)) is True


def test_what_an_app_declares_no_longer_is_simply_removed(conn: Conn) -> None:
    db.execute(conn, db.reconcile_recurring("shop:app", {"a": {"task": "t", "every": "1 s"}}))
    db.execute(conn, db.reconcile_recurring("shop:app", {}))
    assert remove(conn) is True


# -------------------------------------------------------------------------------------------------- pausing


def test_a_pause_remembers_until_when_and_why(conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 s")
    db.execute(conn, db.pause_recurring("a", until=FUTURE, reason="too loud"))
    seen = row(conn, "select state, paused_until, paused_reason from pgqueue.recurring_status")
    assert seen == {"state": "paused", "paused_until": FUTURE, "paused_reason": "too loud"}
    assert db.execute(conn, db.resume_recurring("a")) is True
    seen = row(conn, "select state, paused_until, paused_reason from pgqueue.recurring_status")
    assert seen == {"state": "new", "paused_until": None, "paused_reason": None}
    assert db.execute(conn, db.resume_recurring("a")) is False


@pytest.mark.parametrize("until", [datetime.now(UTC) - timedelta(seconds=1), datetime(9999, 12, 31, tzinfo=UTC)])
def test_a_pause_must_end_ahead_and_before_the_year_9999(conn: Conn, until: datetime) -> None:
    set_recurring(conn, task="t", every="1 s")
    with pytest.raises(InvalidArgument, match="a pause ends at a time that lies ahead"):
        db.execute(conn, db.pause_recurring("a", until=until))


def test_what_does_not_exist_can_be_neither_paused_nor_resumed_nor_run(conn: Conn) -> None:
    calls: list[db.Call[Any]] = [db.pause_recurring("a"), db.resume_recurring("a"), db.run_recurring_now("a")]
    for call in calls:
        with pytest.raises(JobNotFound, match="there is no recurring job 'a'"):
            db.execute(conn, call)


# --------------------------------------------------------------------------------------------------- run now


def test_a_run_by_hand_is_one_more_job_and_leaves_the_schedule_alone(conn: Conn) -> None:
    set_recurring(
        conn, task="t", queue="q", every="1 day", payload={"a": 1}, priority=7, tags=["x"], meta={"team": "y"},
        jitter="1 hour", max_attempts=2, timeout_seconds=9, retry={"type": "fixed", "delay": 1}, retain_for="1 day",
    )  # fmt: skip
    tick_at(conn, FUTURE)
    before = definition(conn)
    id = db.execute(conn, db.run_recurring_now("a"))
    made = job(conn, id)
    expected = {
        "status": "pending", "queue": "q", "task": "t", "payload": {"a": 1}, "priority": 7, "tags": ["x"], "key": None,
        "max_attempts": 2, "timeout_seconds": 9, "retry": {"type": "fixed", "delay": 1},
        "retain_for": timedelta(days=1),
    }  # fmt: skip
    assert {name: made[name] for name in expected} == expected
    assert (made["meta"]["team"], made["meta"]["recurring"]) == ("y", "a")
    after = definition(conn)
    assert after["last_job_id"] == id
    assert (after["next_run_at"], after["last_due_at"]) == (FUTURE, before["last_due_at"])
    run = row(conn, "select outcome, job_id, due_at from pgqueue.recurring_history")
    assert (run["outcome"], run["job_id"]) == ("manual", id)
    assert datetime.fromisoformat(made["meta"]["due_at"]) == run["due_at"]


def test_a_run_by_hand_respects_overlap(conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 day", overlap="skip")
    first = db.execute(conn, db.run_recurring_now("a"))
    with pytest.raises(WrongStatus, match=f"job {first} of recurring job 'a' is not finished"):
        db.execute(conn, db.run_recurring_now("a"))
    assert value(conn, "select count(*) from pgqueue.recurring_run") == 1
    set_recurring(conn, overlap="replace")
    second = db.execute(conn, db.run_recurring_now("a"))
    assert (job(conn, first)["status"], job(conn, second)["status"]) == ("cancelled", "pending")
    set_recurring(conn, overlap="allow")
    third = db.execute(conn, db.run_recurring_now("a"))
    assert (job(conn, second)["status"], job(conn, third)["status"]) == ("pending", "pending")


def test_a_paused_one_can_be_run_by_hand(conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 day")
    db.execute(conn, db.pause_recurring("a"))
    assert job(conn, db.execute(conn, db.run_recurring_now("a")))["status"] == "pending"
