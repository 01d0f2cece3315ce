"""The plans themselves, inside the functions, where the server has auto_explain (the embedded one has not)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pgqueue import database as db
from pgqueue import schema
from tests.conftest import MakeDatabase
from tests.plans.measure import fill
from tests.support import Conn, enqueue, worker


@pytest.fixture(scope="module")
def explained(make_database: MakeDatabase) -> Iterator[Conn]:
    dsn = make_database()
    schema.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        try:
            conn.execute("load 'auto_explain'")
        except psycopg.errors.UndefinedFile:
            pytest.skip("this server has no auto_explain")
        enqueue(conn)
        conn.execute("vacuum analyze pgqueue.job_live")
        fill(conn, 50_000)
        for name, setting in {
            "auto_explain.log_min_duration": "0",
            "auto_explain.log_nested_statements": "on",
            "client_min_messages": "log",
        }.items():
            conn.execute(f"set {name} = {setting}")
        yield conn


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_plan_of_a_claim_is_a_scan_of_the_claim_index_without_a_sort(explained: Conn, lanes: int) -> None:
    if lanes == 2:
        enqueue(explained, priority=5)
    worker_id = worker(explained)
    plans: list[str] = []
    explained.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    assert len(db.execute(explained, db.claim(worker_id, ["q"], 10))) == 10
    claims = [plan for plan in plans if "LockRows" in plan and "job_live s" in plan]
    assert claims, plans
    for plan in claims:
        # What is above the lock sorts the few rows that were taken.
        _, _, search = plan.partition("LockRows")
        assert "Index Scan using job_live_claim on job_live s" in search
        assert "Sort" not in search
        assert "Seq Scan on job_live" not in plan


def test_statistics_by_queue_take_their_samples_from_an_index(explained: Conn) -> None:
    """Twice a queue: scanned, two days of samples of 40 queues took 1.4 s."""
    plans: list[str] = []
    explained.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    db.execute(explained, db.queue_stats())
    samples = [plan for plan in plans if "on queue_sample" in plan]
    assert samples, plans
    for plan in samples:
        assert "CTE Scan on live" not in plan
