"""The only place with SQL calls: one function here for each function in sql/functions that Python uses, same name.

A function returns a `Call`: the statement, its parameters and how to read the answer. It is run by `execute` on a
psycopg connection, by `aexecute` on an async one, inside whatever transaction that connection is in:

    job = execute(conn, enqueue("email", "send_receipt", {"order_id": 7}, key="receipt:7"))
    jobs = await aexecute(aconn, claim(worker_id, ["email"], 10))

Statements use $1 parameters, so that they are sent as they stand, without client-side rewriting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import tuple_row

from pgqueue.errors import InvalidArgument, JobNotFound, PayloadError, from_postgres
from pgqueue.payload import RESULT_MAX_BYTES, clean_text, decode, encode

T = TypeVar("T")
Json = dict[str, Any]
OnConflict = Literal["skip", "raise", "replace"]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A statement that is ready to run, and how to read its answer."""

    query: str
    params: Sequence[Any]
    read: Callable[[list[Row]], T]


class _JsonLoader(Loader):
    def load(self, data: Buffer) -> Any:
        return decode(data)


def execute(conn: Connection[Any], call: Call[T]) -> T:
    try:
        with RawCursor(conn, row_factory=tuple_row) as cursor:  # the connection's may be dict_row
            cursor.adapters.register_loader("jsonb", _JsonLoader)
            cursor.execute(call.query, call.params)
            return call.read(cursor.fetchall())
    except psycopg.Error as error:
        raise from_postgres(error) from error.__cause__


async def aexecute(conn: AsyncConnection[Any], call: Call[T]) -> T:
    try:
        async with AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
            cursor.adapters.register_loader("jsonb", _JsonLoader)
            await cursor.execute(call.query, call.params)
            return call.read(await cursor.fetchall())
    except psycopg.Error as error:
        raise from_postgres(error) from error.__cause__


# --------------------------------------------------------------------------------------------- answers


class Enqueued(NamedTuple):
    """`created` is false when the key was taken: `id` is then the job that has it."""

    id: int
    created: bool


class ClaimedJob(NamedTuple):
    id: int
    token: int
    queue: str
    task: str
    payload: Json  # or payload.Undecodable
    attempt: int
    max_attempts: int  # in force: the job's, else the queue's, else the default
    timeout_seconds: int | None  # likewise
    priority: int
    crashes: int
    rank_at: datetime
    enqueued_at: datetime
    meta: Json | None
    group_key: str | None = None


class Claimed(NamedTuple):
    jobs: list[ClaimedJob]
    refused: list[int]
    ask_in: float | None = None  # jobs wait that limits let nobody start now: ask again after so many seconds
    freed: bool = False  # what was completed has let others of its flow run: ask at once


class Failed(NamedTuple):
    """`status` is scheduled, pending, dead or cancelled; None when the lease was gone."""

    id: int
    status: str | None
    delay_seconds: float | None


class JobInfo(NamedTuple):
    """How a job is doing."""

    id: int
    queue: str
    task: str
    status: str
    attempt: int
    max_attempts: int
    result: Any
    progress: Any
    error_type: str | None
    error: str | None
    key: str | None
    tags: list[str] | None
    enqueued_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class EnqueuedFlow(NamedTuple):
    """Ids and names of its jobs, in the order in which they were given."""

    id: int
    job_ids: list[int]
    names: list[str]


class FlowInfo(NamedTuple):
    """How a flow is doing; `status` is as in the view flow_status."""

    id: int
    name: str | None
    status: str
    total: int
    blocked: int  # wait for their parents
    completed: int
    dead: int
    cancelled: int
    created_at: datetime
    ended_at: datetime | None
    cancel_reason: str | None
    trouble: int | None  # the job because of which it cannot go on, or has failed

    @property
    def progress(self) -> float:
        """The share of its jobs that have ended."""
        return (self.completed + self.dead + self.cancelled) / self.total


class FlowJob(NamedTuple):
    """A job of a flow. What is None of a finished one has been pruned with it."""

    job_id: int
    name: str
    queue: str | None
    task: str | None
    status: str
    attempt: int | None
    started_at: datetime | None
    finished_at: datetime | None
    error_type: str | None
    error: str | None
    parents: list[int]


class Parent(NamedTuple):
    """How a job ended that another one runs after: outcome is completed, dead or cancelled."""

    name: str
    id: int
    task: str | None
    outcome: str | None
    result: Any
    error_type: str | None
    error: str | None


class CancelledFlow(NamedTuple):
    cancelled: int
    asked: int


class Beat(NamedTuple):
    """`alive` is false when the worker was declared lost: it must abandon its jobs and register again."""

    alive: bool
    cancel_ids: list[int]


class Swept(NamedTuple):
    lost_workers: int
    retried: int
    died: int
    cancelled: int
    expired: int
    promoted: int
    alarmed: tuple[str, ...] = ()  # tasks that are newly found to fail everywhere
    drain: bool = False  # an operator wants the worker that asks to end


class Pruned(NamedTuple):
    dropped: int
    deleted: int


class RetriedMany(NamedTuple):
    retried: int
    skipped: int
    last_id: int | None


class Purged(NamedTuple):
    purged: int
    last_id: int | None


class DueRecurring(NamedTuple):
    """A definition that a ticker should look at: see sql/functions/due_recurring.sql."""

    name: str
    version: int
    task: str
    source: str | None
    cron: str | None
    every: timedelta | None
    timezone: str
    starts_at: datetime | None
    ends_at: datetime | None
    after: datetime
    take: int
    broken: bool
    task_unknown: bool


class DueNow(NamedTuple):
    """`now` and `wake_at` are of the database's clock; no `wake_at`: nothing will be due."""

    due: list[DueRecurring]
    now: datetime
    wake_at: datetime | None


class Ticked(NamedTuple):
    """`outcome` is enqueued, overlapped or expired; only the first has a job."""

    due_at: datetime
    outcome: str
    job_id: int | None


class Reconciled(NamedTuple):
    """`change` is added, changed, restored, retired, conflict or refused."""

    name: str
    change: str
    reason: str | None


class RecurringStatus(NamedTuple):
    """A row of the view recurring_status."""

    name: str
    state: str
    schedule: str
    timezone: str
    queue: str
    task: str
    next_run_at: datetime | None
    last_due_at: datetime | None
    last_job_id: int | None
    last_status: str | None
    last_finished_at: datetime | None
    last_error: str | None
    missed_at: datetime | None
    broken_at: datetime | None
    broken_reason: str | None
    paused_until: datetime | None
    paused_reason: str | None
    owner: str
    source: str | None
    edited_at: datetime | None
    catch_up: str
    overlap: str
    jitter: timedelta
    starts_at: datetime | None
    ends_at: datetime | None
    changed_at: datetime


class RecurringDetail(NamedTuple):
    """What the view recurring_detail has beside recurring_status."""

    cron: str | None
    every: timedelta | None
    payload: Json
    catch_up_max: int
    priority: int
    max_attempts: int | None
    retry: Json | None
    timeout_seconds: int | None
    tags: list[str] | None
    meta: Json | None
    expires_in: timedelta | None
    retain_for: timedelta | None
    declared: Json | None
    group_key: str | None


class RecurringRun(NamedTuple):
    """A row of the view recurring_history."""

    due_at: datetime
    fired_at: datetime
    outcome: str
    job_id: int | None
    status: str | None
    finished_at: datetime | None
    error: str | None


Statuses = Call[list[RecurringStatus]]
Details = Call[list[RecurringDetail]]
Runs = Call[list[RecurringRun]]


class CancelledMany(NamedTuple):
    """`asked` were running: their workers have been told."""

    cancelled: int
    asked: int
    last_id: int | None


class Failure(NamedTuple):
    """What a worker reports of an attempt that raised."""

    id: int
    token: int
    error: str
    error_type: str | None = None
    traceback: str | None = None
    retry_in: float | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which finished jobs a bulk command means; every given condition must hold."""

    queue: str | None = None
    task: str | None = None
    error_type: str | None = None
    error: str | None = None
    tag: str | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    fingerprint: str | None = None
    group_key: str | None = None


# -------------------------------------------------------------------------------------------- enqueue


def enqueue(
    queue: str,
    task: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    on_conflict: OnConflict = "skip",
    key_ttl: timedelta | None = None,
    priority: int = 0,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    expires_at: datetime | None = None,
    expires_in: timedelta | None = None,
    max_attempts: int | None = None,
    retry: Mapping[str, Any] | None = None,
    timeout_seconds: int | None = None,
    tags: Sequence[str] | None = None,
    meta: Mapping[str, Any] | None = None,
    retain_for: timedelta | None = None,
    group: str | None = None,
) -> Call[Enqueued]:
    # Only what is said: to send all eighteen, mostly nulls, took a third of the time of a single job.
    run_at, expires_at = _aware(run_at, "run_at"), _aware(expires_at, "expires_at")
    said = [
        ("key", "${}", _text(key, "key"), None),
        ("on_conflict", "${}", _text(on_conflict, "on_conflict"), "skip"),
        ("key_ttl", "${}::interval", _span(key_ttl, "key_ttl"), None),
        ("priority", "${}::int", _int(priority, "priority"), 0),
        ("run_at", "${}::timestamptz", run_at, None),
        # From the database's clock, not from ours.
        ("run_at", "clock_timestamp() + ${}::interval", None if run_at else _span(run_in, "run_in"), None),
        ("expires_at", "${}::timestamptz", expires_at, None),
        (
            "expires_at",
            "clock_timestamp() + ${}::interval",
            None if expires_at else _span(expires_in, "expires_in"),
            None,
        ),
        ("max_attempts", "${}::int", _int(max_attempts, "max_attempts"), None),
        ("retry", "${}::jsonb", _json(retry), None),
        ("timeout_seconds", "${}::int", _int(timeout_seconds, "timeout_seconds"), None),
        ("tags", "${}::text[]", _texts(tags, "tags"), None),
        ("meta", "${}::jsonb", _json(meta), None),
        ("retain_for", "${}::interval", _span(retain_for, "retain_for"), None),
        ("group_key", "${}", _text(group, "group"), None),
    ]
    params: list[Any] = [_text(queue, "queue"), _text(task, "task"), encode({} if payload is None else payload)]
    query = "select id, created from pgqueue.enqueue($1, $2, $3::jsonb"
    for name, placeholder, value, default in said:
        if value != default:
            params.append(value)
            query += f", {name} => {placeholder.format(len(params))}"
    return Call(query + ")", params, lambda rows: Enqueued(*rows[0]))


def enqueue_many(
    queue: str,
    task: str,
    payloads: Sequence[Mapping[str, Any]],
    *,
    keys: Sequence[str | None] | None = None,
    on_conflict: OnConflict = "skip",
    key_ttl: timedelta | None = None,
    priorities: Sequence[int] | None = None,
    run_ats: Sequence[datetime | None] | None = None,
    groups: Sequence[str | None] | None = None,
    priority: int = 0,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    expires_at: datetime | None = None,
    expires_in: timedelta | None = None,
    max_attempts: int | None = None,
    retry: Mapping[str, Any] | None = None,
    timeout_seconds: int | None = None,
    tags: Sequence[str] | None = None,
    meta: Mapping[str, Any] | None = None,
    retain_for: timedelta | None = None,
    group: str | None = None,
) -> Call[list[Enqueued]]:
    params = [
        _text(queue, "queue"), _text(task, "task"), _texts_of_json([encode(payload) for payload in payloads]),
        _texts(keys, "keys"), _text(on_conflict, "on_conflict"), _span(key_ttl, "key_ttl"),
        None if priorities is None else [_int(priority, "priorities") for priority in priorities],
        None if run_ats is None else [_aware(moment, "run_ats") for moment in run_ats],
        _int(priority, "priority"), _aware(run_at, "run_at"), _aware(expires_at, "expires_at"),
        _int(max_attempts, "max_attempts"), _json(retry), _int(timeout_seconds, "timeout_seconds"),
        _texts(tags, "tags"), _json(meta), _span(retain_for, "retain_for"),
        _span(run_in, "run_in"), _span(expires_in, "expires_in"), _texts(groups, "groups"), _text(group, "group"),
    ]  # fmt: skip
    return Call(
        "select id, created from pgqueue.enqueue_many($1, $2, $3::text::jsonb[], $4::text[], $5, $6::interval,"
        " $7::int[], $8::timestamptz[], $9::int, coalesce($10::timestamptz, clock_timestamp() + $18::interval),"
        " coalesce($11::timestamptz, clock_timestamp() + $19::interval), $12::int, $13::jsonb, $14::int,"
        " $15::text[], $16::jsonb, $17::interval, $20::text[], $21)",
        params,
        lambda rows: [Enqueued(*row) for row in rows],
    )


def look_up(id: int) -> Call[JobInfo]:
    def read(rows: list[Row]) -> JobInfo:
        if not rows:
            raise JobNotFound(f"there is no job {id}, or it has been pruned")
        return JobInfo(id, *rows[0])

    return Call(f"select {', '.join(JobInfo._fields[1:])} from pgqueue.look_up($1::bigint)", [_id(id)], read)


def describe_job(
    queue: str,
    task: str,
    payload: Mapping[str, Any],
    *,
    key_ttl: timedelta | None = None,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    expires_at: datetime | None = None,
    expires_in: timedelta | None = None,
    retain_for: timedelta | None = None,
    group: str | None = None,
    **others: Any,
) -> Json:
    """A job of a flow: what `enqueue` takes, as JSON."""
    described: Json = {"queue": queue, "task": task, **others}
    if payload:
        described["payload"] = payload
    if group is not None:
        described["group_key"] = group
    for name, moment in (("run_at", run_at), ("expires_at", expires_at)):
        if (aware := _aware(moment, name)) is not None:
            described[name] = aware.isoformat()
    for name, span in (
        ("key_ttl", key_ttl),
        ("run_in", run_in),
        ("expires_in", expires_in),
        ("retain_for", retain_for),
    ):
        if _span(span, name) is not None:
            described[name] = f"{span.total_seconds():.6f} s"  # type: ignore[union-attr]
    return described


def enqueue_flow(graph: Mapping[str, Any]) -> Call[EnqueuedFlow]:
    """`graph` is JSON, as in sql/functions/enqueue_flow.sql."""
    return Call(
        "select id, job_ids, names from pgqueue.enqueue_flow($1::jsonb)",
        [_json(graph)],
        lambda rows: EnqueuedFlow(*rows[0]),
    )


def look_up_flow(id: int) -> Call[FlowInfo]:
    def read(rows: list[Row]) -> FlowInfo:
        if not rows:
            raise JobNotFound(f"there is no flow {id}, or it has been pruned")
        return FlowInfo(id, *rows[0])

    return Call(f"select {', '.join(FlowInfo._fields[1:])} from pgqueue.look_up_flow($1::bigint)", [_id(id)], read)


# --------------------------------------------------------------------------------------------- workers


def register_worker(
    name: str, queues: Sequence[str], lease_seconds: int = 30, info: Mapping[str, Any] | None = None
) -> Call[int]:
    return Call(
        "select pgqueue.register_worker($1, $2::text[], $3::int, $4::jsonb)",
        [clean_text(name, 200), _texts(queues, "queues"), lease_seconds, _json(info or {})],
        _value,
    )


def heartbeat(worker_id: int) -> Call[Beat]:
    return Call(
        "select alive, cancel_ids from pgqueue.heartbeat($1::bigint)",
        [worker_id],
        lambda rows: Beat(*rows[0]),
    )


def drain_requested(worker_id: int) -> Call[bool]:
    return Call("select pgqueue.drain_requested($1::bigint)", [worker_id], _value)


def retire_worker(worker_id: int) -> Call[int]:
    return Call("select pgqueue.retire_worker($1::bigint)", [worker_id], _value)


_CLAIMED = ", ".join(ClaimedJob._fields)


def claim(worker_id: int, queues: Sequence[str], limit: int) -> Call[list[ClaimedJob]]:
    return Call(
        f"select {_CLAIMED} from pgqueue.claim($1::bigint, $2::text[], $3::int)",
        [worker_id, _texts(queues, "queues"), limit],
        lambda rows: [ClaimedJob(*row) for row in rows if row[0] is not None],
    )


def complete(
    worker_id: int, leases: Sequence[tuple[int, int]], results: Sequence[Any] | None = None
) -> Call[list[int]]:
    """`leases` are (id, token); the answer is the ids that were refused."""
    ids, tokens = _split(leases)
    return Call(
        "select pgqueue.complete($1::bigint, $2::text::bigint[], $3::text::int[], $4::text::jsonb[])",
        [worker_id, ids, tokens, _results(results)],
        _value,
    )


def complete_and_claim(
    worker_id: int,
    leases: Sequence[tuple[int, int]],
    results: Sequence[Any] | None,
    queues: Sequence[str],
    limit: int,
) -> Call[Claimed]:
    ids, tokens = _split(leases)

    def read(rows: list[Row]) -> Claimed:
        # Refused ids come as rows without a token, queues that let nothing start now as rows with a queue and times
        # only, the news that children were released as a row with a task only.
        jobs = [ClaimedJob._make(row) for row in rows if row[1] is not None]
        if len(jobs) == len(rows):
            return Claimed(jobs, [])
        others = [ClaimedJob._make(row) for row in rows if row[1] is None]
        waits = [(job.rank_at - job.enqueued_at).total_seconds() for job in others if job.queue is not None]
        refused = [job.id for job in others if job.id is not None]
        return Claimed(
            jobs, refused, max(min(waits), 0) if waits else None, any(job.task is not None for job in others)
        )

    return Call(
        f"select {_CLAIMED} from pgqueue.complete_and_claim($1::bigint, $2::text::bigint[], $3::text::int[],"
        " $4::text::jsonb[], $5::text[], $6::int)",
        [worker_id, ids, tokens, _results(results), list(queues), limit],
        read,
    )


def fail(worker_id: int, failures: Sequence[Failure]) -> Call[list[Failed]]:
    return Call(
        "select id, status, delay_seconds from pgqueue.fail($1::bigint, $2::text::bigint[], $3::text::int[],"
        " $4::text[], $5::text[], $6::text[], $7::float8[], $8::bool[])",
        [
            worker_id,
            *_split([(f.id, f.token) for f in failures]),
            [clean_text(f.error) for f in failures],
            [None if f.error_type is None else clean_text(f.error_type) for f in failures],
            [None if f.traceback is None else clean_text(f.traceback) for f in failures],
            [f.retry_in for f in failures],
            [f.fatal for f in failures],
        ],
        lambda rows: [Failed(*row) for row in rows],
    )


def release(worker_id: int, leases: Sequence[tuple[int, int]]) -> Call[list[int]]:
    ids, tokens = _split(leases)
    return Call(
        "select pgqueue.release($1::bigint, $2::text::bigint[], $3::text::int[])", [worker_id, ids, tokens], _value
    )


def release_unknown(worker_id: int, known: Sequence[int]) -> Call[int]:
    return Call("select pgqueue.release_unknown($1::bigint, $2::text::bigint[])", [worker_id, _ints(known)], _value)


def snooze(worker_id: int, leases: Sequence[tuple[int, int]], delays: Sequence[float]) -> Call[list[int]]:
    ids, tokens = _split(leases)
    return Call(
        "select pgqueue.snooze($1::bigint, $2::text::bigint[], $3::text::int[], $4::float8[])",
        [worker_id, ids, tokens, [float(delay) for delay in delays]],
        _value,
    )


def throttle(worker_id: int, leases: Sequence[tuple[int, int]], delays: Sequence[float]) -> Call[list[int]]:
    ids, tokens = _split(leases)
    return Call(
        "select pgqueue.throttle($1::bigint, $2::text::bigint[], $3::text::int[], $4::float8[])",
        [worker_id, ids, tokens, [float(delay) for delay in delays]],
        _value,
    )


def cancel_claimed(
    worker_id: int, leases: Sequence[tuple[int, int]], reasons: Sequence[str | None] | None = None
) -> Call[list[int]]:
    ids, tokens = _split(leases)
    return Call(
        "select pgqueue.cancel_claimed($1::bigint, $2::text::bigint[], $3::text::int[], $4::text[])",
        [worker_id, ids, tokens, reasons and [None if r is None else clean_text(r) for r in reasons]],
        _value,
    )


def progress(worker_id: int, id: int, token: int, value: Any) -> Call[bool]:
    return Call(
        "select pgqueue.progress($1::bigint, $2::bigint, $3::int, $4::jsonb)",
        [worker_id, id, token, encode_value(value)],
        _value,
    )


def save_step(worker_id: int, id: int, token: int, name: str, result: Any) -> Call[bool]:
    return Call(
        "select pgqueue.save_step($1::bigint, $2::bigint, $3::int, $4, $5::jsonb)",
        [worker_id, id, token, _text(name, "name"), encode_value(result)],
        _value,
    )


def load_steps(id: int) -> Call[dict[str, Any]]:
    return Call("select name, result from pgqueue.load_steps($1::bigint)", [id], lambda rows: dict(rows))


def load_parents(id: int) -> Call[list[Parent]]:
    return Call(
        f"select {', '.join(Parent._fields)} from pgqueue.load_parents($1::bigint)",
        [id],
        lambda rows: [Parent(*row) for row in rows],
    )


def extend_flow(
    worker_id: int, id: int, token: int, jobs: Sequence[Mapping[str, Any]], hold: bool = False
) -> Call[list[int] | None]:
    """None: refused, the lease is gone."""
    return Call(
        "select pgqueue.extend_flow($1::bigint, $2::bigint, $3::int, $4::jsonb -> 'jobs', $5::bool)",
        [worker_id, id, token, _json({"jobs": jobs}), hold],
        _value,
    )


def log(worker_id: int, id: int, token: int, lines: Sequence[tuple[datetime, str, str]]) -> Call[bool]:
    """`lines` are (time, level, message)."""
    return Call(
        "select pgqueue.log($1::bigint, $2::bigint, $3::int, $4::timestamptz[], $5::text[], $6::text[])",
        [
            worker_id,
            id,
            token,
            [line[0] for line in lines],
            [line[1] for line in lines],
            [clean_text(line[2], 10_000) for line in lines],
        ],
        _value,
    )


# ----------------------------------------------------------------------------------------- maintenance


def sweep(limit: int = 1000, worker_id: int | None = None) -> Call[Swept]:
    """With `worker_id` it asks `drain_requested`, too: an idle worker should ask as seldom as it can."""
    drain = "false" if worker_id is None else "pgqueue.drain_requested($2::bigint)"
    return Call(
        f"select {', '.join(Swept._fields[:-1])}, {drain} from pgqueue.sweep($1::int)",
        [limit] if worker_id is None else [limit, worker_id],
        lambda rows: Swept._make((*rows[0][:6], tuple(rows[0][6] or ()), rows[0][7])),
    )


def sweep_limits() -> Call[Sequence[str]]:
    """The answer is the tasks that are newly found to fail everywhere."""
    return Call("select pgqueue.sweep_limits()", [], _value)


def promote(queue: str, limit: int = 1000) -> Call[int]:
    return Call("select pgqueue.promote($1, $2::int)", [queue, limit], _value)


def refresh_hints(queues: Sequence[str] | None = None) -> Call[int]:
    return Call("select pgqueue.refresh_hints($1::text[])", [_texts(queues, "queues")], _value)


def ensure_partitions() -> Call[int]:
    return Call("select pgqueue.ensure_partitions()", [], _value)


def roll_up() -> Call[int]:
    return Call("select pgqueue.roll_up()", [], _value)


def prune(limit: int = 10_000) -> Call[Pruned]:
    return Call("select dropped, deleted from pgqueue.prune($1::int)", [limit], lambda rows: Pruned(*rows[0]))


# ------------------------------------------------------------------------------------------- tickers


def due_recurring(limit: int = 200) -> Call[DueNow]:
    def read(rows: list[Row]) -> DueNow:
        width = len(DueRecurring._fields)
        (last,) = (row for row in rows if row[0] is None)
        return DueNow([DueRecurring._make(row[:width]) for row in rows if row[0] is not None], *last[width:])

    columns = ", ".join((*DueRecurring._fields, *DueNow._fields[1:]))
    return Call(f"select {columns} from pgqueue.due_recurring($1::int)", [limit], read)


def tick(name: str, version: int, due: Sequence[datetime], next_at: datetime | None) -> Call[list[Ticked] | None]:
    """None: the definition is another one by now, or somebody else has it."""
    return Call(
        "select due_at, outcome, job_id from pgqueue.tick($1, $2::int, $3::timestamptz[], $4::timestamptz)",
        [name, version, list(due), next_at],
        lambda rows: [Ticked(*row) for row in rows[:-1]] if rows else None,  # the last one is about the next
    )


def mark_recurring(name: str, version: int, reason: str) -> Call[bool]:
    return Call("select pgqueue.mark_recurring($1, $2::int, $3)", [name, version, clean_text(reason, 1000)], _value)


def reconcile_recurring(source: str, definitions: Mapping[str, Mapping[str, Any]]) -> Call[list[Reconciled]]:
    return Call(
        "select name, change, reason from pgqueue.reconcile_recurring($1, $2::jsonb)",
        [_text(source, "source"), _json(definitions)],
        lambda rows: [Reconciled(*row) for row in rows],
    )


# ------------------------------------------------------------------------------------------- operators


def cancel(id: int, reason: str | None = None) -> Call[str]:
    return Call(
        "select pgqueue.cancel($1::bigint, $2)", [_id(id), None if reason is None else clean_text(reason)], _value
    )


def cancel_flow(id: int, reason: str | None = None) -> Call[CancelledFlow]:
    return Call(
        "select cancelled, asked from pgqueue.cancel_flow($1::bigint, $2)",
        [_id(id), None if reason is None else clean_text(reason)],
        lambda rows: CancelledFlow(*rows[0]),
    )


def flow_status(status: str | None = None, before: int | None = None, most: int = 50) -> Call[Rows]:
    return _seen(
        "flow_status",
        " where ($1::text is null or status = $1) and ($2::bigint is null or id < $2) order by id desc limit $3",
        [status, before, most],
    )


def list_flow(id: int) -> Call[list[FlowJob]]:
    return Call(
        f"select {', '.join(FlowJob._fields)} from pgqueue.list_flow($1::bigint)",
        [_id(id)],
        lambda rows: [FlowJob(*row) for row in rows],
    )


def retry(
    id: int,
    *,
    payload: Mapping[str, Any] | None = None,
    max_attempts: int | None = None,
    run_at: datetime | None = None,
) -> Call[str]:
    return Call(
        "select pgqueue.retry($1::bigint, $2::jsonb, $3::int, $4::timestamptz)",
        [
            _id(id),
            None if payload is None else encode(payload),
            _int(max_attempts, "max_attempts"),
            _aware(run_at, "run_at"),
        ],
        _value,
    )


def retry_many(
    where: Filter,
    *,
    status: Literal["dead", "cancelled"] = "dead",
    spread: timedelta = timedelta(0),
    after_id: int = 0,
    batch: int = 1000,
) -> Call[RetriedMany]:
    """One batch; repeat with `after_id=last_id` until `last_id` is None."""
    return Call(
        "select retried, skipped, last_id from pgqueue.retry_many(queue => $1, task => $2, error_type => $3,"
        " error => $4, tag => $5, finished_after => $6::timestamptz, finished_before => $7::timestamptz, status => $8,"
        " spread => $9::interval, after_id => $10::bigint, batch => $11::int, fingerprint => $12, group_key => $13)",
        [
            *_filter(where),
            _text(status, "status"),
            _span(spread, "spread"),
            _id(after_id, "after_id"),
            _int(batch, "batch"),
            _text(where.fingerprint, "fingerprint"),
            _text(where.group_key, "group_key"),
        ],
        lambda rows: RetriedMany(*rows[0]),
    )


def purge(
    where: Filter, *, status: Literal["completed", "cancelled", "dead"], after_id: int = 0, batch: int = 1000
) -> Call[Purged]:
    """One batch; repeat with `after_id=last_id` until `last_id` is None."""
    return Call(
        "select purged, last_id from pgqueue.purge(queue => $1, task => $2, error_type => $3, error => $4, tag => $5,"
        " finished_after => $6::timestamptz, finished_before => $7::timestamptz, status => $8,"
        " after_id => $9::bigint, batch => $10::int, fingerprint => $11, group_key => $12)",
        [
            *_filter(where),
            _text(status, "status"),
            _id(after_id, "after_id"),
            _int(batch, "batch"),
            _text(where.fingerprint, "fingerprint"),
            _text(where.group_key, "group_key"),
        ],
        lambda rows: Purged(*rows[0]),
    )


def pause(queue: str, *, until: datetime | None = None, reason: str | None = None) -> Call[None]:
    return Call(
        "select pgqueue.pause($1, $2::timestamptz, $3)",
        [_text(queue, "queue"), _aware(until, "until"), None if reason is None else clean_text(reason)],
        _nothing,
    )


def resume(queue: str) -> Call[bool]:
    return Call("select pgqueue.resume($1)", [_text(queue, "queue")], _value)


def delete_queue(queue: str) -> Call[bool]:
    return Call("select pgqueue.delete_queue($1)", [_text(queue, "queue")], _value)


def pause_group(queue: str, group: str, *, until: datetime | None = None, reason: str | None = None) -> Call[None]:
    return Call(
        "select pgqueue.pause_group($1, $2, $3::timestamptz, $4)",
        [
            _text(queue, "queue"),
            _text(group, "group"),
            _aware(until, "until"),
            None if reason is None else clean_text(reason),
        ],
        _nothing,
    )


def resume_group(queue: str, group: str) -> Call[bool]:
    return Call("select pgqueue.resume_group($1, $2)", [_text(queue, "queue"), _text(group, "group")], _value)


def pause_task(task: str, *, until: datetime | None = None, reason: str | None = None) -> Call[None]:
    return Call(
        "select pgqueue.pause_task($1, $2::timestamptz, $3)",
        [_text(task, "task"), _aware(until, "until"), None if reason is None else clean_text(reason)],
        _nothing,
    )


def resume_task(task: str) -> Call[bool]:
    return Call("select pgqueue.resume_task($1)", [_text(task, "task")], _value)


def set_task(task: str, settings: Mapping[str, Any]) -> Call[None]:
    return Call("select pgqueue.set_task($1, $2::jsonb)", [_text(task, "task"), _json(settings)], _nothing)


def force_circuit(task: str, state: Literal["open", "closed"], reason: str | None = None) -> Call[None]:
    return Call(
        "select pgqueue.force_circuit($1, $2, $3)",
        [_text(task, "task"), state, None if reason is None else clean_text(reason)],
        _nothing,
    )


def cancel_many(
    where: Mapping[str, Any], *, reason: str | None = None, after_id: int = 0, batch: int = 1000
) -> Call[CancelledMany]:
    """One batch of live jobs; repeat with `after_id=last_id` until `last_id` is None. For `where` see job_filter."""
    return Call(
        "select cancelled, asked, last_id from pgqueue.cancel_many($1::jsonb, $2, $3::bigint, $4::int)",
        [_json(where), None if reason is None else clean_text(reason), _id(after_id, "after_id"), _int(batch, "batch")],
        lambda rows: CancelledMany(*rows[0]),
    )


def set_events(enabled: bool) -> Call[None]:
    return Call("select pgqueue.set_events($1::bool)", [enabled], _nothing)


def drain(worker_id: int) -> Call[bool]:
    return Call("select pgqueue.drain($1::bigint)", [_id(worker_id, "worker_id")], _value)


def set_queue(queue: str, settings: Mapping[str, Any]) -> Call[None]:
    return Call("select pgqueue.set_queue($1, $2::jsonb)", [_text(queue, "queue"), _json(settings)], _nothing)


def set_defaults(settings: Mapping[str, Any]) -> Call[None]:
    return Call("select pgqueue.set_defaults($1::jsonb)", [_json(settings)], _nothing)


def set_recurring(name: str, settings: Mapping[str, Any], is_new: bool | None = None) -> Call[str]:
    return Call(
        "select pgqueue.set_recurring($1, $2::jsonb, $3::bool)", [_text(name, "name"), _json(settings), is_new], _value
    )


def remove_recurring(name: str, although_declared: bool = False) -> Call[bool]:
    return Call("select pgqueue.remove_recurring($1, $2::bool)", [_text(name, "name"), although_declared], _value)


def pause_recurring(
    name: str, *, until: datetime | None = None, pause_for: timedelta | None = None, reason: str | None = None
) -> Call[None]:
    return Call(
        # pause_for counts from the database's clock, not from ours.
        "select pgqueue.pause_recurring($1, coalesce($2::timestamptz, clock_timestamp() + $4::interval), $3)",
        [
            _text(name, "name"),
            _aware(until, "until"),
            None if reason is None else clean_text(reason),
            _span(pause_for, "pause_for"),
        ],
        _nothing,
    )


def resume_recurring(name: str) -> Call[bool]:
    return Call("select pgqueue.resume_recurring($1)", [_text(name, "name")], _value)


def run_recurring_now(name: str) -> Call[int]:
    return Call("select pgqueue.run_recurring_now($1)", [_text(name, "name")], _value)


def retry_delay(policy: Mapping[str, Any], attempt: int, previous_delay: float | None = None) -> Call[float]:
    return Call(
        "select pgqueue.retry_delay($1::jsonb, $2::int, $3::float8)",
        [_json(policy), attempt, previous_delay],
        _value,
    )


# ----------------------------------------------------------------------------------------------- views


def recurring_status(name: str | None = None) -> Statuses:
    """All of them, or the one; none if there is none."""
    return Call(
        f"select {', '.join(RecurringStatus._fields)} from pgqueue.recurring_status"
        " where $1::text is null or name = $1 order by name",
        [_text(name, "name")],
        lambda rows: [RecurringStatus(*row) for row in rows],
    )


def recurring_detail(name: str) -> Details:
    return Call(
        f"select {', '.join(RecurringDetail._fields)} from pgqueue.recurring_detail where name = $1",
        [_text(name, "name")],
        lambda rows: [RecurringDetail(*row) for row in rows],
    )


def recurring_history(name: str, limit: int = 10) -> Runs:
    """The latest first."""
    return Call(
        f"select {', '.join(RecurringRun._fields)} from pgqueue.recurring_history where name = $1"
        " order by due_at desc limit $2::int",
        [_text(name, "name"), limit],
        lambda rows: [RecurringRun(*row) for row in rows],
    )


# ------------------------------------------------------------------------------------ what operators see


Rows = list[dict[str, Any]]

_SEEN = {  # the columns of each view and of each function that returns a table
    "queue_status": "queue pending scheduled blocked running dead oldest_waiting_seconds next_run_at workers paused"
    " paused_until paused_reason max_attempts max_crashes timeout_seconds retry boost_seconds retain_completed"
    " retain_dead max_running rate rate_seconds rate_burst fair group_max_running group_on_retry group_rate"
    " group_rate_seconds group_rate_burst max_depth shed_below next_eligible_at",
    "group_status": "queue group_key running next blocked max_running paused paused_until paused_reason"
    " next_eligible_at",
    "task_status": "task paused paused_until paused_reason circuit circuit_changed_at circuit_reason circuit_probe"
    " circuit_probe_at breaker_rate breaker_min breaker_window breaker_open alarmed_at blocked",
    "queue_stats": "queue completed failed dead cancelled expired lost snoozed released retried enqueued per_second"
    " wait_p50_seconds wait_p95_seconds wait_p99_seconds run_p50_seconds run_p95_seconds run_p99_seconds"
    " run_mean_seconds pending running oldest_waiting_seconds work_waiting_seconds",
    "worker_status": "id name state queues running beat_age_seconds lease_seconds started_at lost_at"
    " drain_requested_at info",
    "running_job": "id queue task key priority attempt token crashes started_at running_seconds timeout_seconds"
    " progress cancel_requested_at worker_id worker_name beat_age_seconds tags",
    "recent_failure": "job_id queue task attempt outcome error_type error started_at finished_at ran_seconds"
    " delay_seconds worker_id",
    "job_detail": "id status queue task key priority attempt max_attempts crashes enqueued_at run_at rank_at"
    " expires_at started_at finished_at prune_at cancel_requested_at worker_id token timeout_seconds"
    " retry_delay_seconds retry key_ttl retain_for tags meta group_key waits_for holds_slot"
    " flow_id progress error_type error payload result",
    "attempt": "job_id token attempt outcome started_at finished_at worker_id delay_seconds error_type error traceback",
    "log_line": "job_id logged_at token level message",
    "step": "job_id saved_at token name result",
    "list_jobs": "id queue task status priority attempt enqueued_at run_at started_at finished_at worker_id"
    " error_type error key tags group_key waits_for",
    "list_dead": "id queue task attempt crashes enqueued_at finished_at fingerprint error_type error key tags"
    " group_key",
    "dead_groups": "queue task fingerprint error_type error jobs first_at last_at last_id",
    "why": "reason explanation remedy",
    "why_queue": "reason explanation remedy",
    "doctor": "name verdict finding remedy",
    "recurring_health": "name state success_age_seconds",
    "checks": "name verdict finding remedy",
    "timeline": "at completed failed dead cancelled expired lost wait_p50_seconds wait_p95_seconds wait_p99_seconds"
    " run_p50_seconds run_p95_seconds run_p99_seconds waiting running oldest_waiting_seconds",
    "table_sizes": "name partitions bytes live_rows dead_rows vacuumed_at",
    "job_status": "id status queue task key priority attempt max_attempts crashes enqueued_at run_at rank_at expires_at"
    " started_at finished_at prune_at cancel_requested_at worker_id token timeout_seconds tags group_key waits_for"
    " flow_id progress error_type error",
    "job_history": "job_id token attempt outcome started_at finished_at worker_id delay_seconds error_type error",
    "audit_log": "id at actor address login action target detail",
    "flow_status": "id name status total blocked completed dead cancelled progress created_at ended_at cancelled_at"
    " cancel_reason",
    "events": "at job_id queue task status attempt token worker_id error_type cursor",
    "held_snapshots": "kind pid name held_for transactions query",
    "totals": "queue task completed failed dead cancelled expired lost snoozed released retried wait_buckets"
    " wait_counts run_buckets run_counts",
    "stats": "queue task at completed failed dead cancelled expired lost snoozed released retried enqueued per_second"
    " wait_p50_seconds wait_p95_seconds wait_p99_seconds run_p50_seconds run_p95_seconds run_p99_seconds"
    " run_mean_seconds",
}


def _seen(name: str, rest: str = "", params: Sequence[Any] = ()) -> Call[Rows]:
    columns = _SEEN[name].split()
    return Call(
        f"select {', '.join(columns)} from pgqueue.{name}{rest}",
        params,
        lambda rows: [dict(zip(columns, row, strict=True)) for row in rows],
    )


def _last(name: str, column: str, job_id: int, most: int) -> Call[Rows]:
    """Of what belongs to one job, the last `most` in their order."""
    call = _seen(name, f" where job_id = $1::bigint order by {column} desc limit $2", [job_id, most])
    return Call(call.query, call.params, lambda rows: call.read(rows)[::-1])


def queue_status(queue: str | None = None) -> Call[Rows]:
    return _seen("queue_status", " where $1::text is null or queue = $1 order by queue", [_text(queue, "queue")])


def group_status(queue: str, group: str | None = None, most: int = 50) -> Call[Rows]:
    """Those of which most jobs wait come first; of more than ten thousand groups only so many are looked at."""
    return _seen(
        "group_status",
        " where queue = $1 and group_key = any (array(select group_key from pgqueue.group_status"
        " where queue = $1 and ($2::text is null or group_key = $2) limit 10000))"
        " order by blocked desc, running desc, group_key limit $3",
        [_text(queue, "queue"), _text(group, "group"), most],
    )


def task_status(task: str | None = None) -> Call[Rows]:
    return _seen("task_status", " where $1::text is null or task = $1 order by task", [_text(task, "task")])


def queue_stats() -> Call[Rows]:
    return _seen("queue_stats", " order by queue")


def worker_status(id: int | None = None) -> Call[Rows]:
    return _seen("worker_status", " where $1::bigint is null or id = $1 order by id", [id and _id(id)])


def running_job(worker_id: int | None = None, most: int = 100) -> Call[Rows]:
    return _seen(
        "running_job", " where $1::bigint is null or worker_id = $1 order by started_at limit $2", [worker_id, most]
    )


def recent_failure(most: int = 20) -> Call[Rows]:
    return _seen("recent_failure", " limit $1", [most])


def job_detail(id: int) -> Call[Rows]:
    return _seen("job_detail", " where id = $1::bigint", [_id(id)])


def attempt(job_id: int, most: int = 1000) -> Call[Rows]:
    """The last of them."""
    return _last("attempt", "token", job_id, most)


def log_line(job_id: int, most: int = 1000) -> Call[Rows]:
    return _last("log_line", "logged_at", job_id, most)


def step(job_id: int, most: int = 1000) -> Call[Rows]:
    return _last("step", "saved_at", job_id, most)


def list_jobs(where: Mapping[str, Any], *, before: int | None = None, batch: int = 50) -> Call[Rows]:
    """A last row with only an id: nothing more was found down to there; go on with `before` that id."""
    return _seen("list_jobs", "($1::jsonb, $2::bigint, $3::int)", [_json(where), before, batch])


def list_dead(where: Mapping[str, Any], *, before: tuple[datetime, int] | None = None, batch: int = 50) -> Call[Rows]:
    """`before` are finished_at and id of the last row of the page before."""
    at, id = before or (None, None)
    return _seen("list_dead", "($1::jsonb, $2::timestamptz, $3::bigint, $4::int)",
                 [_json(where), _aware(at, "before"), id, batch])  # fmt: skip


def dead_groups(where: Mapping[str, Any], *, most: int = 50_000) -> Call[Rows]:
    return _seen("dead_groups", "($1::jsonb, $2::int)", [_json(where), most])


def why(id: int) -> Call[Rows]:
    return _seen("why", "($1::bigint)", [_id(id)])


def why_queue(queue: str) -> Call[Rows]:
    return _seen("why_queue", "($1)", [_text(queue, "queue")])


def doctor() -> Call[Rows]:
    return _seen("doctor", "()")


def checks() -> Call[Rows]:
    return _seen("checks", "()")


def table_sizes() -> Call[Rows]:
    return _seen("table_sizes", "()")


def job_status(id: int) -> Call[Rows]:
    return _seen("job_status", " where id = $1::bigint", [_id(id)])


def job_history(job_id: int, most: int = 1000) -> Call[Rows]:
    return _last("job_history", "token", job_id, most)


def audit_log(most: int = 50) -> Call[Rows]:
    return _seen("audit_log", " limit $1", [most])


def record_audit(
    actor: str, address: str | None, action: str, target: str | None, detail: Mapping[str, Any]
) -> Call[int]:
    return Call(
        "select pgqueue.record_audit($1, $2, $3, $4, $5::jsonb)",
        [clean_text(actor, 200), address, action, None if target is None else clean_text(target, 1000), _json(detail)],
        _value,
    )


def timeline(
    since: datetime, until: datetime, step: timedelta, *, queue: str | None = None, task: str | None = None
) -> Call[Rows]:
    return _seen(
        "timeline",
        "($1::timestamptz, $2::timestamptz, $3::interval, $4, $5)",
        [
            _aware(since, "since"),
            _aware(until, "until"),
            _span(step, "step"),
            _text(queue, "queue"),
            _text(task, "task"),
        ],
    )


def events(after: str | None = None) -> Call[Rows]:
    """`after` is the cursor of the last row; without it there is only a row with a cursor, and no job."""
    return _seen("events", "($1)", [after])


def totals() -> Call[Rows]:
    return _seen("totals", "()")


def recurring_health() -> Call[Rows]:
    return _seen("recurring_health", "() order by name")


def gauges() -> Call[dict[str, float]]:
    return Call("select name, value from pgqueue.gauges()", [], lambda rows: dict(rows))


def clock() -> Call[datetime]:
    return Call("select clock_timestamp()", [], _value)


def server_version() -> Call[str]:
    return Call("select current_setting('server_version')", [], _value)


def backend_pid() -> Call[int]:
    return Call("select pg_backend_pid()", [], _value)


def held_snapshots(at_least: timedelta = timedelta(minutes=1)) -> Call[Rows]:
    return _seen("held_snapshots", "($1::interval)", [_span(at_least, "at_least")])


def count_jobs(where: Mapping[str, Any], *, most: int = 1_000_000) -> Call[int]:
    return Call("select pgqueue.count_jobs($1::jsonb, $2::int)", [_json(where), most], _value)


def stats(
    since: datetime, until: datetime | None = None, *, queue: str | None = None, task: str | None = None,
    by: str = "task",
) -> Call[Rows]:  # fmt: skip
    return _seen(
        "stats",
        "($1::timestamptz, coalesce($2::timestamptz, now()), $3, $4, $5)",
        [_aware(since, "since"), _aware(until, "until"), _text(queue, "queue"), _text(task, "task"), by],
    )


# --------------------------------------------------------------------------------------------- details


def _value(rows: list[Row]) -> Any:
    return rows[0][0]


def _nothing(_: list[Row]) -> None:
    return None


# Arrays as PostgreSQL writes them: psycopg would build the same text in Python, at 2 µs an element instead of 0.1.
def _ints(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _texts_of_json(values: Iterable[str | None]) -> str:
    return f"{{{','.join(map(_quoted, values))}}}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "null"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _split(leases: Sequence[tuple[int, int]]) -> tuple[str, str]:
    return _ints([lease[0] for lease in leases]), _ints([lease[1] for lease in leases])


def _filter(where: Filter) -> list[Any]:
    return [
        *(_text(getattr(where, name), name) for name in ("queue", "task", "error_type", "error", "tag")),
        _aware(where.finished_after, "finished_after"), _aware(where.finished_before, "finished_before"),
    ]  # fmt: skip


class Encoded(str):
    """A value that has been through encode_value() already."""

    __slots__ = ()


def encode_value(value: Any) -> str | None:
    """Any JSON value, checked as a payload is; None stays SQL's null."""
    if type(value) is Encoded:
        return value
    return None if value is None else encode({"": value}, RESULT_MAX_BYTES)[4:-1]


def _results(results: Sequence[Any] | None) -> str | None:
    if results is None or all(result is None for result in results):
        return None
    return _texts_of_json([encode_value(result) for result in results])


def _json(value: Mapping[str, Any] | None) -> str | None:
    if value is None:
        return None
    try:
        return encode(value)
    except PayloadError as error:
        raise InvalidArgument(str(error)) from None


_LONGEST = timedelta(days=3_650_000)
_FARTHEST = timedelta(hours=16)


def _id(id: int | None, name: str = "id") -> int | None:
    if id is not None and (type(id) is not int or not -(2**63) <= id < 2**63):
        raise InvalidArgument(f"{name} must be a whole number of at most 63 bits, not {id!r}")
    return id


def _int(number: int | None, name: str) -> int | None:
    if number is not None and (type(number) is not int or not -(2**31) <= number < 2**31):
        raise InvalidArgument(f"{name} must be a whole number, not {number!r}")
    return number


def _aware(moment: datetime | None, name: str) -> datetime | None:
    if moment is not None and not isinstance(moment, datetime):
        raise InvalidArgument(f"{name} must be a datetime, not {moment!r}")
    # A naive time would be read in the session's zone: hours off, silently.
    if moment is None:
        return None
    if (offset := moment.utcoffset()) is None:
        raise InvalidArgument(f"{name} has no time zone: use datetime.now(timezone.utc) or attach a zone")
    if abs(offset) >= _FARTHEST:  # PostgreSQL knows no such zone
        try:
            return moment.astimezone(UTC)
        except OverflowError:
            raise InvalidArgument(f"{name} is out of range: {moment}") from None
    return moment


def _span(span: timedelta | None, name: str) -> timedelta | None:
    if span is not None and not isinstance(span, timedelta):
        raise InvalidArgument(f"{name} must be a timedelta, not {span!r}")
    # Added to now, more would leave PostgreSQL's calendar, with an error of its own.
    if span is not None and not -_LONGEST <= span <= _LONGEST:
        raise InvalidArgument(f"{name} is out of range: at most ten thousand years")
    return span


def _text(text: str | None, name: str) -> str | None:
    if text is not None and (not isinstance(text, str) or "\0" in text or not _encodes(text)):
        raise InvalidArgument(f"{name} must be a text without NUL and lone surrogates")
    return text


def _texts(texts: Sequence[str | None] | None, name: str) -> list[str | None] | None:
    if texts is not None and (isinstance(texts, str) or not isinstance(texts, Iterable)):
        raise InvalidArgument(f"{name} must be several texts, not {texts!r}")
    return None if texts is None else [_text(text, name) for text in texts]


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
