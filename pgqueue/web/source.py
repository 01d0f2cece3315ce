"""Where pages get what they show: one transaction a request, with the role, and within the time, of who asks.

Role and timeout are set inside the transaction: so they hold behind a pooler in transaction mode too, and cannot be
left on a connection.
"""

from __future__ import annotations

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


class Ask:
    """ask(call): runs it in the transaction of the request."""

    def __init__(self, conn: AsyncConnection[Any], viewer: Viewer) -> None:
        self._conn = conn
        self.viewer = viewer

    async def __call__(self, call: Call[T]) -> T:
        return await database.aexecute(self._conn, call)

    @asynccontextmanager
    async def undone_if_it_fails(self) -> AsyncIterator[None]:
        async with self._conn.transaction():
            yield


class Source:
    def __init__(self, conninfo: str, seconds: float) -> None:
        self._conninfo = conninfo
        self._milliseconds = int(seconds * 1000)
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None

    async def open(self) -> AsyncConnectionPool[AsyncConnection[Any]]:
        if self._pool is None:
            # No prepared statements: a pooler in transaction mode may not know them.
            kwargs = {
                "autocommit": True, "application_name": "pgqueue web", "connect_timeout": 10, "prepare_threshold": None,
            }  # fmt: skip
            self._pool = AsyncConnectionPool(
                self._conninfo, min_size=0, max_size=POOL_SIZE, open=False, name="pgqueue web", timeout=WAIT_SECONDS,
                kwargs=kwargs, check=AsyncConnectionPool.check_connection,
            )  # fmt: skip
            await self._pool.open()
        return self._pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    @asynccontextmanager
    async def asking(self, viewer: Viewer, *, writing: bool = False) -> AsyncIterator[Ask]:
        """Writing is for actions alone: even an operator's pages are read in a read-only transaction."""
        pool = await self.open()
        async with pool.connection() as conn, conn.transaction():
            await conn.execute(
                sql.SQL("set transaction {}; set local role {}; set local statement_timeout = {}").format(
                    sql.SQL("read write" if writing and viewer.may_act else "read only"),
                    sql.Identifier("pgqueue_operator" if viewer.may_act else "pgqueue_reader"),
                    sql.Literal(self._milliseconds),
                )
            )
            yield Ask(conn, viewer)


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
