"""The page on a port: what `pgqueue web` serves, and `pgqueue dev` beside its worker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from pgqueue import config
from pgqueue.errors import ConfigError
from pgqueue.web import access
from pgqueue.web.app import create

GRACE_SECONDS = 2  # for streams, which would never end by themselves


class Listening:
    """A page that can be asked already; `run` answers until it is stopped by a signal, or by `stop`."""

    def __init__(self, page: Starlette, host: str, port: int) -> None:
        self._server = uvicorn.Server(uvicorn.Config(
            page, host=host, port=port, log_level="warning", access_log=False, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=GRACE_SECONDS, lifespan="on",
        ))  # fmt: skip
        try:
            self._socket: socket.socket = self._server.config.bind_socket()
            self._socket.listen(128)  # who reads the address and asks at once is not turned away
        except SystemExit:
            raise ConfigError(f"cannot listen on {host}:{port}: is it in use?") from None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/"

    def run(self) -> None:
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True


@contextmanager
def for_development(database_url: str, port: int) -> Iterator[str]:
    """A page on which whoever uses this machine may act, in a thread; its address. A port in use is not insisted on."""
    conninfo = config.conninfo(database_url)
    page = create(conninfo, authorize=access.anyone(True), hosts=access.LOOPBACK, environment="dev")
    try:
        listening = Listening(page, "127.0.0.1", port)
    except ConfigError:
        listening = Listening(page, "127.0.0.1", 0)
    thread = threading.Thread(target=listening.run, name="pgqueue-page", daemon=True)
    thread.start()
    try:
        yield listening.url
    finally:
        listening.stop()
        thread.join(GRACE_SECONDS + 1)
