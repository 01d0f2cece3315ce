"""Flows under races: two connections, one of them in the middle of its transaction."""

from __future__ import annotations

from typing import Any

import pytest

from pgqueue import database as db
from tests.race.steps import commit_or_rollback, complete, fail, finish, statuses
from tests.support import Conn, Rival, claim, enqueue, job, lose, row, rows, value, worker


def flow(conn: Conn, jobs: str, *edges: str, **options: Any) -> list[int]:
    """One job a letter; "ab" runs b after a."""
    listed = [
        {"name": name, "queue": "q", "task": "t", "after": [edge[0] for edge in edges if edge[1] == name], **options}
        for name in jobs
    ]
    return db.execute(conn, db.enqueue_flow({"jobs": listed})).job_ids


def started(conn: Conn, count: int) -> tuple[int, list[db.ClaimedJob]]:
    worker_id = worker(conn)
    jobs = sorted(claim(conn, worker_id, count))
    assert len(jobs) == count
    return worker_id, jobs


def counts(conn: Conn) -> dict[str, int]:
    return row(conn, "select total, blocked, completed, dead, cancelled from pgqueue.flow")


@commit_or_rollback
def test_two_last_parents_at_once_release_the_child_once(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    _, _, child = flow(conn, "abc", "ac", "bc")
    w, (first, second) = started(conn, 2)
    assert complete(holder, w, first) == []
    rival = Rival(other, lambda rival: complete(rival, w, second))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert job(conn, child)["status"] == ("pending" if end == "commit" else "blocked")
    if end == "rollback":
        assert complete(conn, w, first) == []
    assert [each.id for each in claim(conn, w, 5)] == [child]
    assert claim(conn, w, 5) == []


def test_a_batch_with_both_last_parents_releases_the_child_once(conn: Conn) -> None:
    *_, child = flow(conn, "abc", "ac", "bc")
    w, jobs = started(conn, 2)
    assert complete(conn, w, *jobs) == []
    assert complete(conn, w, *jobs) == [each.id for each in jobs]  # again: the fence
    assert [each.id for each in claim(conn, w, 5)] == [child]


@commit_or_rollback
def test_a_failure_and_a_completion_of_two_last_parents(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    *_, child = flow(conn, "abc", "ac", "bc", on_death="continue")
    w, (first, second) = started(conn, 2)
    assert fail(holder, w, first, fatal=True) == "dead"
    rival = Rival(other, lambda rival: complete(rival, w, second))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert job(conn, child)["status"] == ("pending" if end == "commit" else "blocked")
    assert counts(conn) == {"total": 3, "blocked": int(end == "rollback"), "completed": 1, "dead": int(end == "commit"),
                            "cancelled": 0}  # fmt: skip


@commit_or_rollback
def test_a_completion_that_stops_nothing_while_the_other_parent_dies(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    *_, child = flow(conn, "abc", "ac", "bc", on_death="stop")
    w, (first, second) = started(conn, 2)
    assert complete(holder, w, first) == []
    rival = Rival(other, lambda rival: fail(rival, w, second, fatal=True))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == "dead"
    assert job(conn, child)["status"] == "cancelled"
    assert "parent b" in job(conn, child)["error"]


@commit_or_rollback
def test_a_child_is_cancelled_while_its_last_parent_completes(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    _, child = flow(conn, "ab", "ab")
    w, (parent,) = started(conn, 1)
    assert complete(holder, w, parent) == []
    rival = Rival(other, lambda rival: db.execute(rival, db.cancel(child)))
    rival.wait_blocked(dsn)
    finish(holder, end)
    # Released or not: it has not run yet.
    assert rival.result() == "cancelled"
    assert counts(conn)["cancelled"] == 1
    assert counts(conn)["blocked"] == 0
    if end == "rollback":
        assert complete(conn, w, parent) == []
    assert value(conn, "select ended_at is not null from pgqueue.flow") is True


@commit_or_rollback
def test_the_last_parent_completes_while_the_child_is_being_cancelled(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    _, child = flow(conn, "ab", "ab")
    w, (parent,) = started(conn, 1)
    assert db.execute(holder, db.cancel(child)) == "cancelled"
    rival = Rival(other, lambda rival: complete(rival, w, parent))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert job(conn, child)["status"] == ("cancelled" if end == "commit" else "pending")
    assert counts(conn)["blocked"] == 0


@commit_or_rollback
def test_a_job_between_two_others_is_cancelled_while_the_first_completes(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    # The canceller wants the last one, which the completion has counted down; the completion the middle one.
    _, middle, last = flow(conn, "abc", "ab", "ac", "bc", on_death="continue")
    w, (first,) = started(conn, 1)
    assert db.execute(holder, db.cancel(middle)) == "cancelled"
    rival = Rival(other, lambda rival: complete(rival, w, first))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert (job(conn, middle)["status"], job(conn, last)["status"]) == (
        ("cancelled", "pending") if end == "commit" else ("pending", "blocked")
    )


@commit_or_rollback
def test_two_jobs_of_a_flow_are_cancelled_at_once(conn: Conn, holder: Conn, other: Conn, dsn: str, end: str) -> None:
    first, second, child = flow(conn, "abc", "ac", "bc", on_death="continue")
    assert db.execute(holder, db.cancel(first)) == "cancelled"
    rival = Rival(other, lambda rival: db.execute(rival, db.cancel(second)))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == "cancelled"
    assert job(conn, child)["status"] == ("pending" if end == "commit" else "blocked")


@commit_or_rollback
def test_a_parent_and_its_waiting_child_are_cancelled_at_once(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    parent, child = flow(conn, "ab", "ab", on_death="stop")
    assert db.execute(holder, db.cancel(child)) == "cancelled"
    rival = Rival(other, lambda rival: db.execute(rival, db.cancel(parent)))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == "cancelled"
    assert set(statuses(conn).values()) == {"cancelled"}
    assert job(conn, child)["error_type"] == ("Cancelled" if end == "commit" else "Stopped")
    assert counts(conn) == {"total": 2, "blocked": 0, "completed": 0, "dead": 0, "cancelled": 2}


@commit_or_rollback
def test_a_sweep_finds_the_other_parent_dead_while_one_completes(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    *_, child = flow(conn, "abc", "ac", "bc", on_death="continue", max_attempts=1)
    alive, lost = worker(conn), worker(conn)
    (first,), (_second,) = claim(conn, alive, 1), claim(conn, lost, 1)
    lose(conn, lost)
    assert complete(holder, alive, first) == []
    rival = Rival(other, lambda rival: db.execute(rival, db.sweep()))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result().died == 1
    assert job(conn, child)["status"] == ("pending" if end == "commit" else "blocked")
    if end == "rollback":
        assert complete(conn, alive, first) == []
    assert [each.id for each in claim(conn, alive, 5)] == [child]


def test_the_last_parent_is_swept_while_its_stale_worker_completes_it(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    _, child = flow(conn, "ab", "ab")
    w, (parent,) = started(conn, 1)
    lose(conn, w)
    assert db.execute(holder, db.sweep()).retried == 1
    rival = Rival(other, lambda rival: complete(rival, w, parent))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == [parent.id]
    assert job(conn, child)["status"] == "blocked"


def test_a_stale_worker_that_adds_to_its_flow_is_refused(conn: Conn, holder: Conn, other: Conn, dsn: str) -> None:
    flow(conn, "ab", "ab")
    w, (parent,) = started(conn, 1)
    lose(conn, w)
    assert db.execute(holder, db.sweep()).retried == 1
    rival = Rival(
        other,
        lambda rival: db.execute(
            rival, db.extend_flow(w, parent.id, parent.token, [{"queue": "q", "task": "t"}], True)
        ),
    )
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() is None
    assert counts(conn)["total"] == 2


@commit_or_rollback
def test_a_dead_parent_is_retried_while_the_other_completes(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    first, _, child = flow(conn, "abc", "ac", "bc", on_death="continue")
    w, (dead, second) = started(conn, 2)
    assert fail(conn, w, dead, fatal=True) == "dead"
    assert db.execute(holder, db.retry(first)) == "pending"
    rival = Rival(other, lambda rival: complete(rival, w, second))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    # It runs again, so the child waits for it again.
    assert job(conn, child)["status"] == ("blocked" if end == "commit" else "pending")
    if end == "commit":
        (again,) = claim(conn, w, 5)
        assert complete(conn, w, again) == []
    assert [each.id for each in claim(conn, w, 5)] == [child]


@commit_or_rollback
def test_the_last_parent_completes_while_a_dead_one_is_retried_too_late(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    first, _, child = flow(conn, "abc", "ac", "bc", on_death="continue")
    w, (dead, second) = started(conn, 2)
    assert fail(conn, w, dead, fatal=True) == "dead"
    assert complete(holder, w, second) == []
    rival = Rival(other, lambda rival: db.execute(rival, db.retry(first)))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == "pending"
    assert job(conn, child)["status"] == ("pending" if end == "commit" else "blocked")


@commit_or_rollback
def test_a_stopped_child_and_its_dead_parent_are_retried_at_once(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    parent, child = flow(conn, "ab", "ab", on_death="stop")
    w, (running,) = started(conn, 1)
    assert fail(conn, w, running, fatal=True) == "dead"
    assert job(conn, child)["status"] == "cancelled"
    assert db.execute(holder, db.retry(child)) == "blocked"  # it still runs after its parent
    rival = Rival(other, lambda rival: db.execute(rival, db.retry(parent)))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == "pending"
    assert statuses(conn) == {parent: "pending", child: "blocked"}
    assert counts(conn) == {"total": 2, "blocked": 1, "completed": 0, "dead": 0, "cancelled": 0}


@commit_or_rollback
def test_a_bulk_retry_and_a_single_one_of_the_same_flow(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    parent, child = flow(conn, "ab", "ab", on_death="stop")
    w, (running,) = started(conn, 1)
    fail(conn, w, running, fatal=True)
    assert db.execute(holder, db.retry(parent)) == "pending"
    rival = Rival(other, lambda rival: db.execute(rival, db.retry_many(db.Filter(), status="cancelled")))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result().retried == (0 if end == "commit" else 1)
    assert statuses(conn) == {parent: "pending" if end == "commit" else "dead", child: "blocked"}


@commit_or_rollback
def test_a_flow_is_cancelled_while_one_of_its_jobs_completes(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    parent, child = flow(conn, "ab", "ab")
    w, (running,) = started(conn, 1)
    assert complete(holder, w, running) == []
    rival = Rival(other, lambda rival: db.execute(rival, db.cancel_flow(flow_id(rival))))
    rival.wait_blocked(dsn)
    finish(holder, end)
    found = rival.result()
    if end == "commit":
        assert (found.cancelled, found.asked) == (1, 0)
        assert statuses(conn) == {parent: "completed", child: "cancelled"}
    else:
        assert (found.cancelled, found.asked) == (1, 1)
        assert complete(conn, w, running) == []
    assert value(conn, "select status from pgqueue.flow_status") == "cancelled"


def flow_id(conn: Conn) -> int:
    return int(value(conn, "select id from pgqueue.flow"))


@commit_or_rollback
def test_a_job_completes_while_its_flow_is_being_cancelled(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    parent, child = flow(conn, "ab", "ab")
    w, (running,) = started(conn, 1)
    assert db.execute(holder, db.cancel_flow(flow_id(conn))) == (1, 1)
    rival = Rival(other, lambda rival: complete(rival, w, running))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert statuses(conn) == {parent: "completed", child: "cancelled" if end == "commit" else "pending"}


def test_what_is_just_being_claimed_when_its_flow_is_cancelled_follows_with_the_sweep(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    parent, child = flow(conn, "ab", "ab")
    w = worker(conn)
    (running,) = claim(holder, w, 1)
    # The canceller does not wait for the claim: whoever completes a job waits for the flow.
    assert db.execute(other, db.cancel_flow(flow_id(conn))) == (1, 0)
    holder.commit()
    assert job(conn, parent)["cancel_requested_at"] is None
    db.execute(conn, db.sweep())
    assert db.execute(conn, db.heartbeat(w)).cancel_ids == [parent]
    assert db.execute(conn, db.cancel_claimed(w, [(running.id, running.token)])) == []
    assert statuses(conn) == {parent: "cancelled", child: "cancelled"}


@commit_or_rollback
def test_jobs_are_added_while_another_parent_of_the_successor_completes(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    *_, child = flow(conn, "abc", "ac", "bc")
    w, (splits, second) = started(conn, 2)
    added = db.execute(holder, db.extend_flow(w, splits.id, splits.token, [{"queue": "q", "task": "part"}] * 2, True))
    assert complete(holder, w, splits) == []
    rival = Rival(other, lambda rival: complete(rival, w, second))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert job(conn, child)["status"] == "blocked"
    if end == "rollback":
        assert complete(conn, w, splits) == []
    else:
        parts = claim(conn, w, 5)
        assert sorted(each.id for each in parts) == added
        assert complete(conn, w, *parts) == []
    assert [each.id for each in claim(conn, w, 5)] == [child]


@commit_or_rollback
def test_a_waiting_job_that_is_replaced_while_its_parent_completes_runs_with_the_new_payload(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    made = db.execute(conn, db.enqueue_flow({"jobs": [
        {"queue": "q", "task": "t"}, {"queue": "q", "task": "t", "key": "k", "after": [0]}]}))  # fmt: skip
    w, (parent,) = started(conn, 1)
    assert enqueue(holder, {"n": 2}, key="k", on_conflict="replace") == made.job_ids[1]
    rival = Rival(other, lambda rival: complete(rival, w, parent))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    (child,) = claim(conn, w, 5)
    assert child.payload == ({"n": 2} if end == "commit" else {})


@commit_or_rollback
def test_a_dead_parent_is_purged_while_it_is_being_retried(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    parent, child = flow(conn, "ab", "ab")
    w, (running,) = started(conn, 1)
    fail(conn, w, running, fatal=True)
    assert db.execute(holder, db.retry(parent)) == "pending"
    rival = Rival(other, lambda rival: db.execute(rival, db.purge(db.Filter(), status="dead")))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result().purged == (0 if end == "commit" else 1)
    assert job(conn, child)["status"] == ("blocked" if end == "commit" else "cancelled")


def test_an_expiring_child_does_not_make_the_sweep_wait_for_a_completion(conn: Conn, holder: Conn, other: Conn) -> None:
    _, child = flow(conn, "ab", "ab")
    w, (parent,) = started(conn, 1)
    conn.execute("update pgqueue.job_live set expires_at = clock_timestamp() - interval '1 s' where id = %s", [child])
    complete(holder, w, parent)
    assert db.execute(other, db.sweep()).expired == 0
    holder.rollback()
    assert db.execute(other, db.sweep()).expired == 1
    assert job(conn, child)["error_type"] == "Expired"


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_batches_that_meet_in_two_flows_do_not_deadlock(
    conn: Conn, holder: Conn, other: Conn, dsn: str, order: str
) -> None:
    one, two = flow(conn, "abc", "ac", "bc"), flow(conn, "abc", "ac", "bc")
    w, jobs = started(conn, 4)
    by_id = {each.id: each for each in jobs}
    first, second = [by_id[one[0]], by_id[two[0]]], [by_id[two[1]], by_id[one[1]]]
    complete(holder, w, *(first if order == "ab" else first[::-1]))
    rival = Rival(other, lambda rival: complete(rival, w, *second))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == []
    assert sorted(each.id for each in claim(conn, w, 5)) == [one[2], two[2]]
    assert rows(conn, "select 1 from pgqueue.flow where blocked > 0") == []
