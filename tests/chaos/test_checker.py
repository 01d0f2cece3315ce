"""The checker finds a violation of each invariant, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import INVARIANTS, judge
from tests.chaos.ledger import Attempt, Edge, Effect, Event, Firing, History, JobRow, Span, WorkerRow


def good() -> History:
    """Job 1 is lost once and then completes, 2 fails and dies, 3 and 4 are a flow, 5 and 6 recurring, 7 is cancelled
    and 8 has its key after it, 9 is enqueued by 3's handler; 20 was rolled back."""
    history = History(
        transactional={"write"},
        recorded={"write", "fail"},
        bearing={"bear"},
        made={1, 2, 3, 4, 7, 8},
        acked={1, 2, 3, 4, 7, 8},
        rolled_back={20},
        keyed={7: ("q", "k"), 8: ("q", "k")},
        slept={77: [(11.0, 14.0)]},
        queue_pauses=[("q", 30.0, 33.0)],
        max_running={"few": 1},
        group_max_running={"q": 1},
        every={"tick": 1.0},
        workers=[WorkerRow(1, 2, 10.9, 13.0), WorkerRow(2, 2, 50.0, None)],
    )
    history.jobs = [
        JobRow(1, "completed", 2, 2, 5, "q", "write", group="g", started_at=13.5, run_at=10.0),
        JobRow(2, "dead", 2, 2, 2, "q", "fail", group="g", started_at=22.0, run_at=22.0),
        JobRow(3, "completed", 1, 1, 5, "few", "bear", started_at=10.0, run_at=10.0),
        JobRow(4, "completed", 1, 1, 5, "few", "other", started_at=12.0, run_at=11.5),
        JobRow(5, "completed", 1, 1, 5, "q", "other", recurring="tick", started_at=20.0),
        JobRow(6, "completed", 1, 1, 5, "q", "other", recurring="tick", started_at=21.0),
        JobRow(7, "cancelled", 0, 0, 5, "q", "other", key="k"),
        JobRow(8, "completed", 2, 1, 5, "q", "other", key="k", started_at=26.0),
        JobRow(9, "completed", 1, 1, 5, "q", "other", parent=3, started_at=29.0),
    ]
    pending, running, completed = "pending", "running", "completed"
    history.events = [
        Event(1, 10.0, pending, 0, 0, None), Event(1, 10.5, running, 1, 1, 1), Event(1, 13.2, pending, 1, 1, None),
        Event(1, 13.5, running, 2, 2, 2), Event(1, 14.0, completed, 2, 2, 2),
        Event(2, 15.0, pending, 0, 0, None), Event(2, 15.1, running, 1, 1, 2), Event(2, 16.0, "scheduled", 1, 1, None),
        Event(2, 22.0, pending, 1, 1, None), Event(2, 22.1, running, 2, 2, 2), Event(2, 22.2, "dead", 2, 2, 2),
        Event(3, 10.0, pending, 0, 0, None), Event(3, 10.1, running, 1, 1, 2), Event(3, 11.5, completed, 1, 1, 2),
        Event(4, 10.0, "blocked", 0, 0, None), Event(4, 11.5, pending, 0, 0, None), Event(4, 12.0, running, 1, 1, 2),
        Event(4, 12.5, completed, 1, 1, 2),
        Event(5, 20.0, pending, 0, 0, None), Event(5, 20.1, running, 1, 1, 2), Event(5, 20.2, completed, 1, 1, 2),
        Event(6, 21.0, pending, 0, 0, None), Event(6, 21.1, running, 1, 1, 2), Event(6, 21.2, completed, 1, 1, 2),
        Event(7, 20.0, "scheduled", 0, 0, None), Event(7, 24.0, "cancelled", 0, 0, None),
        Event(8, 24.5, pending, 0, 0, None), Event(8, 25.0, running, 1, 1, 2), Event(8, 25.5, pending, 1, 0, None),
        Event(8, 26.0, running, 2, 1, 2), Event(8, 26.5, completed, 2, 1, 2),
        Event(9, 28.0, pending, 0, 0, None), Event(9, 29.0, running, 1, 1, 2), Event(9, 29.5, completed, 1, 1, 2),
    ]  # fmt: skip
    history.attempts = [
        Attempt(1, 1, "lost", 10.5, 13.2, 1, 0),
        Attempt(2, 1, "failed", 15.1, 16.0, 2, 6.0),
        Attempt(2, 2, "failed", 22.1, 22.2, 2),
        Attempt(8, 1, "released", 25.0, 25.5, 2, 0),
    ]
    history.spans = [
        Span(1, 1, 77, 10.6, 14.1), Span(1, 2, 78, 13.6, 13.9), Span(2, 1, 78, 15.2, 15.9), Span(2, 2, 78, 22.1, 22.2),
        Span(8, 1, 79, 25.1, None),
    ]  # fmt: skip
    history.effects = [Effect(1, 2)]
    history.firings = [Firing("tick", 20.0, "enqueued", 5), Firing("tick", 21.0, "enqueued", 6)]
    history.edges = [Edge(3, 4)]
    return history


def job(history: History, id: int, **changes: Any) -> None:
    history.jobs = [each._replace(**changes) if each.id == id else each for each in history.jobs]


def event(history: History, id: int, when: float, **changes: Any) -> None:
    """Change the event at this time; without changes: remove it."""
    history.events = [
        each._replace(**changes) if (each.job, each.at) == (id, when) else each
        for each in history.events
        if changes or (each.job, each.at) != (id, when)
    ]


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    verdict = judge(good())
    assert {name: found for name, found in verdict.violations.items() if found} == {}
    assert verdict.good
    assert list(verdict.violations) == [f"I{n}" for n in range(1, 17)]
    assert (verdict.slept_through, verdict.cut_off) == (1, 0)


twice = [(13.0, "blocked"), (14.0, "pending")]
BAD: list[tuple[str, str, Callable[[History], object]]] = [
    ("I1", "acknowledged and is gone", lambda h: h.acked.add(99)),
    ("I1", "committed with its record and is gone", lambda h: h.made.add(99)),
    ("I1", "though nobody committed it", lambda h: h.made.remove(1)),
    ("I1", "enqueued 0 jobs", lambda h: job(h, 1, task="bear")),
    ("I1", "enqueued 1 jobs", lambda h: job(h, 9, parent=1)),
    ("I1", "2 times", lambda h: h.jobs.append(h.jobs[0])),
    ("I2", "last event says", lambda h: job(h, 3, status="dead")),
    ("I2", "and again as", lambda h: h.events.insert(5, Event(1, 14.5, "completed", 2, 2, 2))),
    ("I3", "went from pending to completed", lambda h: event(h, 3, 10.1)),
    ("I3", "went from completed to pending", lambda h: h.events.insert(5, Event(1, 14.5, "pending", 2, 2, None))),
    ("I3", "ended by token 1", lambda h: event(h, 1, 14.0, token=1)),
    ("I3", "0 times on record", lambda h: h.attempts.pop(0)),
    ("I3", "completed and is on record", lambda h: h.attempts.append(Attempt(3, 1, "failed", 10.1, 11, 2))),
    ("I3", "failed and became cancelled", lambda h: event(h, 2, 22.2, status="cancelled")),
    ("I3", "no handler ran", lambda h: h.spans.pop(1)),
    ("I3", "which never was", lambda h: h.attempts.append(Attempt(3, 4, "failed", 10.1, 11, 2))),
    ("I4", "tokens [1, 1]", lambda h: event(h, 1, 13.5, token=1)),
    ("I4", "its row has 7", lambda h: job(h, 1, token=7)),
    ("I5", "claimed by worker 2, completed by 1", lambda h: event(h, 1, 14.0, worker=1)),
    ("I5", "did not complete it", lambda h: h.effects.append(Effect(1, 1))),
    ("I6", "2 allowed", lambda h: job(h, 2, attempt=3)),
    ("I6", "should be 1", lambda h: event(h, 8, 26.0, attempt=2)),
    ("I7", "before its time", lambda h: job(h, 4, run_at=12.1)),
    ("I7", "came before the delay", lambda h: h.attempts.__setitem__(1, Attempt(2, 1, "failed", 15.1, 16.0, 2, 7.0))),
    ("I7", "was paused", lambda h: h.queue_pauses.append(("q", 28.5, 29.2))),
    ("I7", "few: 2 ran", lambda h: event(h, 3, 11.5, at=12.2)),
    ("I7", "q/g: 2 ran", lambda h: event(h, 1, 14.0, at=15.5)),
    ("I8", "declared lost", lambda h: h.workers.__setitem__(0, WorkerRow(1, 2, 11.5, 13.0))),
    ("I8", "which is not lost", lambda h: h.workers.__setitem__(0, WorkerRow(1, 2, 11.5, None))),
    ("I9", "at the same time", lambda h: h.spans.append(Span(2, 2, 79, 15.5, 15.6))),
    ("I9", "started 2 times", lambda h: h.spans.append(Span(2, 2, 79, 23.0, 24.0))),
    ("I9", "after it had ended", lambda h: h.spans.__setitem__(2, Span(2, 1, 78, 17.5, 17.6))),
    ("I10", "has 2 effects", lambda h: h.effects.append(Effect(1, 2))),
    ("I10", "has 0 effects", lambda h: h.effects.clear()),
    ("I10", "is dead and has 1", lambda h: h.effects.append(Effect(2, 2))),
    ("I10", "does not exist", lambda h: h.effects.append(Effect(99, 1))),
    ("I11", "has key None", lambda h: job(h, 8, key=None)),
    ("I11", "2 live jobs", lambda h: event(h, 7, 24.0, at=24.7)),
    ("I12", "fired twice", lambda h: h.firings.append(Firing("tick", 21.0, "enqueued", 6))),
    ("I12", "nothing between", lambda h: h.firings.__setitem__(1, Firing("tick", 22.0, "enqueued", 6))),
    ("I12", "1 due times were enqueued, 2", lambda h: h.firings.pop()),
    ("I12", "missing", lambda h: h.firings.append(Firing("tick", 22.0, "enqueued", 99))),
    ("I13", "did not wait", lambda h: event(h, 4, 10.0, status="pending")),
    ("I13", "2 times", lambda h: h.events.extend([Event(4, at, s, 1, 1, None) for at, s in twice])),
    ("I13", "before its parent", lambda h: event(h, 4, 11.5, at=11.0)),
    ("I14", "has left a trace", lambda h: h.rolled_back.add(3)),
    ("I15", "still pending", lambda h: job(h, 3, status="pending")),
    ("I16", "came from reading", lambda h: setattr(h, "by_reader", 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words", "spoil"), BAD, ids=[f"{name}: {words}" for name, words, _ in BAD])
def test_what_is_wrong_is_found_and_said(name: str, words: str, spoil: Callable[[History], object]) -> None:
    history = good()
    spoil(history)
    history.events.sort(key=lambda each: (each.job, each.at))
    verdict = judge(history)
    assert not verdict.good
    assert any(words in each for each in verdict.violations[name]), verdict.violations


def test_an_overlap_of_a_worker_that_could_not_reach_the_database_is_counted_apart() -> None:
    history = good()
    history.slept.clear()
    verdict = judge(history)
    assert verdict.good
    assert (verdict.slept_through, verdict.cut_off, verdict.late) == (0, 1, 0)


def test_a_handler_that_starts_after_its_lease_was_lost_is_counted_apart() -> None:
    history = good()
    history.spans[0] = history.spans[0]._replace(pid=70, start=14.9, end=15.0)
    verdict = judge(history)
    assert verdict.good
    assert (verdict.slept_through, verdict.cut_off, verdict.late) == (0, 0, 1)


def test_a_job_that_was_cancelled_while_its_worker_slept_was_ended_by_the_sweep() -> None:
    history = good()
    history.jobs.append(JobRow(30, "cancelled", 1, 1, 5, "q", "other", started_at=10.9))
    history.made.add(30)
    history.events += [
        Event(30, 10.8, "pending", 0, 0, None), Event(30, 10.9, "running", 1, 1, 1),
        Event(30, 13.1, "cancelled", 1, 1, 1),
    ]  # fmt: skip
    history.attempts.append(Attempt(30, 1, "cancelled", 10.9, 13.1, 1))
    history.spans.append(Span(30, 1, 77, 14.3, 14.4))
    history.slept[77] = [(11.0, 14.5)]
    verdict = judge(history)
    assert {name: found for name, found in verdict.violations.items() if found} == {}
    history.workers[0] = WorkerRow(1, 2, 10.9, None)
    assert any("after it had ended" in each for each in judge(history).violations["I9"])


def test_every_invariant_has_a_violation_here() -> None:
    assert {name for name, _, _ in BAD} == set(INVARIANTS)
