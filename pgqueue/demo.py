"""`pgqueue demo`: a small load that meets everything a queue meets, and what became of each job.

It has a database of its own (`pgqueue_demo`), made anew at every run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.console import Console
from rich.table import Table

from pgqueue import config, embedded, gather, parents, schema
from pgqueue.demo_app import (
    app,
    charge_card,
    count_stock,
    import_file,
    monthly_report,
    parse_invoice,
    publish,
    resize,
    send_receipt,
)
from pgqueue.errors import PgqueueError
from pgqueue.task import BoundTask

DATABASE = "pgqueue_demo"
QUEUES = ["email", "reports", "billing", "imports", "images"]
PATIENCE = 40  # seconds, in case something is badly wrong
_RIVALS = {"57P01", "42P04", "23505", "3D000"}  # terminated, exists already (twice), exists no longer
_SECRETS = {"password", "sslpassword", "oauth_client_secret"}
_STYLE = {"completed": "green", "dead": "red", "cancelled": "yellow"}


@dataclass
class Demo:
    conn: Connection[Any]
    dsn: str
    stories: dict[int, str] = field(default_factory=dict)

    def enqueue(self, story: str, task: BoundTask[..., Any], *args: Any) -> int:
        with self.conn.transaction():  # where your own writes would be
            job = task.using(conn=self.conn).enqueue(*args)
        self.stories[job.id] = story if job.created else "enqueued twice"
        return job.id

    def enqueue_load(self) -> None:
        for order in (101, 102, 103, 101):
            self.enqueue("an ordinary job", send_receipt.using(key=f"receipt:{order}"), order)
        self.enqueue("low priority", monthly_report.using(priority=-10), "2026-10")
        self.enqueue("high priority", monthly_report.using(priority=50), "2026-11")
        self.enqueue("delayed by 2 s", send_receipt.using(run_in=2), 104)
        self.enqueue("fails twice first", charge_card, 103)
        self.enqueue("always fails", parse_invoice, "cat.jpg")
        app.cancel(self.enqueue("cancelled in time", monthly_report, "1999-12"), "nobody wants that one")
        album = gather(resize.s("cat.jpg", width) for width in (200, 400, 800)).then(publish.s(parents()))
        *parts, last = album.enqueue(conn=self.conn, name="album").jobs.values()
        self.stories |= {part.id: "of a flow" for part in parts} | {last.id: "after those three"}
        try:
            with self.conn.transaction():
                send_receipt.using(conn=self.conn).enqueue(666)
                raise RuntimeError("the business transaction fails")
        except RuntimeError:
            pass  # and its job never existed

    def start_a_recurring_job(self) -> None:
        """Every second, for three seconds: it must be over before the demo is."""
        ((ends_at,),) = self.conn.execute("select clock_timestamp() + interval '3 seconds'").fetchall()
        app.recurring.set("count-stock", "every 1s", count_stock.s(), ends_at=ends_at, catch_up="all")

    def kill_a_worker(self) -> None:
        """kill -9, while it runs a job."""
        job = app.job(self.enqueue("its worker was killed", import_file, 5000))
        with self.worker("imports") as worker:
            self._until(lambda: job.status() == "running")
            worker.kill()

    def work(self) -> None:
        with self.worker(",".join(QUEUES), "--cron") as worker:
            self._until(lambda: self._ticked() and not self._unfinished())
            worker.terminate()

    @contextmanager
    def worker(self, queues: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        """`pgqueue work`, as anybody would start it."""
        command = [sys.executable, "-m", "pgqueue", "work", "-A", "pgqueue.demo_app:app", "--queues", queues]
        process = subprocess.Popen(
            [*command, *flags, "--lease", "2", "--log-level", "critical"],
            env={**os.environ, "PGQUEUE_DATABASE_URL": self.dsn},
            start_new_session=True,
        )
        try:
            yield process
            process.wait(20)
        finally:
            process.kill()
            process.wait()

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _ticked(self) -> bool:
        """The recurring job is over: nothing more will be due."""
        ended = "select bool_and(state = 'ended') from pgqueue.recurring_status"
        return bool(self.conn.execute(ended).fetchone() == (True,))

    def _unfinished(self) -> bool:
        return bool(self.conn.execute("select exists (select 1 from pgqueue.job_live)").fetchone() == (True,))

    def show(self, console: Console) -> bool:
        jobs = self.conn.execute(
            "select id, queue, task, status, attempt, extract(epoch from started_at - enqueued_at)::float8"
            " from pgqueue.job order by id"
        ).fetchall()
        for id, name in self.conn.execute("select job_id, name from pgqueue.recurring_history"):
            self.stories[id] = f"recurring: {name}"
        table = _table("job", "queue", "task", "what is special", "status", "attempts", "last start")
        for id, queue, task, status, attempt, waited in jobs:  # a claim may have begun while its job was committed
            table.add_row(
                str(id), queue, task, self.stories.get(id, ""), f"[{_STYLE.get(status, 'blue')}]{status}[/]",
                str(attempt), "never" if waited is None else f"+{max(waited, 0):.2f} s",
            )  # fmt: skip
        console.print(table)
        history = _table("job", "claim", "worker", "outcome", "waited", "error")
        for id, token, worker, outcome, delay, error in self.conn.execute(
            "select job_id, token, worker_id, outcome, delay_seconds, error from pgqueue.attempt"
            " where job_id in (select job_id from pgqueue.job_attempt) order by job_id, token"
        ):
            waited = "" if delay is None else f"{delay:.2f} s"
            history.add_row(str(id), str(token), str(worker), outcome, waited, error or "")
        console.print("\nEvery claim of the jobs that had trouble:")
        console.print(history)
        return self._ticked() and not self._unfinished()


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 1, 0, 0), header_style="bold underline")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """`make demo | head`: the reader has seen enough, which is no failure."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None


def run(database_url: str | None = None) -> None:
    console = _Console(highlight=False)
    url = _start(console) if database_url is None else config.conninfo(database_url)
    try:
        finished = _run_on(url, console)
    except psycopg.Error as error:
        if error.sqlstate in _RIVALS or (error.sqlstate is None and _answers(url)):
            raise PgqueueError(f"another demo is running, or somebody dropped {DATABASE}: try again") from error
        raise
    if not finished:
        raise SystemExit("the demo did not finish: some jobs are still waiting, see above")
    console.print("\nA job whose transaction rolled back is not in the list: it never existed.\n\nTry next:")
    for line in _try_next(None if database_url is None else url):
        console.print(f"  {line}", soft_wrap=True, markup=False)


def _answers(url: str) -> bool:
    """If the server is there, a connection that was lost or not made is about the demo's own database."""
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def _start(console: Console) -> str:
    server = embedded.EmbeddedPostgres()
    what = "Using the" if server.status().running else "Starting an"
    console.print(f"{what} embedded PostgreSQL {server.binaries.version} …")
    return server.start()


def _run_on(url: str, console: Console) -> bool:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(DATABASE)))
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    dsn = make_conninfo(url, dbname=DATABASE)
    console.print("Migrating …", schema.migrate(dsn).describe())
    with psycopg.connect(dsn, autocommit=True) as conn:
        app.use(dsn)
        demo = Demo(conn, dsn)
        try:
            console.print("Starting a worker, and killing it (-9) while it runs a job …")
            demo.kill_a_worker()
            console.print("Enqueueing some more; another worker does it all …\n")
            demo.enqueue_load()
            demo.start_a_recurring_job()
            demo.work()
            return demo.show(console)
        finally:
            app.close()


def _try_next(url: str | None) -> list[str]:
    """What to type on the server that was used: the one at the URL, or the embedded one."""
    me = "pgqueue" if shutil.which("pgqueue") else os.path.relpath(sys.argv[0])
    if url is None:
        psql = f"{me} pg psql -- -d {DATABASE}"
    else:
        known = {name: part for name, part in conninfo_to_dict(url).items() if name not in _SECRETS}
        psql = f"psql {shlex.quote(make_conninfo('', **{**known, 'dbname': DATABASE}))}"
    lines = [f"{psql} -c 'select * from pgqueue.{view}'" for view in ("dead_job", "queue_status")]
    if url is None:
        lines.append(f"{me} pg stop        stops the server; the data stays")
    if Path("sql/README.md").is_file():  # in a checkout
        lines.append("sql/README.md          how it works, and ten useful queries")
    return lines
