"""Hot functions touch the same few pages whatever the statistics say and whatever lies dead in the table.

The eighteenth of the traps in tests/race/test_traps.py."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from pgqueue import schema
from tests.conftest import MakeDatabase
from tests.plans.measure import Touched, buffers, fill, hints_on, running_leases, touched
from tests.support import Conn, claim, enqueue, value, worker

BATCH = 10
CALLS = ("claim", "complete", "complete_and_claim", "fail", "promote", "heartbeat")

# The only indexes of job_live that a function may use.
ALLOWED = {
    "claim": {"job_live_claim", "job_live_scheduled"},
    "complete": {"job_live_pkey"},
    "complete_and_claim": {"job_live_pkey", "job_live_claim", "job_live_scheduled"},
    "fail": {"job_live_pkey"},
    "promote": {"job_live_scheduled"},
    "heartbeat": {"job_live_cancel"},
}


def analysed_empty(conn: Conn) -> None:
    conn.execute("vacuum analyze pgqueue.job_live")
    fill(conn, 200_000)


def analysed_full(conn: Conn) -> None:
    fill(conn, 1_000_000)
    conn.execute("analyze pgqueue.job_live")


def emptied_after_analyse(conn: Conn) -> None:
    fill(conn, 200_000)
    conn.execute("analyze pgqueue.job_live")
    conn.execute("delete from pgqueue.job_live")
    conn.execute("vacuum (analyze off) pgqueue.job_live")
    fill(conn, 100)


def many_scheduled(conn: Conn) -> None:
    fill(conn, 1000)
    conn.execute(
        "insert into pgqueue.job_live (rank_at, run_at, enqueued_at, status, queue, task)"
        " select now() + i * interval '1 s', now() + i * interval '1 s', now(), 'scheduled', 'q', 't'"
        " from generate_series(3600, 103600) i"
    )
    conn.execute("analyze pgqueue.job_live")


def dead_under_a_snapshot(conn: Conn) -> None:
    # Each job has been scheduled, pending, running and finished: dead entries in every index that matters.
    fill(conn, 100_000, "scheduled")
    conn.execute("update pgqueue.job_live set status = 'pending'")
    conn.execute(
        "update pgqueue.job_live set status = 'running', worker_id = 1, started_at = now(), attempt = 1, token = 1"
    )
    conn.execute("delete from pgqueue.job_live")
    conn.execute("analyze pgqueue.job_live")
    fill_now(conn)


def fill_now(conn: Conn) -> None:
    conn.execute(
        "insert into pgqueue.job_live (rank_at, run_at, enqueued_at, status, queue, task)"
        " select now() - interval '10 s' + i * interval '1 ms', now(), now(), 'pending', 'q', 't'"
        " from generate_series(1, 1000) i"
    )


STATES = {
    "analysed_empty": analysed_empty,
    "analysed_full": analysed_full,
    "emptied_after_analyse": emptied_after_analyse,
    "many_scheduled": many_scheduled,
    "dead_under_a_snapshot": dead_under_a_snapshot,
}


class Scene:
    """A queue in some state, and a worker with jobs of its own in it."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self.worker_id = worker(conn, lease_seconds=3600)
        for _ in range(150):
            enqueue(conn, queue="mine")
        assert len(claim(conn, self.worker_id, 150, ["mine"])) == 150

    def call(self, name: str) -> db.Call[Any]:
        """A call that has something to do."""
        leases = running_leases(self.conn, self.worker_id, BATCH)
        calls: dict[str, db.Call[Any]] = {
            "claim": db.claim(self.worker_id, ["q"], BATCH),
            "complete": db.complete(self.worker_id, leases),
            "complete_and_claim": db.complete_and_claim(self.worker_id, leases, None, ["q"], BATCH),
            "fail": db.fail(self.worker_id, [db.Failure(id, token, "boom") for id, token in leases]),
            "promote": db.promote("q", BATCH),
            "heartbeat": db.heartbeat(self.worker_id),
        }
        if name == "promote":
            for _ in range(BATCH):
                due = enqueue(self.conn, run_at=value(self.conn, "select now()") + timedelta(hours=1))
                self.conn.execute("update pgqueue.job_live set run_at = clock_timestamp() where id = %s", [due])
        return calls[name]


def open_scene(dsn: str) -> Conn:
    schema.migrate(dsn)
    conn: Conn = psycopg.connect(dsn, autocommit=True)
    # The state must stay as the test made it.
    conn.execute("alter table pgqueue.job_live set (autovacuum_enabled = off)")
    enqueue(conn)
    conn.execute("delete from pgqueue.job_live")
    return conn


@pytest.fixture(scope="module")
def quiet_costs(make_database: MakeDatabase) -> dict[str, int]:
    """Buffers of each call in a small, healthy queue."""
    with open_scene(make_database()) as conn:
        fill_now(conn)
        scene = Scene(conn)
        db.execute(conn, db.sweep())
        conn.execute("vacuum analyze pgqueue.job_live")
        costs = {}
        for name in CALLS:
            db.execute(conn, scene.call(name))  # the first call of a session also reads the catalogue
            costs[name] = buffers(conn, scene.call(name))
        return costs


@pytest.fixture(scope="module", params=list(STATES))
def scene(make_database: MakeDatabase, request: pytest.FixtureRequest) -> Iterator[Scene]:
    dsn = make_database()
    with open_scene(dsn) as conn, psycopg.connect(dsn) as snapshot:
        snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        if request.param == "dead_under_a_snapshot":
            snapshot.execute("select 1 from pgqueue.setting")
        STATES[request.param](conn)
        made = Scene(conn)
        db.execute(conn, db.sweep())
        if request.param == "dead_under_a_snapshot":
            db.execute(conn, db.refresh_hints())
            assert hints_on(conn) > 0, "100,000 dead entries were not slow enough to switch a hint on"
        yield made


@pytest.mark.parametrize("name", CALLS)
def test_trap_18_a_hot_function_scans_only_the_index_made_for_it(scene: Scene, name: str) -> None:
    call = scene.call(name)
    found: Touched = touched(scene.conn, lambda conn: db.execute(conn, call))
    assert found.seq_scans == 0
    assert set(found.entries) <= ALLOWED[name]
    # A sort of the backlog would show here: it reads every entry.
    assert sum(found.entries.values()) <= 20 * BATCH


@pytest.mark.parametrize("name", CALLS)
def test_trap_18_a_hot_function_touches_a_bounded_number_of_buffers(
    scene: Scene, quiet_costs: dict[str, int], name: str
) -> None:
    db.execute(scene.conn, scene.call(name))
    assert buffers(scene.conn, scene.call(name)) <= 3 * quiet_costs[name] + 200
