from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from tests.support import Conn, claim_one, enqueue, job, rows, value, worker


@pytest.fixture(autouse=True)
def _usual_days_afterwards(conn: Conn) -> Iterator[None]:
    """Tests here make and drop days; the database is shared."""
    yield
    conn.execute("delete from pgqueue.job")
    conn.execute("delete from pgqueue.job_attempt")
    for table in ("job_done", "job_attempt", "job_step", "job_log", "event"):
        for day in days(conn, table):
            conn.execute(f"drop table pgqueue.{table}_{day:%Y%m%d}")
    conn.execute("delete from pgqueue.queue")
    conn.execute("delete from pgqueue.setting")
    conn.execute("insert into pgqueue.setting default values")
    db.execute(conn, db.ensure_partitions())


def days(conn: Conn, table: str) -> list[date]:
    """The days that are partitions of the table."""
    found = rows(
        conn,
        "select to_date(right(c.relname, 8), 'YYYYMMDD') as day"
        " from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        r" where i.inhparent = ('pgqueue.' || %s)::regclass and c.relname ~ '_\d{8}$' order by 1",
        table,
    )
    return [each["day"] for each in found]


def today(conn: Conn) -> date:
    day: date = value(conn, "select (clock_timestamp() at time zone 'UTC')::date")
    return day


def span(first: date, count: int) -> list[date]:
    return [first + timedelta(days=n) for n in range(count)]


def make_day(conn: Conn, table: str, day: date) -> None:
    conn.execute(
        f"create table pgqueue.{table}_{day:%Y%m%d} partition of pgqueue.{table}"
        f" for values from ('{day} 00:00:00+00') to ('{day + timedelta(days=1)} 00:00:00+00')"
    )


def drop_day(conn: Conn, table: str, day: date) -> None:
    conn.execute(f"drop table pgqueue.{table}_{day:%Y%m%d}")


def leaf(conn: Conn, table: str) -> list[str]:
    found = rows(conn, f"select c.relname from pgqueue.{table} t join pg_class c on c.oid = t.tableoid order by 1")
    return [each["relname"] for each in found]


def completed(conn: Conn, **options: Any) -> int:
    id, w = enqueue(conn, **options), worker(conn)
    db.execute(conn, db.complete(w, [(id, claim_one(conn, w).token)]))
    return id


def dead(conn: Conn, **options: Any) -> int:
    id, w = enqueue(conn, **options), worker(conn)
    db.execute(conn, db.fail(w, [db.Failure(id, claim_one(conn, w).token, "boom", fatal=True)]))
    return id


def prune(conn: Conn, limit: int = 10_000) -> db.Pruned:
    return db.execute(conn, db.prune(limit))


# ------------------------------------------------------------------------------------- ensure_partitions


def test_there_is_a_day_for_every_completion_within_the_retention_and_three_more(conn: Conn) -> None:
    db.execute(conn, db.ensure_partitions())
    assert days(conn, "job_done") == span(today(conn), 1 + 7 + 3)
    assert days(conn, "job_attempt") == span(today(conn), 1 + 3)


def test_days_that_exist_are_not_made_again(conn: Conn) -> None:
    db.execute(conn, db.ensure_partitions())
    assert db.execute(conn, db.ensure_partitions()) == 0


def test_missing_days_are_made_and_counted(conn: Conn) -> None:
    drop_day(conn, "job_done", today(conn) + timedelta(days=2))
    drop_day(conn, "job_attempt", today(conn) + timedelta(days=1))
    assert db.execute(conn, db.ensure_partitions()) == 2
    assert days(conn, "job_done") == span(today(conn), 11)


def test_the_number_of_days_ahead_can_be_said(conn: Conn) -> None:
    assert value(conn, "select pgqueue.ensure_partitions(5)") == 10
    assert days(conn, "job_attempt") == span(today(conn), 6)


def test_a_day_has_the_bounds_of_utc_whatever_the_session_says(conn: Conn) -> None:
    drop_day(conn, "job_done", today(conn))
    conn.execute("set timezone = 'Pacific/Auckland'")
    db.execute(conn, db.ensure_partitions())
    conn.execute("set timezone = 'UTC'")
    bound = value(
        conn,
        "select pg_get_expr(relpartbound, oid) from pg_class where relname = %s",
        f"job_done_{today(conn):%Y%m%d}",
    )
    tomorrow = today(conn) + timedelta(days=1)
    assert bound == f"FOR VALUES FROM ('{today(conn)} 00:00:00+00') TO ('{tomorrow} 00:00:00+00')"


@pytest.mark.parametrize("retention", ["90 days", "2160 hours"])
def test_a_longer_retention_of_a_queue_makes_its_days(conn: Conn, retention: str) -> None:
    db.execute(conn, db.set_queue("q", {"retain_completed": retention}))
    db.execute(conn, db.ensure_partitions())
    assert days(conn, "job_done") == span(today(conn), 1 + 90 + 3)
    completed(conn)
    assert leaf(conn, "job") == [f"job_done_{today(conn) + timedelta(days=90):%Y%m%d}"]


@pytest.mark.parametrize("retention", ["3 months", "89 days 23:59"])
def test_a_retention_in_months_or_hours_has_its_day_too(conn: Conn, retention: str) -> None:
    db.execute(conn, db.set_queue("q", {"retain_completed": retention}))
    db.execute(conn, db.ensure_partitions())
    id = completed(conn)
    prune_at = job(conn, id)["prune_at"].astimezone(UTC)
    assert leaf(conn, "job") == [f"job_done_{prune_at:%Y%m%d}"]


def test_a_longer_default_retention_makes_its_days(conn: Conn) -> None:
    db.execute(conn, db.set_defaults({"retain_completed": "20 days"}))
    db.execute(conn, db.ensure_partitions())
    assert days(conn, "job_done") == span(today(conn), 1 + 20 + 3)


def test_no_more_than_a_hundred_days_are_made_ahead(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"retain_completed": "3650 days"}))
    db.execute(conn, db.ensure_partitions())
    assert len(days(conn, "job_done")) == 1 + 100 + 3


def test_what_is_kept_for_longer_than_days_are_made_is_deleted_from_the_default_partition(conn: Conn) -> None:
    id = completed(conn, retain_for=timedelta(days=400))
    assert leaf(conn, "job") == ["job_done_default"]
    conn.execute("update pgqueue.job_done_default set prune_at = now() - interval '9 days'")
    assert db.execute(conn, db.prune()).deleted == 1
    assert rows(conn, "select 1 from pgqueue.job where id = %s", id) == []


def test_a_day_that_fills_the_default_partition_is_not_made(conn: Conn) -> None:
    missing = today(conn) + timedelta(days=2)
    drop_day(conn, "job_done", missing)
    conn.execute(
        "insert into pgqueue.job_done (rank_at, run_at, enqueued_at, finished_at, prune_at, status, queue, task)"
        " select now(), now(), now(), now(), %s::date, 'completed', 'q', 't' from generate_series(1, 10001)",
        [missing],
    )
    db.execute(conn, db.ensure_partitions())
    assert missing not in days(conn, "job_done")
    conn.execute("delete from pgqueue.job where ctid = (select min(ctid) from pgqueue.job_done_default)")
    db.execute(conn, db.ensure_partitions())
    assert missing in days(conn, "job_done")


def test_a_completion_whose_day_is_missing_is_kept_and_moved_when_the_day_is_made(conn: Conn) -> None:
    missing = today(conn) + timedelta(days=2)
    drop_day(conn, "job_done", missing)
    ids = [completed(conn, retain_for=timedelta(days=2)), completed(conn, retain_for=timedelta(days=900))]
    assert leaf(conn, "job") == ["job_done_default"] * 2
    before = [job(conn, id) for id in ids]
    assert db.execute(conn, db.ensure_partitions()) == 1
    assert leaf(conn, "job") == [f"job_done_{missing:%Y%m%d}", "job_done_default"]
    assert [job(conn, id) for id in ids] == before


def test_an_attempt_whose_day_is_missing_is_kept_and_moved_when_the_day_is_made(conn: Conn) -> None:
    drop_day(conn, "job_attempt", today(conn))
    dead(conn)
    assert leaf(conn, "job_attempt") == ["job_attempt_default"]
    assert db.execute(conn, db.ensure_partitions()) == 1
    assert leaf(conn, "job_attempt") == [f"job_attempt_{today(conn):%Y%m%d}"]


def test_a_new_day_has_the_indexes_and_a_comment(conn: Conn) -> None:
    name = f"job_attempt_{today(conn):%Y%m%d}"
    drop_day(conn, "job_attempt", today(conn))
    db.execute(conn, db.ensure_partitions())
    indexes = value(conn, "select count(*) from pg_indexes where schemaname = 'pgqueue' and tablename = %s", name)
    assert indexes == 2
    comment = value(conn, "select obj_description(('pgqueue.' || %s)::regclass)", name)
    assert comment == f"job_attempt of {today(conn)} (UTC)."


def test_a_busy_table_is_left_for_the_next_call(conn: Conn, connect: Callable[..., Conn]) -> None:
    drop_day(conn, "job_done", today(conn))
    busy = connect(autocommit=False)
    busy.execute("lock table pgqueue.job_done in share update exclusive mode")
    assert db.execute(conn, db.ensure_partitions()) == 0
    busy.rollback()
    assert db.execute(conn, db.ensure_partitions()) == 1


def test_a_second_maker_returns_at_once(conn: Conn, connect: Callable[..., Conn]) -> None:
    drop_day(conn, "job_done", today(conn))
    first = connect(autocommit=False)
    assert db.execute(first, db.ensure_partitions()) == 1
    assert db.execute(conn, db.ensure_partitions()) == 0
    first.rollback()


# ------------------------------------------------------------------------------------------------- prune


def test_only_days_that_are_over_are_dropped(conn: Conn) -> None:
    kept = days(conn, "job_done")
    for ago in (1, 2, 40):
        make_day(conn, "job_done", today(conn) - timedelta(days=ago))
    assert prune(conn) == (3, 0)
    assert days(conn, "job_done") == kept


def test_a_dropped_day_takes_its_jobs_along_and_no_others(conn: Conn) -> None:
    make_day(conn, "job_done", today(conn) - timedelta(days=1))
    gone, kept = completed(conn), completed(conn)
    conn.execute("update pgqueue.job_done set prune_at = prune_at - interval '8 days' where id = %s", [gone])
    assert f"job_done_{today(conn) - timedelta(days=1):%Y%m%d}" in leaf(conn, "job")
    assert prune(conn).dropped == 1
    assert [each["id"] for each in rows(conn, "select id from pgqueue.job")] == [kept]


def test_jobs_of_today_stay_until_the_day_is_over(conn: Conn) -> None:
    id = completed(conn)
    conn.execute("update pgqueue.job_done set prune_at = date_trunc('day', now(), 'UTC')")
    assert leaf(conn, "job") == [f"job_done_{today(conn):%Y%m%d}"]
    assert prune(conn) == (0, 0)
    assert job(conn, id)["status"] == "completed"


def test_the_retention_of_a_job_decides_its_day(conn: Conn) -> None:
    completed(conn, retain_for=timedelta(days=2))
    completed(conn)
    assert leaf(conn, "job") == [f"job_done_{today(conn) + timedelta(days=ahead):%Y%m%d}" for ahead in (2, 7)]


def test_what_is_over_goes_from_the_default_partition_too(conn: Conn) -> None:
    gone, kept = completed(conn), completed(conn, retain_for=timedelta(days=900))
    conn.execute("update pgqueue.job_done set prune_at = now() - interval '9 days' where id = %s", [gone])
    assert leaf(conn, "job") == ["job_done_default"] * 2
    assert prune(conn) == (0, 1)
    assert job(conn, kept)["status"] == "completed"


def test_dead_letters_go_when_their_time_has_come(conn: Conn) -> None:
    gone, kept = dead(conn), dead(conn)
    conn.execute("update pgqueue.job_dead set prune_at = clock_timestamp() - interval '1 ms' where id = %s", [gone])
    assert prune(conn) == (0, 1)
    assert [each["id"] for each in rows(conn, "select id from pgqueue.job")] == [kept]


def test_dead_letters_outlive_completed_jobs(conn: Conn) -> None:
    died, done = dead(conn), completed(conn)
    kept = {id: job(conn, id)["prune_at"] - job(conn, id)["finished_at"] for id in (died, done)}
    assert kept == {died: timedelta(days=30), done: timedelta(days=7)}


def test_a_short_retention_of_a_job_does_not_shorten_the_life_of_a_dead_letter(conn: Conn) -> None:
    id = dead(conn, retain_for=timedelta(0))
    assert job(conn, id)["prune_at"] - job(conn, id)["finished_at"] == timedelta(days=30)
    id = dead(conn, retain_for=timedelta(days=50))
    assert job(conn, id)["prune_at"] - job(conn, id)["finished_at"] == timedelta(days=50)


def test_dead_letters_go_in_batches(conn: Conn) -> None:
    for _ in range(3):
        dead(conn)
    conn.execute("update pgqueue.job_dead set prune_at = clock_timestamp() - interval '1 ms'")
    assert [prune(conn, 2).deleted for _ in range(3)] == [2, 1, 0]


def test_days_of_attempts_go_after_the_longest_retention(conn: Conn) -> None:
    kept = days(conn, "job_attempt")
    for ago in (29, 30, 31, 32):
        make_day(conn, "job_attempt", today(conn) - timedelta(days=ago))
    assert prune(conn).dropped == 2
    assert days(conn, "job_attempt") == [today(conn) - timedelta(days=ago) for ago in (30, 29)] + kept


def test_days_of_attempts_stay_as_long_as_any_queue_keeps_its_jobs(conn: Conn) -> None:
    db.execute(conn, db.set_queue("q", {"retain_completed": "100 days"}))
    make_day(conn, "job_attempt", today(conn) - timedelta(days=99))
    make_day(conn, "job_attempt", today(conn) - timedelta(days=102))
    assert prune(conn).dropped == 1
    assert days(conn, "job_attempt")[0] == today(conn) - timedelta(days=99)


def test_attempts_stay_as_long_as_their_job_is_kept(conn: Conn) -> None:
    # "days of attempts that no kept job can refer to": a job of its own retention is a kept job.
    make_day(conn, "job_attempt", today(conn) - timedelta(days=60))
    dead(conn, retain_for=timedelta(days=300))
    conn.execute("update pgqueue.job_attempt set finished_at = finished_at - interval '60 days'")
    conn.execute("update pgqueue.job_dead set finished_at = finished_at - interval '60 days'")
    prune(conn)
    assert value(conn, "select count(*) from pgqueue.job_attempt") == 1


def test_old_attempts_go_from_the_default_partition_too(conn: Conn) -> None:
    dead(conn)
    conn.execute("update pgqueue.job_attempt set finished_at = finished_at - interval '60 days'")
    assert leaf(conn, "job_attempt") == ["job_attempt_default"]
    conn.execute("delete from pgqueue.job")
    prune(conn)
    assert value(conn, "select count(*) from pgqueue.job_attempt") == 0


def test_a_day_that_somebody_reads_is_left_for_the_next_call(conn: Conn, connect: Callable[..., Conn]) -> None:
    make_day(conn, "job_done", today(conn) - timedelta(days=1))
    reader = connect(autocommit=False)
    reader.execute("select * from pgqueue.job_done")
    assert prune(conn) == (0, 0)
    reader.rollback()
    assert prune(conn) == (1, 0)


def test_a_second_pruner_returns_at_once(conn: Conn, connect: Callable[..., Conn]) -> None:
    make_day(conn, "job_done", today(conn) - timedelta(days=1))
    first = connect(autocommit=False)
    assert prune(first) == (1, 0)
    assert prune(conn) == (0, 0)
    first.rollback()
