"""pgqueue, as it is installed: every feature on, every job kept, every completion fenced and durable.

Its worker is what `pgqueue work` runs (`-A bench.peers.pgqueue_worker:app` works for the same app), the same for
throughput and for latency but for the number of jobs at once. It enqueues on a psycopg connection of its own, as where
the caller has a transaction; in bulk with `enqueue_many`, 1,000 jobs a call.
"""

from __future__ import annotations

import asyncio
import logging
import os

import psycopg

from bench.peers import protocol
from pgqueue import INJECTED, Job, Retry
from pgqueue.app import App
from pgqueue.serve import collect_less
from pgqueue.worker import Settings, Worker

app = App(os.environ["DATABASE_URL"])
_queues = [f"q{number}" for number in range(protocol.QUEUES)] if protocol.QUEUES > 1 else ["default"]


@app.task
async def noop(i: int, pad: str = "") -> None:  # noqa: ARG001
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        await asyncio.sleep(protocol.SLEEP_SECONDS)


@app.task
async def tell(i: int) -> None:
    protocol.told(i)


@app.task(retry=Retry.fixed(1))
async def fails_once(i: int, pad: str = "", job: Job = INJECTED) -> None:  # noqa: ARG001
    if job.attempt > 1:
        protocol.handled()
        return
    raise RuntimeError(f"the first attempt of {i}")


class Pgqueue:
    async def install(self) -> None:
        from pgqueue import schema  # alembic: the worker does not carry it

        schema.migrate(os.environ["DATABASE_URL"])

    async def open(self) -> None:
        self.conn = psycopg.connect(app.conninfo, autocommit=True)
        self.single = {task: app.using(task, conn=self.conn) for task in app.tasks}
        async with app.aconnection() as conn:
            await conn.execute("select 1")

    async def close(self) -> None:
        self.conn.close()
        await app.aclose()

    async def one(self, task: str, payload: protocol.Payload) -> None:
        self.single[task].enqueue(**payload)

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        if protocol.MIX:
            await self._mixed(payloads)
        elif len(_queues) > 1:
            share = -(-len(payloads) // len(_queues))
            for number in range(0, len(payloads), share):
                queue = _queues[payloads[number]["i"] // share % len(_queues)]
                await app.using(task, queue=queue).aenqueue_many(payloads[number : number + share])
        elif protocol.DELAY_SECONDS:
            await app.using(task, run_in=protocol.DELAY_SECONDS).aenqueue_many(payloads)
        else:
            await app.using(task).aenqueue_many(payloads)

    async def _mixed(self, payloads: list[protocol.Payload]) -> None:
        """Of twenty jobs 14 are plain, 2 urgent, 2 delayed by some seconds, one fails once, one has 2 KB."""
        share = max(len(payloads) // 20, 1)
        rest = payloads[6 * share :]
        await app.using("noop", priority=50).aenqueue_many(payloads[: 2 * share])
        await app.using("noop", run_in=3).aenqueue_many(payloads[2 * share : 4 * share])
        await app.using("fails_once").aenqueue_many(payloads[4 * share : 5 * share])
        await app.using("noop").aenqueue_many(
            [{**each, "pad": protocol.incompressible(2000)} for each in payloads[5 * share : 6 * share]]
        )
        if rest:
            await app.using("noop").aenqueue_many(rest)

    async def work(self, size: str, drain: bool) -> None:  # noqa: ARG002
        collect_less()  # as `pgqueue work` does
        worker = Worker(app, Settings(concurrency=int(size), queues=dict.fromkeys(_queues, 1)))
        asyncio.create_task(self._stop(worker))  # noqa: RUF006
        await worker.run()

    async def _stop(self, worker: Worker) -> None:
        await protocol.stopped().wait()
        worker.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(Pgqueue())
