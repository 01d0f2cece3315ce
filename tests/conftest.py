"""A real PostgreSQL for every test.

The server is the one in PGQUEUE_TEST_DATABASE_URL, else a container of PGQUEUE_TEST_IMAGE (postgres:17, say; needs
Docker), else an embedded one. Each run has a database of its own, dropped afterwards; each test starts with an empty
queue.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import embedded, schema
from tests.support import Conn

MakeDatabase = Callable[[], str]
# What takes longest begins first, so that no process is left alone with it at the end.
SLOW = (
    "chaos/",
    "worker/test_processes",
    "worker/test_faults",
    "worker/",
    "model/",
    "embedded/",
    "race/",
    "web/",
    "plans/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable: within a file nothing changes its place."""

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        return next((n for n, start in enumerate(SLOW) if path.startswith(start)), len(SLOW))

    items.sort(key=place)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A server on which we may create databases."""
    given = os.environ.get("PGQUEUE_TEST_DATABASE_URL")
    image = os.environ.get("PGQUEUE_TEST_IMAGE")
    if given:
        yield given
    elif image:
        from testcontainers.community.postgres import PostgresContainer

        with PostgresContainer(image, driver=None) as container:
            yield container.get_connection_url()
    else:
        # Nothing here survives the run, so durability would only cost time.
        with embedded.temporary(
            settings={
                "fsync": "off",
                "full_page_writes": "off",
                "max_wal_size": "4GB",
                "max_prepared_transactions": "5",
            }
        ) as server:
            yield server.url()


@pytest.fixture(scope="session")
def make_database(server_url: str) -> Iterator[MakeDatabase]:
    """Empty databases, dropped at the end of the run."""
    with psycopg.connect(server_url, autocommit=True) as admin, ExitStack() as undo:

        def make() -> str:
            name = f"pgqueue_test_{os.getpid()}_{secrets.token_hex(4)}"
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            undo.callback(admin.execute, sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
            return make_conninfo(server_url, dbname=name)

        yield make


@pytest.fixture(scope="session")
def dsn(make_database: MakeDatabase) -> str:
    """The migrated database that most tests share."""
    created = make_database()
    schema.migrate(created)
    return created


@pytest.fixture
def connect(dsn: str) -> Iterator[Callable[..., Conn]]:
    """More connections to the shared database; closed after the test."""
    opened: list[Conn] = []

    def open_one(**options: Any) -> Conn:
        connection: Conn = psycopg.connect(dsn, **{"autocommit": True, **options})
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def conn(dsn: str) -> Iterator[Conn]:
    """An autocommit connection to an empty queue."""
    connection: Conn = psycopg.connect(dsn, autocommit=True)
    _empty(connection)
    yield connection
    connection.close()


def _empty(connection: Conn) -> None:
    tables = (
        "job job_attempt job_step job_log key_hold worker lane queue_gate queue_group queue_gone queue task"
        " task_outcome recurring_job recurring_run tally metric queue_sample event flow flow_node flow_edge audit"
    )
    for table in tables.split():
        connection.execute(sql.SQL("delete from pgqueue.{}").format(sql.Identifier(table)))
    connection.execute("delete from pgqueue.setting")
    connection.execute("insert into pgqueue.setting default values")
    connection.execute("select pgqueue.ensure_partitions()")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged may hold half a surrogate pair, which cannot go from one process to another."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report
