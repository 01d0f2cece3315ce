from __future__ import annotations

from collections.abc import Callable

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.support import Conn, claim, claim_one, enqueue, job, rows, value, worker

GiveBack = Callable[[int, list[tuple[int, int]]], db.Call[list[int]]]


def snooze(worker_id: int, leases: list[tuple[int, int]]) -> db.Call[list[int]]:
    return db.snooze(worker_id, leases, [3600.0] * len(leases))


both = pytest.mark.parametrize("give_back", [db.release, snooze], ids=["release", "snooze"])


def test_a_released_job_is_pending_again_with_its_attempt_and_its_place(conn: Conn) -> None:
    first, second, w = enqueue(conn), enqueue(conn), worker(conn)
    before = job(conn, first)
    claimed = claim_one(conn, w)
    assert db.execute(conn, db.release(w, [(first, claimed.token)])) == []
    after = job(conn, first)
    assert (after["status"], after["attempt"], after["worker_id"]) == ("pending", 0, None)
    assert after["rank_at"] == before["rank_at"]
    assert [claim_one(conn, w).id for _ in range(2)] == [first, second]


def test_a_released_job_that_the_hint_has_passed_goes_above_it(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    claimed = claim_one(conn, w)
    conn.execute("update pgqueue.lane set hint = clock_timestamp() where priority = 0")
    db.execute(conn, db.release(w, [(id, claimed.token)]))
    assert claim_one(conn, w).id == id


def test_a_snoozed_job_waits_with_its_attempt_given_back(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    assert db.execute(conn, db.snooze(w, [(id, claim_one(conn, w).token)], [3600])) == []
    after = job(conn, id)
    assert (after["status"], after["attempt"], after["token"]) == ("scheduled", 0, 1)
    assert 3590 < value(conn, "select extract(epoch from run_at - now()) from pgqueue.job") <= 3600


def test_each_snoozed_job_gets_its_own_delay_whatever_the_order(conn: Conn) -> None:
    first, second, w = enqueue(conn), enqueue(conn), worker(conn)
    tokens = {claimed.id: claimed.token for claimed in claim(conn, w, 2)}
    db.execute(conn, db.snooze(w, [(second, tokens[second]), (first, tokens[first])], [200, 100]))
    delays = value(conn, "select array_agg(delay_seconds order by job_id) from pgqueue.job_attempt")
    assert delays == [100, 200]


@pytest.mark.parametrize("delays", [[-1.0], [float("nan")], [float("inf")], [1.0, 2.0], []])
def test_a_snooze_that_makes_no_sense_changes_nothing(conn: Conn, delays: list[float]) -> None:
    id, w = enqueue(conn), worker(conn)
    with pytest.raises(InvalidArgument):
        db.execute(conn, db.snooze(w, [(id, claim_one(conn, w).token)], delays))
    assert job(conn, id)["status"] == "running"


@both
def test_the_token_is_not_given_back_so_the_old_lease_is_refused(conn: Conn, give_back: GiveBack) -> None:
    id, w = enqueue(conn), worker(conn)
    old = claim_one(conn, w)
    db.execute(conn, give_back(w, [(id, old.token)]))
    conn.execute("update pgqueue.job_live set status = 'pending', rank_at = clock_timestamp()")
    new = claim_one(conn, w)
    assert (new.attempt, new.token) == (1, 2)
    assert db.execute(conn, db.complete(w, [(id, old.token)])) == [id]
    assert db.execute(conn, db.complete(w, [(id, new.token)])) == []


@both
def test_what_is_not_the_workers_is_refused(conn: Conn, give_back: GiveBack) -> None:
    id, w, other = enqueue(conn), worker(conn), worker(conn)
    token = claim_one(conn, w).token
    assert db.execute(conn, give_back(other, [(id, token)])) == [id]
    assert db.execute(conn, give_back(w, [(id, token + 1), (-1, 1)])) == [-1, id]
    assert job(conn, id)["status"] == "running"


@both
def test_a_job_named_twice_is_given_back_once(conn: Conn, give_back: GiveBack) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    assert db.execute(conn, give_back(w, [(id, token), (id, token)])) == []
    assert job(conn, id)["attempt"] == 0


@both
def test_a_job_that_was_asked_to_stop_is_cancelled_instead(conn: Conn, give_back: GiveBack) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    db.execute(conn, db.cancel(id, "enough"))
    assert db.execute(conn, give_back(w, [(id, token)])) == []
    assert (job(conn, id)["status"], job(conn, id)["error"]) == ("cancelled", "enough")


@both
def test_the_history_says_how_the_claim_ended(conn: Conn, give_back: GiveBack) -> None:
    id, w = enqueue(conn), worker(conn)
    db.execute(conn, give_back(w, [(id, claim_one(conn, w).token)]))
    expected = ("released", 0) if give_back is db.release else ("snoozed", 3600)
    assert [(a["outcome"], a["delay_seconds"]) for a in rows(conn, "select * from pgqueue.job_attempt")] == [expected]


def test_progress_is_stored_while_the_lease_is_held_and_refused_after(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    assert db.execute(conn, db.progress(w, id, token, {"done": 0.4})) is True
    assert value(conn, "select progress from pgqueue.running_job") == {"done": 0.4}
    assert db.execute(conn, db.progress(w, id, token + 1, 1)) is False
    db.execute(conn, db.complete(w, [(id, token)]))
    assert db.execute(conn, db.progress(w, id, token, 1)) is False
    assert job(conn, id)["progress"] == {"done": 0.4}


def test_a_job_that_snoozes_has_survived_its_crashes(conn: Conn) -> None:
    id = enqueue(conn)
    conn.execute("update pgqueue.job_live set crashes = 3")
    w = worker(conn)
    held = claim_one(conn, w)
    db.execute(conn, db.snooze(w, [(held.id, held.token)], [60]))
    assert job(conn, id)["crashes"] == 0
