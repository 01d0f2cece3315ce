"""Handlers that log, for test_logs.py."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from pgqueue import App, JobEvent

if "LOG_APP_CONFIGURES" in os.environ:
    logging.basicConfig(format="MINE %(message)s")

app = App()
logger = logging.getLogger("shop.orders")


@app.task
async def says_nothing() -> None: ...


@app.task
async def fails() -> None:
    raise ValueError("no")


@app.task
async def unstorable() -> Any:
    return object()


@app.task(runs_in="process")
def unstorable_in_process() -> Any:
    return object()


@app.task
async def says() -> None:
    logger.warning("a word from %s", "a coroutine")


@app.task
def says_in_thread() -> None:
    logger.warning("a word from a thread")


@app.task(runs_in="process")
def says_in_process() -> None:
    logger.warning("a word from a process")


@app.task
def hangs() -> None:
    time.sleep(3600)


@app.task
async def breaks_a_hook() -> None: ...


@app.on("completed")
def broken(event: JobEvent) -> None:
    if event.task == "breaks_a_hook":
        raise ValueError("a hook")
