from __future__ import annotations

import pytest

from pgqueue import schema
from tests.cli.conftest import run
from tests.conftest import MakeDatabase
from tests.web.conftest import ports, serve

__all__ = ["dsn", "ports", "run", "serve"]


@pytest.fixture(scope="session")
def dsn(make_database: MakeDatabase) -> str:
    """A database of its own: what is said here makes partitions and triggers, which no emptied table takes away."""
    created = make_database()
    schema.migrate(created)
    return created
