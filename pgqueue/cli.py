"""The command line. For the exit codes see cli_options.py.

What knows alembic is imported where it is used: `pgqueue work` would carry 12 MB of it, in each of its processes.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import Annotated

import psycopg
import typer

import pgqueue
from pgqueue import (
    cli_dead,
    cli_doctor,
    cli_events,
    cli_flows,
    cli_jobs,
    cli_metrics,
    cli_pg,
    cli_queues,
    cli_recurring,
    cli_stats,
    cli_tasks,
    cli_top,
    cli_web,
    cli_why,
    cli_work,
    cli_workers,
    config,
)
from pgqueue.cli_options import NOT_SO, DatabaseUrl
from pgqueue.errors import ConfigError, JobNotFound, PgqueueError, WrongStatus

app = typer.Typer(
    name="pgqueue",
    help="A job queue that lives in your own PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would show every flag as --flag <bool>
)
migrate_app = typer.Typer(help="Install or upgrade the schema; safe under load and from several places at once.")
app.add_typer(cli_pg.app, name="pg")
app.add_typer(cli_recurring.app, name="recurring")
app.add_typer(migrate_app, name="migrate", invoke_without_command=True)

Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(f"pgqueue {pgqueue.__version__}")
        raise typer.Exit


@migrate_app.callback()
def migrate(
    context: typer.Context,
    database_url: DatabaseUrl = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the whole schema as SQL, for an empty database; change nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 3 if a migration is needed; change nothing.")
    ] = False,
) -> None:
    if context.invoked_subcommand:
        if sql or check:
            context.fail(f"{'--sql' if sql else '--check'} does not go with `{context.invoked_subcommand}`")
        return
    from pgqueue import schema  # with alembic: 0.15 s that no other command should wait for

    if sql:
        typer.echo(schema.migrate_sql())
    elif check:
        _tell_status(database_url)
    else:
        url = config.conninfo(database_url)
        typer.echo(f"{config.describe(url)}: {schema.migrate(url).describe()}")


@migrate_app.command("status")
def migrate_status(context: typer.Context, database_url: DatabaseUrl = None, as_json: Json = False) -> None:
    """Say which revision, functions and roles the database has; exit with 3 if a migration is needed."""
    if database_url is None and context.parent:  # pgqueue migrate -d URL status
        database_url = context.parent.params["database_url"]
    _tell_status(database_url, as_json)


def _tell_status(database_url: str | None, as_json: bool = False) -> None:
    from pgqueue import schema

    url = config.conninfo(database_url)
    found, database = schema.status(url), config.describe(url)
    shown = {"database": database, **asdict(found), "current": found.current}
    typer.echo(json.dumps(shown) if as_json else f"{database}: {found.describe()}")
    if not found.current:
        raise typer.Exit(NOT_SO)


for group in (cli_jobs, cli_dead, cli_queues, cli_flows, cli_tasks, cli_workers, cli_events):
    app.add_typer(group.app)
app.command()(cli_stats.enqueue)
app.command()(cli_stats.stats)
app.command()(cli_why.why)
app.command()(cli_doctor.doctor)
app.command()(cli_metrics.metrics)
app.command()(cli_top.top)
app.command()(cli_web.web)
app.command()(cli_work.work)
app.command()(cli_work.cron)
app.command()(cli_work.dev)
app.command()(cli_work.sweep)


@app.command("demo")
def run_demo(
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", "-d", metavar="URL", help="A server to use instead of the embedded one."),
    ] = None,
) -> None:
    """Watch a small load go through a queue, on an embedded PostgreSQL.

    On that server the database pgqueue_demo is made anew: one of that name is dropped first.
    """
    from pgqueue import demo

    demo.run(database_url)


@app.command("bench")
def run_bench(
    database_url: DatabaseUrl = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="How long each measure takes.")] = 2,
    as_json: Json = False,
) -> None:
    """Measure how fast the queue is on your server, and say what limits it; some twenty seconds.

    In a database of its own there, pgqueue_bench_ and a random suffix, made for this and dropped at the end. The server
    is under load meanwhile. (The roles pgqueue_…, which any migration makes, stay.)
    """
    from pgqueue import bench
    from pgqueue.cli_output import tell

    bench.show(bench.run(database_url, seconds, tell), as_json)


def main() -> None:
    """Entry point: every error that we know is one sentence, never a traceback."""
    try:
        app()
    except (JobNotFound, WrongStatus) as error:
        sys.exit(_complain(str(error), NOT_SO))
    except ConfigError as error:
        from pgqueue import serve  # with the worker, which other commands need not carry

        sys.exit(serve.EXIT_CONFIG if serve.tell(error) else _complain(str(error)))
    except PgqueueError as error:
        sys.exit(_complain(str(error)))
    except psycopg.errors.InsufficientPrivilege as error:
        sys.exit(_complain(f"{error.diag.message_primary}: {_NEEDED}"))
    except psycopg.Error as error:
        if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
            sys.exit(_complain(_no_connection(str(error).strip().removeprefix("connection failed: "))))
        sys.exit(_complain(f"PostgreSQL refused ({error.sqlstate}): {str(error).strip()}"))


_NO_ANSWER = re.compile(
    "refused|timed out|timeout|resolve host|translate host|no route|unreachable|no such file|closed the connection"
    "|connection is lost|starting up|shutting down",
    re.IGNORECASE,
)
_NEEDED = (
    "looking takes the role pgqueue_reader, changing and seeing payloads pgqueue_operator, enqueueing pgqueue_producer "
    "(`grant pgqueue_operator to your_user`)"
)
_REMEDIES = {
    r"password authentication failed|no password supplied": "check user and password in the database URL",
    r"database .* does not exist": "create it with `createdb`, or correct the name in the database URL",
    r"role .* does not exist": "create it with `createuser`, or correct the user in the database URL",
}


def _no_connection(words: str) -> str:
    """libpq gives no codes here, only words; they name host and user, never the password."""
    for pattern, remedy in _REMEDIES.items():
        if re.search(pattern, words):
            return f"cannot connect: {words} ({remedy})"
    return f"{'the database does not answer' if _NO_ANSWER.search(words) else 'cannot connect'}: {words}"


def _complain(text: str, code: int = 1) -> int:
    typer.echo(f"Error: {text}", err=True)
    return code
