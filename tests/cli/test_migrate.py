from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgqueue import __version__, cli, config, schema
from tests.conftest import MakeDatabase


def pgqueue(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it: a process of its own, in another folder, with a clean environment."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "DATABASE_URL"))}
    return subprocess.run(
        [sys.executable, "-m", "pgqueue", *arguments],
        cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_migrate_installs_and_a_second_time_finds_nothing_to_do(make_database: MakeDatabase, tmp_path: Path) -> None:
    dsn = make_database()
    before = pgqueue("migrate", "--check", "-d", dsn, cwd=tmp_path)
    assert (before.returncode, before.stdout) == (
        3,
        f"{config.describe(dsn)}: pgqueue is not installed in this database: run `pgqueue migrate`\n",
    )
    first = pgqueue("migrate", cwd=tmp_path, DATABASE_URL=dsn)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(f"{config.describe(dsn)}: up to date: revision ")
    assert pgqueue("migrate", cwd=tmp_path, PGQUEUE_DATABASE_URL=dsn).stdout == first.stdout
    assert pgqueue("migrate", "--check", cwd=tmp_path, DATABASE_URL=dsn).returncode == 0


def test_status_as_json_says_what_is_missing(make_database: MakeDatabase, tmp_path: Path) -> None:
    dsn = make_database()
    empty = pgqueue("migrate", "status", "--json", "-d", dsn, cwd=tmp_path)
    assert empty.returncode == 3
    assert json.loads(empty.stdout)["revision"] is None
    schema.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("update pgqueue.installed set functions_sha256 = 'of another version'")
    stale = pgqueue("migrate", "status", "-d", dsn, cwd=tmp_path)
    assert stale.returncode == 3
    assert "run `pgqueue migrate`" in stale.stdout
    assert pgqueue("migrate", "-d", dsn, cwd=tmp_path).returncode == 0
    current = pgqueue("migrate", "status", "--json", "-d", dsn, cwd=tmp_path)
    assert current.returncode == 0
    told = json.loads(current.stdout)
    assert (told["current"], told["database"]) == (True, config.describe(dsn))
    assert (told["missing_roles"], told["roles_without_rights"]) == ([], [])


def test_status_takes_the_database_of_migrate(make_database: MakeDatabase, tmp_path: Path) -> None:
    dsn, other = make_database(), make_database()
    told = pgqueue("migrate", "-d", dsn, "status", "--json", cwd=tmp_path, DATABASE_URL=other)
    assert json.loads(told.stdout)["database"] == config.describe(dsn)
    told = pgqueue("migrate", "-d", dsn, "status", "--json", "-d", other, cwd=tmp_path)
    assert json.loads(told.stdout)["database"] == config.describe(other)


@pytest.mark.parametrize("flag", ["--check", "--sql"])
def test_a_flag_of_migrate_does_not_go_with_status(tmp_path: Path, flag: str) -> None:
    told = pgqueue("migrate", flag, "status", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert f"{flag} does not go with `status`" in told.stderr


def test_the_printed_sql_installs_the_schema(make_database: MakeDatabase, tmp_path: Path) -> None:
    printed = pgqueue("migrate", "--sql", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    dsn = make_database()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(printed.stdout)
        conn.execute("select pgqueue.enqueue('q', 't')")
    assert schema.status(dsn).current


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PGQUEUE_DATA_DIR": "nowhere"}, "no database: set DATABASE_URL"),
        ({"DATABASE_URL": "mysql://root@localhost/x"}, "mysql:// is not PostgreSQL"),
        ({"DATABASE_URL": "postgresql://me:hunter2@127.0.0.1:1/x"}, "the database does not answer"),
        (
            {"DATABASE_URL": "postgresql://me:hunter2@[broken/x"},
            "the database URL in the environment variable DATABASE_URL cannot be read",
        ),
        (
            {"DATABASE_URL": "postgresql://me:S3cret@hunter2@127.0.0.1:1/x"},
            "the database URL in the environment variable DATABASE_URL cannot be read",
        ),
        ({"DATABASE_URL": " ", "PGQUEUE_DATA_DIR": "nowhere"}, "no database: set DATABASE_URL"),
    ],
)
def test_a_missing_or_wrong_database_is_one_sentence_without_secrets(
    environ: dict[str, str], message: str, tmp_path: Path
) -> None:
    told = pgqueue("migrate", cwd=tmp_path, **environ)
    assert told.returncode == 1
    assert told.stderr.startswith(f"Error: {message}")
    assert "Traceback" not in told.stderr
    assert "hunter2" not in told.stderr + told.stdout


def test_a_blank_url_is_refused(tmp_path: Path) -> None:
    for command in ("migrate", "demo"):
        told = pgqueue(command, "-d", "", cwd=tmp_path)
        assert told.returncode == 1
        assert told.stderr.startswith("Error: the database URL given by flag or argument is blank")


def test_a_server_that_answers_is_not_said_to_be_silent(server_url: str, tmp_path: Path) -> None:
    told = pgqueue("migrate", "-d", make_conninfo(server_url, dbname="no_such_database"), cwd=tmp_path)
    assert told.returncode == 1
    assert told.stderr.startswith("Error: cannot connect: connection to server ")
    assert 'database "no_such_database" does not exist (create it with `createdb`' in told.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ('FATAL:  password authentication failed for user "u"', "cannot connect: .*check user and password"),
        ("fe_sendauth: no password supplied", "cannot connect: .*check user and password"),
        ('FATAL:  role "u" does not exist', "cannot connect: .*createuser"),
        ('FATAL:  database "timeout" does not exist', "cannot connect: .*createdb"),
        ('FATAL:  no pg_hba.conf entry for host "1.2.3.4"', "cannot connect: FATAL"),
        ("FATAL:  the database system is starting up", "the database does not answer: FATAL"),
        ("failed to resolve host 'nowhere'", "the database does not answer: failed"),
        ("connection timeout expired", "the database does not answer: connection"),
    ],
)
def test_only_a_server_that_does_not_answer_is_said_not_to(words: str, told: str) -> None:
    assert re.match(told, cli._no_connection(words))


def test_a_user_without_the_right_to_create_the_schema_is_told_which_right(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    dsn = make_database()
    told = pgqueue("migrate", "-d", make_conninfo(dsn, options="-c role=pg_monitor"), cwd=tmp_path)
    assert told.returncode == 1
    assert told.stderr.startswith("Error: pg_monitor may not create the schema pgqueue in pgqueue_test_")
    assert "it needs the right CREATE on the database (`grant create on database " in told.stderr


@pytest.mark.parametrize(
    "command", [[], ["migrate"], ["migrate", "status"], ["demo"], ["pg", "stop"], ["pg", "status"]]
)
def test_flags_are_shown_without_a_value(command: list[str], tmp_path: Path) -> None:
    shown = pgqueue(*command, "--help", cwd=tmp_path).stdout
    assert "--help  " in shown
    assert "bool" not in shown
    assert "--no-" not in shown


def test_the_version_is_told(tmp_path: Path) -> None:
    assert pgqueue("--version", cwd=tmp_path).stdout == f"pgqueue {__version__}\n"
