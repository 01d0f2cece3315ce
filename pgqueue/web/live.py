"""Live pages: the same page again and again as server-sent events, as long as somebody looks at it.

What several look at is made once, and kept while one of them looks. A page that takes long is made less often: to look
at it takes a tenth of a connection, no more. All of them together take MAKING connections of the pool, so that who asks
for a page, or acts, finds one. A stream ends after STREAM_SECONDS; the browser comes back by itself, and is asked again
who it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

EVERY_SECONDS = 2.0
SHARE = 10  # a page that takes a second is made every ten
STREAM_SECONDS = 300.0
STREAMS = 100
MAKING = 2


@dataclass
class _Made:
    at: float
    took: float
    main: str


@dataclass
class _Watched:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    viewers: int = 0
    made: _Made | None = None


class Live:
    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._streams = 0
        self._making = asyncio.Semaphore(MAKING)

    @property
    def full(self) -> bool:
        return self._streams >= STREAMS

    @property
    def kept(self) -> int:
        """How many pages are kept for those who look at them."""
        return len(self._watched)

    async def stream(self, key: str, make: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
        """`make` gives the main part of the page. What has not changed is not sent again."""
        if self.full:  # several can come between the question and this
            yield "retry: 30000\n\n"
            return
        self._streams += 1
        watched = self._watched.setdefault(key, _Watched())
        watched.viewers += 1
        ends, sent = time.monotonic() + STREAM_SECONDS, ""
        try:
            yield "retry: 3000\n\n"
            while time.monotonic() < ends:
                made = await self._get(watched, make)
                yield _event("main", made.main) if made.main != sent else ": still here\n\n"
                sent = made.main
                await asyncio.sleep(max(EVERY_SECONDS, made.took * SHARE))
        finally:
            self._streams -= 1
            watched.viewers -= 1
            if not watched.viewers:
                self._watched.pop(key, None)

    async def _get(self, watched: _Watched, make: Callable[[], Awaitable[str]]) -> _Made:
        async with watched.lock:
            made = watched.made
            if made is None or time.monotonic() - made.at > max(EVERY_SECONDS, made.took * SHARE) * 0.9:
                # Who leaves while he waits for his turn is out of the line. Then it is shielded: to break off a query
                # costs its connection.
                await self._making.acquire()
                making = asyncio.ensure_future(_timed(make))
                making.add_done_callback(lambda _: self._making.release())
                made = watched.made = await asyncio.shield(making)
            return made


async def _timed(make: Callable[[], Awaitable[str]]) -> _Made:
    began = time.monotonic()
    main = await make()
    return _Made(time.monotonic(), time.monotonic() - began, main)


def _event(name: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {name}\n{lines}\n"
