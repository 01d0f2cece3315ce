"""The connections of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from pgqueue import database as db
from pgqueue.web.access import Viewer
from pgqueue.web.source import Source
from tests.support import Conn


@pytest.fixture
async def source(dsn: str, conn: Conn) -> AsyncIterator[Source]:
    made = Source(dsn, 5)
    yield made
    await made.close()


async def asked(source: Source) -> object:
    async with source.asking(Viewer("reader")) as ask:
        return await ask(db.clock())


async def test_the_first_requests_may_come_together(source: Source) -> None:
    assert len(await asyncio.gather(*(asked(source) for _ in range(20)))) == 20


async def test_what_was_closed_is_not_opened_by_who_comes_late(source: Source) -> None:
    await asked(source)
    await source.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        await asked(source)
    source.start()
    await asked(source)


async def test_every_transaction_has_its_role_and_its_time(source: Source) -> None:
    for viewer, role in ((Viewer("a"), "pgqueue_reader"), (Viewer("b", may_act=True), "pgqueue_operator")):
        async with source.asking(viewer) as ask:
            told = db.Call(
                "select current_user, current_setting('transaction_read_only'), current_setting('statement_timeout')",
                [],
                lambda rows: rows[0],
            )
            assert await ask(told) == (role, "on", "5s")
            slow = db.Call("select pg_sleep(5)", [], len)
            assert await ask.within(50, slow) is None
            assert await ask(told) == (role, "on", "5s")
