"""A chaos run: real workers and tickers, a PostgreSQL of its own, everything goes wrong, and a checker judges.

    make chaos ARGS="--seed 7 --jobs 100000 --seconds 300 --kills 200 --pauses 60 --restarts 8"

The plan comes from the seed (plan.py), enqueuers and an operator work meanwhile (enqueuers.py), the handlers write down
what they do (app.py, ledger.py). After the last fault everything must come to its end by itself; then the checker reads
all of it (checker.py). Time decides nothing: on a slow machine a run takes longer, and faults come later.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import database as db
from pgqueue import embedded, schema
from pgqueue.embedded import EmbeddedPostgres
from tests.chaos import app as tasks
from tests.chaos import plan as planning
from tests.chaos.checker import Verdict, judge
from tests.chaos.enqueuers import Enqueuer, Operator
from tests.chaos.ledger import TABLES, Acks, load
from tests.chaos.plan import Action, Size
from tests.support import Conn, value
from tests.worker.proxy import Proxy
from tests.worker.running import Process

LEASE = 3
_PATIENCE = 180.0  # a bound for what never comes


class ChaosError(Exception):
    """The run itself went wrong: no verdict."""


@dataclass
class Report:
    seed: int
    size: Size
    verdict: Verdict
    done: Counter[str] = field(default_factory=Counter)
    not_done: dict[str, str] = field(default_factory=dict)  # what this machine does not allow, and why
    counts: dict[str, Any] = field(default_factory=dict)
    left_alone: list[str] = field(default_factory=list)  # processes that ended though nobody ended them

    @property
    def good(self) -> bool:
        return self.verdict.good and not self.left_alone

    def table(self) -> str:
        lines = [f"seed {self.seed}", "", "| what | how often |", "|---|---|"]
        lines += [f"| {what} | {count:,} |" for what, count in sorted(self.done.items())]
        lines += [f"| {what} | not done: {why} |" for what, why in self.not_done.items()]
        lines += [f"| {what} | {count:,} |" for what, count in self.counts.items()]
        lines += [
            f"| overlaps of a stopped process | {self.verdict.slept_through:,} |",
            f"| overlaps of one cut off from the database | {self.verdict.cut_off:,} |",
            f"| started more than a second after the lease was lost | {self.verdict.late:,} |",
            "",
            *[f"{name}: {len(found)} violations" for name, found in self.verdict.violations.items() if found],
            *[f"    {each}" for found in self.verdict.violations.values() for each in found[:5]],
            *self.left_alone,
            "zero violations of I1 to I16" if self.good else "VIOLATED",
        ]
        return "\n".join(lines)


def descendants(pid: int) -> list[int]:
    """Child processes, theirs too, the nearest first."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found + [below for child in found for below in descendants(child)]


def send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Slot:
    """A place for one worker or ticker: whatever ends there is started again."""

    def __init__(self, run: Run, command: str, number: int, conninfo: str, arguments: list[str]) -> None:
        self._run, self._command, self._number = run, command, number
        self._conninfo, self._arguments = conninfo, arguments
        self._generation = 0
        self.process = self._start()

    def _start(self) -> Process:
        self._generation += 1
        log = self._run.folder / f"{self._command}-{self._number}-{self._generation}.log"
        return Process(
            self._conninfo, log, *self._arguments, app="tests.chaos.app:app", command=self._command,
            PGQUEUE_CHAOS_LEDGER=str(self._run.ledger),
        )  # fmt: skip

    def wait_ready(self) -> bool:
        """False: it has ended before."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if self.process.process.poll() is not None:
                return False
            if self.process.said(" serves ") or self.process.said("ticking"):
                return True
            time.sleep(0.1)
        return True  # the database may be away: what is done to it is done now

    def look_after(self, *, expected: bool = False) -> None:
        code = self.process.process.poll()
        if code is None:
            return
        if not expected:
            self._run.left_alone.append(f"{self._command} {self._number} ended by itself with {code}: see its log")
        self.process = self._start()

    def kill(self) -> None:
        self.process.process.kill()
        self.process.wait()
        self.look_after(expected=True)

    def deploy(self) -> None:
        self.process.send(signal.SIGTERM)
        try:
            code = self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._run.left_alone.append(f"{self._command} {self._number} does not stop")
            self.process.end()
            code = 0
        # 1: it could not reach the database to hand its jobs back, and said so. -15: it had not begun.
        if code not in (0, 1, -signal.SIGTERM):
            self._run.left_alone.append(f"{self._command} {self._number} stopped with {code}")
        self.process = self._start()


class Run:
    def __init__(self, seed: int, size: Size, folder: Path) -> None:
        self.seed, self.size, self.folder = seed, size, folder
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self.done: Counter[str] = Counter()
        self.not_done: dict[str, str] = {}
        self.left_alone: list[str] = []
        self.slept: dict[int, list[tuple[float, float]]] = {}
        self.queue_pauses: list[tuple[str, float, float]] = []
        self.acks = Acks()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []

    # -- the course of it

    def go(self) -> Report:
        with ExitStack() as stack:
            self._server = stack.enter_context(
                embedded.temporary(settings={"max_connections": "200", "max_wal_size": "2GB"})
            )
            self._disk = stack.enter_context(small_disk(self._server))
            self._url = self._make_database()
            schema.migrate(self._url)
            self._admin: Conn = stack.enter_context(psycopg.connect(self._url, autocommit=True))
            self._admin.execute(TABLES)
            self._configure()
            self._proxy = stack.enter_context(Proxy(self._url))
            self._workers = [
                Slot(self, "work", n, self._proxy.conninfo if n == 1 else self._url, [
                    "-q", "default=5,few=2,serial=2,apart", "-c", "10", "--lease", str(LEASE), "--poll", "0.5"])
                for n in range(self.size.workers)
            ]  # fmt: skip
            stack.callback(self._end_all)
            self._tickers = [
                Slot(self, "cron", n, self._proxy.conninfo if n == 1 else self._url, ["--poll", "1"])
                for n in range(self.size.tickers)
            ]
            for slot in (*self._workers, *self._tickers):
                slot.wait_ready()
            return self._measure()

    def _measure(self) -> Report:
        began = time.monotonic()
        share = self.size.jobs // 2
        enqueuers = [
            Enqueuer(url, self.acks, jobs, self.size.seconds, self.seed + n)
            for n, (url, jobs) in enumerate([(self._url, self.size.jobs - share), (self._proxy.conninfo, share)])
        ]
        operator = Operator(self._url, self.seed + 100)
        for thread in (*enqueuers, operator):
            thread.start()
        self._carry_out(began)
        for enqueuer in enqueuers:
            enqueuer.join(_PATIENCE + self.size.jobs / 100)
        operator.stop()
        self._proxy.heal()
        threads: list[Enqueuer | Operator] = [*enqueuers, operator]
        for thread in threads:
            if thread.is_alive() or thread.error is not None:
                raise ChaosError(f"{type(thread).__name__} did not come to its end") from thread.error
        faults_over = time.monotonic()
        self._reconnect()
        for name in tasks.EVERY:
            self._admin.execute("select pgqueue.pause_recurring(%s)", [name])
        self._drain()
        drained = time.monotonic()
        for slot in (*self._workers, *self._tickers):
            slot.deploy()
            slot.process.end()
        by_reader = self._read_everything()
        history = load(self._admin, self.ledger, self.acks)
        history.slept, history.queue_pauses, history.by_reader = self.slept, self.queue_pauses, by_reader
        history.max_running, history.group_max_running = tasks.MAX_RUNNING, tasks.GROUP_MAX_RUNNING
        history.every, history.transactional, history.bearing = tasks.EVERY, tasks.TRANSACTIONAL, tasks.BEARING
        history.recorded = set(tasks.app.tasks)
        verdict = judge(history)
        statuses = Counter(job.status for job in history.jobs)
        outcomes = Counter(attempt.outcome for attempt in history.attempts)
        return Report(
            self.seed, self.size, verdict, self.done, self.not_done,
            {
                "jobs": len(history.jobs),
                **{f"jobs {status}": count for status, count in sorted(statuses.items())},
                "claims": sum(event.status == "running" for event in history.events),
                **{f"attempts {outcome}": count for outcome, count in sorted(outcomes.items())},
                "jobs rolled back": len(self.acks.rolled_back),
                "commits without an answer": sum(enqueuer.unknown for enqueuer in enqueuers),
                "due times": len(history.firings),
                "seconds of faults": round(faults_over - began),
                "seconds until all was done": round(drained - faults_over),
            },
            self.left_alone,
        )  # fmt: skip

    def _carry_out(self, began: float) -> None:
        """Each worker and each ticker has a thread that does to it what the plan says, in order; so has the server."""
        lines: dict[tuple[str, int], list[Action]] = {}
        for action in planning.make(self.seed, self.size, LEASE):
            lines.setdefault(self._whose(action), []).append(action)
        threads = [
            threading.Thread(target=self._carry_out_line, args=(whose, actions, began), daemon=True)
            for whose, actions in lines.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until = began + self.size.seconds
        while time.monotonic() < until:
            self._look_after_all()
            time.sleep(0.2)
        if self._errors:
            raise ChaosError("a fault could not be made") from self._errors[0]

    @staticmethod
    def _whose(action: Action) -> tuple[str, int]:
        if action.what == "kill ticker":
            return "ticker", action.target
        if action.what in (*planning.KILLS, "pause", "pause and kill", "deploy"):
            return "worker", action.target
        return ("network", 0) if action.what in planning.NETWORK else ("server", 0)

    def _carry_out_line(self, whose: tuple[str, int], actions: list[Action], began: float) -> None:
        kind, number = whose
        slots = {"worker": self._workers, "ticker": self._tickers}
        slot = slots[kind][number] if kind in slots else None
        try:
            for action in actions:
                while time.monotonic() < began + action.at:
                    if slot is not None:
                        slot.look_after()
                    time.sleep(0.05)
                if slot is not None:
                    self._do_to(slot, action)
                else:
                    self._do(action)
        except BaseException as error:
            self._errors.append(error)

    def _look_after_all(self) -> None:
        for slot in (*self._workers, *self._tickers):
            slot.look_after()

    # -- faults of processes

    def _do_to(self, slot: Slot, action: Action) -> None:
        slot.look_after()
        if not slot.wait_ready():
            slot.look_after()
            slot.wait_ready()
        pid = slot.process.pid
        match action.what:
            case "kill worker" | "kill ticker":
                slot.kill()
            case "kill family":
                for each in descendants(pid):
                    send(each, signal.SIGKILL)
                slot.kill()
            case "kill heartbeat" | "kill child":
                children = descendants(pid)
                beats = [each for each in children if b"pgqueue.beat" in command_line(each)]
                others = [each for each in children if each not in beats]
                found = beats if action.what == "kill heartbeat" else others
                if not found or not send(found[0], signal.SIGKILL):
                    slot.kill()  # it has none now
                    self._count("kill worker")
                    return
            case "deploy":
                slot.deploy()
            case "pause" | "pause and kill":
                family = [pid, *descendants(pid)]
                since = time.time()
                for each in family:
                    send(each, signal.SIGSTOP)
                time.sleep(action.seconds)
                if action.what == "pause and kill":
                    slot.process.process.kill()
                for each in family:
                    send(each, signal.SIGCONT)
                # It knows of its sleep only once it has run for a moment.
                for each in family:
                    self.slept.setdefault(each, []).append((since, time.time() + 0.5))
                if action.what == "pause and kill":
                    slot.kill()
            case _:
                raise AssertionError(action)
        self._count(action.what)

    def _count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    # -- faults of the server and of the network

    def _do(self, action: Action) -> None:
        match action.what:
            case "restart server":
                self._server.restart("immediate")
            case "terminate connections":
                self._tell(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                    " where application_name ~ '^(pgqueue|chaos)' and pid <> pg_backend_pid()"
                )
            case "drop" | "hang":
                getattr(self._proxy, action.what)()
                time.sleep(action.seconds)
                self._proxy.heal()
            case "delay":
                self._proxy.delay(0.1)
                time.sleep(action.seconds)
                self._proxy.heal()
            case "reset":
                self._proxy.reset()
            case "exhaust connections":
                self._exhaust(action.seconds)
            case "fill disk":
                if isinstance(self._disk, str):
                    self.not_done["fill disk"] = self._disk
                    return
                with self._disk.full():
                    time.sleep(action.seconds)
            case "pause queue":
                self._pause_queue(random.Random(action.at).choice(tasks.QUEUES), action.seconds)  # noqa: S311
            case _:
                raise AssertionError(action)
        self._count(action.what)

    def _exhaust(self, seconds: float) -> None:
        held: list[Conn] = []
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                try:
                    held.append(psycopg.connect(self._url, connect_timeout=5, application_name="greedy"))
                except psycopg.OperationalError:
                    time.sleep(0.02)  # all taken: and so is what becomes free
        finally:
            for conn in held:
                conn.close()

    def _pause_queue(self, queue: str, seconds: float) -> None:
        since = self._tell(f"select pgqueue.pause('{queue}')", "select extract(epoch from clock_timestamp())::float8")
        time.sleep(seconds)
        until = self._tell("select extract(epoch from clock_timestamp())::float8")
        self._tell(f"select pgqueue.resume('{queue}')")
        self.queue_pauses.append((queue, since, until))

    def _tell(self, *statements: LiteralString) -> Any:
        """By a connection of its own, and again if the server is away; what the last statement answers."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                with psycopg.connect(self._url, autocommit=True, connect_timeout=5, application_name="admin") as conn:
                    for statement in statements:
                        answer = conn.execute(statement).fetchone()
                    return answer and answer[0]
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    # -- before and after

    def _make_database(self) -> str:
        if isinstance(self._disk, str):
            return self._server.url()
        with psycopg.connect(self._server.url(), autocommit=True) as conn:
            conn.execute(sql.SQL("create tablespace small location {}").format(str(self._disk.folder)))
            conn.execute("create database chaos tablespace small")
        return make_conninfo(self._server.url(), dbname="chaos")

    def _configure(self) -> None:
        # Jobs here may lose their worker as often as they like: the point is what becomes of them in the end.
        db.execute(self._admin, db.set_defaults({"max_attempts": 1000, "max_crashes": 1000}))
        for queue, limit in tasks.MAX_RUNNING.items():
            db.execute(self._admin, db.set_queue(queue, {"max_running": limit}))
        for queue, limit in tasks.GROUP_MAX_RUNNING.items():
            db.execute(self._admin, db.set_queue(queue, {"group_max_running": limit}))
        self._admin.execute("select pgqueue.set_events(true)")

    def _reconnect(self) -> None:
        self._admin.close()
        self._admin = psycopg.connect(self._url, autocommit=True)

    def _drain(self) -> None:
        """Until no job is live; one who gets stuck is a violation of I15, found by the checker."""
        live, moved_at = -1, time.monotonic()
        while live != 0 and time.monotonic() < moved_at + _PATIENCE:
            self._look_after_all()
            now = int(value(self._admin, "select count(*) from pgqueue.job_live"))
            if now != live:
                live, moved_at = now, time.monotonic()
            time.sleep(0.3)

    def _read_everything(self) -> int:
        """As the role that may only read; how many events that caused."""
        count = "select count(*) from pgqueue.event"
        before = int(value(self._admin, count))
        with psycopg.connect(self._url, autocommit=True) as reader:
            reader.execute("set role pgqueue_reader")
            views = reader.execute(
                "select c.relname from pg_class c where c.relnamespace = 'pgqueue'::regnamespace and c.relkind = 'v'"
                " and has_table_privilege(c.oid, 'select')"
            ).fetchall()
            for (view,) in views:
                reader.execute(sql.SQL("select count(*) from pgqueue.{}").format(sql.Identifier(view)))
        return int(value(self._admin, count)) - before

    def _end_all(self) -> None:
        for slot in (*self._workers, *getattr(self, "_tickers", [])):
            family = descendants(slot.process.pid)
            slot.process.end()
            for each in family:
                send(each, signal.SIGCONT)
        self._admin.close()


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# ------------------------------------------------------------------------------------------ a small disk


class Disk:
    """A file system in memory that can be made as small as what is on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True, capture_output=True)

    @contextmanager
    def full(self) -> Iterator[None]:
        for _ in range(20):
            found = os.statvfs(self.folder)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            with suppress(subprocess.CalledProcessError):  # somebody wrote just now, and it would be too small
                self._resize(str(used))
                break
        try:
            yield
        finally:
            self._resize("90%")


@contextmanager
def small_disk(server: EmbeddedPostgres) -> Iterator[Disk | str]:
    """The reason, where there can be none."""
    if os.geteuid() != 0 or sys.platform != "linux":
        yield "a small file system needs root on Linux"
        return
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-disk-"))
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=90%", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode != 0:
            yield f"no file system may be mounted here: {mounted.stderr.strip()}"
            return
        try:
            owner = (server.data_dir / "data").stat()
            os.chown(folder, owner.st_uid, owner.st_gid)
            folder.chmod(0o700)
            yield Disk(folder)
        finally:
            server.stop("immediate")
            subprocess.run(["umount", str(folder)], check=False, capture_output=True)
    finally:
        with suppress(OSError):
            folder.rmdir()


# --------------------------------------------------------------------------------------------- by command


def run(seed: int, size: Size, folder: Path) -> Report:
    return Run(seed, size, folder).go()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos ARGS=…")
    parser.add_argument("--seed", type=int, default=None, help="the plan; a new one if not given")
    for each in fields(Size):
        kind: Callable[[str], Any] = float if each.type == "float" else int
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, default=each.default)
    parser.add_argument("--keep", action="store_true", help="keep logs and ledger, and say where")
    given = vars(parser.parse_args())
    # The kill of whoever ends a run, in the background too, must not leave its server and its workers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seed = given.pop("seed")
    keep = given.pop("keep")
    if seed is None:
        seed = secrets.randbelow(1_000_000)
    size = Size(**given)
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-chaos-"))
    print(f"chaos with seed {seed}: {size}", flush=True)
    kept = True
    try:
        report = run(seed, size, folder)
        print(report.table())
        kept = keep or not report.good
        return 0 if report.good else 1
    finally:
        if kept:
            print(f"logs and ledger are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
