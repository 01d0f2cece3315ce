"""`pgqueue web`: the operator's page."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from typing import Annotated

import typer

from pgqueue import cli_output as out
from pgqueue import config
from pgqueue.cli_options import DatabaseUrl
from pgqueue.errors import ConfigError

PACKAGES = ("starlette", "uvicorn", "jinja2")


def web(
    host: Annotated[
        str, typer.Option(help="Where to listen. Off loopback PGQUEUE_WEB_TOKEN must be set.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8410,
    actions: Annotated[
        bool, typer.Option("--actions", help="Let people act; else all are served by the role pgqueue_reader.")
    ] = False,
    environment: Annotated[
        str | None, typer.Option(envvar="PGQUEUE_ENVIRONMENT", help="Shown on each page, so that nobody mistakes it.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name under which it may be asked for; may be repeated.")
    ] = None,
    hide: Annotated[
        list[str] | None, typer.Option(help="Mask this member of payloads, beside what sounds like a secret.")
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Serve the operator's page. Who has PGQUEUE_WEB_TOKEN may do what --actions allows, who has
    PGQUEUE_WEB_READER_TOKEN may look. Without both it is for the users of this machine alone.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"this needs {', '.join(missing)}: pip install 'pgqueue[web]'")
    from pgqueue.web import access, source
    from pgqueue.web import create as create_page
    from pgqueue.web.listening import Listening

    token, reader_token = (os.environ.get(name) or None for name in ("PGQUEUE_WEB_TOKEN", "PGQUEUE_WEB_READER_TOKEN"))
    closed = token is not None or reader_token is not None
    if not closed and not _is_loopback(host):
        raise ConfigError(
            f"{host} can be reached by others: set PGQUEUE_WEB_TOKEN (`openssl rand -hex 24`), or listen on 127.0.0.1"
        )
    conninfo = config.conninfo(database_url)
    wrong = source.check(conninfo, ("pgqueue_reader", *(["pgqueue_operator"] if actions else [])))
    if wrong is not None:
        raise ConfigError(wrong)
    # Who needs no token must come by a name that no other site can have.
    hosts = (*access.LOOPBACK, host, *(allow_host or ())) if not closed or allow_host else None
    page = create_page(
        conninfo, authorize=None if closed else access.anyone(actions), actions=actions, token=token,
        reader_token=reader_token, hosts=hosts, environment=environment, hide=hide or (),
    )  # fmt: skip
    listening = Listening(page, host, port)
    how = "people may act" if actions else "read-only; --actions lets people act"
    out.tell(f"{listening.url}  ({config.describe(conninfo)}; {how})")
    listening.run()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
