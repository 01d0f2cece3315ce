"""What becomes of due times: exactly one job for each, by the clock of the database and by policy."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.sql.recurring import backdate, definition, now, set_recurring, state, tick_all, tick_at
from tests.support import Conn, claim, claim_one, enqueue, job, row, rows, value, worker

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def outcomes(conn: Conn, name: str = "a") -> list[str]:
    found = rows(conn, "select outcome from pgqueue.recurring_run where name = %s order by due_at", name)
    return [each["outcome"] for each in found]


def started(conn: Conn, **settings: Any) -> datetime:
    """A definition that is planned, and the time by the database."""
    set_recurring(conn, **{"task": "t", "queue": "q", "every": "1 hour", **settings})
    tick_at(conn, now(conn) + HOUR)
    return now(conn)


# ---------------------------------------------------------------------------------------- one for each due time


def test_a_due_time_becomes_a_job_and_the_definition_moves_on(conn: Conn) -> None:
    at = started(conn, payload={"a": 1}, meta={"team": "x"})
    backdate(conn, HOUR)
    due, following = at - MINUTE, at + HOUR
    (ticked,) = tick_at(conn, following, [due])
    assert ticked.outcome == "enqueued"
    made = job(conn, ticked.job_id or 0)
    assert (made["status"], made["task"], made["queue"], made["payload"]) == ("pending", "t", "q", {"a": 1})
    assert made["run_at"] == due
    assert made["meta"]["team"] == "x"
    assert made["meta"]["recurring"] == "a"
    assert datetime.fromisoformat(made["meta"]["due_at"]) == due
    after = definition(conn)
    assert (after["next_run_at"], after["last_due_at"], after["last_job_id"]) == (following, due, ticked.job_id)
    assert outcomes(conn) == ["enqueued"]


def test_its_jobs_are_of_its_group(conn: Conn) -> None:
    started(conn, group_key="tenant:7")
    backdate(conn, HOUR)
    (ticked,) = tick_all(conn)
    assert ticked.job_id is not None
    assert job(conn, ticked.job_id)["group_key"] == "tenant:7"
    assert job(conn, db.execute(conn, db.run_recurring_now("a")))["group_key"] == "tenant:7"


def test_runs_of_a_serial_group_wait_for_each_other(conn: Conn) -> None:
    db.execute(conn, db.set_queue("default", {"group_max_running": 1}))
    set_recurring(conn, "b", task="t", every="1 h", group_key="g")
    made = [db.execute(conn, db.run_recurring_now("b")) for _ in range(2)]
    w = worker(conn, ["default"])
    (held,) = claim(conn, w, 5, ["default"])
    assert held.id == made[0]
    assert db.execute(conn, db.why(made[1]))[0]["reason"] == "group_full"
    db.execute(conn, db.complete(w, [(held.id, held.token)]))
    assert [each.id for each in claim(conn, w, 5, ["default"])] == made[1:]


def test_a_second_tick_with_the_same_knowledge_changes_nothing(conn: Conn) -> None:
    at = started(conn)
    backdate(conn, HOUR)
    version = definition(conn)["version"]
    call = db.tick("a", version, [at - MINUTE], at + HOUR)
    assert len(db.execute(conn, call) or []) == 1
    before = definition(conn)
    assert db.execute(conn, call) is None
    assert definition(conn) == before
    assert value(conn, "select count(*) from pgqueue.job") == 1


def test_a_due_time_that_is_on_record_is_never_dealt_with_again(conn: Conn) -> None:
    at = started(conn)
    backdate(conn, HOUR)
    tick_at(conn, at + HOUR, [at - MINUTE])
    # Whatever happened to the definition: removed and made anew, or put back by hand.
    conn.execute("update pgqueue.recurring_job set last_due_at = null, planned_from = planned_from - interval '1 day'")
    assert tick_at(conn, at + HOUR, [at - MINUTE]) == []
    assert value(conn, "select count(*) from pgqueue.job") == 1


@pytest.mark.parametrize("span", [timedelta(milliseconds=500), HOUR, timedelta(days=400)])
def test_a_ticker_whose_clock_is_fast_changes_nothing(conn: Conn, span: timedelta) -> None:
    at = started(conn)
    before = definition(conn)
    with pytest.raises(InvalidArgument, match="are not due"):
        tick_at(conn, at + 500 * 24 * HOUR, [at + span])
    assert definition(conn) == before
    assert rows(conn, "select 1 from pgqueue.job") == []
    assert rows(conn, "select 1 from pgqueue.recurring_run") == []


def test_due_times_must_be_new_in_order_and_before_the_next(conn: Conn) -> None:
    at = started(conn)
    backdate(conn, HOUR)
    tick_at(conn, at + HOUR, [at - 30 * MINUTE])
    before = definition(conn)
    wrong: list[tuple[list[datetime], datetime | None]] = [
        ([at - 31 * MINUTE], at + HOUR),  # before the last
        ([at - 30 * MINUTE], at + HOUR),  # the last itself
        ([at - 10 * MINUTE, at - 20 * MINUTE], at + HOUR),
        ([at - 10 * MINUTE, at - 10 * MINUTE], at + HOUR),
        ([at - 10 * MINUTE], at - 10 * MINUTE),
        ([], at - 30 * MINUTE),
    ]
    for due, following in wrong:
        with pytest.raises(InvalidArgument, match=r"not due|cannot be due next"):
            tick_at(conn, following, due)
    assert definition(conn) == before


def test_nothing_is_due_before_the_start_nor_after_the_end(conn: Conn) -> None:
    at = now(conn)
    set_recurring(conn, task="t", every="1 s", starts_at=(at - 20 * MINUTE).isoformat(),
                  ends_at=(at - 10 * MINUTE).isoformat())  # fmt: skip
    backdate(conn, HOUR)
    for due in (at - 21 * MINUTE, at - 9 * MINUTE):
        with pytest.raises(InvalidArgument, match="are not due"):
            tick_at(conn, None, [due])
    tick_at(conn, None, [at - 20 * MINUTE])
    assert state(conn) == "ended"


def test_what_was_computed_for_another_version_is_refused(conn: Conn) -> None:
    at = started(conn)
    backdate(conn, HOUR)
    version = definition(conn)["version"]
    set_recurring(conn, every="2 hours")
    assert db.execute(conn, db.tick("a", version, [at - MINUTE], at + HOUR)) is None
    assert (definition(conn)["planned"], rows(conn, "select 1 from pgqueue.job")) == (False, [])


def test_a_definition_that_is_gone_is_no_error(conn: Conn) -> None:
    assert db.execute(conn, db.tick("a", 1, [], None)) is None
    assert db.execute(conn, db.mark_recurring("a", 1, "why")) is False


def test_an_enqueue_that_fails_leaves_everything_as_it_was(conn: Conn) -> None:
    at = started(conn, payload={"a": "x" * 2000})
    backdate(conn, HOUR)
    db.execute(conn, db.set_defaults({"payload_max_bytes": 1024}))
    before = definition(conn)
    with pytest.raises(Exception, match="at most 1024"):
        tick_at(conn, at + HOUR, [at - MINUTE])
    assert definition(conn) == before
    assert rows(conn, "select 1 from pgqueue.recurring_run") == []


# --------------------------------------------------------------------------------------------------- catch-up


@pytest.mark.parametrize(
    ("settings", "made", "missed"),
    [
        ({"catch_up": "skip"}, [], 0),
        ({"catch_up": "latest"}, [0], 1),
        ({"catch_up": "all"}, [5, 4, 3, 2, 1, 0], None),
        ({"catch_up": "all", "catch_up_max": 3}, [2, 1, 0], 3),
    ],
    ids=["skip", "latest", "all", "at most three"],
)
def test_after_several_due_times_without_a_ticker_each_policy_does_what_it_says(
    conn: Conn, settings: dict[str, Any], made: list[int], missed: int | None
) -> None:
    """An hourly job, the ticker gone for six hours."""
    at = now(conn)
    start = at - 10 * 24 * HOUR - 30 * MINUTE  # so that it is due at half past, as seen from now
    set_recurring(conn, task="t", every="1 hour", starts_at=start.isoformat(), **settings)
    tick_all(conn)
    backdate(conn, 6 * HOUR)
    ticked = tick_all(conn)
    last = at - 30 * MINUTE
    assert [each.due_at for each in ticked] == [last - n * HOUR for n in made]
    assert {each.outcome for each in ticked} <= {"enqueued"}
    after = definition(conn)
    assert after["missed_at"] == (None if missed is None else last - missed * HOUR)
    assert (after["last_due_at"], after["next_run_at"]) == (last, last + HOUR)
    assert tick_all(conn) == []


def test_skip_forgives_what_a_sleeping_ticker_may_be_late_by(conn: Conn) -> None:
    at = started(conn, catch_up="skip")
    backdate(conn, HOUR)
    (ticked,) = tick_at(conn, at + HOUR, [at - 50 * SECOND])
    assert (ticked.outcome, definition(conn)["missed_at"]) == ("enqueued", None)


def test_a_year_without_a_ticker_makes_no_more_jobs_than_allowed(conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 s", catch_up="all", catch_up_max=5)
    tick_all(conn)
    backdate(conn, timedelta(days=365))
    assert len(tick_all(conn)) == 5
    assert value(conn, "select count(*) from pgqueue.job") == 5


def test_what_was_due_during_a_pause_is_not_made_up_for(conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 s", catch_up="all")
    tick_all(conn)
    db.execute(conn, db.pause_recurring("a"))
    backdate(conn, HOUR)
    assert tick_all(conn) == []
    db.execute(conn, db.resume_recurring("a"))
    assert len(tick_all(conn)) <= 1
    assert definition(conn)["missed_at"] is None


def test_a_pause_that_ends_by_itself_counts_from_its_end(conn: Conn) -> None:
    set_recurring(conn, task="t", every="10 minutes", catch_up="all")
    tick_all(conn)
    db.execute(conn, db.pause_recurring("a", until=now(conn) + 30 * MINUTE))
    assert tick_at(conn, now(conn) + HOUR, []) == []
    assert state(conn) == "paused"
    backdate(conn, HOUR)
    until = definition(conn)["paused_until"]
    ticked = tick_all(conn)
    assert len(ticked) == 3
    assert min(each.due_at for each in ticked) > until
    assert (state(conn), definition(conn)["paused_at"]) == ("scheduled", None)


def test_a_pause_that_has_ended_is_remembered_although_nothing_was_due_since(conn: Conn) -> None:
    set_recurring(conn, task="t", every="1 hour", catch_up="all")
    tick_all(conn)
    db.execute(conn, db.pause_recurring("a", pause_for=5 * HOUR))
    backdate(conn, 5 * HOUR)
    until = definition(conn)["paused_until"]
    tick_at(conn, until + HOUR, [])  # a ticker that finds nothing due yet
    assert definition(conn)["paused_at"] is None
    backdate(conn, 2 * HOUR)
    due = [each.due_at for each in tick_all(conn)]
    assert len(due) == 2, "not those of the five hours"


# ---------------------------------------------------------------------------------------------------- overlap


def test_overlap_allow_makes_another_job(conn: Conn) -> None:
    at = started(conn)
    backdate(conn, HOUR)
    first, second = (tick_at(conn, at + HOUR, [due])[0] for due in (at - 2 * MINUTE, at - MINUTE))
    assert [job(conn, each.job_id or 0)["status"] for each in (first, second)] == ["pending", "pending"]


@pytest.mark.parametrize("status", ["pending", "running", "scheduled for a retry"])
def test_overlap_skip_makes_none_while_the_last_one_is_live(conn: Conn, status: str) -> None:
    at = started(conn, overlap="skip", retry={"type": "fixed", "delay": 60})
    backdate(conn, HOUR)
    (first,) = tick_at(conn, at + HOUR, [at - 2 * MINUTE])
    if status != "pending":
        w = worker(conn)
        claimed = claim_one(conn, w)
        if status != "running":
            db.execute(conn, db.fail(w, [db.Failure(claimed.id, claimed.token, "boom")]))
    assert tick_at(conn, at + HOUR, [at - MINUTE]) == [(at - MINUTE, "overlapped", None)]
    assert value(conn, "select count(*) from pgqueue.job") == 1
    after = definition(conn)
    assert (after["last_job_id"], after["last_due_at"]) == (first.job_id, at - MINUTE)
    db.execute(conn, db.cancel(first.job_id or 0))


def test_overlap_skip_goes_on_when_the_last_one_has_finished(conn: Conn) -> None:
    at = started(conn, overlap="skip")
    backdate(conn, HOUR)
    tick_at(conn, at + HOUR, [at - 2 * MINUTE])
    w = worker(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.complete(w, [(claimed.id, claimed.token)]))
    assert tick_at(conn, at + HOUR, [at - MINUTE])[0].outcome == "enqueued"


def test_overlap_skip_holds_within_one_catch_up_too(conn: Conn) -> None:
    at = started(conn, overlap="skip", catch_up="all")
    backdate(conn, HOUR)
    ticked = tick_at(conn, at + HOUR, [at - 3 * MINUTE, at - 2 * MINUTE, at - MINUTE])
    assert [each.outcome for each in ticked] == ["enqueued", "overlapped", "overlapped"]


def test_overlap_replace_cancels_the_waiting_one(conn: Conn) -> None:
    at = started(conn, overlap="replace", catch_up="all")
    backdate(conn, HOUR)
    first, second = tick_at(conn, at + HOUR, [at - 2 * MINUTE, at - MINUTE])
    replaced = job(conn, first.job_id or 0)
    assert replaced["status"] == "cancelled"
    assert replaced["error"].startswith("replaced by the job that is due at ")
    assert job(conn, second.job_id or 0)["status"] == "pending"


def test_overlap_replace_asks_the_running_one_to_stop(conn: Conn) -> None:
    at = started(conn, overlap="replace")
    backdate(conn, HOUR)
    (first,) = tick_at(conn, at + HOUR, [at - 2 * MINUTE])
    w = worker(conn)
    claim_one(conn, w)
    (second,) = tick_at(conn, at + HOUR, [at - MINUTE])
    assert db.execute(conn, db.heartbeat(w)).cancel_ids == [first.job_id]
    assert job(conn, second.job_id or 0)["status"] == "pending"


# -------------------------------------------------------------------------------------------- jitter, expiry


def test_jitter_delays_the_job_and_not_the_due_time(conn: Conn) -> None:
    at = started(conn, jitter="1 hour", catch_up="all", catch_up_max=30)
    backdate(conn, HOUR)
    dues = [at - n * SECOND for n in range(30, 0, -1)]
    ticked = tick_at(conn, at + HOUR, dues)
    assert [each.due_at for each in ticked] == dues
    delays = [job(conn, each.job_id or 0)["run_at"] - each.due_at for each in ticked]
    assert all(timedelta(0) <= delay <= HOUR for delay in delays)
    assert len(set(delays)) > 20
    assert {job(conn, each.job_id or 0)["status"] for each in ticked} <= {"scheduled", "pending"}
    assert definition(conn)["next_run_at"] == at + HOUR


def test_what_comes_too_late_to_start_is_no_job(conn: Conn) -> None:
    at = started(conn, expires_in="30 minutes", catch_up="all")
    backdate(conn, 2 * HOUR)
    ticked = tick_at(conn, at + HOUR, [at - HOUR, at - MINUTE])
    assert [each.outcome for each in ticked] == ["expired", "enqueued"]
    assert job(conn, ticked[1].job_id or 0)["expires_at"] == at + 29 * MINUTE
    assert outcomes(conn) == ["expired", "enqueued"]


# ----------------------------------------------------------------------------------- what a ticker is told


def test_a_ticker_is_told_what_to_look_at_and_when_to_come_again(conn: Conn) -> None:
    assert db.execute(conn, db.due_recurring()).wake_at is None
    at = started(conn)
    found = db.execute(conn, db.due_recurring())
    assert found.due == []
    assert found.wake_at == definition(conn)["next_run_at"]
    assert at <= found.now <= now(conn)
    backdate(conn, 2 * HOUR)
    set_recurring(conn, "new", task="t", cron="0 9 * * *", catch_up="all", catch_up_max=7)
    found = db.execute(conn, db.due_recurring())
    assert [(each.name, each.take) for each in found.due] == [("a", 2), ("new", 8)]
    assert db.execute(conn, db.due_recurring(1)).wake_at is not None, "there is more"


def test_a_paused_one_is_looked_at_when_its_pause_ends(conn: Conn) -> None:
    started(conn)
    until = now(conn) + MINUTE
    db.execute(conn, db.pause_recurring("a", until=until))
    backdate(conn, timedelta(0))
    assert db.execute(conn, db.due_recurring()).wake_at == until
    db.execute(conn, db.pause_recurring("a"))
    assert db.execute(conn, db.due_recurring()).wake_at is None


def test_a_task_is_unknown_only_if_all_live_workers_of_its_queue_say_so(conn: Conn) -> None:
    started(conn)
    backdate(conn, 2 * HOUR)

    def unknown() -> bool:
        (due,) = db.execute(conn, db.due_recurring()).due
        return due.task_unknown

    assert unknown() is False, "no worker is there: who knows"
    db.execute(conn, db.register_worker("w", ["other"], info={"tasks": []}))
    assert unknown() is False
    db.execute(conn, db.register_worker("w", ["q"], info={"tasks": ["x"]}))
    assert unknown() is True
    silent = db.execute(conn, db.register_worker("w", ["q"]))  # in another language, say
    assert unknown() is False
    conn.execute("update pgqueue.worker set heartbeat_at = heartbeat_at - interval '1 day' where id = %s", [silent])
    assert unknown() is True
    db.execute(conn, db.register_worker("w", ["q", "r"], info={"tasks": ["t", "x"]}))
    assert unknown() is False


# ------------------------------------------------------------------------------------------ broken and healed


def test_a_broken_one_is_reported_once_and_looked_at_again_in_a_minute(conn: Conn) -> None:
    started(conn)
    backdate(conn, 2 * HOUR)
    version = definition(conn)["version"]
    mark = db.mark_recurring("a", version, "no such zone")
    assert [db.execute(conn, mark), db.execute(conn, mark)] == [True, False]
    seen = row(conn, "select state, broken_reason, broken_at from pgqueue.recurring_status")
    assert (seen["state"], seen["broken_reason"]) == ("broken", "no such zone")
    found = db.execute(conn, db.due_recurring())
    assert found.due == []
    assert found.wake_at is not None
    assert timedelta(0) < found.wake_at - found.now <= MINUTE
    assert db.execute(conn, db.mark_recurring("a", version, "something else")) is True
    assert row(conn, "select broken_at from pgqueue.recurring_status")["broken_at"] == seen["broken_at"]
    backdate(conn, MINUTE)
    assert [(each.name, each.broken) for each in db.execute(conn, db.due_recurring()).due] == [("a", True)]
    assert len(tick_all(conn)) == 1
    assert (state(conn), definition(conn)["broken_reason"]) == ("scheduled", None)


def test_an_edit_may_be_the_cure(conn: Conn) -> None:
    started(conn, cron="0 9 * * *", every=None, timezone="Mars/Olympus")
    db.execute(conn, db.mark_recurring("a", definition(conn)["version"], "no such zone"))
    set_recurring(conn, timezone="UTC")
    assert state(conn) == "new"


# ----------------------------------------------------------------------------------------------- the record


def test_the_record_outlives_its_job_and_goes_with_the_retention(conn: Conn) -> None:
    at = started(conn)
    backdate(conn, HOUR)
    (ticked,) = tick_at(conn, at + HOUR, [at - MINUTE])
    db.execute(conn, db.cancel(ticked.job_id or 0))
    db.execute(conn, db.purge(db.Filter(), status="cancelled"))
    seen = row(conn, "select outcome, job_id, status from pgqueue.recurring_history")
    assert seen == {"outcome": "enqueued", "job_id": ticked.job_id, "status": None}
    db.execute(conn, db.prune())
    assert outcomes(conn) == ["enqueued"]
    conn.execute("update pgqueue.recurring_run set due_at = due_at - interval '31 days'")
    db.execute(conn, db.prune())
    assert outcomes(conn) == []


def test_the_record_stays_for_a_day_even_if_nothing_is_kept(conn: Conn) -> None:
    db.execute(conn, db.set_defaults({"retain_completed": "0", "retain_dead": "0"}))
    at = started(conn)
    backdate(conn, HOUR)
    tick_at(conn, at + HOUR, [at - MINUTE])
    conn.execute("update pgqueue.recurring_run set due_at = date_trunc('day', now(), 'UTC') - interval '1 minute'")
    db.execute(conn, db.prune())
    assert outcomes(conn) == ["enqueued"]


def test_the_last_job_and_its_outcome_are_seen(conn: Conn) -> None:
    at = started(conn)
    backdate(conn, HOUR)
    (ticked,) = tick_at(conn, at + HOUR, [at - MINUTE])
    enqueue(conn, queue="other")
    w = worker(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(claimed.id, claimed.token, "boom", fatal=True)]))
    seen = row(conn, "select last_job_id, last_status, last_error from pgqueue.recurring_status")
    assert seen == {"last_job_id": ticked.job_id, "last_status": "dead", "last_error": "boom"}


def test_a_due_time_that_nobody_deals_with_is_late(conn: Conn) -> None:
    started(conn)
    assert state(conn) == "scheduled"
    backdate(conn, HOUR + 2 * MINUTE)
    assert state(conn) == "late"
