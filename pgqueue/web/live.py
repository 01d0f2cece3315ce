"""Live pages: the same page again and again as server-sent events, as long as somebody looks at it.

What several look at is made once. A page that takes long is made less often: looking may take a tenth of a connection,
no more. A stream ends after STREAM_SECONDS; the browser comes back by itself, and is asked again who it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

EVERY_SECONDS = 2.0
SHARE = 10  # a page that takes a second is made every ten
STREAM_SECONDS = 300.0
STREAMS = 100


@dataclass
class _Made:
    at: float
    took: float
    main: str


class Live:
    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._streams = 0

    @property
    def full(self) -> bool:
        return self._streams >= STREAMS

    async def stream(self, key: str, make: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
        """`make` gives the main part of the page. What has not changed is not sent again."""
        self._streams += 1
        self._locks.setdefault(key, asyncio.Lock())
        ends, sent = time.monotonic() + STREAM_SECONDS, ""
        try:
            yield "retry: 3000\n\n"
            while time.monotonic() < ends:
                made = await self._get(key, make)
                yield _event("main", made.main) if made.main != sent else ": still here\n\n"
                sent = made.main
                await asyncio.sleep(max(EVERY_SECONDS, made.took * SHARE))
        finally:
            self._streams -= 1
            if self._streams == 0:  # nobody looks: nothing is kept
                self._made.clear()
                self._locks.clear()

    async def _get(self, key: str, make: Callable[[], Awaitable[str]]) -> _Made:
        async with self._locks.setdefault(key, asyncio.Lock()):
            made = self._made.get(key)
            if made is None or time.monotonic() - made.at > max(EVERY_SECONDS, made.took * SHARE) * 0.9:
                # Shielded: who leaves would break off a query, and cost its connection.
                made = self._made[key] = await asyncio.shield(asyncio.ensure_future(_timed(make)))
            return made


async def _timed(make: Callable[[], Awaitable[str]]) -> _Made:
    began = time.monotonic()
    main = await make()
    return _Made(time.monotonic(), time.monotonic() - began, main)


def _event(name: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {name}\n{lines}\n"
