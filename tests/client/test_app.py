"""Declaring tasks and enqueueing them, as users write it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

import pgqueue
from pgqueue import (
    App,
    InvalidArgument,
    JobCancelled,
    JobDead,
    JobNotFound,
    KeyTaken,
    PayloadError,
    ResultTimeout,
    Retry,
)
from pgqueue import app as app_module
from pgqueue import database as db
from pgqueue.errors import ConfigError
from tests.support import Conn, claim_one, job, rows, value, worker


@pytest.fixture
def app(dsn: str, conn: Conn) -> Iterator[App]:
    made = App(dsn)
    yield made
    made.close()


@dataclass
class Order:
    id: UUID
    placed_at: datetime


def complete(conn: Conn, result: Any = None, **failure: Any) -> None:
    """What a worker would do with the next job."""
    w = worker(conn, ["default"])
    held = claim_one(conn, w, ["default"])
    if failure:
        db.execute(conn, db.fail(w, [db.Failure(held.id, held.token, **failure)]))
    else:
        db.execute(conn, db.complete(w, [(held.id, held.token)], [result]))


# ------------------------------------------------------------------------------------------- declaring


async def test_the_plain_call_just_runs_the_function(app: App, conn: Conn) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.task(queue="q")
    async def aadd(a: int, b: int) -> int:
        return a + b

    assert add(1) == 2
    assert await aadd(1, b=2) == 3
    assert (add.name, aadd.name, repr(add)) == ("add", "aadd", "<task add>")
    assert rows(conn, "select 1 from pgqueue.job") == []


def test_a_name_is_stored_as_given_and_taken_only_once(app: App, conn: Conn) -> None:
    @app.task(name="mail.receipt")
    def send() -> None: ...

    assert job(conn, send.enqueue().id)["task"] == "mail.receipt"
    with pytest.raises(InvalidArgument, match=r"two tasks named 'mail.receipt'"):
        app.task(name="mail.receipt")(lambda: None)
    with pytest.raises(InvalidArgument, match="needs a name"):
        app.task(lambda: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs_in": "loop"}, "an async def runs in the loop"),
        ({"runs_in": "moon"}, "not in 'moon'"),
        ({"memory_limit": 1}, "only a task with runs_in"),
        ({"transactional": True, "runs_in": "process"}, "in the loop or in a thread"),
        ({"at_most_once": True, "max_attempts": 3}, "means max_attempts=1"),
        ({"quue": "x"}, "there is no option quue"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(app: App, options: dict[str, Any], message: str) -> None:
    def work() -> None: ...

    with pytest.raises(InvalidArgument, match=message):
        app.task(**options)(work)
    assert app.tasks == {}


# ------------------------------------------------------------------------------------------ enqueueing


def test_options_of_the_task_and_of_the_call_are_merged(app: App, conn: Conn) -> None:
    @app.task(queue="email", priority=5, retry=Retry.exponential(base=2, cap=60), timeout=30, tags=["a"], retain_for=60)
    def send(n: int) -> None: ...

    made = job(
        conn, send.using(priority=-1, run_in=timedelta(hours=1), meta={"by": "me"}, max_attempts=3).enqueue(7).id
    )
    assert (made["queue"], made["priority"], made["payload"], made["tags"]) == ("email", -1, {"n": 7}, ["a"])
    assert (made["timeout_seconds"], made["max_attempts"], made["meta"]) == (30, 3, {"by": "me"})
    assert made["retry"] == {"type": "exponential", "base": 2, "factor": 2, "cap": 60, "jitter": "full"}
    assert made["retain_for"] == timedelta(minutes=1)
    assert made["status"] == "scheduled"
    assert abs(made["run_at"] - value(conn, "select now() + interval '1 h'")) < timedelta(minutes=1)


def test_arguments_are_bound_to_the_signature_when_they_are_enqueued(app: App, conn: Conn) -> None:
    @app.task
    def ship(order: Order, express: bool = False) -> None: ...

    order = Order(UUID(int=7), datetime(2026, 1, 1, tzinfo=UTC))
    assert job(conn, ship.enqueue(order, express=True).id)["payload"] == {
        "order": {"id": "00000000-0000-0000-0000-000000000007", "placed_at": "2026-01-01T00:00:00+00:00"},
        "express": True,
    }
    with pytest.raises(InvalidArgument, match="order"):
        ship.enqueue()  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="did you mean 'express'"):
        ship.enqueue(order, expres=True)  # type: ignore[call-arg]
    with pytest.raises(PayloadError, match="argument order is a object"):
        ship.enqueue(object())  # type: ignore[arg-type]
    assert value(conn, "select count(*) from pgqueue.job") == 1


def test_a_key_is_a_text_or_made_from_the_arguments(app: App, conn: Conn) -> None:
    @app.task
    def send(order: int, copy: bool = False) -> None: ...

    first = send.using(key="args").enqueue(1, copy=True)
    same = send.using(key="args").enqueue(copy=True, order=1)
    other = send.using(key="args").enqueue(2, copy=True)
    assert (same.id, same.created, other.created) == (first.id, False, True)
    named = send.using(key=lambda order, **_: f"order:{order}").enqueue(7)
    assert job(conn, named.id)["key"] == "order:7"
    with pytest.raises(KeyTaken):
        send.using(key="order:7", on_conflict="raise").enqueue(7)


@pytest.mark.parametrize("n", [0, 1, 500])
def test_many_jobs_are_enqueued_in_one_call(app: App, conn: Conn, n: int) -> None:
    @app.task(queue="bulk", priority=3)
    def send(order: int) -> None: ...

    made = send.enqueue_many(send.s(i) if i % 2 else {"order": i} for i in range(n))
    found = rows(conn, "select id, payload, priority, queue from pgqueue.job order by id")
    assert [each["id"] for each in found] == [handle.id for handle in made]
    assert [each["payload"]["order"] for each in found] == list(range(n))
    assert {(each["priority"], each["queue"]) for each in found} <= {(3, "bulk")}


def test_a_bulk_call_keeps_quotes_and_backslashes(app: App, conn: Conn) -> None:
    @app.task
    def send(text: str) -> None: ...

    texts = ['"', "\\", '\\"', "{a,b}", "null", "", "ü\n\t", "'"]
    send.enqueue_many([send.s(text) for text in texts])
    assert [each["payload"]["text"] for each in rows(conn, "select payload from pgqueue.job order by id")] == texts


def test_jobs_of_a_bulk_call_may_differ_in_key_group_priority_and_time(app: App, conn: Conn) -> None:
    @app.task
    def send(order: int) -> None: ...

    later = datetime.now(UTC) + timedelta(hours=1)
    a, b, c = send.enqueue_many(
        [send.using(key="k", priority=9).s(1), send.using(run_at=later).s(2), send.using(key="k", group="g").s(3)]
    )
    assert (job(conn, a.id)["priority"], job(conn, b.id)["run_at"], c.id, c.created) == (9, later, a.id, False)
    with pytest.raises(InvalidArgument, match="only key, group, priority and run_at"):
        send.enqueue_many([send.using(queue="other").s(1)])


def test_a_task_can_be_enqueued_by_its_name(app: App, conn: Conn) -> None:
    made = app.using("elsewhere", queue="q", key="k").enqueue(order=1)
    assert (job(conn, made.id)["task"], job(conn, made.id)["payload"]) == ("elsewhere", {"order": 1})
    with pytest.raises(InvalidArgument, match="by name too"):
        app.using("elsewhere").enqueue(1)


def test_a_time_out_is_never_shorter_than_said(app: App, conn: Conn) -> None:
    id = app.using("elsewhere", timeout=timedelta(milliseconds=1400)).enqueue().id
    assert job(conn, id)["timeout_seconds"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2040, 1, 1, tzinfo=UTC), "run_in": 1},
        {"expires_at": datetime(2040, 1, 1, tzinfo=UTC), "expires_in": 1},
        {"run_in": "soon"},
        {"run_in": True},
        {"timeout": float("inf")},
        {"timeout": 0},
        {"timeout": -5},
        {"groop": "a"},
        {"run_at": datetime(2030, 1, 1)},
        {"priority": 1000},
        {"queue": "no blanks"},
        {"retry": Retry.fixed(-1)},
    ],
    ids=str,
)
def test_bad_options_are_refused_and_nothing_is_written(app: App, conn: Conn, options: Any) -> None:
    @app.task
    def send() -> None: ...

    with pytest.raises(InvalidArgument):
        send.using(**options).enqueue()
    with pytest.raises(InvalidArgument):
        app.using("send", **options).enqueue()
    assert rows(conn, "select 1 from pgqueue.job") == []


@pytest.mark.parametrize("options", [{}, {"key": "args"}], ids=str)
def test_arguments_that_are_in_themselves_many_times_over_are_refused_at_once(
    app: App, conn: Conn, options: Any
) -> None:
    @app.task(key=options.get("key"))
    def send(tree: list[Any]) -> None: ...

    tree: list[Any] = []
    for _ in range(60):
        tree = [tree, tree]
    with pytest.raises(PayloadError, match="as the same values are in it many times"):
        send.enqueue(tree)
    assert rows(conn, "select 1 from pgqueue.job") == []


async def test_an_enqueue_is_part_of_the_callers_transaction(app: App, conn: Conn, dsn: str) -> None:
    @app.task
    def send(order: int) -> None: ...

    with psycopg.connect(dsn) as mine:
        send.using(conn=mine).enqueue(1)
        mine.rollback()
        kept = send.using(conn=mine).enqueue(2)
    async with await psycopg.AsyncConnection.connect(dsn) as mine_too:
        also = await send.using(conn=mine_too).aenqueue(3)
    assert [each["id"] for each in rows(conn, "select id from pgqueue.job order by id")] == [kept.id, also.id]
    await app.aclose()


# --------------------------------------------------------------------------------------------- handles


def test_a_result_comes_back_as_annotated(app: App, conn: Conn) -> None:
    @app.task
    def make() -> Order: ...  # type: ignore[empty-body]

    handle = make.enqueue()
    assert handle.status() == "pending"
    with pytest.raises(ResultTimeout, match="has not finished within"):
        handle.result(timeout=0.01)
    complete(conn, {"id": "00000000-0000-0000-0000-000000000007", "placed_at": "2026-01-01T00:00:00+00:00"})
    assert handle.result(timeout=1) == Order(UUID(int=7), datetime(2026, 1, 1, tzinfo=UTC))
    assert app.job(handle.id).result(1)["id"] == "00000000-0000-0000-0000-000000000007"


async def test_waiting_for_a_job_that_died_or_was_cancelled_says_so(app: App, conn: Conn) -> None:
    @app.task(max_attempts=1)
    def work() -> None: ...

    dead = work.enqueue()
    complete(conn, error="boom", error_type="ValueError")
    cancelled = work.enqueue()
    assert await cancelled.acancel("enough") == "cancelled"
    with pytest.raises(JobDead, match="died after 1 attempts: ValueError: boom") as died:
        dead.result(1)
    assert died.value.info.error_type == "ValueError"
    with pytest.raises(JobCancelled, match="enough"):
        await cancelled.aresult(1)
    assert await dead.aretry() == "pending"
    with pytest.raises(JobNotFound):
        app.job(987654321).status()
    await app.aclose()


FORKS = """
import os, sys, warnings
from pgqueue import App
warnings.simplefilter("ignore")  # that a process with threads is forked
app = App(sys.argv[1])
app.enqueue("before")
child = os.fork()
for n in range(20):
    app.enqueue("child" if child == 0 else "parent", n=n)
if child == 0:
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_process_that_forks_and_its_child_both_enqueue(conn: Conn, dsn: str) -> None:
    subprocess.run([sys.executable, "-c", FORKS, dsn], check=True, timeout=60)
    found = rows(conn, "select task, count(*) as n from pgqueue.job group by task")
    assert {each["task"]: each["n"] for each in found} == {"before": 1, "child": 20, "parent": 20}


def test_operators_steer_from_python(app: App, conn: Conn) -> None:
    @app.task(max_attempts=1)
    def work() -> None: ...

    handle = work.enqueue()
    app.pause("default", reason="deploy")
    assert value(conn, "select paused_reason from pgqueue.queue where queue = 'default'") == "deploy"
    assert app.resume("default") is True
    assert app.cancel(handle.id) == "cancelled"
    assert app.retry(handle.id) == "pending"
    app.set_queue("default", max_attempts=9)
    assert value(conn, "select max_attempts from pgqueue.queue where queue = 'default'") == 9


# ----------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["tests.worker.apps:app", "tests.worker.apps"])
def test_an_app_is_found_by_its_name(name: str) -> None:
    from tests.worker import apps

    assert app_module.load(name) is apps.app


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "no app"), ("tests.worker.apps:nothing", "no App named 'nothing'"), ("tests.nowhere:app", "no module"),
     ("tests.support", "has 0 apps")],
)  # fmt: skip
def test_an_app_that_is_not_found_is_said_so(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app_module.load(name)


def test_the_public_names_are_exactly_those_promised() -> None:
    assert sorted(pgqueue._HOME) == sorted(pgqueue.__all__)
    for name in pgqueue.__all__:
        assert getattr(pgqueue, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pgqueue.nothing  # noqa: B018
