"""pgqueuer on asyncpg and uvloop, as its own `pgq run`; all its tables logged, which is its default.

It drains with a pool, so that it can claim and report at the same time (three pairs of runs: 6,200, 7,600, 6,000 jobs/s
beside 6,200, 3,800, 5,400 with one connection, on a busy machine), and waits with one connection, because a pool sends
a reset after every query. SIZE is its batch size; how many run at once it does not limit. Completions are buffered for
up to 0.1 s, its default. Its payloads are bytes: the handlers decode the JSON that ours get decoded. Finished jobs stay
in its log table.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

from bench.peers import protocol


async def noop(job: Any) -> None:
    json.loads(job.payload)
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        await asyncio.sleep(protocol.SLEEP_SECONDS)


async def tell(job: Any) -> None:
    protocol.told(json.loads(job.payload)["i"])


class Pgqueuer:
    conn: Any
    queries: Any

    async def install(self) -> None:
        conn = await asyncpg.connect()
        await Queries.from_asyncpg_connection(conn).install()
        await conn.close()

    async def open(self) -> None:
        self.conn = await asyncpg.connect()
        self.queries = Queries.from_asyncpg_connection(self.conn)

    async def close(self) -> None:
        await self.conn.close()

    async def one(self, task: str, payload: protocol.Payload) -> None:
        await self.queries.enqueue(task, json.dumps(payload).encode())

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        later = [timedelta(seconds=protocol.DELAY_SECONDS)] * len(payloads) if protocol.DELAY_SECONDS else None
        bodies = [json.dumps(each).encode() for each in payloads]
        await self.queries.enqueue([task] * len(bodies), bodies, [0] * len(bodies), execute_after=later)

    async def work(self, size: str, drain: bool) -> None:
        if drain:
            async with asyncpg.create_pool(min_size=2, max_size=4) as pool:
                await self._run(PgQueuer.from_asyncpg_pool(pool), int(size))
        else:
            conn = await asyncpg.connect()
            await self._run(PgQueuer.from_asyncpg_connection(conn), int(size))

    async def _run(self, worker: Any, size: int) -> None:
        worker.entrypoint("noop")(noop)
        worker.entrypoint("tell")(tell)
        asyncio.create_task(self._stop(worker))  # noqa: RUF006
        await worker.run(batch_size=size)

    async def _stop(self, worker: Any) -> None:
        await protocol.stopped().wait()
        worker.shutdown.set()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(Pgqueuer(), uvloop.run)
