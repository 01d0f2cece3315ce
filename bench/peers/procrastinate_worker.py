"""procrastinate on its asynchronous psycopg connector (the C build), one connection to spare for each concurrent job.

It claims one job a call and completes one job a call: SIZE is its concurrency, so that several such calls are under way
at once. LISTEN is on, as shipped. Bulk enqueue is `batch_defer_async`, 1,000 jobs a call. Finished jobs stay in its
table, as shipped; `delete_jobs` would cost it a little less room and as much time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import procrastinate

from bench.peers import protocol

MOST_CONNECTIONS = 20

app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=1, max_size=MOST_CONNECTIONS))


@app.task(name="noop")
async def noop(i: int, pad: str = "") -> None:  # noqa: ARG001
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        await asyncio.sleep(protocol.SLEEP_SECONDS)


@app.task(name="tell")
async def tell(i: int) -> None:
    protocol.told(i)


class Procrastinate:
    async def install(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async()

    async def close(self) -> None:
        await app.close_async()

    async def one(self, task: str, payload: protocol.Payload) -> None:
        await app.tasks[task].defer_async(**payload)

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        options: dict[str, Any] = (
            {"schedule_in": {"seconds": int(protocol.DELAY_SECONDS)}} if protocol.DELAY_SECONDS else {}
        )
        await app.configure_task(task, **options).batch_defer_async(*payloads)

    async def work(self, size: str, drain: bool) -> None:  # noqa: ARG002
        async with app.open_async():
            await app.run_worker_async(concurrency=int(size))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(Procrastinate())
