"""Where settings come from, in this order: argument or flag, environment, file, default.

The file is `pgqueue.toml`, or `[tool.pgqueue]` in `pyproject.toml`, in the working folder. What is not set in one
place stays unset until the places are merged, so that the default of one never hides the value of another.

A blank URL would mean whatever server libpq finds. So a blank variable counts as unset, and a blank flag, argument or
line of the file is an error.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

from pgqueue import embedded
from pgqueue.errors import ConfigError, EmbeddedError

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")
_VARIABLES = {"database_url": ("PGQUEUE_DATABASE_URL", "DATABASE_URL"), "app": ("PGQUEUE_APP",)}


@dataclass(frozen=True)
class Config:
    """The merged settings."""

    database_url: str | None = None
    app: str | None = None

    def __repr__(self) -> str:
        return f"Config(database_url={describe(self.database_url)!r}, app={self.app!r})"


def load(
    *,
    database_url: str | None = None,
    app: str | None = None,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Config:
    """Merge flags, environment, file and defaults."""
    found = _find({"database_url": database_url, "app": app}, environ, folder or Path.cwd())
    return Config(**{name: value for name, (value, _) in found.items()})


def _find(
    given: Mapping[str, str | None], environ: Mapping[str, str], folder: Path
) -> dict[str, tuple[str | None, str]]:
    """Each setting, and where it comes from."""
    from_file, path = _read_file(folder)
    found: dict[str, tuple[str | None, str]] = {}
    for field in fields(Config):
        name = field.name
        variable = next((v for v in _VARIABLES[name] if environ.get(v, "").strip()), None)
        if (value := given[name]) is not None:
            found[name] = _not_blank(value, name, "given by flag or argument")
        elif variable:
            found[name] = environ[variable], f"in the environment variable {variable}"
        elif name == "database_url" and any(environ.get(v, "").strip() for v in _LIBPQ):
            found[name] = "", "in libpq's environment variables"
        elif name in from_file:
            found[name] = _not_blank(from_file[name], name, f"in {path}")
        else:
            found[name] = None, "nowhere"
    return found


def _not_blank(value: str, name: str, source: str) -> tuple[str, str]:
    if not value.strip():
        raise ConfigError(
            f"the {name.replace('_url', ' URL')} {source} is blank: say which one is meant, or leave it out"
        )
    return value, source


def _read_file(folder: Path) -> tuple[dict[str, str], Path]:
    own, project = folder / "pgqueue.toml", folder / "pyproject.toml"
    try:
        if own.is_file():
            found, path = tomllib.loads(own.read_text()), own
        elif project.is_file():
            found, path = tomllib.loads(project.read_text()).get("tool", {}).get("pgqueue", {}), project
        else:
            return {}, own
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{own if own.is_file() else project} is not valid TOML: {error}") from None
    known = {field.name for field in fields(Config)}
    for name, value in found.items():
        if name not in known:
            raise ConfigError(f"{path} has an unknown setting {name!r}; known are {', '.join(sorted(known))}")
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {name} must be a text")
    return dict(found), path


def conninfo(database_url: str | None = None) -> str:
    """The database to use, as libpq understands it: what is configured, else the embedded server if it runs."""
    url, source = _find({"database_url": database_url, "app": None}, os.environ, Path.cwd())["database_url"]
    if url is None:
        url = _embedded_url()
    if url is None:
        raise ConfigError(
            "no database: set DATABASE_URL (postgresql://user@host/name), "
            "or start the embedded one with `pgqueue pg start`"
        )
    return normalise(url, source)


def _embedded_url() -> str | None:
    try:
        return embedded.EmbeddedPostgres().status().url
    except EmbeddedError:
        return None


def normalise(url: str, source: str = "given") -> str:
    """Accept SQLAlchemy's and Django's spellings (postgresql+psycopg://, postgres://) of a PostgreSQL URL."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme.split("+")[0] not in ("postgresql", "postgres"):
        raise ConfigError(f"{scheme}:// is not PostgreSQL: the database URL {source} must begin with postgresql://")
    url = f"postgresql://{rest}" if separator else url
    if _parse(url) is None:
        # libpq's own message may quote the password.
        raise ConfigError(
            f"the database URL {source} cannot be read: expected postgresql://user:password@host:port/name, with "
            "special characters in the password percent-encoded (@ is %40, / is %2F, : is %3A)"
        ) from None
    return url


def describe(url: str | None) -> str:
    """A URL as it may be shown: host and database, never user or password. libpq's variables fill its gaps."""
    if url is None:
        return "none"
    _, separator, rest = url.partition("://")
    known = _parse(f"postgresql://{rest}" if separator else url)
    if known is None:
        return "a URL that cannot be read"
    if "service" in known:
        return f"service {known['service']}"
    known = {**_libpq_defaults(), **known}
    host = known.get("host", "")
    place = "local socket" if not host or host.startswith("/") else host
    port = f":{known['port']}" if known.get("port") and place != "local socket" else ""
    return f"{place}{port}/{known.get('dbname', '')}"


def _libpq_defaults() -> dict[str, str]:
    """What the environment says, PGHOST for example, without what is compiled in."""
    return {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.keyword in (b"host", b"port", b"dbname") and option.val and option.val != option.compiled
    }


def _parse(url: str) -> dict[str, str] | None:
    """The parts of a URL, or None. A "/" or "@" in a password makes libpq take pieces of it for something else."""
    try:
        parts = {name: str(part) for name, part in conninfo_to_dict(url).items()}
    except ProgrammingError:
        return None
    misread = any("@" in parts.get(name, "") for name in ("host", "dbname"))
    misread |= not parts.get("port", "0").replace(",", "").isdigit()
    return None if misread else parts
