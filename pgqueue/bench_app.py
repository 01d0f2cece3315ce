"""The app of `pgqueue bench`: handlers that do nothing, so that the queue is what is measured."""

from __future__ import annotations

import time

from pgqueue import App

app = App()
NOTE = "x" * 100  # with it a payload has some 130 bytes


@app.task
async def noop(order_id: int, note: str = NOTE) -> None:
    pass


@app.task
async def began() -> float:
    """When, by the clock of this machine: whoever enqueued it here compares it with his own."""
    return time.time()
