"""One connection to the database that comes back by itself.

Whatever ends it (a terminated backend, a restart, a failover, a network that swallows packets), the loop that uses it
sees one exception, `ConnectionLost`, and the log gets one line when it goes and one when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import PoolTimeout

from pgqueue import database
from pgqueue.database import Call
from pgqueue.pools import Impatient, hang_up, hung_up_after, through_pooler

logger = logging.getLogger("pgqueue.worker")
T = TypeVar("T")

_TRANSIENT = {"40001", "40P01", "55P03", "57014"}  # serialization, deadlock, lock time-out, cancelled: ask again
_TRIES = 5
PATIENCE_SECONDS = 30.0  # a statement that takes longer hangs
CONNECT_SECONDS = 10.0
# Besides a broken connection: read-only server, shutting down, starting up, too many connections, and the like.
_UNAVAILABLE = {"25006", "57P01", "57P02", "57P03", "57P05", "53300", "53100", "53200", "53000", "58030"}


# How long to wait before saying again what a job asked for.
_PAUSES = (0.05, 0.2, 1.0, 3.0)


def _passes(error: psycopg.Error) -> bool:
    """Nothing is wrong with the statement, and somebody may still have the patience to say it again."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not isinstance(
            error, PoolTimeout
        )
    return error.sqlstate in _UNAVAILABLE or error.sqlstate in _TRANSIENT


def persist(run: Callable[[], T]) -> T:
    """For what jobs ask for beside the work of their handlers (parents, steps), which may all be said twice: that a
    connection goes just then is no reason for an attempt to fail."""
    for pause in _PAUSES:
        try:
            return run()
        except psycopg.Error as error:
            if not _passes(error):
                raise
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
    return run()


async def apersist(run: Callable[[], Awaitable[T]]) -> T:
    for pause in _PAUSES:
        try:
            return await run()
        except psycopg.Error as error:
            if not _passes(error):
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
    return await run()


class ConnectionLost(Exception):
    """The statement may or may not have been carried out."""


class Link:
    """`run` connects when need be, and waits as long as that takes."""

    def __init__(self, conninfo: str, purpose: str, *, voice: bool = False) -> None:
        self._conninfo = conninfo
        self._purpose = purpose
        self._voice = voice  # of a worker's connections one speaks; five would say the same
        self._conn: AsyncConnection[Any] | None = None
        self._lost_at: float | None = None
        self._said = ""
        self._pause = 0.0  # before the next connection: it grows until a statement succeeds
        self.pooled = False
        self.backend_pid = 0

    @property
    def up(self) -> bool:
        return self._conn is not None

    @property
    def away(self) -> bool:
        """The database is gone, and not back yet."""
        return self._lost_at is not None

    async def connection(self) -> AsyncConnection[Any]:
        while self._conn is None:
            await asyncio.sleep(self._pause * random.uniform(0.5, 1))  # noqa: S311
            try:
                self._conn = await self._connect()
            except (psycopg.Error, TimeoutError, OSError) as error:
                self._say_lost(error)
        return self._conn

    def works(self) -> None:
        """A statement has succeeded: a server that only lets us in, its disk full, is not back yet."""
        if self._lost_at is not None:
            if self._voice:
                logger.warning("the database is back after %.1f s", time.monotonic() - self._lost_at)
            self._lost_at = None
            self._said = ""
        self._pause = 0.0

    async def run(self, call: Call[T]) -> T:
        """Raises `ConnectionLost`, one of our own errors, or what PostgreSQL says of a statement that is wrong."""
        for attempt in range(1, _TRIES + 1):
            conn = await self.connection()
            try:
                with hung_up_after(PATIENCE_SECONDS, conn):
                    answer = await database.aexecute(conn, call)
            except psycopg.Error as error:
                if error.sqlstate in _TRANSIENT and not conn.closed and attempt < _TRIES:
                    await asyncio.sleep(random.uniform(0.001, 0.01) * attempt)  # noqa: S311
                    continue
                if self.is_gone(conn, error):
                    await self._drop(error)
                    raise ConnectionLost(str(error).strip()) from error
                raise
            except asyncio.CancelledError:
                await self._drop(None)  # the answer may still be on the wire
                raise
            self.works()
            return answer
        raise AssertionError("unreachable")

    @staticmethod
    def is_gone(conn: AsyncConnection[Any], error: psycopg.Error) -> bool:
        """Nothing is wrong with the statement: say it again later, on another connection."""
        return conn.closed or conn.broken or error.sqlstate in _UNAVAILABLE or error.sqlstate in _TRANSIENT

    async def lost(self, error: psycopg.Error) -> ConnectionLost:
        """For those who use the connection itself: drop it, and have something to raise."""
        await self._drop(error)
        return ConnectionLost(str(error).strip())

    async def close(self) -> None:
        await self._drop(None)

    async def _connect(self) -> AsyncConnection[Any]:
        # Not wait_for(): in Python 3.11 it loses a cancellation that comes together with the answer.
        async with asyncio.timeout(CONNECT_SECONDS * 1.5):
            conn = await Impatient.connect(
                self._conninfo, autocommit=True, connect_timeout=max(int(CONNECT_SECONDS), 2),
                application_name=f"pgqueue {self._purpose}",
            )  # fmt: skip
        try:
            with hung_up_after(CONNECT_SECONDS, conn):
                await self._ask_what_it_is(conn)
        except BaseException:
            await conn.close()
            raise
        return conn

    async def _ask_what_it_is(self, conn: AsyncConnection[Any]) -> None:
        row = await (
            await conn.execute(
                "select pg_backend_pid(), pg_is_in_recovery() or current_setting('transaction_read_only')::bool,"
                " current_setting('default_transaction_isolation')",
                prepare=False,
            )
        ).fetchone()
        assert row is not None  # noqa: S101
        if row[1]:
            raise psycopg.OperationalError("the server is read-only (a standby, or a failover under way)")
        self.backend_pid = row[0]
        self.pooled = through_pooler(conn, row[0])
        if self.pooled:
            conn.prepare_threshold = None  # nor SET anything: it would stay with the server process, for strangers
        elif row[2] != "read committed":
            # Claims under a fixed snapshot fail with 40001: 3-15 % (repeatable read), 62-80 % (serializable).
            await conn.execute("set default_transaction_isolation = 'read committed'")

    async def _drop(self, error: Exception | None) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            hang_up(conn)
            await conn.close()
        if error is not None:
            self._say_lost(error)

    def _say_lost(self, error: Exception) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        self._pause = min(max(self._pause * 2, 0.05), 5.0)
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if self._voice and text != self._said:
            logger.warning("the database is not there: %s; trying again until it is", text)
        self._said = text
