"""Flows in SQL: what they store, what releases, stops, revives and prunes their jobs; what is refused."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, JobNotFound, KeyTaken, PayloadError, QueueFull
from tests.support import Conn, claim, claim_one, enqueue, job, row, rows, value, worker

TABLES = "flow", "flow_node", "flow_edge", "job_live"


def flow(conn: Conn, *jobs: dict[str, Any], **options: Any) -> db.EnqueuedFlow:
    graph = {"jobs": [{"queue": "q", "task": "t", **each} for each in jobs], **options}
    return db.execute(conn, db.enqueue_flow(graph))


def chain(conn: Conn, *names: str, **options: Any) -> db.EnqueuedFlow:
    """Each of these jobs runs after the one before it."""
    jobs = [{"name": name, "after": [names[n - 1]] if n else [], **options} for n, name in enumerate(names)]
    return flow(conn, *jobs)


def complete(conn: Conn, worker_id: int, *jobs: db.ClaimedJob, results: list[Any] | None = None) -> None:
    assert db.execute(conn, db.complete(worker_id, [(each.id, each.token) for each in jobs], results)) == []


def die(conn: Conn, worker_id: int, claimed: db.ClaimedJob) -> None:
    db.execute(conn, db.fail(worker_id, [db.Failure(claimed.id, claimed.token, "boom", "ValueError", fatal=True)]))


def statuses(conn: Conn, made: db.EnqueuedFlow) -> list[str]:
    return [job(conn, id)["status"] for id in made.job_ids]


def info(conn: Conn, made: db.EnqueuedFlow) -> db.FlowInfo:
    return db.execute(conn, db.look_up_flow(made.id))


def is_empty(conn: Conn) -> bool:
    return not any(value(conn, f"select count(*) from pgqueue.{table}") for table in TABLES)


# ---------------------------------------------------------------------------------------------- what is stored


def test_a_flow_says_ids_and_names_in_the_order_of_the_list(conn: Conn) -> None:
    made = flow(conn, {"name": "first"}, {"task": "part"}, {"task": "part"}, {"task": "alone", "after": [1, 2]})
    assert made.names == ["first", f"part-{made.job_ids[1]}", f"part-{made.job_ids[2]}", "alone"]
    assert statuses(conn, made) == ["pending", "pending", "pending", "blocked"]
    assert (info(conn, made).total, info(conn, made).blocked, info(conn, made).status) == (4, 1, "running")


def test_every_option_of_enqueue_is_one_of_a_job_of_a_flow(conn: Conn) -> None:
    made = flow(
        conn,
        {"name": "a", "payload": {"n": 1}, "key": "k", "priority": 7, "max_attempts": 3, "timeout_seconds": 9,
         "retry": {"type": "fixed", "delay": 1}, "tags": ["x"], "meta": {"m": 1}, "retain_for": "2 days",
         "group_key": "g", "run_in": "1 hour", "expires_in": "2 hours"},
    )  # fmt: skip
    stored = job(conn, made.job_ids[0])
    expected = {
        "payload": {"n": 1}, "key": "k", "priority": 7, "max_attempts": 3, "timeout_seconds": 9, "tags": ["x"],
        "meta": {"m": 1, "flow": {"id": made.id, "job": "a"}}, "group_key": "g", "status": "scheduled",
    }  # fmt: skip
    assert {name: stored[name] for name in expected} == expected
    assert stored["retain_for"] == timedelta(days=2)
    assert timedelta(minutes=59) < stored["expires_at"] - stored["run_at"] < timedelta(minutes=61)


def test_a_delay_counts_from_the_end_of_the_parents(conn: Conn) -> None:
    made = flow(conn, {"name": "a"}, {"name": "b", "after": ["a"], "run_in": "1 hour"})
    w = worker(conn)
    complete(conn, w, claim_one(conn, w))
    waiting = job(conn, made.job_ids[1])
    assert waiting["status"] == "scheduled"
    assert waiting["run_at"] - job(conn, made.job_ids[0])["finished_at"] > timedelta(minutes=59)


def test_parents_may_be_named_after_their_children(conn: Conn) -> None:
    made = flow(conn, {"name": "last", "after": ["first"]}, {"name": "first"})
    assert statuses(conn, made) == ["blocked", "pending"]


# ------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([], "a flow has 1 to 100000 jobs, not 0"),
        ("abc", "jobs must be an array"),
        ([7], "jobs must be an array of objects"),
        ([{"name": "a", "after": ["b"]}], 'a runs after "b", which is not in the flow'),
        ([{"name": "a", "after": [1]}], "a runs after 1, which is not in the flow"),
        ([{"name": "a", "after": [-1]}], "a runs after -1, which is not in the flow"),
        ([{"name": "a", "after": [0.5]}, {"name": "b"}], "a runs after 0.5, which is not in the flow"),
        ([{"name": "a", "after": [None]}], "a runs after null, which is not in the flow"),
        ([{"name": "a", "after": ["a"]}], "a runs after itself"),
        ([{"name": "a"}, {"name": "b", "after": ["a", 0]}], "b runs after a twice"),
        ([{"name": "a"}, {"name": "a"}], "two jobs are named a"),
        ([{"name": "a", "after": "b"}, {"name": "b"}], "after must be an array"),
        ([{"name": ""}], "the name of a job is a text of 1 to 200 characters"),
        ([{"name": "x" * 201}], "the name of a job is a text of 1 to 200 characters"),
        ([{"name": "a\nb"}], "the name of a job is a text of 1 to 200 characters"),
        ([{"name": 7}], "the name of a job is a text of 1 to 200 characters"),
        ([{"name": "a", "on_death": "explode"}], "on_death must be wait, stop or continue"),
        ([{"name": "a"}, {"name": "b", "after": [{"job": "a", "on_death": "no"}]}], "on_death must be wait, stop or"),
        ([{"nmae": "a"}], 'a job of a flow has no "nmae"'),
        ([{"on_conflict": "skip"}], "on_conflict must be raise"),
        ([{"name": "a"}, {"name": "b", "results": {"x": "a"}}], 'b takes the result of "a", which it does not run aft'),
        ([{"name": "a"}, {"name": "b", "after": ["a"], "results": {"x": {}}}], 'results: "x" must be the name of a pa'),
        ([{"name": "a"}, {"name": "b", "after": ["a"], "results": 7}], "results must be an object"),
        ([{"queue": "no spaces"}], "bad queue name"),
        ([{"queue": None}], "queue"),
        ([{"priority": 101}], "priority"),
        ([{"priority": "high"}], "bad option of a job"),
        ([{"run_in": "soon"}], "bad option of a job"),
        ([{"retry": {"type": "hope"}}], "retry"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_nothing_is_written(conn: Conn, jobs: Any, words: str) -> None:
    listed = [{"queue": "q", "task": "t", **each} if isinstance(each, dict) else each for each in jobs]
    with pytest.raises(InvalidArgument, match=words.replace("(", r"\(").replace("[", r"\[")):
        db.execute(conn, db.enqueue_flow({"jobs": jobs if isinstance(jobs, str) else listed}))
    assert is_empty(conn)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({}, "jobs must be an array of objects"),
        ({"jobs": [{"queue": "q", "task": "t"}], "colour": "red"}, 'a flow has no "colour"'),
        ({"jobs": [{"queue": "q", "task": "t"}], "name": 7}, "the name of a flow is a text"),
        ({"jobs": [{"queue": "q", "task": "t"}], "on_done": {"queue": "q"}}, "task"),
        ({"jobs": [{"queue": "q", "task": "t"}], "on_dead": 7}, "jobs must be an array of objects"),
    ],
)
def test_what_is_no_flow_is_refused(conn: Conn, graph: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        db.execute(conn, db.enqueue_flow(graph))
    assert is_empty(conn)


def test_a_graph_that_is_no_object_is_refused(conn: Conn) -> None:
    for graph in ("[]", "7", "null", None):
        with pytest.raises(psycopg.Error, match="a flow is a JSON object") as caught:
            conn.execute("select pgqueue.enqueue_flow(%s::jsonb)", [graph])
        assert caught.value.sqlstate == "PQ001"


def test_a_payload_that_is_no_object_or_too_big_is_refused(conn: Conn) -> None:
    with pytest.raises((PayloadError, InvalidArgument), match="object"):
        flow(conn, {}, {"payload": [1]})
    with pytest.raises(PayloadError, match="bytes"):
        flow(conn, {}, {"payload": {"x": "y" * 1_100_000}})
    assert is_empty(conn)


def test_circles_of_any_size_are_refused_with_the_names_of_some_in_it(conn: Conn) -> None:
    with pytest.raises(InvalidArgument, match="2 jobs run after each other in a circle, or after such: a, b"):
        flow(conn, {"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}, {"name": "c"})
    n = 20_000
    with pytest.raises(InvalidArgument, match=f"{n} jobs run after each other in a circle"):
        flow(conn, *({"after": [(i + 1) % n]} for i in range(n)))
    assert is_empty(conn)


def test_a_random_graph_is_refused_exactly_if_it_has_a_circle(conn: Conn) -> None:
    chance = random.Random(7)  # noqa: S311
    refused = 0
    for _ in range(60):
        n = chance.randint(2, 9)
        edges = {(chance.randrange(n), chance.randrange(n)) for _ in range(chance.randint(1, n + 2))}
        edges = {(a, b) for a, b in edges if a != b}
        before: dict[int, set[int]] = {i: {a for a, b in edges if b == i} for i in range(n)}
        while free := [i for i, parents in before.items() if not parents]:
            for i in free:
                del before[i]
            for parents in before.values():
                parents.difference_update(free)
        jobs = [{"after": [a for a, b in edges if b == i]} for i in range(n)]
        if before:
            refused += 1
            with pytest.raises(InvalidArgument, match="circle"):
                flow(conn, *jobs)
        else:
            flow(conn, *jobs)
    assert 5 < refused < 55


def test_a_hundred_thousand_jobs_are_taken_and_one_more_is_refused(conn: Conn) -> None:
    jobs = [{"queue": "q", "task": "t"}] * 100_000
    with pytest.raises(InvalidArgument, match="a flow has 1 to 100000 jobs, not 100001"):
        db.execute(conn, db.enqueue_flow({"jobs": [*jobs, jobs[0]]}))
    assert is_empty(conn)
    last = {"queue": "q", "task": "last", "after": list(range(99_999))}
    made = db.execute(conn, db.enqueue_flow({"jobs": [*jobs[:-1], last]}))
    assert (info(conn, made).total, info(conn, made).blocked) == (100_000, 1)


def test_a_key_that_is_taken_refuses_the_flow(conn: Conn) -> None:
    taken = enqueue(conn, key="k")
    with pytest.raises(KeyTaken, match=f"key 'k' of queue 'q' is taken by job {taken}"):
        flow(conn, {"name": "a"}, {"name": "b", "key": "k"})
    with pytest.raises(KeyTaken, match="key 'k2'"):
        flow(conn, {"name": "a", "key": "k2"}, {"name": "b", "key": "k2"})
    assert value(conn, "select count(*) from pgqueue.job") == 1
    assert value(conn, "select count(*) from pgqueue.flow") == 0


def test_a_full_queue_refuses_the_whole_flow(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"max_depth": 2}))
    with pytest.raises(QueueFull):
        flow(conn, {}, {}, {})
    assert is_empty(conn)
    assert flow(conn, {"name": "a"}, {"name": "b", "after": ["a"]}).id  # what waits fills no queue


# ------------------------------------------------------------------------------------- released, stopped, revived


def test_results_go_where_the_call_says(conn: Conn) -> None:
    made = flow(
        conn, {"name": "a", "priority": 9}, {"task": "part", "name": "part"}, {"task": "part", "name": "part-2"},
        {"name": "last", "after": ["part-2", "a", "part"],
         "results": {"one": "a", "parts": ["part"], "all": True, "kept": "a", "also": 2},
         "payload": {"kept": 5, "own": 1}},
    )  # fmt: skip
    w = worker(conn)
    jobs = claim(conn, w, 3)
    by_id = {made.job_ids[0]: "A", made.job_ids[1]: "P", made.job_ids[2]: "P2"}
    complete(conn, w, *jobs, results=[{"r": by_id[each.id]} for each in jobs])
    assert job(conn, made.job_ids[3])["payload"] == {
        "one": {"r": "A"}, "parts": [{"r": "P2"}, {"r": "P"}], "all": [{"r": "P2"}, {"r": "A"}, {"r": "P"}],
        "kept": 5, "own": 1, "also": {"r": "P2"},
    }  # fmt: skip


def test_a_dead_parent_makes_its_children_wait_by_default_and_a_retry_lets_them_run(conn: Conn) -> None:
    made, w = chain(conn, "a", "b", "c"), worker(conn)
    die(conn, w, claim_one(conn, w))
    assert statuses(conn, made) == ["dead", "blocked", "blocked"]
    assert (info(conn, made).status, info(conn, made).trouble) == ("stalled", made.job_ids[0])
    db.execute(conn, db.retry(made.job_ids[0]))
    assert info(conn, made).status == "running"
    for _ in range(3):
        complete(conn, w, claim_one(conn, w))
    assert (info(conn, made).status, info(conn, made).progress) == ("completed", 1)


def test_stop_cancels_what_hangs_on_it_and_a_retry_revives_all(conn: Conn) -> None:
    made, w = chain(conn, "a", "b", "c", on_death="stop"), worker(conn)
    die(conn, w, claim_one(conn, w))
    assert statuses(conn, made) == ["dead", "cancelled", "cancelled"]
    assert job(conn, made.job_ids[1])["error"] == f"its parent a (job {made.job_ids[0]}) died: boom"
    assert info(conn, made).status == "failed"
    db.execute(conn, db.retry(made.job_ids[0]))
    assert statuses(conn, made) == ["pending", "blocked", "blocked"]
    for _ in range(3):
        complete(conn, w, claim_one(conn, w))
    assert info(conn, made).status == "completed"


def test_continue_runs_with_what_there_is(conn: Conn) -> None:
    made = flow(
        conn, {"name": "good"}, {"name": "bad"},
        {"name": "last", "after": ["good", "bad"], "on_death": "continue", "results": {"all": True}},
    )  # fmt: skip
    w = worker(conn)
    good, bad = sorted(claim(conn, w, 2))
    die(conn, w, bad)
    complete(conn, w, good, results=[7])
    assert job(conn, made.job_ids[2])["payload"] == {"all": [7, None]}
    parents = db.execute(conn, db.load_parents(made.job_ids[2]))
    assert [(each.name, each.outcome, each.result, each.error) for each in parents] == [
        ("good", "completed", 7, None), ("bad", "dead", None, "boom"),
    ]  # fmt: skip
    complete(conn, w, claim_one(conn, w))
    assert info(conn, made).status == "completed"  # it was to be passed over


def test_two_dead_parents_must_both_be_retried(conn: Conn) -> None:
    made = flow(conn, {"name": "a"}, {"name": "b"}, {"name": "c", "after": ["a", "b"], "on_death": "stop"})
    w = worker(conn)
    for each in sorted(claim(conn, w, 2)):
        die(conn, w, each)
    db.execute(conn, db.retry(made.job_ids[0]))
    assert statuses(conn, made) == ["pending", "dead", "cancelled"]
    db.execute(conn, db.retry(made.job_ids[1]))
    assert statuses(conn, made) == ["pending", "pending", "blocked"]


def test_the_end_of_thousands_that_hang_on_one_is_told_in_bounded_pieces(conn: Conn) -> None:
    n = 12_000
    made = flow(conn, {"name": "a"}, *({"after": ["a"], "on_death": "stop"} for _ in range(n)))
    w = worker(conn)
    die(conn, w, claim_one(conn, w))
    assert 0 < info(conn, made).cancelled < n
    db.execute(conn, db.sweep())
    assert (info(conn, made).cancelled, info(conn, made).status) == (n, "failed")
    db.execute(conn, db.retry(made.job_ids[0]))
    assert 0 < info(conn, made).cancelled < n
    db.execute(conn, db.sweep())
    assert (info(conn, made).cancelled, info(conn, made).blocked) == (0, n)
    complete(conn, w, claim_one(conn, w))
    assert info(conn, made).blocked == 0


def test_cancelling_one_job_is_to_its_children_as_its_death(conn: Conn) -> None:
    made = flow(
        conn, {"name": "a"}, {"name": "stops", "after": ["a"], "on_death": "stop"}, {"name": "waits", "after": ["a"]},
        {"name": "goes on", "after": ["a"], "on_death": "continue"},
    )  # fmt: skip
    db.execute(conn, db.cancel(made.job_ids[0], "not wanted"))
    assert statuses(conn, made) == ["cancelled", "cancelled", "blocked", "pending"]
    assert job(conn, made.job_ids[1])["error"] == f"its parent a (job {made.job_ids[0]}) was cancelled: not wanted"


def test_callbacks_come_once_and_are_no_jobs_of_the_flow(conn: Conn) -> None:
    made = flow(
        conn, {"name": "a"}, {"name": "b"}, name="pair",
        on_done={"queue": "after", "task": "done"}, on_dead={"queue": "after", "task": "dead"},
    )  # fmt: skip
    w = worker(conn)
    for each in claim(conn, w, 2):
        die(conn, w, each)
    for id in made.job_ids:
        db.execute(conn, db.retry(id))
    for each in claim(conn, w, 2):
        complete(conn, w, each)
    told = rows(conn, "select task, flow_id, meta from pgqueue.job where queue = 'after' order by id")
    assert [each["task"] for each in told] == ["dead", "done"]
    assert [each["flow_id"] for each in told] == [None, None]
    assert all(str(made.id) in str(each["meta"]) for each in told)


def test_a_cancelled_flow_ends_when_what_ran_has_ended(conn: Conn) -> None:
    made, w = chain(conn, "a", "b", "c"), worker(conn)
    running = claim_one(conn, w)
    done = db.execute(conn, db.cancel_flow(made.id, "enough"))
    assert (done.cancelled, done.asked) == (2, 1)
    assert info(conn, made).status == "cancelling"
    complete(conn, w, running)
    assert (info(conn, made).status, info(conn, made).cancel_reason) == ("cancelled", "enough")
    assert statuses(conn, made) == ["completed", "cancelled", "cancelled"]
    assert db.execute(conn, db.cancel_flow(made.id)) == (0, 0)
    with pytest.raises(JobNotFound, match="there is no flow 99"):
        db.execute(conn, db.cancel_flow(99))


def test_a_retry_in_a_cancelled_flow_lets_it_go_on(conn: Conn) -> None:
    made, w = chain(conn, "a", "b"), worker(conn)
    db.execute(conn, db.cancel_flow(made.id))
    db.execute(conn, db.retry(made.job_ids[0]))
    db.execute(conn, db.retry(made.job_ids[1]))
    assert statuses(conn, made) == ["pending", "blocked"]
    complete(conn, w, claim_one(conn, w))
    complete(conn, w, claim_one(conn, w))
    assert info(conn, made).status == "completed"


def test_results_that_are_too_much_for_one_payload_kill_the_child_only(conn: Conn) -> None:
    n = 70
    made = flow(conn, *({} for _ in range(n)), {"name": "last", "after": list(range(n)), "results": {"all": True}})
    w = worker(conn)
    jobs = claim(conn, w, n)
    complete(conn, w, *jobs, results=["x" * 250_000] * n)
    last = job(conn, made.job_ids[-1])
    assert (last["status"], last["error_type"]) == ("dead", "ResultsTooBig")
    assert (info(conn, made).status, info(conn, made).completed) == ("failed", n)


# ------------------------------------------------------------------------------------------------- extended


def test_a_job_that_adds_jobs_makes_its_successors_wait_for_them(conn: Conn) -> None:
    made, w = chain(conn, "a", "last"), worker(conn)
    first = claim_one(conn, w)
    listed = [{"queue": "q", "task": "part"}, {"queue": "q", "task": "part"}]
    with conn.transaction():
        added = db.execute(conn, db.extend_flow(w, first.id, first.token, listed, hold=True))
        complete(conn, w, first)
    assert added is not None
    assert (info(conn, made).total, info(conn, made).blocked) == (4, 1)
    one, two = claim(conn, w, 2)
    complete(conn, w, one)
    assert job(conn, made.job_ids[1])["status"] == "blocked"
    complete(conn, w, two)
    assert job(conn, made.job_ids[1])["status"] == "pending"


def test_only_who_holds_the_lease_may_add_jobs(conn: Conn) -> None:
    made, w = chain(conn, "a"), worker(conn)
    first = claim_one(conn, w)
    listed = [{"queue": "q", "task": "part"}]
    assert db.execute(conn, db.extend_flow(w, first.id, first.token - 1, listed)) is None
    assert info(conn, made).total == 1
    with pytest.raises(InvalidArgument, match="has a job named a already"):
        db.execute(conn, db.extend_flow(w, first.id, first.token, [{**listed[0], "name": "a"}]))
    complete(conn, w, first)
    id = enqueue(conn)
    alone = claim_one(conn, w)
    with pytest.raises(InvalidArgument, match=f"job {id} is in no flow"):
        db.execute(conn, db.extend_flow(w, id, alone.token, listed))


# ------------------------------------------------------------------------------------------------ gone


def test_a_flow_is_pruned_when_its_jobs_have_gone(conn: Conn) -> None:
    made, w = chain(conn, "a", "b"), worker(conn)
    complete(conn, w, claim_one(conn, w))
    complete(conn, w, claim_one(conn, w))
    conn.execute("update pgqueue.flow set prune_at = clock_timestamp() - interval '1 s'")
    db.execute(conn, db.prune())
    assert info(conn, made).total == 2  # its jobs are still there: looked at again in a day
    conn.execute("delete from pgqueue.job_done")
    conn.execute("update pgqueue.flow set prune_at = clock_timestamp() - interval '1 s'")
    db.execute(conn, db.prune())
    assert is_empty(conn)
    with pytest.raises(JobNotFound, match=f"there is no flow {made.id}"):
        info(conn, made)
    with pytest.raises(JobNotFound, match=f"there is no flow {made.id}"):
        db.execute(conn, db.list_flow(made.id))


def test_what_waits_for_a_dead_job_that_is_removed_is_cancelled(conn: Conn) -> None:
    made, w = chain(conn, "a", "b"), worker(conn)
    die(conn, w, claim_one(conn, w))
    db.execute(conn, db.purge(db.Filter(queue="q"), status="dead"))
    db.execute(conn, db.prune())
    (left,) = rows(conn, "select status, error from pgqueue.job")
    assert left["status"] == "cancelled"
    assert left["error"] == f"its parent a (job {made.job_ids[0]}) was dead, and has been removed"
    assert info(conn, made).status == "failed"


def test_the_list_of_a_flow_names_parents_and_outlives_pruned_jobs(conn: Conn) -> None:
    made, w = chain(conn, "a", "b"), worker(conn)
    complete(conn, w, claim_one(conn, w))
    conn.execute("delete from pgqueue.job_done")
    first, second = db.execute(conn, db.list_flow(made.id))
    assert (first.status, first.task, first.parents) == ("completed", None, [])
    assert (second.status, second.task, second.parents) == ("pending", "t", [made.job_ids[0]])
    assert row(conn, "select status, progress::float8 from pgqueue.flow_status") == {
        "status": "running",
        "progress": 0.5,
    }
