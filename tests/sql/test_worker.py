from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, WorkerLost
from tests.support import Conn, claim, claim_one, enqueue, job, lose, row, rows, value, worker

# --------------------------------------------------------------------------------------- register_worker


def test_a_worker_that_registers_is_remembered(conn: Conn) -> None:
    before = value(conn, "select clock_timestamp()")
    id = db.execute(conn, db.register_worker("host:7", ["b", "a"], 45, {"version": "1"}))
    after = value(conn, "select clock_timestamp()")
    found = row(conn, "select * from pgqueue.worker")
    assert found == {
        "id": id,
        "name": "host:7",
        "queues": ["b", "a"],
        "lease_seconds": 45,
        "info": {"version": "1"},
        "lost_at": None,
        "drain_requested_at": None,
        "heartbeat_at": found["heartbeat_at"],
        "started_at": found["started_at"],
    }
    assert before <= found["started_at"] <= after
    assert before <= found["heartbeat_at"] <= after


@pytest.mark.parametrize("info", ["[1]", '"x"', "null", "7"])
def test_what_a_worker_tells_of_itself_is_an_object(conn: Conn, info: str) -> None:
    with pytest.raises(psycopg.Error, match="is a JSON object"):
        conn.execute("select pgqueue.register_worker('w', '{q}', 30, %s::jsonb)", [info])


def test_an_id_is_never_given_twice(conn: Conn) -> None:
    first = worker(conn)
    db.execute(conn, db.retire_worker(first))
    assert worker(conn) > first


def test_the_lease_is_thirty_seconds_unless_said_otherwise(conn: Conn) -> None:
    id = value(conn, "select pgqueue.register_worker('w', '{q}')")
    assert row(conn, "select lease_seconds, info from pgqueue.worker where id = %s", id) == {
        "lease_seconds": 30,
        "info": {},
    }


def test_the_queues_of_a_worker_get_rows_and_keep_what_they_had(conn: Conn) -> None:
    db.execute(conn, db.set_queue("a", {"max_attempts": 3}))
    worker(conn, ["b", "a", "b"])
    worker(conn, ["a"])
    found = rows(conn, "select queue, max_attempts, wake is not null as wakes from pgqueue.queue order by queue")
    assert [tuple(each.values()) for each in found] == [("a", 3, True), ("b", None, True)]


def test_every_queue_has_a_wake_sequence_of_its_own(conn: Conn) -> None:
    worker(conn, ["a", "b"])
    assert value(conn, "select count(distinct wake) from pgqueue.queue") == 2


def test_a_long_name_is_cut(conn: Conn) -> None:
    value(conn, "select pgqueue.register_worker(repeat('x', 500), '{q}')")
    assert value(conn, "select length(name) from pgqueue.worker") == 200


@pytest.mark.parametrize(
    ("name", "queues", "lease"),
    [
        (None, ["q"], 30),
        ("w", [], 30),
        ("w", None, 30),
        ("w", ["q"], 0),
        ("w", ["q"], 86401),
        ("w", ["q"], None),
    ],
)
def test_a_worker_needs_a_name_a_queue_and_a_lease(conn: Conn, name: Any, queues: Any, lease: Any) -> None:
    call = db.Call("select pgqueue.register_worker($1, $2::text[], $3::int)", [name, queues, lease], lambda _: None)
    with pytest.raises(InvalidArgument, match="a worker has a name, at least one queue and a lease"):
        db.execute(conn, call)
    assert rows(conn, "select 1 from pgqueue.worker") == []


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, None])
def test_a_bad_queue_name_is_refused(conn: Conn, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="bad queue name"):
        worker(conn, ["good", name])
    assert rows(conn, "select 1 from pgqueue.queue") == []


# ---------------------------------------------------------------------------------------------- heartbeat


def test_a_heartbeat_keeps_the_worker_and_its_jobs_alive(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    claim_one(conn, w)
    lose(conn, w)
    before = value(conn, "select clock_timestamp()")
    assert db.execute(conn, db.heartbeat(w)) == (True, [])
    assert value(conn, "select heartbeat_at from pgqueue.worker") >= before
    assert db.execute(conn, db.sweep()).lost_workers == 0
    assert job(conn, id)["status"] == "running"


def test_a_heartbeat_touches_no_other_worker(conn: Conn) -> None:
    beating, silent = worker(conn), worker(conn)
    lose(conn, silent)
    db.execute(conn, db.heartbeat(beating))
    db.execute(conn, db.sweep())
    lost = rows(conn, "select id from pgqueue.worker where lost_at is not null")
    assert [found["id"] for found in lost] == [silent]


def test_a_heartbeat_brings_the_jobs_that_should_stop(conn: Conn) -> None:
    stop, go_on, of_another, w = enqueue(conn), enqueue(conn), enqueue(conn), worker(conn)
    claim(conn, w, 2)
    claim_one(conn, worker(conn))
    for id in (stop, of_another):
        db.execute(conn, db.cancel(id))
    assert db.execute(conn, db.heartbeat(w)) == (True, [stop])
    assert db.execute(conn, db.heartbeat(w)) == (True, [stop])
    assert job(conn, go_on)["cancel_requested_at"] is None


def test_a_lost_worker_is_told_and_does_not_come_back(conn: Conn) -> None:
    w = worker(conn)
    lose(conn, w)
    db.execute(conn, db.sweep())
    beat = value(conn, "select heartbeat_at from pgqueue.worker")
    assert db.execute(conn, db.heartbeat(w)).alive is False
    assert value(conn, "select heartbeat_at from pgqueue.worker") == beat
    with pytest.raises(WorkerLost, match=f"worker {w} is not registered or was declared lost"):
        claim(conn, w)


def test_an_unknown_worker_is_told(conn: Conn) -> None:
    assert db.execute(conn, db.heartbeat(987654321)) == (False, [])


# ------------------------------------------------------------------------------------------ retire_worker


def test_a_worker_that_retires_gives_its_jobs_back_without_burning_an_attempt(conn: Conn) -> None:
    ids, w = [enqueue(conn), enqueue(conn)], worker(conn)
    claim(conn, w, 2)
    assert db.execute(conn, db.retire_worker(w)) == 2
    found = [job(conn, id) for id in ids]
    assert [(each["status"], each["attempt"], each["crashes"], each["token"]) for each in found] == [
        ("pending", 0, 0, 1),
        ("pending", 0, 0, 1),
    ]
    assert rows(conn, "select 1 from pgqueue.worker") == []
    assert {each["outcome"] for each in rows(conn, "select outcome from pgqueue.job_attempt")} == {"released"}


def test_a_job_that_should_stop_is_cancelled_when_its_worker_retires(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    claim_one(conn, w)
    db.execute(conn, db.cancel(id, "customer left"))
    assert db.execute(conn, db.retire_worker(w)) == 1
    assert (job(conn, id)["status"], job(conn, id)["error"]) == ("cancelled", "customer left")


def test_a_worker_that_retires_touches_no_other_worker(conn: Conn) -> None:
    id, other, w = enqueue(conn), worker(conn), worker(conn)
    claim_one(conn, other)
    assert db.execute(conn, db.retire_worker(w)) == 0
    assert (job(conn, id)["status"], job(conn, id)["worker_id"]) == ("running", other)
    assert [found["id"] for found in rows(conn, "select id from pgqueue.worker")] == [other]


def test_retiring_twice_or_unknown_does_nothing(conn: Conn) -> None:
    w = worker(conn)
    assert [db.execute(conn, db.retire_worker(id)) for id in (w, w, 987654321)] == [0, 0, 0]


def test_reports_after_retiring_are_refused(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    token = claim_one(conn, w).token
    db.execute(conn, db.retire_worker(w))
    assert db.execute(conn, db.complete(w, [(id, token)])) == [id]
    with pytest.raises(WorkerLost):
        claim(conn, w)
