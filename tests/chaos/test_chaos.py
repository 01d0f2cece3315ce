"""Everything at once: the strong tests are elsewhere, this one looks for what nobody has thought of.

About 90 seconds with 20,000 jobs; PGQUEUE_CHAOS_JOBS and PGQUEUE_CHAOS_SEED change that, `make chaos` does more of it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.chaos import plan
from tests.chaos.plan import Size
from tests.chaos.run import LEASE, run

JOBS = int(os.environ.get("PGQUEUE_CHAOS_JOBS", "20000"))


@pytest.mark.timeout(900)  # a bound for what hangs: on a busy machine everything here just comes later
def test_whatever_goes_wrong_no_invariant_is_violated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("PGQUEUE_CHAOS_SEED", secrets.randbelow(1_000_000)))
    report = run(seed, Size(jobs=JOBS), tmp_path)
    with capsys.disabled():
        print("\n" + report.table())
    assert report.good, report.table()
    assert report.counts["jobs"] >= JOBS
    assert sum(count for what, count in report.done.items() if what.startswith("kill")) >= 50
    assert report.done["pause"] + report.done["pause and kill"] >= 15
    assert report.done["restart server"] == 2
    assert report.counts["attempts lost"] > 0, "no worker was killed while it had anything to do"


def test_a_seed_makes_one_plan() -> None:
    size = Size()
    made = plan.make(7, size, LEASE)
    assert made == plan.make(7, size, LEASE)
    assert made != plan.make(8, size, LEASE)
    counts = plan.counts(made)
    assert sum(count for what, count in counts.items() if what.startswith("kill")) == size.kills
    assert counts["pause"] + counts["pause and kill"] == size.pauses
    assert {"restart server", "exhaust connections", "fill disk", *plan.NETWORK} <= set(counts)
