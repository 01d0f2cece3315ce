from __future__ import annotations

from typing import Any

import pytest

from pgqueue import database as db
from tests.support import FIXED, Conn, claim, claim_one, enqueue, job, make_due, row, rows, value, worker


def fail(conn: Conn, worker_id: int, claimed: db.ClaimedJob, **facts: Any) -> db.Failed:
    failure = db.Failure(claimed.id, claimed.token, **{"error": "boom", "error_type": "ValueError", **facts})
    (outcome,) = db.execute(conn, db.fail(worker_id, [failure]))
    return outcome


def test_a_failed_job_waits_as_its_policy_says_and_remembers_why(conn: Conn) -> None:
    id, w = enqueue(conn, retry=FIXED), worker(conn)
    assert fail(conn, w, claim_one(conn, w), traceback="line 1") == (id, "scheduled", 60)
    after = job(conn, id)
    assert (after["status"], after["attempt"], after["worker_id"]) == ("scheduled", 1, None)
    assert (after["error_type"], after["error"], after["retry_delay_seconds"]) == ("ValueError", "boom", 60)
    assert 55 < value(conn, "select extract(epoch from run_at - now()) from pgqueue.job where id = %s", id) <= 60
    history = row(conn, "select * from pgqueue.job_attempt")
    assert (history["job_id"], history["outcome"], history["attempt"], history["token"]) == (id, "failed", 1, 1)
    assert (history["worker_id"], history["delay_seconds"], history["traceback"]) == (w, 60, "line 1")
    assert history["started_at"] <= history["finished_at"]


@pytest.mark.parametrize(
    ("of_job", "of_queue", "of_all", "died_after"), [(2, 4, 5, 2), (None, 3, 5, 3), (None, None, 2, 2)]
)
def test_max_attempts_is_that_of_the_job_then_the_queue_then_the_default(
    conn: Conn, of_job: int | None, of_queue: int | None, of_all: int, died_after: int
) -> None:
    db.execute(conn, db.set_defaults({"max_attempts": of_all}))
    id, w = enqueue(conn, max_attempts=of_job, retry={"type": "fixed", "delay": 0}), worker(conn)
    db.execute(conn, db.set_queue("q", {"max_attempts": of_queue}))  # after enqueue: it is looked up when needed
    statuses = [fail(conn, w, claim_one(conn, w)).status for _ in range(died_after)]
    assert statuses == ["pending"] * (died_after - 1) + ["dead"]
    assert job(conn, id)["attempt"] == died_after


@pytest.mark.parametrize(("of_job", "of_queue", "of_all", "delay"), [(1, 2, 3, 1), (None, 2, 3, 2), (None, None, 3, 3)])
def test_the_policy_is_that_of_the_job_then_the_queue_then_the_default(
    conn: Conn, of_job: int | None, of_queue: int | None, of_all: int, delay: int
) -> None:
    def fixed(seconds: int | None) -> dict[str, Any] | None:
        return None if seconds is None else {"type": "fixed", "delay": seconds}

    enqueue(conn, retry=fixed(of_job))
    db.execute(conn, db.set_queue("q", {"retry": fixed(of_queue)}))
    db.execute(conn, db.set_defaults({"retry": fixed(of_all)}))
    w = worker(conn)
    assert fail(conn, w, claim_one(conn, w)).delay_seconds == delay


def test_a_fatal_failure_kills_at_the_first_attempt(conn: Conn) -> None:
    id, w = enqueue(conn, retry=FIXED), worker(conn)
    assert fail(conn, w, claim_one(conn, w), fatal=True) == (id, "dead", None)
    dead = row(conn, "select * from pgqueue.job_dead")
    assert (dead["error"], dead["attempt"], dead["worker_id"]) == ("boom", 1, w)
    assert dead["prune_at"] > dead["finished_at"]
    assert row(conn, "select outcome, delay_seconds from pgqueue.job_attempt") == {
        "outcome": "failed",
        "delay_seconds": None,
    }


@pytest.mark.parametrize(
    ("asked", "given"),
    [(0.0, 0), (1.5, 1.5), (1e-50, 0), (float("nan"), 60), (-1.0, 60), (float("inf"), 60), (1e300, 60)],
)
def test_a_delay_of_the_handlers_choice_overrides_the_policy_if_it_makes_sense(
    conn: Conn, asked: float, given: float
) -> None:
    enqueue(conn, retry=FIXED)
    w = worker(conn)
    outcome = fail(conn, w, claim_one(conn, w), retry_in=asked)
    assert (outcome.status, outcome.delay_seconds) == ("scheduled" if given else "pending", given)


def test_a_job_that_was_asked_to_stop_is_cancelled_not_retried(conn: Conn) -> None:
    id, w = enqueue(conn, retry=FIXED), worker(conn)
    claimed = claim_one(conn, w)
    db.execute(conn, db.cancel(id, "enough"))
    assert fail(conn, w, claimed).status == "cancelled"
    assert (job(conn, id)["status"], job(conn, id)["error"]) == ("cancelled", "enough")
    assert value(conn, "select outcome from pgqueue.job_attempt") == "cancelled"


def test_what_is_not_the_workers_is_refused_and_the_rest_goes_through(conn: Conn) -> None:
    ids = [enqueue(conn, retry=FIXED) for _ in range(3)]
    w, other = worker(conn), worker(conn)
    mine = {claimed.id: claimed for claimed in claim(conn, w, 3)}
    failures = [db.Failure(id, mine[id].token + (id == ids[1]), f"error of {id}") for id in reversed(ids)]
    outcomes = {
        failed.id: failed.status for failed in db.execute(conn, db.fail(w, [*failures, db.Failure(-1, 1, "?")]))
    }
    assert outcomes == {ids[0]: "scheduled", ids[1]: None, ids[2]: "scheduled", -1: None}
    assert job(conn, ids[2])["error"] == f"error of {ids[2]}"
    assert fail(conn, other, mine[ids[1]]).status is None
    assert job(conn, ids[1])["status"] == "running"


def test_a_job_named_twice_fails_once(conn: Conn) -> None:
    id, w = enqueue(conn, retry=FIXED), worker(conn)
    failure = db.Failure(id, claim_one(conn, w).token, "boom")
    assert db.execute(conn, db.fail(w, [failure, failure])) == [(id, "scheduled", 60)]
    assert value(conn, "select count(*) from pgqueue.job_attempt") == 1


@pytest.mark.parametrize("text", ["nul \0 inside", "lone \ud800 surrogate", "x" * 50_000_000, "", "ü" * 5000])
def test_any_message_can_be_reported(conn: Conn, text: str) -> None:
    id, w = enqueue(conn), worker(conn)
    assert fail(conn, w, claim_one(conn, w), error=text, error_type=text, traceback=text, fatal=True).status == "dead"
    assert len(job(conn, id)["error"]) <= 4000
    assert len(value(conn, "select traceback from pgqueue.job_attempt")) <= 65536


def test_attempt_32000_is_the_last_and_overflows_nothing(conn: Conn) -> None:
    id = enqueue(conn, max_attempts=32000, retry={"type": "exponential", "base": 5, "factor": 10, "cap": 100})
    w = worker(conn)
    conn.execute("update pgqueue.job_live set attempt = 31998, token = 31998 where id = %s", [id])
    assert fail(conn, w, claim_one(conn, w)) == (id, "scheduled", 100)
    make_due(conn, id)
    assert fail(conn, w, claim_one(conn, w)).status == "dead"


def test_decorrelated_jitter_grows_from_the_delay_before(conn: Conn) -> None:
    id = enqueue(conn, retry={"type": "exponential", "base": 1, "cap": 1000, "jitter": "decorrelated"})
    w = worker(conn)
    conn.execute("update pgqueue.job_live set retry_delay_seconds = 300 where id = %s", [id])
    delay = fail(conn, w, claim_one(conn, w)).delay_seconds
    assert delay is not None
    assert 1 <= delay <= 900
    assert job(conn, id)["retry_delay_seconds"] == pytest.approx(delay)


def test_a_success_at_once_leaves_no_history(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    db.execute(conn, db.complete(w, [(id, claim_one(conn, w).token)]))
    assert rows(conn, "select * from pgqueue.job_attempt") == []
    assert row(conn, "select outcome, attempt from pgqueue.attempt where job_id = %s", id) == {
        "outcome": "completed",
        "attempt": 1,
    }
