"""Streams: what many of them cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pgqueue.web import live
from pgqueue.web.live import Live
from tests.web.conftest import Serve


async def first(stream: AsyncIterator[str]) -> str:
    assert "retry" in await anext(stream)
    return await anext(stream)


async def close(*streams: Any) -> None:
    for each in streams:
        await each.aclose()


async def test_what_several_look_at_is_made_once() -> None:
    made: list[int] = []

    async def make() -> str:
        made.append(1)
        return "page"

    shared = Live()
    streams = [shared.stream("a", make) for _ in range(3)]
    assert {await first(each) for each in streams} == {"event: main\ndata: page\n\n"}
    assert len(made) == 1
    await close(*streams)


async def test_a_page_is_kept_only_while_somebody_looks_at_it() -> None:
    async def make() -> str:
        return "page"

    shared = Live()
    stays = shared.stream("stays", make)
    await first(stays)
    for n in range(50):
        stream = shared.stream(f"search {n}", make)
        await first(stream)
        await close(stream)
    assert shared.kept == 1
    await close(stays)
    assert shared.kept == 0


async def test_slow_pages_leave_connections_to_others_however_many_are_open() -> None:
    at_work, most, busy, go_on = 0, 0, asyncio.Event(), asyncio.Event()

    async def make() -> str:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        if at_work == live.MAKING:
            busy.set()
        await go_on.wait()
        at_work -= 1
        return "page"

    shared = Live()
    streams = [shared.stream(f"search {n}", make) for n in range(20)]
    asked = [asyncio.ensure_future(first(each)) for each in streams]
    await busy.wait()
    # Who leaves is out of the line.
    for each in asked[10:]:
        each.cancel()
    go_on.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert (most, at_work) == (live.MAKING, 0)
    await close(*streams)


async def test_there_is_an_end_to_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def make() -> str:
        return "page"

    monkeypatch.setattr(live, "STREAMS", 2)
    shared = Live()
    streams = [shared.stream("a", make) for _ in range(2)]
    for each in streams:
        await first(each)
    assert shared.full
    assert [part async for part in shared.stream("a", make)] == ["retry: 30000\n\n"]
    await close(*streams)
    assert not shared.full


def test_one_stream_too_many_is_told_when_to_come_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS", 0)
    answer = serve().get("/", accept="text/event-stream")
    assert (answer.status, answer.headers["retry-after"]) == (503, "30")
