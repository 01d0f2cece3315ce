from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import PayloadError
from tests.support import Conn, claim, claim_one, enqueue, job, lose, rows, value, worker


def leased(conn: Conn, **options: Any) -> tuple[int, int, int]:
    """(worker, id, token) of a new running job."""
    enqueue(conn, **options)
    w = worker(conn)
    held = claim_one(conn, w)
    return w, held.id, held.token


def complete(conn: Conn, w: int, *leases: tuple[int, int], results: list[Any] | None = None) -> list[int]:
    return db.execute(conn, db.complete(w, leases, results))


def test_a_completed_job_keeps_everything_and_its_result(conn: Conn) -> None:
    w, id, token = leased(conn, payload={"a": 1}, tags=["x"], key="k")
    before = job(conn, id)
    assert complete(conn, w, (id, token), results=[{"ok": True}]) == []
    after = job(conn, id)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"status", "result", "finished_at", "prune_at"}
    assert (after["status"], after["result"]) == ("completed", {"ok": True})
    assert after["finished_at"] >= after["started_at"]
    assert rows(conn, "select * from pgqueue.job_attempt") == []


@pytest.mark.parametrize("result", [None, 0, False, "", "text", [], {}, [1, {"a": None}], 1.5, "null"])
def test_any_json_value_is_a_result(conn: Conn, result: Any) -> None:
    w, id, token = leased(conn)
    complete(conn, w, (id, token), results=[result])
    assert job(conn, id)["result"] == result


@pytest.mark.parametrize("result", [float("nan"), "\0", "\ud800", {1}, "x" * 300_000])
def test_a_result_that_json_cannot_hold_is_refused_before_the_database_sees_it(conn: Conn, result: Any) -> None:
    w, id, token = leased(conn)
    with pytest.raises(PayloadError):
        complete(conn, w, (id, token), results=[result])
    assert job(conn, id)["status"] == "running"


def test_results_belong_to_their_jobs_in_any_order(conn: Conn) -> None:
    made = [enqueue(conn) for _ in range(5)]
    w = worker(conn)
    tokens = {held.id: held.token for held in claim(conn, w, 5)}
    order = [made[n] for n in (3, 0, 4, 1, 2)]
    assert complete(conn, w, *((id, tokens[id]) for id in order), results=[f"r{id}" for id in order]) == []
    assert [job(conn, id)["result"] for id in made] == [f"r{id}" for id in made]


def test_completing_nothing_is_allowed(conn: Conn) -> None:
    assert complete(conn, worker(conn)) == []


def test_the_same_lease_twice_in_one_call_is_one_completion(conn: Conn) -> None:
    w, id, token = leased(conn)
    assert complete(conn, w, (id, token), (id, token)) == []
    assert job(conn, id)["status"] == "completed"


def test_a_job_asked_to_stop_may_still_complete(conn: Conn) -> None:
    w, id, token = leased(conn)
    assert db.execute(conn, db.cancel(id)) == "running"
    assert complete(conn, w, (id, token)) == []
    assert job(conn, id)["status"] == "completed"


# -------------------------------------------------------------------------------------------- the fence


def test_a_wrong_token_is_refused_and_the_others_are_completed(conn: Conn) -> None:
    first, second = enqueue(conn), enqueue(conn)
    w = worker(conn)
    claim(conn, w, 2)
    assert complete(conn, w, (first, 2), (second, 1)) == [first]
    assert (job(conn, first)["status"], job(conn, second)["status"]) == ("running", "completed")


def test_another_worker_is_refused(conn: Conn) -> None:
    _, id, token = leased(conn)
    assert complete(conn, worker(conn), (id, token)) == [id]
    assert job(conn, id)["status"] == "running"


def test_unknown_finished_and_waiting_jobs_are_refused(conn: Conn) -> None:
    w, id, token = leased(conn)
    complete(conn, w, (id, token), results=["first"])
    waiting = enqueue(conn)
    assert complete(conn, w, (id, token), (waiting, 0), (10**12, 1), results=["x", "y", "z"]) == [id, waiting, 10**12]
    assert (job(conn, id)["result"], job(conn, waiting)["status"]) == ("first", "pending")


def test_a_swept_job_is_refused_even_before_somebody_else_claims_it(conn: Conn) -> None:
    w, id, token = leased(conn)
    lose(conn, w)
    assert db.execute(conn, db.sweep()).retried == 1
    assert complete(conn, w, (id, token)) == [id]
    assert job(conn, id)["status"] == "pending"


def test_a_swept_and_reclaimed_job_belongs_to_its_new_worker(conn: Conn) -> None:
    old, id, token = leased(conn)
    lose(conn, old)
    db.execute(conn, db.sweep())
    new = worker(conn)
    held = claim_one(conn, new)
    assert complete(conn, old, (id, token), results=["old"]) == [id]
    assert complete(conn, old, (id, held.token), results=["old"]) == [id]
    assert complete(conn, new, (id, token), results=["old token"]) == [id]
    assert complete(conn, new, (id, held.token), results=["new"]) == []
    assert job(conn, id)["result"] == "new"


# -------------------------------------------------------------------------------------------- retention


@pytest.mark.parametrize(
    ("of_job", "of_queue", "kept"),
    [
        (None, None, timedelta(days=7)),
        (None, timedelta(days=2), timedelta(days=2)),
        (timedelta(hours=30), timedelta(days=2), timedelta(hours=30)),
        (timedelta(days=5), None, timedelta(days=5)),
    ],
)
def test_retention_is_that_of_the_job_then_the_queue_then_the_default(
    conn: Conn, of_job: timedelta | None, of_queue: timedelta | None, kept: timedelta
) -> None:
    if of_queue:
        db.execute(conn, db.set_queue("q", {"retain_completed": f"{of_queue.days} days"}))
    w, id, token = leased(conn, retain_for=of_job)
    complete(conn, w, (id, token))
    after = job(conn, id)
    assert after["prune_at"] - after["finished_at"] == kept
    found = rows(
        conn,
        "select (select relname from pg_class c where c.oid = j.tableoid) as leaf,"
        " to_char(prune_at at time zone 'UTC', 'YYYYMMDD') as day"
        " from pgqueue.job j where id = %s",
        id,
    )
    assert [f"job_done_{one['day']}" for one in found] == [found[0]["leaf"]]


def test_the_default_retention_can_be_changed(conn: Conn) -> None:
    db.execute(conn, db.set_defaults({"retain_completed": "3 days"}))
    w, id, token = leased(conn)
    complete(conn, w, (id, token))
    assert job(conn, id)["prune_at"] - job(conn, id)["finished_at"] == timedelta(days=3)


def test_a_day_without_a_partition_goes_to_the_default_one(conn: Conn) -> None:
    w, id, token = leased(conn, retain_for=timedelta(days=1000))
    assert complete(conn, w, (id, token)) == []
    leaf = value(conn, "select c.relname from pgqueue.job j join pg_class c on c.oid = j.tableoid where j.id = %s", id)
    assert leaf == "job_done_default"


@pytest.mark.parametrize("by", ["job", "queue", "default"])
def test_a_retention_of_zero_leaves_no_row(conn: Conn, by: str) -> None:
    if by == "queue":
        db.execute(conn, db.set_queue("q", {"retain_completed": "0"}))
    if by == "default":
        db.execute(conn, db.set_defaults({"retain_completed": "0"}))
    w, id, token = leased(conn, retain_for=timedelta(0) if by == "job" else None)
    assert complete(conn, w, (id, token)) == []
    assert value(conn, "select count(*) from pgqueue.job") == 0
    assert complete(conn, w, (id, token)) == [id]


def test_one_call_completes_jobs_of_several_queues_each_with_its_own_retention(conn: Conn) -> None:
    db.execute(conn, db.set_queue("a", {"retain_completed": "1 day"}))
    made = [enqueue(conn, queue="a"), enqueue(conn, queue="b"), enqueue(conn, queue="b", retain_for=timedelta(0))]
    w = worker(conn, ["a", "b"])
    held = claim(conn, w, 3, ["a", "b"])
    assert complete(conn, w, *((one.id, one.token) for one in held)) == []
    kept = rows(conn, "select id, prune_at - finished_at as kept from pgqueue.job order by id")
    assert [(one["id"], one["kept"].days) for one in kept] == [(made[0], 1), (made[1], 7)]
