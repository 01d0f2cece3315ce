"""Operators' commands in the middle of everything else."""

from __future__ import annotations

import pytest

from pgqueue import database as db
from pgqueue.errors import JobNotFound, WrongStatus
from tests.race.steps import commit_or_rollback, complete, dead, fail, finish, outcomes, running, statuses
from tests.support import Conn, Rival, claim, claim_one, enqueue, job, worker


def cancel(conn: Conn, id: int) -> str:
    return db.execute(conn, db.cancel(id))


def retry(conn: Conn, id: int) -> str:
    return db.execute(conn, db.retry(id))


def retry_many(conn: Conn, batch: int = 1000, after_id: int = 0) -> db.RetriedMany:
    return db.execute(conn, db.retry_many(db.Filter(queue="q"), batch=batch, after_id=after_id))


def purge_dead(conn: Conn) -> db.Purged:
    return db.execute(conn, db.purge(db.Filter(queue="q"), status="dead"))


# ----------------------------------------------------------------------------------- cancel × others


@commit_or_rollback
def test_a_cancel_that_waited_for_a_claim_asks_the_worker_to_stop(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    id = enqueue(conn)
    worker_id = worker(conn)
    claim_one(holder, worker_id)
    rival = Rival(other, lambda c: cancel(c, id))
    rival.wait_blocked(dsn)
    finish(holder, end)
    if end == "commit":
        assert rival.result() == "running"
        assert db.execute(conn, db.heartbeat(worker_id)).cancel_ids == [id]
    else:
        assert rival.result() == "cancelled"
        assert statuses(conn) == {id: "cancelled"}


@commit_or_rollback
def test_a_claim_passes_over_a_job_that_is_being_cancelled(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    id = enqueue(conn)
    worker_id = worker(conn)
    assert cancel(holder, id) == "cancelled"
    assert claim(other, worker_id) == []
    finish(holder, end)
    assert [job.id for job in claim(other, worker_id)] == ([] if end == "commit" else [id])


@commit_or_rollback
def test_a_cancel_that_waited_for_a_complete_is_told_how_the_job_ended(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (mine,) = running(conn)
    complete(holder, worker_id, mine)
    rival = Rival(other, lambda c: cancel(c, mine.id))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == ("completed" if end == "commit" else "running")


@commit_or_rollback
def test_a_complete_that_waited_for_a_cancel_still_counts(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (mine,) = running(conn)
    assert cancel(holder, mine.id) == "running"
    rival = Rival(other, lambda c: complete(c, worker_id, mine))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert statuses(conn) == {mine.id: "completed"}
    assert (job(conn, mine.id)["cancel_requested_at"] is not None) is (end == "commit")


@commit_or_rollback
def test_a_fail_that_waited_for_a_cancel_cancels_instead_of_retrying(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (mine,) = running(conn)
    cancel(holder, mine.id)
    rival = Rival(other, lambda c: fail(c, worker_id, mine))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == ("cancelled" if end == "commit" else "scheduled")
    assert outcomes(conn, mine.id) == (["cancelled"] if end == "commit" else ["failed"])


@commit_or_rollback
def test_a_cancel_that_waited_for_a_fail_cancels_the_waiting_job(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (mine,) = running(conn)
    assert fail(holder, worker_id, mine) == "scheduled"
    rival = Rival(other, lambda c: cancel(c, mine.id))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == ("cancelled" if end == "commit" else "running")


def test_a_cancel_that_waited_for_a_fatal_fail_is_told_that_the_job_died(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    worker_id, (mine,) = running(conn)
    assert fail(holder, worker_id, mine, fatal=True) == "dead"
    rival = Rival(other, lambda c: cancel(c, mine.id))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == "dead"


@commit_or_rollback
def test_a_release_that_waited_for_a_cancel_cancels(conn: Conn, holder: Conn, other: Conn, dsn: str, end: str) -> None:
    worker_id, (mine,) = running(conn)
    cancel(holder, mine.id)
    rival = Rival(other, lambda c: db.execute(c, db.release(worker_id, [(mine.id, mine.token)])))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == []
    assert statuses(conn) == {mine.id: "cancelled" if end == "commit" else "pending"}


@commit_or_rollback
def test_a_cancel_that_waited_for_a_release_cancels_the_waiting_job(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    worker_id, (mine,) = running(conn)
    assert db.execute(holder, db.release(worker_id, [(mine.id, mine.token)])) == []
    rival = Rival(other, lambda c: cancel(c, mine.id))
    rival.wait_blocked(dsn)
    finish(holder, end)
    assert rival.result() == ("cancelled" if end == "commit" else "running")


def test_two_cancels_of_one_job_both_say_cancelled_and_it_is_cancelled_once(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    id = enqueue(conn)
    assert cancel(holder, id) == "cancelled"
    rival = Rival(other, lambda c: cancel(c, id))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == "cancelled"
    assert statuses(conn) == {id: "cancelled"}


def test_a_cancel_that_meets_a_retry_between_its_two_looks_does_not_deny_the_job(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    # cancel() looks among the live, then among the finished; the lock stops it between the two.
    (id,) = dead(conn)
    holder.execute("lock table pgqueue.job_dead in access exclusive mode")
    rival = Rival(other, lambda c: cancel(c, id))
    rival.wait_blocked(dsn)
    assert retry(holder, id) == "pending"
    holder.commit()
    assert rival.result() == "cancelled"
    assert statuses(conn) == {id: "cancelled"}


# ------------------------------------------------------------------------------------ retry × others


@commit_or_rollback
def test_two_retries_of_one_job_revive_it_once_and_the_second_is_told(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    (id,) = dead(conn)
    assert retry(holder, id) == "pending"
    rival = Rival(other, lambda c: retry(c, id))
    rival.wait_blocked(dsn)
    finish(holder, end)
    if end == "commit":
        with pytest.raises(WrongStatus):
            rival.result()
    else:
        assert rival.result() == "pending"
    assert statuses(conn) == {id: "pending"}


@commit_or_rollback
def test_a_purge_passes_over_a_job_that_is_being_retried(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    a, b = dead(conn, 2)
    retry(holder, a)
    assert purge_dead(other).purged == 1
    finish(holder, end)
    assert statuses(conn) == {a: "pending" if end == "commit" else "dead"}
    assert purge_dead(other).purged == (0 if end == "commit" else 1)
    assert b not in statuses(conn)


@commit_or_rollback
def test_a_retry_that_waited_for_a_purge_is_told_that_the_job_is_gone(
    conn: Conn, holder: Conn, other: Conn, dsn: str, end: str
) -> None:
    (id,) = dead(conn)
    assert purge_dead(holder).purged == 1
    rival = Rival(other, lambda c: retry(c, id))
    rival.wait_blocked(dsn)
    finish(holder, end)
    if end == "commit":
        with pytest.raises(JobNotFound):
            rival.result()
        assert statuses(conn) == {}
    else:
        assert rival.result() == "pending"
        assert statuses(conn) == {id: "pending"}


def test_two_bulk_retries_take_disjoint_jobs_and_each_job_once(conn: Conn, holder: Conn, other: Conn) -> None:
    ids = dead(conn, 30)
    first = retry_many(holder, batch=12)
    second = retry_many(other)
    assert (first.retried, second.retried) == (12, 18)
    holder.commit()
    assert statuses(conn) == dict.fromkeys(ids, "pending")
    assert {job(conn, id)["token"] for id in ids} == {1}


def test_a_bulk_retry_run_twice_retries_nothing_twice(conn: Conn) -> None:
    ids = dead(conn, 5)
    assert retry_many(conn).retried == 5
    worker_id = worker(conn)
    assert len(claim(conn, worker_id, 5)) == 5
    assert retry_many(conn) == (0, 0, None)
    assert statuses(conn) == dict.fromkeys(ids, "running")


def test_a_bulk_retry_killed_midway_and_run_again_retries_each_job_once(conn: Conn, holder: Conn, other: Conn) -> None:
    ids = dead(conn, 9)
    first = retry_many(holder, batch=3)
    holder.commit()
    assert first.last_id is not None
    assert retry_many(holder, batch=3, after_id=first.last_id).retried == 3
    conn.execute("select pg_terminate_backend(%s, 5000)", [holder.info.backend_pid])
    counts = {status: list(statuses(conn).values()).count(status) for status in ("pending", "dead")}
    assert counts == {"pending": 3, "dead": 6}
    assert retry_many(other).retried == 6
    assert statuses(conn) == dict.fromkeys(ids, "pending")


def test_a_bulk_retry_passes_over_a_job_that_is_being_retried(conn: Conn, holder: Conn, other: Conn) -> None:
    a, b = dead(conn, 2)
    retry(holder, a)
    assert retry_many(other).retried == 1
    holder.commit()
    assert statuses(conn) == {a: "pending", b: "pending"}


def test_of_two_dead_jobs_with_one_key_a_bulk_retry_revives_one(conn: Conn) -> None:
    a, b = dead(conn, 2, key="k")
    assert retry_many(conn)[:2] == (1, 1)
    assert statuses(conn) == {a: "pending", b: "dead"}
