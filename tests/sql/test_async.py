from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection, errors
from psycopg.pq import TransactionStatus

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, JobNotFound, KeyTaken, PayloadError, SchemaError, WorkerLost
from tests.support import Conn, job, value

AsyncConn = AsyncConnection[Any]


@pytest.fixture
async def aconn(conn: Conn, dsn: str) -> AsyncIterator[AsyncConn]:
    """An async autocommit connection to an empty queue."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


def jobs(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.job"))


async def aworker(aconn: AsyncConn) -> int:
    return await db.aexecute(aconn, db.register_worker("test", ["q"]))


async def test_a_job_is_enqueued_claimed_and_completed(conn: Conn, aconn: AsyncConn) -> None:
    payload = {"a": [1, "ü", None, {"b": 1.5}]}
    made = await db.aexecute(aconn, db.enqueue("q", "t", payload, key="k", meta={"trace": "1"}))
    w = await aworker(aconn)
    (held,) = await db.aexecute(aconn, db.claim(w, ["q"], 10))
    assert (made.created, held.id, held.task, held.payload, held.meta) == (True, made.id, "t", payload, {"trace": "1"})
    assert job(conn, made.id)["status"] == "running"
    assert await db.aexecute(aconn, db.complete(w, [(held.id, held.token)], [{"sent": True}])) == []
    finished = job(conn, made.id)
    assert (finished["status"], finished["result"]) == ("completed", {"sent": True})
    assert await db.aexecute(aconn, db.claim(w, ["q"], 10)) == []


async def test_many_jobs_are_enqueued_in_order(conn: Conn, aconn: AsyncConn) -> None:
    payloads = [{"n": n} for n in range(100)]
    made = await db.aexecute(aconn, db.enqueue_many("q", "t", payloads))
    claimed = await db.aexecute(aconn, db.claim(await aworker(aconn), ["q"], 100))
    assert [one.id for one in claimed] == [one.id for one in made]
    assert [one.payload for one in claimed] == payloads


async def test_completing_and_claiming_go_in_one_call(conn: Conn, aconn: AsyncConn) -> None:
    first, second = await db.aexecute(aconn, db.enqueue_many("q", "t", [{"n": 1}, {"n": 2}]))
    w = await aworker(aconn)
    (held,) = await db.aexecute(aconn, db.claim(w, ["q"], 1))
    answer = await db.aexecute(aconn, db.complete_and_claim(w, [(held.id, held.token)], None, ["q"], 1))
    assert ([one.id for one in answer.jobs], answer.refused) == ([second.id], [])
    assert job(conn, first.id)["status"] == "completed"


async def test_a_wrong_argument_is_a_typed_error(conn: Conn, aconn: AsyncConn) -> None:
    with pytest.raises(InvalidArgument, match="bad queue name"):
        await db.aexecute(aconn, db.enqueue("no blanks", "t"))
    with pytest.raises(PayloadError, match="bytes: at most"):
        await db.aexecute(aconn, db.enqueue("q", "t", {"a": "x" * 300_000}))
    with pytest.raises(JobNotFound):
        await db.aexecute(aconn, db.cancel(987654321))
    with pytest.raises(WorkerLost):
        await db.aexecute(aconn, db.claim(987654321, ["q"], 1))
    assert jobs(conn) == 0


async def test_a_taken_key_is_a_typed_error(conn: Conn, aconn: AsyncConn) -> None:
    made = await db.aexecute(aconn, db.enqueue("q", "t", key="k", key_ttl=timedelta(hours=1)))
    with pytest.raises(KeyTaken, match=f"taken by job {made.id}"):
        await db.aexecute(aconn, db.enqueue("q", "t", key="k", on_conflict="raise"))
    assert await db.aexecute(aconn, db.enqueue("q", "t", key="k")) == (made.id, False)
    assert jobs(conn) == 1


async def test_errors_of_postgres_itself_pass_untouched(aconn: AsyncConn) -> None:
    with pytest.raises(errors.DivisionByZero):
        await db.aexecute(aconn, db.Call("select 1 / 0", [], lambda found: found))


async def test_a_missing_function_says_that_the_schema_does_not_fit(aconn: AsyncConn) -> None:
    with pytest.raises(SchemaError, match="pgqueue migrate"):
        await db.aexecute(aconn, db.Call("select pgqueue.no_such_function()", [], lambda found: found))


async def test_a_rollback_leaves_no_job(conn: Conn, aconn: AsyncConn) -> None:
    async with aconn.transaction(force_rollback=True):
        await db.aexecute(aconn, db.enqueue("q", "t", key="k"))
        await db.aexecute(aconn, db.enqueue_many("q", "t", [{}, {}]))
        assert jobs(conn) == 0
    assert jobs(conn) == 0
    assert (await db.aexecute(aconn, db.enqueue("q", "t", key="k"))).created is True


async def test_an_exception_of_the_caller_takes_the_job_with_it(conn: Conn, aconn: AsyncConn) -> None:
    async def order() -> None:
        async with aconn.transaction():
            await db.aexecute(aconn, db.enqueue("q", "t"))
            raise LookupError

    with pytest.raises(LookupError):
        await order()
    assert jobs(conn) == 0


async def test_a_committed_transaction_keeps_its_job(conn: Conn, aconn: AsyncConn) -> None:
    async with aconn.transaction():
        made = await db.aexecute(aconn, db.enqueue("q", "t"))
        assert jobs(conn) == 0
    assert job(conn, made.id)["status"] == "pending"


async def test_without_autocommit_the_caller_decides(conn: Conn, dsn: str) -> None:
    async with await AsyncConnection.connect(dsn) as aconn:
        await db.aexecute(aconn, db.enqueue("q", "t"))
        await aconn.rollback()
        assert jobs(conn) == 0
        await db.aexecute(aconn, db.enqueue("q", "t"))
        await aconn.commit()
        assert jobs(conn) == 1


async def test_in_autocommit_the_connection_stays_usable_after_a_typed_error(conn: Conn, aconn: AsyncConn) -> None:
    for _ in range(3):
        with pytest.raises(InvalidArgument):
            await db.aexecute(aconn, db.enqueue("q", "t", priority=101))
        assert aconn.info.transaction_status == TransactionStatus.IDLE
    assert (await db.aexecute(aconn, db.enqueue("q", "t"))).created is True
    assert jobs(conn) == 1


async def test_an_argument_refused_by_python_does_not_end_the_transaction(conn: Conn, aconn: AsyncConn) -> None:
    async with aconn.transaction():
        with pytest.raises(PayloadError):
            await db.aexecute(aconn, db.enqueue("q", "t", {"a": "\0"}))
        await db.aexecute(aconn, db.enqueue("q", "t"))
    assert jobs(conn) == 1


async def test_a_savepoint_keeps_the_transaction_alive_after_a_typed_error(conn: Conn, aconn: AsyncConn) -> None:
    async with aconn.transaction():
        await db.aexecute(aconn, db.enqueue("q", "t", {"n": 1}, key="k"))
        with pytest.raises(KeyTaken):
            async with aconn.transaction():
                await db.aexecute(aconn, db.enqueue("q", "t", {"n": 2}, key="k", on_conflict="raise"))
        await db.aexecute(aconn, db.enqueue("q", "t", {"n": 3}))
    assert jobs(conn) == 2
