"""Runs a `Call` on the caller's own connection, whatever its driver: the job commits or rolls back with the caller.

    execute(session, enqueue("email", "send_receipt", {"order_id": 7}))
    await aexecute(async_session, enqueue("email", "send_receipt", {"order_id": 7}))

Nothing here commits, rolls back or changes a setting of the caller's connection. And no driver is imported: a
connection can only exist if its library already is in `sys.modules`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from pgqueue import database
from pgqueue.database import Call, Row
from pgqueue.errors import InvalidArgument, from_sqlstate
from pgqueue.payload import decode

T = TypeVar("T")

ACCEPTED = (
    "a psycopg Connection or AsyncConnection, a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession"
    " (on psycopg, asyncpg or psycopg2), an asyncpg Connection, a Django connection or the alias of one"
)
_JSON_OIDS = {114, 3802}  # json, jsonb


def execute(conn: Any, call: Call[T]) -> T:
    kind = _kind(conn)
    if kind.run is None:
        raise InvalidArgument(f"{_name(conn)} is asynchronous: use aenqueue, and await it")
    answer: T = kind.run(conn, call)
    return answer


async def aexecute(conn: Any, call: Call[T]) -> T:
    kind = _kind(conn)
    if kind.arun is None:
        raise InvalidArgument(f"{_name(conn)} is synchronous: use enqueue, without await")
    answer: T = await kind.arun(conn, call)
    return answer


def is_async(conn: Any) -> bool:
    """Whether the connection needs `aexecute`. Django's are synchronous, and take both."""
    return _kind(conn).run is None


# --------------------------------------------------------------------------------------------- psycopg


# ------------------------------------------------------------------------------------------ SQLAlchemy


def _session(session: Any, call: Call[T]) -> T:
    # connection() begins the session's transaction, and the savepoints of begin_nested() that are not sent yet.
    return _sqlalchemy(session.connection(), call)


async def _asession(session: Any, call: Call[T]) -> T:
    return await _asqlalchemy(await session.connection(), call)


async def _asqlalchemy(conn: Any, call: Call[T]) -> T:
    answer: T = await conn.run_sync(_sqlalchemy, call)
    return answer


def _sqlalchemy(conn: Any, call: Call[T]) -> T:
    """On a synchronous Connection, which may be the one inside an AsyncConnection."""
    dialect = conn.dialect
    driver = dialect.driver if dialect.name == "postgresql" else None
    if driver == "psycopg":
        # Without a begun transaction SQLAlchemy's commit() and rollback() send nothing: the job would be lost.
        if not conn.in_transaction():
            conn.begin()
        raw = conn.connection.driver_connection
        return _wait(database.aexecute(raw, call)) if dialect.is_async else database.execute(raw, call)
    # asyncpg has no transaction until SQLAlchemy's adapter starts one, lazily, with the first statement that goes
    # through its cursor: before that, a statement on the raw connection commits at once, and no rollback() or
    # savepoint undoes it. So ours goes through SQLAlchemy, which also saves a statement that would only begin.
    if driver == "asyncpg":
        return _driver_sql(conn, call, _json_as_text(call.query), tuple(call.params))
    if driver == "psycopg2":
        return _driver_sql(conn, call, *_pyformat(call))
    raise InvalidArgument(f"SQLAlchemy on {dialect.name}+{dialect.driver} cannot enqueue: pass {ACCEPTED}")


def _driver_sql(conn: Any, call: Call[T], query: str, params: Any) -> T:
    with _our_errors(sys.modules["sqlalchemy.exc"].DBAPIError):
        # A server-side cursor, if the caller's options ask for one, would enqueue only as its rows are fetched.
        result = conn.exec_driver_sql(query, params, execution_options={"stream_results": False})
        # JSON comes decoded: by the codec that SQLAlchemy sets on its asyncpg connections, or by psycopg2.
        return call.read([tuple(row) for row in result.fetchall()])


def _wait(awaitable: Awaitable[T]) -> T:
    from sqlalchemy import util

    wait = getattr(util, "await_", None) or util.await_only  # its name before SQLAlchemy 2.1
    answer: T = wait(awaitable)
    return answer


# --------------------------------------------------------------------------------------------- asyncpg


class _Learned(NamedTuple):
    query: str
    json_columns: list[int]


_learned: dict[str, _Learned] = {}  # by the query of the call: no more of them than functions in database.py


async def _asyncpg(conn: Any, call: Call[T]) -> T:
    asyncpg: Any = sys.modules["asyncpg"]
    with _our_errors(asyncpg.PostgresError):
        if call.query not in _learned:
            _learned[call.query] = await _learn(conn, _json_as_text(call.query))
        query, json_columns = _learned[call.query]
        # As the caller's own statements: cached, or unnamed with statement_cache_size=0, behind a pooler.
        records = await conn.fetch(query, *call.params, record_class=asyncpg.Record)
    return call.read(_decoded(records, json_columns))


async def _learn(conn: Any, query: str) -> _Learned:
    """Which columns are JSON: a record does not say. They are asked for as text, past any codec of the caller."""
    statement = await conn.prepare(query, name="")  # unnamed: a pooler may not know named ones
    oids = [column.type.oid for column in statement.get_attributes()]
    json_columns = _json_columns(oids)
    if json_columns:
        names = [f"c{n}" for n in range(len(oids))]
        columns = [f"{name}::text" if n in json_columns else name for n, name in enumerate(names)]
        query = f"select {', '.join(columns)} from ({query}) answer ({', '.join(names)})"  # noqa: S608
    return _Learned(query, json_columns)


def _json_as_text(query: str) -> str:
    # A caller's codec for jsonb, json.dumps usually, would encode our JSON parameters a second time.
    return re.sub(r"(\$\d+)::jsonb(\[\])?", r"\1::text\2::jsonb\2", query)


# ---------------------------------------------------------------------------------------------- Django


def _django(conn: Any, call: Call[T]) -> T:
    db: Any = sys.modules["django.db"]
    if isinstance(conn, str) and conn not in db.connections.settings:
        raise InvalidArgument(f"Django has no database of this alias, only {', '.join(db.connections)}")
    wrapper = db.connections[conn] if isinstance(conn, str) else conn
    if wrapper.vendor != "postgresql":
        raise InvalidArgument(f"Django's database {wrapper.alias!r} is {wrapper.vendor}, not PostgreSQL")
    # Django's own cursor connects, knows whether the atomic block is broken, and calls the execute wrappers.
    with _our_errors(db.Error), wrapper.cursor() as cursor:
        cursor.execute(*_pyformat(call))
        json_columns = _json_columns(column[1] for column in cursor.description)
        return call.read(_decoded(cursor.fetchall(), json_columns))  # Django has JSON come as text


async def _adjango(conn: Any, call: Call[T]) -> T:
    from asgiref.sync import sync_to_async

    # A Django connection belongs to a thread: this is the one in which its async ORM works as well.
    return await sync_to_async(_django, thread_sensitive=True)(conn, call)


# --------------------------------------------------------------------------------------------- details


class _Kind(NamedTuple):
    classes: list[str]
    run: Callable[[Any, Call[Any]], Any] | None = None
    arun: Callable[[Any, Call[Any]], Awaitable[Any]] | None = None


_DJANGO = _Kind(
    ["django.db.backends.base.base.BaseDatabaseWrapper", "django.utils.connection.ConnectionProxy"], _django, _adjango
)
_KINDS = [
    _Kind(["psycopg.Connection"], run=database.execute),
    _Kind(["psycopg.AsyncConnection"], arun=database.aexecute),
    _Kind(["sqlalchemy.engine.Connection"], run=_sqlalchemy),
    _Kind(["sqlalchemy.orm.Session", "sqlalchemy.orm.scoped_session"], run=_session),
    _Kind(["sqlalchemy.ext.asyncio.AsyncConnection"], arun=_asqlalchemy),
    _Kind(["sqlalchemy.ext.asyncio.AsyncSession", "sqlalchemy.ext.asyncio.async_scoped_session"], arun=_asession),
    _Kind(["asyncpg.Connection", "asyncpg.pool.PoolConnectionProxy"], arun=_asyncpg),
    _DJANGO,
]


def _kind(conn: Any) -> _Kind:
    if isinstance(conn, str) and "django.db" in sys.modules:
        return _DJANGO
    for kind in _KINDS:
        if any(isinstance(conn, _loaded(name)) for name in kind.classes):
            return kind
    raise InvalidArgument(f"{_name(conn)} is no connection that can enqueue: pass {ACCEPTED}")


def _loaded(name: str) -> Any:
    """The class, or what nothing is an instance of while its library is not imported."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, ())


def _name(conn: Any) -> str:
    return f"{type(conn).__module__}.{type(conn).__qualname__}".removeprefix("builtins.")


@contextmanager
def _our_errors(driver_error: type[Exception]) -> Iterator[None]:
    """Our SQLSTATEs as our types; anything else passes as the caller's library raised it."""
    try:
        yield
    except driver_error as error:
        source: Any = error
        while source.__cause__ is not None:  # SQLAlchemy and Django wrap what the driver raised
            source = source.__cause__
        fields = getattr(source, "diag", None)  # psycopg, psycopg2
        if fields is not None:
            ours = from_sqlstate(fields.sqlstate, fields.message_primary, fields.message_hint)
        else:  # asyncpg
            ours = from_sqlstate(*(getattr(source, field, None) for field in ("sqlstate", "message", "hint")))
        if ours is None:
            raise
        raise ours from None


def _pyformat(call: Call[Any]) -> tuple[str, dict[str, Any]]:
    query = re.sub(r"\$(\d+)", r"%(p\1)s", call.query.replace("%", "%%"))
    return query, {f"p{n}": param for n, param in enumerate(call.params, 1)}


def _json_columns(oids: Iterable[int]) -> list[int]:
    return [n for n, oid in enumerate(oids) if oid in _JSON_OIDS]


def _decoded(records: Iterable[Iterable[Any]], json_columns: list[int]) -> list[Row]:
    rows = [list(record) for record in records]
    for row in rows:
        for n in json_columns:
            row[n] = None if row[n] is None else decode(row[n])
    return [tuple(row) for row in rows]
