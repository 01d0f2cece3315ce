from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import pgqueue
from pgqueue import database as db
from pgqueue import embedded, schema
from pgqueue.errors import SchemaError
from tests.conftest import MakeDatabase
from tests.schema.catalogue import differences, facts
from tests.support import Conn, Rival, enqueue, job, row, value, wait_until

INSTALLED = "select * from pgqueue.installed, pgqueue.alembic_version"


@pytest.fixture
def fresh(make_database: MakeDatabase) -> str:
    """A database of this test alone, migrated."""
    conninfo = make_database()
    schema.migrate(conninfo)
    return conninfo


@pytest.fixture
def admin(fresh: str) -> Iterator[Conn]:
    with psycopg.connect(fresh, autocommit=True) as conn:
        yield conn


# --------------------------------------------------------------------------------------------- several at once


def test_six_migrators_in_threads_make_one_schema(make_database: MakeDatabase, dsn: str) -> None:
    conninfo = make_database()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(schema.migrate, [conninfo] * 6))
    assert all(answer.current for answer in answers)
    assert differences(facts(dsn), facts(conninfo)) == []


def test_three_migrators_in_processes_make_one_schema(make_database: MakeDatabase, dsn: str) -> None:
    conninfo = make_database()
    code = "import sys; from pgqueue import schema; print(schema.migrate(sys.argv[1]).describe())"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, conninfo], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in running:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert out.startswith("up to date: revision ")
    assert differences(facts(dsn), facts(conninfo)) == []


def test_migrating_twice_does_nothing(fresh: str, admin: Conn) -> None:
    before, rows_before = facts(fresh), row(admin, INSTALLED)
    assert schema.migrate(fresh).current
    assert differences(before, facts(fresh)) == []
    assert row(admin, INSTALLED) == rows_before


def test_days_are_there_after_a_migration(admin: Conn) -> None:
    assert value(admin, "select pgqueue.ensure_partitions()") == 0
    assert value(admin, r"select count(*) from pg_class where relname ~ '^job_done_\d{8}$'") == 11


# ---------------------------------------------------------------------------------------------------- under load


def test_changed_functions_are_replaced_and_jobs_stay(fresh: str, admin: Conn) -> None:
    before = facts(fresh)
    id = enqueue(admin, {"a": 1})
    admin.execute("create or replace view pgqueue.ghost_job as select j.id, j.queue, j.task, j.attempt, j.token,"
                  " j.crashes, j.started_at, j.worker_id, null::text as worker_name, null::timestamptz as heartbeat_at,"
                  " null::timestamptz as lost_at from pgqueue.job_live j")  # fmt: skip
    admin.execute("update pgqueue.installed set functions_sha256 = 'older'")
    assert not schema.status(fresh).functions_current
    assert schema.migrate(fresh).current
    assert differences(before, facts(fresh)) == []
    assert job(admin, id)["payload"] == {"a": 1}


def test_a_migration_waits_for_a_lock_and_tries_again(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.installed set functions_sha256 = 'older'")
    with psycopg.connect(fresh) as busy, psycopg.connect(fresh, autocommit=True) as asker:
        busy.execute("lock table pgqueue.ghost_job in access exclusive mode")

        def tries() -> set[int]:
            return {
                found[0]
                for found in asker.execute(
                    "select pid from pg_stat_activity where application_name = 'pgqueue migrate'"
                    " and datname = current_database()"
                )
            }

        with ThreadPoolExecutor(1) as pool:
            migrating = pool.submit(schema.migrate, fresh)
            wait_until(lambda: len(tries()) == 1)
            (first,) = tries()
            # Its time-out is two seconds; the next try is another connection.
            wait_until(lambda: bool(tries() - {first}))
            busy.rollback()
            assert migrating.result(60).current


def test_a_migration_gives_up_after_its_last_try(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.installed set functions_sha256 = 'older'")
    with psycopg.connect(fresh) as busy:
        busy.execute("lock table pgqueue.ghost_job in access exclusive mode")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            schema.migrate(fresh, tries=1)
    assert value(admin, "select functions_sha256 from pgqueue.installed") == "older"


def test_a_migration_goes_past_an_open_transaction_that_enqueues(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.installed set functions_sha256 = 'older'")
    with psycopg.connect(fresh) as open_transaction:
        first = enqueue(open_transaction)
        assert schema.migrate(fresh).current
        second = enqueue(open_transaction)
        open_transaction.commit()
    assert [job(admin, id)["status"] for id in (first, second)] == ["pending", "pending"]


def test_a_second_migrator_waits_for_the_first(make_database: MakeDatabase) -> None:
    conninfo = make_database()
    with psycopg.connect(conninfo) as first, psycopg.connect(conninfo) as second:
        first.execute(f"select pg_advisory_xact_lock({schema._LOCK})")
        rival = Rival(second, lambda conn: conn.execute(f"select pg_advisory_xact_lock({schema._LOCK})").fetchone())
        rival.wait_blocked(conninfo)
        with ThreadPoolExecutor(1) as pool:
            migrating = pool.submit(schema.migrate, conninfo)
            with psycopg.connect(conninfo, autocommit=True) as asker:
                wait_until(
                    lambda: (
                        value(
                            asker,
                            "select count(*) from pg_stat_activity where application_name = 'pgqueue migrate'"
                            " and wait_event_type = 'Lock' and datname = current_database()",
                        )
                        == 1
                    )
                )
            assert schema.status(conninfo).revision is None
            first.rollback()
            rival.result()
            second.rollback()
            assert migrating.result(60).current


# ------------------------------------------------------------------------------------------------------ refusals


def test_a_database_of_an_unknown_revision_is_refused_and_unchanged(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.alembic_version set version_num = '9999'")
    admin.execute("update pgqueue.installed set version = '99.1.0', functions_sha256 = 'newer'")
    before, installed = facts(fresh), row(admin, INSTALLED)
    with pytest.raises(SchemaError, match=r"revision 9999, installed by pgqueue 99\.1\.0: .* upgrade the package"):
        schema.migrate(fresh)
    assert row(admin, INSTALLED) == installed
    assert differences(before, facts(fresh)) == []


def test_functions_of_a_newer_version_are_not_taken_back(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.installed set version = '99.1.0', functions_sha256 = 'newer'")
    installed = row(admin, INSTALLED)
    with pytest.raises(SchemaError, match=r"installed by pgqueue 99\.1\.0: .* upgrade the package"):
        schema.migrate(fresh)
    assert row(admin, INSTALLED) == installed


def test_functions_of_an_older_version_are_replaced(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.installed set version = '0.0.9', functions_sha256 = 'older'")
    assert schema.migrate(fresh).installed_by == pgqueue.__version__


def test_a_server_that_is_too_old_is_refused_before_anything_is_done(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No such server here: the limit is moved instead.
    conninfo = make_database()
    with psycopg.connect(conninfo) as conn:
        major = conn.info.server_version // 10000
    monkeypatch.setattr(schema, "OLDEST_POSTGRES", major + 1)
    with pytest.raises(SchemaError, match=f"pgqueue needs PostgreSQL {major + 1} or newer; this server is {major}"):
        schema.migrate(conninfo)
    with psycopg.connect(conninfo) as conn:
        assert value(conn, "select to_regnamespace('pgqueue')") is None


def test_who_may_not_see_the_schema_is_told_who_may(fresh: str) -> None:
    stranger = make_conninfo(fresh, options="-c role=pgqueue_reader")
    for ask in (schema.status, schema.migrate):
        with pytest.raises(
            SchemaError, match=r"permission denied.*: only the owner of the schema pgqueue, or a superuser"
        ):
            ask(stranger)


def test_an_upgrade_needs_no_right_to_create_schemas(make_database: MakeDatabase) -> None:
    conninfo = make_database()
    with psycopg.connect(conninfo, autocommit=True) as conn:
        owner = f"owner_{conn.info.dbname}"
        conn.execute(f"create role {owner} nologin")
        try:
            conn.execute(f"grant create on database {conn.info.dbname} to {owner}")
            as_owner = make_conninfo(conninfo, options=f"-c role={owner}")
            schema.migrate(as_owner)
            conn.execute(f"revoke create on database {conn.info.dbname} from {owner}")
            conn.execute("update pgqueue.installed set functions_sha256 = 'older'")
            assert schema.migrate(as_owner).current
        finally:
            conn.execute(f"drop owned by {owner}; drop role {owner}")


def test_an_error_is_postgresqls_own_and_says_no_password() -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        schema.migrate("host=127.0.0.1 port=1 user=u password=hunter2 dbname=d")
    assert "hunter2" not in str(caught.value)


# -------------------------------------------------------------------------------------------------------- status


def test_the_status_of_an_empty_database_says_what_to_do(make_database: MakeDatabase) -> None:
    found = schema.status(make_database())
    assert (found.revision, found.installed_by, found.current) == (None, None, False)
    assert found.describe() == "pgqueue is not installed in this database: run `pgqueue migrate`"


def test_asking_for_the_status_changes_nothing(make_database: MakeDatabase) -> None:
    conninfo = make_database()
    schema.status(conninfo)
    with psycopg.connect(conninfo) as conn:
        assert value(conn, "select to_regnamespace('pgqueue')") is None


def test_the_status_of_a_current_database_says_so(fresh: str) -> None:
    found = schema.status(fresh)
    assert found.current
    assert found.describe() == f"up to date: revision {found.head}, functions of pgqueue {pgqueue.__version__}"


def test_the_status_of_older_functions_says_what_to_do(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.installed set version = '0.0.9', functions_sha256 = 'older'")
    found = schema.status(fresh)
    assert not found.current
    assert found.describe() == (
        f"functions of pgqueue 0.0.9 differ from this {pgqueue.__version__}: run `pgqueue migrate`"
    )


def test_the_status_of_an_older_revision_says_what_to_do(fresh: str) -> None:
    older = replace(schema.status(fresh), revision="0000")
    assert older.describe() == f"revision 0000, but this pgqueue has {older.head}: run `pgqueue migrate`"


def test_the_status_of_a_newer_database_advises_what_migrate_would(fresh: str, admin: Conn) -> None:
    admin.execute("update pgqueue.alembic_version set version_num = '9999'")
    admin.execute("update pgqueue.installed set version = '99.1.0', functions_sha256 = 'newer'")
    assert "upgrade the package" in schema.status(fresh).describe()


def test_a_role_without_rights_on_the_schema_gets_them_at_the_next_migration(fresh: str, admin: Conn) -> None:
    admin.execute("revoke all on schema pgqueue from pgqueue_reader")
    admin.execute("revoke all on all tables in schema pgqueue from pgqueue_reader")
    found = schema.status(fresh)
    assert (found.current, found.roles_without_rights) == (False, ("pgqueue_reader",))
    assert found.describe() == "without rights for pgqueue_reader: run `pgqueue migrate`"
    assert schema.migrate(fresh).current
    admin.execute("set role pgqueue_reader")
    assert value(admin, "select count(*) from pgqueue.queue_status") == 0


def test_missing_roles_are_told_and_made_by_the_first_who_may() -> None:
    # A server of its own: roles are shared by all its databases.
    with (
        embedded.temporary(settings={"fsync": "off"}) as server,
        psycopg.connect(server.url(), autocommit=True) as superuser,
    ):
        superuser.execute("create role shop nologin; grant create on database pgqueue to shop")
        as_shop = make_conninfo(server.url(), options="-c role=shop")
        for found in (schema.migrate(as_shop), schema.migrate(as_shop), schema.status(as_shop)):
            assert (found.current, found.missing_roles) == (True, schema.ROLES)
            assert found.describe().startswith("up to date: revision ")
            assert "; without the roles pgqueue_producer, pgqueue_worker, " in found.describe()
            assert "let a superuser run `pgqueue migrate`, or ignore them)" in found.describe()
        superuser.execute("create role maker nologin createrole; grant pg_read_all_data to maker")
        as_maker = make_conninfo(server.url(), options="-c role=maker")
        assert schema.migrate(as_maker).missing_roles == schema.ROLES  # it could make them, but not grant them rights
        found = schema.migrate(server.url())
        assert (found.current, found.missing_roles) == (True, ())
        superuser.execute("set role pgqueue_producer")
        assert enqueue(superuser)


def test_the_roles_are_those_of_the_sql() -> None:
    (roles,) = [path.read_text() for path in schema.sql_files() if path.name == "roles.sql"]
    assert set(re.findall(r"^--   (pgqueue_\w+)", roles, re.MULTILINE)) == set(schema.ROLES)


def test_the_script_makes_the_schema_in_its_transaction() -> None:
    assert schema.migrate_sql().startswith("BEGIN;\n\ncreate schema if not exists pgqueue;\n")


def test_a_migrated_database_is_usable(admin: Conn) -> None:
    id = enqueue(admin)
    w = db.execute(admin, db.register_worker("w", ["q"]))
    (claimed,) = db.execute(admin, db.claim(w, ["q"], 1))
    assert db.execute(admin, db.complete(w, [(id, claimed.token)])) == []


def test_a_migration_waits_for_a_worker_that_drops_a_partition(make_database: MakeDatabase) -> None:
    conninfo = make_database()
    schema.migrate(conninfo)
    with psycopg.connect(conninfo) as pruner, psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute("create table pgqueue.job_done_20200101 (like pgqueue.job_done)")
        conn.execute(
            "alter table pgqueue.job_done attach partition pgqueue.job_done_20200101"
            " for values from ('2020-01-01') to ('2020-01-02')"
        )
        conn.execute("update pgqueue.installed set functions_sha256 = 'old'")
        assert pruner.execute("select dropped from pgqueue.prune()").fetchone() == (1,)
        thread = threading.Thread(target=schema.migrate, args=[conninfo])
        thread.start()
        wait_until(
            lambda: value(conn, "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'"
                          " and application_name = 'pgqueue migrate' and datname = current_database()")
        )  # fmt: skip
        pruner.commit()
        thread.join(20)
    assert schema.status(conninfo).current


def test_a_migration_sees_what_another_did_also_under_a_stricter_default(make_database: MakeDatabase) -> None:
    conninfo = make_database()
    with psycopg.connect(conninfo, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(f"alter database {name} set default_transaction_isolation = 'repeatable read'")
    threads = [threading.Thread(target=schema.migrate, args=[conninfo]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert schema.status(conninfo).current
