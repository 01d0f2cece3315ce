from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, KeyTaken, PayloadError
from tests.support import FIXED, Conn, claim, claim_one, enqueue, job, rows, value, worker

HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def put(conn: Conn, payloads: Sequence[Any], **options: Any) -> list[db.Enqueued]:
    return db.execute(conn, db.enqueue_many("q", "t", payloads, **options))


def jobs(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.job"))


def payloads_by_id(conn: Conn) -> dict[int, Any]:
    return {found["id"]: found["payload"] for found in rows(conn, "select id, payload from pgqueue.job")}


def lanes(conn: Conn) -> list[int]:
    return [found["priority"] for found in rows(conn, "select distinct priority from pgqueue.lane order by 1")]


def finish(conn: Conn, id: int) -> None:
    w = worker(conn)
    held = claim_one(conn, w)
    assert held.id == id
    assert db.execute(conn, db.complete(w, [(held.id, held.token)])) == []


# ------------------------------------------------------------------------------------------------ order


def test_ten_thousand_ids_come_in_the_order_of_the_payloads(conn: Conn) -> None:
    payloads = numbered(10_000)
    made = put(conn, payloads)
    stored = payloads_by_id(conn)
    assert [stored[one.id] for one in made] == payloads
    assert [one.id for one in made] == sorted(stored)
    assert all(one.created for one in made)


def test_ten_thousand_ids_come_in_the_order_of_the_payloads_whatever_the_order_of_the_keys(conn: Conn) -> None:
    payloads = numbered(10_000)
    keys = [f"k{n}" for n in range(10_000)]
    random.Random(7).shuffle(keys)  # noqa: S311
    made = put(conn, payloads, keys=keys)
    stored = {found["id"]: found for found in rows(conn, "select id, key, payload from pgqueue.job")}
    assert [(stored[one.id]["key"], stored[one.id]["payload"]) for one in made] == list(
        zip(keys, payloads, strict=True)
    )
    assert len({one.id for one in made}) == 10_000
    assert all(one.created for one in made)


def test_jobs_of_one_call_are_claimed_in_the_order_of_the_payloads(conn: Conn) -> None:
    made = put(conn, numbered(50))
    assert [claimed.id for claimed in claim(conn, worker(conn), 50)] == [one.id for one in made]


def test_an_empty_list_stores_nothing(conn: Conn) -> None:
    assert put(conn, []) == []
    assert put(conn, [], keys=[], priorities=[], run_ats=[]) == []
    assert jobs(conn) == 0


def test_one_payload_is_enough(conn: Conn) -> None:
    (made,) = put(conn, [{"a": 1}], keys=["k"])
    assert (made.created, job(conn, made.id)["payload"], job(conn, made.id)["key"]) == (True, {"a": 1}, "k")


# ------------------------------------------------------------------------------------ duplicates, no keys


def test_a_key_that_stands_twice_gives_one_job_created_by_the_first(conn: Conn) -> None:
    made = put(conn, numbered(5), keys=["b", "a", "b", "a", "b"])
    b, a = made[0].id, made[1].id
    assert made == [(b, True), (a, True), (b, False), (a, False), (b, False)]
    assert payloads_by_id(conn) == {b: {"n": 0}, a: {"n": 1}}


def test_with_replace_the_last_of_equal_keys_wins(conn: Conn) -> None:
    made = put(conn, numbered(3), keys=["k"] * 3, on_conflict="replace", priorities=[1, 2, 3])
    id = made[0].id
    assert made == [(id, True), (id, False), (id, False)]
    assert (jobs(conn), job(conn, id)["payload"], job(conn, id)["priority"]) == (1, {"n": 2}, 3)


def test_with_raise_a_key_that_stands_twice_is_refused_and_nothing_written(conn: Conn) -> None:
    with pytest.raises(KeyTaken, match="'k'"):
        put(conn, numbered(3), keys=["a", "k", "k"], on_conflict="raise")
    assert jobs(conn) == 0


def test_payloads_without_a_key_stand_between_those_with_one(conn: Conn) -> None:
    keys = [None, "b", None, "a", "b", None]
    made = put(conn, numbered(6), keys=keys, key_ttl=HOUR)
    assert [one.created for one in made] == [True, True, True, True, False, True]
    assert made[4].id == made[1].id
    stored = {found["id"]: found for found in rows(conn, "select id, key, key_ttl, payload from pgqueue.job")}
    assert len(stored) == 5
    for n in (0, 1, 2, 3, 5):
        found = stored[made[n].id]
        assert (found["key"], found["payload"]) == (keys[n], {"n": n})
        assert found["key_ttl"] == (None if keys[n] is None else HOUR)


def test_keys_that_are_all_null_are_no_keys(conn: Conn) -> None:
    made = put(conn, numbered(3), keys=[None, None, None])
    stored = payloads_by_id(conn)
    assert [stored[one.id] for one in made] == numbered(3)
    assert all(one.created for one in made)


# ------------------------------------------------------------------------------------------- taken keys


def test_skip_returns_live_jobs_unchanged_among_new_ones(conn: Conn) -> None:
    old = enqueue(conn, {"old": True}, key="b")
    before = job(conn, old)
    made = put(conn, numbered(3), keys=["c", "b", "a"], priority=9)
    assert [one.created for one in made] == [True, False, True]
    assert made[1].id == old
    assert job(conn, old) == before
    assert [job(conn, made[n].id)["payload"] for n in (0, 2)] == [{"n": 0}, {"n": 2}]
    assert jobs(conn) == 3


def test_the_same_call_twice_stores_its_jobs_once(conn: Conn) -> None:
    keys = [f"k{n}" for n in range(100)]
    first = put(conn, numbered(100), keys=keys)
    second = put(conn, numbered(100), keys=keys)
    assert second == [(one.id, False) for one in first]
    assert jobs(conn) == 100


@pytest.mark.parametrize("position", [0, 1, 2])
def test_raise_names_the_live_job_and_writes_nothing(conn: Conn, position: int) -> None:
    keys = ["a", "b", "c"]
    old = enqueue(conn, {"old": True}, key=keys[position])
    before = job(conn, old)
    with pytest.raises(KeyTaken, match=f"taken by job {old}"):
        put(conn, numbered(3), keys=keys, on_conflict="raise", priority=50)
    assert (jobs(conn), job(conn, old)) == (1, before)
    assert 50 not in lanes(conn)


def test_replace_changes_jobs_that_wait_and_creates_the_others(conn: Conn) -> None:
    old = enqueue(conn, {"old": True}, key="b", priority=1, tags=["old"])
    run_at = now() + HOUR
    made = put(
        conn,
        numbered(3),
        keys=["c", "b", "a"],
        on_conflict="replace",
        priorities=[5, 6, 7],
        run_ats=[None, run_at, None],
    )
    after = job(conn, old)
    assert [one.created for one in made] == [True, False, True]
    assert made[1].id == old
    assert (after["payload"], after["priority"], after["tags"]) == ({"n": 1}, 6, None)
    assert (after["status"], after["run_at"], after["rank_at"]) == ("scheduled", run_at, run_at)
    assert jobs(conn) == 3


def test_replace_gives_the_key_of_a_running_job_to_a_new_one(conn: Conn) -> None:
    old = enqueue(conn, {"old": True}, key="b")
    assert claim_one(conn, worker(conn)).id == old
    made = put(conn, numbered(2), keys=["a", "b"], on_conflict="replace")
    assert [one.created for one in made] == [True, True]
    assert (job(conn, old)["status"], job(conn, old)["key"], job(conn, old)["payload"]) == (
        "running",
        None,
        {"old": True},
    )
    assert (job(conn, made[1].id)["key"], job(conn, made[1].id)["payload"]) == ("b", {"n": 1})


def test_keys_are_taken_only_within_their_queue(conn: Conn) -> None:
    enqueue(conn, key="k", queue="other")
    assert put(conn, [{}], keys=["k"], on_conflict="raise")[0].created is True


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_a_key_held_by_its_ttl_gives_the_finished_job(conn: Conn, on_conflict: str) -> None:
    old = enqueue(conn, {"old": True}, key="b", key_ttl=HOUR)
    finish(conn, old)
    before = job(conn, old)
    made = put(conn, numbered(4), keys=["c", "b", "a", "b"], on_conflict=on_conflict)
    assert [one.created for one in made] == [True, False, True, False]
    assert (made[1].id, made[3].id) == (old, old)
    assert (jobs(conn), job(conn, old)) == (3, before)


def test_raise_names_the_finished_job_that_holds_a_key_and_writes_nothing(conn: Conn) -> None:
    old = enqueue(conn, key="b", key_ttl=HOUR)
    finish(conn, old)
    with pytest.raises(KeyTaken, match=f"held by finished job {old}"):
        put(conn, numbered(3), keys=["a", "b", "c"], on_conflict="raise")
    assert jobs(conn) == 1


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "replace"])
def test_a_key_is_free_after_its_ttl(conn: Conn, on_conflict: str) -> None:
    old = enqueue(conn, key="b", key_ttl=HOUR)
    finish(conn, old)
    conn.execute("update pgqueue.key_hold set held_until = held_until - interval '61 minutes'")
    made = put(conn, numbered(2), keys=["b", "a"], on_conflict=on_conflict)
    assert [one.created for one in made] == [True, True]
    assert old not in {one.id for one in made}


def test_the_ttl_of_a_call_holds_each_of_its_keys(conn: Conn) -> None:
    made = put(conn, numbered(2), keys=["b", "a"], key_ttl=HOUR)
    w = worker(conn)
    leases = [(claimed.id, claimed.token) for claimed in claim(conn, w, 2)]
    assert db.execute(conn, db.complete(w, leases)) == []
    assert put(conn, numbered(2), keys=["b", "a"]) == [(one.id, False) for one in made]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_keys_work_under_a_fixed_snapshot(conn: Conn, isolation: str) -> None:
    held = enqueue(conn, key="held", key_ttl=HOUR)
    finish(conn, held)
    live = enqueue(conn, key="live")
    with conn.transaction():
        conn.execute(f"set transaction isolation level {isolation}".encode())
        made = put(conn, numbered(5), keys=["new", "held", "live", "new", None])
    assert [one.created for one in made] == [True, False, False, False, True]
    assert (made[1].id, made[2].id, made[3].id) == (held, live, made[0].id)
    assert jobs(conn) == 4


# ------------------------------------------------------------------------------------ priorities, run_ats


@pytest.mark.parametrize("keys", [None, ["d", "c", "b", "a"]])
def test_each_job_has_its_own_priority_and_lane(conn: Conn, keys: list[str] | None) -> None:
    made = put(conn, numbered(4), keys=keys, priorities=[-100, 3, 100, 3], priority=50)
    assert [job(conn, one.id)["priority"] for one in made] == [-100, 3, 100, 3]
    assert lanes(conn) == [-100, 3, 100]
    assert {claimed.id for claimed in claim(conn, worker(conn), 4)} == {one.id for one in made}


def test_one_priority_holds_for_all(conn: Conn) -> None:
    made = put(conn, numbered(3), priority=-7)
    assert {job(conn, one.id)["priority"] for one in made} == {-7}
    assert lanes(conn) == [-7]


@pytest.mark.parametrize("keys", ["null", "array['b', 'a']"])
def test_a_null_priority_means_the_priority_of_the_call(conn: Conn, keys: str) -> None:
    made = rows(
        conn,
        "select * from pgqueue.enqueue_many('q', 't', array['{}', '{}']::jsonb[], priorities => array[null, 4],"
        f" priority => 8, keys => {keys})",
    )
    assert [job(conn, one["id"])["priority"] for one in made] == [8, 4]
    assert lanes(conn) == [4, 8]


@pytest.mark.parametrize("keys", [None, ["c", "b", "a"], [None, "b", None]])
def test_each_job_has_its_own_time(conn: Conn, keys: list[str | None] | None) -> None:
    past, future = now() - HOUR, now() + HOUR
    made = [job(conn, one.id) for one in put(conn, numbered(3), keys=keys, run_ats=[future, past, None])]
    assert [one["status"] for one in made] == ["scheduled", "pending", "pending"]
    assert [one["run_at"] for one in made] == [future, past, made[2]["enqueued_at"]]
    assert made[0]["rank_at"] == future
    # Microseconds apart, in the order of the call.
    assert all(timedelta(0) <= one["rank_at"] - one["enqueued_at"] < timedelta(milliseconds=1) for one in made[1:])


@pytest.mark.parametrize("keys", [None, ["b", "a"]])
def test_a_null_time_means_the_time_of_the_call(conn: Conn, keys: list[str] | None) -> None:
    one_hour, two_hours = now() + HOUR, now() + 2 * HOUR
    made = put(conn, numbered(2), keys=keys, run_ats=[None, two_hours], run_at=one_hour)
    assert [job(conn, one.id)["run_at"] for one in made] == [one_hour, two_hours]
    assert {job(conn, one.id)["status"] for one in made} == {"scheduled"}


@pytest.mark.parametrize("keys", [None, ["b", "a"], [None, "a"]])
def test_options_are_stored_on_every_job(conn: Conn, keys: list[str | None] | None) -> None:
    run_at, expires_at = now() + HOUR, now() + 2 * HOUR
    options: dict[str, Any] = {
        "priority": 5,
        "run_at": run_at,
        "expires_at": expires_at,
        "max_attempts": 7,
        "retry": FIXED,
        "timeout_seconds": 9,
        "tags": ["red", "große"],
        "meta": {"trace": "1"},
        "retain_for": 3 * HOUR,
    }
    made = put(conn, numbered(2), keys=keys, **options)
    expected = options | {"queue": "q", "task": "t", "rank_at": run_at, "status": "scheduled", "attempt": 0, "token": 0}
    for n, one in enumerate(made):
        stored = job(conn, one.id)
        assert {name: stored[name] for name in expected} == expected
        assert (stored["payload"], stored["key"]) == ({"n": n}, None if keys is None else keys[n])


def test_jobs_without_options_leave_them_to_the_queue(conn: Conn) -> None:
    unset = ("key", "key_ttl", "expires_at", "max_attempts", "retry", "timeout_seconds", "tags", "meta", "retain_for")
    for one in put(conn, numbered(2)):
        stored = job(conn, one.id)
        assert {name: stored[name] for name in unset} == dict.fromkeys(unset)
        assert (stored["status"], stored["priority"]) == ("pending", 0)


# ---------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(
    ("name", "item"),
    [("keys", lambda n: f"k{n}"), ("priorities", lambda n: n), ("run_ats", lambda _: now())],
    ids=["keys", "priorities", "run_ats"],
)
def test_arrays_of_another_length_are_refused(conn: Conn, name: str, item: Callable[[int], Any], count: int) -> None:
    with pytest.raises(InvalidArgument, match="2 payloads, but another number"):
        put(conn, numbered(2), **{name: [item(n) for n in range(count)]})
    assert jobs(conn) == 0


@pytest.mark.parametrize("bad", ["[]", "1", "null", "{big}", "{deep}"])
@pytest.mark.parametrize("keys", ["null", "array['a', 'b', 'c']"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_bad_payload_among_good_ones_refuses_all(conn: Conn, bad: str, keys: str, position: int) -> None:
    text = {"{big}": '{"a": "' + "x" * 300_000 + '"}', "{deep}": '{"a":' + "[" * 64 + "]" * 64 + "}"}.get(bad, bad)
    payloads = ['{"n": 1}'] * 3
    payloads[position] = text
    call = db.Call(
        f"select * from pgqueue.enqueue_many('q', 't', $1::text[]::jsonb[], keys => {keys})",
        [payloads],
        lambda found: found,
    )
    with pytest.raises(PayloadError):
        db.execute(conn, call)
    assert jobs(conn) == 0


def test_one_bad_payload_among_good_ones_is_refused_in_python(conn: Conn) -> None:
    with pytest.raises(PayloadError, match="NUL"):
        put(conn, [{"a": 1}, {"a": "\0"}, {"a": 2}])
    assert jobs(conn) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"keys": ["a", ""]},
        {"keys": ["a", "k" * 513]},
        {"priorities": [0, 101]},
        {"run_ats": [None, datetime(9999, 12, 31, tzinfo=UTC)]},
        {"run_ats": [None, datetime(1969, 1, 1, tzinfo=UTC)]},
        {"run_ats": [None, datetime(2030, 1, 1)]},
        {"run_ats": [None, now() + 2 * HOUR], "expires_at": now() + HOUR},
    ],
    ids=["empty key", "long key", "priority", "year 9999", "year 1969", "naive", "expires before it runs"],
)
def test_one_bad_item_of_an_array_refuses_all(conn: Conn, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        put(conn, numbered(2), **options)
    assert jobs(conn) == 0


def test_options_are_checked_even_when_there_is_nothing_to_store(conn: Conn) -> None:
    with pytest.raises(InvalidArgument):
        put(conn, [], priority=101)
    with pytest.raises(InvalidArgument):
        db.execute(conn, db.enqueue_many("", "t", []))


# A second axis or another lower bound would shift what a[i] means.
@pytest.mark.parametrize("keys", ["array['k', 'k']", "array['taken', 'k']", "array['k', 'taken']"])
def test_arrays_that_do_not_count_from_one_mean_the_same_or_are_refused(conn: Conn, keys: str) -> None:
    taken = enqueue(conn, {"old": True}, key="taken")
    names = value(conn, f"select {keys}")
    call = db.Call(
        "select id, created from pgqueue.enqueue_many('q', 't', ('[0:1]=' || array[$1, $2]::jsonb[]::text)::jsonb[],"
        " keys => ('[0:1]=' || $3::text[]::text)::text[])",
        ['{"n": 0}', '{"n": 1}', names],
        lambda found: [db.Enqueued(*one) for one in found],
    )
    try:
        made = db.execute(conn, call)
    except InvalidArgument:
        assert jobs(conn) == 1
        return
    stored = {found["key"]: found for found in rows(conn, "select id, key, payload from pgqueue.job")}
    assert [one.id for one in made] == [stored[name]["id"] for name in names]
    assert (stored["taken"]["id"], stored["taken"]["payload"]) == (taken, {"old": True})
    assert stored["k"]["payload"] == {"n": names.index("k")}


@pytest.mark.parametrize(
    "arguments",
    [
        "payloads => null",
        "payloads => array[['{}', '{}']]::jsonb[]",
        "payloads => array['{}', '{}']::jsonb[], keys => array[['a', 'a']]",
        "payloads => array['{}', '{}']::jsonb[], priorities => array[[1, 2]], keys => array['a', 'a']",
        "payloads => array['{}', '{}']::jsonb[], run_ats => array[[now(), now()]], keys => array['a', 'a']",
    ],
)
def test_arrays_of_arrays_are_refused(conn: Conn, arguments: str) -> None:
    call = db.Call(
        f"select * from pgqueue.enqueue_many(queue => 'q', task => 't', {arguments})", [], lambda found: found
    )
    with pytest.raises(InvalidArgument):
        db.execute(conn, call)
    assert jobs(conn) == 0


# ------------------------------------------------------------------------------------------ transactions


@pytest.mark.parametrize("keys", [None, ["a", "b", None]])
def test_a_rollback_leaves_nothing(conn: Conn, keys: list[str | None] | None) -> None:
    with conn.transaction(force_rollback=True):
        put(conn, numbered(3), keys=keys, priority=9)
        assert jobs(conn) == 3
    assert (jobs(conn), lanes(conn)) == (0, [])
    assert [one.created for one in put(conn, numbered(3), keys=keys)] == [True, True, True]


def test_a_rollback_undoes_a_replace(conn: Conn) -> None:
    old = enqueue(conn, {"old": True}, key="k")
    before = job(conn, old)
    with conn.transaction(force_rollback=True):
        put(conn, numbered(2), keys=["k", "l"], on_conflict="replace")
    assert (jobs(conn), job(conn, old)) == (1, before)


def test_jobs_are_invisible_to_others_until_their_transaction_commits(conn: Conn, connect: Callable[..., Conn]) -> None:
    other, w = connect(), worker(conn)
    with conn.transaction():
        made = put(conn, numbered(3))
        assert claim(other, w, 3) == []
    assert [claimed.id for claimed in claim(other, w, 3)] == [one.id for one in made]


@pytest.mark.parametrize("keys", [None, ["a", "b"]])
def test_durable_commit_is_forced_on_until_the_end_of_the_callers_transaction(
    conn: Conn, keys: list[str] | None
) -> None:
    conn.execute("set synchronous_commit = off")
    with conn.transaction():
        put(conn, numbered(2), keys=keys)
        assert value(conn, "show synchronous_commit") == "on"
    assert value(conn, "show synchronous_commit") == "off"
