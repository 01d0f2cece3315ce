"""What a run has seen, apart from the queue's own word.

Handlers append a line when they start and when they end, to a file of their process: an effect outside of the database,
which no fault in it can take back or hold up. What a transactional task writes, and what each enqueue committed, is in
tables of the schema `chaos`, written in the same transaction. `load` reads all of it, with the queue's tables, into one
`History`, which tests/chaos/checker.py judges.

All times are seconds since 1970 by the clock of the database, which runs on the same machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from psycopg import sql

from pgqueue import Job
from tests.support import Conn

TABLES = """
create schema chaos;
create table chaos.made (job_id bigint primary key);
create table chaos.effect (job_id bigint, token int, pid int);
"""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a process, or the machine, sleeps


class JobRow(NamedTuple):
    id: int
    status: str
    token: int
    attempt: int
    max_attempts: int
    queue: str
    task: str
    key: str | None = None
    group: str | None = None
    recurring: str | None = None
    parent: int | None = None  # the job whose handler enqueued it
    started_at: float | None = None
    run_at: float = 0.0


class Event(NamedTuple):
    """A change of status, as the database recorded it in the transaction that made it."""

    job: int
    at: float
    status: str
    token: int
    attempt: int
    worker: int | None


class Attempt(NamedTuple):
    """A claim that did not complete its job."""

    job: int
    token: int
    outcome: str
    started_at: float
    finished_at: float
    worker: int | None
    delay: float | None = None


class WorkerRow(NamedTuple):
    id: int
    lease: float
    heartbeat_at: float
    lost_at: float | None


class Span(NamedTuple):
    """A handler that ran, by its own word. No end: its process was killed."""

    job: int
    token: int
    pid: int
    start: float
    end: float | None


class Effect(NamedTuple):
    job: int
    token: int


class Firing(NamedTuple):
    name: str
    due_at: float
    outcome: str
    job: int | None


class Edge(NamedTuple):
    parent: int
    child: int


@dataclass
class History:
    jobs: list[JobRow] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    workers: list[WorkerRow] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    made: set[int] = field(default_factory=set)  # committed together with the job
    acked: set[int] = field(default_factory=set)  # the enqueuer was told so
    rolled_back: set[int] = field(default_factory=set)
    keyed: dict[int, tuple[str, str]] = field(default_factory=dict)  # acknowledged under this queue and key
    slept: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # pid: when it was stopped
    queue_pauses: list[tuple[str, float, float]] = field(default_factory=list)
    max_running: dict[str, int] = field(default_factory=dict)  # by queue
    group_max_running: dict[str, int] = field(default_factory=dict)
    every: dict[str, float] = field(default_factory=dict)  # seconds, by recurring job
    transactional: set[str] = field(default_factory=set)  # tasks
    recorded: set[str] = field(default_factory=set)  # tasks whose handlers write lines
    bearing: set[str] = field(default_factory=set)  # tasks whose handlers enqueue one job
    by_reader: int = 0  # events after a reader had read everything, less those before


class Acks:
    """What enqueuers were told; they add to it as soon as they know."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.rolled_back: set[int] = set()
        self.keyed: dict[int, tuple[str, str]] = {}


# --------------------------------------------------------------------------------------- handlers' lines

_fd: dict[int, int] = {}


def _write(kind: str, job: Job) -> None:
    pid = os.getpid()
    if pid not in _fd:
        _fd[pid] = os.open(
            Path(os.environ["PGQUEUE_CHAOS_LEDGER"]) / f"{pid}.lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
    os.write(_fd[pid], f"{kind} {job.id} {job.token} {pid} {time.clock_gettime(_CLOCK):.6f}\n".encode())


@contextmanager
def recorded(job: Job) -> Iterator[None]:
    _write("start", job)
    try:
        yield
    finally:
        _write("end", job)


def since_1970() -> float:
    """What to add to a time of the lines."""
    return time.time() - time.clock_gettime(_CLOCK)


def read_lines(folder: Path) -> list[Span]:
    shift = since_1970()
    started: dict[tuple[int, int, int], list[float]] = {}
    ended: dict[tuple[int, int, int], list[float]] = {}
    for path in folder.glob("*.lines"):
        for line in path.read_text().splitlines():
            kind, job, token, pid, at = line.split()
            (started if kind == "start" else ended).setdefault((int(job), int(token), int(pid)), []).append(
                float(at) + shift
            )
    return [
        Span(*which, start, end)
        for which, starts in started.items()
        for start, end in zip(starts, [*ended.get(which, []), *[None] * len(starts)], strict=False)
    ]


# ------------------------------------------------------------------------------------------- the database


def load(conn: Conn, folder: Path, acks: Acks) -> History:
    def read(kind: Any, query: str) -> list[Any]:
        with conn.cursor() as cursor:
            return [kind(*row) for row in cursor.execute(sql.SQL(query))]

    def epoch(column: str) -> str:
        return f"extract(epoch from {column})::float8"

    return History(
        jobs=read(
            JobRow,
            "select j.id, j.status, j.token, j.attempt, coalesce(j.max_attempts, q.max_attempts, s.max_attempts),"
            " j.queue, j.task, j.key, j.group_key, j.meta ->> 'recurring', (j.payload ->> 'parent')::bigint,"
            f" {epoch('j.started_at')}, {epoch('j.run_at')}"
            " from pgqueue.setting s, pgqueue.job j left join pgqueue.queue q on q.queue = j.queue",
        ),
        # The order of one job's events is that of their times: each waited for the row of the one before.
        events=read(
            Event,
            f"select job_id, {epoch('at')}, status, token, attempt, worker_id from pgqueue.event order by job_id, at",
        ),
        attempts=read(
            Attempt,
            f"select job_id, token, outcome, {epoch('started_at')}, {epoch('finished_at')}, worker_id, delay_seconds"
            " from pgqueue.job_attempt",
        ),
        workers=read(
            WorkerRow, f"select id, lease_seconds, {epoch('heartbeat_at')}, {epoch('lost_at')} from pgqueue.worker"
        ),
        effects=read(Effect, "select job_id, token from chaos.effect"),
        firings=read(Firing, f"select name, {epoch('due_at')}, outcome, job_id from pgqueue.recurring_run"),
        edges=read(Edge, "select parent_id, child_id from pgqueue.flow_edge"),
        made={id for (id,) in conn.execute("select job_id from chaos.made")},
        spans=read_lines(folder),
        acked=acks.acked,
        rolled_back=acks.rolled_back,
        keyed=acks.keyed,
    )
