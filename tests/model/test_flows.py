"""Flows against a model: random graphs, outcomes, lost workers, cancellations and retries.

After every step each job must have the status that the model says, and the counts of the flow must be those of its
jobs. So no job runs before its parents, none runs twice, none is forgotten. PGQUEUE_FLOW_STEPS and PGQUEUE_FLOW_SEEDS
make it longer; a seed that failed is in the test's name.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from pgqueue import database as db
from tests.support import Conn, claim, lose, rows, worker

STEPS = int(os.environ.get("PGQUEUE_FLOW_STEPS", "150"))
SEEDS = range(int(os.environ.get("PGQUEUE_FLOW_SEEDS", "12")))
LIVE = {"blocked", "pending", "running"}
BAD = {"dead", "cancelled"}


class Model:
    """What flows promise, said as plainly as possible."""

    def __init__(self) -> None:
        self.status: dict[int, str] = {}
        self.parents: dict[int, dict[int, str]] = {}  # and what their death means
        self.open: dict[int, set[int]] = {}  # parents that a job still waits for; empty for ever once it was released
        self.stopped_by: dict[int, int] = {}
        self.asked: set[int] = set()
        self.flow_of: dict[int, int] = {}
        self.cancelled: set[int] = set()  # flows

    def add(self, flow: int, id: int, parents: dict[int, str], waits: bool = True) -> None:
        self.flow_of[id] = flow
        self.parents[id] = parents
        self.open[id] = set(parents) if waits else set()
        self.status[id] = "blocked" if self.open[id] else "pending"

    def children(self, id: int) -> Iterable[int]:
        return [child for child, parents in sorted(self.parents.items()) if id in parents]

    def end(self, ended: dict[int, str]) -> None:
        """A generation of jobs has ended; the next one is what that stops."""
        while ended:
            self.status.update(ended)
            self.asked -= ended.keys()
            following: dict[int, str] = {}
            for id, outcome in ended.items():
                for child in self.children(id):
                    lets_run = outcome == "completed" or self.parents[child][id] == "continue"
                    if lets_run and self.settle(child, id):
                        following[child] = "cancelled"
            for id, outcome in sorted(ended.items()):
                for child in self.children(id):
                    stops = outcome in BAD and self.parents[child][id] == "stop" and child not in following
                    if stops and self.status[child] == "blocked":
                        following[child] = "cancelled"
                        self.stopped_by[child] = id
            ended = following

    def settle(self, child: int, parent: int) -> bool:
        """Whether the child, instead of being released, is cancelled with its flow."""
        if self.open[child]:
            self.open[child].discard(parent)
            if not self.open[child] and self.status[child] == "blocked":
                self.status[child] = "pending"
                return self.flow_of[child] in self.cancelled
        return False

    def retry(self, id: int) -> None:
        self.cancelled.discard(self.flow_of[id])
        self.status[id] = "blocked" if self.open[id] else "pending"
        self.stopped_by.pop(id, None)
        for child in self.children(id):
            if self.parents[child][id] == "continue" and self.open[child]:
                self.open[child].add(id)
        for child in self.children(id):
            if self.stopped_by.get(child) == id:
                others = [p for p, when in self.parents[child].items() if when == "stop" and self.status[p] in BAD]
                if others:
                    self.stopped_by[child] = others[0]
                else:
                    self.retry(child)

    def cancel_flow(self, flow: int) -> None:
        mine = [id for id, of in self.flow_of.items() if of == flow]
        self.cancelled.add(flow)
        self.asked |= {id for id in mine if self.status[id] == "running"}
        for id in mine:
            if self.status[id] in ("blocked", "pending"):
                self.status[id] = "cancelled"
                self.stopped_by.pop(id, None)
        # As all at once: nobody is released, but edges that continue count.
        for id in mine:
            if self.status[id] == "cancelled":
                for child in self.children(id):
                    if self.parents[child][id] == "continue" and id in self.open[child]:
                        self.open[child].discard(id)


class Player:
    """Does to the database what it does to the model."""

    def __init__(self, conn: Conn, seed: int) -> None:
        self.conn = conn
        self.random = random.Random(seed)  # noqa: S311
        self.model = Model()
        self.held: dict[int, dict[int, int]] = {worker(conn, lease_seconds=3600): {} for _ in range(2)}
        self.flows: set[int] = set()
        self.trace: list[str] = []

    def play(self, steps: int) -> None:
        moves: list[Any] = [
            *[self.enqueue] * 2, *[self.claim] * 6, *[self.complete] * 5, *[self.fail] * 3, self.stumble, self.lose,
            self.cancel, self.cancel, self.retry, self.retry, self.retry, self.extend, self.release, self.sweep,
            *([self.cancel_flow] if self.random.random() < 0.3 else []),
        ]  # fmt: skip
        for _ in range(steps):
            move = self.random.choice(moves)
            self.trace.append(f"{move.__name__}: {move()}")
            self.compare()

    def compare(self) -> None:
        model = self.model
        found = {each["id"]: each["status"] for each in rows(self.conn, "select id, status from pgqueue.job")}
        assert found == model.status, "\n".join([*self.trace[-15:], repr(model.parents)])
        open_parents = {each["job_id"]: each["n"] for each in rows(
            self.conn, "select job_id, open_parents as n from pgqueue.flow_node")}  # fmt: skip
        assert open_parents == {id: len(open) for id, open in model.open.items()}, "\n".join(self.trace[-15:])
        for flow in rows(self.conn, "select * from pgqueue.flow"):
            counts = Counter(model.status[id] for id, of in model.flow_of.items() if of == flow["id"])
            names = ("blocked", "completed", "dead", "cancelled")
            assert {name: flow[name] for name in names} == {name: counts[name] for name in names}, self.trace[-15:]
            assert flow["total"] == counts.total()
            assert (flow["ended_at"] is None) == any(counts[status] for status in LIVE)

    def some(self, ids: Iterable[int], most: int = 3) -> list[int]:
        found = sorted(ids)
        return self.random.sample(found, min(len(found), self.random.randint(1, most))) if found else []

    # -- moves

    def graph(self, size: int) -> list[dict[str, Any]]:
        jobs = []
        for n in range(size):
            after = [
                {"job": p, "on_death": self.random.choice(["wait", "stop", "stop", "continue"])}
                for p in range(n) if self.random.random() < 0.4
            ]  # fmt: skip
            jobs.append({"queue": "q", "task": "t", "max_attempts": 1000, "after": after})
        return jobs

    def enqueue(self) -> Any:
        if sum(status in LIVE for status in self.model.status.values()) > 25:
            return None
        jobs = self.graph(self.random.randint(1, 8))
        made = db.execute(self.conn, db.enqueue_flow({"jobs": jobs}))
        self.flows.add(made.id)
        for id, job in zip(made.job_ids, jobs, strict=True):
            self.model.add(made.id, id, {made.job_ids[e["job"]]: e["on_death"] for e in job["after"]})
        return made

    def claim(self) -> Any:
        worker_id = self.random.choice(list(self.held))
        got = claim(self.conn, worker_id, self.random.randint(1, 4))
        for job in got:
            assert self.model.status[job.id] == "pending", job
            self.model.status[job.id] = "running"
            self.held[worker_id][job.id] = job.token
        return [job.id for job in got]

    def leases(self, most: int = 3) -> tuple[int, list[tuple[int, int]]]:
        worker_id = self.random.choice(list(self.held))
        return worker_id, [(id, self.held[worker_id].pop(id)) for id in self.some(self.held[worker_id], most)]

    def complete(self) -> Any:
        worker_id, leases = self.leases(4)
        assert db.execute(self.conn, db.complete(worker_id, leases, [id for id, _ in leases])) == []
        self.model.end({id: "completed" for id, _ in leases})
        return leases

    def fail(self) -> Any:
        worker_id, leases = self.leases(2)
        fatal = [db.Failure(id, token, "boom", fatal=True) for id, token in leases]
        for answer in db.execute(self.conn, db.fail(worker_id, fatal)):
            assert answer.status == ("cancelled" if answer.id in self.model.asked else "dead")
        self.model.end({id: "cancelled" if id in self.model.asked else "dead" for id, _ in leases})
        return leases

    def back(self, ids: Iterable[int]) -> None:
        """These may run again, unless somebody wants them to stop."""
        for id in ids:
            self.model.status[id] = "pending"
        self.model.end({id: "cancelled" for id in ids if id in self.model.asked})

    def stumble(self) -> Any:
        worker_id, leases = self.leases()
        db.execute(self.conn, db.fail(worker_id, [db.Failure(id, token, "boom", retry_in=0) for id, token in leases]))
        self.back([id for id, _ in leases])
        return leases

    def release(self) -> Any:
        worker_id, leases = self.leases()
        assert db.execute(self.conn, db.release(worker_id, leases)) == []
        self.back([id for id, _ in leases])
        return leases

    def lose(self) -> Any:
        if self.random.random() < 0.5:
            return None
        worker_id = self.random.choice(list(self.held))
        lost = self.held.pop(worker_id)
        lose(self.conn, worker_id)
        self.conn.execute("update pgqueue.job_live set crashes = 0")
        self.sweep(lost)
        if lost:  # what it says now changes nothing
            refused = db.execute(self.conn, db.complete(worker_id, list(lost.items())))
            assert sorted(refused) == sorted(lost)
        self.held[worker(self.conn, lease_seconds=3600)] = {}
        return list(lost)

    def sweep(self, lost: Iterable[int] = ()) -> Any:
        db.execute(self.conn, db.sweep())
        self.back(list(lost))
        for flow in self.model.cancelled & {self.model.flow_of[id] for id, s in self.model.status.items() if s in LIVE}:
            self.model.cancel_flow(flow)

    def cancel(self) -> Any:
        for id in (ids := self.some(self.model.status, 1)):
            before = self.model.status[id]
            after = db.execute(self.conn, db.cancel(id))
            if before in ("blocked", "pending"):
                self.model.end({id: "cancelled"})
            elif before == "running":
                self.model.asked.add(id)
            assert after == self.model.status[id]
        return ids

    def retry(self) -> Any:
        for id in (ids := self.some([id for id, status in self.model.status.items() if status in BAD], 1)):
            self.model.retry(id)
            assert db.execute(self.conn, db.retry(id)) == self.model.status[id]
        return ids

    def cancel_flow(self) -> Any:
        for flow in (flows := self.some(self.flows, 1)):
            mine = [id for id, of in self.model.flow_of.items() if of == flow]
            db.execute(self.conn, db.cancel_flow(flow))
            if any(self.model.status[id] in LIVE for id in mine):
                self.model.cancel_flow(flow)
        return flows

    def extend(self) -> Any:
        worker_id, leases = self.leases(1)
        for id, token in leases:
            jobs, hold = self.graph(self.random.randint(1, 4)), self.random.random() < 0.6
            with self.conn.transaction():
                made = db.execute(self.conn, db.extend_flow(worker_id, id, token, jobs, hold))
                assert made is not None
                assert db.execute(self.conn, db.complete(worker_id, [(id, token)])) == []
            followers = [child for child in self.model.children(id) if id in self.model.open[child]]
            for new, job in zip(made, jobs, strict=True):
                after = {made[e["job"]]: e["on_death"] for e in job["after"]}
                self.model.add(self.model.flow_of[id], new, after or {id: "wait"}, waits=bool(after))
            if hold:
                last = set(made) - {made[e["job"]] for job in jobs for e in job["after"]}
                for child in followers:
                    self.model.parents[child] |= dict.fromkeys(sorted(last), self.model.parents[child][id])
                    self.model.open[child] |= last
            self.model.end({id: "completed"})
        return leases


@pytest.mark.parametrize("seed", SEEDS)
def test_flows_do_what_the_model_says(conn: Conn, seed: int) -> None:
    player = Player(conn, seed)
    player.play(STEPS)
    assert len(player.model.status) > 20, "this run has hardly done anything"


def test_whatever_happened_every_flow_can_be_brought_to_its_end(conn: Conn) -> None:
    player = Player(conn, 4711)
    player.play(STEPS)
    for _ in range(500):
        statuses = player.model.status.values()
        if "running" in statuses or "pending" in statuses:
            player.claim()
            player.complete()
        elif "dead" in statuses or "cancelled" in statuses:
            player.retry()
        else:
            break
        player.compare()
    assert set(player.model.status.values()) == {"completed"}
    assert rows(conn, "select 1 from pgqueue.flow_status where status <> 'completed'") == []
