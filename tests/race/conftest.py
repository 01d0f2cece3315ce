"""The two sides of a race: `holder` keeps its transaction open, `other` and `third` commit every statement."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import Conn


@pytest.fixture
def holder(conn: Conn, connect: Callable[..., Conn]) -> Conn:
    return connect(autocommit=False)


@pytest.fixture
def other(conn: Conn, connect: Callable[..., Conn]) -> Conn:
    return connect()


@pytest.fixture
def third(conn: Conn, connect: Callable[..., Conn]) -> Conn:
    return connect()
