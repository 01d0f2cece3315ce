"""RQ on Redis with its SimpleWorker, which does not fork for each job: its fastest. One job at a time is all it runs.

Results are not kept (`result_ttl=0`). Bulk enqueue is `enqueue_many`, 1,000 jobs in one pipeline.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker

from bench.peers import protocol


def noop(i: int, pad: str = "") -> None:  # noqa: ARG001
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        time.sleep(protocol.SLEEP_SECONDS)


def tell(i: int) -> None:
    protocol.told(i)


class Rq:
    queue: Any

    async def install(self) -> None:
        Redis.from_url(os.environ["REDIS_URL"]).flushdb()

    async def open(self) -> None:
        self.queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))

    async def close(self) -> None:
        self.queue.connection.close()

    async def one(self, task: str, payload: protocol.Payload) -> None:
        self.queue.enqueue(f"rq_worker.{task}", kwargs=payload, result_ttl=0)

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        prepared = [Queue.prepare_data(f"rq_worker.{task}", kwargs=each, result_ttl=0) for each in payloads]
        self.queue.enqueue_many(prepared)

    async def work(self, size: str, drain: bool) -> None:  # noqa: ARG002
        await self.open()
        SimpleWorker([self.queue], connection=self.queue.connection).work(logging_level="WARNING")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(Rq())
