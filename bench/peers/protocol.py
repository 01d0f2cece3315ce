"""What every script in this folder understands, so that the benchmark need not know the peer behind it:

install             make the schema, or empty the database of Redis
enqueue COUNT       no-op jobs in bulk, as fast as it goes; prints the seconds that it took
single COUNT        one by one, each durable before the next; prints the seconds that it took
trickle COUNT       one by one, 20 to 60 ms apart; prints a job's number and the time before each call
feed                reads numbers: enqueues so many no-op jobs in bulk, then prints the number
work SIZE MODE      one worker until standard input ends; MODE is `drain` (throughput) or `serve` (latency)

The two tasks are `noop`, which every BENCH_EVERY-th time prints `# how-many time process`, and `tell`, which prints its
job's number and the time. The database is the one in DATABASE_URL and PGHOST, PGUSER, …; Redis that in REDIS_URL. Times
are CLOCK_MONOTONIC, the same in all processes. protocol.cjs is this file for Node.

BENCH_MS       milliseconds that noop sleeps
BENCH_BYTES    so many more bytes in each payload
BENCH_DELAY    seconds until what `enqueue` enqueues may run
BENCH_QUEUES   `enqueue` spreads its jobs over so many queues
BENCH_MIX      `feed` mixes priorities, delays, failures and payloads (pgqueue only)
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import string
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

BULK = 1000
EVERY = int(os.environ.get("BENCH_EVERY", "0"))
SLEEP_SECONDS = float(os.environ.get("BENCH_MS", "0")) / 1000
DELAY_SECONDS = float(os.environ.get("BENCH_DELAY", "0"))
QUEUES = int(os.environ.get("BENCH_QUEUES", "1"))
MIX = bool(os.environ.get("BENCH_MIX"))

Payload = dict[str, Any]


def incompressible(length: int) -> str:
    """PostgreSQL compresses what is big and repeats itself; then 8 KB would be none."""
    return "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=length))


PAD = incompressible(int(os.environ.get("BENCH_BYTES", "0")))
_handled = itertools.count(1)


class Peer(Protocol):
    """What a script says about its queue. A peer that is not asynchronous simply blocks."""

    async def install(self) -> None: ...
    async def open(self) -> None:
        """Whatever should not be in the times that are taken: connections, pools."""

    async def close(self) -> None: ...
    async def one(self, task: str, payload: Payload) -> None: ...
    async def many(self, task: str, payloads: list[Payload]) -> None: ...
    async def work(self, size: str, drain: bool) -> None:
        """Until SIGTERM."""


def handled() -> None:
    """A noop began."""
    number = next(_handled)
    if EVERY and (number == 1 or number % EVERY == 0):
        os.write(1, f"# {number} {time.monotonic()} {os.getpid()}\n".encode())


def told(i: int) -> None:
    """A tell began."""
    os.write(1, f"{i} {time.monotonic()}\n".encode())


def payload(i: int) -> Payload:
    return {"i": i, "pad": PAD} if PAD else {"i": i}


def stopped() -> asyncio.Event:
    """Set at SIGTERM."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    return event


async def _bulk(peer: Peer, first: int, count: int) -> None:
    for start in range(first, first + count, BULK):
        await peer.many("noop", [payload(i) for i in range(start, min(start + BULK, first + count))])


async def _enqueue(peer: Peer, count: int) -> None:
    started = time.monotonic()
    await _bulk(peer, 0, count)
    print(time.monotonic() - started)


async def _single(peer: Peer, count: int) -> None:
    started = time.monotonic()
    for i in range(count):
        await peer.one("noop", payload(i))
    print(time.monotonic() - started)


async def _trickle(peer: Peer, count: int) -> None:
    for i in range(count):
        await asyncio.sleep(random.uniform(0.02, 0.06))
        print(i, time.monotonic())
        await peer.one("tell", {"i": i})


async def _feed(peer: Peer) -> None:
    first = 0
    async for count in _numbers():
        await _bulk(peer, first, count)
        first += count
        os.write(1, f"{count}\n".encode())


async def _numbers() -> AsyncIterator[int]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield int(line)


def _end_with_standard_input() -> None:
    """Nobody is left behind when the benchmark is killed."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main(peer: Peer, run: Callable[[Any], Any] = asyncio.run) -> None:
    match sys.argv[1:]:
        case ["install"]:
            run(peer.install())
        case ["work", size, mode]:
            _end_with_standard_input()
            run(peer.work(size, mode == "drain"))
        case ["enqueue" | "single" | "trickle" | "feed" as what, *rest]:
            run(_produce(peer, what, *map(int, rest)))
        case _:
            sys.exit(__doc__)


async def _produce(peer: Peer, what: str, *arguments: int) -> None:
    await peer.open()
    await {"enqueue": _enqueue, "single": _single, "trickle": _trickle, "feed": _feed}[what](peer, *arguments)  # type: ignore[operator]
    await peer.close()
