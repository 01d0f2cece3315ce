from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, PayloadError
from tests.support import Conn, claim_one, enqueue, lose, rows, value, worker

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def held(conn: Conn) -> tuple[int, db.ClaimedJob]:
    enqueue(conn)
    w = worker(conn)
    return w, claim_one(conn, w)


def taken_over(conn: Conn) -> tuple[int, db.ClaimedJob]:
    """A worker, and a job that was its own before the sweep gave it to another."""
    w, job = held(conn)
    lose(conn, w)
    db.execute(conn, db.sweep())
    claim_one(conn, worker(conn))
    return w, job


def test_a_step_is_stored_and_found_by_the_next_attempt(conn: Conn) -> None:
    w, job = held(conn)
    assert db.execute(conn, db.save_step(w, job.id, job.token, "charge", {"receipt": 7})) is True
    assert db.execute(conn, db.save_step(w, job.id, job.token, "mail", None)) is True
    assert db.execute(conn, db.load_steps(job.id)) == {"charge": {"receipt": 7}, "mail": None}


def test_a_step_keeps_its_first_result(conn: Conn) -> None:
    w, job = held(conn)
    for result in (1, 2):
        assert db.execute(conn, db.save_step(w, job.id, job.token, "s", result)) is True
    assert db.execute(conn, db.load_steps(job.id)) == {"s": 1}


def test_a_stale_worker_stores_no_step_and_no_line(conn: Conn) -> None:
    w, job = taken_over(conn)
    assert db.execute(conn, db.save_step(w, job.id, job.token, "s", 1)) is False
    assert db.execute(conn, db.log(w, job.id, job.token, [(NOW, "info", "late")])) is False
    assert db.execute(conn, db.load_steps(job.id)) == {}
    assert rows(conn, "select 1 from pgqueue.job_log") == []


def test_an_earlier_claim_of_the_same_worker_stores_neither(conn: Conn) -> None:
    w, job = held(conn)
    db.execute(conn, db.release(w, [(job.id, job.token)]))
    again = claim_one(conn, w)
    assert (again.id, again.token) == (job.id, job.token + 1)
    assert db.execute(conn, db.save_step(w, job.id, job.token, "s", 1)) is False
    assert db.execute(conn, db.log(w, job.id, job.token, [(NOW, "info", "late")])) is False
    assert db.execute(conn, db.progress(w, job.id, job.token, 1)) is False
    assert db.execute(conn, db.load_steps(job.id)) == {}
    assert rows(conn, "select 1 from pgqueue.job_log") == []


@pytest.mark.parametrize(("name", "result", "error"), [("", 1, InvalidArgument), ("x" * 201, 1, InvalidArgument)])
def test_a_bad_step_is_refused(conn: Conn, name: str, result: object, error: type[Exception]) -> None:
    w, job = held(conn)
    with pytest.raises(error):
        db.execute(conn, db.save_step(w, job.id, job.token, name, result))
    assert db.execute(conn, db.load_steps(job.id)) == {}


def test_a_result_of_a_step_that_is_too_big_is_refused(conn: Conn) -> None:
    w, job = held(conn)
    db.execute(conn, db.set_defaults({"payload_max_bytes": 2000}))
    with pytest.raises(PayloadError, match="result of step 's'"):
        db.execute(conn, db.save_step(w, job.id, job.token, "s", [n * 7919 for n in range(2000)]))


def test_lines_are_stored_with_their_times(conn: Conn) -> None:
    w, job = held(conn)
    lines = [(NOW, "info", "begin"), (NOW, "error", "NUL \0 and \ud800")]
    assert db.execute(conn, db.log(w, job.id, job.token, lines)) is True
    found = rows(conn, "select logged_at, level, message from pgqueue.job_log order by message")
    assert [(line["logged_at"], line["level"]) for line in found] == [(NOW, "error"), (NOW, "info")]
    with pytest.raises(InvalidArgument, match="debug, info"):
        db.execute(conn, db.log(w, job.id, job.token, [(NOW, "loud", "x")]))


def test_purging_a_job_takes_its_steps_and_lines_with_it(conn: Conn) -> None:
    w, job = held(conn)
    db.execute(conn, db.save_step(w, job.id, job.token, "s", 1))
    db.execute(conn, db.log(w, job.id, job.token, [(NOW, "info", "x")]))
    db.execute(conn, db.complete(w, [(job.id, job.token)]))
    assert db.execute(conn, db.purge(db.Filter(), status="completed")).purged == 1
    for table in ("job_step", "job_log"):
        assert value(conn, f"select count(*) from pgqueue.{table}") == 0
