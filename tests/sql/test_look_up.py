from __future__ import annotations

import pytest

from pgqueue import database as db
from pgqueue.errors import JobNotFound
from tests.support import Conn, claim_one, enqueue, worker


def test_a_job_is_found_wherever_it_is(conn: Conn) -> None:
    done, dead, live = (enqueue(conn, tags=["a"], max_attempts=1) for _ in range(3))
    cancelled = enqueue(conn)
    w = worker(conn)
    db.execute(conn, db.cancel(cancelled, "why not"))
    first, second = claim_one(conn, w), claim_one(conn, w)
    db.execute(conn, db.complete(w, [(first.id, first.token)], [{"a": 1}]))
    db.execute(conn, db.fail(w, [db.Failure(second.id, second.token, "boom", "ValueError")]))
    found = {id: db.execute(conn, db.look_up(id)) for id in (done, dead, live, cancelled)}
    assert [found[id].status for id in (done, dead, live, cancelled)] == ["completed", "dead", "pending", "cancelled"]
    assert (found[done].result, found[done].tags, found[done].attempt) == ({"a": 1}, ["a"], 1)
    assert (found[dead].error_type, found[dead].error, found[dead].max_attempts) == ("ValueError", "boom", 1)
    assert found[cancelled].error == "why not"
    assert found[live].finished_at is None
    assert found[live].max_attempts == 1


def test_a_job_that_is_not_there_is_said_so(conn: Conn) -> None:
    with pytest.raises(JobNotFound, match="no job 987654321"):
        db.execute(conn, db.look_up(987654321))


def test_limits_are_those_in_force(conn: Conn) -> None:
    id = enqueue(conn)
    db.execute(conn, db.set_queue("q", {"max_attempts": 9}))
    assert db.execute(conn, db.look_up(id)).max_attempts == 9
