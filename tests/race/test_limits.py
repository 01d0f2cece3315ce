"""Limits under races: two connections, one of them in the middle of its transaction."""

from __future__ import annotations

from typing import Any

import pytest

from pgqueue import database as db
from tests.race.steps import commit_or_rollback, complete, finish
from tests.support import Conn, Rival, claim, enqueue, job, rows, value, worker


def set_queue(conn: Conn, **settings: Any) -> None:
    db.execute(conn, db.set_queue("q", settings))


def grouped(conn: Conn, groups: str) -> list[int]:
    return [each.id for each in db.execute(conn, db.enqueue_many("q", "t", [{}] * len(groups), groups=list(groups)))]


def ids(jobs: list[db.ClaimedJob]) -> list[int]:
    return [each.id for each in jobs]


@commit_or_rollback
def test_two_claims_never_exceed_max_running(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    set_queue(conn, max_running=2)
    made = [enqueue(conn) for _ in range(4)]
    one, two = worker(conn), worker(conn)
    assert ids(claim(holder, one, 1)) == made[:1]
    # The other does not wait for it: it is told to ask again.
    found = db.execute(other, db.complete_and_claim(two, [], None, ["q"], 4))
    assert found.jobs == []
    assert found.ask_in is not None
    assert found.ask_in < 0.1
    finish(holder, end)
    assert ids(claim(other, two, 4)) == (made[1:2] if end == "commit" else made[:2])


@commit_or_rollback
def test_two_claims_never_run_a_serial_group_twice(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    set_queue(conn, group_max_running=1)
    one, two = worker(conn), worker(conn)
    grouped(conn, "ab")
    complete(conn, one, *claim(conn, one, 2))  # both have their rows
    made = grouped(conn, "aaab")
    assert ids(claim(holder, one, 1)) == made[:1]
    # The group is busy: its jobs are left alone, those of others are not.
    assert ids(claim(other, two, 4)) == made[3:]
    finish(holder, end)
    assert ids(claim(other, two, 4)) == ([] if end == "commit" else made[:1])


def test_a_job_parked_while_the_slot_came_free_is_not_forgotten(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    one, two = worker(conn), worker(conn)
    held = claim(conn, one, 1)
    # It counts the running job, parks the next one, and has not committed yet, when the first one completes.
    assert claim(holder, two, 5) == []
    rival = Rival(other, lambda rival: complete(rival, one, *held))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == []
    assert ids(claim(conn, two, 5)) == made[1:]


def test_a_job_that_a_rolled_back_claim_would_have_parked_runs(conn: Conn, holder: Conn, other: Conn, dsn: str) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    one, two = worker(conn), worker(conn)
    held = claim(conn, one, 1)
    assert claim(holder, two, 5) == []
    rival = Rival(other, lambda rival: complete(rival, one, *held))
    rival.wait_blocked(dsn)
    holder.rollback()
    assert rival.result() == []
    assert ids(claim(conn, two, 5)) == made[1:]


@commit_or_rollback
def test_a_completion_that_is_not_committed_has_not_passed_its_slot_on(
    conn: Conn, holder: Conn, other: Conn, end: str
) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    one, two = worker(conn), worker(conn)
    held = claim(conn, one, 5)
    complete(holder, one, *held)
    assert claim(other, two, 5) == []
    finish(holder, end)
    assert ids(claim(other, two, 5)) == (made[1:] if end == "commit" else [])


def test_two_completions_of_a_group_let_two_jobs_follow(conn: Conn, holder: Conn, other: Conn, dsn: str) -> None:
    set_queue(conn, group_max_running=2)
    made = grouped(conn, "aaaa")
    one, two = worker(conn), worker(conn)
    first = claim(conn, one, 1)
    second = claim(conn, two, 5)
    assert (ids(first), ids(second)) == (made[:1], made[1:2])
    complete(holder, one, *first)
    rival = Rival(other, lambda rival: complete(rival, two, *second))
    rival.wait_blocked(dsn)
    holder.commit()
    rival.result()
    assert ids(claim(conn, one, 5)) == made[2:]


def test_an_enqueue_that_is_not_committed_makes_nobody_of_its_group_wait(conn: Conn, holder: Conn, other: Conn) -> None:
    set_queue(conn, group_max_running=1, fair=True)
    enqueue(holder, group="a")
    second = enqueue(other, group="a")
    w = worker(conn)
    held = claim(conn, w, 5)
    assert ids(held) == [second]
    complete(conn, w, *held)
    holder.commit()
    assert len(claim(conn, w, 5)) == 1


def test_two_completions_of_the_same_groups_in_another_order_do_not_deadlock(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    set_queue(conn, group_max_running=2)
    grouped(conn, "abba" + "ab" * 4)
    one, two = worker(conn), worker(conn)
    first, second = claim(conn, one, 2), claim(conn, two, 2)
    assert claim(conn, one, 9) == []  # all others are parked
    complete(holder, one, *first)
    rival = Rival(other, lambda rival: complete(rival, two, *second))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == []
    assert value(conn, "select count(*) from pgqueue.job_live where holds_slot") == 4


def test_cancelling_the_next_of_a_group_while_it_is_claimed_leaves_one_that_runs(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aaa")
    one = worker(conn)
    complete(conn, one, *claim(conn, one, 1))
    db.execute(conn, db.sweep_limits())
    claim(conn, one, 0)
    assert ids(claim(holder, one, 1)) == made[1:2]
    rival = Rival(other, lambda rival: db.execute(rival, db.cancel(made[1])))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == "running"
    assert job(conn, made[1])["cancel_requested_at"] is not None
    assert len(rows(conn, "select 1 from pgqueue.job_live where holds_slot")) == 1


def test_two_claims_do_not_let_two_probes_through(conn: Conn, holder: Conn, other: Conn) -> None:
    db.execute(conn, db.set_task("t", {"breaker_min": 1}))
    w, two = worker(conn), worker(conn)
    enqueue(conn)
    (failed,) = claim(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(failed.id, failed.token, "boom", retry_in=600)]))
    for _ in range(3):
        enqueue(conn)
    assert claim(conn, w, 5) == []
    conn.execute("update pgqueue.task set circuit_probe_at = now()")
    db.execute(holder, db.sweep_limits())
    assert db.execute(other, db.sweep_limits()) == []  # somebody else is at it
    holder.commit()
    assert len(claim(holder, w, 5)) == 1
    assert claim(other, two, 5) == []


def test_a_job_of_a_serial_group_does_not_pass_one_that_another_claim_has_in_its_hands(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    set_queue(conn, group_max_running=1)
    w = worker(conn)
    made = grouped(conn, "aa")
    holder.execute(
        "select 1 from pgqueue.job_live where id = %s for update", [made[0]]
    )  # as a claim that leaves it alone
    assert claim(other, w, 5) == []
    holder.rollback()
    assert ids(claim(other, w, 5)) == made[:1]


def test_a_job_that_no_claim_has_met_goes_before_a_parked_one_that_comes_after_it(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    w = worker(conn)
    made = grouped(conn, "aa")
    conn.execute("update pgqueue.job_live set status = 'blocked', waits_for = 'group' where id = %s", [made[1]])
    db.execute(conn, db.sweep_limits())
    (first,) = claim(conn, w, 5)
    assert first.id == made[0]
    complete(conn, w, first)
    assert ids(claim(conn, w, 5)) == made[1:]


def test_nobody_is_parked_because_of_a_job_that_the_same_claim_does_not_start(conn: Conn) -> None:
    set_queue(conn, group_max_running=1, fair=True)
    w = worker(conn)
    made = grouped(conn, "abb")
    assert ids(claim(conn, w, 1)) == made[:1]
    assert job(conn, made[2])["status"] == "pending"
    assert ids(claim(conn, w, 5)) == made[1:2]
    assert job(conn, made[2])["status"] == "blocked"


@pytest.mark.parametrize("what", ["resume", "throttle"])
def test_the_gate_is_locked_after_the_queue_as_the_sweep_does(
    conn: Conn, holder: Conn, other: Conn, dsn: str, what: str
) -> None:
    w = worker(conn)
    for _ in range(2):
        enqueue(conn)
    one, two = claim(conn, w, 2)
    db.execute(conn, db.throttle(w, [(one.id, one.token)], [600]))
    call: db.Call[Any] = db.resume("q") if what == "resume" else db.throttle(w, [(two.id, two.token)], [900])
    holder.execute("select pgqueue.regate('q')")  # where the sweep has got to
    rival = Rival(other, lambda conn: db.execute(conn, call))
    rival.wait_blocked(dsn)
    holder.execute("update pgqueue.queue_gate set swept_group = 'x' where queue = 'q'")  # and how it goes on
    holder.commit()
    assert rival.result() == (True if what == "resume" else [])


def test_resuming_a_group_leaves_alone_a_job_that_somebody_else_has(conn: Conn, holder: Conn, other: Conn) -> None:
    first, second = grouped(conn, "aa")
    w = worker(conn)
    (held,) = claim(conn, w, 1)
    db.execute(conn, db.throttle(w, [(held.id, held.token)], [600]))
    assert claim(conn, w, 5) == []
    assert (held.id, job(conn, second)["status"]) == (first, "scheduled")
    holder.execute("select 1 from pgqueue.job_live where id = %s for update", [second])
    assert db.execute(other, db.resume_group("q", "a")) is True
    holder.rollback()
    assert value(conn, "select not_before = '-infinity' from pgqueue.queue_group")
