"""Connections of an app's own, for enqueueing outside of any transaction of the user's and for asking about jobs.

Nothing is opened before it is needed. A connection that lay idle is checked before it is used: one that died meanwhile
would otherwise cost the caller an error, and nobody may repeat an enqueue blindly (it could have been committed).
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncEngine

_TRUSTED_SECONDS = 5.0
_CHECK_SECONDS = 5.0  # for the question whether a connection lives, which a half-open one never answers
_CANCEL_SECONDS = 1.0
# A pool that cannot connect tries again after 1, 2, 4, … s: after two minutes without a database it would not see for
# another two that it is back. So it gives up soon, and whoever waits asks it anew.
_RECONNECT_SECONDS = 2.0
_ASK_SECONDS = 3.0
_WAIT_SECONDS = 30.0
_CONNECT: dict[str, Any] = {"connect_timeout": 10, "application_name": "pgqueue"}


class Impatient(AsyncConnection[Any]):
    """Does not wait for an answer that nobody wants any more.

    When a task is cancelled during a statement, psycopg asks the server to stop it and waits up to 10 s for the server
    to say so. On a half-open connection that word never comes, and a handler that takes so long to stop is given up.
    """

    async def _try_cancel(self, *, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - psycopg's own
        await super()._try_cancel(timeout=min(timeout, _CANCEL_SECONDS))
        hang_up(self)


class Pools:
    """One pool for threads, one for each event loop."""

    def __init__(self, conninfo: Callable[[], str], size: int = 4) -> None:
        self._conninfo = conninfo
        self._size = size
        self._begin()
        _every.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Connection[Any]] | None = None
        self._apools: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnectionPool[AsyncConnection[Any]]] = (
            WeakKeyDictionary()
        )
        self._engine: sa.Engine | None = None
        self._aengines: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngine] = WeakKeyDictionary()

    def leave_to_parent(self) -> None:
        """After a fork (gunicorn --preload, multiprocessing): the connections are the parent's, and the threads that
        serve the pool are not here. Kept, not closed: that would say good-bye to the server in the parent's name."""
        _of_parents.append((self._pool, self._engine, self._apools, self._aengines))
        self._begin()

    @contextmanager
    def connection(self, still_wanted: Callable[[], object] = lambda: None) -> Iterator[Connection[Any]]:
        """An autocommit connection. `still_wanted` is asked now and then while none is free, and may raise."""
        with self._lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._conninfo(), min_size=0, max_size=self._size, open=True, name="pgqueue",
                    timeout=_ASK_SECONDS, reconnect_timeout=_RECONNECT_SECONDS,
                    kwargs={"autocommit": True, **_CONNECT}, configure=_configure, check=_check, reset=_used,
                )  # fmt: skip
            pool = self._pool
        deadline = time.monotonic() + _WAIT_SECONDS
        with ExitStack() as stack:
            while True:
                try:
                    conn = stack.enter_context(pool.connection())
                    break
                except PoolTimeout:
                    still_wanted()
                    if time.monotonic() > deadline:
                        raise
            yield conn

    @asynccontextmanager
    async def aconnection(self) -> AsyncIterator[AsyncConnection[Any]]:
        loop = asyncio.get_running_loop()
        pool = self._apools.get(loop)
        if pool is None:
            pool = self._apools[loop] = AsyncConnectionPool(
                self._conninfo(), min_size=0, max_size=self._size, open=False, name="pgqueue",
                timeout=_ASK_SECONDS, reconnect_timeout=_RECONNECT_SECONDS,
                kwargs={"autocommit": True, **_CONNECT}, connection_class=Impatient,
                configure=_aconfigure, check=_acheck, reset=_aused,
            )  # fmt: skip
            await pool.open()
        deadline = time.monotonic() + _WAIT_SECONDS
        async with AsyncExitStack() as stack:
            while True:
                try:
                    conn = await stack.enter_async_context(pool.connection())
                    break
                except PoolTimeout:
                    if time.monotonic() > deadline:
                        raise
            yield conn

    @property
    def open_async(self) -> bool:
        return bool(len(self._apools) or len(self._aengines))

    def grow(self, size: int) -> None:
        """Room for at least so many at once, in pools that are opened from now on."""
        self._size = max(self._size, size)

    def engine(self) -> sa.Engine:
        """For transactional tasks that want a SQLAlchemy session; others need not carry its 13 MB."""
        import sqlalchemy as sa

        with self._lock:
            if self._engine is None:
                self._engine = sa.create_engine(
                    "postgresql+psycopg://", creator=lambda: Connection.connect(self._conninfo(), **_CONNECT),
                    pool_pre_ping=True, pool_size=self._size, max_overflow=0,
                )  # fmt: skip
            return self._engine

    def aengine(self) -> AsyncEngine:
        from sqlalchemy.ext.asyncio import create_async_engine

        async def connect() -> AsyncConnection[Any]:
            return await Impatient.connect(self._conninfo(), **_CONNECT)

        loop = asyncio.get_running_loop()
        if (engine := self._aengines.get(loop)) is None:
            engine = self._aengines[loop] = create_async_engine(
                "postgresql+psycopg://", async_creator=connect,
                pool_pre_ping=True, pool_size=self._size, max_overflow=0,
            )  # fmt: skip
        return engine

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
            engine, self._engine = self._engine, None
        if pool is not None:
            pool.close()
        if engine is not None:
            engine.dispose()

    async def aclose(self) -> None:
        """Closes the pool of this event loop, and the one for threads."""
        if (engine := self._aengines.pop(asyncio.get_running_loop(), None)) is not None:
            await engine.dispose()
        if (pool := self._apools.pop(asyncio.get_running_loop(), None)) is not None:
            await pool.close()
        await asyncio.to_thread(self.close)


_every: WeakSet[Pools] = WeakSet()
_of_parents: list[Any] = []


def _after_fork() -> None:
    for pools in list(_every):
        pools.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def through_pooler(conn: Connection[Any] | AsyncConnection[Any], backend_pid: int) -> bool:
    """PgBouncer gives the client a process number of its own; the server's own answer differs."""
    return conn.info.backend_pid != backend_pid


def hang_up(conn: Connection[Any] | AsyncConnection[Any]) -> None:
    """End the conversation from our side: whoever waits for an answer gets an error at once.

    Cancelling would politely wait for the server, which may be the one that does not answer.
    """
    try:
        with socket.socket(fileno=os.dup(conn.fileno())) as handle:
            handle.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it is closed already


def hang_up_on(conn: Any) -> None:
    """The same for the connection of a transactional task, which may be one of SQLAlchemy's."""
    if conn is None:
        return
    if not isinstance(conn, (Connection, AsyncConnection)):
        sync = getattr(conn, "sync_session", None) or getattr(conn, "sync_connection", None) or conn
        bound = getattr(sync, "bind", None) or sync  # a session is bound to the connection of its transaction
        try:
            conn = bound.connection.driver_connection
        except Exception:
            return  # it is closed already
    hang_up(conn)


@contextmanager
def hung_up_after(seconds: float, conn: AsyncConnection[Any]) -> Iterator[None]:
    """What runs within gets an error when it takes longer."""
    timer = asyncio.get_running_loop().call_later(seconds, hang_up, conn)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _hung_up_in_thread_after(seconds: float, conn: Connection[Any]) -> Iterator[None]:
    timer = threading.Timer(seconds, hang_up, [conn])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _configure(conn: Connection[Any]) -> None:
    with _hung_up_in_thread_after(_CHECK_SECONDS, conn):
        row = conn.execute("select pg_backend_pid()").fetchone()
    if row and through_pooler(conn, row[0]):
        conn.prepare_threshold = None  # the next statement may run on another server process


async def _aconfigure(conn: AsyncConnection[Any]) -> None:
    with hung_up_after(_CHECK_SECONDS, conn):
        row = await (await conn.execute("select pg_backend_pid()")).fetchone()
    if row and through_pooler(conn, row[0]):
        conn.prepare_threshold = None


_last_used: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def _used(conn: Connection[Any]) -> None:
    _last_used[conn] = time.monotonic()


async def _aused(conn: AsyncConnection[Any]) -> None:
    _last_used[conn] = time.monotonic()


def _check(conn: Connection[Any]) -> None:
    if time.monotonic() - _last_used.get(conn, 0) > _TRUSTED_SECONDS:
        with _hung_up_in_thread_after(_CHECK_SECONDS, conn):
            ConnectionPool.check_connection(conn)


async def _acheck(conn: AsyncConnection[Any]) -> None:
    if time.monotonic() - _last_used.get(conn, 0) > _TRUSTED_SECONDS:
        with hung_up_after(_CHECK_SECONDS, conn):
            await AsyncConnectionPool.check_connection(conn)
