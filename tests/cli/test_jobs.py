"""`pgqueue jobs …` and `pgqueue enqueue`."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from pgqueue import database as db
from tests.cli.conftest import Run
from tests.support import Conn, claim, claim_one, enqueue, job, value, worker


def die(conn: Conn, count: int = 1, error: str = "boom", task: str = "t", kind: str = "ValueError") -> list[int]:
    w = worker(conn)
    db.execute(conn, db.enqueue_many("q", task, [{}] * count))
    jobs = claim(conn, w, count)
    db.execute(
        conn, db.fail(w, [db.Failure(j.id, j.token, f"{error} {j.id}", kind, "line 1", fatal=True) for j in jobs])
    )
    return [each.id for each in jobs]


def test_jobs_are_listed_the_newest_first_without_payloads(conn: Conn, run: Run) -> None:
    ids = [enqueue(conn, {"card": "secret"}, key=f"k{n}") for n in range(3)]
    told = run("jobs", "list", "--json")
    assert (told.code, [each["id"] for each in told.json()]) == (0, ids[::-1])
    assert "secret" not in told.out
    table = run("jobs", "list").out.splitlines()
    assert table[0].split()[:4] == ["ID", "QUEUE", "TASK", "STATUS"]
    assert table[1].split()[:4] == [str(ids[2]), "q", "t", "pending"]


def test_every_filter_narrows_the_list(conn: Conn, run: Run) -> None:
    (dead,) = die(conn)
    w = worker(conn, ["r"])
    other = enqueue(conn, queue="r", task="u", key="k", tags=["vip"])
    claim_one(conn, w, ["r"])
    later = enqueue(conn, run_in=timedelta(hours=1))
    conn.execute("update pgqueue.job_live set enqueued_at = now() - interval '3 days' where id = %s", [later])
    cases = {
        ("-q", "r"): [other], ("-t", "u"): [other], ("--tag", "vip"): [other], ("--key", "k"): [other],
        ("-s", "running"): [other], ("-s", "dead"): [dead], ("-s", "dead", "-s", "running"): [other, dead],
        ("--worker", w): [other], ("--error", "oom"): [dead], ("--error-type", "ValueError"): [dead],
        ("--older", "2d"): [later], ("--newer", "2d"): [other, dead], ("-q", "r", "-s", "dead"): [],
        ("--before", other): [dead], ("-n", "1"): [later],
    }  # fmt: skip
    for options, ids in cases.items():
        found = run("jobs", "list", "--json", *options).json()
        assert [each["id"] for each in found] == ids, options


def test_jobs_are_found_by_their_group_and_by_what_they_wait_for(conn: Conn, run: Run) -> None:
    db.execute(conn, db.set_queue("q", {"group_max_running": 1}))
    running, parked, other = (enqueue(conn, group=group) for group in "aab")
    w = worker(conn)
    claim(conn, w, 1)
    db.execute(conn, db.pause_task("u"))
    held = enqueue(conn, task="u")
    assert claim_one(conn, w).id == other

    def found(*options: str) -> list[int]:
        return [each["id"] for each in run("jobs", "list", "--json", *options).json()]

    assert found("--group", "a") == [parked, running]
    assert found("--waits-for", "group") == [parked]
    assert found("--waits-for", "task") == [held]
    table = [line.split() for line in run("jobs", "list", "-s", "blocked").out.splitlines()]
    assert table[0][:5] == ["ID", "QUEUE", "TASK", "GROUP", "STATUS"]
    assert table[2][:6] == [str(parked), "q", "t", "a", "blocked", "(group)"]
    assert "GROUP" not in run("jobs", "list", "-t", "u").out
    shown = run("jobs", "show", parked).out
    assert "group_key" in shown
    assert "waits_for" in shown
    assert run("jobs", "cancel", "-g", "a", "--yes").out == "1 job cancelled\n"
    assert found("--group", "a", "-s", "cancelled") == [parked]


def test_dead_letters_of_a_group_are_listed_retried_and_purged(conn: Conn, run: Run) -> None:
    w = worker(conn)
    ids = [enqueue(conn, group=group) for group in "aab"]
    for each in claim(conn, w, 3):
        db.execute(conn, db.fail(w, [db.Failure(each.id, each.token, "boom", fatal=True)]))
    assert {each["id"] for each in run("dead", "list", "-g", "a", "--json").json()} == set(ids[:2])
    assert [each["jobs"] for each in run("dead", "groups", "-g", "a", "--json").json()] == [2]
    assert run("dead", "retry", "-g", "a", "--yes").out == "retried 2 jobs\n"
    assert run("dead", "purge", "-g", "a", "--yes").code == 3
    assert run("dead", "purge", "-g", "b", "--yes").out == "removed 1 dead letter\n"


def test_a_job_is_enqueued_into_a_group(conn: Conn, run: Run) -> None:
    id = int(run("enqueue", "t", "-q", "q", "--group", "tenant:7").out)
    assert job(conn, id)["group_key"] == "tenant:7"


def test_pages_go_on_below_the_last_id(conn: Conn, run: Run) -> None:
    made = db.execute(conn, db.enqueue_many("q", "t", [{}] * 25))
    seen: list[int] = []
    before: tuple[str, ...] = ()
    while True:
        told = run("jobs", "list", "-n", "10", "--jsonl", *before)
        seen += [json.loads(line)["id"] for line in told.out.splitlines()]
        if "--before" not in told.err:
            break
        before = ("--before", told.err.split()[-1])
    assert seen == [each.id for each in made][::-1]


def test_a_search_for_something_rare_stops_and_says_where_to_go_on(conn: Conn, run: Run) -> None:
    rare = enqueue(conn, tags=["rare"])
    conn.execute(
        "insert into pgqueue.job_live (rank_at, run_at, enqueued_at, status, queue, task)"
        " select now(), now(), now(), 'pending', 'q', 't' from generate_series(1, 100001)"
    )
    told = run("jobs", "list", "--tag", "rare")
    assert (told.out, "looked at 100,000 jobs" in told.err) == ("", True)
    assert run("jobs", "list", "--tag", "rare", "--deep", "--json").json()[0]["id"] == rare
    there = run("jobs", "list", "--tag", "rare", "--json", "--before", told.err.split()[-1])
    assert [each["id"] for each in there.json()] == [rare]


def test_show_tells_the_whole_story_of_a_job(conn: Conn, run: Run) -> None:
    w = worker(conn)
    id = enqueue(conn, {"order_id": 7}, tags=["vip"])
    claimed = claim_one(conn, w)
    db.execute(conn, db.log(w, id, claimed.token, [(claimed.enqueued_at, "info", "half way")]))
    db.execute(conn, db.save_step(w, id, claimed.token, "download", {"rows": 3}))
    db.execute(
        conn, db.fail(w, [db.Failure(id, claimed.token, "boom", "ValueError", "Traceback:\n  line 1", fatal=True)])
    )
    told = run("jobs", "show", id)
    assert told.code == 0
    for text in ('{"order_id": 7}', "attempt 1: failed", "ValueError: boom", "  |   line 1", "half way", "download"):
        assert text in told.out
    found = run("jobs", "show", id, "--json").json()
    assert (found["status"], found["attempts"][0]["traceback"]) == ("dead", "Traceback:\n  line 1")
    assert (found["log"][0]["message"], found["steps"][0]["result"]) == ("half way", {"rows": 3})


@pytest.mark.parametrize("command", [("jobs", "show"), ("dead", "show"), ("jobs", "cancel"), ("jobs", "retry")])
def test_a_job_that_does_not_exist_is_exit_code_3(run: Run, command: tuple[str, ...]) -> None:
    told = run(*command, 4711)
    assert (told.code, told.out) == (3, "")
    assert "there is no job 4711" in told.err


def test_cancel_and_retry_one_by_one_and_one_refusal_does_not_stop_the_rest(conn: Conn, run: Run) -> None:
    waiting, other = enqueue(conn), enqueue(conn)
    told = run("jobs", "cancel", waiting, 4711, other, "--reason", "wrong order")
    assert (told.code, told.out) == (3, f"{waiting}: cancelled\n{other}: cancelled\n")
    assert job(conn, waiting)["error"] == "wrong order"
    assert run("jobs", "retry", waiting, "--payload", '{"a": 2}', "--max-attempts", 9).out == f"{waiting}: pending\n"
    assert (job(conn, waiting)["payload"], job(conn, waiting)["max_attempts"]) == ({"a": 2}, 9)
    assert run("jobs", "retry", other, "--in", "1h").out == f"{other}: scheduled\n"
    again = run("jobs", "retry", other)
    assert (again.code, "only a dead or cancelled job" in again.err) == (3, True)


def test_cancelling_many_leaves_what_runs_unless_told(conn: Conn, run: Run) -> None:
    w = worker(conn)
    for _ in range(7):
        enqueue(conn)
    for _ in range(3):
        enqueue(conn, task="u")
    claim(conn, w, 2)
    assert run("jobs", "cancel", "-t", "t", "--dry-run").out == "would cancel 5 jobs\n"
    told = run("jobs", "cancel", "-t", "t", "--yes", "--batch", 2)
    assert (told.code, told.out) == (0, "5 jobs cancelled\n")
    assert run("jobs", "cancel", "-t", "t", "--yes").code == 3
    assert run("jobs", "cancel", "-t", "t", "--running", "--yes").out == "2 jobs cancelled\n".replace(
        "2 jobs", "0 jobs"
    ).replace("\n", ", 2 running ones asked to stop\n")
    assert value(conn, "select count(*) from pgqueue.job_live where cancel_requested_at is not null") == 2
    assert value(conn, "select count(*) from pgqueue.job where status = 'pending' and task = 'u'") == 3


@pytest.mark.parametrize("command", [("jobs", "cancel"), ("jobs", "retry"), ("dead", "retry"), ("dead", "purge")])
def test_bulk_commands_want_a_filter_and_a_yes(conn: Conn, run: Run, command: tuple[str, ...]) -> None:
    die(conn, 2)
    enqueue(conn)
    before = value(conn, "select array_agg(id || status order by id) from pgqueue.job")
    assert run(*command).code == 2
    told = run(*command, "--all")
    assert (told.code, told.out) == (2, "")
    assert "--yes" in told.err
    assert run(*command, "--all", "--dry-run").code == 0
    assert run(*command, "-t", "nothing", "--yes").code == 3
    assert value(conn, "select array_agg(id || status order by id) from pgqueue.job") == before


# ------------------------------------------------------------------------------------------------ enqueue


def test_enqueue_prints_the_id(conn: Conn, run: Run, tmp_path: Path) -> None:
    id = int(run("enqueue", "t", "-q", "q", "-p", '{"a": 1}', "--priority", 5, "--tag", "x", "--tag", "y").out)
    found = job(conn, id)
    assert (found["payload"], found["priority"], found["tags"]) == ({"a": 1}, 5, ["x", "y"])
    (tmp_path / "payload.json").write_text('{"b": 2}')
    assert job(conn, int(run("enqueue", "t", "-p", f"@{tmp_path / 'payload.json'}").out))["payload"] == {"b": 2}
    assert job(conn, int(run("enqueue", "t", "-p", "-", stdin='{"c": 3}\n').out))["payload"] == {"c": 3}
    assert job(conn, int(run("enqueue", "t", "--in", "1h").out))["status"] == "scheduled"


def test_enqueue_with_a_taken_key_gives_the_job_that_has_it(run: Run) -> None:
    first, second = run("enqueue", "t", "--key", "k"), run("enqueue", "t", "--key", "k")
    assert (first.out, second.code) == (second.out, 0)
    assert "is taken" in second.err
    assert run("enqueue", "t", "--key", "k", "--json").json() == {"id": int(first.out), "created": False}


@pytest.mark.parametrize("payload", ["{", "[1]", '{"a": 1} x', "@/nowhere/at/all"])
def test_a_payload_that_is_none_is_wrong_usage(conn: Conn, run: Run, payload: str) -> None:
    assert run("enqueue", "t", "-p", payload).code == 2
    assert value(conn, "select count(*) from pgqueue.job") == 0


def test_a_dry_run_of_enqueue_asks_the_database_and_leaves_nothing(conn: Conn, run: Run) -> None:
    assert run("enqueue", "t", "--dry-run").code == 0
    refused = run("enqueue", "bad name", "--dry-run")
    assert (refused.code, "bad task name" in refused.err) == (1, True)
    assert value(conn, "select count(*) from pgqueue.job") == 0
