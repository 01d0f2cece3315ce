"""Steps that the races are made of."""

from __future__ import annotations

from typing import Any

import pytest

from pgqueue import database as db
from tests.support import Conn, claim, claim_one, enqueue, lose, rows, value, wait_until, worker

commit_or_rollback = pytest.mark.parametrize("end", ["commit", "rollback"])


def finish(conn: Conn, end: str) -> None:
    """Ends the open transaction the way the parameter says."""
    if end == "commit":
        conn.commit()
    else:
        conn.rollback()


def complete(conn: Conn, worker_id: int, *jobs: db.ClaimedJob) -> list[int]:
    """The refused ids."""
    return db.execute(conn, db.complete(worker_id, [(job.id, job.token) for job in jobs]))


def fail(conn: Conn, worker_id: int, job: db.ClaimedJob, **options: Any) -> str | None:
    """The status after it; None when the lease was gone."""
    (failed,) = db.execute(conn, db.fail(worker_id, [db.Failure(job.id, job.token, "boom", **options)]))
    return failed.status


def running(conn: Conn, count: int = 1, **options: Any) -> tuple[int, list[db.ClaimedJob]]:
    """A worker and its claimed jobs, by ascending id."""
    for _ in range(count):
        enqueue(conn, **options)
    worker_id = worker(conn)
    jobs = sorted(claim(conn, worker_id, count))
    assert len(jobs) == count
    return worker_id, jobs


def dead(conn: Conn, count: int = 1, **options: Any) -> list[int]:
    """Jobs that died at their first attempt, by ascending id."""
    ids = []
    worker_id = worker(conn)
    for _ in range(count):
        ids.append(enqueue(conn, **options))
        assert fail(conn, worker_id, claim_one(conn, worker_id), fatal=True) == "dead"
    return ids


def ghost(conn: Conn, count: int = 1) -> tuple[int, list[db.ClaimedJob]]:
    """A worker that stopped beating, and what it holds."""
    worker_id, jobs = running(conn, count)
    lose(conn, worker_id)
    return worker_id, jobs


def set_ranks(conn: Conn, seconds_ago: dict[int, float]) -> None:
    """Backdates when jobs became claimable."""
    for id, seconds in seconds_ago.items():
        conn.execute(
            "update pgqueue.job_live set rank_at = clock_timestamp() - make_interval(secs => %s) where id = %s",
            [seconds, id],
        )


def statuses(conn: Conn) -> dict[int, str]:
    """Every job and its status; a job in two places would be seen."""
    found = rows(conn, "select id, status from pgqueue.job")
    assert len({job["id"] for job in found}) == len(found), found
    return {job["id"]: job["status"] for job in found}


def outcomes(conn: Conn, id: int) -> list[str]:
    """How the claims of a job ended, in order."""
    return [
        a["outcome"] for a in rows(conn, "select outcome from pgqueue.job_attempt where job_id = %s order by token", id)
    ]


def live_with_key(conn: Conn, key: str) -> int:
    return int(value(conn, "select count(*) from pgqueue.job_live where key = %s", key))


def wait_blocked_by(watcher: Conn, waiting: Conn, holding: Conn) -> None:
    """Until the one connection waits for a lock of the other."""
    pids = (holding.info.backend_pid, waiting.info.backend_pid)
    wait_until(lambda: bool(value(watcher, "select %s = any(pg_blocking_pids(%s))", *pids)))
