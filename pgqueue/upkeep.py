"""What every worker does for all, beside its jobs: no worker is special, and any of them may die."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from pgqueue import database
from pgqueue.link import ConnectionLost, Link

logger = logging.getLogger("pgqueue.worker")

SWEEP_SECONDS = 5.0
LIMIT_SECONDS = 1.0  # while jobs pass; when idle with the sweep
HINT_SECONDS = 0.25  # while jobs pass; when idle with the sweep
PRUNE_SECONDS = 60.0


async def upkeep(
    link: Link,
    queues: Sequence[str],
    passed: Callable[[], int],
    worker_id: Callable[[], int],
    drain: Callable[[], None],
) -> None:
    """Sweep, promote, count, refresh hints, make and drop partitions, for ever.

    `passed` counts this worker's jobs; `drain` is called when an operator wants it to end.
    """
    sweep_at = limit_at = 0.0
    prune_at = time.monotonic() + random.uniform(0, PRUNE_SECONDS)  # noqa: S311 - not all workers at once
    seen = -1
    try:
        while True:
            try:
                now = time.monotonic()
                if now >= sweep_at:
                    swept = await link.run(database.sweep(worker_id=worker_id()))
                    if swept.lost_workers or swept.retried or swept.died:
                        logger.warning(
                            "%d workers were lost: %d of their jobs wait again, %d died",
                            swept.lost_workers, swept.retried, swept.died,
                        )  # fmt: skip
                    _alarm(swept.alarmed)
                    limit_at = now + LIMIT_SECONDS
                    if swept.drain:  # a notification tells at once: this is for the one that got lost
                        drain()
                    sweep_at = now + SWEEP_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311
                if now >= limit_at and passed() != seen:
                    _alarm(await link.run(database.sweep_limits()))
                    limit_at = time.monotonic() + LIMIT_SECONDS
                if now >= prune_at:
                    await link.run(database.ensure_partitions())
                    pruned = await link.run(database.prune())
                    if pruned.dropped or pruned.deleted:
                        logger.info("pruned %d partitions and %d jobs", pruned.dropped, pruned.deleted)
                    # There is more where a whole batch came from.
                    pause = PRUNE_SECONDS if pruned.deleted < 10_000 else 1
                    prune_at = now + pause * random.uniform(0.8, 1.2)  # noqa: S311
                if (count := passed()) != seen:
                    seen = count
                    began = time.monotonic()
                    await link.run(database.refresh_hints(queues))
                    # Over a thousand queues it takes 50 ms: never more than a twentieth of the time.
                    await asyncio.sleep(max(HINT_SECONDS, 20 * (time.monotonic() - began)))
                else:
                    await asyncio.sleep(max(min(sweep_at - time.monotonic(), 4 * HINT_SECONDS), 0.01))
            except ConnectionLost:
                await asyncio.sleep(0.5)
            except Exception:
                logger.exception("upkeep failed; going on")
                await asyncio.sleep(5)
    finally:
        await link.close()


def _alarm(tasks: Sequence[str]) -> None:
    for task in tasks:
        logger.error("task %s fails everywhere: not one of its last attempts succeeded, on any worker", task)
