"""What every worker does now and then, by two at once and in the middle of the work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pgqueue import database as db
from tests.race.steps import commit_or_rollback, complete, dead, finish, ghost, running, statuses
from tests.support import Conn, Rival, claim, enqueue, job, make_due, rows, value, worker

LATER = timedelta(hours=1)


def scheduled(conn: Conn, count: int) -> list[int]:
    """Jobs that are due but not promoted."""
    ids = [enqueue(conn, run_at=datetime.now(UTC) + LATER) for _ in range(count)]
    for id in ids:
        make_due(conn, id)
    return ids


def impatient(conn: Conn) -> None:
    """From now on a wait is an error: for what promises to wait for nobody."""
    conn.execute("set lock_timeout = '100ms'")


# ------------------------------------------------------------------------------------------- promote


@commit_or_rollback
def test_two_promotes_take_disjoint_jobs(conn: Conn, holder: Conn, other: Conn, end: str) -> None:
    ids = scheduled(conn, 5)
    impatient(other)
    assert db.execute(holder, db.promote("q", 2)) == 2
    assert db.execute(other, db.promote("q")) == 3
    finish(holder, end)
    assert db.execute(other, db.promote("q")) == (0 if end == "commit" else 2)
    assert statuses(conn) == dict.fromkeys(ids, "pending")


@commit_or_rollback
def test_a_claim_passes_over_what_is_being_promoted_and_takes_the_rest(
    conn: Conn, holder: Conn, other: Conn, end: str
) -> None:
    ids = scheduled(conn, 3)
    worker_id = worker(conn)
    impatient(other)
    assert db.execute(holder, db.promote("q", 2)) == 2
    first = [job.id for job in claim(other, worker_id, 10)]
    assert len(first) == 1
    finish(holder, end)
    second = [job.id for job in claim(other, worker_id, 10)]
    assert sorted(first + second) == ids


def test_a_promote_passes_over_what_a_claim_has_promoted_and_taken(conn: Conn, holder: Conn, other: Conn) -> None:
    ids = scheduled(conn, 3)
    worker_id = worker(conn)
    impatient(other)
    assert len(claim(holder, worker_id, 3)) == 3
    assert db.execute(other, db.promote("q")) == 0
    holder.commit()
    assert statuses(conn) == dict.fromkeys(ids, "running")


# ------------------------------------------------------------------------- lanes, queues, hints


def test_the_first_use_of_a_lane_in_an_open_transaction_makes_no_other_enqueue_wait(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    enqueue(conn)
    impatient(other)
    first = enqueue(holder, priority=7)
    second = enqueue(other, priority=7)
    worker_id = worker(conn)
    assert second in [job.id for job in claim(other, worker_id, 10)]
    holder.commit()
    assert [job.id for job in claim(other, worker_id, 10)] == [first]


def test_duplicate_lanes_are_swept_and_hide_no_job(conn: Conn, holder: Conn, other: Conn) -> None:
    ids = {enqueue(holder, priority=7), enqueue(other, priority=7)}
    holder.commit()
    assert value(conn, "select count(*) from pgqueue.lane where priority = 7") == 2
    db.execute(conn, db.sweep())
    assert value(conn, "select count(*) from pgqueue.lane where priority = 7") == 1
    assert {job.id for job in claim(conn, worker(conn), 10)} == ids


def test_the_first_use_of_a_queue_in_an_open_transaction_makes_no_other_enqueue_wait(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    impatient(other)
    first = enqueue(holder, queue="new")
    second = enqueue(other, queue="new")
    holder.commit()
    assert {job.id for job in claim(conn, worker(conn, ["new"]), 10, ["new"])} == {first, second}


def test_the_first_bulk_use_of_a_queue_in_an_open_transaction_makes_no_other_enqueue_wait(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    impatient(other)
    bulk = db.enqueue_many("new", "t", [{}, {}], priorities=[1, 2])
    assert len(db.execute(holder, bulk)) == 2
    assert len(db.execute(other, bulk)) == 2


def test_a_sweep_does_not_wait_for_an_open_transaction_that_configures_a_new_queue(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    enqueue(conn, queue="new")
    _, (lost,) = ghost(conn)
    db.execute(holder, db.pause("new"))
    impatient(other)
    assert db.execute(other, db.sweep()).retried == 1
    assert job(conn, lost.id)["status"] == "pending"


@commit_or_rollback
def test_two_refreshes_of_hints_never_wait_and_never_hide_a_job(
    conn: Conn, holder: Conn, other: Conn, end: str
) -> None:
    ids = [enqueue(conn, priority=priority) for priority in (0, 1)]
    # Every search counts as slow, so that hints go on.
    refresh = "select pgqueue.refresh_hints(p_margin => '0', p_slow_ms => 0, p_step_ms => 0)"
    impatient(other)
    value(holder, refresh)
    value(other, refresh)
    value(other, refresh)
    finish(holder, end)
    value(other, refresh)
    assert value(conn, "select count(*) from pgqueue.lane where hint > '-infinity'") >= 2
    assert sorted(job.id for job in claim(conn, worker(conn), 10)) == ids


def test_a_job_that_commits_below_the_hint_is_found_by_the_next_refreshes(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    worker_id = worker(conn)
    enqueue(conn)
    late = enqueue(holder)
    claim(conn, worker_id, 10)
    refresh = "select pgqueue.refresh_hints(p_margin => '0', p_slow_ms => 0, p_step_ms => 0)"
    for _ in range(3):
        value(conn, refresh)
    hint = value(conn, "select max(hint) from pgqueue.lane where priority = 0")
    holder.commit()
    assert job(conn, late)["rank_at"] < hint
    for _ in range(2):
        value(other, refresh)
    assert [job.id for job in claim(conn, worker_id, 10)] == [late]


def test_a_job_released_below_the_hint_is_claimed_at_once(conn: Conn) -> None:
    worker_id, (mine,) = running(conn)
    for _ in range(3):
        value(conn, "select pgqueue.refresh_hints(p_margin => '0', p_slow_ms => 0, p_step_ms => 0)")
    assert value(conn, "select max(hint) from pgqueue.lane where priority = 0") > mine.rank_at
    db.execute(conn, db.release(worker_id, [(mine.id, mine.token)]))
    assert [job.id for job in claim(conn, worker_id)] == [mine.id]


# ---------------------------------------------------------------------------------------- partitions


def test_a_complete_into_the_default_partition_makes_ensure_partitions_give_up_without_error(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    day = value(conn, "select (now() at time zone 'UTC')::date")
    conn.execute(f"drop table if exists pgqueue.job_done_{day:%Y%m%d}")
    worker_id, (one, two) = running(conn, 2, retain_for=timedelta(seconds=1))
    complete(holder, worker_id, one)
    assert db.execute(other, db.ensure_partitions()) == 0
    holder.commit()
    assert db.execute(other, db.ensure_partitions()) == 1
    assert complete(conn, worker_id, two) == []
    assert statuses(conn) == {one.id: "completed", two.id: "completed"}
    assert value(conn, "select count(*) from only pgqueue.job_done_default") == 0


def test_a_complete_does_not_wait_for_an_uncommitted_ensure_partitions(conn: Conn, holder: Conn, other: Conn) -> None:
    day = value(conn, "select (now() at time zone 'UTC')::date + 2")
    conn.execute(f"drop table if exists pgqueue.job_done_{day:%Y%m%d}")
    worker_id, (mine,) = running(conn)
    assert db.execute(holder, db.ensure_partitions()) == 1
    impatient(other)
    assert complete(other, worker_id, mine) == []
    holder.commit()
    assert statuses(conn) == {mine.id: "completed"}


def test_two_ensure_partitions_do_not_collide(conn: Conn, holder: Conn, other: Conn) -> None:
    day = value(conn, "select (now() at time zone 'UTC')::date + 2")
    conn.execute(f"drop table if exists pgqueue.job_done_{day:%Y%m%d}")
    assert db.execute(holder, db.ensure_partitions()) == 1
    assert db.execute(other, db.ensure_partitions()) == 0
    holder.commit()
    assert db.execute(other, db.ensure_partitions()) == 0


def old_day(conn: Conn) -> None:
    conn.execute("create table if not exists pgqueue.job_done_20200101 partition of pgqueue.job_done"
                 " for values from ('2020-01-01') to ('2020-01-02')")  # fmt: skip


def has_old_day(conn: Conn) -> bool:
    return bool(value(conn, "select to_regclass('pgqueue.job_done_20200101') is not null"))


@commit_or_rollback
def test_a_prune_gives_up_without_error_while_a_complete_is_in_flight_and_works_later(
    conn: Conn, holder: Conn, other: Conn, end: str
) -> None:
    old_day(conn)
    worker_id, (mine,) = running(conn)
    complete(holder, worker_id, mine)
    assert db.execute(other, db.prune()).dropped == 0
    assert has_old_day(conn)
    finish(holder, end)
    assert db.execute(other, db.prune()).dropped == 1
    assert not has_old_day(conn)
    assert statuses(conn) == {mine.id: "completed" if end == "commit" else "running"}


def test_a_prune_gives_up_without_error_while_somebody_reads_the_done_jobs(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    old_day(conn)
    (letter,) = dead(conn)
    conn.execute("update pgqueue.job_dead set prune_at = now() - interval '1 day'")
    value(holder, "select count(*) from pgqueue.job_done")
    assert db.execute(other, db.prune()) == (0, 1)
    holder.commit()
    assert db.execute(other, db.prune()) == (1, 0)
    assert letter not in statuses(conn)


def test_a_prune_gives_up_without_error_while_somebody_indexes_the_dead_jobs(
    conn: Conn, holder: Conn, other: Conn
) -> None:
    old_day(conn)
    dead(conn)
    conn.execute("update pgqueue.job_dead set prune_at = now() - interval '1 day'")
    holder.execute("create index race_dead on pgqueue.job_dead (task)")
    assert db.execute(other, db.prune()) == (1, 0)
    holder.rollback()
    assert db.execute(other, db.prune()) == (0, 1)


def test_a_complete_waits_for_a_prune_and_then_counts(conn: Conn, holder: Conn, other: Conn, dsn: str) -> None:
    old_day(conn)
    worker_id, (mine,) = running(conn)
    assert db.execute(holder, db.prune()).dropped == 1
    rival = Rival(other, lambda c: complete(c, worker_id, mine))
    rival.wait_blocked(dsn)
    holder.commit()
    assert rival.result() == []
    assert statuses(conn) == {mine.id: "completed"}


def test_a_prune_passes_over_a_dead_letter_that_is_being_retried(conn: Conn, holder: Conn, other: Conn) -> None:
    (letter,) = dead(conn)
    conn.execute("update pgqueue.job_dead set prune_at = now() - interval '1 day'")
    db.execute(holder, db.retry(letter))
    assert db.execute(other, db.prune()).deleted == 0
    holder.commit()
    assert statuses(conn) == {letter: "pending"}
    assert rows(conn, "select 1 from pgqueue.job_dead") == []


def test_a_completion_that_commits_while_its_day_is_being_made_is_moved_too(
    conn: Conn, holder: Conn, other: Conn, dsn: str
) -> None:
    tomorrow = value(conn, "select (now() at time zone 'UTC')::date + 8")
    conn.execute(f"drop table pgqueue.job_done_{tomorrow:%Y%m%d}")
    worker_id, (held,) = running(conn, retain_for=timedelta(days=8))
    complete(holder, worker_id, held)  # into the default partition, not committed
    other.execute("alter function pgqueue.ensure_partitions set lock_timeout = '20s'")
    try:
        rival = Rival(other, lambda connection: db.execute(connection, db.ensure_partitions()))
        rival.wait_blocked(dsn)
        holder.commit()
        assert rival.result() == 1
    finally:
        conn.execute("alter function pgqueue.ensure_partitions set lock_timeout = '200ms'")
    leaf = value(conn, "select tableoid::regclass::text from pgqueue.job where id = %s", held.id)
    assert leaf == f"pgqueue.job_done_{tomorrow:%Y%m%d}"
    assert value(conn, "select count(*) from pgqueue.job_done_default") == 0
