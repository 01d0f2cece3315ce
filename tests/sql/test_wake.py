from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from tests.support import Conn, claim, claim_one, enqueue, make_due, value, worker

LATER = datetime.now(UTC) + timedelta(days=1)


class Listener:
    """What arrives on the channel; a last notification of our own says that nothing more can come."""

    def __init__(self, connection: Conn) -> None:
        self._connection = connection
        connection.execute("listen pgqueue")

    def heard(self, sender: Conn) -> list[str]:
        sender.execute("select pg_notify('pgqueue', 'the end')")
        heard: list[str] = []
        for notification in self._connection.notifies(timeout=20):
            if notification.payload == "the end":
                return heard
            heard.append(notification.payload)
        raise AssertionError("our own notification did not come")


@pytest.fixture
def listener(connect: Callable[..., Conn]) -> Listener:
    return Listener(connect())


def idle_worker(conn: Conn, queue: str = "q") -> int:
    """A worker that asked and got less than it wanted."""
    w = worker(conn, [queue])
    assert len(claim(conn, w, 10, [queue])) < 10
    return w


def test_an_idle_worker_hears_of_an_enqueue(conn: Conn, listener: Listener) -> None:
    idle_worker(conn)
    enqueue(conn)
    assert listener.heard(conn) == ["q"]


def test_only_the_queue_that_has_work_is_named(conn: Conn, listener: Listener) -> None:
    idle_worker(conn, "a")
    idle_worker(conn, "b")
    enqueue(conn, queue="b")
    assert listener.heard(conn) == ["b"]


@pytest.mark.parametrize("off", ["off", "OFF", "false"])
def test_who_does_not_want_to_notify_need_not(conn: Conn, listener: Listener, off: str) -> None:
    idle_worker(conn)
    conn.execute(f"set pgqueue.notify = {off}")
    id = enqueue(conn)
    assert listener.heard(conn) == []
    conn.execute("reset pgqueue.notify")
    enqueue(conn)
    assert listener.heard(conn) == ["q"]
    assert claim_one(conn, worker(conn)).id == id


@pytest.mark.parametrize("many", [False, True])
def test_a_job_is_enqueued_in_a_two_phase_commit_that_does_not_notify(
    conn: Conn, connect: Callable[..., Conn], many: bool
) -> None:
    if value(conn, "show max_prepared_transactions") == "0":
        pytest.skip("this server has no prepared transactions")
    idle_worker(conn)
    two_phase = connect(autocommit=False)

    def put() -> None:
        call: db.Call[Any] = db.enqueue_many("q", "t", [{}]) if many else db.enqueue("q", "t")
        db.execute(two_phase, call)

    put()
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
        two_phase.execute("prepare transaction 'pgqueue'")
    two_phase.rollback()
    conn.execute("select setval(wake, 1) from pgqueue.queue")
    two_phase.execute("set pgqueue.notify = off")
    put()
    two_phase.execute("prepare transaction 'pgqueue'")
    two_phase.commit()
    assert value(conn, "select count(*) from pgqueue.job") == 0
    conn.execute("commit prepared 'pgqueue'")
    assert len(claim(conn, worker(conn))) == 1


def test_an_idle_worker_hears_of_enqueue_many_once(conn: Conn, listener: Listener) -> None:
    idle_worker(conn)
    db.execute(conn, db.enqueue_many("q", "t", [{}, {}, {}]))
    assert listener.heard(conn) == ["q"]


def test_an_enqueue_that_is_rolled_back_is_not_heard_of(
    conn: Conn, connect: Callable[..., Conn], listener: Listener
) -> None:
    idle_worker(conn)
    other = connect(autocommit=False)
    enqueue(other)
    other.rollback()
    assert listener.heard(conn) == []


def test_a_job_for_later_is_not_heard_of_before_it_is_promoted(conn: Conn, listener: Listener) -> None:
    idle_worker(conn)
    id = enqueue(conn, run_at=LATER)
    assert listener.heard(conn) == []
    make_due(conn, id)
    assert db.execute(conn, db.promote("q")) == 1
    assert listener.heard(conn) == ["q"]


def test_a_claim_that_takes_the_last_job_silences_nobody(conn: Conn, listener: Listener) -> None:
    enqueue(conn)
    idle, busy = worker(conn), worker(conn)
    claim(conn, idle, 0)
    assert len(claim(conn, busy, 1)) == 1
    enqueue(conn)
    assert listener.heard(conn) == ["q"]


def test_nobody_is_notified_while_there_is_more_than_workers_can_take(conn: Conn, listener: Listener) -> None:
    enqueue(conn)
    enqueue(conn)
    w = worker(conn)
    assert len(claim(conn, w, 1)) == 1
    quiet_until = value(conn, "select pg_sequence_last_value(wake) from pgqueue.queue")
    ahead = quiet_until - value(conn, "select extract(epoch from clock_timestamp()) * 1000")
    assert 500 < ahead <= 1000
    enqueue(conn)
    assert listener.heard(conn) == []


def test_a_worker_that_becomes_idle_after_full_claims_is_notified_again(conn: Conn, listener: Listener) -> None:
    enqueue(conn)
    w = worker(conn)
    claim_one(conn, w)
    assert claim(conn, w) == []
    enqueue(conn)
    assert listener.heard(conn) == ["q"]


def test_there_is_at_most_one_notification_within_fifty_milliseconds(conn: Conn, listener: Listener) -> None:
    idle_worker(conn)
    conn.execute("create temp table spent (ms float8)")
    conn.execute(
        "do $$ declare v_start timestamptz := clock_timestamp(); begin"
        " for n in 1..40 loop perform pgqueue.enqueue('q', 't'); commit; end loop;"
        " insert into spent values (extract(epoch from clock_timestamp() - v_start) * 1000); end $$"
    )
    heard = len(listener.heard(conn))
    # Milliseconds are rounded on both sides.
    assert 1 <= heard <= 1 + value(conn, "select ms from spent") / 49


def test_whoever_notifies_keeps_the_queue_quiet_for_fifty_milliseconds(conn: Conn, listener: Listener) -> None:
    idle_worker(conn)
    before = value(conn, "select extract(epoch from clock_timestamp()) * 1000")
    enqueue(conn)
    after = value(conn, "select extract(epoch from clock_timestamp()) * 1000")
    quiet_until = value(conn, "select pg_sequence_last_value(wake) from pgqueue.queue")
    assert before + 49 <= quiet_until <= after + 51
    conn.execute("select setval(wake, pg_sequence_last_value(wake) + 60000) from pgqueue.queue")
    enqueue(conn)
    assert listener.heard(conn) == ["q"]


def test_a_queue_without_a_worker_is_not_notified(conn: Conn, listener: Listener) -> None:
    enqueue(conn, queue="nobody")
    assert listener.heard(conn) == []


def test_an_idle_worker_hears_of_a_job_that_is_given_back(conn: Conn, listener: Listener) -> None:
    id = enqueue(conn)
    w = worker(conn)
    token = claim_one(conn, w).token
    idle_worker(conn)
    db.execute(conn, db.release(w, [(id, token)]))
    assert listener.heard(conn) == ["q"]


def test_an_idle_worker_hears_of_a_retry(conn: Conn, listener: Listener) -> None:
    id = enqueue(conn)
    db.execute(conn, db.cancel(id))
    idle_worker(conn)
    db.execute(conn, db.retry(id))
    assert listener.heard(conn) == ["q"]


def test_an_idle_worker_hears_of_a_retry_at_a_later_time_only_then(conn: Conn, listener: Listener) -> None:
    id = enqueue(conn)
    db.execute(conn, db.cancel(id))
    idle_worker(conn)
    db.execute(conn, db.retry(id, run_at=LATER))
    assert listener.heard(conn) == []


def test_an_idle_worker_hears_that_its_queue_is_resumed(conn: Conn, listener: Listener) -> None:
    idle_worker(conn)
    db.execute(conn, db.pause("q"))
    assert listener.heard(conn) == []
    db.execute(conn, db.resume("q"))
    assert listener.heard(conn) == ["q"]
