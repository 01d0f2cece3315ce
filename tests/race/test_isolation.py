"""Every function in the isolation levels that callers bring along."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import IsolationLevel

from pgqueue import database as db
from tests.race.steps import statuses
from tests.support import Conn, claim, enqueue, worker

fixed_snapshot = pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])


@pytest.fixture
def transaction(conn: Conn, connect: Callable[..., Conn]) -> Callable[[IsolationLevel], Conn]:
    """Opens a transaction of the given level, its snapshot taken."""

    def begin(level: IsolationLevel) -> Conn:
        caller = connect(autocommit=False)
        caller.isolation_level = level
        caller.execute("select 1 from pgqueue.setting")
        return caller

    return begin


@fixed_snapshot
def test_a_claim_with_an_old_snapshot_fails_or_gets_free_jobs_but_never_a_taken_one(
    conn: Conn, transaction: Callable[[IsolationLevel], Conn], level: IsolationLevel
) -> None:
    ids = [enqueue(conn) for _ in range(10)]
    one, two = worker(conn), worker(conn)
    old = transaction(level)
    taken = {job.id for job in claim(conn, one, 5)}
    with pytest.raises(psycopg.errors.SerializationFailure):
        claim(old, two, 10)
    old.rollback()
    free = {job.id for job in claim(old, two, 10)}
    old.commit()
    assert free == set(ids) - taken
    assert statuses(conn) == dict.fromkeys(ids, "running")


@fixed_snapshot
def test_two_claims_with_one_snapshot_get_disjoint_jobs(
    conn: Conn, transaction: Callable[[IsolationLevel], Conn], level: IsolationLevel
) -> None:
    ids = {enqueue(conn) for _ in range(10)}
    one, two = worker(conn), worker(conn)
    left, right = transaction(level), transaction(level)
    first = {job.id for job in claim(left, one, 4)}
    second = {job.id for job in claim(right, two, 10)}
    assert len(first) == 4
    assert second == ids - first


@fixed_snapshot
def test_a_complete_of_a_swept_job_with_an_old_snapshot_changes_nothing(
    conn: Conn, transaction: Callable[[IsolationLevel], Conn], level: IsolationLevel
) -> None:
    id = enqueue(conn)
    stale = worker(conn)
    (mine,) = claim(conn, stale)
    old = transaction(level)
    conn.execute("update pgqueue.worker set heartbeat_at = heartbeat_at - interval '1 day'")
    assert db.execute(conn, db.sweep()).retried == 1
    with pytest.raises(psycopg.errors.SerializationFailure):
        db.execute(old, db.complete(stale, [(mine.id, mine.token)]))
    old.rollback()
    assert statuses(conn) == {id: "pending"}


@fixed_snapshot
@pytest.mark.parametrize("key", [None, "k"])
def test_an_enqueue_works_and_is_found_by_its_own_transaction(
    conn: Conn, transaction: Callable[[IsolationLevel], Conn], level: IsolationLevel, key: str | None
) -> None:
    caller = transaction(level)
    id = enqueue(caller, key=key)
    again = db.execute(caller, db.enqueue("q", "t", key=key))
    assert again.created is (key is None)
    caller.commit()
    assert set(statuses(conn)) == {id, again.id}


@fixed_snapshot
def test_a_bulk_enqueue_with_keys_works(
    conn: Conn, transaction: Callable[[IsolationLevel], Conn], level: IsolationLevel
) -> None:
    taken = enqueue(conn, key="b")
    caller = transaction(level)
    a, b, c, again = db.execute(caller, db.enqueue_many("q", "t", [{}] * 4, keys=["a", "b", "c", "a"]))
    caller.commit()
    assert (a.created, b, c.created, again) == (True, (taken, False), True, (a.id, False))
    assert set(statuses(conn)) == {a.id, b.id, c.id}


@fixed_snapshot
def test_two_enqueues_without_a_key_in_one_lane_both_commit(
    conn: Conn, transaction: Callable[[IsolationLevel], Conn], level: IsolationLevel
) -> None:
    enqueue(conn)
    left, right = transaction(level), transaction(level)
    ids = {enqueue(left), enqueue(right)}
    left.commit()
    right.commit()
    assert ids < set(statuses(conn))
