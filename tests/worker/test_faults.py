"""What breaks around a worker: the server restarts, the network swallows or delays, connections run out."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
import pytest

from pgqueue import App, Settings, Worker, chain, embedded, pools, schema
from pgqueue import link as link_module
from pgqueue import listen as listen_module
from pgqueue.embedded import EmbeddedPostgres
from pgqueue.link import Link
from pgqueue.listen import listen
from tests import support
from tests.support import Conn, enqueue, job, rows, value, wait_until
from tests.worker import apps
from tests.worker.proxy import Proxy
from tests.worker.running import ROOT, Process, processes
from tests.worker.test_processes import all_completed, effects, put, running

Start = Callable[..., Process]
StartAt = Callable[[str], AbstractContextManager[Start]]
SLOW = 30.0  # a bound for a broken worker on a machine that does much else
EFFECT = "create table effect (job_id bigint, attempt int, pid int, at timestamptz default clock_timestamp())"


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with Proxy(dsn) as made:
        yield made


@pytest.fixture
def start_at(conn: Conn, tmp_path: Path) -> StartAt:
    """`start` for another address."""
    conn.execute("drop table if exists effect")
    conn.execute(EFFECT)

    @contextmanager
    def at(dsn: str) -> Iterator[Start]:
        folder = tmp_path / f"at-{abs(hash(dsn))}"
        folder.mkdir()
        yield from processes(dsn, folder)

    return at


@pytest.fixture
def start_behind(proxy: Proxy, start_at: StartAt) -> Iterator[Start]:
    """`start` for workers that reach the database through the proxy."""
    with start_at(proxy.conninfo) as start:
        yield start


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server of our own, which may be disturbed."""
    with embedded.temporary(settings={"fsync": "on", "max_connections": "60"}) as made:
        schema.migrate(made.url())
        with psycopg.connect(made.url(), autocommit=True) as conn:
            conn.execute(EFFECT)
        yield made


@asynccontextmanager
async def working(app: App, **settings: object) -> AsyncIterator[Worker]:
    """A worker in this process."""
    worker = Worker(app, Settings(**{"poll_seconds": 0.2, **settings}))  # type: ignore[arg-type]
    task = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(worker.started.wait(), 20)
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 40)


async def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    await asyncio.to_thread(wait_until, condition, seconds)


def assert_each_effect_once(conn: Conn, ids: list[int]) -> None:
    found = rows(conn, "select job_id, count(*) as n from effect group by job_id")
    assert {each["job_id"]: each["n"] for each in found} == dict.fromkeys(ids, 1)


def beat_of(pid: int) -> int | None:
    """The heartbeat process of a worker process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if alive(int(child)) and b"pgqueue.beat" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


# ------------------------------------------------------------------------------------------ the server


def test_the_server_crashes_three_times_under_load_and_nothing_is_lost_or_done_twice(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    def completed() -> int:
        try:
            with psycopg.connect(server.url(), autocommit=True) as conn:
                return int(value(conn, "select count(*) from pgqueue.job where status = 'completed'"))
        except psycopg.OperationalError:
            return -1

    with contextmanager(processes)(server.url(), tmp_path) as start:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            conn.execute("truncate effect")
            ids = put(conn, "write", 200, seconds=0.05) + put(conn, "write_in_thread", 100, seconds=0.05)
        workers = [start("-c", "10", "--lease", "5").wait_ready() for _ in range(2)]
        for share in (20, 80, 140):
            wait_until(lambda share=share: completed() >= share, 60)  # type: ignore[misc]
            server.restart("immediate")
        wait_until(lambda: completed() == 300, 60)
        with psycopg.connect(server.url(), autocommit=True) as conn:
            assert_each_effect_once(conn, ids)
        assert [worker.process.poll() for worker in workers] == [None, None]


FILL_NOTIFICATIONS = """
  do $$ begin for n in 1 .. 100 loop perform pg_notify('other', n || repeat('x', 7900)); commit; end loop; end $$"""


FILL_NOTIFICATIONS = """
  do $$ begin for n in 1 .. 100 loop perform pg_notify('other', n || repeat('x', 7900)); commit; end loop; end $$"""


@pytest.mark.skipif(embedded.find_binaries().major < 17, reason="its size cannot be set")
def test_a_full_notification_queue_stops_who_notifies_and_nobody_who_does_not() -> None:
    with ExitStack() as stack:
        full = stack.enter_context(embedded.temporary(settings={"fsync": "off", "max_notify_queue_pages": "64"}))
        schema.migrate(full.url())
        listener, conn = (stack.enter_context(psycopg.connect(full.url(), autocommit=True)) for _ in range(2))
        support.claim(conn, support.worker(conn))  # somebody is idle
        listener.execute("listen pgqueue")
        listener.execute("begin")  # nothing that comes from now on can be forgotten
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            conn.execute(FILL_NOTIFICATIONS)
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            enqueue(conn)
        conn.execute("set pgqueue.notify = off")
        id = enqueue(conn)
        assert support.claim_one(conn, support.worker(conn)).id == id


def test_when_connections_run_out_a_worker_says_it_once_and_waits(server: EmbeddedPostgres, tmp_path: Path) -> None:
    held: list[psycopg.Connection[object]] = []

    def take_all() -> None:
        while True:
            try:
                held.append(psycopg.connect(server.url()))
            except psycopg.OperationalError:
                return

    def give_back() -> None:
        while held:
            held.pop().close()

    def complaints() -> int:
        return sum("not there" in line["message"] for line in worker.logged())

    with (
        psycopg.connect(server.url(), autocommit=True) as conn,
        contextmanager(processes)(server.url(), tmp_path) as start,
    ):
        try:
            take_all()
            worker = start("--lease", "2")
            wait_until(lambda: worker.said("too many clients"), 30)
            ids = put(conn, "quick", 5)
            give_back()
            wait_until(lambda: all_completed(conn, ids), 30)
            assert complaints() == 1
            # And while it works: whoever is faster gets the slots of the connections that died.
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name like 'pgqueue%%' and pid <> pg_backend_pid()"
            )
            wait_until(lambda: take_all() or complaints() >= 2, 30)  # type: ignore[func-returns-value]
            ids = put(conn, "write", 5, seconds=0)
            give_back()
            wait_until(lambda: all_completed(conn, ids), 40)
            assert worker.said("the database is back")
            assert complaints() <= 4, "terminated, and too many clients: each may be said once"
            assert worker.process.poll() is None
        finally:
            give_back()


# ----------------------------------------------------------------------------------------- the network


@pytest.mark.parametrize("direct", [False, True])
def test_behind_a_pooler_a_worker_says_so_and_polls_unless_it_can_listen_elsewhere(
    dsn: str, conn: Conn, tmp_path: Path, direct: bool
) -> None:
    listening = "select count(*) from pg_stat_activity where query = 'listen pgqueue' and datname = current_database()"
    with Proxy(dsn, pooler=True) as pooler, contextmanager(processes)(pooler.conninfo, tmp_path) as start:
        worker = start("--poll", "0.2", *(["--listen-url", dsn] if direct else [])).wait_ready()
        wait_until(lambda: worker.said("PgBouncer") or value(conn, listening) == 1, 20)
        ids = put(conn, "quick", 20)
        wait_until(lambda: all_completed(conn, ids), 20)
        assert (value(conn, listening), worker.said("PgBouncer")) == ((1, False) if direct else (0, True))


async def test_a_half_open_listen_connection_is_noticed_and_made_anew_while_polling_goes_on(
    proxy: Proxy, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_module, "PING_SECONDS", 0.5)
    app = App(proxy.conninfo)

    @app.task
    async def work() -> None: ...

    def listeners() -> set[int]:
        found = rows(
            conn, "select pid from pg_stat_activity where application_name = 'pgqueue listen'"
            " and query ~ '^listen|pg_notify' and datname = current_database()",
        )  # fmt: skip
        return {each["pid"] for each in found}

    async with working(app):
        await eventually(lambda: len(listeners()) == 1)
        first = listeners()
        proxy.hang("pgqueue listen")
        ids = [(await work.aenqueue()).id for _ in range(5)]
        await eventually(lambda: all_completed(conn, ids))
        assert listeners() == first
        proxy.heal()
        await eventually(lambda: proxy.passing("pgqueue listen") == 1)
        await eventually(lambda: len(listeners() - first) == 1)


async def test_a_healthy_listen_connection_is_left_alone(
    proxy: Proxy, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_module, "PING_SECONDS", 0.2)
    link, pings = Link(proxy.conninfo, "listen"), "query ~ 'pg_notify'"
    first = await link.connection()
    task = asyncio.create_task(listen(link, lambda _: None))
    for _ in range(3):
        seen = value(conn, "select clock_timestamp()")
        await eventually(
            lambda seen=seen: value(  # type: ignore[misc]
                conn, f"select count(*) from pg_stat_activity where {pings} and pid = %s and query_start > %s",
                first.info.backend_pid, seen,
            ) == 1
        )  # fmt: skip
    assert await link.connection() is first
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_connection_that_hangs_just_when_it_should_listen_does_not_end_the_listening(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_module, "PING_SECONDS", 0.5)
    link, heard = Link(proxy.conninfo, "listen"), list[str]()
    await link.connection()
    proxy.hang("pgqueue listen")
    proxy.heal()  # only that connection is lost
    task = asyncio.create_task(listen(link, heard.append))
    await eventually(lambda: heard != [], 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_statement_that_hangs_is_given_up_and_nothing_is_lost_or_run_twice(
    proxy: Proxy, conn: Conn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(link_module, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(link_module, "CONNECT_SECONDS", 2.0)
    app, runs = App(proxy.conninfo), list[int]()

    @app.task
    async def work(n: int) -> None:
        runs.append(n)
        await asyncio.sleep(0.02)

    async with working(app, concurrency=5) as worker:
        handles = await work.aenqueue_many([work.s(n) for n in range(300)])
        ids = [handle.id for handle in handles]
        await eventually(lambda: worker.finished >= 20)
        proxy.hang("pgqueue worker")
        await eventually(lambda: "the database is not there" in caplog.text)
        proxy.heal()
        await eventually(lambda: all_completed(conn, ids))
        assert sorted(runs) == list(range(300))
        assert "the database is back" in caplog.text
        assert {job(conn, id)["attempt"] for id in ids} == {1}


@pytest.mark.parametrize("fault", ["drop", "hang"])
def test_a_worker_that_has_nothing_to_do_leaves_at_once_though_the_database_is_gone(
    proxy: Proxy, start_behind: Start, fault: str
) -> None:
    worker = start_behind("--poll", "0.1").wait_ready()
    getattr(proxy, fault)()
    if fault == "drop":
        wait_until(lambda: worker.said("the database is not there"))
    worker.send(signal.SIGTERM)
    asked = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - asked < (3 if fault == "drop" else 8) + SLOW
    assert not worker.said("our jobs")


@pytest.mark.parametrize(("task", "fault"), [("wait_for", "drop"), ("rest", "drop"), ("wait_for", "hang")])
def test_a_worker_that_cannot_report_leaves_when_the_drain_time_is_over(
    proxy: Proxy, conn: Conn, start_behind: Start, tmp_path: Path, task: str, fault: str
) -> None:
    worker = start_behind("--drain", "3").wait_ready()
    done = tmp_path / "done"
    (id,) = put(conn, "wait_for", path=str(done)) if task == "wait_for" else put(conn, "rest", seconds=60)
    wait_until(lambda: running(conn) == 1)
    getattr(proxy, fault)()
    if task == "wait_for" and fault == "drop":
        wait_until(lambda: worker.said("the database is not there"))
    done.touch()
    worker.send(signal.SIGTERM)
    asked = time.monotonic()
    assert worker.wait() == 1
    assert 2.5 < time.monotonic() - asked < (5 if fault == "drop" else 9) + SLOW
    assert worker.said("leaving without a report")
    assert job(conn, id)["status"] == "running"


@pytest.mark.parametrize(
    "handler",
    ["waits for the database", "sleeps", "in a thread"],
)
async def test_everything_hangs_for_longer_than_the_lease_and_the_worker_begins_anew(
    proxy: Proxy, conn: Conn, start: Start, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    monkeypatch.setattr(link_module, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(link_module, "CONNECT_SECONDS", 2.0)
    app = App(proxy.conninfo)
    app.tasks.update({name: apps.app.tasks[name] for name in ("quick", "write", "write_in_thread")})
    task, seconds = ("write_in_thread" if handler == "in a thread" else "write"), (20 if handler == "sleeps" else 1)
    async with working(app, lease_seconds=2, concurrency=8) as worker:
        first = worker.worker_id
        ids = put(conn, task, 8, seconds=seconds)
        await eventually(lambda: effects_under_way(conn) == 8)
        proxy.hang()
        if handler == "sleeps":  # in this worker only
            conn.execute("update pgqueue.job_live set payload = '{\"seconds\": 0}'")
        rival = start("--lease", "2")
        await eventually(lambda: all_completed(conn, ids), 40)
        assert rival.said("1 workers were lost")
        assert_each_effect_once(conn, ids)
        rival.send(signal.SIGTERM)
        assert await asyncio.to_thread(rival.wait) == 0
        proxy.heal()
        await eventually(lambda: worker.worker_id != first)
        again = put(conn, task, 4, seconds=0) + put(conn, "quick", 4)
        await eventually(lambda: all_completed(conn, again))
        assert effects(conn) == 12
        assert worker.exit_code == 0


def effects_under_way(conn: Conn) -> int:
    return int(
        value(
            conn, "select count(*) from pg_stat_activity where application_name = 'pgqueue'"
            " and state = 'idle in transaction' and query ~ 'insert into effect' and datname = current_database()",
        )
    )  # fmt: skip


def test_a_slow_network_makes_a_worker_slow_but_not_lost(
    conn: Conn, start: Start, proxy: Proxy, start_behind: Start
) -> None:
    rival = start("-q", "other", "--lease", "3").wait_ready()  # it sweeps
    proxy.delay(0.2)
    worker = start_behind("-c", "5", "--lease", "6").wait_ready()
    began = time.monotonic()
    ids = put(conn, "quick", 50) + put(conn, "nap", 10, seconds=1)
    wait_until(lambda: all_completed(conn, ids), 60)
    assert time.monotonic() - began > 0.8, "two round trips"
    assert {job(conn, id)["attempt"] for id in ids} == {1}
    assert not rival.said("workers were lost")
    assert not worker.said("not there")


def test_connections_reset_at_random_moments_lose_nothing_and_do_nothing_twice(
    conn: Conn, proxy: Proxy, start_behind: Start
) -> None:
    seed = 20240611
    chance = random.Random(seed)  # noqa: S311
    worker = start_behind("-c", "10", "--lease", "5").wait_ready()
    ids = put(conn, "write", 140, seconds=0.1) + put(conn, "write_in_thread", 60, seconds=0.1)
    hit = 0
    for _ in range(20):
        wait_until(lambda: proxy.passing("pgqueue worker") == 1, 30)
        threading.Event().wait(chance.uniform(0, 0.2))
        hit += proxy.reset()
    wait_until(lambda: all_completed(conn, ids), 60)
    assert_each_effect_once(conn, ids)
    assert hit >= 20
    assert worker.process.poll() is None


# --------------------------------------------------------------------------------- the heartbeat process


def test_a_heartbeat_process_that_is_killed_is_started_again_and_no_lease_is_lost(conn: Conn, start: Start) -> None:
    rival = start("-q", "other", "--lease", "4").wait_ready()
    worker = start("--lease", "4").wait_ready()
    ids = put(conn, "nap", 3, seconds=8)
    wait_until(lambda: running(conn) == 3)
    for _ in range(3):
        beat = beat_of(worker.pid)
        assert beat is not None
        os.kill(beat, signal.SIGKILL)
        wait_until(lambda beat=beat: beat_of(worker.pid) not in (None, beat), 10)  # type: ignore[misc]
    wait_until(lambda: all_completed(conn, ids), 30)
    assert {job(conn, id)["attempt"] for id in ids} == {1}
    assert not rival.said("workers were lost")
    assert not worker.said("went wrong")


def test_the_heartbeat_ends_with_a_worker_that_is_killed(conn: Conn, start: Start) -> None:
    worker = start().wait_ready()
    beat = beat_of(worker.pid)
    assert beat is not None
    worker.send(signal.SIGKILL)
    wait_until(lambda: not alive(beat), 10)


HOLDER = """
import os, sys, time
from pgqueue.beat import Beat, now
beat = Beat(sys.argv[1], 2)
beat.start(1, now())
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(beat._process.pid, child, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("fault", ["pass", "hang", "drop"])
def test_the_heartbeat_ends_even_if_a_child_of_the_worker_lives_on(proxy: Proxy, fault: str) -> None:
    """A handler may fork: its child has the other end of the heartbeat's standard input open, too."""
    if fault != "pass":
        getattr(proxy, fault)()
    worker = subprocess.Popen([sys.executable, "-c", HOLDER, proxy.conninfo], stdout=subprocess.PIPE, cwd=ROOT)
    assert worker.stdout is not None
    beat, child = map(int, worker.stdout.readline().split())
    try:
        worker.kill()
        worker.wait()
        wait_until(lambda: not alive(beat), 10)
    finally:
        worker.stdout.close()
        os.kill(child, signal.SIGKILL)


# ------------------------------------------------------------------------------ connections of the app


@pytest.mark.parametrize("runs_in", ["loop", "thread", "process"])
def test_a_connection_that_goes_when_a_job_asks_for_its_parents_or_steps_costs_it_no_attempt(
    conn: Conn, start: Start, runs_in: str
) -> None:
    start("-c", "1").wait_ready()
    first, second = apps.lonely_parent.s(), getattr(apps, f"lonely_in_{runs_in}").s()
    flow = chain(first, second).enqueue(conn=conn)
    wait_until(lambda: flow_ended(conn, flow.id))
    found = rows(conn, "select status, attempt, error from pgqueue.job where flow_id = %s", flow.id)
    assert found == [{"status": "completed", "attempt": 1, "error": None}] * 2
    assert value(conn, "select count(*) from effect") == 1, "the step ran once"


def flow_ended(conn: Conn, id: int) -> bool:
    return bool(value(conn, "select ended_at is not null from pgqueue.flow where id = %s", id)) or bool(
        rows(conn, "select 1 from pgqueue.job_dead where flow_id = %s", id)
    )


def terminate_pool(conn: Conn) -> None:
    conn.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where application_name = 'pgqueue' and datname = current_database()"
    )


@pytest.mark.parametrize("fault", ["terminated", "half open"])
async def test_a_connection_that_died_while_idle_costs_who_enqueues_no_error(
    proxy: Proxy, conn: Conn, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(pools, "_TRUSTED_SECONDS", -1.0)  # as if it had been idle for long
    monkeypatch.setattr(pools, "_CHECK_SECONDS", 0.5)
    app = App(proxy.conninfo)
    ids = [app.enqueue("work").id, (await app.aenqueue("work")).id]
    assert proxy.passing("pgqueue") == 2
    if fault == "terminated":
        terminate_pool(conn)
    else:
        proxy.hang("pgqueue")
        proxy.heal()
    ids.append((await asyncio.wait_for(asyncio.to_thread(app.enqueue, "work"), 20)).id)
    ids.append((await asyncio.wait_for(app.aenqueue("work"), 20)).id)
    assert value(conn, "select count(*) from pgqueue.job where status = 'pending' and id = any (%s)", ids) == 4
    await app.aclose()


async def test_a_cancelled_call_on_a_half_open_connection_ends_soon(proxy: Proxy, conn: Conn) -> None:
    app = App(proxy.conninfo)
    id = (await app.aenqueue("work")).id
    proxy.hang("pgqueue")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(app.job(id).ainfo(), 0.2)
    proxy.heal()
    assert (await asyncio.wait_for(app.job(id).ainfo(), 20)).status == "pending"
    await app.aclose()


async def test_an_outage_costs_who_enqueues_no_error_and_is_over_when_it_is_over(proxy: Proxy, conn: Conn) -> None:
    app = App(proxy.conninfo)
    proxy.drop("pgqueue")
    began = time.monotonic()
    waiting = [asyncio.create_task(asyncio.to_thread(app.enqueue, "work")), asyncio.create_task(app.aenqueue("work"))]
    # The pool alone would have tried after 1, 3 and 7 s, and would now sleep until the 15th.
    await eventually(lambda: time.monotonic() > began + 7.5)
    assert not any(task.done() for task in waiting)
    proxy.heal()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert value(conn, "select count(*) from pgqueue.job where status = 'pending'") == 2
    await app.aclose()
