"""arq on Redis, with hiredis. SIZE is `max_jobs`; it reads five times as many from the queue, its default.

Results are not kept. It polls: every 0.5 s by default, every 50 ms here, which is what its latency comes from. It has
no bulk enqueue: a hundred calls are under way at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from arq import Worker, create_pool
from arq.connections import RedisSettings

from bench.peers import protocol

AT_ONCE = 100
settings = RedisSettings.from_dsn(os.environ["REDIS_URL"])


async def noop(_: Any, i: int, pad: str = "") -> None:  # noqa: ARG001
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        await asyncio.sleep(protocol.SLEEP_SECONDS)


async def tell(_: Any, i: int) -> None:
    protocol.told(i)


class Arq:
    pool: Any

    async def install(self) -> None:
        await self.open()
        await self.pool.flushdb()
        await self.close()

    async def open(self) -> None:
        self.pool = await create_pool(settings)

    async def close(self) -> None:
        await self.pool.aclose()

    async def one(self, task: str, payload: protocol.Payload) -> None:
        await self.pool.enqueue_job(task, **payload)

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        for start in range(0, len(payloads), AT_ONCE):
            await asyncio.gather(
                *(self.pool.enqueue_job(task, **each) for each in payloads[start : start + AT_ONCE]),
            )

    async def work(self, size: str, drain: bool) -> None:  # noqa: ARG002
        worker = Worker(
            [noop, tell],
            redis_settings=settings,
            max_jobs=int(size),
            keep_result=0,
            poll_delay=0.05,
            log_results=False,
            handle_signals=False,
        )
        working = asyncio.create_task(worker.main())
        await protocol.stopped().wait()
        working.cancel()
        await asyncio.wait({working})
        await worker.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(Arq())
