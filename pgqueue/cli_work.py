"""`pgqueue work`, `cron`, `dev`, `sweep`: worker and ticker on the command line."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from pgqueue import config, database
from pgqueue.embedded import EmbeddedPostgres
from pgqueue.errors import ConfigError

DEV_DRAIN_SECONDS = 2.0

AppName = Annotated[
    str | None, typer.Option("--app", "-A", help="module:app (else PGQUEUE_APP, else app in pgqueue.toml).")
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", "-d", help="Else PGQUEUE_DATABASE_URL, DATABASE_URL, PG…, the embedded server."),
]


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
    critical = "critical"


class LogFormat(StrEnum):
    auto = "auto"
    text = "text"
    json = "json"


def work(
    app: AppName = None,
    queues: Annotated[
        str,
        typer.Option("--queues", "-q", help="Which queues; weights, reserved slots: critical=4:2,default,low."),
    ] = "default",
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=10_000, help="Jobs at the same time.")
    ] = 20,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Worker processes.")] = 1,
    lease: Annotated[
        int, typer.Option(min=2, max=86_400, help="Seconds without a heartbeat after which others take its jobs.")
    ] = 30,
    poll: Annotated[
        float, typer.Option(min=0.01, max=60, help="The longest a job waits when no notification comes.")
    ] = 3.0,
    listen: Annotated[bool, typer.Option(help="Be woken by NOTIFY; --no-listen: only poll.")] = True,
    listen_url: Annotated[
        str | None, typer.Option(help="A direct connection for LISTEN, if the other goes through PgBouncer.")
    ] = None,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that running jobs get to finish after SIGTERM.")] = 30.0,
    burst: Annotated[
        bool,
        typer.Option(
            "--burst",
            help="Stop when no job can start now; jobs for later, retries that have to wait, and what a limit holds"
            " for more than a minute stay.",
        ),
    ] = False,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="Stop after this many attempts.")] = None,
    name: Annotated[str | None, typer.Option(help="What others call this worker (else host:pid).")] = None,
    http: Annotated[
        str | None,
        typer.Option(help="Serve /healthz, /readyz, /metrics at host:port; several processes at port, port + 1, …"),
    ] = None,
    heartbeat_file: Annotated[
        Path | None,
        typer.Option(help="Touched every second while the worker is ready; of several processes FILE.0, FILE.1, …"),
    ] = None,
    cron: Annotated[bool, typer.Option("--cron", help="Also tick recurring jobs, as `pgqueue cron` does.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when the code changes.")] = False,
    log_level: Annotated[LogLevel, typer.Option(help="Say what is at least so important.")] = LogLevel.info,
    log_format: Annotated[LogFormat, typer.Option(help="text for people, json for machines.")] = LogFormat.auto,
    database_url: DatabaseUrl = None,
) -> None:
    """Claim jobs and run them, until SIGTERM, SIGHUP or Ctrl-C; a second one stops at once.

    Exit codes: 0 drained, 1 failed, 70 stopped at once, 75 a handler did not stop (start it again).
    """
    # Here, not above: with them the other commands would start half a second later.
    from pgqueue import app as app_module
    from pgqueue import logs, serve
    from pgqueue.worker import Settings

    logs.set_up(log_level.value, log_format.value)
    child = serve.CHILD in os.environ
    if reload and not child:
        if processes > 1:
            raise ConfigError("--reload runs one process: leave out --processes")
        sys.exit(serve.reload(Path.cwd(), drain))
    if processes > 1 and not child:
        sys.exit(serve.supervise(processes))
    weights, reserved = parse_queues(queues)
    if sum(reserved.values()) > concurrency:
        raise ConfigError(f"--queues reserves {sum(reserved.values())} slots, but --concurrency is {concurrency}")
    settings = Settings(
        queues=weights, reserved=reserved, concurrency=concurrency, lease_seconds=lease, poll_seconds=poll,
        listen=listen, listen_url=listen_url, drain_seconds=drain, burst=burst, max_jobs=max_jobs, name=name,
    )  # fmt: skip
    found = config.load(database_url=database_url, app=app)
    loaded = app_module.load(found.app or "")
    if database_url is not None:
        loaded.use(database_url)
    sys.exit(
        serve.work(
            loaded,
            settings,
            http=http,
            heartbeat_file=heartbeat_file,
            processes=processes,
            killable=not reload,
            cron=cron,
        )
    )


def cron(
    app: AppName = None,
    poll: Annotated[
        float,
        typer.Option(min=0.05, max=3600, help="The longest that a change goes unseen without a notification."),
    ] = 60.0,
    listen: Annotated[bool, typer.Option(help="Be woken by NOTIFY; --no-listen: only poll.")] = True,
    listen_url: Annotated[
        str | None, typer.Option(help="A direct connection for LISTEN, if the other goes through PgBouncer.")
    ] = None,
    http: Annotated[str | None, typer.Option(help="Serve /healthz, /readyz and /metrics at host:port.")] = None,
    heartbeat_file: Annotated[Path | None, typer.Option(help="Touched every second while the ticker is ready.")] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Say what is at least so important.")] = LogLevel.info,
    log_format: Annotated[LogFormat, typer.Option(help="text for people, json for machines.")] = LogFormat.auto,
    database_url: DatabaseUrl = None,
) -> None:
    """Make jobs of recurring jobs when they are due, until SIGTERM or Ctrl-C. Run two: nothing fires twice.

    Exit codes: 0 stopped, 1 failed, 70 stopped at once.
    """
    from pgqueue import app as app_module
    from pgqueue import logs, serve
    from pgqueue.ticker import TickerSettings

    logs.set_up(log_level.value, log_format.value)
    found = config.load(database_url=database_url, app=app)
    loaded = app_module.load(found.app or "")
    if database_url is not None:
        loaded.use(database_url)
    settings = TickerSettings(poll_seconds=poll, listen=listen, listen_url=listen_url)
    sys.exit(serve.cron(loaded, settings, http=http, heartbeat_file=heartbeat_file))


def dev(
    app: AppName = None,
    queues: Annotated[
        str | None, typer.Option("--queues", "-q", help="Which queues; all of the app's tasks by default.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=10_000, help="Jobs at the same time.")
    ] = 20,
    web_port: Annotated[int, typer.Option(min=0, max=65535, help="Where the page is, if nobody else is there.")] = 8410,
    web: Annotated[bool, typer.Option(help="With the operator's page; needs pgqueue[web].")] = True,
    database_url: DatabaseUrl = None,
) -> None:
    """Everything for development in one command: an embedded PostgreSQL, migrated, a worker that starts anew when the
    code changes, recurring jobs included, and the operator's page. Ctrl-C ends it all; the data stays.
    """
    from pgqueue import app as app_module
    from pgqueue import logs, serve
    from pgqueue.worker import Settings

    logs.set_up("info", "text")
    if serve.CHILD not in os.environ:
        sys.exit(_develop(database_url, web_port if web else None))
    loaded = app_module.load(config.load(app=app).app or "")
    every = {task.options.get("queue", "default"): 1 for task in loaded.tasks.values()} or {"default": 1}
    every |= {each.options["queue"]: 1 for each in loaded.recurring.declarations.values() if "queue" in each.options}
    settings = Settings(
        queues=parse_queues(queues)[0] if queues else every, concurrency=concurrency, drain_seconds=DEV_DRAIN_SECONDS
    )
    sys.exit(serve.work(loaded, settings, cron=True))


def _develop(database_url: str | None, web_port: int | None) -> int:
    from pgqueue import schema, serve  # and alembic, which a worker need not carry

    url = config.load(database_url=database_url).database_url
    with ExitStack() as stack:
        if url is None:
            url = stack.enter_context(EmbeddedPostgres().started())
        url = config.normalise(url)
        typer.echo(f"{config.describe(url)}: {schema.migrate(url).describe()}", err=True)
        os.environ["PGQUEUE_DATABASE_URL"] = url  # for the worker, which is another process
        if web_port is not None:
            _open_page(stack, url, web_port)
        return serve.reload(Path.cwd(), DEV_DRAIN_SECONDS)


def _open_page(stack: ExitStack, url: str, port: int) -> None:
    try:
        from pgqueue.web import listening
    except ImportError:
        typer.echo("no page: pip install 'pgqueue[web]'", err=True)
        return
    typer.echo(f"the page: {stack.enter_context(listening.for_development(url, port))}", err=True)


def sweep(database_url: DatabaseUrl = None) -> None:
    """One pass of what every worker does now and then: take the jobs of lost workers, promote, prune."""
    with psycopg.connect(config.conninfo(database_url), autocommit=True) as conn:
        swept = database.execute(conn, database.sweep())
        database.execute(conn, database.ensure_partitions())
        pruned = database.execute(conn, database.prune())
    typer.echo(
        f"{swept.lost_workers} workers lost; {swept.retried} of their jobs wait again, {swept.died} died, "
        f"{swept.cancelled} cancelled; {swept.expired} expired, {swept.promoted} promoted; "
        f"{pruned.dropped} partitions and {pruned.deleted} jobs pruned"
    )


def parse_queues(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """`critical=4:2,default,low` as weights, and reserved slots."""
    weights: dict[str, int] = {}
    reserved: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        queue, _, numbers = part.partition("=")
        weight, _, slots = numbers.partition(":")
        for what, number in (("weight", weight or "1"), ("number of reserved slots", slots or "1")):
            if not number.isdigit() or not 1 <= int(number) <= 1_000_000:
                raise ConfigError(f"--queues: the {what} of {queue} must be a number from 1, not {number!r}")
        weights[queue.strip()] = int(weight or 1)
        if slots:
            reserved[queue.strip()] = int(slots)
    if not weights:
        raise ConfigError("--queues names no queue")
    return weights, reserved
