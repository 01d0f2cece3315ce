from __future__ import annotations

import psycopg

from pgqueue import schema
from tests.conftest import MakeDatabase
from tests.schema.catalogue import differences, facts, run


def test_migrations_give_the_schema_that_sql_describes(make_database: MakeDatabase) -> None:
    migrated, direct = make_database(), make_database()
    schema.migrate(migrated)
    with psycopg.connect(direct) as conn:
        run(conn, schema.tables_sql())
        # Alembic's own table is the one thing that sql/ does not describe.
        run(
            conn,
            "create table pgqueue.alembic_version"
            " (version_num varchar(32) not null, constraint alembic_version_pkc primary key (version_num));"
            "comment on table pgqueue.alembic_version is 'The revision of the tables, kept by alembic.';"
            "comment on column pgqueue.alembic_version.version_num is 'The revision.';",
        )
        for path in schema.sql_files():
            run(conn, path.read_text())
    found = differences(facts(migrated), facts(direct))
    assert not found, "\n".join(["migrations (first) and sql/ (second) differ:", *found])
    assert len(facts(migrated)) > 300


def test_a_difference_would_be_found(make_database: MakeDatabase) -> None:
    conninfo = make_database()
    schema.migrate(conninfo)
    before = facts(conninfo)
    for change in (
        "alter table pgqueue.worker alter info drop default",
        "alter table pgqueue.worker reset (fillfactor)",
        "drop index pgqueue.job_dead_prune",
        "alter table pgqueue.job_live drop constraint job_live_lease",
        "comment on column pgqueue.job.id is 'else'",
        "alter function pgqueue.claim(bigint, text[], integer) reset jit",
        "grant select on pgqueue.job to pgqueue_reader",
        "grant execute on function pgqueue.finish to public",
    ):
        with psycopg.connect(conninfo) as conn:
            run(conn, change)
        after = facts(conninfo)
        assert differences(before, after), change
        before = after


def test_the_script_for_people_gives_the_same_schema(make_database: MakeDatabase) -> None:
    migrated, by_hand = make_database(), make_database()
    schema.migrate(migrated)
    with psycopg.connect(by_hand, autocommit=True) as conn:
        run(conn, schema.migrate_sql())
    found = differences(facts(migrated), facts(by_hand))
    assert not found, "\n".join(["migrate (first) and migrate --sql (second) differ:", *found])
    assert schema.status(by_hand) == schema.status(migrated)
    assert schema.status(by_hand).current


def test_the_script_that_fails_midway_leaves_nothing(make_database: MakeDatabase) -> None:
    conninfo = make_database()
    script = schema.migrate_sql().replace("COMMIT;", "select 1 / 0; COMMIT;")
    with psycopg.connect(conninfo, autocommit=True) as conn:
        try:
            run(conn, script)
        except psycopg.errors.DivisionByZero:
            conn.rollback()
        else:
            raise AssertionError("the script was not in a transaction")
    assert schema.status(conninfo).revision is None
