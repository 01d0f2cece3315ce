"""max_running, rates, groups, turns and depth of queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, QueueFull
from tests.support import Conn, claim, enqueue, job, lose, make_due, row, rows, value, worker


def set_queue(conn: Conn, **settings: Any) -> None:
    db.execute(conn, db.set_queue("q", settings))


def grouped(conn: Conn, groups: str, **options: Any) -> list[int]:
    """One job for each letter, of the group that it names."""
    made = db.execute(conn, db.enqueue_many("q", "t", [{}] * len(groups), groups=list(groups), **options))
    return [each.id for each in made]


def complete(conn: Conn, w: int, *jobs: db.ClaimedJob) -> None:
    assert db.execute(conn, db.complete(w, [(each.id, each.token) for each in jobs])) == []


def fail(conn: Conn, w: int, failed: db.ClaimedJob, retry_in: float = 60) -> None:
    db.execute(conn, db.fail(w, [db.Failure(failed.id, failed.token, "boom", retry_in=retry_in)]))


def ids(jobs: list[db.ClaimedJob]) -> list[int]:
    return [each.id for each in jobs]


def states(conn: Conn) -> dict[int, tuple[str, str | None]]:
    return {each["id"]: (each["status"], each["waits_for"]) for each in rows(conn, "select * from pgqueue.job")}


def ask(conn: Conn, w: int, limit: int = 10) -> db.Claimed:
    return db.execute(conn, db.complete_and_claim(w, [], None, ["q"], limit))


# ------------------------------------------------------------------------------------- max_running, rate


def test_no_more_than_max_running_jobs_of_a_queue_run(conn: Conn) -> None:
    set_queue(conn, max_running=3)
    made = [enqueue(conn) for _ in range(5)]
    one, two = worker(conn), worker(conn)
    first = claim(conn, one, 2)
    assert ids(first) == made[:2]
    assert ids(claim(conn, two, 5)) == made[2:3]
    assert claim(conn, two, 5) == []
    complete(conn, one, first[0])
    assert ids(claim(conn, two, 5)) == made[3:4]


def test_a_full_queue_says_when_to_ask_again_and_only_if_somebody_waits(conn: Conn) -> None:
    set_queue(conn, max_running=1)
    enqueue(conn)
    w = worker(conn)
    (held,) = claim(conn, w)
    assert ask(conn, w).ask_in is None
    enqueue(conn)
    assert 0 < (ask(conn, w).ask_in or 0) <= 0.25
    complete(conn, w, held)
    assert len(ask(conn, w).jobs) == 1


def test_the_slots_of_a_lost_worker_come_back_with_the_sweep(conn: Conn) -> None:
    set_queue(conn, max_running=2, group_max_running=1)
    made = grouped(conn, "aab")
    lost, w = worker(conn), worker(conn)
    assert ids(claim(conn, lost, 5)) == [made[0], made[2]]
    lose(conn, lost)
    assert claim(conn, w, 5) == []
    db.execute(conn, db.sweep())
    assert ids(claim(conn, w, 5)) == [made[0], made[2]]


def test_a_limit_counts_what_ran_before_it_was_set(conn: Conn) -> None:
    for _ in range(4):
        enqueue(conn)
    w = worker(conn)
    claim(conn, w, 3)
    set_queue(conn, max_running=3)
    assert claim(conn, w, 1) == []
    set_queue(conn, max_running=None)
    assert len(claim(conn, w, 1)) == 1
    assert value(conn, "select gated from pgqueue.queue") is False


def test_a_limit_of_one_queue_leaves_the_others_alone(conn: Conn) -> None:
    set_queue(conn, max_running=1)
    for queue in ("q", "q", "other", "other"):
        enqueue(conn, queue=queue)
    w = worker(conn, ["q", "other"])
    assert [each.queue for each in claim(conn, w, 9, ["q", "other"])] == ["q", "other", "other"]


def test_no_more_jobs_start_than_the_rate_lets(conn: Conn) -> None:
    set_queue(conn, rate=2, rate_seconds=3600, rate_burst=3)
    made = [enqueue(conn) for _ in range(6)]
    w = worker(conn)
    assert ids(claim(conn, w, 10)) == made[:3]
    found = ask(conn, w)
    assert found.jobs == []
    assert found.ask_in == pytest.approx(1800, abs=30)
    assert row(conn, "select next_eligible_at > now() as waits from pgqueue.queue_status")["waits"]
    conn.execute("update pgqueue.queue_gate set full_at = full_at - interval '1800 s'")
    assert ids(claim(conn, w, 10)) == made[3:4]


def test_a_rate_without_a_burst_lets_a_tenth_of_a_second_start_at_once(conn: Conn) -> None:
    set_queue(conn, rate=100)
    assert row(conn, "select rate_seconds, rate_burst from pgqueue.queue") == {"rate_seconds": 1, "rate_burst": None}
    for _ in range(30):
        enqueue(conn)
    assert 10 <= len(claim(conn, worker(conn), 30)) <= 12


def test_a_handler_that_is_rate_limited_stops_the_queue_for_all(conn: Conn) -> None:
    first, second = enqueue(conn), enqueue(conn)
    w = worker(conn)
    (held,) = claim(conn, w)
    assert db.execute(conn, db.throttle(w, [(held.id, held.token)], [600])) == []
    assert job(conn, first)["status"] == "scheduled"
    assert job(conn, first)["attempt"] == 0
    assert claim(conn, w) == []
    assert ask(conn, w).ask_in == pytest.approx(600, abs=5)
    conn.execute("update pgqueue.queue_gate set not_before = now()")
    db.execute(conn, db.sweep_limits())
    assert ids(claim(conn, w)) == [second]
    assert value(conn, "select gated from pgqueue.queue") is False


def test_a_handler_that_is_rate_limited_stops_only_its_own_group(conn: Conn) -> None:
    made = grouped(conn, "aab")
    w = worker(conn)
    held = claim(conn, w)[0]
    db.execute(conn, db.throttle(w, [(held.id, held.token)], [600]))
    assert ids(claim(conn, w, 5)) == [made[2]]
    waits = row(conn, "select run_at - now() as ahead from pgqueue.job where id = %s", made[1])["ahead"]
    assert waits.total_seconds() == pytest.approx(600, abs=5)


# -------------------------------------------------------------------------------------------- groups


def test_a_serial_group_runs_one_job_after_the_other_in_order(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aaab")
    w = worker(conn)
    order = []
    held = claim(conn, w, 10)
    assert ids(held) == [made[0], made[3]]
    while held:
        order += ids(held)
        complete(conn, w, *held)
        held = claim(conn, w, 10)
    assert order == [made[0], made[3], made[1], made[2]]
    assert rows(conn, "select 1 from pgqueue.job_live") == []


def test_a_group_of_n_runs_n_at_a_time(conn: Conn) -> None:
    set_queue(conn, group_max_running=2)
    made = grouped(conn, "aaaa")
    w = worker(conn)
    held = claim(conn, w, 10)
    assert ids(held) == made[:2]
    complete(conn, w, held[0])
    assert ids(claim(conn, w, 10)) == made[2:3]


def test_jobs_without_a_group_have_no_limit_of_one(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    for _ in range(3):
        enqueue(conn)
    assert len(claim(conn, worker(conn), 3)) == 3


def test_a_newcomer_never_overtakes_a_parked_job_of_its_group(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    w = worker(conn)
    held = claim(conn, w, 10)
    late = enqueue(conn, group="a")
    complete(conn, w, *held)
    held = claim(conn, w, 10)
    assert ids(held) == made[1:2]
    complete(conn, w, *held)
    assert ids(claim(conn, w, 10)) == [late]


def test_within_a_group_priority_is_a_head_start_as_everywhere(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    first = enqueue(conn, group="a")
    w = worker(conn)
    held = claim(conn, w, 1)
    low, high = enqueue(conn, group="a"), enqueue(conn, group="a", priority=5)
    assert claim(conn, w, 5) == []
    complete(conn, w, *held)
    held = claim(conn, w, 5)
    assert (first, ids(held)) == (first, [high])
    complete(conn, w, *held)
    assert ids(claim(conn, w, 5)) == [low]


def test_a_retry_holds_its_group_or_steps_aside(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    w = worker(conn)
    (held,) = claim(conn, w, 5)
    fail(conn, w, held)
    assert claim(conn, w, 5) == []
    make_due(conn, made[0])
    (held,) = claim(conn, w, 5)
    assert held.id == made[0]
    set_queue(conn, group_on_retry="step_aside")
    fail(conn, w, held)
    assert ids(claim(conn, w, 5)) == [made[1]]


def test_a_released_job_keeps_its_place_in_its_group(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    w = worker(conn)
    (held,) = claim(conn, w, 5)
    db.execute(conn, db.release(w, [(held.id, held.token)]))
    assert ids(claim(conn, w, 5)) == made[:1]


@pytest.mark.parametrize("end", ["cancel", "cancel_claimed", "snooze", "fatal", "expire"])
def test_whatever_ends_a_job_its_group_goes_on(conn: Conn, end: str) -> None:
    set_queue(conn, group_max_running=1, group_on_retry="step_aside")
    made = grouped(conn, "aaa")
    w = worker(conn)
    (held,) = claim(conn, w, 5)
    if end == "cancel":
        complete(conn, w, held)
        db.execute(conn, db.cancel(made[1]))  # it had the slot already, waiting to be claimed
        made = made[1:]
    elif end == "cancel_claimed":
        db.execute(conn, db.cancel_claimed(w, [(held.id, held.token)]))
    elif end == "snooze":
        db.execute(conn, db.snooze(w, [(held.id, held.token)], [60.0]))
    elif end == "fatal":
        db.execute(conn, db.fail(w, [db.Failure(held.id, held.token, "boom", fatal=True)]))
    else:
        complete(conn, w, held)
        conn.execute("update pgqueue.job_live set expires_at = now() where id = %s", [made[1]])
        db.execute(conn, db.sweep())
        made = made[1:]
    assert ids(claim(conn, w, 5)) == made[1:2]


def test_a_debounced_job_gives_the_slot_back_that_it_waited_with(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    first = enqueue(conn, group="a")
    w = worker(conn)
    held = claim(conn, w)
    keyed = enqueue(conn, group="a", key="k")
    other = enqueue(conn, group="a")
    assert claim(conn, w, 5) == []
    complete(conn, w, *held)
    assert job(conn, keyed)["holds_slot"]
    again = enqueue(conn, group="a", key="k", on_conflict="replace", run_in=timedelta(hours=1))
    assert (again, job(conn, keyed)["holds_slot"]) == (keyed, False)
    assert (first, ids(claim(conn, w, 5))) == (first, [other])


def test_a_raised_limit_and_a_lifted_one_let_parked_jobs_go(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aaaa")
    w = worker(conn)
    claim(conn, w, 5)
    set_queue(conn, group_max_running=2)
    assert ids(claim(conn, w, 5)) == made[1:2]
    set_queue(conn, group_max_running=None)
    assert ids(claim(conn, w, 5)) == made[2:]


def test_a_group_can_be_paused_and_goes_on_by_itself(conn: Conn) -> None:
    made = grouped(conn, "aab")
    db.execute(conn, db.pause_group("q", "a", until=datetime.now(UTC) + timedelta(hours=1), reason="unpaid"))
    w = worker(conn)
    assert ids(claim(conn, w, 5)) == made[2:]
    assert row(conn, "select paused, paused_reason, blocked from pgqueue.group_status where group_key = 'a'") == {
        "paused": True, "paused_reason": "unpaid", "blocked": 2,
    }  # fmt: skip
    conn.execute("update pgqueue.queue_group set paused_until = now()")
    db.execute(conn, db.sweep_limits())
    assert ids(claim(conn, w, 5)) == made[:2]
    assert value(conn, "select grouped from pgqueue.queue") is False


def test_a_group_that_is_resumed_goes_on_at_once(conn: Conn) -> None:
    made = grouped(conn, "aa")
    db.execute(conn, db.pause_group("q", "a"))
    w = worker(conn)
    assert claim(conn, w, 5) == []
    assert db.execute(conn, db.resume_group("q", "a")) is True
    assert db.execute(conn, db.resume_group("q", "a")) is False
    assert ids(claim(conn, w, 5)) == made


def test_the_rate_of_a_group_holds_for_each_group(conn: Conn) -> None:
    set_queue(conn, group_rate=1, group_rate_seconds=3600, group_rate_burst=2)
    made = grouped(conn, "aaaab")
    w = worker(conn)
    assert ids(claim(conn, w, 9)) == [made[0], made[1], made[4]]
    assert states(conn)[made[2]] == ("scheduled", None)
    assert states(conn)[made[3]] == ("scheduled", None)
    ahead = value(conn, "select run_at - now() from pgqueue.job where id = %s", made[2])
    assert ahead.total_seconds() == pytest.approx(3600, abs=60)
    conn.execute("update pgqueue.queue_group set full_at = full_at - interval '3600 s'")
    for each in made[2:4]:
        make_due(conn, each)
    assert ids(claim(conn, w, 9)) == made[2:3]
    assert states(conn)[made[3]] == ("scheduled", None)


def test_rows_of_groups_that_are_gone_are_removed(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    grouped(conn, "abcc")
    w = worker(conn)
    held = claim(conn, w, 9)
    complete(conn, w, *held[:2])
    db.execute(conn, db.sweep_limits())
    assert [each["group_key"] for each in rows(conn, "select group_key from pgqueue.queue_group")] == ["c"]


def test_what_was_granted_too_little_is_found_by_the_sweep(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    w = worker(conn)
    claim(conn, w, 9)
    conn.execute("delete from pgqueue.job_live where id = %s", [made[0]])  # as if its end had passed unseen
    assert claim(conn, w, 9) == []
    db.execute(conn, db.sweep_limits())
    assert ids(claim(conn, w, 9)) == made[1:]


# --------------------------------------------------------------------------------------------- turns


def test_in_a_fair_queue_groups_take_turns(conn: Conn) -> None:
    set_queue(conn, fair=True)
    grouped(conn, "a" * 50)
    grouped(conn, "bbb")
    w = worker(conn)
    order = "".join(str(each.group_key) for _ in range(9) for each in claim(conn, w, 1))
    assert order.index("b") <= 2
    assert order[:8].count("b") == 3
    assert len(claim(conn, w, 100)) == 44


def test_in_a_fair_queue_nobody_waits_behind_a_group_of_many(conn: Conn) -> None:
    set_queue(conn, fair=True)
    grouped(conn, "a" * 3000)
    small = grouped(conn, "bcd")
    w = worker(conn)
    first = ids(claim(conn, w, 4))
    assert set(small) <= set(first)


def test_turns_and_a_limit_go_together(conn: Conn) -> None:
    set_queue(conn, fair=True, group_max_running=2)
    made = grouped(conn, "aaaaabb")
    w = worker(conn)
    held = claim(conn, w, 10)
    assert sorted(str(each.group_key) for each in held) == ["a", "a", "b", "b"]
    complete(conn, w, *held)
    assert ids(claim(conn, w, 10)) == made[2:4]


# --------------------------------------------------------------------------------------------- depth


def test_a_full_queue_refuses_with_a_time_to_try_again(conn: Conn) -> None:
    set_queue(conn, max_depth=3)
    for _ in range(3):
        enqueue(conn)
    with pytest.raises(QueueFull, match="queue 'q' is full: 3 jobs or more wait") as full:
        enqueue(conn)
    assert 1 <= full.value.retry_after <= 60
    assert value(conn, "select count(*) from pgqueue.job") == 3
    claim(conn, worker(conn), 1)
    enqueue(conn)


def test_many_are_taken_whole_or_not_at_all(conn: Conn) -> None:
    set_queue(conn, max_depth=5)
    with pytest.raises(QueueFull):
        db.execute(conn, db.enqueue_many("q", "t", [{}] * 6))
    assert value(conn, "select count(*) from pgqueue.job") == 0
    db.execute(conn, db.enqueue_many("q", "t", [{}] * 5))
    with pytest.raises(QueueFull):
        enqueue(conn)


def test_a_key_that_is_taken_is_returned_by_a_full_queue_too(conn: Conn) -> None:
    set_queue(conn, max_depth=1)
    id = enqueue(conn, key="k")
    assert enqueue(conn, key="k") == id
    made = db.execute(conn, db.enqueue_many("q", "t", [{}], keys=["k"]))
    assert made == [db.Enqueued(id, False)]


def test_a_full_queue_sheds_what_matters_less(conn: Conn) -> None:
    set_queue(conn, max_depth=1, shed_below=0)
    enqueue(conn)
    shed, kept = enqueue(conn, {"n": 1}, priority=-1), enqueue(conn)
    assert job(conn, shed)["status"] == "cancelled"
    assert job(conn, shed)["error_type"] == "Shed"
    assert "queue 'q' was full" in job(conn, shed)["error"]
    assert job(conn, kept)["status"] == "pending"
    made = db.execute(conn, db.enqueue_many("q", "t", [{}, {}], priorities=[-5, 5]))
    assert [job(conn, each.id)["status"] for each in made] == ["cancelled", "pending"]


def test_the_depth_is_put_right_when_enqueues_rolled_back(conn: Conn) -> None:
    set_queue(conn, max_depth=2)
    for _ in range(3):
        with conn.transaction(force_rollback=True):
            enqueue(conn)
        conn.execute("update pgqueue.queue_gate set depth_counted_at = '-infinity'")
        db.execute(conn, db.sweep_limits())
    enqueue(conn)
    enqueue(conn)
    with pytest.raises(QueueFull):
        enqueue(conn)


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_running": 0}, "max_running"),
        ({"max_running": "many"}, "integer"),
        ({"rate": -1}, "rate"),
        ({"rate": 1, "rate_seconds": 0}, "rate_seconds"),
        ({"group_max_running": 100_001}, "group_max_running"),
        ({"group_on_retry": "wait"}, "group_on_retry"),
        ({"fair": "perhaps"}, "boolean"),
        ({"shed_below": 0}, "shed"),
        ({"max_depth": 5, "shed_below": 101}, "shed_below"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_and_changes_nothing(
    conn: Conn, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        set_queue(conn, **settings)
    assert rows(conn, "select 1 from pgqueue.queue") == []


@pytest.mark.parametrize("group", ["", "x" * 513])
def test_a_bad_group_is_refused(conn: Conn, group: str) -> None:
    with pytest.raises(InvalidArgument, match="a group has 1 to 512 bytes"):
        enqueue(conn, group=group)
    with pytest.raises(InvalidArgument, match="a group has 1 to 512 bytes"):
        db.execute(conn, db.enqueue_many("q", "t", [{}, {}], groups=["fine", group]))
    with pytest.raises(InvalidArgument, match="a group has 1 to 512 bytes"):
        db.execute(conn, db.pause_group("q", group))
    assert rows(conn, "select 1 from pgqueue.job") == []
