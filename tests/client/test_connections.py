"""One story for every kind of connection: the job shares the fate of its caller's transaction.

A test is a coroutine on a `User`, which is somebody's connection with its own way to begin, commit and roll back. The
synchronous kinds never suspend, so they run without an event loop: Django refuses to work in one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from pgqueue import connections
from pgqueue import database as db
from pgqueue.connections import aexecute, execute, is_async
from pgqueue.database import Call
from pgqueue.errors import InvalidArgument, KeyTaken, PgqueueError, SchemaError
from tests.support import Conn, job, rows

asyncpg: Any = import_module("asyncpg")
django: Any = import_module("django.db")

T = TypeVar("T")
Opened = AbstractAsyncContextManager[None]


@dataclass(frozen=True)
class User:
    """`transaction` commits at its end and rolls back on an exception, as this user would; `savepoint` likewise."""

    conn: Any
    sql: Callable[[str], Awaitable[Any]]
    transaction: Callable[[], Opened]
    savepoint: Callable[[], Opened]
    asynchronous: bool = False

    async def run(self, call: Call[T]) -> T:
        return await aexecute(self.conn, call) if self.asynchronous else execute(self.conn, call)

    async def enqueue(self, n: int, **options: Any) -> int:
        return (await self.run(db.enqueue("q", "t", {"n": n}, **options))).id


OpenUser = Callable[[str], AbstractAsyncContextManager[User]]
Story = Callable[[User], Coroutine[Any, Any, None]]


class ChangedMind(Exception):
    """The caller's own failure, which rolls its transaction back."""


@asynccontextmanager
async def undone(opened: Opened) -> AsyncIterator[None]:
    """The transaction or savepoint, left with an exception."""
    with suppress(ChangedMind):
        async with opened:
            yield
            raise ChangedMind


def lift(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def lifted(*arguments: Any) -> Any:
        return function(*arguments)

    return lifted


def lift_context(manager: Callable[[], AbstractContextManager[Any]]) -> Callable[[], Opened]:
    @asynccontextmanager
    async def lifted() -> AsyncIterator[None]:
        with manager():
            yield

    return lifted


def ended_by(commit: Callable[[], Awaitable[Any]], rollback: Callable[[], Awaitable[Any]]) -> Callable[[], Opened]:
    """A transaction that nobody begins: the first statement does."""

    @asynccontextmanager
    async def transaction() -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            await rollback()
            raise
        await commit()

    return transaction


# ----------------------------------------------------------------------------------------------- kinds


def connect_args(dsn: str, database: str = "dbname") -> dict[str, Any]:
    given = {name: found for name, found in conninfo_to_dict(dsn).items() if found is not None}
    return {(database if name == "dbname" else name): found for name, found in given.items()}


@asynccontextmanager
async def psycopg_sync(dsn: str, **options: Any) -> AsyncIterator[User]:
    conn: Connection[Any]
    with psycopg.connect(dsn, **options) as conn:
        ended = ended_by(lift(conn.commit), lift(conn.rollback))
        nested = lift_context(conn.transaction)
        yield User(conn, lift(conn.execute), nested if conn.autocommit else ended, nested)


@asynccontextmanager
async def psycopg_async(dsn: str, **options: Any) -> AsyncIterator[User]:
    conn: AsyncConnection[Any]
    async with await AsyncConnection.connect(dsn, **options) as conn:
        ended = ended_by(conn.commit, conn.rollback)

        @asynccontextmanager
        async def nested() -> AsyncIterator[None]:
            async with conn.transaction():
                yield

        yield User(conn, conn.execute, nested if conn.autocommit else ended, nested, asynchronous=True)


@asynccontextmanager
async def sqlalchemy_sync(dsn: str, make: Callable[[Any], Any], driver: str = "psycopg") -> AsyncIterator[User]:
    engine = create_engine(f"postgresql+{driver}://", connect_args=connect_args(dsn), poolclass=NullPool)
    bound = make(engine)

    def sql(statement: str) -> None:
        (bound if hasattr(bound, "exec_driver_sql") else bound.connection()).exec_driver_sql(statement)

    try:
        ended = ended_by(lift(bound.commit), lift(bound.rollback))
        yield User(bound, lift(sql), ended, lift_context(bound.begin_nested))
    finally:
        bound.close()
        engine.dispose()


@asynccontextmanager
async def sqlalchemy_async(dsn: str, make: Callable[[Any], Any], driver: str) -> AsyncIterator[User]:
    args = connect_args(dsn, "database" if driver == "asyncpg" else "dbname")
    engine = create_async_engine(f"postgresql+{driver}://", connect_args=args, poolclass=NullPool)
    bound = make(engine)
    if hasattr(bound, "start"):  # a connection, which has to be opened; a session is lazy
        await bound.start()

    async def sql(statement: str) -> None:
        found = bound if hasattr(bound, "exec_driver_sql") else await bound.connection()
        await found.exec_driver_sql(statement)

    @asynccontextmanager
    async def nested() -> AsyncIterator[None]:
        async with bound.begin_nested():
            yield

    try:
        yield User(bound, sql, ended_by(bound.commit, bound.rollback), nested, asynchronous=True)
    finally:
        await bound.close()
        await engine.dispose()


@asynccontextmanager
async def asyncpg_connection(dsn: str, **options: Any) -> AsyncIterator[User]:
    conn = await asyncpg.connect(**connect_args(dsn, "database"), **options)
    try:
        yield asyncpg_user(conn)
    finally:
        await conn.close()


@asynccontextmanager
async def asyncpg_pool(dsn: str) -> AsyncIterator[User]:
    args = connect_args(dsn, "database")
    async with asyncpg.create_pool(**args, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        yield asyncpg_user(conn)


def asyncpg_user(conn: Any) -> User:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[None]:
        async with conn.transaction():
            yield

    return User(conn, conn.execute, transaction, transaction, asynchronous=True)


def configure_django(dsn: str) -> None:
    settings: Any = import_module("django.conf").settings
    args = connect_args(dsn)
    wanted = {"ENGINE": "django.db.backends.postgresql", "NAME": args.pop("dbname")}
    wanted |= {name.upper(): args.pop(name) for name in ("user", "password", "host", "port") if name in args}
    if not settings.configured:
        settings.configure(DATABASES={"default": wanted | {"OPTIONS": args}}, USE_TZ=True)
        import_module("django").setup()
    assert settings.DATABASES["default"]["NAME"] == wanted["NAME"], "somebody else has configured Django"


def django_sql(statement: str) -> None:
    with django.connection.cursor() as cursor:
        cursor.execute(statement)


@asynccontextmanager
async def django_sync(dsn: str, pick: Callable[[], Any]) -> AsyncIterator[User]:
    configure_django(dsn)
    atomic = lift_context(import_module("django.db.transaction").atomic)
    try:
        yield User(pick(), lift(django_sql), atomic, atomic)
    finally:
        django.connections.close_all()


@asynccontextmanager
async def django_async(dsn: str, pick: Callable[[], Any]) -> AsyncIterator[User]:
    from asgiref.sync import sync_to_async

    configure_django(dsn)

    @asynccontextmanager
    async def atomic() -> AsyncIterator[None]:
        block = import_module("django.db.transaction").atomic()
        await sync_to_async(block.__enter__)()
        try:
            yield
        except BaseException as error:
            await sync_to_async(block.__exit__)(type(error), error, error.__traceback__)
            raise
        await sync_to_async(block.__exit__)(None, None, None)

    try:
        picked = await sync_to_async(pick)()
        yield User(picked, sync_to_async(django_sql), atomic, atomic, asynchronous=True)
    finally:
        await sync_to_async(django.connections.close_all)()


def async_scoped(engine: Any) -> Any:
    return async_scoped_session(async_sessionmaker(engine), asyncio.current_task)


SYNC: dict[str, OpenUser] = {
    "psycopg": psycopg_sync,
    "psycopg autocommit": partial(psycopg_sync, autocommit=True),
    "psycopg dict_row": partial(psycopg_sync, row_factory=dict_row),
    "sqlalchemy connection": partial(sqlalchemy_sync, make=lambda engine: engine.connect()),
    "sqlalchemy session": partial(sqlalchemy_sync, make=Session),
    "sqlalchemy scoped_session": partial(sqlalchemy_sync, make=lambda engine: scoped_session(sessionmaker(engine))),
    "sqlalchemy session psycopg2": partial(sqlalchemy_sync, make=Session, driver="psycopg2"),
    "django alias": partial(django_sync, pick=lambda: "default"),
    "django wrapper": partial(django_sync, pick=lambda: django.connections["default"]),
    "django connection": partial(django_sync, pick=lambda: django.connection),
}
ASYNC: dict[str, OpenUser] = {
    "psycopg async": psycopg_async,
    "psycopg async autocommit": partial(psycopg_async, autocommit=True),
    "psycopg async dict_row": partial(psycopg_async, row_factory=dict_row),
    "sqlalchemy async connection psycopg": partial(
        sqlalchemy_async, make=lambda engine: engine.connect(), driver="psycopg"
    ),
    "sqlalchemy async session psycopg": partial(sqlalchemy_async, make=AsyncSession, driver="psycopg"),
    "sqlalchemy async connection asyncpg": partial(
        sqlalchemy_async, make=lambda engine: engine.connect(), driver="asyncpg"
    ),
    "sqlalchemy async session asyncpg": partial(sqlalchemy_async, make=AsyncSession, driver="asyncpg"),
    "sqlalchemy async_scoped_session": partial(sqlalchemy_async, make=async_scoped, driver="asyncpg"),
    "asyncpg": asyncpg_connection,
    "asyncpg uncached": partial(asyncpg_connection, statement_cache_size=0),
    "asyncpg pool": asyncpg_pool,
    "django async alias": partial(django_async, pick=lambda: "default"),
    "django async wrapper": partial(django_async, pick=lambda: django.connections["default"]),
}
KINDS = SYNC | ASYNC


def some(*names: str) -> pytest.MarkDecorator:
    """These kinds, or all of them."""
    no_psycopg2 = pytest.mark.skipif(find_spec("psycopg2") is None, reason="psycopg2 is not installed")
    marks = {name: [no_psycopg2] if "psycopg2" in name else [] for name in KINDS}
    return pytest.mark.parametrize("kind", [pytest.param(name, marks=marks[name]) for name in names or KINDS])


@pytest.fixture
def tell(conn: Conn, dsn: str) -> Iterator[Callable[[str, Story], None]]:
    """Runs a story for a user of that kind, beside the user's own table."""
    conn.execute("drop table if exists public.orders")
    conn.execute("create table public.orders (n int)")

    def run(kind: str, story: Story) -> None:
        async def whole() -> None:
            async with KINDS[kind](dsn) as user:
                await story(user)

        if kind in ASYNC:
            asyncio.run(whole())
            return
        with pytest.raises(StopIteration):  # it ended without having suspended
            whole().send(None)

    yield run
    conn.execute("drop table public.orders")


def stored(conn: Conn) -> list[int]:
    return [row["n"] for row in rows(conn, "select (payload->>'n')::int as n from pgqueue.job order by 1")]


def orders(conn: Conn) -> list[int]:
    return [row["n"] for row in rows(conn, "select n from public.orders order by 1")]


Tell = Callable[[str, Story], None]


# -------------------------------------------------------------------------------- every kind, one fate


@some()
def test_a_job_is_committed_together_with_the_callers_own_row(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        async with user.transaction():
            await user.enqueue(1)
            await user.sql("insert into public.orders values (1)")
            await user.enqueue(2)
            assert (stored(conn), orders(conn)) == ([], [])
        async with user.transaction():
            await user.sql("insert into public.orders values (2)")
            await user.enqueue(3)

    tell(kind, story)
    assert (stored(conn), orders(conn)) == ([1, 2, 3], [1, 2])


@some()
def test_a_job_alone_is_committed(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        async with user.transaction():
            await user.enqueue(1)
        assert stored(conn) == [1]

    tell(kind, story)
    assert stored(conn) == [1]


@some()
def test_a_rollback_takes_the_job_with_it(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        async with undone(user.transaction()):
            await user.enqueue(1)
        async with undone(user.transaction()):
            await user.sql("insert into public.orders values (1)")
            await user.enqueue(2)
        assert (stored(conn), orders(conn)) == ([], [])
        async with user.transaction():
            await user.enqueue(3)

    tell(kind, story)
    assert (stored(conn), orders(conn)) == ([3], [])


@some()
def test_a_savepoint_takes_only_its_own_jobs_with_it(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        async with user.transaction():
            await user.enqueue(1)
            async with undone(user.savepoint()):
                await user.enqueue(2)
            async with user.savepoint():
                await user.enqueue(3)

    tell(kind, story)
    assert stored(conn) == [1, 3]


# In psycopg a transaction() block that comes first is the transaction itself, unless autocommit is on.
@some(*(name for name in KINDS if not name.startswith("psycopg") or "autocommit" in name))
def test_a_savepoint_that_comes_first_does_not_hold_its_job(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        async with user.transaction():
            async with undone(user.savepoint()):
                await user.enqueue(1)
            await user.enqueue(2)
        async with undone(user.transaction()), user.savepoint():
            await user.enqueue(3)

    tell(kind, story)
    assert stored(conn) == [2]


@some()
def test_a_typed_error_in_a_savepoint_leaves_the_transaction_usable(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        async with user.transaction():
            first = await user.enqueue(1, key="k")
            with pytest.raises(KeyTaken, match=f"taken by job {first}") as taken:
                async with user.savepoint():
                    await user.enqueue(2, key="k", on_conflict="raise")
            with pytest.raises(InvalidArgument, match="bad queue name"):
                async with user.savepoint():
                    await user.run(db.enqueue("no blanks", "t"))
            assert taken.value.__cause__ is None
            await user.sql("insert into public.orders values (1)")
            await user.enqueue(3)

    tell(kind, story)
    assert (stored(conn), orders(conn)) == ([1, 3], [1])


@some()
def test_a_typed_error_says_the_hint_too(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        with pytest.raises(InvalidArgument, match=r"See retry_delay\(\) for what a policy may say\.$"):
            async with user.transaction():
                await user.enqueue(1, retry={"type": "hope"})

    tell(kind, story)
    assert stored(conn) == []


@some()
def test_a_missing_function_says_that_the_schema_does_not_fit(kind: str, tell: Tell) -> None:
    async def story(user: User) -> None:
        with pytest.raises(SchemaError, match="pgqueue migrate"):
            async with user.transaction():
                await user.run(Call("select pgqueue.no_such_function()", [], lambda found: found))

    tell(kind, story)


def error_of(kind: str) -> type[Exception]:
    if kind.startswith("asyncpg"):
        return asyncpg.PostgresError  # type: ignore[no-any-return]
    if kind.startswith("django"):
        return django.Error  # type: ignore[no-any-return]
    through_sqlalchemy = "asyncpg" in kind or "psycopg2" in kind or "async_scoped" in kind
    return DBAPIError if through_sqlalchemy else psycopg.Error


@some()
def test_errors_of_postgres_pass_as_the_library_raises_them(kind: str, tell: Tell) -> None:
    async def story(user: User) -> None:
        with pytest.raises(error_of(kind), match="division by zero") as caught:
            async with user.transaction():
                await user.run(Call("select 1 / $1::int", [0], lambda found: found))
        assert not isinstance(caught.value, PgqueueError)

    tell(kind, story)


# ------------------------------------------------------------------------- what goes in and comes back


@some()
def test_every_option_reaches_the_job(kind: str, tell: Tell, conn: Conn) -> None:
    later = datetime(2030, 1, 1, tzinfo=UTC)
    found: list[int] = []

    async def story(user: User) -> None:
        async with user.transaction():
            call = db.enqueue(
                "q", "t", {"text": "100 % of $1 and %s, ü, '\"\\"}, key="k", key_ttl=timedelta(days=1), priority=5,
                run_at=later, expires_at=later + timedelta(days=1), max_attempts=3, tags=["a", "b,c"],
                retry={"type": "fixed", "delay": 60}, timeout_seconds=9, meta={"trace": "1"},
                retain_for=timedelta(days=2),
            )  # fmt: skip
            made = await user.run(call)
            assert made.created is True
            assert await user.run(db.enqueue("q", "t", key="k")) == (made.id, False)
        found.append(made.id)

    tell(kind, story)
    kept = job(conn, found[0])
    assert kept["payload"] == {"text": "100 % of $1 and %s, ü, '\"\\"}
    assert (kept["run_at"], kept["expires_at"] - kept["run_at"]) == (later, timedelta(days=1))
    assert (kept["key"], kept["priority"], kept["max_attempts"], kept["tags"]) == ("k", 5, 3, ["a", "b,c"])
    assert (kept["retry"]["delay"], kept["timeout_seconds"], kept["meta"]) == (60, 9, {"trace": "1"})


@some()
def test_many_jobs_are_enqueued_and_claimed(kind: str, tell: Tell, conn: Conn) -> None:
    payloads = [{"n": n, "deep": [{"a": None}, "ü"]} for n in range(3)]

    async def story(user: User) -> None:
        async with user.transaction():
            made = await user.run(db.enqueue_many("q", "t", payloads, keys=["a", "b", "c"]))
            assert [one.created for one in made] == [True] * 3
        async with user.transaction():
            worker_id = await user.run(db.register_worker("test", ["q"]))
            held = await user.run(db.claim(worker_id, ["q"], 10))
        assert [(one.id, one.payload, one.meta) for one in held] == [
            (one.id, payload, None) for one, payload in zip(made, payloads, strict=True)
        ]
        assert held[0].enqueued_at.utcoffset() is not None

    tell(kind, story)


@some()
def test_json_is_read_exactly_once(kind: str, tell: Tell) -> None:
    query = (
        """select $1::int as a, '"true"'::jsonb as b, 'null'::jsonb as b, null::jsonb, '[1, "%"]'::jsonb, 'x' || $2"""
    )

    async def story(user: User) -> None:
        for _ in range(2):
            async with user.transaction():
                found = await user.run(Call(query, [7, "%"], lambda found: found))
            assert found == [(7, "true", None, None, [1, "%"], "x%")]
            assert type(found[0]) is tuple

    tell(kind, story)


def test_codecs_of_the_callers_asyncpg_connection_neither_matter_nor_change(tell: Tell, conn: Conn) -> None:
    json: Any = import_module("json")

    async def story(user: User) -> None:
        await user.conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await user.enqueue(1, meta={"trace": "1"})
        await user.run(db.enqueue_many("q", "t", [{"n": 2}]))
        (found,) = await user.run(Call("""select '"x"'::jsonb, '{"a": 1}'::jsonb""", [], lambda found: found))
        assert found == ("x", {"a": 1})
        assert await user.conn.fetchval("select $1::jsonb", {"b": 2}) == {"b": 2}

    tell("asyncpg", story)
    assert stored(conn) == [1, 2]


def test_a_record_class_of_the_callers_asyncpg_connection_does_not_matter(dsn: str, conn: Conn) -> None:
    class Reversed(asyncpg.Record):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return iter(list(self.values())[::-1])

    async def story() -> None:
        async with asyncpg_connection(dsn, record_class=Reversed) as user:
            assert await user.run(Call("select 1, 2", [], lambda found: found)) == [(1, 2)]

    asyncio.run(story())


# ------------------------------------------------------------------------------------- special corners


@some("psycopg autocommit", "psycopg async autocommit", "asyncpg", "asyncpg pool", "django alias", "django async alias")
def test_without_a_transaction_the_job_is_there_at_once(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        await user.enqueue(1)
        assert stored(conn) == [1]

    tell(kind, story)


@some(*(name for name in KINDS if "sqlalchemy" in name))
def test_a_session_that_is_closed_without_commit_leaves_no_job(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        await user.enqueue(1)

    tell(kind, story)
    assert stored(conn) == []


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_the_synchronous_session_inside_run_sync_enqueues_too(driver: str, tell: Tell, conn: Conn) -> None:
    def inside(session: Session, n: int) -> None:
        assert is_async(session) is False
        execute(session, db.enqueue("q", "t", {"n": n}))

    async def story(user: User) -> None:
        async with user.transaction():
            await user.conn.run_sync(inside, 1)
        async with undone(user.transaction()):
            await user.conn.run_sync(inside, 2)

    tell(f"sqlalchemy async session {driver}", story)
    assert stored(conn) == [1]


@some("sqlalchemy connection", "sqlalchemy session")
def test_after_a_rollback_inside_its_block_sqlalchemy_refuses(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        with user.conn.begin() as block:
            block.rollback()
            with pytest.raises(InvalidRequestError, match="closed transaction"):
                await user.enqueue(1)

    tell(kind, story)
    assert stored(conn) == []


def test_server_side_cursors_of_the_caller_do_not_delay_the_job(tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        await user.conn.execution_options(stream_results=True)
        async with user.transaction():
            await user.enqueue(1)

    tell("sqlalchemy async connection asyncpg", story)
    assert stored(conn) == [1]


def test_a_broken_atomic_block_refuses_as_django_does(tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        async with user.transaction():
            django.connection.set_rollback(True)
            with pytest.raises(django.transaction.TransactionManagementError):
                await user.enqueue(1)

    tell("django alias", story)
    assert stored(conn) == []


def test_django_sees_our_statement_in_its_execute_wrappers(tell: Tell) -> None:
    seen: list[str] = []

    def spy(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return run(sql, params, many, context)

    async def story(user: User) -> None:
        with user.conn.execute_wrapper(spy):
            await user.enqueue(1)

    tell("django wrapper", story)
    assert len(seen) == 1
    assert "pgqueue.enqueue(" in seen[0]


def test_an_unknown_django_alias_is_refused_without_repeating_it(tell: Tell) -> None:
    async def story(user: User) -> None:
        with pytest.raises(InvalidArgument, match="only default") as caught:
            execute("postgresql://u:secret@host/db", db.enqueue("q", "t"))
        assert "secret" not in str(caught.value)

    tell("django alias", story)


# ------------------------------------------------------------------------------------ the wrong things


@some()
def test_each_kind_says_which_call_it_needs(kind: str, tell: Tell, conn: Conn) -> None:
    async def story(user: User) -> None:
        assert is_async(user.conn) is (user.asynchronous and "django" not in kind)
        if "django" in kind:  # takes both
            return
        if user.asynchronous:
            with pytest.raises(InvalidArgument, match=f"{type(user.conn).__name__} is asynchronous: use aenqueue"):
                execute(user.conn, db.enqueue("q", "t"))
        else:
            with pytest.raises(InvalidArgument, match=f"{type(user.conn).__name__} is synchronous: use enqueue"):
                await aexecute(user.conn, db.enqueue("q", "t"))

    tell(kind, story)
    assert stored(conn) == []


@pytest.mark.parametrize("thing", [None, 7, {1}, create_engine("postgresql+psycopg://")], ids=repr)
def test_what_is_no_connection_is_named(thing: object) -> None:
    for ask in (is_async, lambda given: execute(given, db.enqueue("q", "t"))):
        with pytest.raises(InvalidArgument, match=f"{type(thing).__name__} is no connection .* psycopg .* Django"):
            ask(thing)


def test_a_text_is_no_connection_where_django_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django.db")
    with pytest.raises(InvalidArgument, match="str is no connection"):
        is_async("default")


def test_another_database_of_sqlalchemy_is_refused() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as conn, pytest.raises(InvalidArgument, match=r"SQLAlchemy on sqlite\+pysqlite"):
        execute(conn, db.enqueue("q", "t"))
    engine.dispose()


def test_another_database_of_django_is_refused(dsn: str) -> None:
    configure_django(dsn)
    sqlite: Any = import_module("django.db.backends.sqlite3.base")
    wrapper = sqlite.DatabaseWrapper({"NAME": ":memory:"}, alias="files")
    with pytest.raises(InvalidArgument, match="'files' is sqlite, not PostgreSQL"):
        execute(wrapper, db.enqueue("q", "t"))


def test_no_library_of_the_caller_is_imported() -> None:
    libraries = {"sqlalchemy.orm", "sqlalchemy.ext.asyncio", "asyncpg", "django", "asgiref"}
    code = f"import sys, {connections.__name__}; print(*{libraries} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
