"""How others see that a worker lives: HTTP, systemd, a file.

    /healthz   200 while the process answers. Does not ask the database: a restart would not mend that
    /readyz    200 while the worker claims and its lease is good, or the ticker looks at what is due; else 503
    /metrics   Prometheus, with the extra `metrics`

Served by a thread, so that a handler which blocks the event loop does not look like a dead process.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgqueue.errors import ConfigError

if TYPE_CHECKING:
    from pgqueue.ticker import Ticker
    from pgqueue.worker import Worker

logger = logging.getLogger("pgqueue.worker")
_complained: set[Path] = set()


@contextmanager
def serve(
    worker: Worker | Ticker, address: str, make_metrics: Callable[[Any], Any] = lambda worker: worker_metrics(worker)
) -> Iterator[tuple[str, int]]:
    """Serve the probes at `host:port` (or `:port`, on loopback) until the block ends."""
    host, port = _split(address)
    metrics = make_metrics(worker)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer(200, "alive\n")
            elif self.path == "/readyz":
                self._answer(200, "ready\n") if worker.ready else self._answer(503, "not ready\n")
            elif self.path == "/metrics" and metrics is not None:
                self._answer(200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path == "/metrics":
                self._answer(501, "metrics need prometheus-client: pip install prometheus-client\n")
            else:
                self._answer(404, "/healthz, /readyz, /metrics\n")

        def _answer(self, code: int, body: str | bytes, kind: str = "text/plain; charset=utf-8") -> None:
            data = body.encode() if isinstance(body, str) else body
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass  # probes come every few seconds

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigError(f"--http {address}: {error.strerror}") from None
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True, name="pgqueue http"
    )
    thread.start()
    try:
        yield server.server_address[0], server.server_address[1]  # type: ignore[misc]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def nth_address(address: str, number: int) -> str:
    """Where process `number` of several answers: one port for each, counted from the given one."""
    host, port = _split(address)
    return f"{host}:{port and port + number}"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--http takes host:port, not {address!r}")
    return host or "127.0.0.1", int(port)


def worker_metrics(worker: Worker) -> Any:
    if importlib.util.find_spec("prometheus_client") is None:
        return None
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

    registry = CollectorRegistry()
    attempts = Counter("pgqueue_attempts", "Attempts by how they ended", ["task", "outcome"], registry=registry)
    seconds = Histogram("pgqueue_run_seconds", "How long attempts ran", ["task"], registry=registry,
                        buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800))  # fmt: skip
    Gauge("pgqueue_slots_busy", "Jobs running", registry=registry).set_function(lambda: worker.busy)
    Gauge("pgqueue_slots", "Jobs that may run", registry=registry).set(worker.settings.concurrency)
    Gauge("pgqueue_ready", "Claims, with a good lease", registry=registry).set_function(lambda: float(worker.ready))
    children: dict[tuple[str, str], Any] = {}
    runs: dict[str, Any] = {}

    def observe(task: str, outcome: str, elapsed: float) -> None:
        if outcome == "claimed":
            return
        if (task, outcome) not in children:
            children[task, outcome] = attempts.labels(task, outcome)
            runs[task] = seconds.labels(task)
        children[task, outcome].inc()
        runs[task].observe(elapsed)

    worker.observe = observe
    return lambda: generate_latest(registry)


def ticker_metrics(ticker: Ticker) -> Any:
    if importlib.util.find_spec("prometheus_client") is None:
        return None
    from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

    registry = CollectorRegistry()
    runs = Counter("pgqueue_recurring_runs", "Due times by what became of them", ["name", "outcome"], registry=registry)
    Gauge("pgqueue_ready", "Looks at what is due", registry=registry).set_function(lambda: float(ticker.ready))
    ticker.observe = lambda name, outcome: runs.labels(name, outcome).inc()
    return lambda: generate_latest(registry)


def notify_systemd(state: str) -> None:
    """READY=1, STOPPING=1, WATCHDOG=1: where systemd asked for it."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            try:
                notify.connect(f"\0{address[1:]}" if address.startswith("@") else address)
                notify.sendall(state.encode())
            except OSError:
                pass  # nobody listens


def touch(path: Path | None, worker: Worker | Ticker) -> None:
    """The file heartbeat: its age says how long the worker, or ticker, has not been ready."""
    if path is not None and worker.ready:
        try:
            path.touch()
        except OSError as error:  # a full disk must not end what systemd listens to
            if path not in _complained:
                _complained.add(path)
                logger.error("--heartbeat-file %s cannot be touched: %s", path, error.strerror)
