"""Fixtures for the tests of programs that enqueue; see docs/testing.md.

pytest imports this file in every project that has pgqueue installed: everything else is imported when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from pgqueue import App
    from pgqueue.testing import Sandbox


@pytest.fixture(scope="session")
def pgqueue_database_url() -> Iterator[str]:
    """A new database with pgqueue in it: on the server of PGQUEUE_TEST_DATABASE_URL or DATABASE_URL, else on an
    embedded one. Never the database that is named there, which may hold jobs that somebody needs."""
    import secrets

    import psycopg
    from psycopg import sql
    from psycopg.conninfo import make_conninfo

    from pgqueue import config, embedded, schema

    given = os.environ.get("PGQUEUE_TEST_DATABASE_URL") or os.environ.get("DATABASE_URL")
    with ExitStack() as undo:
        if given:
            server_url = config.normalise(given)
        else:
            server = undo.enter_context(embedded.temporary(settings={"fsync": "off", "full_page_writes": "off"}))
            server_url = server.url()
        admin = undo.enter_context(psycopg.connect(server_url, autocommit=True))
        name = sql.Identifier(f"pgqueue_test_{os.getpid()}_{secrets.token_hex(4)}")
        try:
            admin.execute(sql.SQL("create database {}").format(name))
        except psycopg.errors.InsufficientPrivilege as error:
            raise pytest.UsageError(
                f"{error}: name a server on which tests may create one in PGQUEUE_TEST_DATABASE_URL,"
                " or override the fixture pgqueue_database_url with a database of your own"
            ) from None
        undo.callback(admin.execute, sql.SQL("drop database {} with (force)").format(name))
        url = make_conninfo(server_url, dbname=name.as_string().strip('"'))
        schema.migrate(url)
        yield url


@pytest.fixture
def pgqueue_conn(pgqueue_database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in a transaction that is rolled back after the test. The code under test may commit() and
    rollback() as it likes: both end at a savepoint."""
    import psycopg

    from pgqueue.testing import Borrowed

    connection = psycopg.connect(pgqueue_database_url)
    try:
        yield Borrowed(connection)
    finally:
        connection.close()  # which rolls back


@pytest.fixture
def pgqueue_app() -> App:
    """Your app. Override this fixture."""
    raise pytest.UsageError(
        "pgqueue_queue needs your app: define a fixture pgqueue_app that returns it, in conftest.py for instance"
    )


@pytest.fixture
def pgqueue_queue(pgqueue_app: App, pgqueue_conn: psycopg.Connection[Any]) -> Iterator[Sandbox]:
    """The app's queue, empty, in the transaction of pgqueue_conn."""
    from pgqueue.testing import Sandbox

    with Sandbox(pgqueue_app, pgqueue_conn) as queue:
        yield queue
