"""What the interleavings are made of: states in which two functions can meet, and the functions that may meet there.

A scene is set up once; a verb is a function of a connection and of what the scene has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from pgqueue import database as db
from pgqueue.ticker import plan
from tests.support import FIXED, Conn, claim, claim_one, enqueue, lose, make_due, value, worker

Stage = SimpleNamespace
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Verb:
    """`skips`: it passes over what others hold, and does the rest when it is asked again. `swept`: what it and another one
    leave undone between them, sweeps put right: its header in sql/functions says so."""

    act: Callable[[Conn, Stage], Any]
    skips: bool = False
    swept: bool = False


@dataclass(frozen=True)
class Scene:
    set_up: Callable[[Conn, Stage], None]
    verbs: dict[str, Verb]


def run(make: Callable[[Stage], db.Call[Any]], skips: bool = False, swept: bool = False) -> Verb:
    return Verb(lambda conn, on: db.execute(conn, make(on)), skips, swept)


def sets(**settings: Any) -> Verb:
    return run(lambda _: db.set_queue("q", settings), swept=True)


def lease(job: db.ClaimedJob) -> list[tuple[int, int]]:
    return [(job.id, job.token)]


def failure(job: db.ClaimedJob, **options: Any) -> list[db.Failure]:
    return [db.Failure(job.id, job.token, "boom", **options)]


def claimed(conn: Conn, worker_id: int, limit: int = 5, queues: tuple[str, ...] = ("q",)) -> list[tuple[int, int]]:
    return sorted((job.id, job.token) for job in claim(conn, worker_id, limit, queues))


def claims(limit: int = 5, by: str = "other") -> Verb:
    return Verb(lambda conn, on: claimed(conn, getattr(on, by), limit), skips=True)


def completes_and_claims(conn: Conn, on: Stage) -> Any:
    found = db.execute(conn, db.complete_and_claim(on.worker, lease(on.job), None, ["q"], 5))
    return sorted((job.id, job.token) for job in found.jobs), found.refused


# What may happen to a queue at any time.
SWEEP = run(lambda _: db.sweep(), skips=True)
QUEUE = {
    "pause": run(lambda _: db.pause("q")),
    "resume": run(lambda _: db.resume("q")),
    "limit to one": sets(max_running=1),
    "lift limits": sets(max_running=None, group_max_running=None),
    "pause task": run(lambda _: db.pause_task("t")),
    "pause group": run(lambda _: db.pause_group("q", "g")),
    "delete queue": run(lambda _: db.delete_queue("q"), swept=True),
    "sweep": SWEEP,
    "sweep limits": run(lambda _: db.sweep_limits(), skips=True),
    "cancel many": run(lambda _: db.cancel_many({"queue": "q"}), skips=True),
}


def of_key(key: str = "k") -> dict[str, Verb]:
    return {
        f"enqueue {key}": run(lambda _: db.enqueue("q", "t", key=key, retry=FIXED)),
        f"enqueue {key} or raise": run(lambda _: db.enqueue("q", "t", key=key, on_conflict="raise", retry=FIXED)),
        f"replace {key}": run(lambda _: db.enqueue("q", "t", {"n": 2}, key=key, on_conflict="replace", retry=FIXED)),
        f"enqueue many {key}": run(lambda _: db.enqueue_many("q", "t", [{}, {}], keys=[key, None], retry=FIXED)),
    }


# ------------------------------------------------------------------------------------------- one job runs


def one_runs(conn: Conn, on: Stage) -> None:
    """With a key and a slot of its group, for which another one waits."""
    db.execute(conn, db.set_queue("q", {"group_max_running": 1}))
    on.worker, on.other = worker(conn), worker(conn)
    enqueue(conn, key="k", key_ttl=HOUR, group="g", retry=FIXED, max_attempts=2)
    enqueue(conn, group="g", retry=FIXED)
    (on.job,) = claim(conn, on.worker, 2)


REPORTS = {
    "complete": run(lambda on: db.complete(on.worker, lease(on.job))),
    "fail": run(lambda on: db.fail(on.worker, failure(on.job))),
    "fail, again at once": run(lambda on: db.fail(on.worker, failure(on.job, retry_in=0))),
    "fail for good": run(lambda on: db.fail(on.worker, failure(on.job, fatal=True))),
    "release": run(lambda on: db.release(on.worker, lease(on.job))),
    "snooze": run(lambda on: db.snooze(on.worker, lease(on.job), [60])),
    "cancel claimed": run(lambda on: db.cancel_claimed(on.worker, lease(on.job))),
    "complete and claim": Verb(completes_and_claims, skips=True),
    "retire": run(lambda on: db.retire_worker(on.worker)),
    "cancel": run(lambda on: db.cancel(on.job.id)),
}
RUNNING = Scene(one_runs, {
    **REPORTS,
    "throttle": run(lambda on: db.throttle(on.worker, lease(on.job), [60])),
    "release unknown": run(lambda on: db.release_unknown(on.worker, [])),
    "progress": run(lambda on: db.progress(on.worker, on.job.id, on.job.token, 1)),
    "save step": run(lambda on: db.save_step(on.worker, on.job.id, on.job.token, "s", 1)),
    "heartbeat": run(lambda on: db.heartbeat(on.worker)),
    "drain": run(lambda on: db.drain(on.worker)),
    "retry": run(lambda on: db.retry(on.job.id)),
    "claim": claims(),
    **of_key(),
    **{name: verb for name, verb in QUEUE.items() if name not in ("pause", "resume", "delete queue")},
})  # fmt: skip


# --------------------------------------------------------------------------------- its worker is not heard of


def worker_is_silent(conn: Conn, on: Stage) -> None:
    one_runs(conn, on)
    lose(conn, on.worker)


SILENT = Scene(worker_is_silent, {
    **REPORTS,
    "heartbeat": run(lambda on: db.heartbeat(on.worker)),
    "sweep": SWEEP,
    "claim": claims(),
    "replace k": of_key()["replace k"],
})  # fmt: skip


# ---------------------------------------------------------------------------------------------- jobs wait


def jobs_wait(conn: Conn, on: Stage) -> None:
    """One pending, one scheduled and due."""
    on.other = worker(conn)
    on.pending = enqueue(conn, key="k", group="g", retry=FIXED)
    on.due = enqueue(conn, key="k2", run_in=HOUR, retry=FIXED)
    make_due(conn, on.due)


WAITING = Scene(jobs_wait, {
    "claim": claims(),
    "claim one": claims(1),
    "cancel pending": run(lambda on: db.cancel(on.pending)),
    "cancel due": run(lambda on: db.cancel(on.due)),
    "promote": run(lambda _: db.promote("q"), skips=True),
    # Every search counts as slow: what is slow by the clock would not be the same twice.
    "refresh hints": run(
        lambda _: db.Call("select pgqueue.refresh_hints(p_slow_ms => 0)", [], lambda found: found[0][0]), skips=True),
    "replace for later": run(
        lambda _: db.enqueue("q", "t", {"n": 3}, key="k", on_conflict="replace", run_in=HOUR, retry=FIXED)),
    **of_key(), **of_key("k2"),
    **QUEUE,
})  # fmt: skip


# ------------------------------------------------------------------------------------------ jobs have ended


def jobs_ended(conn: Conn, on: Stage) -> None:
    """One dead, with a key that is free again; one cancelled, that holds its key."""
    on.worker = on.other = worker(conn)
    on.dead = enqueue(conn, key="k", retry=FIXED)
    db.execute(conn, db.fail(on.worker, failure(claim_one(conn, on.worker), fatal=True)))
    on.cancelled = enqueue(conn, key="k2", key_ttl=HOUR, retry=FIXED)
    db.execute(conn, db.cancel(on.cancelled))
    db.execute(conn, db.retire_worker(on.worker))
    on.other = worker(conn, ["another"])


ENDED = Scene(jobs_ended, {
    "retry dead": run(lambda on: db.retry(on.dead)),
    "retry dead later": run(lambda on: db.retry(on.dead, run_at=datetime(2100, 1, 1, tzinfo=UTC))),
    "retry cancelled": run(lambda on: db.retry(on.cancelled)),
    "retry all dead": run(lambda _: db.retry_many(db.Filter(queue="q")), skips=True),
    "retry all cancelled": run(lambda _: db.retry_many(db.Filter(queue="q"), status="cancelled"), skips=True),
    "purge dead": run(lambda _: db.purge(db.Filter(queue="q"), status="dead"), skips=True),
    "purge cancelled": run(lambda _: db.purge(db.Filter(queue="q"), status="cancelled"), skips=True),
    "cancel dead": run(lambda on: db.cancel(on.dead)),
    "claim": claims(),
    **of_key(), **of_key("k2"),
    "delete queue": QUEUE["delete queue"],
    "sweep": SWEEP,
})  # fmt: skip


# ---------------------------------------------------------------------------------------- limits are reached


def limits_bind(conn: Conn, on: Stage) -> None:
    """One of two runs, one may start in a minute."""
    limits = {"max_running": 2, "rate": 2, "rate_seconds": 7200, "rate_burst": 2}
    db.execute(conn, db.set_queue("q", limits))
    on.worker, on.other = worker(conn), worker(conn)
    for _ in range(4):
        enqueue(conn, retry=FIXED)
    (on.job,) = claim(conn, on.worker, 1)


LIMITED = Scene(limits_bind, {
    **{name: REPORTS[name] for name in ("complete", "fail", "release", "complete and claim", "cancel", "retire")},
    "throttle": run(lambda on: db.throttle(on.worker, lease(on.job), [60])),
    "claim": claims(),
    "claim by the same": claims(by="worker"),
    "resume": QUEUE["resume"],
    "pause": QUEUE["pause"],
    "lift limits": sets(max_running=None, rate=None),
    "limit to one": QUEUE["limit to one"],
    "sweep": SWEEP,
})  # fmt: skip


# --------------------------------------------------------------------------------------------- all is paused


def all_is_paused(conn: Conn, on: Stage) -> None:
    """A group and a task, jobs of which are parked; and another queue."""
    on.other = worker(conn, ["q", "p"])
    on.grouped = enqueue(conn, key="k", group="g", retry=FIXED)
    on.tasked = enqueue(conn, task="u", key="k2", retry=FIXED)
    db.execute(conn, db.pause_group("q", "g"))
    db.execute(conn, db.pause_task("u"))
    assert claim(conn, on.other, 5) == []
    db.execute(conn, db.pause("p"))


PAUSED = Scene(all_is_paused, {
    "resume group": run(lambda _: db.resume_group("q", "g"), swept=True),
    "resume task": run(lambda _: db.resume_task("u"), swept=True),
    "resume queue": run(lambda _: db.resume("p")),
    "pause group": QUEUE["pause group"],
    "pause task": run(lambda _: db.pause_task("u")),
    "pause queue": run(lambda _: db.pause("p")),
    "open circuit": run(lambda _: db.force_circuit("u", "open")),
    "close circuit": run(lambda _: db.force_circuit("u", "closed"), swept=True),
    "set task": run(lambda _: db.set_task("u", {"breaker_rate": 0.5, "breaker_min": 5, "breaker_window": 60, "breaker_open": 60})),
    "fair": sets(fair=True),
    "claim": claims(),
    "cancel of the group": run(lambda on: db.cancel(on.grouped)),
    "cancel of the task": run(lambda on: db.cancel(on.tasked)),
    "delete queue": run(lambda _: db.delete_queue("p")),
    **{name: verb for name, verb in (of_key() | of_key("k2")).items() if name.startswith("replace")},
    "cancel many": QUEUE["cancel many"],
    "sweep": SWEEP,
    "sweep limits": QUEUE["sweep limits"],
})  # fmt: skip


# --------------------------------------------------------------------------------------------------- flows


def flow_runs(conn: Conn, on: Stage) -> None:
    """c runs after a and b, which run; d after c, whatever comes of it."""

    def node(name: str, *after: str, on_death: str = "stop") -> dict[str, Any]:
        return {"name": name, "queue": "q", "task": "t", "after": list(after), "on_death": on_death, "retry": FIXED}

    jobs = [node("a"), node("b"), node("c", "a", "b"), node("d", "c", on_death="continue")]
    made = db.execute(conn, db.enqueue_flow({"jobs": jobs}))
    on.flow = made.id
    on.a, on.b, on.c, on.d = made.job_ids
    on.worker, on.other = worker(conn), worker(conn)
    on.job, on.second = sorted(claim(conn, on.worker, 2))


def extends(conn: Conn, on: Stage) -> Any:
    added = [{"name": "e", "queue": "q", "task": "t", "retry": FIXED}]
    made = db.execute(conn, db.extend_flow(on.worker, on.job.id, on.job.token, added, True))
    return made is not None, db.execute(conn, db.complete(on.worker, lease(on.job)))


FLOW = Scene(flow_runs, {
    **{name: verb for name, verb in REPORTS.items() if name != "fail, again at once"},
    "complete b": run(lambda on: db.complete(on.worker, lease(on.second))),
    "complete both": run(lambda on: db.complete(on.worker, lease(on.job) + lease(on.second))),
    "fail b for good": run(lambda on: db.fail(on.worker, failure(on.second, fatal=True))),
    "cancel b": run(lambda on: db.cancel(on.b)),
    "cancel c": run(lambda on: db.cancel(on.c)),
    "cancel d": run(lambda on: db.cancel(on.d)),
    "cancel flow": run(lambda on: db.cancel_flow(on.flow), skips=True),
    "extend": Verb(extends),
    "claim": claims(),
    "cancel many": QUEUE["cancel many"],
    "sweep": SWEEP,
})  # fmt: skip


def flow_failed(conn: Conn, on: Stage) -> None:
    """a is dead, which has stopped c; d goes on."""
    flow_runs(conn, on)
    db.execute(conn, db.fail(on.worker, failure(on.job, fatal=True)))


FAILED = Scene(flow_failed, {
    "retry a": run(lambda on: db.retry(on.a)),
    "retry c": run(lambda on: db.retry(on.c)),
    "retry all dead": run(lambda _: db.retry_many(db.Filter(queue="q")), skips=True),
    "retry all cancelled": run(lambda _: db.retry_many(db.Filter(queue="q"), status="cancelled"), skips=True),
    "purge dead": run(lambda _: db.purge(db.Filter(queue="q"), status="dead"), skips=True),
    "purge cancelled": run(lambda _: db.purge(db.Filter(queue="q"), status="cancelled"), skips=True),
    "complete b": run(lambda on: db.complete(on.worker, lease(on.second))),
    "fail b for good": run(lambda on: db.fail(on.worker, failure(on.second, fatal=True))),
    "cancel d": run(lambda on: db.cancel(on.d)),
    "cancel flow": run(lambda on: db.cancel_flow(on.flow), skips=True),
    "claim": claims(),
    "sweep": SWEEP,
})  # fmt: skip


# ------------------------------------------------------------------------------------------- recurring jobs


def recurring_is_due(conn: Conn, on: Stage) -> None:
    """Its last job waits, and is to be replaced."""
    on.other = worker(conn)
    settings = {"queue": "q", "task": "t", "every": "1 hour", "overlap": "replace", "retry": FIXED}
    db.execute(conn, db.set_recurring("r", settings))
    on.last = db.execute(conn, db.run_recurring_now("r"))
    ticks(conn, on)
    on.version = value(conn, "select version from pgqueue.recurring_job")
    conn.execute(
        "update pgqueue.recurring_job set planned_from = planned_from - interval '1 day',"
        " next_run_at = next_run_at - interval '1 day'"
    )


def ticks(conn: Conn, on: Stage) -> Any:
    found = db.execute(conn, db.due_recurring())
    told = [db.execute(conn, db.tick(due.name, due.version, *plan(due, found.now))) for due in found.due]
    return [None if each is None else [(one.outcome, one.job_id) for one in each] for each in told]


RECURRING = Scene(recurring_is_due, {
    "tick": Verb(ticks, skips=True),
    "run now": run(lambda _: db.run_recurring_now("r")),
    "pause": run(lambda _: db.pause_recurring("r")),
    "resume": run(lambda _: db.resume_recurring("r")),
    "remove": run(lambda _: db.remove_recurring("r")),
    "change": run(lambda _: db.set_recurring("r", {"every": "2 hours"})),
    "make": run(lambda _: db.set_recurring("r", {"task": "t", "every": "2 hours"}, True)),
    "reconcile": run(lambda _: db.reconcile_recurring("app", {"r": {"task": "t", "every": "2 hours"}, "s": {"task": "t", "every": "1 hour"}})),
    "mark": run(lambda on: db.mark_recurring("r", on.version, "no such zone"), skips=True),
    "cancel": run(lambda on: db.cancel(on.last)),
    "claim": claims(),
    "delete queue": QUEUE["delete queue"],
    "sweep": SWEEP,
})  # fmt: skip

# Of one worker, which does one thing after the other: see release_unknown. (What a claim leaves that comes after its worker
# was retired, the next sweep brings back: test_leases.)
NOT_AT_ONCE = [{"retire", "release unknown"}, {"complete and claim", "claim by the same"}]

SCENES = {
    "a job runs": RUNNING,
    "its worker is silent": SILENT,
    "jobs wait": WAITING,
    "jobs have ended": ENDED,
    "limits bind": LIMITED,
    "all is paused": PAUSED,
    "a flow runs": FLOW,
    "a flow has failed": FAILED,
    "a recurring job is due": RECURRING,
}
