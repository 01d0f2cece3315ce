"""Transactional tasks: what the handler writes and the completion of its job commit together, or neither does.

If the lease is gone when the handler returns, everything that it wrote is rolled back: exactly once, even when a worker
slept past its lease and another has taken the job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, get_origin

import psycopg

from pgqueue import connections, database
from pgqueue.arguments import encode_value
from pgqueue.batch import outcomes
from pgqueue.database import Call
from pgqueue.errors import InvalidArgument, LeaseLost
from pgqueue.job import is_connection

if TYPE_CHECKING:
    from pgqueue.app import App
    from pgqueue.attempt import Attempt


class Given:
    """The handler's connection, as it asked for it; and, to be set before the block ends, what it returned for each of
    its jobs. Of a batch an exception: that job has not succeeded, and is not completed with the others."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.results: list[Any] = []


@asynccontextmanager
async def _transaction(app: App, attempts: list[Attempt]) -> AsyncIterator[Given]:
    name, kind = _wanted(attempts[0])
    if issubclass(kind, psycopg.AsyncConnection):
        async with app.aconnection() as conn, conn.transaction():
            _hold(attempts, conn)
            given = Given({name: conn})
            yield given
            await _finish(conn, attempts, given.results)
    else:
        async with app.aengine().begin() as outer:
            # commit() in the handler releases a savepoint: only the completion may end this transaction.
            async with kind(bind=outer, join_transaction_mode="create_savepoint") as session:
                _hold(attempts, session)
                given = Given({name: session})
                yield given
                await session.commit()
            _hold(attempts, outer)
            await _finish(outer, attempts, given.results)
    _committed(attempts, given.results)


@asynccontextmanager
async def transaction(app: App, attempts: list[Attempt]) -> AsyncIterator[Given]:
    """For an async def."""
    try:
        async with _transaction(app, attempts) as given:
            yield given
    finally:
        _hold(attempts, None)  # it is back in the pool: another job's


def transaction_in_thread(
    app: App, attempts: list[Attempt], function: Callable[..., Any], arguments: dict[str, Any]
) -> list[Any]:
    """For a plain def: what it returned for each."""
    try:
        return _transaction_in_thread(app, attempts, function, arguments)
    finally:
        _hold(attempts, None)


def _transaction_in_thread(
    app: App, attempts: list[Attempt], function: Callable[..., Any], arguments: dict[str, Any]
) -> list[Any]:
    name, kind = _wanted(attempts[0])

    def call(conn: Any) -> list[Any]:
        returned = function(**arguments, **{name: conn})
        return outcomes(returned, [each.job for each in attempts]) if attempts[0].batch else [returned]

    if issubclass(kind, psycopg.Connection):
        with app.connection(attempts[0].job.heartbeat) as conn, conn.transaction():
            _hold(attempts, conn)
            results = call(conn)
            _finish_in_thread(conn, attempts, results)
    else:
        with app.engine().begin() as outer:
            with kind(bind=outer, join_transaction_mode="create_savepoint") as session:
                _hold(attempts, session)
                results = call(session)
                session.commit()
            _hold(attempts, outer)
            _finish_in_thread(outer, attempts, results)
    _committed(attempts, results)
    return results


def _wanted(attempt: Attempt) -> tuple[str, Any]:
    injected = attempt.task.arguments.injected
    found = [(name, get_origin(kind) or kind) for name, kind in injected.items() if is_connection(kind)]
    if len(found) != 1:
        raise InvalidArgument(
            f"task {attempt.task.name} is transactional and must ask for one connection: add a parameter like "
            "conn: psycopg.AsyncConnection = INJECTED (psycopg.Connection in a plain def)"
        )
    return found[0]


def _hold(attempts: list[Attempt], conn: Any) -> None:
    for attempt in attempts:
        attempt.job.conn = conn


def _succeeded(attempts: list[Attempt], results: list[Any]) -> list[tuple[Attempt, Any]]:
    pairs = zip(attempts, results, strict=True)
    return [each for each in pairs if each[0].batch is None or not isinstance(each[1], BaseException)]


async def _finish(conn: Any, attempts: list[Attempt], results: list[Any]) -> None:
    good = _succeeded(attempts, results)
    for attempt, _ in good:
        for call in attempt.job.children():
            await connections.aexecute(conn, call)
    if good:
        _accepted(good, await connections.aexecute(conn, _complete(good)))


def _finish_in_thread(conn: Any, attempts: list[Attempt], results: list[Any]) -> None:
    good = _succeeded(attempts, results)
    for attempt, _ in good:
        for call in attempt.job.children():
            connections.execute(conn, call)
    if good:
        _accepted(good, connections.execute(conn, _complete(good)))


def _complete(good: list[tuple[Attempt, Any]]) -> Call[list[int]]:
    jobs = [attempt.job for attempt, _ in good]
    results = [encode_value(result, "result") for _, result in good]
    return database.complete(jobs[0].worker_id, [(job.id, job.token) for job in jobs], results)


def _accepted(good: list[tuple[Attempt, Any]], refused: list[int]) -> None:
    if refused:
        for attempt, _ in good:
            if attempt.job.id in refused:
                attempt.job.stop_reason = "lease_lost"
        which = f"job {refused[0]} belongs" if len(refused) == 1 else f"jobs {refused} belong"
        raise LeaseLost(f"{which} to another worker: what this attempt wrote is rolled back")


def _committed(attempts: list[Attempt], results: list[Any]) -> None:
    for attempt, _ in _succeeded(attempts, results):
        attempt.committed = True
