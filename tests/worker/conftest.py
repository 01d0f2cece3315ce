from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from pgqueue import App
from tests.support import Conn
from tests.worker.running import Process, processes


@pytest.fixture
async def app(dsn: str, conn: Conn) -> AsyncIterator[App]:
    """An app on an empty queue, without tasks."""
    made = App(dsn)
    yield made
    await made.aclose()


@pytest.fixture
def start(dsn: str, conn: Conn, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    conn.execute("drop table if exists effect")
    conn.execute("create table effect (job_id bigint, attempt int, pid int, at timestamptz default clock_timestamp())")
    yield from processes(dsn, tmp_path)
