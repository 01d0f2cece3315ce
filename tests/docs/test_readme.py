"""What the documents show is run as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pgqueue import database
from tests.support import Conn, claim_one, enqueue, value, worker
from tests.worker.running import run_burst

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def block_with(text: str) -> str:
    (found,) = [block for block in blocks("README.md", "python") if text in block]
    return found


QUERIES = [
    query
    for block in blocks("sql/README.md", "sql")
    for query in re.split(r"^-- \d+\. ", block, flags=re.MULTILINE)
    if query
]


def test_there_are_ten_useful_queries() -> None:
    assert len(QUERIES) == 10


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query).split("\n")[0])
def test_the_useful_query_runs(conn: Conn, query: str) -> None:
    worker_id = worker(conn)
    conn.execute("alter sequence pgqueue.job_id_seq restart with 4711")
    id = enqueue(conn, task="send_receipt")
    token = claim_one(conn, worker_id).token
    database.execute(conn, database.fail(worker_id, [database.Failure(id, token, "boom", fatal=True)]))
    statement = query.split("\n", 1)[1]
    assert conn.execute(statement).fetchall() or "running_job" in statement or "pg_stat_activity" in statement


def test_the_five_minutes_go_as_they_stand_there(tmp_path: Path) -> None:
    shop = block_with("# shop.py")
    (commands,) = blocks("README.md", "sh")
    (tmp_path / "shop.py").write_text(shop)
    data = tempfile.mkdtemp(prefix="pgqueue-readme-")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "DATABASE"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PGQUEUE_DATA_DIR": f"{data}/pg"}
    Path(data).chmod(0o755)
    try:
        done = subprocess.run(
            ["/bin/sh", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "sending the receipt of order 7" in done.stdout
        assert re.search(r'send_receipt \| completed +\| +1 \| "receipt-7.pdf"', done.stdout), done.stdout
    finally:
        subprocess.run(["pgqueue", "pg", "stop"], env=environment, check=True, capture_output=True)
        shutil.rmtree(data, ignore_errors=True)


def test_the_plain_sql_enqueues(conn: Conn) -> None:
    (statement,) = blocks("README.md", "sql")
    assert conn.execute(statement).fetchone() == (value(conn, "select max(id) from pgqueue.job"), True)


def test_the_recurring_jobs_are_declared_as_they_stand_there() -> None:
    names: dict[str, Any] = {}
    exec(block_with("@app.recurring"), names)  # noqa: S102
    declared, faults = names["app"].recurring.declared()
    assert (set(declared), faults) == ({"report", "report-us"}, {})


async def test_the_handlers_do_what_their_comments_say(conn: Conn, dsn: str) -> None:
    conn.execute("drop table if exists booking")
    conn.execute("create table booking (order_id int)")
    handlers = block_with("def charge")
    names: dict[str, Any] = {}
    exec(handlers.replace("App()", f"App({dsn!r})"), names)  # noqa: S102
    app = names["app"]
    file = await names["import_file"].aenqueue("orders.csv")
    fatal, later = await names["charge"].aenqueue(-1), await names["charge"].aenqueue(1)
    await run_burst(app)
    assert await file.aresult(5) == 3
    assert [await handle.astatus() for handle in (fatal, later)] == ["dead", "scheduled"]
    assert conn.execute("select order_id from booking").fetchall() == [(3,)]
    await app.aclose()


def test_the_limits_are_set_as_they_stand_there(conn: Conn, dsn: str) -> None:
    names: dict[str, Any] = {"tenant": 7, "path": "orders.csv"}
    conn.execute("create table if not exists booking (order_id int)")
    exec(block_with("def charge").replace("App()", f"App({dsn!r})"), names)  # noqa: S102
    exec(block_with("max_running"), names)  # noqa: S102
    assert value(conn, "select count(*) from pgqueue.queue where gated") == 3
    assert value(conn, "select group_key from pgqueue.job") == "tenant:7"
    names["app"].close()


async def test_the_flows_do_what_their_names_say(conn: Conn, dsn: str) -> None:
    names: dict[str, Any] = {}
    exec(block_with("chain(").replace("App()", f"App({dsn!r})"), names)  # noqa: S102
    await run_burst(names["app"])
    assert value(conn, "select count(*) from pgqueue.job where status = 'completed'") == 9
    assert value(conn, "select result from pgqueue.job where task = 'announce'") == "2 files published"
    assert value(conn, "select count(*) from pgqueue.flow_status where status = 'completed'") == 3
    await names["app"].aclose()
