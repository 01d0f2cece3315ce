"""chancy with its asynchronous executor, the one for jobs that do not compute, and its usual plugins.

`eager_polling` is on: without it a worker that has emptied its slots waits for the next poll, whole seconds. SIZE is
the queue's concurrency, which is also how many jobs it claims at once. Completions are sent every
0.1 s instead of every second, because a drain is over when they are written. Its own log is switched down to warnings.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os

from chancy import Chancy, Queue, Worker, job

from bench.peers import protocol

log = logging.getLogger("chancy")


@job()
async def noop(*, i: int, pad: str = "") -> None:  # noqa: ARG001
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        await asyncio.sleep(protocol.SLEEP_SECONDS)


@job()
async def tell(*, i: int) -> None:
    protocol.told(i)


TASKS = {"noop": noop, "tell": tell}


def made() -> Chancy:
    return Chancy(os.environ["DATABASE_URL"], log=log)


class ChancyPeer:
    chancy: Chancy

    async def install(self) -> None:
        async with made() as chancy:
            await chancy.migrate()

    async def open(self) -> None:
        self.chancy = await made().__aenter__()

    async def close(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    async def one(self, task: str, payload: protocol.Payload) -> None:
        await self.chancy.push(TASKS[task].job.with_kwargs(**payload))

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        jobs = [TASKS[task].job.with_kwargs(**each) for each in payloads]
        if protocol.DELAY_SECONDS:
            later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=protocol.DELAY_SECONDS)
            jobs = [each.with_scheduled_at(later) for each in jobs]
        async for _ in self.chancy.push_many(jobs, batch_size=len(jobs)):
            pass

    async def work(self, size: str, drain: bool) -> None:  # noqa: ARG002
        async with made() as chancy:
            queue = Queue("default", concurrency=int(size), executor=Chancy.Executor.Async, eager_polling=True)
            await chancy.declare(queue, upsert=True)
            worker = Worker(chancy, register_signal_handlers=False)
            worker.send_outgoing_interval = 0.1
            async with worker:
                await protocol.stopped().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(ChancyPeer())
