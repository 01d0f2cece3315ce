"""Judges the history of a run by the invariants I1 to I16 (docs/reliability.md says them in full).

Pure functions of a `History`, one an invariant, each yielding what is wrong; tests/chaos/test_checker.py shows that
each finds what it is for. What a history cannot show, because it is about what did not happen, is said at the function.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter

from tests.chaos.ledger import Attempt, Event, History, Span

LIVE = {"blocked", "scheduled", "pending", "running"}
ENDED = {"completed", "dead", "cancelled"}
EDGES: dict[str | None, set[str]] = {
    None: {"blocked", "scheduled", "pending"},
    "blocked": {"scheduled", "pending", "cancelled"},
    "scheduled": {"pending", "cancelled"},
    "pending": {"running", "blocked", "cancelled"},
    "running": {"completed", "dead", "cancelled", "scheduled", "pending"},
    "completed": set(),
    "dead": {"pending", "blocked"},
    "cancelled": {"pending", "blocked"},
}
ENDINGS = {
    "pending": {"failed", "lost", "released", "snoozed"},
    "scheduled": {"failed", "lost", "snoozed"},
    "dead": {"failed", "lost"},
    "cancelled": {"cancelled"},
}
_CLOCK_SLACK = 0.002  # of times that were rounded on their way
_LATE = 1.0  # a thread that is about to start is not stopped


@dataclass
class Verdict:
    violations: dict[str, list[str]] = field(default_factory=dict)
    slept_through: int = 0  # overlaps of a process that was stopped past its lease: what cannot be prevented
    cut_off: int = 0  # overlaps of one that lost its lease otherwise: it could not reach the database
    late: int = 0  # handlers that started after such a loss: their child process, or their connection, came late

    @property
    def good(self) -> bool:
        return not any(self.violations.values())


class _View:
    """The history, indexed once."""

    def __init__(self, history: History) -> None:
        self.of = history
        self.rows = {job.id: job for job in history.jobs}
        self.events: dict[int, list[Event]] = {}
        for id, found in groupby(history.events, attrgetter("job")):
            self.events.setdefault(id, []).extend(found)
        self.attempts: dict[int, dict[int, list[Attempt]]] = defaultdict(lambda: defaultdict(list))
        for attempt in history.attempts:
            self.attempts[attempt.job][attempt.token].append(attempt)
        self.spans: dict[int, list[Span]] = defaultdict(list)
        for span in history.spans:
            self.spans[span.job].append(span)
        self.workers = {worker.id: worker for worker in history.workers}
        self.effects = Counter(effect.job for effect in history.effects)

    def lost(self, attempt: Attempt) -> bool:
        """The sweep ended it: as lost, or as cancelled if somebody had asked for that."""
        worker = None if attempt.worker is None else self.workers.get(attempt.worker)
        return attempt.outcome == "lost" or (
            worker is not None and worker.lost_at is not None and worker.lost_at <= attempt.finished_at + _CLOCK_SLACK
        )

    def outcome(self, job: int, token: int) -> str | None:
        found = self.attempts[job][token] if job in self.attempts else []
        return found[0].outcome if found else None


def i1_conservation(v: _View, _: Verdict) -> Iterator[str]:
    """What was acknowledged is there, once; nothing is there that nobody made."""
    for id, count in Counter(job.id for job in v.of.jobs).items():
        if count > 1:
            yield f"job {id} is there {count} times"
    for id in v.of.acked - v.rows.keys():
        yield f"job {id} was acknowledged and is gone"
    for id in v.of.made - v.rows.keys():
        yield f"job {id} was committed with its record and is gone"
    for job in v.of.jobs:
        if job.id not in v.of.made and job.recurring is None and job.parent is None:
            yield f"job {job.id} is there though nobody committed it"
    children = Counter(job.parent for job in v.of.jobs if job.parent is not None)
    for job in v.of.jobs:
        if children[job.id] != int(job.status == "completed" and job.task in v.of.bearing):
            yield f"job {job.id} of task {job.task} is {job.status}, and its handler enqueued {children[job.id]} jobs"


def i2_one_end(v: _View, _: Verdict) -> Iterator[str]:
    """One terminal event for each generation, and the row says the same."""
    for job in v.of.jobs:
        events = v.events.get(job.id, [])
        if events and events[-1].status != job.status:
            yield f"job {job.id} is {job.status}, but its last event says {events[-1].status}"
        for before, after in pairwise(events):
            if before.status in ENDED and after.status in ENDED:
                yield f"job {job.id} ended as {before.status} and again as {after.status}"


def i3_legal_moves(v: _View, _: Verdict) -> Iterator[str]:
    """Only legal moves; each claim has exactly one end, of its own token, on record as such, and has been run."""
    for job in v.of.jobs:
        status: str | None = None
        token = 0
        seen: set[int] = set()
        for event in v.events.get(job.id, []):
            if event.status not in EDGES[status]:
                yield f"job {job.id} went from {status} to {event.status}"
            if status == "running":
                ended = v.attempts[job.id][token] if job.id in v.attempts else []
                if event.token != token:
                    yield f"job {job.id}: claim {token} was ended by token {event.token}"
                if event.status == "completed" and ended:
                    yield f"job {job.id}: claim {token} completed and is on record as {ended[0].outcome}"
                elif event.status != "completed" and len(ended) != 1:
                    yield f"job {job.id}: claim {token} ended as {event.status}, {len(ended)} times on record"
                elif event.status != "completed" and ended[0].outcome not in ENDINGS.get(event.status, set()):
                    yield f"job {job.id}: claim {token} {ended[0].outcome} and became {event.status}"
                seen.add(token)
            if (
                event.status == "completed"
                and job.task in v.of.recorded
                and not any(span.token == event.token and span.end is not None for span in v.spans.get(job.id, []))
            ):
                yield f"job {job.id} completed, but no handler ran to its end with token {event.token}"
            status, token = event.status, event.token
        for unknown in set(v.attempts.get(job.id, {})) - seen:
            yield f"job {job.id}: an attempt is on record for claim {unknown}, which never was"


def i4_tokens(v: _View, _: Verdict) -> Iterator[str]:
    """Each claim has a token of its own, one more than the last."""
    for job in v.of.jobs:
        tokens = [event.token for event in v.events.get(job.id, []) if event.status == "running"]
        if tokens != list(range(1, len(tokens) + 1)) or job.token != len(tokens):
            yield f"job {job.id}: its claims had the tokens {tokens}, its row has {job.token}"


def i5_stale_words(v: _View, _: Verdict) -> Iterator[str]:
    """Only the holder of the lease ends a claim, and what it wrote is of that claim. (That a refused report changes
    nothing else has no trace; tests/race shows it function by function.)"""
    for id, events in v.events.items():
        for before, after in pairwise(events):
            if before.status == "running" and after.status == "completed" and after.worker != before.worker:
                yield f"job {id}: claimed by worker {before.worker}, completed by {after.worker}"
    completed = {
        (event.job, event.token) for events in v.events.values() for event in events if event.status == "completed"
    }
    for effect in v.of.effects:
        if (effect.job, effect.token) not in completed:
            yield f"job {effect.job}: an effect of token {effect.token}, which did not complete it"


def i6_attempts(v: _View, _: Verdict) -> Iterator[str]:
    """Attempts are claims without those that were handed back, and never too many."""
    for job in v.of.jobs:
        charged = 0
        status: str | None = None
        token = 0
        for event in v.events.get(job.id, []):
            if status in ENDED:
                charged = 0  # a retry by an operator gives fresh attempts
            if status == "running" and v.outcome(job.id, token) in ("released", "snoozed"):
                charged -= 1
            if event.status == "running":
                charged += 1
                if charged != event.attempt:
                    yield f"job {job.id}: claim {event.token} is attempt {event.attempt}, should be {charged}"
            status, token = event.status, event.token
        if job.attempt > job.max_attempts or job.attempt != charged:
            yield f"job {job.id}: {job.attempt} attempts, {charged} charged, {job.max_attempts} allowed"


def i7_not_before_not_too_many(v: _View, _: Verdict) -> Iterator[str]:
    """No start before its time, none in a pause, never more at once than allowed."""
    pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for queue, since, until in v.of.queue_pauses:
        pauses[queue].append((since, until))
    for job in v.of.jobs:
        events = v.events.get(job.id, [])
        claimed = {event.token: event.at for event in events if event.status == "running"}
        last = claimed.get(job.token)
        # One that ended otherwise may have been given a later time since.
        if last is not None and v.outcome(job.id, job.token) is None and last < job.run_at - _CLOCK_SLACK:
            yield f"job {job.id} started {job.run_at - last:.3f} s before its time"
        ended = [each for of_token in v.attempts.get(job.id, {}).values() for each in of_token]
        for each in ended:
            again = claimed.get(each.token + 1)
            if again is not None and each.delay and again < each.finished_at + each.delay - _CLOCK_SLACK:
                yield f"job {job.id}: claim {each.token + 1} came before the delay was over"
        # When a claim began, not when it was done: a pause holds for what begins after it.
        began = [each.started_at for each in ended]
        if job.started_at is not None:
            began.append(job.started_at)
        for since, until in pauses.get(job.queue, []):
            if any(since < at < until for at in began):
                yield f"job {job.id} was claimed while its queue {job.queue} was paused"
    yield from _too_many(v, v.of.max_running, lambda queue, _: queue)
    yield from _too_many(v, v.of.group_max_running, lambda queue, group: group and f"{queue}/{group}")


def _too_many(v: _View, limits: dict[str, int], name: Callable[[str, str | None], str | None]) -> Iterator[str]:
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    most: dict[str, int] = {}
    for job in v.of.jobs:
        whose = name(job.queue, job.group)
        if job.queue not in limits or whose is None:
            continue
        most[whose] = limits[job.queue]
        running = False
        for event in v.events.get(job.id, []):
            if running != (event.status == "running"):
                running = not running
                changes[whose].append((event.at, 1 if running else -1))
    for whose, found in changes.items():
        at_once = 0
        for at, change in sorted(found):
            at_once += change
            if at_once > most[whose]:
                yield f"{whose}: {at_once} ran at {at:.6f}, {most[whose]} may"
                break


def i8_no_early_rescue(v: _View, _: Verdict) -> Iterator[str]:
    """Nobody is declared lost within his lease, and no job is taken from one who is not lost."""
    for worker in v.of.workers:
        if worker.lost_at is not None and worker.lost_at < worker.heartbeat_at + worker.lease - _CLOCK_SLACK:
            yield f"worker {worker.id} was declared lost {worker.lost_at - worker.heartbeat_at:.3f} s after its beat"
    for attempt in v.of.attempts:
        if attempt.outcome == "lost" and attempt.worker is not None and attempt.worker in v.workers:
            lost_at = v.workers[attempt.worker].lost_at
            if lost_at is None or attempt.finished_at < lost_at - _CLOCK_SLACK:
                yield f"job {attempt.job} was taken from worker {attempt.worker}, which is not lost"


def i9_no_overlap(v: _View, verdict: Verdict) -> Iterator[str]:
    """Two handlers never run one job at the same time, nor one lease twice, unless the first had lost its lease."""
    ended = {(each.job, each.token): each for each in v.of.attempts}
    for id, spans in v.spans.items():
        spans.sort(key=attrgetter("start"))
        for token, count in Counter(span.token for span in spans).items():
            if count > 1:
                yield f"job {id} was started {count} times with token {token}"
        for span in spans:
            end = ended.get((id, span.token))
            if end is None or span.start <= end.finished_at + _LATE:
                continue
            if not v.lost(end):
                yield f"job {id}: attempt {span.token} started {span.start - end.finished_at:.1f} s after it had ended"
            elif not _slept(v, span.pid, end.started_at, span.start):
                verdict.late += 1
        for before, after in pairwise(spans):
            if before.end is None or after.start >= before.end:
                continue
            end = ended.get((id, before.token))
            if end is None or not v.lost(end):
                yield f"job {id}: attempts {before.token} and {after.token} ran at the same time"
            elif _slept(v, before.pid, before.start, before.end):
                verdict.slept_through += 1
            else:
                verdict.cut_off += 1


def _slept(v: _View, pid: int, since: float, until: float) -> bool:
    return any(start < until and since < end for start, end in v.of.slept.get(pid, []))


def i10_effects(v: _View, _: Verdict) -> Iterator[str]:
    """What a transactional task wrote: once for a completed job, never for another."""
    for job in v.of.jobs:
        expected = int(job.status == "completed" and job.task in v.of.transactional)
        if v.effects[job.id] != expected:
            yield f"job {job.id} of task {job.task} is {job.status} and has {v.effects[job.id]} effects"
    for id in v.effects.keys() - v.rows.keys():
        yield f"job {id} has effects and does not exist"


def i11_keys(v: _View, _: Verdict) -> Iterator[str]:
    """One live job for a key; every answer of a keyed enqueue names a job of that key."""
    for id, (queue, key) in v.of.keyed.items():
        if id in v.rows and (v.rows[id].queue, v.rows[id].key) != (queue, key):
            yield f"job {id} was the answer for key {key} of {queue} and has key {v.rows[id].key}"
    by_key: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for job in v.of.jobs:
        if job.key is not None:
            live = False
            for event in v.events.get(job.id, []):
                if live != (event.status in LIVE):
                    live = not live
                    by_key[job.queue, job.key].append((event.at, 1 if live else -1))
    for (queue, key), changes in by_key.items():
        at_once = 0
        for at, change in sorted(changes):
            at_once += change
            if at_once > 1:
                yield f"key {key} of {queue} had {at_once} live jobs at {at:.6f}"
                break


def i12_due_times(v: _View, _: Verdict) -> Iterator[str]:
    """A due time is one job; between the first and the last none is missing."""
    jobs = Counter(job.recurring for job in v.of.jobs if job.recurring is not None)
    for name, found in groupby(sorted(v.of.firings, key=lambda f: (f.name, f.due_at)), attrgetter("name")):
        firings = list(found)
        for id, count in Counter(firing.job for firing in firings if firing.job is not None).items():
            if count > 1 or id not in v.rows:
                yield f"{name}: job {id} stands for {count} due times and is {'there' if id in v.rows else 'missing'}"
        enqueued = sum(firing.job is not None for firing in firings)
        if enqueued != jobs[name]:
            yield f"{name}: {enqueued} due times were enqueued, {jobs[name]} jobs are there"
        for before, after in pairwise(firings):
            if after.due_at == before.due_at:
                yield f"{name} fired twice for {after.due_at}"
            elif name in v.of.every and after.due_at - before.due_at > v.of.every[name] + _CLOCK_SLACK:
                yield f"{name}: nothing between {before.due_at} and {after.due_at}"


def i13_flows(v: _View, _: Verdict) -> Iterator[str]:
    """A child starts once its parents have ended, and is let go once. (Parents here are never retried.)"""
    parents: dict[int, list[int]] = defaultdict(list)
    for edge in v.of.edges:
        parents[edge.child].append(edge.parent)
    for child, of_child in parents.items():
        events = v.events.get(child, [])
        if not events or events[0].status != "blocked":
            yield f"job {child} has parents and did not wait for them"
        released = [b.at for a, b in pairwise(events) if a.status == "blocked" and b.status != "cancelled"]
        if len(released) > 1:
            yield f"job {child} was let go {len(released)} times"
        for parent in of_child:
            ends = [event.at for event in v.events.get(parent, []) if event.status in ENDED]
            if released and (not ends or min(ends) > released[0] + _CLOCK_SLACK):
                yield f"job {child} was let go before its parent {parent} had ended"


def i14_rolled_back(v: _View, _: Verdict) -> Iterator[str]:
    """What was rolled back never was. (Nor did anybody hear of it: tests/sql/test_wake.py.)"""
    for id in v.of.rolled_back & (v.rows.keys() | v.events.keys() | v.spans.keys() | v.effects.keys()):
        yield f"job {id} was rolled back and has left a trace"


def i15_drained(v: _View, _: Verdict) -> Iterator[str]:
    """When the faults are over all is done. The run waits for that; who is still live now is stuck."""
    for job in v.of.jobs:
        if job.status not in ENDED:
            yield f"job {job.id} of task {job.task} is still {job.status}"


def i16_readers(v: _View, _: Verdict) -> Iterator[str]:
    """Reading changes nothing: all that a reader may read was read when all was quiet."""
    if v.of.by_reader:
        yield f"{v.of.by_reader} events came from reading"


INVARIANTS: dict[str, Callable[[_View, Verdict], Iterable[str]]] = {
    name.split("_")[0].upper(): function
    for name, function in list(globals().items())
    if name[0] == "i" and name[1:2].isdigit()
}


def judge(history: History) -> Verdict:
    view, verdict = _View(history), Verdict()
    for name, invariant in INVARIANTS.items():
        verdict.violations[name] = list(invariant(view, verdict))
    return verdict
