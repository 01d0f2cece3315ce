"""The SQL functions against a plain model, in whatever order Hypothesis thinks of.

After every step each live job must be where the model says, with the attempts, lease and key that it says; whoever is
refused must have changed nothing; claims may hand out only what may run, never more than limits allow, and must not leave
behind what could have run. At the end of a run everything that waits must come to its end.

20,000 steps by default, always the same ones; PGQUEUE_MODEL_STEPS makes it more, PGQUEUE_MODEL_SEED makes them others.
Time is not waited for: `elapse` moves every timestamp of the database into the past. A run is one transaction, rolled back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from psycopg.rows import namedtuple_row

from pgqueue import database as db
from pgqueue.errors import JobNotFound, KeyTaken, PgqueueError, WorkerLost, WrongStatus
from pgqueue.ticker import plan
from tests.model.world import BAD, LIVE, Job, Pause, Recurring, Worker, World, ended
from tests.support import Conn

STEPS = int(os.environ.get("PGQUEUE_MODEL_STEPS", "20000"))
SEED = int(os.environ.get("PGQUEUE_MODEL_SEED", "0"))
SHRINK = os.environ.get("PGQUEUE_MODEL_SHRINK", "1") != "0"  # a failure to its shortest form: takes a minute or two
RUN = 100  # steps
MOST = 14  # live jobs
FIXED = {"type": "fixed", "delay": 100}
QUEUES, TASKS, GROUPS, KEYS = "abf", ("t1", "t2"), (None, "g", "h"), (None, None, None, "k1", "k2")
done = Counter[str]()  # steps by rule, over all runs

LIVE_JOBS = """
select j.id, j.status, j.token, j.attempt, j.crashes, j.worker_id, j.key, j.waits_for, j.holds_slot, j.priority, j.queue,
       j.group_key, j.task, j.rank_at, j.cancel_requested_at is not null as asked,
       extract(epoch from j.run_at - clock_timestamp())::float8 as wait
from pgqueue.job_live j
"""
ENDED_JOBS = """
select j.id, j.status, j.attempt, j.crashes, j.token from pgqueue.job j where j.status in ('completed', 'cancelled', 'dead')
"""
COUNTED = """
select (select coalesce(sum(t.jobs), 0) from pgqueue.tally t where t.outcome = 'completed')
     + (select coalesce(sum(m.completed), 0) from pgqueue.metric m where m.span_seconds = 0) as completed
"""
ELAPSE = """
create or replace function pg_temp.elapse(d interval) returns void language plpgsql as $$
begin
  update pgqueue.job_live j set run_at = j.run_at - d, rank_at = j.rank_at - d, enqueued_at = j.enqueued_at - d,
    started_at = j.started_at - d, expires_at = j.expires_at - d;
  update pgqueue.worker w set heartbeat_at = w.heartbeat_at - d, lost_at = w.lost_at - d;
  update pgqueue.queue q set paused_until = q.paused_until - d;
  update pgqueue.queue_gate g set full_at = g.full_at - d, not_before = g.not_before - d;
  update pgqueue.queue_group g set full_at = g.full_at - d, not_before = g.not_before - d, paused_until = g.paused_until - d;
  update pgqueue.task t set paused_until = t.paused_until - d;
  update pgqueue.key_hold h set held_until = h.held_until - d;
  update pgqueue.recurring_job r set planned_from = r.planned_from - d, next_run_at = r.next_run_at - d,
    last_due_at = r.last_due_at - d, starts_at = r.starts_at - d;
  update pgqueue.recurring_run r set name = '~' || r.name, due_at = r.due_at - d;  -- in two steps: it is the primary key
  update pgqueue.recurring_run r set name = substr(r.name, 2);
end
$$
"""

pick = st.integers(0, 10_000)  # of whatever there is: see Machine.one
tens = st.sampled_from([0, 0, 10, 50, 150])


def limits() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "max_running": st.sampled_from([None, 1, 2, 3]),
            "rate": st.sampled_from([None, 1, 2]),
            "group_max_running": st.sampled_from([None, 1, 1, 2]),
            "group_on_retry": st.sampled_from(["hold", "step_aside"]),
            "group_rate": st.sampled_from([None, 1]),
            "fair": st.booleans(),
        },
    )


class Machine(RuleBasedStateMachine):
    conn: Conn

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.stale: list[tuple[int, tuple[int, int]]] = []  # leases that are over: worker, (job, token)
        self.cursor: Any = self.conn.cursor(row_factory=namedtuple_row)
        self.trouble = False

    def do(self, call: db.Call[Any]) -> Any:
        return db.execute(self.conn, call)

    def refused(self, call: db.Call[Any], error: type[PgqueueError]) -> None:
        with pytest.raises(error), self.conn.transaction():
            db.execute(self.conn, call)

    @contextmanager
    def step(self, name: str) -> Iterator[World]:
        """A rule's work, and then what must always hold."""
        done[name] += 1
        try:
            yield self.world
            self.compare()
        except BaseException:
            self.trouble = True
            raise

    @staticmethod
    def one(found: Iterable[Any], at: int) -> Any:
        choice = sorted(found)
        return choice[at % len(choice)] if choice else None

    # -- what must hold after every step

    def compare(self) -> None:
        world = self.world
        live = {job.id: job for job in self.cursor.execute(LIVE_JOBS, prepare=True)}
        assert live.keys() == set(world.status_is(*LIVE)), "live jobs"
        keys: set[tuple[str, str]] = set()
        for id, found in live.items():
            job, status = world.jobs[id], world.status[id]
            said = (found.token, found.attempt, found.crashes, found.worker_id, found.key, found.queue, found.asked)
            asked = id in world.asked
            assert said == (job.token, job.attempt, job.crashes, job.worker, job.key, job.queue, asked), (said, job)
            if found.status == "scheduled":
                late = world.now + found.wait - job.run_at  # real time passes, a little
                later = found.holds_slot and found.group_key is not None  # its group's rate, or throttle, says when
                assert status == "pending", (found, job)
                assert late > -5 if later else abs(late) < 5, (found, job, world.now)
            elif found.status == "blocked" and found.waits_for == "parents":
                assert status == "blocked", (found, job)
            elif found.status == "blocked":
                assert status == "pending", (found, job)
                assert job.run_at <= world.now, (found, job)
                assert not found.holds_slot, found
                assert found.waits_for == "task" or found.group_key is not None, found
            else:
                assert status == found.status, (found, job)
                assert status == "running" or job.run_at <= world.now, (found, job)
            if found.key is not None:
                assert (found.queue, found.key) not in keys, f"two live jobs with the key {found.key}"
                keys.add((found.queue, found.key))
        self.live = live

    def compare_ended(self) -> None:
        """One place for each job, and its end there."""
        world = self.world
        found = self.cursor.execute(ENDED_JOBS, prepare=True).fetchall()
        at = {job.id: (job.status, job.attempt, job.crashes, job.token) for job in found}
        assert len(at) == len(found), "a job stands twice among the ended"
        said = ((id, world.jobs[id]) for id in world.status_is("completed", "cancelled", "dead"))
        assert at == {id: (world.status[id], job.attempt, job.crashes, job.token) for id, job in said}
        counted = self.cursor.execute(COUNTED, prepare=True).fetchone()
        assert counted.completed == world.completed, "completed jobs are counted once each"
        nodes = self.cursor.execute("select job_id, open_parents from pgqueue.flow_node").fetchall()
        assert {n.job_id: n.open_parents for n in nodes} == {
            id: len(o) for id, o in world.open.items() if world.flow_of[id]
        }
        for flow in self.cursor.execute("select * from pgqueue.flow").fetchall():
            counts = Counter(world.status[id] for id, of in world.flow_of.items() if of == flow.id)
            names = ("blocked", "completed", "dead", "cancelled")
            assert {name: getattr(flow, name) for name in names} == {name: counts[name] for name in names}, flow
            assert flow.total == counts.total()
            assert (flow.ended_at is None) == any(counts[status] for status in LIVE), flow

    # -- coming

    @initialize(lease=st.sampled_from([50, 200]), a=limits(), b=limits())
    def begin(self, lease: int, a: dict[str, Any], b: dict[str, Any]) -> None:
        self.conn.rollback()
        for lasts in (lease, 1000):
            id = self.do(db.register_worker("model", list(QUEUES), lasts))
            self.world.workers[id] = Worker(lasts, self.world.now)
        self.set_limits("b", {**a, **b})
        self.compare()

    @rule(
        queue=st.sampled_from("ab"), key=st.sampled_from(KEYS), on_conflict=st.sampled_from(["skip", "raise", "replace", "replace"]),
        ttl=st.sampled_from([None, None, 50]), run_in=st.sampled_from([0, 0, 0, 0, 10, 150]), lasts=st.sampled_from([None, None, None, 50, 200]),
        priority=st.sampled_from([0, 0, 5]), group=st.sampled_from(GROUPS), task=st.sampled_from(TASKS), kept=st.sampled_from([True, True, False]),
        most=st.sampled_from([1, 3, 30]), bulk=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def enqueue(
        self, queue: str, key: str | None, on_conflict: db.OnConflict, ttl: int | None, run_in: int, lasts: int | None,
        priority: int, group: str | None, task: str, kept: bool, most: int, bulk: bool,
    ) -> None:  # fmt: skip
        with self.step("enqueue") as world:
            if len(world.status_is(*LIVE)) >= MOST:
                return
            ttl = ttl if key else None
            options: dict[str, Any] = {
                "on_conflict": on_conflict, "priority": priority, "group": group, "max_attempts": most, "retry": FIXED,
                "key_ttl": None if ttl is None else timedelta(seconds=ttl),
                "run_in": timedelta(seconds=run_in) if run_in else None,
                "expires_in": None if lasts is None else timedelta(seconds=run_in + lasts),
                "retain_for": None if kept else timedelta(0),
            }  # fmt: skip
            if bulk:
                payloads: list[dict[str, Any]] = [{"n": 1}]
                both = db.enqueue_many(queue, task, payloads, keys=[key] if key else None, **options)
                call = db.Call(both.query, both.params, lambda rows: both.read(rows)[0])
            else:
                call = db.enqueue(queue, task, {"n": 1}, key=key, **options)
            job = Job(
                0, queue, task, key, ttl, priority, group, most, world.now + run_in,
                world.now + run_in + (lasts or float("inf")), kept,
            )  # fmt: skip
            self.enqueued(job, call, on_conflict)

    def enqueued(self, job: Job, call: db.Call[db.Enqueued], on_conflict: str) -> None:
        world = self.world
        held, live = world.holder(job.queue, job.key), world.live_with(job.queue, job.key)
        if on_conflict == "raise" and (held or live):
            self.refused(call, KeyTaken)
            return
        id, created = self.do(call)
        if held or (live and on_conflict == "skip"):
            assert (id, created) == (held or live, False)
        elif live and world.status[live] != "running":
            assert (id, created) == (live, False)
            job.id, job.token = live, world.jobs[live].token
            world.jobs[live] = job
        else:
            assert created
            assert id not in world.jobs
            if live:
                world.jobs[live].key = None
            job.id = id
            world.new(job)

    @rule(shape=st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["wait", "stop", "continue"])), max_size=2), min_size=1, max_size=4))  # fmt: skip
    def enqueue_flow(self, shape: list[list[tuple[int, str]]]) -> None:
        with self.step("enqueue_flow") as world:
            if len(world.status_is(*LIVE)) + len(shape) > MOST:
                return
            jobs: list[dict[str, Any]] = []
            for n, parents in enumerate(shape):
                after = [{"job": p % n, "on_death": how} for p, how in dict(parents).items() if n]
                after = list({each["job"]: each for each in after}.values())
                jobs.append({"queue": "f", "task": "t1", "max_attempts": 3, "retry": FIXED, "after": after})
            made = self.do(db.enqueue_flow({"jobs": jobs}))
            world.flows.add(made.id)
            for id, described in zip(made.job_ids, jobs, strict=True):
                after = described["after"]
                parents_of: dict[int, str] = {made.job_ids[edge["job"]]: edge["on_death"] for edge in after}
                world.new(Job(id, "f", run_at=world.now), made.id, parents_of)

    # -- workers

    def a_worker(self, at: int) -> int:
        return int(self.one(self.world.workers, at))

    def holding(self, at: int) -> int:
        """A worker, rather one that has jobs."""
        owners = {self.world.jobs[id].worker for id in self.world.status_is("running")}
        return int(self.one(owners or self.world.workers, at))

    def leases(self, worker: int, at: int) -> list[tuple[int, int]]:
        """Some of what the worker holds; and now and then something that it does not."""
        held = [(j.id, j.token) for j in self.world.jobs.values() if j.worker == worker]
        some = sorted(held)[: 1 + at % 3]
        if at % 4 == 0 and self.stale:
            _, lease = self.one(self.stale, at // 4)
            if lease[0] not in dict(some):
                some.append(lease)
        return some

    def reported(self, worker: int, leases: Sequence[tuple[int, int]], refused: Iterable[int]) -> list[int]:
        """Exactly those are refused that are not held; returns the others, whose leases are over now."""
        held = [lease for lease in leases if self.world.holds_lease(worker, lease)]
        assert sorted(refused) == sorted(id for id, _ in set(leases) - set(held))
        self.stale = [*self.stale, *((worker, lease) for lease in held)][-12:]
        return [id for id, _ in held]

    @rule(
        worker=pick,
        queues=st.sampled_from([["a"], ["b"], ["f"], ["a", "b", "f"], ["b", "a"]]),
        limit=st.integers(1, 4),
        with_complete=pick,
    )
    def claim(self, worker: int, queues: list[str], limit: int, with_complete: int) -> None:
        with self.step("claim") as world:
            id = self.a_worker(worker)
            if with_complete % 3 == 0 and (leases := self.leases(id, with_complete // 3)):
                before = self.live
                claimed = self.do(db.complete_and_claim(id, leases, None, queues, limit))
                self.completed(self.reported(id, leases, claimed.refused))
                if world.is_late(id):
                    assert claimed.jobs == []
                else:
                    self.claimed(id, queues, limit, claimed.jobs, before, after_complete=True)
            elif world.is_late(id):
                self.refused(db.claim(id, queues, limit), WorkerLost)
            else:
                before = self.live
                self.claimed(id, queues, limit, self.do(db.claim(id, queues, limit)), before)

    def claimed(
        self, worker: int, queues: Sequence[str], limit: int, jobs: Sequence[db.ClaimedJob], before: dict[int, Any],
        after_complete: bool = False,
    ) -> None:  # fmt: skip
        world = self.world
        assert len({job.id for job in jobs}) == len(jobs) <= limit
        for found in jobs:
            job = world.jobs[found.id]
            assert found.queue == job.queue, found
            assert found.queue in queues, found
            assert world.free(job), ("was not to be claimed", found, job)
            world.start(job.id, worker)
            said = (found.token, found.attempt, found.task, found.priority, found.crashes, found.group_key)
            assert said == (job.token, job.attempt, job.task, job.priority, job.crashes, job.group)
        for queue in queues:
            mine = [job for job in jobs if job.queue == queue]
            self.within_limits(queue, mine)
            if not after_complete:  # a slot may have been handed on just now
                self.in_order(queue, mine, before)
        if len(jobs) < limit and not after_complete:  # and what a completion releases comes with the next claim
            self.compare()
            for queue in queues:
                self.nothing_left(queue)

    def within_limits(self, queue: str, mine: Sequence[db.ClaimedJob]) -> None:
        world, limits = self.world, self.world.limits[queue]
        running = [world.jobs[id] for id in world.status_is("running") if world.jobs[id].queue == queue]
        if not mine:
            return
        assert len(running) <= (limits.get("max_running") or 99), f"{queue}: more run than max_running"
        if rate := limits.get("rate"):
            step = 100 / rate
            assert len(mine) <= world.queues[queue].rate.tokens(world.now, step, 2), f"{queue}: faster than its rate"
            world.queues[queue].rate.charge(world.now, step, len(mine))
        for group, starts in Counter(job.group_key for job in mine if job.group_key is not None).items():
            at_once = sum(job.group == group for job in running)
            assert at_once <= (limits.get("group_max_running") or 99), (
                f"{queue}, {group}: more run than group_max_running"
            )
            if limits.get("group_rate"):
                pause = world.groups.setdefault((queue, group), Pause())
                assert starts <= pause.rate.tokens(world.now, 100, 1), f"{queue}, {group}: faster than its rate"
                pause.rate.charge(world.now, 100, starts)

    def in_order(self, queue: str, mine: Sequence[db.ClaimedJob], before: dict[int, Any]) -> None:
        """By rank within a lane; and in a serial group nobody overtakes who has not been given the slot."""
        world, limits = self.world, self.world.limits[queue]
        taken = {job.id for job in mine}
        lanes: dict[int, list[Any]] = {}
        for job in mine:
            lanes.setdefault(job.priority, []).append(job.rank_at)
        limited = limits.get("fair") or any(limits.get(name) for name in ("rate", "group_rate", "group_max_running"))
        for priority, ranks in lanes.items():
            assert limited or ranks == sorted(ranks), "not in the order of their ranks"
            left = [
                found.rank_at for found in before.values()
                if found.id not in taken and found.status == "pending" and (found.queue, found.priority) == (queue, priority)
                and found.group_key is None and world.free(world.jobs[found.id])
            ]  # fmt: skip
            assert limited or not left or max(ranks) <= min(left), "a job was passed over"
        if limits.get("group_max_running") == 1:
            for job in mine:
                if (
                    (was := before.get(job.id)) is None
                    or was.holds_slot
                    or was.status == "scheduled"
                    or job.group_key is None
                ):
                    continue
                for other in before.values():
                    overtaken = (
                        (other.queue, other.priority, other.group_key) == (queue, job.priority, job.group_key)
                        and other.id != job.id and other.rank_at < was.rank_at and world.free(world.jobs[other.id])
                        and (other.status == "pending" or other.waits_for == "group")
                    )  # fmt: skip
                    assert not overtaken, ("overtaken in a serial group", other, was)

    def nothing_left(self, queue: str) -> None:
        """A claim that brought fewer than were asked for has left behind only what could not start."""
        world, limits = self.world, self.world.limits[queue]
        running = sum(world.jobs[id].queue == queue for id in world.status_is("running"))
        if running >= (limits.get("max_running") or 99):
            return
        if (rate := limits.get("rate")) and world.queues[queue].rate.tokens(world.now, 100 / rate, 2) < 1:
            return
        slots = Counter((found.queue, found.group_key) for found in self.live.values() if found.holds_slot)
        for found in self.live.values():
            job = world.jobs[found.id]
            if found.queue != queue or not world.free(job) or found.waits_for == "task":
                continue
            if job.group is not None:
                if slots[queue, job.group] >= (limits.get("group_max_running") or 99):
                    continue
                if limits.get("group_rate") and world.group(job).rate.tokens(world.now, 100, 1) < 1:
                    continue
                in_line = found.holds_slot or any(
                    other.holds_slot and (other.queue, other.group_key) == (queue, job.group)
                    for other in self.live.values()
                )
                if in_line or found.status == "blocked":  # its turn comes with the next claim, or sweep
                    continue
            raise AssertionError(f"left behind: {found}")

    def completed(self, ids: Sequence[int]) -> None:
        self.world.completed += len(ids)
        self.world.finish(dict.fromkeys(ids, "completed"))

    @rule(worker=pick, at=pick)
    def complete(self, worker: int, at: int) -> None:
        with self.step("complete"):
            id = self.holding(worker)
            leases = self.leases(id, at)
            self.completed(self.reported(id, leases, self.do(db.complete(id, leases))))

    @rule(
        worker=pick, at=pick, fatal=st.sampled_from([False, False, True]), retry_in=st.sampled_from([None, None, 0, 50])
    )
    def fail(self, worker: int, at: int, fatal: bool, retry_in: int | None) -> None:
        with self.step("fail") as world:
            id = self.holding(worker)
            leases = self.leases(id, at)
            failures = [db.Failure(job, token, "boom", retry_in=retry_in, fatal=fatal) for job, token in leases]
            answers = self.do(db.fail(id, failures))
            held = self.reported(id, leases, [answer.id for answer in answers if answer.status is None])
            said = {job: world.fail(job, fatal, retry_in) for job in held}
            assert said == {answer.id: answer.status for answer in answers if answer.status is not None}
            world.finish(ended(said))

    @rule(worker=pick, at=pick, how=st.sampled_from(["release", "snooze", "throttle", "cancel_claimed"]), delay=tens)
    def give_back(self, worker: int, at: int, how: str, delay: int) -> None:
        with self.step(how) as world:
            id = self.holding(worker)
            leases = self.leases(id, at)
            calls: dict[str, Callable[[], db.Call[list[int]]]] = {
                "release": lambda: db.release(id, leases),
                "snooze": lambda: db.snooze(id, leases, [delay] * len(leases)),
                "throttle": lambda: db.throttle(id, leases, [delay] * len(leases)),
                "cancel_claimed": lambda: db.cancel_claimed(id, leases),
            }
            held = self.reported(id, leases, self.do(calls[how]()))
            if how == "cancel_claimed":
                world.finish(dict.fromkeys(held, "cancelled"))
                return
            jobs = {job: world.jobs[job] for job in held}
            world.finish(ended({job: world.wait(job, 0 if how == "release" else delay, refund=True) for job in held}))
            if how == "throttle":
                for job, known in jobs.items():
                    if job in world.jobs:
                        pause = world.queues[known.queue] if known.group is None else world.group(known)
                        pause.throttled = max(pause.throttled, world.now + delay)

    @rule(worker=pick, at=pick)
    def stumble(self, worker: int, at: int) -> None:
        """Whatever it says with a lease that is over, nothing happens."""
        with self.step("stumble") as world:
            if not self.stale:
                return
            owner, (id, token) = self.one(self.stale, at)
            if at % 3 == 0:
                owner = self.a_worker(worker)
            if world.holds_lease(owner, (id, token)):
                return
            assert self.do(db.complete(owner, [(id, token)])) == [id]
            assert self.do(db.fail(owner, [db.Failure(id, token, "late", fatal=True)])) == [db.Failed(id, None, None)]
            for call in (db.release, db.cancel_claimed):
                assert self.do(call(owner, [(id, token)])) == [id]
            assert self.do(db.snooze(owner, [(id, token)], [0])) == [id]
            assert self.do(db.throttle(owner, [(id, token)], [50])) == [id]
            assert self.do(db.progress(owner, id, token, 1)) is False
            assert self.do(db.save_step(owner, id, token, "s", 1)) is False

    @rule(worker=pick)
    def heartbeat(self, worker: int) -> None:
        """Also a late one: it keeps what it has, unless a sweep has been quicker."""
        with self.step("heartbeat") as world:
            id = self.a_worker(worker)
            alive, cancel_ids = self.do(db.heartbeat(id))
            assert alive is not world.workers[id].gone
            assert sorted(cancel_ids) == sorted(job for job in world.asked if world.jobs[job].worker == id)
            if alive:
                world.workers[id].beat = world.now

    @rule(worker=pick, how=st.sampled_from(["retire", "release_unknown", "register"]))
    def come_and_go(self, worker: int, how: str) -> None:
        with self.step(how) as world:
            id = self.a_worker(worker)
            held = sorted(job.id for job in world.jobs.values() if job.worker == id)
            if how == "register":
                if sum(not known.gone for known in world.workers.values()) < 3:
                    world.workers[self.do(db.register_worker("model", list(QUEUES), 200))] = Worker(200, world.now)
                return
            if how == "release_unknown":
                held = held[1:]
                assert self.do(
                    db.release_unknown(id, [j.id for j in world.jobs.values() if j.worker == id and j.id not in held])
                ) == len(held)
            else:
                assert self.do(db.retire_worker(id)) == len(held)
                world.workers[id].gone = True
            self.stale = [*self.stale, *((id, (job, world.jobs[job].token)) for job in held)][-12:]
            world.finish(ended({job: world.wait(job, refund=True) for job in held}))

    # What workers do, they do often. (An alias counts as one more rule.)
    enqueue_too = enqueue_often = enqueue
    claim_too = claim_often = claim_most = claim
    complete_too = complete
    fail_too = fail
    give_back_too = give_back

    # -- time, and what happens by itself

    @rule(seconds=st.sampled_from([10, 50, 50, 100, 200]))
    def elapse(self, seconds: int) -> None:
        with self.step("elapse") as world:
            self.cursor.execute("select pg_temp.elapse(make_interval(secs => %s))", [seconds])
            world.now += seconds

    @rule()
    def sweep(self) -> None:
        with self.step("sweep"):
            self.swept()
            self.compare_ended()

    def swept(self) -> None:
        world = self.world
        held = {id: (job.worker, (id, job.token)) for id, job in world.jobs.items() if job.worker is not None}
        found = self.do(db.sweep())
        assert found.lost_workers == world.lose_workers()
        said = Counter(world.rescue().values())
        assert (found.retried, found.died) == (said["pending"] + said["scheduled"], said["dead"])
        over = [lease for id, lease in held.items() if id not in world.jobs or world.jobs[id].worker is None]
        self.stale = [*self.stale, *over][-12:]
        world.expire()
        world.end_pauses()
        for flow in sorted(world.cancelled):
            if any(world.status[id] in LIVE for id, of in world.flow_of.items() if of == flow):
                world.cancel_flow(flow)

    @rule(queue=st.sampled_from(QUEUES), how=st.sampled_from(["promote", "refresh_hints", "sweep_limits", "roll_up"]))
    def maintain(self, queue: str, how: str) -> None:
        with self.step(how) as world:
            if how == "promote":
                due = [
                    id
                    for id, job in self.live.items()
                    if job.status == "scheduled" and job.wait <= 0 and job.queue == queue
                ]
                assert self.do(db.promote(queue)) == len(due)
            elif how == "refresh_hints":
                self.do(db.refresh_hints([queue]))
            elif how == "sweep_limits":
                self.do(db.sweep_limits())
                world.end_pauses()
            else:
                self.do(db.roll_up())

    # -- operators

    @rule(at=pick)
    def cancel(self, at: int) -> None:
        with self.step("cancel") as world:
            id = self.one(world.status, at)
            if id is None or at % 50 == 0:
                self.refused(db.cancel(10**12), JobNotFound)
            else:
                assert self.do(db.cancel(id)) == world.cancel(id)

    @rule(at=pick)
    def retry(self, at: int) -> None:
        with self.step("retry") as world:
            id = self.one(world.status_is(*BAD) or world.status, at)
            if id is None:
                self.refused(db.retry(10**12), JobNotFound)
            elif world.status[id] not in BAD:
                self.refused(db.retry(id), WrongStatus)
            else:
                job = world.jobs[id]
                holder = world.holder(job.queue, job.key)
                if job.key is not None and (world.live_with(job.queue, job.key) or holder not in (None, id)):
                    self.refused(db.retry(id), KeyTaken)
                    return
                world.bring_back(id)
                assert self.do(db.retry(id)) == world.status[id]

    @rule(status=st.sampled_from(["dead", "cancelled"]))
    def retry_many(self, status: Any) -> None:
        with self.step("retry_many") as world:
            if len(world.status_is(*LIVE)) >= MOST:
                return
            retried = skipped = 0
            for id in sorted(world.status_is(status)):
                job = world.jobs[id]
                if job.queue != "b":
                    continue
                if job.key is not None and (
                    world.live_with("b", job.key) or world.holder("b", job.key) not in (None, id)
                ):
                    skipped += 1
                else:
                    retried += 1
                    world.bring_back(id)
            answer = self.do(db.retry_many(db.Filter(queue="b"), status=status))
            assert (answer.retried, answer.skipped) == (retried, skipped)

    @rule(status=st.sampled_from(["completed", "dead", "cancelled"]), queue=st.sampled_from("ab"))
    def purge(self, status: Any, queue: str) -> None:
        with self.step("purge") as world:
            gone = [id for id in world.status_is(status) if world.jobs[id].queue == queue]
            assert self.do(db.purge(db.Filter(queue=queue), status=status)).purged == len(gone)
            for id in gone:
                for known in (world.jobs, world.status, world.parents, world.open, world.flow_of):
                    del known[id]

    @rule(queue=st.sampled_from("ab"))
    def cancel_many(self, queue: str) -> None:
        with self.step("cancel_many") as world:
            ids = sorted(
                id for id in world.status_is(*LIVE) if world.jobs[id].queue == queue and world.jobs[id].task == "t2"
            )
            said = Counter(world.cancel(id) for id in ids if id not in world.asked)
            answer = self.do(db.cancel_many({"queue": queue, "task": "t2"}))
            assert (answer.cancelled, answer.asked) == (said["cancelled"], said["running"])

    @rule(at=pick)
    def cancel_flow(self, at: int) -> None:
        with self.step("cancel_flow") as world:
            flow = self.one(world.flows, at)
            if flow is None:
                return
            self.do(db.cancel_flow(flow))
            if any(world.status[id] in LIVE for id, of in world.flow_of.items() if of == flow):
                world.cancel_flow(flow)

    @rule(what=st.sampled_from(["queue", "group", "task"]), queue=st.sampled_from(QUEUES), group=st.sampled_from(GROUPS[1:]),
          task=st.sampled_from(TASKS), lasts=st.sampled_from([None, 50, 150]))  # fmt: skip
    def pause(self, what: str, queue: str, group: str, task: str, lasts: int | None) -> None:
        with self.step(f"pause {what}") as world:
            until = None
            if lasts is not None:
                until = self.do(db.clock()) + timedelta(seconds=lasts)
            pause = {
                "queue": world.queues[queue],
                "group": world.groups.setdefault((queue, group), Pause()),
                "task": world.tasks.setdefault(task, Pause()),
            }[what]
            call = {
                "queue": db.pause(queue, until=until),
                "group": db.pause_group(queue, group, until=until),
                "task": db.pause_task(task, until=until),
            }[what]
            self.do(call)
            pause.paused = world.now + lasts if lasts is not None else float("inf")

    @rule(what=st.sampled_from(["queue", "group", "task"]), at=pick)
    def resume(self, what: str, at: int) -> None:
        with self.step(f"resume {what}") as world:
            known: dict[Any, Pause] = {"queue": world.queues, "group": world.groups, "task": world.tasks}[what]  # type: ignore[assignment]
            stopped = {name for name, pause in known.items() if pause.paused is not None or pause.throttled > world.now}
            name = self.one(stopped or known, at)
            if name is None:
                return
            call = {"queue": db.resume, "task": db.resume_task}.get(what)
            answer = self.do(call(name) if call else db.resume_group(*name))
            pause = known[name]
            assert answer is (pause.paused is not None or pause.throttled > world.now)
            pause.paused = None
            pause.throttled = float("-inf")

    @rule(queue=st.sampled_from(QUEUES), changed=limits())
    def set_queue(self, queue: str, changed: dict[str, Any]) -> None:
        with self.step("set_queue"):
            self.set_limits(queue, changed)

    def set_limits(self, queue: str, changed: dict[str, Any]) -> None:
        said = dict(changed)
        if said.get("rate"):
            said |= {"rate_seconds": 100, "rate_burst": 2}
        if said.get("group_rate"):
            said |= {"group_rate_seconds": 100, "group_rate_burst": 1}
        self.do(db.set_queue(queue, said))
        self.world.limits[queue] |= changed

    # -- recurring jobs

    @rule(name=st.sampled_from(["r1", "r2"]), every=st.sampled_from([20, 50]), overlap=st.sampled_from(["allow", "skip", "replace"]),
          catch_up=st.sampled_from(["skip", "latest", "all"]))  # fmt: skip
    def set_recurring(self, name: str, every: int, overlap: str, catch_up: str) -> None:
        with self.step("set_recurring") as world:
            if name in world.recurring:
                return
            starts_at = self.do(db.clock()) - timedelta(seconds=5)
            settings = {
                "queue": "a", "task": "t1", "every": f"{every} seconds", "starts_at": starts_at.isoformat(), "overlap": overlap,
                "catch_up": catch_up, "catch_up_max": 2, "retry": FIXED, "max_attempts": 3,
            }  # fmt: skip
            assert self.do(db.set_recurring(name, settings)) == "added"
            world.recurring[name] = Recurring(every, world.now - 5, overlap, catch_up, 2, world.now)

    @precondition(lambda self: self.world.recurring)
    @rule()
    def tick(self) -> None:
        with self.step("tick") as world:
            if len(world.status_is(*LIVE)) >= MOST:
                return
            found = self.do(db.due_recurring())
            expected = {}
            for due in found.due:
                due_at, next_at = plan(due, found.now)
                expected[due.name] = self.do(db.tick(due.name, due.version, due_at, next_at))
                assert self.do(db.tick(due.name, due.version, due_at, next_at)) is None  # by a second ticker
            for name, recurring in world.recurring.items():
                fired = [] if recurring.paused else world.fire(name)
                ticked = expected.get(name, [])
                assert len(ticked) == len(fired), (name, ticked, fired)
                for answer, (_, at) in zip(ticked, fired, strict=True):
                    self.fired(recurring, answer.outcome, answer.job_id, at)

    def fired(self, recurring: Recurring, outcome: str, job_id: int | None, at: float) -> None:
        world = self.world
        last = recurring.last_job
        live = last is not None and world.status.get(last) in LIVE
        if live and recurring.overlap == "skip":
            assert (outcome, job_id) == ("overlapped", None)
            return
        if live and recurring.overlap == "replace":
            assert last is not None
            world.cancel(last)
        assert outcome == "enqueued"
        assert job_id is not None
        assert job_id not in world.jobs
        world.new(Job(job_id, run_at=at))
        recurring.last_job = job_id

    @precondition(lambda self: self.world.recurring)
    @rule(at=pick, how=st.sampled_from(["pause", "resume", "run_now", "remove"]))
    def change_recurring(self, at: int, how: str) -> None:
        with self.step(f"{how} recurring") as world:
            name = self.one(world.recurring, at)
            recurring = world.recurring[name]
            if how == "pause":
                self.do(db.pause_recurring(name))
                recurring.paused = True
            elif how == "resume":
                assert self.do(db.resume_recurring(name)) is recurring.paused
                if recurring.paused:
                    recurring.after = max(recurring.after, world.now)
                recurring.paused = False
            elif how == "run_now":
                last = recurring.last_job
                if recurring.overlap == "skip" and last is not None and world.status.get(last) in LIVE:
                    self.refused(db.run_recurring_now(name), WrongStatus)
                else:
                    self.fired(recurring, "enqueued", self.do(db.run_recurring_now(name)), world.now)
            else:
                assert self.do(db.remove_recurring(name)) is True
                del world.recurring[name]
                # Due times of before are on record, so the same name made anew would be another story.
                self.cursor.execute("delete from pgqueue.recurring_run where name = %s", [name])

    # -- the end

    def teardown(self) -> None:
        try:
            if not self.trouble and self.world.workers:
                self.compare_ended()
                self.drain()
        finally:
            self.conn.rollback()

    def drain(self) -> None:
        """Whatever has happened: once nothing is paused, everything that can end does."""
        world = self.world
        for pauses, resume in ((world.queues, db.resume), (world.tasks, db.resume_task)):
            for name, pause in pauses.items():
                self.do(resume(name))
                pause.paused, pause.throttled = None, float("-inf")
        for group, pause in world.groups.items():
            self.do(db.resume_group(*group))
            pause.paused, pause.throttled = None, float("-inf")
        for queue in QUEUES:
            self.set_limits(queue, {"rate": None, "group_rate": None})
        worker = self.do(db.register_worker("last", list(QUEUES), 86_400))
        world.workers[worker] = Worker(86_400, world.now)
        for _ in range(40):
            if not world.status_is("pending", "running"):
                break
            self.cursor.execute("select pg_temp.elapse(make_interval(secs => 1000))")
            world.now += 1000
            self.do(db.heartbeat(worker))
            world.workers[worker].beat = world.now
            self.swept()
            self.compare()
            jobs = self.do(db.claim(worker, list(QUEUES), 20))
            self.claimed(worker, list(QUEUES), 20, jobs, self.live)
            self.completed(
                self.reported(
                    worker,
                    [(j.id, j.token) for j in jobs],
                    self.do(db.complete(worker, [(j.id, j.token) for j in jobs])),
                )
            )
            self.compare()
        self.compare_ended()
        assert not world.status_is("pending", "running"), "something never came to its end"


@pytest.fixture
def machine(conn: Conn, dsn: str) -> Iterator[type[Machine]]:
    with psycopg.connect(dsn) as mine:
        # A run writes into days of its own only when it commits, and looks into all of them at every step.
        mine.execute(ELAPSE)
        for queue in QUEUES:
            db.execute(mine, db.pause(queue))
            db.execute(mine, db.resume(queue))
        mine.commit()
        mine.prepare_threshold = 1
        yield type("BoundMachine", (Machine,), {"conn": mine})
        mine.rollback()


@pytest.mark.timeout(0)
def test_the_functions_do_what_the_model_says(machine: type[Machine]) -> None:
    done.clear()
    chosen = settings(
        max_examples=max(1, STEPS * 3 // 2 // RUN), stateful_step_count=RUN, deadline=None, database=None, derandomize=SEED == 0,
        phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,), suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    run: Any = machine if SEED == 0 else seed(SEED)(machine)
    run_state_machine_as_test(run, settings=chosen)
    print(f"{done.total():,} steps: {dict(done.most_common())}")
    assert done.total() >= STEPS, "these runs have hardly done anything"
