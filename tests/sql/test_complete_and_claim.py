from __future__ import annotations

import pytest

from pgqueue import database as db
from pgqueue.errors import WorkerLost
from tests.support import Conn, claim, claim_one, enqueue, job, lose, worker


def test_it_completes_what_is_done_and_claims_what_is_next(conn: Conn) -> None:
    done, following = enqueue(conn), enqueue(conn, {"n": 2}, meta={"m": 1})
    w = worker(conn)
    held = claim_one(conn, w)
    answer = db.execute(conn, db.complete_and_claim(w, [(held.id, held.token)], ["r"], ["q"], 5))
    assert ([one.id for one in answer.jobs], answer.refused) == ([following], [])
    assert (answer.jobs[0].payload, answer.jobs[0].meta, answer.jobs[0].token) == ({"n": 2}, {"m": 1}, 1)
    assert (job(conn, done)["status"], job(conn, done)["result"]) == ("completed", "r")


def test_with_nothing_done_it_only_claims(conn: Conn) -> None:
    id = enqueue(conn)
    answer = db.execute(conn, db.complete_and_claim(worker(conn), [], None, ["q"], 1))
    assert ([one.id for one in answer.jobs], answer.refused) == ([id], [])


def test_with_a_limit_of_zero_it_only_completes(conn: Conn) -> None:
    enqueue(conn)
    enqueue(conn)
    w = worker(conn)
    held = claim_one(conn, w)
    assert db.execute(conn, db.complete_and_claim(w, [(held.id, held.token)], None, ["q"], 0)) == db.Claimed([], [])
    assert job(conn, held.id)["status"] == "completed"


def test_refused_ids_come_back_beside_the_claimed_jobs(conn: Conn) -> None:
    first, second, third = enqueue(conn), enqueue(conn), enqueue(conn)
    w = worker(conn)
    claim(conn, w, 2)
    answer = db.execute(conn, db.complete_and_claim(w, [(first, 9), (second, 1), (10**12, 1)], None, ["q"], 5))
    assert answer.refused == [first, 10**12]
    assert [one.id for one in answer.jobs] == [third]
    assert (job(conn, first)["status"], job(conn, second)["status"]) == ("running", "completed")


def test_refused_ids_come_back_when_nothing_is_left_to_claim(conn: Conn) -> None:
    id = enqueue(conn)
    w = worker(conn)
    claim_one(conn, w)
    assert db.execute(conn, db.complete_and_claim(w, [(id, 9)], None, ["q"], 5)) == db.Claimed([], [id])


def test_the_key_of_the_completed_job_is_free_for_the_next(conn: Conn) -> None:
    enqueue(conn, key="k")
    w = worker(conn)
    held = claim_one(conn, w)
    db.execute(conn, db.complete_and_claim(w, [(held.id, held.token)], None, ["q"], 1))
    assert db.execute(conn, db.enqueue("q", "t", key="k", on_conflict="raise")).created is True


def test_what_a_late_worker_has_finished_counts_but_it_gets_nothing_more(conn: Conn) -> None:
    enqueue(conn)
    w = worker(conn)
    held = claim_one(conn, w)
    enqueue(conn)
    lose(conn, w)
    answer = db.execute(conn, db.complete_and_claim(w, [(held.id, held.token)], None, ["q"], 1))
    assert answer == db.Claimed([], [])
    assert job(conn, held.id)["status"] == "completed"
    with pytest.raises(WorkerLost):
        db.execute(conn, db.complete_and_claim(w, [], None, ["q"], 1))
