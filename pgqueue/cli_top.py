"""`pgqueue top`: the queues as they are now, refreshed.

q  quit      s  sort by another column      /  only queues that contain what is typed      h  hold still
j, k  choose a queue      p  pause it, or let it go on: asks first
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pgqueue import cli_output as out
from pgqueue import database
from pgqueue.cli_options import DatabaseUrl, OfQueue, connect, connected
from pgqueue.database import Rows
from pgqueue.errors import PgqueueError

SORTS = ("queue", "pending", "rate", "oldest", "dead")
FAILURES = 8
JOBS = 10


@dataclass(frozen=True)
class Seen:
    """What the database said at one moment."""

    at: float  # by time.monotonic()
    queues: Rows
    workers: Rows
    jobs: Rows
    failures: Rows
    done: dict[str, int]  # by queue, for ever
    error: str = ""


@dataclass
class View:
    """What the keys have chosen, and the last two looks."""

    sort: str = "queue"
    filter: str = ""
    typing: bool = False
    held: bool = False
    chosen: str | None = None  # a queue
    asking: str | None = None  # the queue to pause or resume, until y is pressed, or something else
    agreed: str | None = None  # likewise, when y was pressed
    over: bool = False
    now: Seen | None = None
    before: Seen | None = None
    _rates: dict[str, float] = field(default_factory=dict)

    def press(self, key: str) -> None:
        if self.typing:
            if key in ("\r", "\n"):
                self.typing = False
            elif key == "\x1b":
                self.typing, self.filter = False, ""
            elif key in ("\x7f", "\b"):
                self.filter = self.filter[:-1]
            elif key.isprintable():
                self.filter += key
        elif self.asking is not None:
            self.agreed, self.asking = (self.asking if key == "y" else None), None
        elif key in ("q", "\x03", "\x04"):
            self.over = True
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "/":
            self.typing, self.filter = True, ""
        elif key == "h":
            self.held = not self.held
        elif key in "jk":
            self._choose(1 if key == "j" else -1)
        elif key == "p":
            self.asking = self.chosen

    def _choose(self, step: int) -> None:
        names = [row["queue"] for row in self.queues()]
        if self.chosen in names:
            self.chosen = names[min(max(names.index(self.chosen) + step, 0), len(names) - 1)]
        else:
            self.chosen = names[0] if names else None

    def is_paused(self, queue: str) -> bool:
        return any(row["queue"] == queue and row["paused"] for row in (self.now.queues if self.now else []))

    def show(self, seen: Seen) -> None:
        if seen.error and self.now is not None:  # better an old look, said to be old, than none
            seen = Seen(self.now.at, self.now.queues, self.now.workers, self.now.jobs, self.now.failures,
                        self.now.done, seen.error)  # fmt: skip
        else:
            self.before = self.now
        self.now = seen
        if self.before is not None and seen.at > self.before.at:
            self._rates = {
                queue: max(done - self.before.done.get(queue, done), 0) / (seen.at - self.before.at)
                for queue, done in seen.done.items()
            }

    # -- drawing

    def queues(self) -> Rows:
        """Those that the filter lets through, in the chosen order."""
        rows = [row for row in (self.now.queues if self.now else []) if self.filter in row["queue"]]
        keys: dict[str, Any] = {
            "queue": lambda row: row["queue"],
            "pending": lambda row: -row["pending"],
            "rate": lambda row: -self._rates.get(row["queue"], 0),
            "oldest": lambda row: -(row["oldest_waiting_seconds"] or 0),
            "dead": lambda row: -row["dead"],
        }
        return sorted(rows, key=keys[self.sort])

    def draw(self, height: int) -> RenderableType:
        if self.now is None:
            return Text("asking …")
        jobs = [row for row in self.now.jobs if self.filter in row["queue"]]
        failures = [row for row in self.now.failures if self.filter in row["queue"]]
        parts: list[RenderableType] = [self._title()]
        # What is shorter than its share leaves the rest to the queues.
        room = max(height - 9 - min(len(jobs), JOBS) - min(len(failures), FAILURES), 5)
        parts.append(self._queues(room))
        if jobs:
            parts += [Text("\nrunning longest", style="bold"), _table(jobs[:JOBS], {
                "ID": "id", "QUEUE": "queue", "TASK": "task", "TRY": "attempt",
                "RUNS": lambda row: out.duration(row["running_seconds"]), "WORKER": "worker_name"})]  # fmt: skip
        if failures:
            parts += [Text("\nlast failures", style="bold"), _table(failures[:FAILURES], {
                "JOB": "job_id", "QUEUE": "queue", "TASK": "task", "AGO": lambda row: out.age(row["finished_at"]),
                "NEXT": lambda row: "dead" if row["delay_seconds"] is None else out.duration(row["delay_seconds"]),
                "ERROR": lambda row: f"{row['error_type']}: {row['error']}"})]  # fmt: skip
        return Group(*parts)

    def _title(self) -> Text:
        assert self.now is not None  # noqa: S101
        alive = [row for row in self.now.workers if row["state"] in ("alive", "draining")]
        slots = sum(row["info"].get("concurrency") or 0 for row in alive)
        busy = sum(row["running"] for row in alive)
        ahead = f" and {busy - slots} jobs claimed ahead" if busy > slots else ""
        title = Text.assemble(
            ("pgqueue", "bold"), f"  {datetime.now(UTC):%H:%M:%S}Z  {out.plural(len(alive), 'worker')}, "
            f"{min(busy, slots)} of {slots} slots busy{ahead}, {sum(self._rates.values()):,.1f} completed a second",
        )  # fmt: skip
        gone = [row for row in self.now.workers if row["state"] not in ("alive", "draining")]
        if gone:
            title.append(f"  {out.plural(len(gone), 'worker')} silent or lost", style="red")
        if self.held:
            title.append("  held still (h)", style="reverse")
        if self.now.error:
            title.append(f"  {self.now.error}", style="bold red")
        hint = (
            f"filter: {self.filter}_"
            if self.typing
            else f"by {self.sort}" + (f", /{self.filter}" if self.filter else "")
        )
        title.append(f"\nq quit  s sort  / filter  j k choose  p pause  h hold   {hint}\n", style="dim")
        if self.asking is not None:
            verb = "Resume" if self.is_paused(self.asking) else "Pause"
            title.append(f"{verb} {out.said(self.asking)}? y: yes, any other key: no\n", style="reverse")
        return title

    def _queues(self, room: int) -> RenderableType:
        rows = self.queues()
        names = [row["queue"] for row in rows]
        # The chosen one is always in sight.
        first = max(names.index(self.chosen) - room + 1, 0) if self.chosen in names else 0
        shown = _table(rows[first:first + room], {
            " ": lambda row: ">" if row["queue"] == self.chosen else "",
            "QUEUE": "queue", "PENDING": "pending", "RUNNING": "running", "SCHEDULED": "scheduled", "DEAD": "dead",
            "OLDEST": lambda row: out.duration(row["oldest_waiting_seconds"]),
            "PER S": lambda row: f"{self._rates.get(row['queue'], 0):,.1f}", "WORKERS": "workers",
            "NOTE": _note,
        })  # fmt: skip
        rest = len(rows) - room
        return Group(shown, Text(f"… and {rest} more", style="dim")) if rest > 0 else shown


def _note(row: out.Row) -> str:
    if row["paused"]:
        return "paused"
    return "no live worker" if row["pending"] and not row["workers"] else ""


def _table(rows: Rows, columns: out.Columns) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for name in columns:
        made.add_column(name, no_wrap=True, overflow="ellipsis")
    for row in rows:
        values = [row[column] if isinstance(column, str) else column(row) for column in columns.values()]
        style = "red" if values[-1] == "no live worker" else "yellow" if values[-1] == "paused" else ""
        made.add_row(*(Text(out.said(value)) for value in values), style=style)
    return made


def look(conn: psycopg.Connection[Any]) -> Seen:
    done: dict[str, int] = {}
    for row in database.execute(conn, database.totals()):
        done[row["queue"]] = done.get(row["queue"], 0) + row["completed"]
    return Seen(
        at=time.monotonic(),
        queues=database.execute(conn, database.queue_status()),
        workers=database.execute(conn, database.worker_status()),
        jobs=database.execute(conn, database.running_job(most=JOBS)),
        failures=database.execute(conn, database.recent_failure(FAILURES)),
        done=done,
    )


def top(
    queue: OfQueue = None,
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look, and end.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Watch queues, rates, workers and the last failures live.

    Keys: q quit, s sort, / filter, j and k choose a queue, p pause it or let it go on (asks first), h hold still.
    """
    view = View(filter=queue or "")
    console = Console()
    with connected(database_url) as conn:
        view.show(look(conn))
        if once:
            console.print(view.draw(console.height))
            return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("top needs a terminal; --once prints one look")
    with keys() as read, Live(console=console, screen=True, auto_refresh=False) as live:
        _watch(view, read, live, every, database_url)


def _watch(view: View, read: Any, live: Live, every: float, database_url: str | None) -> None:
    conn: psycopg.Connection[Any] | None = None
    look_at = 0.0
    try:
        while not view.over:
            if (time.monotonic() >= look_at and not view.held) or view.agreed is not None:
                began = time.monotonic()
                try:
                    if conn is None:
                        conn = connect(database_url)
                    if view.agreed is not None:
                        _turn(conn, view)
                    view.show(look(conn))
                except (psycopg.Error, PgqueueError) as error:
                    if conn is not None:
                        conn.close()
                    conn = None
                    said = str(error).strip().splitlines()[0]
                    view.show(Seen(began, [], [], [], [], {}, said))
                # A database that answers slowly is not asked more than a fifth of the time.
                look_at = time.monotonic() + max(every, 4 * (time.monotonic() - began))
            live.update(view.draw(live.console.height), refresh=True)
            for key in read(0.25 if view.held else max(min(look_at - time.monotonic(), 0.25), 0.01)):
                view.press(key)
    finally:
        if conn is not None:
            conn.close()


def _turn(conn: psycopg.Connection[Any], view: View) -> None:
    """Pause the queue that was agreed on, or let it go on."""
    queue, view.agreed = view.agreed, None
    if queue is not None:
        if view.is_paused(queue):
            database.execute(conn, database.resume(queue))
        else:
            database.execute(conn, database.pause(queue, reason="pgqueue top"))


@contextmanager
def keys() -> Iterator[Any]:
    """Keys as they are pressed: read(seconds) waits at most so long, and returns those that came."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1024).decode(errors="ignore") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
