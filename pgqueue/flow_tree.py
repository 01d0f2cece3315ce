"""A flow as the lines of a tree, for the command line and the page.

Each job stands below all that it runs after, as close as that allows, one step further in than the deepest of them.
Many jobs that stand alike (the same task, after jobs that stand alike) are one line: a fan-out of 10,000 reads as
three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgqueue.database import FlowJob

MOST_ALIKE = 8  # more of them are one line
MOST_NAMED = 3

# What is wrong comes first, what needs no look last.
_ORDER = ("dead", "running", "pending", "scheduled", "blocked", "cancelled", "completed")
_ENDED = {"completed", "cancelled", "dead"}


@dataclass(frozen=True, slots=True)
class Line:
    depth: int
    jobs: Sequence[FlowJob]  # one, or all that stand alike
    after: str  # what it runs after, where the line above it does not say that

    @property
    def label(self) -> str:
        first = self.jobs[0]
        return first.name if len(self.jobs) == 1 else f"{first.task or first.name} × {len(self.jobs):,}"

    @property
    def statuses(self) -> Mapping[str, int]:
        found = Counter(job.status for job in self.jobs)
        return {status: found[status] for status in _ORDER if status in found}

    @property
    def ended(self) -> int:
        return sum(job.status in _ENDED for job in self.jobs)


def lines(jobs: Sequence[FlowJob]) -> list[Line]:
    """Of the jobs as `database.list_flow` gives them."""
    by_id = {job.job_id: job for job in jobs}
    order = list(_parents_first(by_id))
    node, depth = _nodes(order)
    members: dict[Hashable, list[FlowJob]] = {}
    children: dict[Hashable, dict[Hashable, None]] = {}
    for job in order:
        members.setdefault(node[job.job_id], []).append(job)
        for parent in job.parents:
            children.setdefault(node[parent], {})[node[job.job_id]] = None
    waits_for = Counter(child for each in children.values() for child in each)
    ready = [each for each in members if not waits_for[each]][::-1]
    above: dict[int, Hashable] = {}  # the last node at each depth
    found = []
    while ready:
        each = ready.pop()
        level = depth[each]
        found.append(Line(level, members[each], _after(members[each], members.get(above.get(level - 1)), by_id)))
        above[level] = each
        freed = []
        for child in children.get(each, ()):
            waits_for[child] -= 1
            if not waits_for[child]:
                freed.append(child)
        ready += reversed(freed)
    return found


def _parents_first(by_id: Mapping[int, FlowJob]) -> Iterator[FlowJob]:
    """Mostly the order of the ids; not when jobs were added while the flow ran."""
    seen: set[int] = set()
    for id in by_id:
        path = [id]
        while path:
            missing = [parent for parent in by_id[path[-1]].parents if parent not in seen]
            if missing:
                path += missing
            elif (last := path.pop()) not in seen:
                seen.add(last)
                yield by_id[last]


def _nodes(order: Sequence[FlowJob]) -> tuple[dict[int, Hashable], dict[Hashable, int]]:
    """Which line each job belongs to, and how deep each line is."""
    kinds: dict[Hashable, int] = {}
    kind: dict[int, int] = {}
    levels: dict[int, int] = {}
    for job in order:
        over = frozenset(kind[parent] for parent in job.parents)
        kind[job.job_id] = kinds.setdefault((job.task or job.name, over), len(kinds))
        levels[kind[job.job_id]] = 1 + max((levels[each] for each in over), default=-1)
    sizes = Counter(kind.values())
    node: dict[int, Hashable] = {id: ("alike", each) if sizes[each] > MOST_ALIKE else id for id, each in kind.items()}
    return node, {node[id]: levels[each] for id, each in kind.items()}


def _after(jobs: Sequence[FlowJob], above: Sequence[FlowJob] | None, by_id: Mapping[int, FlowJob]) -> str:
    parents = dict.fromkeys(parent for job in jobs for parent in job.parents)
    if not parents:
        return ""
    if above is not None and parents.keys() == {job.job_id for job in above}:
        sizes = {len(job.parents) for job in jobs}
        return "" if sizes == {len(parents)} else f"each after {'one' if sizes == {1} else 'some'} of these"
    named = [by_id[parent].name for parent in list(parents)[:MOST_NAMED]]
    more = len(parents) - len(named)
    return f"after {', '.join(named)}" + (f" and {more:,} more" if more else "")
