from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgqueue import database as db
from pgqueue.errors import WorkerLost
from tests.support import FIXED, Conn, claim, claim_one, enqueue, job, lose, make_due, value, worker


def aged(conn: Conn, seconds: float, *, priority: int = 0, queue: str = "q") -> int:
    """A pending job that became claimable some seconds ago."""
    id = enqueue(conn, priority=priority, queue=queue)
    conn.execute(
        "update pgqueue.job_live set rank_at = rank_at - make_interval(secs => %s) where id = %s", [seconds, id]
    )
    return id


def expired(conn: Conn, seconds: float, *, priority: int = 0) -> int:
    id = aged(conn, seconds, priority=priority)
    conn.execute("update pgqueue.job_live set expires_at = clock_timestamp() - interval '1 s' where id = %s", [id])
    return id


def ids(claimed: list[db.ClaimedJob]) -> set[int]:
    return {one.id for one in claimed}


def test_a_claim_returns_what_a_worker_needs_and_leases_the_job(conn: Conn) -> None:
    id = enqueue(conn, {"a": 1}, priority=3, max_attempts=4, timeout_seconds=5, meta={"m": 1}, tags=["x"], retry=FIXED)
    w = worker(conn)
    got = claim_one(conn, w)
    stored = job(conn, id)
    assert got == db.ClaimedJob(
        id, 1, "q", "t", {"a": 1}, 1, 4, 5, 3, 0, stored["rank_at"], stored["enqueued_at"], {"m": 1}
    )
    assert (stored["status"], stored["worker_id"], stored["token"], stored["attempt"]) == ("running", w, 1, 1)
    assert stored["started_at"] > stored["enqueued_at"]


def test_a_claimed_job_is_not_claimed_again(conn: Conn) -> None:
    enqueue(conn)
    w = worker(conn)
    assert len(claim(conn, w, 10)) == 1
    assert claim(conn, w, 10) == []


def test_within_a_lane_the_job_that_waited_longest_goes_first(conn: Conn) -> None:
    third, first, second = aged(conn, 1), aged(conn, 100), aged(conn, 50)
    w = worker(conn)
    assert [claim_one(conn, w).id for _ in range(3)] == [first, second, third]


@pytest.mark.parametrize(("limit", "taken"), [(-1, 0), (0, 0), (1, 1), (3, 3), (5, 5), (6, 5)])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_claim_takes_as_many_as_asked_and_never_more(conn: Conn, lanes: int, limit: int, taken: int) -> None:
    for n in range(5):
        enqueue(conn, priority=n % lanes)
    assert len(claim(conn, worker(conn), limit)) == taken
    assert value(conn, "select count(*) from pgqueue.job where status = 'running'") == taken


def test_a_claim_takes_exactly_what_was_asked_from_a_big_backlog_without_statistics(conn: Conn) -> None:
    db.execute(conn, db.enqueue_many("q", "t", [{}] * 3000, priorities=[n % 3 for n in range(3000)]))
    assert len(claim(conn, worker(conn), 7)) == 7


# ------------------------------------------------------------------------------------------- priorities


def test_higher_priority_goes_first_when_both_are_new(conn: Conn) -> None:
    low, high, middle = enqueue(conn, priority=-5), enqueue(conn, priority=5), enqueue(conn)
    w = worker(conn)
    assert [claim_one(conn, w).id for _ in range(3)] == [high, middle, low]


@pytest.mark.parametrize(("waited", "old_first"), [(590, False), (610, True)])
def test_an_old_job_overtakes_a_newer_one_after_the_boost_of_its_priority(
    conn: Conn, waited: float, old_first: bool
) -> None:
    # Ten points of priority at 60 seconds each: a head start of 600 seconds.
    old, new = aged(conn, waited), enqueue(conn, priority=10)
    w = worker(conn)
    assert [claim_one(conn, w).id for _ in range(2)] == ([old, new] if old_first else [new, old])


def test_the_boost_of_the_queue_goes_before_the_default(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"boost_seconds": 1}))
    old, new = aged(conn, 15), enqueue(conn, priority=10)
    w = worker(conn)
    assert [claim_one(conn, w).id for _ in range(2)] == [old, new]


def test_without_a_boost_priority_means_nothing(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"boost_seconds": 0}))
    old, new = aged(conn, 1, priority=-100), enqueue(conn, priority=100)
    w = worker(conn)
    assert [claim_one(conn, w).id for _ in range(2)] == [old, new]


@pytest.mark.parametrize("priority", [1, 100])
def test_a_huge_boost_makes_the_order_strict(conn: Conn, priority: int) -> None:
    db.execute(conn, db.set_queue("q", {"boost_seconds": 100_000_000}))
    for _ in range(3):
        aged(conn, 365 * 86400)
    high = {enqueue(conn, priority=priority) for _ in range(3)}
    assert ids(claim(conn, worker(conn), 3)) == high


def test_interleaved_lanes_fill_the_whole_batch(conn: Conn) -> None:
    everything = {aged(conn, 1000 - 10 * n, priority=n % 3) for n in range(60)}
    assert ids(claim(conn, worker(conn), 60)) == everything


def test_a_batch_from_interleaved_lanes_is_the_jobs_with_the_earliest_deadlines(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"boost_seconds": 0}))
    by_age = [aged(conn, 600 - 100 * n, priority=n % 2) for n in range(6)]
    assert ids(claim(conn, worker(conn), 3)) == set(by_age[:3])


def test_a_backlog_of_low_priority_does_not_fill_a_batch_before_urgent_jobs(conn: Conn) -> None:
    # Urgent jobs have deadlines of -700, -690, … seconds; the backlog -695, -500, -499, …
    urgent = {aged(conn, 100 - 10 * n, priority=10) for n in range(8)}
    oldest = aged(conn, 695)
    for n in range(20):
        aged(conn, 500 - n)
    assert ids(claim(conn, worker(conn), 9)) == urgent | {oldest}


def test_lanes_closer_than_a_twentieth_of_the_boost_are_taken_in_runs(conn: Conn) -> None:
    run = {aged(conn, 602 - n) for n in range(3)}
    aged(conn, 1.5, priority=10)
    assert ids(claim(conn, worker(conn), 3)) == run


def test_duplicate_lane_rows_do_no_harm(conn: Conn) -> None:
    everything = {aged(conn, 10 * n, priority=n % 2) for n in range(6)}
    conn.execute("insert into pgqueue.lane (queue, priority) select queue, priority from pgqueue.lane")
    assert ids(claim(conn, worker(conn), 10)) == everything


def test_duplicate_rows_of_a_single_lane_do_no_harm(conn: Conn) -> None:
    everything = {enqueue(conn) for _ in range(3)}
    conn.execute("insert into pgqueue.lane (queue, priority) values ('q', 0), ('q', 0), ('q', null)")
    assert ids(claim(conn, worker(conn), 10)) == everything


# ---------------------------------------------------------------------------------------------- queues


def test_queues_are_emptied_in_the_given_order(conn: Conn) -> None:
    second, first = aged(conn, 1000, queue="b"), enqueue(conn, queue="a", priority=-100)
    w = worker(conn, ["a", "b"])
    assert claim_one(conn, w, ["a", "b"]).id == first
    assert claim_one(conn, w, ["a", "b"]).id == second


def test_one_claim_spans_several_queues(conn: Conn) -> None:
    everything = [enqueue(conn, queue=queue) for queue in ("a", "a", "b", "c")]
    w = worker(conn, ["a", "b", "c"])
    assert ids(claim(conn, w, 3, ["a", "b", "c"])) == set(everything[:3])


@pytest.mark.parametrize("queues", [["unknown"], []])
def test_a_queue_that_nobody_knows_gives_nothing(conn: Conn, queues: list[str]) -> None:
    enqueue(conn)
    assert claim(conn, worker(conn), 10, queues) == []


def test_an_unknown_queue_does_not_hide_the_next(conn: Conn) -> None:
    id = enqueue(conn)
    assert claim_one(conn, worker(conn), ["unknown", "q"]).id == id


@pytest.mark.parametrize("until", [None, timedelta(hours=1)])
def test_nothing_is_claimed_from_a_paused_queue_and_the_next_one_is_served(conn: Conn, until: timedelta | None) -> None:
    held, free, w = enqueue(conn), enqueue(conn, queue="other"), worker(conn, ["q", "other"])
    db.execute(conn, db.pause("q", until=None if until is None else datetime.now(UTC) + until))
    assert ids(claim(conn, w, 10, ["q", "other"])) == {free}
    assert db.execute(conn, db.resume("q")) is True
    assert ids(claim(conn, w, 10, ["q", "other"])) == {held}


def test_a_pause_ends_by_itself(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    db.execute(conn, db.pause("q", until=datetime.now(UTC) + timedelta(hours=1)))
    assert claim(conn, w) == []
    conn.execute("update pgqueue.queue set paused_until = clock_timestamp() - interval '1 s'")
    assert claim_one(conn, w).id == id


def test_a_paused_queue_does_not_promote(conn: Conn) -> None:
    id, w = enqueue(conn, run_at=datetime.now(UTC) + timedelta(hours=1)), worker(conn)
    db.execute(conn, db.pause("q"))
    make_due(conn, id)
    assert claim(conn, w) == []
    assert job(conn, id)["status"] == "scheduled"


# --------------------------------------------------------------------------------------------- workers


def never_registered(conn: Conn) -> int:
    return 999_999_999


def stale(conn: Conn) -> int:
    w = worker(conn)
    lose(conn, w)
    return w


def declared_lost(conn: Conn) -> int:
    w = stale(conn)
    assert db.execute(conn, db.sweep()).lost_workers == 1
    conn.execute("update pgqueue.worker set heartbeat_at = clock_timestamp() where id = %s", [w])
    return w


def retired(conn: Conn) -> int:
    w = worker(conn)
    db.execute(conn, db.retire_worker(w))
    return w


@pytest.mark.parametrize("who", [never_registered, stale, declared_lost, retired])
def test_a_worker_that_is_not_alive_gets_nothing(conn: Conn, who: Callable[[Conn], int]) -> None:
    id, w = enqueue(conn), who(conn)
    with pytest.raises(WorkerLost, match=f"worker {w} "):
        claim(conn, w)
    assert (job(conn, id)["status"], job(conn, id)["attempt"]) == ("pending", 0)


def test_a_stale_worker_claims_again_after_its_next_heartbeat(conn: Conn) -> None:
    id, w = enqueue(conn), stale(conn)
    assert db.execute(conn, db.heartbeat(w)).alive is True
    assert claim_one(conn, w).id == id


# ------------------------------------------------------------------------------------ expired, scheduled


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_expired_job_is_not_handed_out(conn: Conn, lanes: int) -> None:
    gone = {expired(conn, 100, priority=n % lanes) for n in range(4)}
    good = {enqueue(conn, priority=n % lanes) for n in range(2)}
    assert ids(claim(conn, worker(conn), 10)) == good
    assert {job(conn, id)["status"] for id in gone} == {"pending"}


def test_a_job_that_expires_later_is_handed_out(conn: Conn) -> None:
    id = enqueue(conn, expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert claim_one(conn, worker(conn)).id == id


def test_expired_heads_of_two_lanes_do_not_hide_a_good_job_behind_them(conn: Conn) -> None:
    expired(conn, 10_000, priority=10)
    expired(conn, 9_000)
    good = enqueue(conn, priority=10)
    assert ids(claim(conn, worker(conn), 1)) == {good}


def test_heads_locked_by_others_do_not_hide_a_good_job_behind_them(conn: Conn, connect: Callable[..., Conn]) -> None:
    locked = [aged(conn, 10_000, priority=10), aged(conn, 9_000)]
    good, w, other = enqueue(conn, priority=10), worker(conn), connect()
    with other.transaction():
        other.execute("select 1 from pgqueue.job_live where id = any (%s) for update", [locked])
        assert ids(claim(conn, w, 1)) == {good}


def test_jobs_locked_by_others_are_skipped(conn: Conn, connect: Callable[..., Conn]) -> None:
    locked, good = aged(conn, 100), enqueue(conn)
    w, other = worker(conn), connect()
    with other.transaction():
        other.execute("select 1 from pgqueue.job_live where id = %s for update", [locked])
        assert ids(claim(conn, w, 10)) == {good}


def test_a_scheduled_job_is_not_claimed_before_its_time(conn: Conn) -> None:
    enqueue(conn, run_at=datetime.now(UTC) + timedelta(minutes=1))
    assert claim(conn, worker(conn), 10) == []


def test_a_due_scheduled_job_is_promoted_and_claimed_at_once(conn: Conn) -> None:
    id = enqueue(conn, run_at=datetime.now(UTC) + timedelta(hours=1))
    make_due(conn, id)
    assert claim_one(conn, worker(conn)).id == id


def test_a_claim_of_nothing_promotes_nothing(conn: Conn) -> None:
    id = enqueue(conn, run_at=datetime.now(UTC) + timedelta(hours=1))
    make_due(conn, id)
    claim(conn, worker(conn), 0)
    assert job(conn, id)["status"] == "scheduled"


# ---------------------------------------------------------------------------- what others may have stored


@pytest.mark.parametrize(
    ("payload", "meta"),
    [
        ('{"n": 1e5000}', "{}"),
        ("{}", '{"n": 1e5000}'),
        ("{}", '{"deep": ' + "[" * 1500 + "]" * 1500 + "}"),
    ],
    ids=["huge number in the payload", "huge number in meta", "deep meta"],
)
def test_what_sql_accepts_can_be_claimed_in_python(conn: Conn, payload: str, meta: str) -> None:
    """Otherwise the claim commits, raises in the client, and the whole batch stays leased to a living worker."""
    w, good = worker(conn), enqueue(conn)
    try:
        conn.execute("select pgqueue.enqueue('q', 't', %s::jsonb, meta => %s::jsonb)", [payload, meta])
    except psycopg.Error as refused:
        assert refused.sqlstate in ("PQ001", "PQ006")  # noqa: PT017 - refusing it is as good
    assert good in ids(claim(conn, w, 10))


# ------------------------------------------------------------------------------------------------ order


def test_jobs_come_back_in_the_order_in_which_they_should_run(conn: Conn) -> None:
    by_age = [aged(conn, age) for age in (10, 40, 20, 50, 30)]
    urgent = enqueue(conn, priority=50)
    got = [one.id for one in claim(conn, worker(conn), 10)]
    assert got == [urgent, by_age[3], by_age[1], by_age[4], by_age[2], by_age[0]]


@pytest.mark.parametrize("keyed", [False, True])
def test_jobs_of_one_bulk_call_are_claimed_in_its_order_wherever_they_lie_in_the_table(conn: Conn, keyed: bool) -> None:
    # Holes all over the table: new rows fill them, and so lie in another order than they came.
    db.execute(conn, db.enqueue_many("other", "t", [{}] * 500))
    conn.execute("delete from pgqueue.job_live where id % 3 > 0")
    conn.execute("vacuum pgqueue.job_live")
    keys = [f"{n * 7919 % 300}" for n in range(300)] if keyed else None
    made = db.execute(conn, db.enqueue_many("q", "t", [{"n": n} for n in range(300)], keys=keys))
    w = worker(conn)
    claimed = [job for _ in range(10) for job in claim(conn, w, 30)]
    assert [job.id for job in claimed] == [one.id for one in made]
    assert [job.payload["n"] for job in claimed] == list(range(300))
