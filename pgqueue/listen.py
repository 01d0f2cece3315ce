"""Wake-ups by LISTEN. Only a hint: polling underneath is the truth.

A connection can be half open: the network has forgotten it, and neither side is told. So every few seconds we notify
ourselves; when our own word does not come back, the connection is made anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import AsyncConnection

from pgqueue.link import Link
from pgqueue.pools import hung_up_after

logger = logging.getLogger("pgqueue.worker")
PING_SECONDS = 15.0
ANSWER_SECONDS = 5.0


async def listen(link: Link, heard: Callable[[str], None]) -> None:
    """Calls `heard` with the text of every notification (a queue, or `cancel <worker>`), for ever."""
    try:
        while True:
            try:
                conn = await link.connection()
                if link.pooled:
                    logger.warning(
                        "PgBouncer in transaction mode delivers no notifications: polling instead "
                        "(give a direct connection with --listen-url for instant wake-ups)"
                    )
                    await link.close()
                    return
                await _attend(link, conn, heard, PING_SECONDS)
            except (psycopg.Error, OSError) as error:
                logger.debug("listening again: %s", error)
            await link.close()
            await asyncio.sleep(0.1)
    finally:
        await link.close()


async def _attend(link: Link, conn: AsyncConnection[Any], heard: Callable[[str], None], ping_seconds: float) -> None:
    mine = f"ping {conn.info.backend_pid}"
    back = asyncio.Event()  # our own word has come back
    answer_seconds = min(ANSWER_SECONDS, ping_seconds)

    def said(text: str) -> None:
        if text == mine:
            back.set()
        elif not text.startswith("ping "):
            heard(text)

    conn.add_notify_handler(lambda notice: said(notice.payload))  # those that come while a statement runs
    with hung_up_after(ping_seconds, conn):
        await conn.execute("listen pgqueue")
    link.works()
    heard("")  # whatever was said while we did not listen
    while True:
        await _hear(conn, said, ping_seconds)
        back.clear()
        with hung_up_after(answer_seconds, conn):
            await conn.execute("select pg_notify('pgqueue', %s)", [mine])
        await _hear(conn, said, answer_seconds, back)
        if not back.is_set():
            raise psycopg.OperationalError("the LISTEN connection is half open")


async def _hear(
    conn: AsyncConnection[Any], said: Callable[[str], None], seconds: float, enough: asyncio.Event | None = None
) -> None:
    """Hear for so long, or until it is enough. Not by psycopg's notifies(): that wakes up ten times a second."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    ready = asyncio.Event()
    socket = conn.fileno()
    loop.add_reader(socket, ready.set)
    timer = loop.call_at(until, ready.set)
    try:
        while loop.time() < until and not (enough is not None and enough.is_set()):
            await ready.wait()
            ready.clear()
            conn.pgconn.consume_input()
            while (notice := conn.pgconn.notifies()) is not None:
                said(notice.extra.decode())
    finally:
        timer.cancel()
        loop.remove_reader(socket)  # before anybody closes it: the number may come again
