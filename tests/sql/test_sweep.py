from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from pgqueue import database as db
from tests.support import (
    FIXED,
    Conn,
    claim,
    claim_one,
    enqueue,
    job,
    lose,
    make_due,
    row,
    rows,
    value,
    worker,
)

LATER = datetime.now(UTC) + timedelta(days=1)
NOTHING = db.Swept(0, 0, 0, 0, 0, 0)


def sweep(conn: Conn, limit: int = 1000) -> db.Swept:
    return db.execute(conn, db.sweep(limit))


def crash(conn: Conn, id: int) -> db.Swept:
    """Claim a job that is ready with a new worker, lose that worker and sweep."""
    make_due(conn, id)
    w = worker(conn)
    assert claim_one(conn, w).id == id
    lose(conn, w)
    return sweep(conn)


# ------------------------------------------------------------------------------------------ lost workers


def test_an_empty_queue_has_nothing_to_sweep(conn: Conn) -> None:
    assert sweep(conn) == NOTHING


def test_the_job_of_a_lost_worker_waits_again(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    lose(conn, w)
    assert sweep(conn) == NOTHING._replace(lost_workers=1, retried=1)
    found = job(conn, id)
    assert (found["status"], found["worker_id"], found["crashes"], found["attempt"]) == (
        "pending",
        None,
        1,
        1,
    )
    assert (found["error_type"], found["error"]) == (
        "WorkerLost",
        f"worker {w} was lost while it ran this job",
    )
    attempt = row(conn, "select * from pgqueue.job_attempt")
    assert (attempt["job_id"], attempt["outcome"], attempt["error_type"]) == (id, "lost", "WorkerLost")
    assert (attempt["worker_id"], attempt["token"], attempt["delay_seconds"]) == (w, token, 0)


def test_a_lost_worker_is_declared_lost_once(conn: Conn) -> None:
    w = worker(conn)
    lose(conn, w)
    assert (sweep(conn).lost_workers, sweep(conn).lost_workers) == (1, 0)
    assert value(conn, "select lost_at is not null from pgqueue.worker where id = %s", w) is True
    assert db.execute(conn, db.heartbeat(w)).alive is False


def test_reports_of_a_lost_worker_are_refused(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    lose(conn, w)
    sweep(conn)
    assert db.execute(conn, db.complete(w, [(id, token)])) == [id]
    assert job(conn, id)["status"] == "pending"


def test_the_jobs_of_a_live_worker_are_left_alone(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn, lease_seconds=30)
    claim_one(conn, w)
    conn.execute("update pgqueue.worker set heartbeat_at = clock_timestamp() - interval '25 s'")
    before = job(conn, id)
    assert sweep(conn) == NOTHING
    assert job(conn, id) == before


def test_each_worker_has_its_own_lease(conn: Conn) -> None:
    short, long = worker(conn, lease_seconds=5), worker(conn, lease_seconds=60)
    conn.execute("update pgqueue.worker set heartbeat_at = clock_timestamp() - interval '10 s'")
    assert sweep(conn).lost_workers == 1
    lost = rows(conn, "select id from pgqueue.worker where lost_at is not null")
    assert [found["id"] for found in lost] == [short]
    assert long != short


def test_a_job_whose_worker_has_no_row_waits_again(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    claim_one(conn, w)
    conn.execute("delete from pgqueue.worker")
    assert sweep(conn) == NOTHING._replace(retried=1)
    assert job(conn, id)["status"] == "pending"


def test_a_claim_committed_after_its_worker_was_declared_lost_is_found_by_the_next_sweep(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    id, w = enqueue(conn), worker(conn)
    stalled = connect(autocommit=False)
    claim_one(stalled, w)
    lose(conn, w)
    assert sweep(conn) == NOTHING._replace(lost_workers=1)
    stalled.commit()
    assert sweep(conn) == NOTHING._replace(retried=1)
    assert job(conn, id)["status"] == "pending"


def test_only_the_jobs_of_the_lost_among_several_workers_are_taken(conn: Conn) -> None:
    for _ in range(6):
        enqueue(conn)
    workers = [worker(conn) for _ in range(3)]
    held = {w: {claimed.id for claimed in claim(conn, w, 2)} for w in workers}
    lose(conn, workers[1])
    assert sweep(conn).retried == 2
    running = {found["id"] for found in rows(conn, "select id from pgqueue.job_live where status = 'running'")}
    assert running == held[workers[0]] | held[workers[2]]


def test_after_its_first_crash_a_job_runs_at_once_and_keeps_its_place(conn: Conn) -> None:
    first, second = enqueue(conn, retry=FIXED), enqueue(conn)
    rank = job(conn, first)["rank_at"]
    crash(conn, first)
    assert (job(conn, first)["status"], job(conn, first)["rank_at"]) == ("pending", rank)
    w = worker(conn)
    assert [claim_one(conn, w).id, claim_one(conn, w).id] == [first, second]


def test_after_later_crashes_a_job_waits_as_its_policy_says(conn: Conn) -> None:
    policy = {"type": "list", "delays": [100, 200, 300]}
    id = enqueue(conn, retry=policy, max_attempts=100)
    assert crash(conn, id).retried == 1
    for delay in (100, 200, 300):
        before = value(conn, "select clock_timestamp()")
        assert crash(conn, id).retried == 1
        found = job(conn, id)
        assert found["status"] == "scheduled"
        waits = found["run_at"] - timedelta(seconds=delay)
        assert before <= waits <= value(conn, "select clock_timestamp()")
        assert found["retry_delay_seconds"] == delay
    delays = rows(conn, "select delay_seconds from pgqueue.job_attempt order by token")
    assert [found["delay_seconds"] for found in delays] == [0, 100, 200, 300]


def test_the_policy_of_the_queue_holds_when_the_job_has_none(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"retry": {"type": "fixed", "delay": 77}}))
    id = enqueue(conn)
    crash(conn, id)
    crash(conn, id)
    assert job(conn, id)["retry_delay_seconds"] == 77


def test_a_job_that_kills_its_workers_dies_of_its_crashes_and_says_so(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"max_crashes": 2}))
    id = enqueue(conn, max_attempts=100)
    crash(conn, id)
    assert crash(conn, id) == NOTHING._replace(lost_workers=1, died=1)
    found = job(conn, id)
    assert (found["status"], found["crashes"], found["attempt"]) == ("dead", 2, 2)
    assert found["error_type"] == "WorkerLost"
    assert "; that was crash 2 of at most 2" in found["error"]
    last = row(conn, "select * from pgqueue.job_attempt order by token desc limit 1")
    assert (last["outcome"], last["delay_seconds"], last["error"]) == ("lost", None, found["error"])


def test_the_default_number_of_crashes_is_five(conn: Conn) -> None:
    id = enqueue(conn, max_attempts=100, retry={"type": "fixed", "delay": 1})
    for _ in range(4):
        assert crash(conn, id).retried == 1
    assert crash(conn, id).died == 1


def test_a_job_without_attempts_left_dies_with_its_worker(conn: Conn) -> None:
    id = enqueue(conn, max_attempts=1)
    assert crash(conn, id) == NOTHING._replace(lost_workers=1, died=1)
    found = job(conn, id)
    assert (found["status"], found["error_type"]) == ("dead", "WorkerLost")
    assert "crash" not in found["error"]


def test_a_job_that_should_stop_is_cancelled_when_its_worker_is_lost(conn: Conn) -> None:
    id, w = enqueue(conn, max_attempts=1), worker(conn)
    claim_one(conn, w)
    db.execute(conn, db.cancel(id, "customer left"))
    lose(conn, w)
    assert sweep(conn) == NOTHING._replace(lost_workers=1, cancelled=1)
    assert (job(conn, id)["status"], job(conn, id)["error"]) == ("cancelled", "customer left")
    assert value(conn, "select outcome from pgqueue.job_attempt") == "cancelled"


def test_a_job_cancelled_with_its_worker_says_cancelled_as_every_other(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    claim_one(conn, w)
    db.execute(conn, db.cancel(id))
    lose(conn, w)
    sweep(conn)
    assert (job(conn, id)["error_type"], job(conn, id)["error"]) == ("Cancelled", "cancelled")


def test_lost_jobs_are_taken_in_batches(conn: Conn) -> None:
    for _ in range(5):
        enqueue(conn)
    gone = [worker(conn), worker(conn)]
    claim(conn, gone[0], 2)
    claim(conn, gone[1], 3)
    for w in gone:
        lose(conn, w)
    assert [sweep(conn, 2).retried for _ in range(4)] == [2, 2, 1, 0]


def test_a_job_that_is_being_reported_is_skipped(conn: Conn, connect: Callable[..., Conn]) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    lose(conn, w)
    reporting = connect(autocommit=False)
    db.execute(reporting, db.complete(w, [(id, token)]))
    assert sweep(conn) == NOTHING._replace(lost_workers=1)
    reporting.commit()
    assert job(conn, id)["status"] == "completed"


def test_a_second_sweeper_returns_at_once(conn: Conn, connect: Callable[..., Conn]) -> None:
    w = worker(conn)
    lose(conn, w)
    first = connect(autocommit=False)
    assert sweep(first).lost_workers == 1
    assert sweep(conn) == NOTHING
    first.rollback()
    assert sweep(conn).lost_workers == 1


@pytest.mark.parametrize(("hours", "left"), [(23, 1), (25, 0)])
def test_the_row_of_a_lost_worker_stays_for_a_day(conn: Conn, hours: int, left: int) -> None:
    worker(conn)
    conn.execute("update pgqueue.worker set lost_at = clock_timestamp() - make_interval(hours => %s)", [hours])
    sweep(conn)
    assert value(conn, "select count(*) from pgqueue.worker") == left


def test_the_row_of_a_lost_worker_stays_while_jobs_point_to_it(conn: Conn) -> None:
    for _ in range(2):
        enqueue(conn)
    w = worker(conn)
    claim(conn, w, 2)
    conn.execute("update pgqueue.worker set lost_at = clock_timestamp() - interval '2 days'")
    sweep(conn, 1)
    assert value(conn, "select count(*) from pgqueue.worker") == 1
    sweep(conn, 1)
    assert value(conn, "select count(*) from pgqueue.worker") == 0


# ----------------------------------------------------------------------------------------------- expired


@pytest.mark.parametrize("run_at", [None, LATER])
def test_a_waiting_job_that_has_expired_is_cancelled_with_the_reason(conn: Conn, run_at: datetime | None) -> None:
    id = enqueue(conn, run_at=run_at, expires_at=LATER + timedelta(days=1))
    assert sweep(conn).expired == 0
    conn.execute("update pgqueue.job_live set expires_at = clock_timestamp() - interval '1 s'")
    expires = value(conn, "select expires_at::text from pgqueue.job_live")
    assert sweep(conn) == NOTHING._replace(expired=1)
    found = job(conn, id)
    assert (found["status"], found["error_type"]) == ("cancelled", "Expired")
    assert found["error"] == f"not started before {expires}"
    assert rows(conn, "select 1 from pgqueue.job_attempt") == []


def test_a_running_job_does_not_expire(conn: Conn) -> None:
    id = enqueue(conn, expires_at=LATER)
    claim_one(conn, worker(conn))
    conn.execute("update pgqueue.job_live set expires_at = clock_timestamp() - interval '1 s'")
    assert sweep(conn) == NOTHING
    assert job(conn, id)["status"] == "running"


def test_expired_jobs_are_cancelled_in_batches_one_after_the_other(conn: Conn) -> None:
    for _ in range(3):
        enqueue(conn, expires_at=LATER)
    conn.execute("update pgqueue.job_live set expires_at = clock_timestamp() - interval '1 s'")
    assert [sweep(conn, 2).expired for _ in range(2)] == [3, 0]


# ----------------------------------------------------------------------------- promotion, lanes, queues, keys


def test_due_jobs_are_promoted_also_where_no_worker_asks(conn: Conn) -> None:
    due, later = enqueue(conn, run_at=LATER), enqueue(conn, run_at=LATER)
    make_due(conn, due)
    assert sweep(conn) == NOTHING._replace(promoted=1)
    assert (job(conn, due)["status"], job(conn, later)["status"]) == ("pending", "scheduled")


def test_due_jobs_of_every_queue_are_promoted(conn: Conn) -> None:
    for queue in ("a", "b"):
        make_due(conn, enqueue(conn, queue=queue, run_at=LATER))
    assert sweep(conn).promoted == 2


def test_due_jobs_are_promoted_in_batches(conn: Conn) -> None:
    for _ in range(3):
        make_due(conn, enqueue(conn, run_at=LATER))
    assert [sweep(conn, 2).promoted for _ in range(3)] == [2, 1, 0]


def test_duplicate_lanes_are_removed_and_the_highest_hint_stays(conn: Conn) -> None:
    enqueue(conn)
    conn.execute(
        "insert into pgqueue.lane (queue, priority, hint)"
        " values ('q', 0, '2026-01-02'), ('q', 0, '2026-01-01'), ('q', 1, '-infinity'), ('q', null, '-infinity'),"
        " ('q', null, '-infinity'), ('other', 0, '-infinity')"
    )
    sweep(conn)
    lanes = rows(conn, "select queue, priority, hint::date::text as hint from pgqueue.lane order by queue, priority")
    assert [tuple(lane.values()) for lane in lanes] == [
        ("other", 0, "-infinity"),
        ("other", None, "-infinity"),
        ("q", 0, "2026-01-02"),
        ("q", 1, "-infinity"),
        ("q", None, "-infinity"),
    ]


def test_a_queue_that_was_only_enqueued_to_gets_its_row_and_its_lane_for_scheduled_jobs(conn: Conn) -> None:
    enqueue(conn, queue="new")
    assert rows(conn, "select 1 from pgqueue.queue") == []
    sweep(conn)
    found = row(conn, "select * from pgqueue.queue")
    assert found["queue"] == "new"
    assert found["wake"] is not None
    assert value(conn, "select count(*) from pgqueue.lane where queue = 'new' and priority is null") == 1
    sweep(conn)
    assert value(conn, "select count(*) from pgqueue.lane") == 2


def test_expired_key_holds_are_removed_in_batches_and_the_others_stay(conn: Conn) -> None:
    for n in range(4):
        db.execute(conn, db.cancel(enqueue(conn, key=f"k{n}", key_ttl=timedelta(hours=1))))
    conn.execute("update pgqueue.key_hold set held_until = clock_timestamp() - interval '1 s' where key <> 'k3'")
    left = []
    for _ in range(3):
        sweep(conn, 2)
        left.append(value(conn, "select count(*) from pgqueue.key_hold"))
    assert left == [2, 1, 1]
    assert value(conn, "select key from pgqueue.key_hold") == "k3"
