"""Celery on Redis, for short tasks as its guide says: results ignored, a large prefetch, no gossip, mingle or events.

SIZE is pool and concurrency: `solo`, `prefork:1`, `threads:20`. It has no bulk enqueue: one producer sends the messages
one after the other. Messages are acknowledged before the handler runs, its default: what a killed worker had is lost.
"""

from __future__ import annotations

import logging
import os
import time

from celery import Celery

from bench.peers import protocol

app = Celery("bench", broker=os.environ["REDIS_URL"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(i: int, pad: str = "") -> None:  # noqa: ARG001
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        time.sleep(protocol.SLEEP_SECONDS)


@app.task(name="tell")
def tell(i: int) -> None:
    protocol.told(i)


TASKS = {"noop": noop, "tell": tell}


class CeleryPeer:
    async def install(self) -> None:
        with app.connection() as connection:
            connection.default_channel.client.flushdb()

    async def open(self) -> None:
        self.connection = app.connection()
        self.producer = app.amqp.Producer(self.connection)

    async def close(self) -> None:
        self.connection.release()

    async def one(self, task: str, payload: protocol.Payload) -> None:
        TASKS[task].apply_async(kwargs=payload, producer=self.producer)

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        for each in payloads:
            TASKS[task].apply_async(kwargs=each, producer=self.producer)

    async def work(self, size: str, drain: bool) -> None:  # noqa: ARG002
        pool, _, concurrency = size.partition(":")
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=warning"]
        app.worker_main(["--quiet", "worker", f"--pool={pool}", f"--concurrency={concurrency or 1}", *quiet])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(CeleryPeer())
