"""`pgqueue dead …`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest

from pgqueue import database as db
from tests.cli.conftest import Run
from tests.cli.test_jobs import die
from tests.support import Conn, enqueue, job, rows, value, wait_until


def test_dead_letters_are_listed_those_that_died_last_first(conn: Conn, run: Run) -> None:
    first, second, third = die(conn, 3)
    conn.execute("update pgqueue.job_dead set finished_at = now() - interval '1 h' where id = %s", [third])
    conn.execute("update pgqueue.job_dead set finished_at = now() - interval '2 h' where id = %s", [first])
    assert [each["id"] for each in run("dead", "list", "--json").json()] == [second, third, first]
    page = run("dead", "list", "--json", "-n", 2)
    assert [each["id"] for each in page.json()] == [second, third]
    rest = run("dead", "list", "--json", "-n", 2, "--before", page.err.split()[-1])
    assert [each["id"] for each in rest.json()] == [first]
    assert [each["id"] for each in run("dead", "list", "--json", "--older", "90m").json()] == [first]


def test_errors_that_differ_in_numbers_and_quotes_are_one_group(conn: Conn, run: Run) -> None:
    die(conn, 3, "cannot reach 'host-a' in 0x1f ms, id 3f2504e0-4f89-11d3-9a0c-0305e82c3301:")
    die(conn, 2, "cannot reach 'host-b' in 77 ms, id 9a0c04e0-4f89-11d3-9a0c-0305e82c3301:")
    die(conn, 1, "cannot write 'host-a'")
    die(conn, 1, "cannot write 'host-a'", kind="OSError")
    groups = run("dead", "groups", "--json").json()
    assert [each["jobs"] for each in groups] == [5, 1, 1]
    told = run("dead", "groups")
    assert told.out.splitlines()[1].split()[:2] == [groups[0]["fingerprint"], "5"]
    assert f"--fingerprint {groups[0]['fingerprint']}" in told.err
    listed = run("dead", "list", "--json", "--fingerprint", groups[0]["fingerprint"]).json()
    assert len(listed) == 5
    assert run("dead", "retry", "--fingerprint", groups[0]["fingerprint"], "--yes").out == "retried 5 jobs\n"
    assert value(conn, "select count(*) from pgqueue.job_dead") == 2
    assert run("dead", "purge", "--fingerprint", groups[1]["fingerprint"], "-y").out == "removed 1 dead letter\n"


def test_retries_are_spread_over_the_given_time(conn: Conn, run: Run) -> None:
    die(conn, 50)
    assert run("dead", "retry", "--all", "--spread", "10m", "--yes").out == "retried 50 jobs, spread over 10m\n"
    found = [each["ahead"] for each in rows(conn, "select run_at - now() as ahead from pgqueue.job_live")]
    assert all(timedelta(0) <= each <= timedelta(minutes=10) for each in found)
    assert max(found) - min(found) > timedelta(minutes=5)


def test_a_dead_letter_whose_key_is_taken_stays_and_is_counted(conn: Conn, run: Run) -> None:
    (id,) = die(conn)
    conn.execute("update pgqueue.job_dead set key = 'k' where id = %s", [id])
    enqueue(conn, key="k")
    assert "1 stay, because another job has their key" in run("dead", "retry", "--all", "--yes").out
    assert job(conn, id)["status"] == "dead"


def test_purge_removes_only_what_is_old_enough(conn: Conn, run: Run) -> None:
    old, new = die(conn, 2)
    conn.execute("update pgqueue.job_dead set finished_at = now() - interval '31 days' where id = %s", [old])
    assert run("dead", "purge", "--older", "30d", "--dry-run").out == "would remove 1 job\n"
    assert run("dead", "purge", "--older", "30d", "--yes").out == "removed 1 dead letter\n"
    assert [each["id"] for each in rows(conn, "select id from pgqueue.job")] == [new]
    assert run("dead", "purge", "--older", "30d", "--yes").code == 3


@pytest.mark.parametrize("option", ["--max-attempts=3", "--in=1h", "--payload={}"])
def test_what_changes_one_job_does_not_go_with_many(run: Run, option: str) -> None:
    assert run("dead", "retry", "--all", option).code == 2


def test_a_bulk_retry_that_is_killed_midway_and_run_again_retries_each_exactly_once(
    conn: Conn, dsn: str, run: Run
) -> None:
    count = 20_000
    conn.execute(
        "insert into pgqueue.job_dead (rank_at, run_at, enqueued_at, finished_at, prune_at, status, queue, task)"
        " select now(), now(), now(), now(), now() + interval '9 days', 'dead', 'q', 't' from generate_series(1, %s)",
        [count],
    )
    ids = {each["id"] for each in rows(conn, "select id from pgqueue.job_dead")}
    command = [sys.executable, "-m", "pgqueue", "dead", "retry", "--all", "--yes", "--batch", "200"]
    process = subprocess.Popen(command, env={**os.environ, "DATABASE_URL": dsn}, stdout=subprocess.DEVNULL)
    wait_until(lambda: value(conn, "select count(*) from pgqueue.job_dead") < count)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(
        lambda: value(conn, "select count(*) from pg_stat_activity where application_name = 'pgqueue cli'"
                      " and datname = current_database()") == 0
    )  # fmt: skip
    left = value(conn, "select count(*) from pgqueue.job_dead")
    assert 0 < left < count
    assert run("dead", "retry", "--all", "--yes", "--batch", "5000").out == f"retried {left:,} jobs\n"
    assert value(conn, "select count(*) from pgqueue.job_dead") == 0
    assert {each["id"] for each in rows(conn, "select id from pgqueue.job_live where status = 'pending'")} == ids
    assert value(conn, "select sum(retried) from pgqueue.task_stats") == count
    assert db.execute(conn, db.count_jobs({"status": "pending"})) == count
