"""Installs and upgrades the schema, and says how it stands.

sql/ is the system as it is today; migrations/ is how an older database gets there. Both lie beside the package in a
checkout and inside it in a wheel.
"""

from __future__ import annotations

import hashlib
import io
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic import context as alembic_context
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory

import pgqueue
from pgqueue.errors import SchemaError

VERSION_TABLE = "alembic_version"
OLDEST_POSTGRES = 15
ROLES = ("pgqueue_producer", "pgqueue_worker", "pgqueue_operator", "pgqueue_reader")  # as in sql/roles.sql
_LOCK = 0x70677175  # one migrator at a time in a database
_BUSY = ("55P03", "40P01")  # lock not available, deadlock: somebody works; try again


def _folder(name: str) -> Path:
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def sql_files() -> list[Path]:
    """Functions, views and roles, in the order in which they are replayed."""
    folder = _folder("sql")
    return [
        *sorted((folder / "functions").glob("*.sql")),
        *sorted((folder / "views").glob("*.sql")),
        folder / "roles.sql",
    ]


def tables_sql() -> str:
    return (_folder("sql") / "tables.sql").read_text()


def functions_sha256() -> str:
    digest = hashlib.sha256()
    for path in sql_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------------------- called by migrations/


def run_script(script: str) -> None:
    """Run SQL as it stands: no bind parameters, several statements; printed instead by `migrate --sql`."""
    context = alembic_context.get_context()
    if context.as_sql:
        context.impl.static_output(script)
    else:
        connection = context.connection
        assert connection is not None  # noqa: S101  (alembic is online here)
        connection.connection.driver_connection.execute(script)  # type: ignore[union-attr]


def replay_functions() -> None:
    # Workers drop partitions, and rights cannot be taken from a table that is just going (XX000).
    run_script("select 1 from pgqueue.mutex where name = 'partitions' for update;\n")
    for path in sql_files():
        run_script(path.read_text())
    run_script(
        "comment on table pgqueue.alembic_version is 'The revision of the tables, kept by alembic.';\n"
        "comment on column pgqueue.alembic_version.version_num is 'The revision.';\n"
        "insert into pgqueue.installed as i (version, functions_sha256)"
        f" values ('{pgqueue.__version__}', '{functions_sha256()}')\n"
        "on conflict (id) do update set version = excluded.version, functions_sha256 = excluded.functions_sha256,"
        " installed_at = now();\n"
        "select pgqueue.ensure_partitions();\n"
        # Autovacuum never looks at one row; the planner took it for 740 and compiled the views (JIT) for 0.5 s.
        "analyze pgqueue.setting;\n"
    )


# ------------------------------------------------------------------------------------------- for users


@dataclass(frozen=True)
class SchemaStatus:
    """How the schema of a database compares with this version of pgqueue."""

    revision: str | None
    head: str
    installed_by: str | None
    functions_current: bool
    newer: bool = False
    missing_roles: tuple[str, ...] = ()
    roles_without_rights: tuple[str, ...] = ()

    @property
    def current(self) -> bool:
        """Missing roles do not count: who migrates may be one that cannot create them, and may not need them."""
        return (
            self.revision == self.head and self.functions_current and not self.newer and not self.roles_without_rights
        )

    def describe(self) -> str:
        if self.revision is None:
            return "pgqueue is not installed in this database: run `pgqueue migrate`"
        if self.newer:
            return (
                f"revision {self.revision}, installed by pgqueue {self.installed_by}: newer than this "
                f"{pgqueue.__version__}, upgrade the package"
            )
        if self.current:
            return f"up to date: revision {self.revision}, functions of pgqueue {self.installed_by}{self._without()}"
        if self.revision != self.head:
            return f"revision {self.revision}, but this pgqueue has {self.head}: run `pgqueue migrate`"
        if self.functions_current:
            return f"without rights for {', '.join(self.roles_without_rights)}: run `pgqueue migrate`"
        return f"functions of pgqueue {self.installed_by} differ from this {pgqueue.__version__}: run `pgqueue migrate`"

    def _without(self) -> str:
        if not self.missing_roles:
            return ""
        return (
            f"; without the roles {', '.join(self.missing_roles)} (the migrating user may not create roles: "
            "let a superuser run `pgqueue migrate`, or ignore them)"
        )


def _alembic() -> AlembicConfig:
    config = AlembicConfig()
    config.set_main_option("script_location", str(_folder("migrations")).replace("%", "%%"))
    return config


@contextmanager
def _connect(conninfo: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(conninfo, application_name="pgqueue migrate"),
        isolation_level="READ COMMITTED",  # whatever the database's default is: what others have migrated must be seen
        poolclass=sa.NullPool,
    )
    try:
        with engine.connect() as connection:
            yield connection
    except sa.exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
            raise _denied(error.orig) from None
        raise (error.orig or error) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise _denied(error) from None
    finally:
        engine.dispose()


def _denied(error: psycopg.Error) -> SchemaError:
    return SchemaError(
        f"{error.diag.message_primary}: only the owner of the schema pgqueue, or a superuser, may migrate it or ask "
        "for its status"
    )


def _status(connection: sa.Connection) -> SchemaStatus:
    scripts = ScriptDirectory.from_config(_alembic())
    head = scripts.get_current_head()
    assert head is not None  # noqa: S101  (we ship at least one revision)
    exists = connection.exec_driver_sql(
        "select to_regclass('pgqueue.alembic_version') is not null and to_regclass('pgqueue.installed') is not null"
    ).scalar()
    if not exists:
        return SchemaStatus(None, head, None, False)
    revision = connection.exec_driver_sql("select version_num from pgqueue.alembic_version").scalar()
    row = connection.exec_driver_sql("select version, functions_sha256 from pgqueue.installed").one_or_none()
    version, digest = (row[0], row[1]) if row else (None, None)
    known = {script.revision for script in scripts.walk_revisions()}
    newer = revision not in known or (version is not None and _version(version) > _version(pgqueue.__version__))
    missing, without_rights = _roles(connection)
    return SchemaStatus(revision, head, version, digest == functions_sha256(), newer, missing, without_rights)


def _roles(connection: sa.Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The roles that do not exist, and those that do but may not use the schema.

    Roles belong to the server and rights to the database: a later migration of another database may have made them.
    """
    found = connection.exec_driver_sql(
        "select rolname, has_schema_privilege(oid, 'pgqueue', 'usage') from pg_roles where rolname = any(%s)",
        (list(ROLES),),
    )
    may_use = {row[0]: row[1] for row in found}
    return (
        tuple(role for role in ROLES if role not in may_use),
        tuple(role for role in ROLES if may_use.get(role) is False),
    )


def status(conninfo: str) -> SchemaStatus:
    with _connect(conninfo) as connection:
        return _status(connection)


def migrate(conninfo: str, *, tries: int = 20) -> SchemaStatus:
    """Install or upgrade. Safe to call from several places at once and while workers work."""
    for attempt in range(1, tries + 1):
        try:
            with _connect(conninfo) as connection:
                return _migrate_once(connection)
        except psycopg.Error as error:
            if error.sqlstate not in _BUSY or attempt == tries:
                raise
            # A lock that a busy system does not give within two seconds is asked for again later: waiting for it
            # longer would make everybody else queue up behind us.
            time.sleep(random.uniform(0.1, 0.5) * min(attempt, 10))  # noqa: S311
    raise AssertionError("unreachable")


def _migrate_once(connection: sa.Connection) -> SchemaStatus:
    server = connection.exec_driver_sql("show server_version_num").scalar_one()
    if int(server) < OLDEST_POSTGRES * 10000:
        raise SchemaError(f"pgqueue needs PostgreSQL {OLDEST_POSTGRES} or newer; this server is {int(server) // 10000}")
    connection.exec_driver_sql(f"select pg_advisory_xact_lock({_LOCK})")
    before = _status(connection)
    if before.current and not (before.missing_roles and _may_add_roles(connection)):
        return before
    if before.newer:
        # An older package would take the functions of a newer one back.
        raise SchemaError(before.describe())
    connection.exec_driver_sql("set local lock_timeout = '2s'")
    connection.exec_driver_sql("set local client_min_messages = warning")
    if before.revision is None:
        _create_schema(connection)
    config = _alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    after = _status(connection)
    connection.commit()
    return after


def _may_add_roles(connection: sa.Connection) -> bool:
    return bool(
        connection.exec_driver_sql(
            "select (u.rolsuper or u.rolcreaterole) and pg_has_role(n.nspowner, 'usage')"
            " from pg_roles u, pg_namespace n where u.rolname = current_user and n.nspname = 'pgqueue'"
        ).scalar()
    )


def _create_schema(connection: sa.Connection) -> None:
    # Only at the first installation: "if not exists" wants the right even if the schema exists.
    may_create, user, database = connection.exec_driver_sql(
        "select has_database_privilege(current_database(), 'create'),"
        " quote_ident(current_user), quote_ident(current_database())"
    ).one()
    if not may_create:
        raise SchemaError(
            f"{user} may not create the schema pgqueue in {database}: it needs the right CREATE on the database "
            f"(`grant create on database {database} to {user}`)"
        )
    connection.exec_driver_sql("create schema if not exists pgqueue")


def migrate_sql() -> str:
    """Everything as one SQL script for an empty database, for those who may not let a program change the schema."""
    out = io.StringIO()
    config = _alembic()
    config.output_buffer = out
    command.upgrade(config, "head", sql=True)
    # The schema has to be there before alembic's own table, which is the first thing of its transaction.
    return out.getvalue().replace("BEGIN;\n", "BEGIN;\n\ncreate schema if not exists pgqueue;\n", 1)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
