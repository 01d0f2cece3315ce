"""`pgqueue metrics`: the whole queue for Prometheus."""

from __future__ import annotations

import importlib.util
import signal
import threading
from typing import Annotated, Any

import psycopg
import typer

from pgqueue import cli_output as out
from pgqueue import config
from pgqueue.cli_options import DatabaseUrl
from pgqueue.errors import ConfigError

TIMEOUT_SECONDS = 10


def metrics(
    http: Annotated[str | None, typer.Option(help="Serve them at host:port/metrics, until SIGTERM or Ctrl-C.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print the metrics of all queues for Prometheus, or serve them. One of these is enough for all workers; the role
    pgqueue_reader is all it needs. (A worker's own: `pgqueue work --http`.)
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError("this needs prometheus-client: pip install prometheus-client")
    from pgqueue import exporter

    conninfo = config.conninfo(database_url)

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(
            conninfo, autocommit=True, connect_timeout=TIMEOUT_SECONDS, application_name="pgqueue metrics"
        )

    queues = exporter.Queues(connect)
    if http is None:
        text = exporter.exposition(queues)
        queues.close()
        typer.echo(text, nl=False)
        if "pgqueue_up 0" in text:
            out.tell("the database does not answer, or lets nobody look: try `pgqueue doctor`")
            raise typer.Exit(1)
        return
    host, _, port = http.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"--http takes host:port, not {http!r}")
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", exporter.registry(queues))
    except OSError as error:
        raise ConfigError(f"--http {http}: {error.strerror}") from None
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    out.tell(f"metrics at http://{server.server_address[0]!s}:{server.server_address[1]}/metrics")
    stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()
    queues.close()
