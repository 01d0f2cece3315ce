"""Small tools that tests share: workers, rivals on a second connection, waiting for a state instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.rows import dict_row

from pgqueue import database as db

Conn = Connection[Any]
FIXED = {"type": "fixed", "delay": 60}


def rows(conn: Conn, query: str, *params: Any) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, params or None).fetchall()


def row(conn: Conn, query: str, *params: Any) -> dict[str, Any]:
    found = rows(conn, query, *params)
    assert len(found) == 1, found
    return found[0]


def value(conn: Conn, query: str, *params: Any) -> Any:
    return next(iter(row(conn, query, *params).values()))


def job(conn: Conn, id: int) -> dict[str, Any]:
    """The whole row of a job, wherever it is; exactly one."""
    return row(conn, "select * from pgqueue.job where id = %s", id)


def enqueue(
    conn: Conn, payload: dict[str, Any] | None = None, *, queue: str = "q", task: str = "t", **options: Any
) -> int:
    return db.execute(conn, db.enqueue(queue, task, payload, **options)).id


def worker(conn: Conn, queues: Sequence[str] = ("q",), lease_seconds: int = 30) -> int:
    return db.execute(conn, db.register_worker("test", queues, lease_seconds))


def claim(conn: Conn, worker_id: int, limit: int = 1, queues: Sequence[str] = ("q",)) -> list[db.ClaimedJob]:
    return db.execute(conn, db.claim(worker_id, queues, limit))


def claim_one(conn: Conn, worker_id: int, queues: Sequence[str] = ("q",)) -> db.ClaimedJob:
    (claimed,) = claim(conn, worker_id, 1, queues)
    return claimed


def lose(conn: Conn, worker_id: int) -> None:
    """Backdate the heartbeat, so that the next sweep finds the worker gone."""
    conn.execute("update pgqueue.worker set heartbeat_at = heartbeat_at - interval '1 day' where id = %s", [worker_id])


def make_due(conn: Conn, id: int) -> None:
    """Backdate a scheduled job instead of waiting for it."""
    conn.execute(
        "update pgqueue.job_live set run_at = clock_timestamp() - interval '1 ms', rank_at = clock_timestamp()"
        " where id = %s and status = 'scheduled'",
        [id],
    )


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Ask again until it holds: a bound for a broken system, not a time that is waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited state did not come"
        threading.Event().wait(0.002)


class Rival:
    """A statement on a connection of its own, in a thread: for races with a fixed interleaving.

    rival = Rival(other, lambda conn: claim(conn, worker_id))
    rival.wait_blocked(conn)      # it now waits for a lock that we hold
    conn.commit()
    rival.result()                # what it returned, or the exception that it raised
    """

    def __init__(self, conn: Conn, run: Callable[[Conn], Any]) -> None:
        self._conn = conn
        self._run = run
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._target, daemon=True)
        self._thread.start()

    def _target(self) -> None:
        try:
            self._result = self._run(self._conn)
        except BaseException as error:
            self._error = error

    def wait_blocked(self, dsn: str) -> None:
        """Until PostgreSQL says that the rival waits for somebody's lock."""
        with psycopg.connect(dsn, autocommit=True) as watcher:
            wait_until(
                lambda: (
                    watcher.execute(
                        "select cardinality(pg_blocking_pids(%s)) > 0", [self._conn.info.backend_pid]
                    ).fetchone()
                    == (True,)
                )
            )

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the rival still waits"
        if self._error is not None:
            raise self._error
        return self._result
