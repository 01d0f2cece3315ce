"""Every ordered pair of functions that may meet, on two connections: the second is called while the transaction of the
first is open, and waits for it or not; then the first commits or rolls back.

What comes of it must be what comes of calling one after the other: the answers of both, and every row that matters. A
function that passes over what others hold may do less; asked again, it must have done it all. Nobody gets an error that
is not one of ours. Which functions meet where is the table in scenes.py; the pairs nobody has to write.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from pgqueue import schema
from pgqueue.errors import PgqueueError
from tests.race import scenes
from tests.race.scenes import NOT_AT_ONCE, SCENES, SWEEP, Scene, Stage, Verb
from tests.support import Conn, Rival, value

PAIRS = [(scene, first) for scene, known in SCENES.items() for first in known.verbs]

# Everything that a caller could ever notice, without what is different each time: moments, and ids that are new.
PICTURE = """
select jsonb_build_object(
  'jobs', (select jsonb_agg(to_jsonb(x) order by x.id) from (
     select j.id, j.status, j.attempt, j.crashes, j.token, j.worker_id, j.waits_for, j.holds_slot, j.key, j.task, j.queue, j.payload,
            j.error_type, j.cancel_requested_at is not null as asked, j.run_at > clock_timestamp() as later, j.flow_id
     from pgqueue.job j) x),
  'holds', (select jsonb_agg(array[h.key, h.job_id::text] order by h.key) from pgqueue.key_hold h),
  'attempts', (select jsonb_agg(array[a.job_id::text, a.token::text, a.outcome] order by a.job_id, a.token) from pgqueue.job_attempt a),
  'steps', (select count(*) from pgqueue.job_step),
  'workers', (select jsonb_agg(jsonb_build_array(w.id, w.lost_at is not null, w.heartbeat_at < clock_timestamp() - interval '1 hour',
                                                w.drain_requested_at is not null) order by w.id) from pgqueue.worker w),
  'queues', (select jsonb_agg(to_jsonb(q) - '{id,wake,created_at,looked_at,came,went,paused_at,unused_since}'::text[]
                              || jsonb_build_object('paused', q.paused_at is not null) order by q.queue) from pgqueue.queue q),
  'gates', (select jsonb_agg(array[g.queue, (g.not_before > clock_timestamp())::text, (g.full_at > clock_timestamp())::text,
                                   (g.full_at > clock_timestamp() + interval '80 minutes')::text] order by g.queue)
            from pgqueue.queue_gate g where g.not_before > clock_timestamp() or g.full_at > clock_timestamp()),
  'groups', (select jsonb_agg(array[g.group_key, (g.paused_at is not null)::text, (g.not_before > clock_timestamp())::text] order by g.group_key)
             from pgqueue.queue_group g where g.paused_at is not null or g.not_before > clock_timestamp()),
  'tasks', (select jsonb_agg(jsonb_build_array(t.task, t.paused_at is not null, t.circuit, t.breaker_rate) order by t.task) from pgqueue.task t),
  'flows', (select jsonb_agg(jsonb_build_array(f.id, f.total, f.blocked, f.completed, f.dead, f.cancelled, f.failed, f.ended_at is not null,
                                              f.cancelled_at is not null) order by f.id) from pgqueue.flow f),
  'nodes', (select jsonb_agg(jsonb_build_array(n.job_id, n.open_parents, n.owes, n.stopped_by, n.outcome) order by n.job_id) from pgqueue.flow_node n),
  'edges', (select count(*) from pgqueue.flow_edge),
  'recurring', (select jsonb_agg(jsonb_build_array(r.name, r.every, r.version, r.planned, r.active, r.owner, r.last_job_id, r.paused_at is not null,
                  r.broken_at is not null, r.next_run_at > clock_timestamp(), r.last_due_at is not null) order by r.name) from pgqueue.recurring_job r),
  'runs', (select jsonb_agg(array[r.outcome, r.job_id::text] order by r.fired_at) from pgqueue.recurring_run r),
  'counted', (select jsonb_object_agg(c.outcome, c.n) from (
     select t.outcome, sum(t.jobs) as n from (
       select outcome, jobs from pgqueue.tally union all
       select v.key, v.value::bigint from pgqueue.metric m, jsonb_each_text(to_jsonb(m)) v
       where m.span_seconds = 0 and v.key in ('completed', 'failed', 'dead', 'cancelled', 'expired', 'lost', 'snoozed', 'released', 'retried')
         and v.value <> '0') t group by t.outcome) c),
  'lanes', (select jsonb_agg(distinct array[l.queue, l.priority::text]) from pgqueue.lane l where l.priority is not null))
"""
TABLES = [
    "job_live",
    "job_done",
    "job_dead",
    "job_attempt",
    "job_step",
    "job_log",
    "key_hold",
    "worker",
    "lane",
    "queue_gate",
    "queue_group",
    "queue_gone",
    "queue",
    "task",
    "task_outcome",
    "recurring_job",
    "recurring_run",
    "tally",
    "metric",
    "queue_sample",
    "flow",
    "flow_node",
    "flow_edge",
]


class Theatre:
    """Puts a scene back to its beginning, plays two verbs in it, and says what is to be seen."""

    def __init__(self, conn: Conn, holder: Conn, other: Conn, name: str) -> None:
        self.conn, self.holder, self.other = conn, holder, other
        self.scene: Scene = SCENES[name]
        self.on: Stage = SimpleNamespace()
        self.scene.set_up(conn, self.on)
        self.last_id = value(conn, "select last_value from pgqueue.job_id_seq")
        for table in TABLES:
            conn.execute(f"drop table if exists pg_temp.was_{table}")
            conn.execute(f"create temp table was_{table} as select * from pgqueue.{table}")
        columns = {
            table: value(
                conn,
                "select string_agg(quote_ident(attname), ',' order by attnum) from pg_attribute"
                " where attrelid = %s::regclass and attnum > 0 and not attisdropped",
                f"pgqueue.{table}",
            )
            for table in TABLES
        }
        body = "".join(
            f"delete from pgqueue.{table}; insert into pgqueue.{table} ({columns[table]}) overriding system value"
            f" select {columns[table]} from pg_temp.was_{table};"
            for table in TABLES
        )
        conn.execute(
            f"create or replace function pg_temp.rewind() returns void language plpgsql as $$ begin {body} end $$"
        )

    def rewind(self) -> None:
        self.conn.execute("select pg_temp.rewind()")

    def see(self, conn: Conn) -> Any:
        found = conn.execute(PICTURE, prepare=True).fetchone()
        assert found is not None
        return self.plain(found[0])

    def plain(self, seen: Any) -> Any:
        """New ids are numbered: from run to run they are others."""
        new: dict[int, str] = {}

        def walk(each: Any) -> Any:
            if isinstance(each, dict):
                return {name: walk(member) for name, member in each.items()}
            if isinstance(each, (list, tuple)):
                return [walk(member) for member in each]
            if isinstance(each, str) and each.isdecimal() and int(each) > self.last_id:
                each = int(each)
            if isinstance(each, int) and each > self.last_id:
                return new.setdefault(each, f"new {len(new)}")
            return each

        return walk(seen)

    def act(self, verb: Verb, conn: Conn) -> Any:
        """Its answer; an error of ours is one, too. Any other error passes."""
        try:
            return self.plain(verb.act(conn, self.on))
        except PgqueueError as error:
            return type(error).__name__

    def serial(self, *verbs: Verb) -> tuple[list[Any], Any]:
        """The answers, and what is to be seen, when they are called one after the other."""
        answers = []
        with self.holder.transaction(force_rollback=True):
            for verb in verbs:
                try:
                    with self.holder.transaction():
                        answers.append(self.plain(verb.act(self.holder, self.on)))
                except PgqueueError as error:
                    answers.append(type(error).__name__)
            seen = self.see(self.holder)
        self.holder.rollback()
        return answers, seen

    def together(self, first: Verb, second: Verb, end: str, then: Sequence[Verb]) -> tuple[list[Any], Any, Any]:
        """Answers, what is to be seen, and what is to be seen after these have been called, too."""
        answers = [self.act(first, self.holder)]
        rival = Rival(self.other, lambda conn: self.act(second, conn))
        self.wait(rival)
        self.holder.commit() if end == "commit" else self.holder.rollback()
        answers.append(rival.result())
        if self.other.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
            self.other.rollback()
        seen = later = self.see(self.other)
        if then:
            for verb in then:
                try:
                    with self.other.transaction():
                        verb.act(self.other, self.on)
                except PgqueueError:
                    pass
            later = self.see(self.other)
        self.other.rollback()
        if end == "commit":
            self.rewind()
        return answers, seen, later

    def stopped_midway(self, warden: Conn, gate: str, first: Verb) -> Rival | None:
        """The first, waiting for a lock in the middle of its work; None if it never comes there."""
        warden.execute(gate)
        one = Rival(self.holder, lambda conn: self.act_and_commit(first, conn))
        if self.waits(one, self.holder):
            return one
        one.result()
        warden.rollback()
        self.rewind()
        return None

    def meet(self, warden: Conn, gate: str, first: Verb, second: Verb, then: Sequence[Verb]) -> Any:
        """The second comes while the first waits; then both go on. What is to be seen after these have been called, too."""
        one = self.stopped_midway(warden, gate, first)
        assert one is not None
        two = Rival(self.other, lambda conn: self.act_and_commit(second, conn))
        self.waits(two, self.other)
        warden.rollback()
        one.result()
        two.result()
        for verb in then:
            self.act_and_commit(verb, self.other)
        seen = self.see(self.other)
        self.other.rollback()
        self.rewind()
        return seen

    def act_and_commit(self, verb: Verb, conn: Conn) -> None:
        try:
            verb.act(conn, self.on)
            conn.commit()
        except PgqueueError:
            conn.rollback()
        except psycopg.Error:
            conn.rollback()
            raise

    def waits(self, rival: Rival, conn: Conn) -> bool:
        """Whether it comes to wait for a lock; else it is done."""
        until = time.monotonic() + 20
        while rival.running:
            if value(self.conn, "select cardinality(pg_blocking_pids(%s)) > 0", conn.info.backend_pid):
                return True
            assert time.monotonic() < until, "it neither ends nor waits"
            threading.Event().wait(0.0005)
        return False

    def wait(self, rival: Rival) -> None:
        """Until it is done, or waits for the holder."""
        pids = (self.holder.info.backend_pid, self.other.info.backend_pid)
        until = time.monotonic() + 20
        while rival.running and not value(self.conn, "select %s = any(pg_blocking_pids(%s))", *pids):
            assert time.monotonic() < until, "it neither ends nor waits"
            threading.Event().wait(0.0005)


@pytest.fixture
def theatre(conn: Conn, holder: Conn, connect: Callable[..., Conn]) -> Iterator[Callable[[str], Theatre]]:
    other = connect(autocommit=False)
    yield lambda name: Theatre(conn, holder, other, name)
    holder.rollback()
    other.rollback()
    for table in TABLES:
        conn.execute(f"vacuum pgqueue.{table}")


@pytest.mark.parametrize(("name", "first"), PAIRS, ids=[f"{scene}: {first}" for scene, first in PAIRS])
def test_two_at_once_are_as_one_after_the_other(theatre: Callable[[str], Theatre], name: str, first: str) -> None:
    stage = theatre(name)
    one = stage.scene.verbs[first]
    wrong = []
    for second, other in stage.scene.verbs.items():
        if all({first, second} & each for each in NOT_AT_ONCE):
            continue
        after, before, alone = stage.serial(one, other), stage.serial(other, one), stage.serial(other)
        for end in ("commit", "rollback"):
            then = [other] * other.skips + [SWEEP] * (one.swept or other.swept)
            answers, seen, later = stage.together(one, other, end, then)
            if end == "commit":
                allowed = [after, (before[0][::-1], before[1])]
                orders = [[one, other], [other, one]]
            else:
                allowed = [([answers[0], *alone[0]], alone[1])]
                orders = [[other]]
            fine = (answers, seen) in allowed or (
                then
                and rough(later) in [rough(stage.serial(*order, *more)[1]) for order in orders for more in (then, [])]
            )
            if not fine:
                said = [each[0] for each in allowed]
                shown = differences(seen, [each[1] for each in allowed])
                wrong.append(f"{first}, {end}; meanwhile {second}: {answers}, allowed {said}\n{shown}")
    assert not wrong, "\n\n".join(wrong)


def rough(seen: Any) -> Any:
    """What does not depend on the order in which the jobs of one call are dealt with."""
    jobs = [[job["id"], job["status"], job["key"]] for job in seen["jobs"] or []]
    flows = [flow[1:6] for flow in seen["flows"] or []]
    return jobs, flows, seen["holds"], seen["recurring"], seen["tasks"], seen["lanes"]


# Rows for which a function may have to wait when it has done half of its work.
GATES = {
    "jobs": "select 1 from pgqueue.job_live for update",
    "ended jobs": "select 1 from pgqueue.job where status in ('dead', 'completed', 'cancelled') for update",
    "queue": "select 1 from pgqueue.queue for update",
    "gate": "select 1 from pgqueue.queue_gate for update",
    "groups": "select 1 from pgqueue.queue_group for update",
    "tasks": "select 1 from pgqueue.task for update",
    "flow": "select 1 from pgqueue.flow for update",
    "nodes": "select 1 from pgqueue.flow_node for update",
    "recurring": "select 1 from pgqueue.recurring_job for update",
    "worker": "select 1 from pgqueue.worker for update",
    "lanes": "lock table pgqueue.lane in share mode",
    "holds": "lock table pgqueue.key_hold in share mode",
    "attempts": "lock table pgqueue.job_attempt in share mode",
    "tally": "lock table pgqueue.tally in share mode",
}
EVERY = int(os.environ.get("PGQUEUE_PAIRS", "12"))  # 1: all of them, which takes several minutes


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENES)
def test_neither_waits_for_ever_wherever_the_first_is_stopped(
    theatre: Callable[[str], Theatre], connect: Callable[..., Conn], name: str
) -> None:
    """Each function that comes to wait for a row, and each other one that comes meanwhile: no deadlock, and what comes of it
    is what comes of one after the other, once those that pass over what others hold were asked again. By default every
    twelfth of these cases; PGQUEUE_PAIRS=1 is all."""
    stage, warden = theatre(name), connect(autocommit=False)
    wrong, cases = [], 0
    for first, one in stage.scene.verbs.items():
        for where, gate in GATES.items():
            if (rival := stage.stopped_midway(warden, gate, one)) is None:
                continue
            warden.rollback()
            rival.result()
            stage.rewind()
            for second, other in stage.scene.verbs.items():
                cases += 1
                if cases % EVERY or all({first, second} & each for each in NOT_AT_ONCE):
                    continue
                then = [*([one] * one.skips), *([other] * other.skips), SWEEP]
                what = f"{first}, stopped by {where}; meanwhile {second}"
                try:
                    seen = stage.meet(warden, gate, one, other, then)
                except psycopg.Error as error:
                    wrong.append(f"{what}: {error!r}")
                    warden.rollback()
                    stage.rewind()
                    continue
                orders = [
                    stage.serial(*order, *more)[1] for order in ([one, other], [other, one]) for more in (then, [SWEEP])
                ]
                if rough(seen) not in [rough(each) for each in orders]:
                    wrong.append(f"{what}:\n{differences(seen, orders[::2])}")
    print(f"{name}: {cases} cases, every {EVERY}th of them")
    assert not wrong, "\n\n".join(wrong)


def differences(seen: Any, allowed: list[Any]) -> str:
    return "\n".join(
        f"  {part}: {seen[part]}\n    instead of {each[part]}"
        for each in allowed for part in seen if seen[part] != each[part]
    )  # fmt: skip


ALONE = {
    "enqueue_flow", "register_worker", "log", "record_audit",  # they only add what nobody else knows of
    "ensure_partitions", "prune", "roll_up",  # of old rows and of counts: test_maintenance
    "set_defaults", "set_events",  # settings of all queues
    "held_key", "load_steps", "load_parents", "look_up", "look_up_flow",  # they only look
}  # fmt: skip


def test_every_function_that_changes_something_is_in_the_table() -> None:
    """So that a new one is not forgotten."""
    table = Path(scenes.__file__).read_text()
    left_out = set()
    for file in sorted((Path(schema.__file__).parent.parent / "sql" / "functions").glob("*.sql")):
        header, _, _ = file.read_text().partition("create or replace")
        for_users = "Not for users" not in file.read_text()
        if for_users and "Locks nothing" not in header and not re.search(rf"\b{file.stem}\(", table):
            left_out.add(file.stem)
    assert left_out <= ALONE, left_out - ALONE
