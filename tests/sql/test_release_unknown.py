from __future__ import annotations

from pgqueue import database as db
from tests.support import Conn, claim, enqueue, job, worker


def test_what_the_worker_does_not_know_of_goes_back_and_costs_no_attempt(conn: Conn) -> None:
    for _ in range(4):
        enqueue(conn)
    w, other = worker(conn), worker(conn)
    known, lost = claim(conn, w, 1)[0], claim(conn, w, 2)
    foreign = claim(conn, other, 1)[0]
    assert db.execute(conn, db.release_unknown(w, [known.id])) == 2
    assert [(job(conn, one.id)["status"], job(conn, one.id)["attempt"]) for one in lost] == [("pending", 0)] * 2
    assert {job(conn, one.id)["status"] for one in (known, foreign)} == {"running"}
    assert db.execute(conn, db.release_unknown(w, [known.id])) == 0


def test_a_worker_that_knows_nothing_gives_everything_back(conn: Conn) -> None:
    enqueue(conn)
    w = worker(conn)
    (held,) = claim(conn, w, 1)
    assert db.execute(conn, db.release_unknown(w, [])) == 1
    assert job(conn, held.id)["status"] == "pending"
