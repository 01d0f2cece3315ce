"""Somebody holds a snapshot open while jobs pass: every dead entry stays, and claims must not walk over them.

The fourth of the traps in tests/race/test_traps.py."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pgqueue import database as db
from pgqueue import schema
from tests.conftest import MakeDatabase
from tests.plans.measure import buffers, hints_on
from tests.support import Conn, claim, enqueue, job, value, worker

JOBS, BATCH = 60_000, 1_000

# Without a margin, and every search counts as slow: so the speed of this machine decides nothing.
REFRESH = "select pgqueue.refresh_hints(p_margin => '0', p_slow_ms => 0, p_step_ms => 0)"


class Queue:
    def __init__(self, dsn: str) -> None:
        schema.migrate(dsn)
        self.dsn = dsn
        self.conn: Conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute("alter table pgqueue.job_live set (autovacuum_enabled = off)")
        self.worker_id = worker(self.conn, lease_seconds=3600)

    def pass_jobs(self, count: int, refresh: bool) -> None:
        for _ in range(count // BATCH):
            db.execute(self.conn, db.enqueue_many("q", "t", [{}] * BATCH))
            jobs = claim(self.conn, self.worker_id, BATCH)
            assert len(jobs) == BATCH
            assert db.execute(self.conn, db.complete(self.worker_id, [(job.id, job.token) for job in jobs])) == []
            if refresh:
                value(self.conn, REFRESH)

    def cost_of_a_claim(self) -> int:
        enqueue(self.conn)
        cost = buffers(self.conn, db.claim(self.worker_id, ["q"], 1))
        assert value(self.conn, "select count(*) from pgqueue.job_live where status = 'pending'") == 0
        return cost


@pytest.fixture(scope="module")
def measured(make_database: MakeDatabase) -> Iterator[tuple[Queue, dict[str, int]]]:
    costs = {}
    for name in ("without", "with"):
        queue = Queue(make_database())
        snapshot = psycopg.connect(queue.dsn)
        snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        snapshot.execute("select 1 from pgqueue.setting")
        queue.pass_jobs(BATCH, refresh=False)
        costs[f"start {name}"] = queue.cost_of_a_claim()
        queue.pass_jobs(JOBS, refresh=name == "with")
        costs[f"end {name}"] = queue.cost_of_a_claim()
        if name == "without":
            snapshot.close()
            queue.conn.close()
    yield queue, costs
    snapshot.close()
    queue.conn.close()


def test_trap_04_without_hints_claims_walk_over_what_has_passed(measured: tuple[Queue, dict[str, int]]) -> None:
    _, costs = measured
    assert costs["end without"] > 10 * costs["start without"]
    assert costs["end without"] > 10 * costs["end with"]


def test_trap_04_with_hints_a_claim_costs_what_it_cost_before(measured: tuple[Queue, dict[str, int]]) -> None:
    queue, costs = measured
    assert hints_on(queue.conn) > 0
    assert costs["end with"] <= 3 * costs["start with"]


def test_a_high_priority_job_is_claimed_by_the_next_claim_while_hints_are_on(
    measured: tuple[Queue, dict[str, int]],
) -> None:
    queue, _ = measured
    ordinary, urgent = enqueue(queue.conn), enqueue(queue.conn, priority=50)
    assert hints_on(queue.conn) > 0
    assert [job.id for job in claim(queue.conn, queue.worker_id)] == [urgent]
    assert [job.id for job in claim(queue.conn, queue.worker_id)] == [ordinary]


def test_a_job_committed_late_below_the_hint_is_claimed_after_two_refreshes(
    measured: tuple[Queue, dict[str, int]],
) -> None:
    queue, _ = measured
    with psycopg.connect(queue.dsn) as slow:
        late = enqueue(slow)
        queue.pass_jobs(3 * BATCH, refresh=True)
        slow.commit()
    hint = value(queue.conn, "select max(hint) from pgqueue.lane where queue = 'q' and priority = 0")
    assert job(queue.conn, late)["rank_at"] < hint
    for _ in range(2):
        value(queue.conn, REFRESH)
    assert [job.id for job in claim(queue.conn, queue.worker_id)] == [late]


def test_a_hint_goes_off_when_the_snapshot_is_gone_and_vacuum_has_been(make_database: MakeDatabase) -> None:
    queue = Queue(make_database())
    queue.pass_jobs(2 * BATCH, refresh=True)
    assert hints_on(queue.conn) > 0
    queue.conn.execute("vacuum pgqueue.job_live")
    queue.conn.execute("update pgqueue.lane set checked_at = now() - interval '1 day'")
    value(queue.conn, "select pgqueue.refresh_hints(p_slow_ms => 1000)")
    assert hints_on(queue.conn) == 0
    queue.conn.close()
