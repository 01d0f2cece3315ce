from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgqueue import database as db
from tests.support import Conn, claim, claim_one, enqueue, job, row, rows, value, wait_until, worker

ON = "select pgqueue.refresh_hints(p_margin => '0', p_slow_ms => 0, p_step_ms => 0)"  # every search counts as slow


def lane(conn: Conn, priority: int | None = 0) -> dict[str, Any]:
    return row(conn, "select hint, checked_at from pgqueue.lane where priority is not distinct from %s", priority)


def floor_rises(conn: Conn) -> bool:
    """Transactions in other databases of the server hold it back, too, for as long as they take."""
    value(conn, "select pgqueue.refresh_hints(p_margin => '0', p_step_ms => 0)")
    return bool(value(conn, "select floor > '-infinity' from pgqueue.lane where priority = 0"))


def hint_on(conn: Conn, priority: int | None = 0) -> None:
    """As if claims had become slow: the hint stands at now, a full search has just been made."""
    conn.execute(
        "update pgqueue.lane set hint = clock_timestamp(), checked_at = clock_timestamp(), cost_ms = 1e6,"
        " mark_at = clock_timestamp(), mark_xid = pg_snapshot_xmax(pg_current_snapshot())"
        " where priority is not distinct from %s",
        [priority],
    )


def test_a_healthy_lane_has_no_hint_and_is_not_written(conn: Conn) -> None:
    enqueue(conn)
    before = value(conn, "select array_agg((ctid, xmin, xmax)::text) from pgqueue.lane")
    assert value(conn, "select pgqueue.refresh_hints(p_slow_ms => 1000)") == 0
    assert value(conn, "select array_agg((ctid, xmin, xmax)::text) from pgqueue.lane") == before


def test_a_slow_lane_gets_a_hint_at_its_first_pending_job(conn: Conn) -> None:
    first = enqueue(conn)
    second = enqueue(conn)
    assert value(conn, ON) == 1
    assert lane(conn)["hint"] == job(conn, first)["rank_at"]
    w = worker(conn)
    assert {claimed.id for claimed in claim(conn, w, 5)} == {first, second}


def test_a_hint_never_comes_closer_to_now_than_the_margin(conn: Conn) -> None:
    enqueue(conn)
    value(conn, "select pgqueue.refresh_hints(p_margin => '1 hour', p_slow_ms => 0)")
    assert value(conn, "select hint < clock_timestamp() - interval '59 minutes' from pgqueue.lane where priority = 0")


def test_a_hint_moves_on_when_the_head_has_gone(conn: Conn) -> None:
    first, second = enqueue(conn), enqueue(conn)
    value(conn, ON)
    w = worker(conn)
    db.execute(conn, db.complete(w, [(first, claim_one(conn, w).token)]))
    value(conn, ON)
    assert lane(conn)["hint"] == job(conn, second)["rank_at"]


def test_a_job_that_appears_below_the_hint_is_found_by_the_near_search(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    w = worker(conn)
    enqueue(conn)
    claim_one(conn, w)
    late = connect(autocommit=False)
    id = enqueue(late)
    hint_on(conn)
    late.commit()
    assert claim(conn, w, 5) == []
    value(conn, "select pgqueue.refresh_hints()")
    assert claim_one(conn, w).id == id


def test_the_floor_waits_for_transactions_that_may_still_commit_jobs_below_it(
    conn: Conn, connect: Callable[..., Conn]
) -> None:
    w = worker(conn)
    enqueue(conn)
    late = connect(autocommit=False)
    id = enqueue(late)
    claim(conn, w)
    hint_on(conn)
    for _ in range(3):
        value(conn, "select pgqueue.refresh_hints(p_margin => '0', p_step_ms => 0)")
    assert value(conn, "select floor = '-infinity' from pgqueue.lane where priority = 0")
    late.commit()
    value(conn, "select pgqueue.refresh_hints(p_margin => '0', p_step_ms => 0)")
    assert claim_one(conn, w).id == id
    wait_until(lambda: floor_rises(conn))


def test_a_report_that_only_reads_does_not_hold_the_floor_back(conn: Conn, connect: Callable[..., Conn]) -> None:
    enqueue(conn)
    report = connect(autocommit=False)
    report.execute("set transaction isolation level repeatable read")
    report.execute("select count(*) from pgqueue.job")
    hint_on(conn)
    wait_until(lambda: floor_rises(conn))


def test_the_full_search_finds_what_lies_below_the_floor_and_switches_the_hint_off_when_it_is_fast(conn: Conn) -> None:
    id, w = enqueue(conn), worker(conn)
    hint_on(conn)
    conn.execute("update pgqueue.lane set floor = hint, checked_at = '-infinity'")
    assert claim(conn, w) == []
    assert value(conn, "select pgqueue.refresh_hints(p_slow_ms => 1000)") == 0
    assert value(conn, "select hint = '-infinity' from pgqueue.lane where priority = 0")
    assert claim_one(conn, w).id == id


def test_the_full_search_is_not_repeated_before_fifty_times_what_it_cost(conn: Conn) -> None:
    enqueue(conn)
    hint_on(conn)
    conn.execute("update pgqueue.lane set floor = hint")
    checked = lane(conn)["checked_at"]
    value(conn, "select pgqueue.refresh_hints()")
    assert lane(conn)["checked_at"] == checked


def test_a_scheduled_job_below_the_hint_of_the_scheduled_is_promoted(conn: Conn) -> None:
    w = worker(conn)
    id = enqueue(conn, run_at=value(conn, "select clock_timestamp() + interval '1 hour'"))
    db.execute(conn, db.sweep())
    conn.execute("update pgqueue.job_live set run_at = clock_timestamp() - interval '1 s'")
    hint_on(conn, None)
    assert claim(conn, w) == []
    value(conn, "select pgqueue.refresh_hints()")
    assert job(conn, id)["status"] == "pending"
    assert claim_one(conn, w).id == id


def test_a_scheduled_job_above_the_hint_is_promoted_when_due(conn: Conn) -> None:
    w = worker(conn)
    id = enqueue(conn, run_at=value(conn, "select clock_timestamp() + interval '1 hour'"))
    db.execute(conn, db.sweep())
    hint_on(conn, None)
    conn.execute("update pgqueue.job_live set run_at = clock_timestamp()")
    assert claim_one(conn, w).id == id


@pytest.mark.parametrize("queues", [["q"], None])
def test_only_the_lanes_of_the_given_queues_are_looked_at(conn: Conn, queues: list[str] | None) -> None:
    enqueue(conn)
    enqueue(conn, queue="other")
    conn.execute("select pgqueue.refresh_hints(%s, p_slow_ms => 0)", [queues])
    on = {found["queue"] for found in rows(conn, "select queue from pgqueue.lane where hint > '-infinity'")}
    assert on == ({"q"} if queues else {"q", "other"})
