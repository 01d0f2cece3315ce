"""Dramatiq on Redis: `dramatiq --processes 1 --threads SIZE`, with a prefetch of 1,000 messages while it drains.

It has no bulk enqueue: messages are sent one after the other over one connection.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import dramatiq
from dramatiq import cli
from dramatiq.brokers.redis import RedisBroker

from bench.peers import protocol

broker = RedisBroker(url=os.environ["REDIS_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(i: int, pad: str = "") -> None:  # noqa: ARG001
    protocol.handled()
    if protocol.SLEEP_SECONDS:
        time.sleep(protocol.SLEEP_SECONDS)


@dramatiq.actor
def tell(i: int) -> None:
    protocol.told(i)


TASKS = {"noop": noop, "tell": tell}


class DramatiqPeer:
    async def install(self) -> None:
        broker.client.flushdb()

    async def open(self) -> None:
        broker.client.ping()

    async def close(self) -> None:
        broker.close()

    async def one(self, task: str, payload: protocol.Payload) -> None:
        TASKS[task].send(**payload)

    async def many(self, task: str, payloads: list[protocol.Payload]) -> None:
        for each in payloads:
            TASKS[task].send(**each)

    async def work(self, size: str, drain: bool) -> None:
        if drain:
            os.environ["dramatiq_queue_prefetch"] = "1000"  # noqa: SIM112
        folder = os.path.dirname(__file__)  # noqa: PTH120
        arguments = ["dramatiq_worker", "--processes", "1", "--threads", size, "--skip-logging", "--path", folder]
        sys.exit(cli.main(cli.make_argument_parser().parse_args(arguments)))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    protocol.main(DramatiqPeer())
