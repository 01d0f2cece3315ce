"""What many jobs of a flow cost together: each is found by its id, whatever else waits."""

from __future__ import annotations

from functools import partial

import pytest

from pgqueue import database as db
from tests.plans.measure import touched
from tests.support import Conn, claim, claim_one, worker

CHILDREN = 2000


def fan_out(conn: Conn, on_death: str) -> db.EnqueuedFlow:
    child = {"queue": "q", "task": "t", "after": [0], "on_death": on_death}
    return db.execute(conn, db.enqueue_flow({"jobs": [{"queue": "q", "task": "t"}, *[child] * CHILDREN]}))


@pytest.mark.parametrize("end", ["complete", "die, stop", "die, continue", "cancel flow", "retry"])
@pytest.mark.parametrize("statistics", ["none", "of an empty table", "true"])
def test_the_children_of_one_job_are_not_looked_for_among_all_that_wait(conn: Conn, end: str, statistics: str) -> None:
    if statistics == "of an empty table":
        conn.execute("vacuum analyze pgqueue.job_live, pgqueue.flow_node, pgqueue.flow_edge, pgqueue.flow")
    made = fan_out(conn, "continue" if "continue" in end else "stop")
    if statistics == "true":
        conn.execute("vacuum analyze pgqueue.job_live, pgqueue.flow_node, pgqueue.flow_edge, pgqueue.flow")
    w = worker(conn)
    first = claim_one(conn, w)
    death = db.fail(w, [db.Failure(first.id, first.token, "boom", "ValueError", fatal=True)])
    if end == "retry":
        db.execute(conn, death)
    call: db.Call[object] = {
        "complete": db.complete(w, [(first.id, first.token)]),
        "die, stop": death,
        "die, continue": death,
        "cancel flow": db.cancel_flow(made.id),
        "retry": db.retry(made.job_ids[0]),
    }[end]  # type: ignore[assignment]
    found = touched(conn, lambda conn: db.execute(conn, call))
    assert found.seq_scans == 0
    # By 2,000 for each of 2,000 it would be millions.
    assert sum(found.entries.values()) <= 10 * CHILDREN, found


def test_a_fan_in_costs_each_of_its_jobs_the_same(conn: Conn) -> None:
    part = {"queue": "q", "task": "t"}
    db.execute(conn, db.enqueue_flow({"jobs": [*[part] * CHILDREN, {**part, "after": list(range(CHILDREN))}]}))
    w = worker(conn)
    costs: list[int] = []
    for _ in range(CHILDREN // 100):
        jobs = claim(conn, w, 100)
        done = db.complete(w, [(job.id, job.token) for job in jobs])
        found = touched(conn, partial(db.execute, call=done))
        costs.append(sum(found.entries.values()))
    assert max(costs) <= 2 * costs[0]
