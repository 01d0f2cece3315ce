"""Where pages get what they show: one transaction a request, with the role, and within the time, of who asks.

Role and timeout are set inside the transaction: so they hold behind a pooler in transaction mode too, and cannot be
left on a connection. Without JIT: to compile what a page asks takes longer than to do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg_pool import AsyncConnectionPool

from pgqueue import database
from pgqueue.database import Call
from pgqueue.web.access import Viewer

T = TypeVar("T")
POOL_SIZE = 6
WAIT_SECONDS = 5.0  # for a free connection
WAITING = 100  # who comes after so many is told at once


class Ask:
    """ask(call): runs it in the transaction of the request."""

    def __init__(self, conn: AsyncConnection[Any], viewer: Viewer, milliseconds: int) -> None:
        self._conn = conn
        self._milliseconds = milliseconds
        self.viewer = viewer

    async def __call__(self, call: Call[T]) -> T:
        return await database.aexecute(self._conn, call)

    async def within(self, milliseconds: int, call: Call[T]) -> T | None:
        """None: it would have taken longer."""
        try:
            async with self._conn.transaction():
                await self._conn.execute(_timeout(milliseconds))
                answer = await self(call)
                await self._conn.execute(_timeout(self._milliseconds))
        except psycopg.errors.QueryCanceled:
            return None
        return answer

    @asynccontextmanager
    async def undone_if_it_fails(self) -> AsyncIterator[None]:
        async with self._conn.transaction():
            yield


class Source:
    def __init__(self, conninfo: str, seconds: float) -> None:
        self._conninfo = conninfo
        self._milliseconds = int(seconds * 1000)
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self._opening = asyncio.Lock()  # of the first requests that come together, one
        self._closed = False

    async def _opened(self) -> AsyncConnectionPool[AsyncConnection[Any]]:
        async with self._opening:
            if self._closed:  # a live page that was being made meanwhile must not open it anew
                raise psycopg.OperationalError("the page has been closed")
            if self._pool is None:
                # No prepared statements: a pooler in transaction mode may not know them.
                kwargs = {
                    "autocommit": True, "application_name": "pgqueue web", "connect_timeout": 10,
                    "prepare_threshold": None,
                }  # fmt: skip
                pool = AsyncConnectionPool(
                    self._conninfo, min_size=0, max_size=POOL_SIZE, open=False, name="pgqueue web",
                    timeout=WAIT_SECONDS, max_waiting=WAITING, kwargs=kwargs,
                    check=AsyncConnectionPool.check_connection,
                )  # fmt: skip
                await pool.open()
                self._pool = pool
            return self._pool

    def start(self) -> None:
        """For an application that is started again after it was closed."""
        self._closed = False

    async def close(self) -> None:
        async with self._opening:
            pool, self._pool, self._closed = self._pool, None, True
        if pool is not None:
            await pool.close()

    @asynccontextmanager
    async def asking(self, viewer: Viewer, *, writing: bool = False) -> AsyncIterator[Ask]:
        """Writing is for actions alone: even an operator's pages are read in a read-only transaction."""
        pool = await self._opened()
        async with pool.connection() as conn, conn.transaction():
            await conn.execute(
                sql.SQL("set transaction {}; set local role {}; set local jit = off").format(
                    sql.SQL("read write" if writing and viewer.may_act else "read only"),
                    sql.Identifier("pgqueue_operator" if viewer.may_act else "pgqueue_reader"),
                )
                + sql.SQL("; ")
                + _timeout(self._milliseconds)
            )
            yield Ask(conn, viewer, self._milliseconds)


def _timeout(milliseconds: int) -> sql.Composed:
    return sql.SQL("set local statement_timeout = {}").format(sql.Literal(milliseconds))


def check(conninfo: str, viewer_roles: tuple[str, ...]) -> str | None:
    """What keeps the page from being served with these roles, or None; asked before it starts."""
    with psycopg.connect(conninfo, autocommit=True, connect_timeout=10, application_name="pgqueue web") as conn:
        for role in viewer_roles:
            try:
                with conn.transaction():
                    conn.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
                    conn.execute("select 1 from pgqueue.audit_log limit 1")
            except psycopg.errors.InvalidParameterValue:
                return f"there is no role {role}: run `pgqueue migrate` as a user who may create roles"
            except psycopg.errors.InsufficientPrivilege:
                user = conn.info.user
                return f"{user} may not become {role}, or that may not look: `grant {role} to {user}`"
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return "the schema is missing or older than this pgqueue: run `pgqueue migrate`"
    return None
