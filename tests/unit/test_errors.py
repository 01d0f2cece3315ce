from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from pgqueue import errors, schema
from tests.conftest import MakeDatabase
from tests.support import Conn

TABLE = [
    ("PQ001", errors.InvalidArgument),
    ("PQ002", errors.JobNotFound),
    ("PQ003", errors.WrongStatus),
    ("PQ004", errors.KeyTaken),
    ("PQ005", errors.WorkerLost),
    ("PQ006", errors.PayloadError),
    ("PQ007", errors.QueueFull),
]


def raised(conn: Conn, sqlstate: str, message: str, hint: str = "") -> psycopg.Error:
    """An error as PostgreSQL itself sends it."""
    using = f"errcode = '{sqlstate}', message = '{message}'" + (f", hint = '{hint}'" if hint else "")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(f"do $$ begin raise exception using {using}; end $$")
    return caught.value


@pytest.mark.parametrize(("sqlstate", "kind"), TABLE)
def test_each_of_our_codes_has_its_type(conn: Conn, sqlstate: str, kind: type[Exception]) -> None:
    error = errors.from_postgres(raised(conn, sqlstate, "what happened", "What to do."))
    assert type(error) is kind
    assert str(error) == "what happened What to do."
    assert str(errors.from_postgres(raised(conn, sqlstate, "what happened"))) == "what happened"


def test_every_type_is_a_pgqueue_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    assert len(kinds) >= 10
    assert all(issubclass(kind, errors.PgqueueError) for kind in kinds)


def test_every_code_that_the_sql_raises_is_in_the_table() -> None:
    used = {code for path in schema.sql_files() for code in re.findall(r"errcode = '(PQ\d+)'", path.read_text())}
    assert used == {code for code, _ in TABLE}


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "57014", "23505", "42501", "PQ999"])
def test_other_errors_pass_untouched(conn: Conn, sqlstate: str) -> None:
    error = raised(conn, sqlstate, "pgqueue is mentioned")
    assert errors.from_postgres(error) is error


def test_an_error_without_a_code_passes_untouched() -> None:
    error = psycopg.OperationalError("connection lost")
    assert errors.from_postgres(error) is error


@pytest.mark.parametrize("sqlstate", ["3F000", "42883", "42P01"])
def test_something_missing_that_is_not_ours_passes_untouched(conn: Conn, sqlstate: str) -> None:
    error = raised(conn, sqlstate, "relation shop.order does not exist")
    assert errors.from_postgres(error) is error


def test_without_our_schema_the_error_says_what_to_do(make_database: MakeDatabase) -> None:
    with psycopg.connect(make_database(), autocommit=True) as empty:
        calls: list[db.Call[Any]] = [db.enqueue("q", "t"), db.sweep()]
        for call in calls:
            with pytest.raises(errors.SchemaError, match=r"run `pgqueue migrate` on this database first"):
                db.execute(empty, call)
        empty.execute("create schema pgqueue")
        with pytest.raises(errors.SchemaError, match=r"run `pgqueue migrate` on this database first"):
            db.execute(empty, db.enqueue("q", "t"))


async def test_async_calls_raise_the_same_types(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        with pytest.raises(errors.JobNotFound):
            await db.aexecute(conn, db.cancel(987654321))
