from __future__ import annotations

from pgqueue.database import FlowJob
from pgqueue.flow_tree import MOST_ALIKE, lines


def flow_job(id: int, name: str, *parents: int, status: str = "pending", task: str = "t") -> FlowJob:
    return FlowJob(id, name, "q", task, status, 0, None, None, None, None, list(parents))


def drawn(*jobs: FlowJob) -> list[str]:
    return ["  " * line.depth + line.label + (f" ({line.after})" if line.after else "") for line in lines(jobs)]


def test_a_chain_goes_one_step_further_in_each_time() -> None:
    assert drawn(flow_job(1, "a"), flow_job(2, "b", 1), flow_job(3, "c", 2)) == ["a", "  b", "    c"]


def test_branches_stand_below_their_own_parent() -> None:
    jobs = [flow_job(1, "a"), flow_job(2, "b"), flow_job(3, "under a", 1), flow_job(4, "under b", 2)]
    assert drawn(*jobs) == ["a", "  under a", "b", "  under b"]


def test_what_runs_after_several_stands_below_the_last_of_them_and_names_them() -> None:
    jobs = [flow_job(1, "a"), flow_job(2, "b"), flow_job(3, "c"), flow_job(4, "d"), flow_job(5, "all", 1, 2, 3, 4)]
    assert drawn(*jobs) == ["a", "b", "c", "d", "  all (after a, b, c and 1 more)"]


def test_parents_stand_above_their_children_in_any_graph() -> None:
    jobs = [
        flow_job(1, "a"), flow_job(2, "b"), flow_job(3, "c", 1), flow_job(4, "d", 3, 2), flow_job(5, "e", 4, 1),
        flow_job(6, "f", 2), flow_job(7, "added later"), flow_job(8, "waits for it", 7, 6),
    ]  # fmt: skip
    seen: set[int] = set()
    for line in lines(jobs):
        assert seen.issuperset(parent for job in line.jobs for parent in job.parents)
        seen |= {job.job_id for job in line.jobs}
    assert len(seen) == len(jobs)


def test_a_parent_that_was_added_while_the_flow_ran_has_a_higher_id_than_its_child() -> None:
    assert drawn(flow_job(1, "a"), flow_job(2, "last", 1, 3), flow_job(3, "added", 1)) == [
        "a", "  added", "    last (after a, added)",
    ]  # fmt: skip


def test_many_that_stand_alike_are_one_line() -> None:
    parts = [flow_job(2 + n, f"part-{n}", 1, status="completed" if n else "dead", task="part") for n in range(5000)]
    more = [flow_job(9000 + n, f"more-{n}", 2 + n, task="more") for n in range(5000)]
    total = flow_job(20000, "total", *(job.job_id for job in more))
    found = lines([flow_job(1, "first"), *parts, *more, total])
    assert drawn(flow_job(1, "first"), *parts, *more, total) == [
        "first", "  part × 5,000", "    more × 5,000 (each after one of these)", "      total",
    ]  # fmt: skip
    assert found[1].statuses == {"dead": 1, "completed": 4999}
    assert (found[1].ended, found[2].ended) == (5000, 0)


def test_few_that_stand_alike_are_shown_each() -> None:
    jobs = [flow_job(n, f"j{n}") for n in range(1, MOST_ALIKE + 1)]
    assert len(lines(jobs)) == MOST_ALIKE
    assert len(lines([*jobs, flow_job(99, "j99")])) == 1


def test_alike_means_after_the_same_too() -> None:
    jobs = [flow_job(1, "a", task="a"), flow_job(2, "b", task="b")]
    jobs += [flow_job(10 + n, f"x{n}", 1, task="x") for n in range(10)]
    jobs += [flow_job(30 + n, f"y{n}", 2, task="x") for n in range(10)]
    assert drawn(*jobs) == ["a", "  x × 10", "b", "  x × 10"]
