"""What the queue does not accept: one typed error for each case, and nothing is stored."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument, PayloadError
from tests.support import Conn, enqueue, value

HOUR = timedelta(hours=1)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
NAIVE = datetime(2100, 1, 1)
INJECTION = "'; drop table x; --"


def jobs(conn: Conn) -> int:
    return int(value(conn, "select count(*) from pgqueue.job"))


def nested(depth: int) -> dict[str, Any]:
    """Lists in a payload: `depth` levels, the payload included."""
    inner: list[Any] = []
    for _ in range(depth - 2):
        inner = [inner]
    return {"a": inner}


def nested_objects(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth - 1):
        inner = {"a": inner}
    return inner


def name_of(case: Any) -> str:
    return ascii(case)[:60]


# --------------------------------------------------------------------------------------------- payloads

BAD_PAYLOADS: dict[str, Any] = {
    "NUL in a value": {"a": "x\0y"},
    "NUL in a key": {"x\0y": 1},
    "NUL deep inside": {"a": [{"b": ["\0"]}]},
    "NaN": {"a": float("nan")},
    "Infinity": {"a": [float("inf")]},
    "-Infinity": {"a": {"b": float("-inf")}},
    "high surrogate in a value": {"a": "\ud800"},
    "low surrogate in a value": {"a": ["x\udfff"]},
    "lone surrogate in a key": {"\udc80": 1},
    "65 levels of lists": nested(65),
    "65 levels of objects": nested_objects(65),
    "20,000 levels of lists": nested(20_000),
    "20,000 levels of objects": nested_objects(20_000),
    "300 kB": {"a": "x" * 300_000},
    "300 kB of keys": {f"{n:0300}": n for n in range(1000)},
    "a list": [],
    "a list of pairs": [("a", 1)],
    "a text": "{}",
    "bytes": b"{}",
    "a number": 1,
    "false": False,
    "a set inside": {"a": {1}},
    "bytes inside": {"a": b"x"},
    "a datetime inside": {"a": FUTURE},
    "a key that is a number": {1: "a"},
    "a key that is None": {None: "a"},
}


@pytest.mark.parametrize("case", BAD_PAYLOADS)
def test_a_bad_payload_is_a_payload_error(conn: Conn, case: str) -> None:
    with pytest.raises(PayloadError):
        db.execute(conn, db.enqueue("q", "t", BAD_PAYLOADS[case]))
    with pytest.raises(PayloadError):
        db.execute(conn, db.enqueue_many("q", "t", [{"good": 1}, BAD_PAYLOADS[case]]))
    assert jobs(conn) == 0


def test_a_missing_payload_among_many_is_a_payload_error(conn: Conn) -> None:
    payloads: list[Any] = [{}, None]
    with pytest.raises(PayloadError):
        db.execute(conn, db.enqueue_many("q", "t", payloads))
    assert jobs(conn) == 0


@pytest.mark.parametrize("make", [nested, nested_objects])
def test_64_levels_are_not_too_deep(conn: Conn, make: Any) -> None:
    enqueue(conn, make(64))
    assert value(conn, "select payload from pgqueue.job") == make(64)


BAD_PAYLOADS_IN_SQL: dict[str, str] = {
    "SQL null": "null",
    "JSON null": "'null'",
    "a list": "'[]'",
    "a list of objects": "'[{}]'",
    "a text": "'\"a\"'",
    "a number": "'1'",
    "true": "'true'",
    "65 levels of lists": f"'{json.dumps(nested(65))}'",
    "65 levels of objects": f"'{json.dumps(nested_objects(65))}'",
    "500 levels": f"'{json.dumps(nested(500))}'",
    "65 levels behind a wide one": f"'{json.dumps({'w': [1] * 500, 'z': nested(64)})}'",
    "300 kB": "jsonb_build_object('a', repeat('x', 300000))",
    "300 kB of numbers": "jsonb_build_object('a', array(select generate_series(1, 40000)))",
}


@pytest.mark.parametrize("case", BAD_PAYLOADS_IN_SQL)
def test_a_bad_payload_is_pq006_in_plain_sql(conn: Conn, case: str) -> None:
    payload = BAD_PAYLOADS_IN_SQL[case]
    for statement in (
        f"select * from pgqueue.enqueue('q', 't', {payload})",
        f"select * from pgqueue.enqueue_many('q', 't', array['{{}}', {payload}]::jsonb[])",
        f"select * from pgqueue.enqueue_many('q', 't', array['{{}}', {payload}]::jsonb[], keys => array['a', 'b'])",
    ):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(statement.encode())
        assert caught.value.sqlstate == "PQ006"
    assert jobs(conn) == 0


# ------------------------------------------------------------------------------------------------ names

BAD_NAMES: list[Any] = [
    "",
    "q" * 129,
    "grün",
    "очередь",
    "キュー",
    "a b",
    " q",
    "q ",
    "q\n",
    "q\t",
    "it's",
    'say "q"',
    "`q`",
    "a/b",
    "a,b",
    "a;b",
    "%s",
    "$1",
    "{q}",
    "\\",
    "\u200b",
    INJECTION,
    "q\0",
    "\ud800",
    None,
    7,
    b"q",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=name_of)
@pytest.mark.parametrize("which", ["queue", "task"])
def test_a_bad_name_is_an_invalid_argument(conn: Conn, which: str, name: Any) -> None:
    names = {"queue": "q", "task": "t", which: name}
    with pytest.raises(InvalidArgument):
        db.execute(conn, db.enqueue(**names))
    with pytest.raises(InvalidArgument):
        db.execute(conn, db.enqueue_many(**names, payloads=[{}]))
    assert jobs(conn) == 0


SQL_NAMES = [name for name in BAD_NAMES if name is None or (isinstance(name, str) and name not in ("q\0", "\ud800"))]


@pytest.mark.parametrize("name", SQL_NAMES, ids=name_of)
@pytest.mark.parametrize("which", ["queue", "task"])
def test_a_bad_name_is_pq001_in_plain_sql(conn: Conn, which: str, name: str | None) -> None:
    names = {"queue": "q", "task": "t", which: name}
    for statement in (
        "select * from pgqueue.enqueue(%(queue)s, %(task)s)",
        "select * from pgqueue.enqueue_many(%(queue)s, %(task)s, array['{}']::jsonb[])",
    ):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(statement, names)
        assert caught.value.sqlstate == "PQ001"
    assert jobs(conn) == 0


# ---------------------------------------------------------------------------------------------- options

BAD_RETRIES: list[Any] = [
    [],
    "fixed",
    5,
    {},
    {"type": None},
    {"type": "fibonacci"},
    {"type": "Fixed", "delay": 1},
    {"delay": 5},
    {"type": "fixed"},
    {"type": "fixed", "delay": "5"},
    {"type": "fixed", "delay": None},
    {"type": "fixed", "delay": -1},
    {"type": "fixed", "delay": 31_536_001},
    {"type": "fixed", "delay": 1e-9},
    {"type": "fixed", "delay": 5, "base": 1},
    {"type": "fixed", "delay": 5, "unknown": 1},
    {"type": "fixed", "delay": 5, "cap": -1},
    {"type": "fixed", "delay": 5, "cap": "1 day"},
    {"type": "fixed", "delay": 5, "jitter": "some"},
    {"type": "fixed", "delay": 5, "jitter": 101},
    {"type": "fixed", "delay": 5, "jitter": -1},
    {"type": "fixed", "delay": 5, "jitter": True},
    {"type": "fixed", "delay": 5, "jitter": None},
    {"type": "linear", "base": 1, "step": -1},
    {"type": "linear", "delay": 1},
    {"type": "exponential", "base": [1]},
    {"type": "exponential", "base": 1, "factor": 0.5},
    {"type": "exponential", "base": 1, "factor": 0},
    {"type": "exponential", "base": 10**400},
    {"type": "polynomial", "base": 1, "power": -2},
    {"type": "polynomial", "base": 1, "power": {}},
    {"type": "list"},
    {"type": "list", "delays": []},
    {"type": "list", "delays": [0] * 101},
    {"type": "list", "delays": [1, "2"]},
    {"type": "list", "delays": [1, -2]},
    {"type": "list", "delays": [None]},
    {"type": "list", "delays": [[1]]},
    {"type": "list", "delays": 5},
    {"type": "list", "delays": {"0": 1}},
    {"type": ["fixed"], "delay": 5},
]

PYTHON_ONLY: list[dict[str, Any]] = [
    {"run_at": NAIVE},
    {"expires_at": NAIVE},
    {"run_at": "2100-01-01"},
    {"run_at": date(2100, 1, 1)},
    {"expires_at": 4_000_000_000},
    {"priority": 2**31},
    {"priority": -(2**63)},
    {"priority": 10**30},
    {"priority": "1"},
    {"priority": 1.0},
    {"priority": True},
    {"max_attempts": 2**31},
    {"max_attempts": "3"},
    {"max_attempts": 3.5},
    {"timeout_seconds": 2**31},
    {"timeout_seconds": 0.5},
    {"timeout_seconds": HOUR},
    {"on_conflict": "skip\0"},
    {"on_conflict": 1},
    {"key": "k\0"},
    {"key": "\ud800"},
    {"key": 5},
    {"key": b"k"},
    {"key": "k", "key_ttl": 60},
    {"key": "k", "key_ttl": "soon"},
    {"retain_for": 60},
    {"retain_for": "soon"},
    {"tags": "red"},
    {"tags": 5},
    {"tags": ["a", 5]},
    {"tags": ["a\0"]},
    {"tags": ["\udfff"]},
    {"meta": {"a": "\0"}},
    {"meta": {"\ud800": 1}},
    {"meta": {"a": float("nan")}},
    {"meta": {"a": FUTURE}},
    {"meta": "{}"},
    {"retry": {"type": "fixed", "delay": float("inf")}},
    {"retry": {"type": "fixed", "delay": float("nan")}},
    {"retry": {"type": "\0"}},
    {"retry": {"type": "fixed", "delay": 1, "\ud800": 1}},
]

BOTH: list[dict[str, Any]] = [
    {"priority": 101},
    {"priority": -101},
    {"priority": 2**31 - 1},
    {"priority": -(2**31)},
    {"priority": None},
    {"on_conflict": "ignore"},
    {"on_conflict": "SKIP"},
    {"on_conflict": ""},
    {"on_conflict": None},
    {"key": ""},
    {"key": "k" * 513},
    {"key": "ü" * 257},
    {"key": "k", "key_ttl": -HOUR},
    {"key": "k", "key_ttl": timedelta(microseconds=-1)},
    {"key": "k", "key_ttl": timedelta(days=11 * 365)},
    {"key": "k", "key_ttl": timedelta.max},
    {"key_ttl": HOUR},
    {"retain_for": -HOUR},
    {"retain_for": timedelta(days=11 * 365)},
    {"retain_for": timedelta.max},
    {"run_at": datetime.min.replace(tzinfo=UTC)},
    {"run_at": datetime(1970, 1, 1, 23, 59, 59, tzinfo=UTC)},
    {"run_at": datetime(9999, 12, 30, 0, 0, 1, tzinfo=UTC)},
    {"run_at": datetime.max.replace(tzinfo=timezone(-12 * HOUR))},
    {"expires_at": datetime(1970, 1, 1, tzinfo=UTC)},
    {"expires_at": datetime(2000, 1, 1, tzinfo=UTC)},
    {"expires_at": datetime(9999, 12, 31, tzinfo=UTC)},
    {"expires_at": FUTURE, "run_at": FUTURE},
    {"expires_at": FUTURE, "run_at": FUTURE + HOUR},
    {"max_attempts": 0},
    {"max_attempts": -1},
    {"max_attempts": 32001},
    {"timeout_seconds": 0},
    {"timeout_seconds": -5},
    {"timeout_seconds": 31_536_001},
    {"tags": ["x"] * 33},
    {"tags": ["a", ""]},
    {"tags": ["x" * 129]},
    {"tags": ["a\nb"]},
    {"tags": ["a\tb"]},
    {"tags": ["\x1b[31m"]},
    {"tags": ["\x7f"]},
    {"tags": ["a", None]},
    {"meta": []},
    {"meta": [1]},
    {"meta": "text"},
    {"meta": 1},
    {"meta": {"m": "x" * 17_000}},
    *({"retry": policy} for policy in BAD_RETRIES),
]


def for_many(options: dict[str, Any]) -> dict[str, Any]:
    """The same mistake in enqueue_many, where keys come in an array."""
    return {"keys" if name == "key" else name: [given] if name == "key" else given for name, given in options.items()}


@pytest.mark.parametrize("options", PYTHON_ONLY + BOTH, ids=name_of)
def test_a_bad_option_is_an_invalid_argument(conn: Conn, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        db.execute(conn, db.enqueue("q", "t", {}, **options))
    assert jobs(conn) == 0


@pytest.mark.parametrize("options", PYTHON_ONLY + BOTH, ids=name_of)
def test_a_bad_option_of_many_is_an_invalid_argument(conn: Conn, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        db.execute(conn, db.enqueue_many("q", "t", [{}], **for_many(options)))
    assert jobs(conn) == 0


BAD_ARRAYS: list[dict[str, Any]] = [
    {"keys": "k"},
    {"keys": [5]},
    {"keys": ["k\0"]},
    {"priorities": ["1"]},
    {"priorities": [1.5]},
    {"priorities": [2**31]},
    {"priorities": [-101]},
    {"run_ats": [NAIVE]},
    {"run_ats": ["2100-01-01"]},
    {"run_ats": [datetime.max.replace(tzinfo=UTC)]},
    {"run_ats": [datetime.min.replace(tzinfo=UTC)]},
    {"run_ats": [FUTURE], "expires_at": FUTURE},
]


@pytest.mark.parametrize("options", BAD_ARRAYS, ids=name_of)
def test_a_bad_item_of_an_array_is_an_invalid_argument(conn: Conn, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        db.execute(conn, db.enqueue_many("q", "t", [{}], **options))
    assert jobs(conn) == 0


CASTS = {
    "key": "text",
    "keys": "text[]",
    "on_conflict": "text",
    "key_ttl": "interval",
    "priority": "integer",
    "run_at": "timestamptz",
    "expires_at": "timestamptz",
    "max_attempts": "integer",
    "retry": "jsonb",
    "timeout_seconds": "integer",
    "tags": "text[]",
    "meta": "jsonb",
    "retain_for": "interval",
}


def refused_in_sql(conn: Conn, call: str, options: dict[str, Any]) -> None:
    arguments = ", ".join(f"{name} => %({name})s::{CASTS[name]}" for name in options)
    given = {name: json.dumps(found) if CASTS[name] == "jsonb" else found for name, found in options.items()}
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(f"select * from pgqueue.{call}, {arguments})".encode(), given)
    assert caught.value.sqlstate == "PQ001", caught.value


@pytest.mark.parametrize("options", BOTH, ids=name_of)
def test_a_bad_option_is_pq001_in_plain_sql(conn: Conn, options: dict[str, Any]) -> None:
    refused_in_sql(conn, "enqueue('q', 't', '{}'", options)
    refused_in_sql(conn, "enqueue_many('q', 't', array['{}']::jsonb[]", for_many(options))
    assert jobs(conn) == 0


# What only SQL can say.
SQL_ONLY = [
    "run_at => 'infinity'",
    "run_at => '-infinity'",
    "run_at => '9999-12-31'",
    "run_at => '10000-01-01'",
    "run_at => '294276-12-31'",
    "run_at => '4713-01-01 BC'",
    "expires_at => 'infinity'",
    "expires_at => '-infinity'",
    "expires_at => '9999-12-31'",
    "expires_at => '294276-12-31'",
    "expires_at => now()",
    "retain_for => 'infinity'",
    "retain_for => '-infinity'",
    "retain_for => '11 years'",
    "retain_for => '178000000 years'",
    "retain_for => '1 month -31 days'",
    "tags => array[['a', 'b'], ['c', 'd']]",
    "meta => 'null'",
    "meta => '[]'",
    "retry => 'null'",
    "retry => '\"fixed\"'",
    'retry => \'{"type": "fixed", "delay": 1e400}\'',
    'retry => \'{"type": "fixed", "delay": 1e-400}\'',
    'retry => \'{"type": "exponential", "base": 1, "factor": 1e1000}\'',
    'retry => \'{"type": "fixed", "delay": 1, "jitter": 1e400}\'',
]
SQL_KEYED = [
    "key_ttl => 'infinity'",
    "key_ttl => '-infinity'",
    "key_ttl => '11 years'",
    "key_ttl => '-1 second'",
    "key_ttl => '178000000 years'",
]


@pytest.mark.parametrize("argument", SQL_ONLY + SQL_KEYED)
def test_what_only_sql_can_say_is_pq001_too(conn: Conn, argument: str) -> None:
    keyed = argument in SQL_KEYED
    # Before PostgreSQL 17 there are no infinite intervals: it refuses the text itself.
    endless = argument.endswith("infinity'") and "_at" not in argument
    sqlstate = "22007" if endless and conn.info.server_version < 170000 else "PQ001"
    for call in (
        f"enqueue('q', 't', {argument}{', key => $$k$$' if keyed else ''})",
        f"enqueue_many('q', 't', array['{{}}']::jsonb[], {argument}{', keys => array[$$k$$]' if keyed else ''})",
    ):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(f"select * from pgqueue.{call}".encode())
        assert caught.value.sqlstate == sqlstate, caught.value
    assert jobs(conn) == 0


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "9999-12-31", "294276-12-31", "1970-01-01"])
def test_bad_times_in_an_array_are_pq001(conn: Conn, moment: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(
            "select * from pgqueue.enqueue_many('q', 't', array['{}', '{}']::jsonb[],"
            " run_ats => array[null, %s]::timestamptz[])",
            [moment],
        )
    assert caught.value.sqlstate == "PQ001"
    assert jobs(conn) == 0


def test_a_key_may_look_like_sql(conn: Conn) -> None:
    enqueue(conn, {INJECTION: INJECTION}, key=INJECTION, tags=[INJECTION])
    assert value(conn, "select key from pgqueue.job") == INJECTION
