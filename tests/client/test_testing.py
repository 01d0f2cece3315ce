"""pgqueue.testing and the pytest plugin: directly, and from outside as a project that has pgqueue installed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pgqueue import (
    INJECTED,
    App,
    Cancel,
    Fatal,
    InvalidArgument,
    Job,
    JobDead,
    KeyTaken,
    PayloadError,
    PgqueueError,
    Retry,
    Snooze,
    current_job,
)
from pgqueue.testing import Borrowed, Sandbox, inline
from tests.support import Conn, value

ROOT = Path(__file__).parents[2]


class Mailer:
    """A resource."""

    def __init__(self) -> None:
        self.sent: list[str] = []


app = App("postgresql://nowhere.invalid/none")  # whatever leaves the sandbox fails
mailer = Mailer()
ran: list[Any] = []


@app.resource
async def open_mailer() -> AsyncIterator[Mailer]:
    await asyncio.sleep(0)
    yield mailer


@app.task
def add(a: int, b: Decimal) -> Decimal:
    ran.append((a, b, threading.current_thread()))
    return a + b


@app.task(queue="other", retry=Retry.fixed(60), max_attempts=2)
async def fragile(times: int, job: Job = INJECTED) -> str:
    if job.attempt <= times:
        raise ConnectionError("no route")
    return f"attempt {job.attempt}"


@app.task
def parent(n: int, job: Job = INJECTED) -> None:
    add.enqueue(n, Decimal(1))
    job.enqueue(add.s(n, Decimal(2)))
    job.progress(0.5)


@app.task
def mail(to: str, through: Mailer = INJECTED) -> None:
    through.sent.append(to)


@app.task
def outcome(kind: str) -> None:
    raise {"snooze": Snooze(60), "cancel": Cancel("not needed"), "fatal": Fatal("never")}[kind]


@app.task
def stepping(job: Job = INJECTED) -> int:
    return job.step("once", lambda: len(ran)) + int(current_job().attempt)


@app.task
def unstorable() -> object:
    return object()


@app.task(transactional=True)
def write(n: int, conn: psycopg.Connection[Any] = INJECTED) -> None:
    conn.execute("insert into written values (%s)", [n])
    if n < 0:
        raise ValueError(n)


@app.task(transactional=True)
async def awrite(n: int, conn: psycopg.AsyncConnection[Any] = INJECTED) -> None:
    async with conn.transaction():
        await conn.execute("insert into written values (%s)", [n])
    await add.aenqueue(n, Decimal(0))
    if n < 0:
        raise ValueError(n)


@app.task(transactional=True)
def write_session(n: int, session: Session = INJECTED) -> None:
    session.execute(text("insert into written values (:n)"), {"n": n})
    session.commit()
    if n < 0:
        raise ValueError(n)


@app.task(transactional=True)
async def awrite_session(n: int, session: AsyncSession = INJECTED) -> None:
    await session.execute(text("insert into written values (:n)"), {"n": n})
    if n < 0:
        raise ValueError(n)


@pytest.fixture
def lent(conn: Conn, connect: Callable[..., Conn]) -> Iterator[Conn]:
    """What pgqueue_conn is; `conn` has emptied the queue, and sees only what is committed."""
    raw = connect(autocommit=False)
    yield Borrowed(raw)
    raw.rollback()
    assert value(conn, "select count(*) from pgqueue.job") == 0


@pytest.fixture
def queue(lent: Conn) -> Iterator[Sandbox]:
    ran.clear()
    mailer.sent.clear()
    lent.execute("create table written (n int)")
    with Sandbox(app, lent) as sandbox:
        yield sandbox


def written(queue: Sandbox) -> list[int]:
    return [n for (n,) in queue.conn.execute("select n from written order by n")]


# -- enqueueing


def test_what_the_app_enqueues_is_in_the_transaction_of_the_test(queue: Sandbox, conn: Conn) -> None:
    handle = add.enqueue(1, Decimal("2.5"))
    add.using(conn=queue.conn).enqueue(2, Decimal(0))
    add.enqueue_many([add.s(3, Decimal(0)), add.s(4, Decimal(0))])
    assert [job.payload["a"] for job in queue.jobs()] == [1, 2, 3, 4]
    assert handle.status() == "pending"
    assert value(conn, "select count(*) from pgqueue.job") == 0


async def test_async_enqueues_at_the_same_time_share_the_connection(queue: Sandbox) -> None:
    await asyncio.gather(*(add.aenqueue(n, Decimal(0)) for n in range(20)))
    queue.assert_enqueued(add, count=20)
    async with app.aconnection() as conn, conn.transaction(), conn.transaction():
        await conn.execute("insert into written values (1)")
    assert written(queue) == [1]


def test_an_enqueue_that_is_refused_does_not_break_the_transaction(queue: Sandbox) -> None:
    once = add.using(key="k", on_conflict="raise")
    once.enqueue(1, Decimal(1))
    with pytest.raises(KeyTaken):
        once.enqueue(1, Decimal(1))
    queue.assert_enqueued(add, count=1)


def test_after_the_sandbox_the_app_has_its_own_connections_again(lent: Conn) -> None:
    before = dict(vars(app))
    with Sandbox(app, lent):
        assert app.connection != before["connection"]
    assert vars(app) == before


def test_an_autocommit_connection_is_refused(conn: Conn) -> None:
    with pytest.raises(InvalidArgument, match="autocommit"):
        Sandbox(app, conn)


# -- a connection that code under test may commit


def test_rollback_goes_back_to_the_last_commit_and_no_further(queue: Sandbox, conn: Conn) -> None:
    lent = queue.conn
    lent.execute("insert into written values (1)")
    lent.commit()
    lent.execute("insert into written values (2)")
    lent.rollback()
    assert written(queue) == [1]
    with pytest.raises(psycopg.errors.DivisionByZero):
        lent.execute("select 1 / 0")
    lent.rollback()
    assert written(queue) == [1]
    assert value(conn, "select to_regclass('written')::text") is None


def test_a_handler_that_commits_or_breaks_the_connection_of_the_test_harms_nothing(queue: Sandbox) -> None:
    wild = App()

    @wild.task
    def commits() -> None:
        queue.conn.execute("insert into written values (1)")
        queue.conn.commit()
        queue.conn.execute("insert into written values (2)")
        queue.conn.rollback()

    @wild.task
    def breaks() -> None:
        queue.conn.execute("select 1 / 0")

    with Sandbox(wild, queue.conn) as sandbox:
        commits.enqueue()
        breaks.using(max_attempts=1).enqueue()
        assert sandbox.drain(raise_errors=False) == {"completed": 1, "dead": 1}
    assert written(queue) == [1]


def test_the_faces_of_a_connection_leave_its_notices_alone(lent: Conn) -> None:
    heard: list[str | None] = []
    lent.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    with Sandbox(app, lent):
        add.enqueue(1, Decimal(1))
    lent.execute("do $$ begin raise notice 'hello'; end $$")
    assert heard == ["hello"]


# -- asserting


def test_assert_enqueued_looks_at_task_queue_count_and_the_named_arguments(queue: Sandbox) -> None:
    add.enqueue(1, Decimal(1))
    add.using(queue="q2").enqueue(1, Decimal(2))
    queue.assert_enqueued(add)
    queue.assert_enqueued("add", count=2, a=1)
    assert [job.queue for job in queue.assert_enqueued(add.s(1, Decimal(2)))] == ["q2"]
    queue.assert_enqueued(add, queue="q2", count=1, b=Decimal(2))
    queue.refute_enqueued(mail)
    queue.refute_enqueued(add, b=Decimal(3))
    queue.refute_enqueued(add, queue="q3")


def test_a_failed_assertion_lists_what_was_enqueued(queue: Sandbox) -> None:
    with pytest.raises(AssertionError) as nothing:
        queue.assert_enqueued(mail, to="a")
    assert str(nothing.value) == "mail(to='a') was not enqueued. Nothing was enqueued."
    for n in range(22):
        add.using(queue="sums").enqueue(n, Decimal(1))
    with pytest.raises(AssertionError) as wrong:
        queue.assert_enqueued(add, a=99)
    lines = str(wrong.value).splitlines()
    assert lines[:2] == [
        "add(a=99) was not enqueued. What was enqueued:",
        "  add(a=0, b='1') in queue sums: pending",
    ]
    assert lines[-1] == "  and 2 more"
    with pytest.raises(AssertionError, match=r"add\(\) in queue sums was enqueued 22 times, expected 1\."):
        queue.assert_enqueued(add, count=1, queue="sums")
    with pytest.raises(AssertionError, match=r"add\(a=3\) was enqueued\."):
        queue.refute_enqueued(add, a=3)


# -- draining


def test_drain_runs_what_is_pending_and_what_that_enqueues(queue: Sandbox) -> None:
    handle = parent.enqueue(5)
    assert queue.drain() == {"completed": 3}
    assert {(a, b) for a, b, _ in ran} == {(5, Decimal(1)), (5, Decimal(2))}
    assert handle.info().progress == 0.5
    assert queue.drain() == {}
    with pytest.raises(PgqueueError, match="no job"):
        current_job()


def test_a_plain_handler_runs_in_the_thread_of_the_test_and_its_result_is_stored(queue: Sandbox) -> None:
    handle = add.enqueue(1, Decimal("0.5"))
    queue.drain()
    assert handle.result(timeout=0) == Decimal("1.5")
    assert ran[0][2] is threading.current_thread()


def test_drain_takes_one_queue_and_no_more_than_its_limit(queue: Sandbox) -> None:
    for n in range(3):
        add.enqueue(n, Decimal(0))
    fragile.enqueue(0)
    assert queue.drain("other") == {"completed": 1}
    assert queue.drain(limit=1) == {"completed": 1}
    assert [a for a, _, _ in ran] == [0]


def test_what_a_handler_raises_is_recorded_and_comes_out(queue: Sandbox) -> None:
    fragile.enqueue(1)
    with pytest.raises(ConnectionError, match="no route"):
        queue.drain()
    (job,) = queue.jobs()
    assert (job.status, job.attempt, job.error_type, job.error) == ("scheduled", 1, "ConnectionError", "no route")
    assert value(queue.conn, "select count(*) from pgqueue.worker") == 0


def test_without_raise_errors_it_is_only_recorded_and_retried_when_due(queue: Sandbox) -> None:
    handle = fragile.enqueue(1)
    assert queue.drain(raise_errors=False) == {"failed": 1}
    assert queue.drain() == {}
    queue.advance(59)
    assert queue.drain() == {}
    queue.advance(1)
    assert queue.drain() == {"completed": 1}
    assert handle.result(timeout=0) == "attempt 2"


def test_with_retries_a_job_is_tried_until_it_succeeds_or_is_dead(queue: Sandbox) -> None:
    fragile.enqueue(1)
    assert queue.drain(with_retries=True) == {"failed": 1, "completed": 1}
    handle = fragile.enqueue(2)
    with pytest.raises(ConnectionError):
        queue.drain(with_retries=True)
    with pytest.raises(JobDead, match="after 2 attempts"):
        handle.result(timeout=0)


def test_outcomes_that_a_handler_means_do_not_come_out(queue: Sandbox) -> None:
    for kind in ("snooze", "cancel", "fatal"):
        outcome.enqueue(kind)
    assert queue.drain(with_retries=True) == {"snoozed": 1, "cancelled": 1, "dead": 1}
    assert [job.status for job in queue.jobs()] == ["scheduled", "cancelled", "dead"]


def test_a_result_that_cannot_be_stored_completes_the_job_and_comes_out(queue: Sandbox) -> None:
    unstorable.enqueue()
    with pytest.raises(PayloadError):
        queue.drain()
    assert [job.status for job in queue.jobs()] == ["completed"]


def test_a_task_that_the_app_does_not_have_fails_as_in_a_worker(queue: Sandbox) -> None:
    app.enqueue("elsewhere", n=1)
    with pytest.raises(PgqueueError, match="no task named 'elsewhere'"):
        queue.drain()
    assert queue.jobs("elsewhere")[0].status == "scheduled"


def test_handlers_get_job_steps_and_resources(queue: Sandbox) -> None:
    handle = stepping.enqueue()
    mail.enqueue("ann")
    assert queue.drain() == {"completed": 2}
    assert handle.result(timeout=0) == 1
    assert value(queue.conn, "select name from pgqueue.job_step") == "once"
    assert mailer.sent == ["ann"]


def test_middleware_goes_around_handlers(lent: Conn) -> None:
    wrapped = App()
    seen: list[str] = []

    @wrapped.around
    async def around(job: Job, run: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(0)
        seen.append(job.task)
        return await run()

    @wrapped.task
    def plain() -> None:
        seen.append("ran")

    with Sandbox(wrapped, lent) as sandbox:
        plain.enqueue()
        sandbox.drain()
    assert seen == ["plain", "ran"]


def test_a_handler_that_enqueues_itself_for_ever_is_found_out(queue: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = App()

    @endless.task
    def again() -> None:
        again.enqueue()

    monkeypatch.setattr("pgqueue.testing.MANY", 10)
    with Sandbox(endless, queue.conn) as sandbox:
        again.enqueue()
        with pytest.raises(AssertionError, match="enqueue itself"):
            sandbox.drain()


@pytest.mark.parametrize("task", [write, awrite, write_session, awrite_session], ids=lambda task: str(task.name))
def test_a_transactional_handler_writes_in_the_transaction_of_the_test(queue: Sandbox, task: Any) -> None:
    for n in (1, -1, 2):
        task.using(max_attempts=1).enqueue(n)
    enqueued = 2 if task is awrite else 0  # what it enqueues is undone with it
    assert queue.drain(raise_errors=False) == {"completed": 2 + enqueued, "dead": 1}
    assert written(queue) == [1, 2]


@pytest.mark.parametrize("task", [write, awrite, write_session, awrite_session], ids=lambda task: str(task.name))
async def test_adrain_does_the_same_in_async_tests(queue: Sandbox, task: Any) -> None:
    for n in (1, -1, 2):
        await task.using(max_attempts=1).aenqueue(n)
    enqueued = 2 if task is awrite else 0
    assert await queue.adrain(raise_errors=False) == {"completed": 2 + enqueued, "dead": 1}
    assert written(queue) == [1, 2]
    with pytest.raises(PgqueueError, match="no job"):
        current_job()


async def test_drain_says_that_an_async_task_needs_adrain_where_a_loop_runs(queue: Sandbox) -> None:
    await fragile.aenqueue(0)
    with pytest.raises(InvalidArgument, match="adrain"):
        queue.drain()
    assert queue.jobs()[0].status == "pending"
    assert await queue.adrain() == {"completed": 1}


# -- time


def test_advance_makes_scheduled_jobs_due_in_their_order(queue: Sandbox) -> None:
    for seconds in (30, 10, 20, 100):
        add.using(run_in=seconds).enqueue(seconds, Decimal(0))
    assert queue.drain() == {}
    queue.advance(60)
    assert queue.drain() == {"completed": 3}
    assert [a for a, _, _ in ran] == [10, 20, 30]
    left = queue.jobs()[3].run_at - datetime.now(UTC)
    assert 30 < left.total_seconds() <= 41


def test_advance_lets_jobs_expire_and_held_keys_go(queue: Sandbox) -> None:
    add.using(expires_in=60).enqueue(1, Decimal(0))
    keyed = mail.using(key="k", key_ttl=60)
    keyed.enqueue("ann")
    queue.drain(limit=2)
    assert not keyed.enqueue("ann").created
    add.using(expires_in=60).enqueue(2, Decimal(0))
    queue.advance(61)
    assert keyed.enqueue("ann").created
    assert queue.drain() == {"completed": 1}
    assert [a for a, _, _ in ran] == [1]


# -- inline


def test_inline_runs_the_handler_with_arguments_and_result_as_json_and_back() -> None:
    ran.clear()
    with inline(app):
        handle = add.enqueue(1, Decimal("0.10"))
        assert (handle.result(), handle.status(), handle.created) == (Decimal("1.10"), "completed", True)
        many = add.enqueue_many([{"a": 1, "b": Decimal(1)}, {"a": 2, "b": Decimal(1)}])
        assert [each.result() for each in many] == [2, 3]
        assert app.enqueue("add", a=1, b="2").result() == 3
        add.using(conn=object(), run_in=60, key="k").enqueue(5, Decimal(5))
    assert all(type(b) is Decimal and thread is threading.current_thread() for _, b, thread in ran)


def test_inline_refuses_what_json_cannot_carry() -> None:
    with inline(app):
        with pytest.raises(PayloadError):
            add.enqueue(object(), Decimal(1))  # type: ignore[arg-type]
        with pytest.raises(PayloadError):
            unstorable.enqueue()


def test_inline_gives_jobs_resources_steps_and_children() -> None:
    ran.clear()
    mailer.sent.clear()
    with inline(app):
        parent.enqueue(1)
        mail.enqueue("bob")
        assert stepping.enqueue().result() == 3
    assert (len(ran), mailer.sent) == (2, ["bob"])


def test_inline_lets_exceptions_out_and_runs_async_tasks() -> None:
    with inline(app):
        assert fragile.enqueue(0).result() == "attempt 1"
        with pytest.raises(ConnectionError):
            fragile.enqueue(1)
        with pytest.raises(Cancel):
            outcome.enqueue("cancel")


async def test_inline_in_a_running_loop_asks_for_aenqueue() -> None:
    with inline(app):
        with pytest.raises(InvalidArgument, match=r"await aenqueue\(\)"):
            fragile.enqueue(0)
        handle = await fragile.aenqueue(0)
        assert await handle.aresult() == "attempt 1"
        assert add.enqueue(1, Decimal(1)).result() == 2
        await parent.aenqueue(1)


def test_inline_says_what_needs_a_database() -> None:
    with inline(app):
        with pytest.raises(InvalidArgument, match="transactional"):
            write.enqueue(1)
        with pytest.raises(PgqueueError, match="no database, which pause needs"):
            app.pause("default")
    assert "execute" not in vars(app)


# -- the plugin, from outside


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in whose environment the entry point of our pyproject.toml is installed."""
    metadata = tmp_path / "site" / "plugin_of_pgqueue-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-pgqueue\nVersion: 1\n")
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {module}" for name, module in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    return tmp_path


def run_pytest(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if not name.endswith("DATABASE_URL")}
    path = os.pathsep.join([str(project / "site"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider",
         "-o", "asyncio_default_fixture_loop_scope=function", *arguments],
        cwd=project, env={**inherited, "PYTHONPATH": path, **environment}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def passed(run: subprocess.CompletedProcess[str], count: int) -> bool:
    assert f"{count} passed" in run.stdout, run.stdout + run.stderr
    return run.returncode == 0


def test_the_examples_of_the_documentation_pass(project: Path, server_url: str) -> None:
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["shop.py", "conftest.py", "test_shop.py"]
    for name, code in blocks:
        (project / name).write_text(code)
    assert passed(run_pytest(project, "test_shop.py", PGQUEUE_TEST_DATABASE_URL=server_url), 5)
    with psycopg.connect(server_url) as conn:  # its database is gone, and the one that was named is as it was
        assert value(conn, "select to_regnamespace('pgqueue')::text") is None


def test_tests_do_not_see_what_others_committed_and_need_no_server(project: Path) -> None:
    (project / "test_isolation.py").write_text(
        "import pytest\n"
        "from pgqueue import App\n"
        "app = App()\n"
        "@app.task\n"
        "def note(n: int) -> None: ...\n"
        "@pytest.fixture\n"
        "def pgqueue_app(): return app\n"
        "@pytest.mark.parametrize('n', [1, 2, 3])\n"
        "def test_it_is_alone(pgqueue_queue, pgqueue_conn, n):\n"
        "    assert pgqueue_queue.jobs() == []\n"
        "    pgqueue_conn.execute('create table mine (n int)')\n"
        "    note.using(key='k').enqueue(n)\n"
        "    pgqueue_conn.commit()\n"
        "    pgqueue_queue.drain(limit=n - 1)\n"
        "    pgqueue_queue.assert_enqueued(note.s(n), count=1)\n"
    )
    assert passed(run_pytest(project, "test_isolation.py"), 3)


def test_without_pgqueue_app_the_error_says_what_to_do(project: Path, server_url: str) -> None:
    (project / "test_appless.py").write_text("def test_it(pgqueue_queue): ...\n")
    run = run_pytest(project, "test_appless.py", DATABASE_URL=server_url)
    assert run.returncode != 0
    assert "define a fixture pgqueue_app that returns it" in run.stdout


def test_who_does_not_use_the_plugin_does_not_pay_for_it(project: Path) -> None:
    (project / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing_heavy_is_loaded():\n"
        "    assert 'pgqueue.pytest_plugin' in sys.modules\n"
        "    heavy = {'psycopg', 'sqlalchemy', 'alembic', 'pgqueue.app', 'pgqueue.testing'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    assert passed(run_pytest(project, "test_nothing.py", DATABASE_URL="postgresql://nowhere.invalid/none"), 1)
