"""Who enqueues during a chaos run, and writes down what was acknowledged.

Each transaction writes the ids of its jobs into chaos.made, too: whatever a lost connection leaves open, both are there
or neither.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from pgqueue import gather, parents
from pgqueue.pools import _hung_up_in_thread_after
from tests.chaos import app as tasks
from tests.chaos.ledger import Acks
from tests.support import Conn

Made = list[int]
_GIVEN_UP_SECONDS = 15.0  # a network that swallows everything never says so


class Enqueuer(threading.Thread):
    """Makes `jobs` jobs within `seconds`, evenly; if the database is away it catches up afterwards."""

    def __init__(self, conninfo: str, acks: Acks, jobs: int, seconds: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._conninfo = conninfo
        self._acks = acks
        self._jobs, self._seconds = jobs, seconds
        self._chance = random.Random(seed)  # noqa: S311
        self._conn: Conn | None = None
        self._batch = max(20, jobs // 500)
        self._rolled_back: list[int] = []
        self.made = 0
        self.unknown = 0  # transactions whose end nobody told us
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            began = time.monotonic()
            while self.made < self._jobs:
                ahead = self.made / self._jobs * self._seconds - (time.monotonic() - began)
                if ahead > 0:
                    time.sleep(min(ahead, 0.2))
                    continue
                try:
                    conn = self._connected()
                    with _hung_up_in_thread_after(_GIVEN_UP_SECONDS, conn):
                        self._transaction(conn)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    self._disconnect()
                    time.sleep(0.2)
        except BaseException as error:
            self.error = error
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        self._rolled_back.clear()
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _connected(self) -> Conn:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._conninfo, connect_timeout=5, application_name="chaos enqueuer")
        return self._conn

    def _transaction(self, conn: Conn) -> None:
        keys: dict[int, tuple[str, str]] = {}
        made = self._chance.choice(self._kinds)(self, conn, keys)
        conn.execute("insert into chaos.made select unnest(%s::bigint[])", [made])
        if self._chance.random() < 0.05:
            conn.rollback()
            self._rolled_back += made
            return
        try:
            conn.commit()
        except psycopg.Error:
            self.unknown += 1
            raise
        self._acks.acked.update(made)
        # Not before a commit: nothing else makes PostgreSQL remember, over a crash, that it has given these ids away.
        self._acks.rolled_back.update(self._rolled_back)
        self._rolled_back.clear()
        self._acks.keyed.update(keys)
        self.made += len(made)

    # -- what is enqueued: each returns the ids of new jobs

    def _bulk(self, conn: Conn, _: dict[int, tuple[str, str]]) -> Made:
        kinds: list[tuple[str, str | None, dict[str, Any], float]] = [
            ("quick", None, {}, 1.0),
            ("nap", None, {"seconds": 0.02}, 0.25),
            ("write", None, {"seconds": 0.0}, 0.25),
            ("in_thread", None, {"seconds": 0.005}, 0.25),
            ("write_in_thread", None, {"seconds": 0.005}, 0.25),
            ("quick", "few", {}, 0.1),  # a limit makes them slow
            ("snooze", None, {}, 0.1),
            ("bear", None, {}, 0.25),
            ("fail_often", None, {"times": self._chance.randrange(4)}, 0.1),
        ]
        name, queue, arguments, share = self._chance.choices(kinds, [60, 8, 8, 4, 3, 4, 3, 3, 3])[0]
        bound = tasks.app.using(name, conn=conn) if queue is None else tasks.app.using(name, conn=conn, queue=queue)
        return [handle.id for handle in bound.enqueue_many([arguments] * max(1, int(self._batch * share)))]

    def _single(self, conn: Conn, _: dict[int, tuple[str, str]]) -> Made:
        task = tasks.app.using(
            self._chance.choice(["nap", "in_thread", "write", "write_in_thread"]),
            conn=conn,
            priority=self._chance.randrange(-3, 4),
        )
        return [task.enqueue(seconds=self._chance.uniform(0, 0.3)).id]

    def _apart(self, conn: Conn, _: dict[int, tuple[str, str]]) -> Made:
        return [tasks.in_process.using(conn=conn).enqueue(self._chance.uniform(0, 0.1)).id]

    def _later(self, conn: Conn, _: dict[int, tuple[str, str]]) -> Made:
        return [tasks.quick.using(conn=conn, run_in=self._chance.uniform(0.2, 3)).enqueue().id]

    def _keyed(self, conn: Conn, keys: dict[int, tuple[str, str]]) -> Made:
        key = f"key-{self._chance.randrange(20)}"
        call = tasks.app.using("nap", conn=conn, key=key, run_in=self._chance.choice([0, 0.5]))
        handle = call.enqueue(seconds=self._chance.uniform(0, 0.2))
        keys[handle.id] = ("default", key)
        return [handle.id] if handle.created else []

    def _serial(self, conn: Conn, _: dict[int, tuple[str, str]]) -> Made:
        group = f"group-{self._chance.randrange(10)}"
        return [tasks.nap.using(conn=conn, queue="serial", group=group).enqueue(self._chance.uniform(0, 0.02)).id]

    def _flow(self, conn: Conn, _: dict[int, tuple[str, str]]) -> Made:
        flow = gather(tasks.part.s(n) for n in range(3)).then(tasks.total.s(parents()))
        id = flow.enqueue(conn=conn).id
        return [job for (job,) in conn.execute("select job_id from pgqueue.flow_node where flow_id = %s", [id])]

    _kinds: tuple[Callable[[Any, Conn, dict[int, tuple[str, str]]], Made], ...] = (
        _bulk, _bulk, _bulk, _bulk, _bulk, _bulk, _single, _apart, _later, _keyed, _keyed, _serial, _flow,
    )  # fmt: skip


class Operator(threading.Thread):
    """Cancels jobs that wait or run, and lets some of the ended ones run again, until it is told to stop."""

    def __init__(self, conninfo: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._conninfo = conninfo
        self._chance = random.Random(seed)  # noqa: S311
        self._enough = threading.Event()
        self.cancelled = self.retried = 0
        self.error: BaseException | None = None

    def stop(self) -> None:
        self._enough.set()
        self.join(60)

    def run(self) -> None:
        try:
            while not self._enough.wait(0.2):
                try:
                    with psycopg.connect(
                        self._conninfo, autocommit=True, connect_timeout=5, application_name="chaos operator"
                    ) as conn:
                        while not self._enough.wait(0.2):
                            self._act(conn)
                except psycopg.OperationalError:
                    continue
        except BaseException as error:
            self.error = error

    def _act(self, conn: Conn) -> None:
        act, leaf = ("retry", "job_dead") if self._chance.random() < 0.3 else ("cancel", "job_live")
        # Not of a flow: its children may already have been let go, or stopped. That is tests/race/test_flows.py.
        found = conn.execute(
            f"select id from pgqueue.{leaf} where flow_id is null and id >="
            f" (select min(id) + random() * (max(id) - min(id)) from pgqueue.{leaf}) order by id limit 1"
        ).fetchone()
        if found is None:
            return
        try:
            if act == "retry":
                conn.execute("select pgqueue.retry(%s)", [found[0]])
                self.retried += 1
            else:
                conn.execute("select pgqueue.cancel(%s)", [found[0]])
                self.cancelled += 1
        except psycopg.Error as error:  # it has ended meanwhile, its key is taken, …
            if not (error.sqlstate or "").startswith("PQ"):
                raise
