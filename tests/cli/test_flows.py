"""`pgqueue flows …`"""

from __future__ import annotations

from typing import Any

from pgqueue import database as db
from tests.cli.conftest import Run
from tests.support import Conn, claim, claim_one, row, worker


def flow(conn: Conn, *jobs: dict[str, Any], **options: Any) -> db.EnqueuedFlow:
    graph = {"jobs": [{"queue": "q", "task": "t", **job} for job in jobs], **options}
    return db.execute(conn, db.enqueue_flow(graph))


def test_a_flow_is_shown_as_a_tree(conn: Conn, run: Run) -> None:
    w = worker(conn)
    made = flow(
        conn, {"name": "charge", "priority": 9}, {"name": "label"}, {"name": "ship", "after": ["charge", "label"]},
        {"name": "tell", "after": ["ship"]}, name="order 7",
    )  # fmt: skip
    claimed = claim_one(conn, w)
    db.execute(conn, db.fail(w, [db.Failure(claimed.id, claimed.token, "no money", "CardError", fatal=True)]))
    told = run("flows", "show", made.id)
    lines = told.out.splitlines()
    assert lines[0].startswith(f"flow {made.id} (order 7) running, 1 of 4 jobs ended, 1 dead, for ")
    assert [line.split("  ")[0] for line in lines[3:5]] == ["charge", "label"]
    assert "CardError: no money" in lines[3]
    assert lines[5].startswith("└─ ship ")
    assert lines[5].endswith("after charge, label")
    assert lines[6].startswith("·  └─ tell ")
    assert run("flows", "show", made.id, "--json").json()["jobs"][2]["parents"] == made.job_ids[:2]


def test_a_fan_out_of_thousands_is_one_line(conn: Conn, run: Run) -> None:
    w = worker(conn)
    made = flow(conn, *({"task": "part"} for _ in range(3000)), {"task": "total", "after": list(range(3000))})
    jobs = claim(conn, w, 1000)
    db.execute(conn, db.complete(w, [(job.id, job.token) for job in jobs]))
    told = run("flows", "show", made.id).out
    assert "part × 3,000  2,000 pending, 1,000 completed" in told
    assert "└─ total " in told
    assert len(told.splitlines()) == 5


def test_flows_are_listed_the_newest_first_by_status(conn: Conn, run: Run) -> None:
    first, second = flow(conn, {}), flow(conn, {}, {}, name="second")
    assert run("flows", "cancel", first.id, "--yes").code == 0
    assert [each["id"] for each in run("flows", "list", "--json").json()] == [second.id, first.id]
    assert [each["id"] for each in run("flows", "list", "-s", "cancelled", "--json").json()] == [first.id]
    table = run("flows", "list", "-s", "running").out.splitlines()
    assert table[0].split() == ["ID", "STATUS", "ENDED", "DEAD", "AGE", "TOOK", "NAME"]
    assert "0 of 2" in table[1]
    assert run("flows", "list", "-n", "1").err.strip() == f"there may be more: --before {second.id}"
    assert run("flows", "list", "-s", "failed").err.strip() == "no flow matches"


def test_a_flow_is_cancelled_with_a_reason(conn: Conn, run: Run) -> None:
    made = flow(conn, {"name": "a"}, {"name": "b", "after": ["a"]})
    claim_one(conn, worker(conn))
    assert run("flows", "cancel", made.id, "--dry-run").out.strip() == f"would cancel 2 jobs of flow {made.id}"
    assert run("flows", "cancel", made.id).code == 2  # nobody has said yes
    told = run("flows", "cancel", made.id, "--yes", "--reason", "ordered twice")
    assert told.out.strip() == "1 job cancelled, 1 asked to stop"
    found = row(conn, "select status, cancel_reason from pgqueue.flow_status")
    assert found == {"status": "cancelling", "cancel_reason": "ordered twice"}


def test_a_flow_that_is_not_there(conn: Conn, run: Run) -> None:
    for command in ("show", "cancel"):
        told = run("flows", command, 7)
        assert (told.code, told.err.strip()) == (3, "Error: there is no flow 7, or it has been pruned")
