from __future__ import annotations

from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.errors import InvalidArgument
from tests.support import Conn, rows, value


def delay(conn: Conn, policy: dict[str, Any], attempt: int, previous: float | None = None) -> float:
    return db.execute(conn, db.retry_delay(policy, attempt, previous))


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ({"type": "fixed", "delay": 10}, {1: 10, 2: 10, 32000: 10}),
        ({"type": "fixed", "delay": 0}, {1: 0}),
        ({"type": "linear", "base": 5, "step": 3}, {0: 5, 1: 5, 2: 8, 4: 14, 32000: 86400}),
        ({"type": "linear", "base": 5}, {1: 5, 2: 10}),
        ({"type": "exponential", "base": 5}, {0: 5, 1: 5, 2: 10, 5: 80, 32000: 86400}),
        ({"type": "exponential", "base": 1, "factor": 10, "cap": 500}, {1: 1, 3: 100, 4: 500, 32000: 500}),
        ({"type": "exponential", "base": 0}, {1: 0, 32000: 0}),
        (
            {"type": "exponential", "base": 31536000, "factor": 31536000, "cap": 31536000},
            {1: 31536000, 32000: 31536000},
        ),
        ({"type": "exponential", "base": 5, "cap": 0}, {1: 0, 32000: 0}),
        ({"type": "polynomial", "base": 2, "power": 3}, {1: 2, 2: 16, 3: 54, 32000: 86400}),
        ({"type": "polynomial", "base": 2}, {3: 18}),
        ({"type": "list", "delays": [1, 5, 30]}, {0: 1, 1: 1, 2: 5, 3: 30, 4: 30, 32000: 30}),
        ({"type": "list", "delays": [100], "cap": 7}, {1: 7}),
    ],
)
def test_a_policy_without_jitter_is_arithmetic(conn: Conn, policy: dict[str, Any], delays: dict[int, float]) -> None:
    assert {attempt: delay(conn, policy, attempt) for attempt in delays} == pytest.approx(delays)


@pytest.mark.parametrize(
    ("jitter", "previous", "low", "high"),
    [
        ("none", None, 40, 40),
        ("full", None, 0, 40),
        (25, None, 30, 50),
        (0, None, 40, 40),
        (100, None, 0, 80),
        ("decorrelated", None, 10, 30),
        ("decorrelated", 50, 10, 150),
        ("decorrelated", 1, 10, 30),
        ("decorrelated", 1e9, 10, 200),
    ],
)
def test_jitter_stays_in_its_bounds_and_uses_them(
    conn: Conn, jitter: Any, previous: float | None, low: float, high: float
) -> None:
    policy = {"type": "exponential", "base": 10, "cap": 200, "jitter": jitter}
    drawn = [
        row["d"]
        for row in rows(
            conn,
            "select pgqueue.retry_delay(%s::jsonb, 3, %s::float8) as d from generate_series(1, 500)",
            db._json(policy),
            previous,
        )
    ]
    assert low <= min(drawn) <= max(drawn) <= high
    if low < high:
        assert max(drawn) - min(drawn) > (high - low) / 2


def test_no_policy_exceeds_its_cap_at_any_attempt(conn: Conn) -> None:
    found = value(
        conn,
        """
        select max(pgqueue.retry_delay(p || j || '{"cap": 60}', a))
        from unnest(array['{"type": "linear", "base": 7, "step": 31536000}',
                          '{"type": "polynomial", "base": 9, "power": 31536000}',
                          '{"type": "exponential", "base": 3, "factor": 31536000}']::jsonb[]) p,
             unnest(array['{"jitter": "full"}', '{"jitter": 100}', '{"jitter": "decorrelated"}']::jsonb[]) j,
             unnest(array[0, 1, 2, 310, 1100, 32000, 2147483647]) a""",
    )
    assert found <= 60


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ({}, "its type must be"),
        ({"type": "sometimes"}, "its type must be"),
        ({"type": None}, "its type must be"),
        ({"type": "fixed"}, "needs its delay"),
        ({"type": "fixed", "delay": -1}, "delay must be"),
        ({"type": "fixed", "delay": "1"}, "delay must be"),
        ({"type": "fixed", "delay": None}, "delay must be"),
        ({"type": "fixed", "delay": 31536001}, "delay must be"),
        ({"type": "fixed", "delay": 1e-9}, "delay must be"),
        ({"type": "fixed", "delay": 1, "base": 1}, 'no "base"'),
        ({"type": "exponential", "base": 1, "factor": 0.5}, "factor must be at least 1"),
        ({"type": "exponential", "delays": [1]}, 'no "delays"'),
        ({"type": "list"}, "needs its delays"),
        ({"type": "list", "delays": []}, "delays must be"),
        ({"type": "list", "delays": [1, -1]}, "delays must be"),
        ({"type": "list", "delays": 5}, "delays must be"),
        ({"type": "list", "delays": [1] * 101}, "delays must be"),
        ({"type": "fixed", "delay": 1, "jitter": "some"}, "jitter must be"),
        ({"type": "fixed", "delay": 1, "jitter": 101}, "jitter must be"),
        ({"type": "fixed", "delay": 1, "jitter": [1]}, "jitter must be"),
        ({"type": "fixed", "delay": 1, "cap": "x"}, "cap must be"),
    ],
)
def test_a_policy_that_cannot_be_understood_is_refused_everywhere(
    conn: Conn, policy: dict[str, Any], complaint: str
) -> None:
    calls: tuple[db.Call[Any], ...] = (
        db.enqueue("q", "t", retry=policy),
        db.enqueue_many("q", "t", [{}], retry=policy),
        db.set_queue("q", {"retry": policy}),
        db.set_defaults({"retry": policy}),
    )
    for call in calls:
        with pytest.raises(InvalidArgument, match=complaint):
            db.execute(conn, call)
    assert value(conn, "select count(*) from pgqueue.job") == 0
    assert value(conn, "select retry is null from (select max(retry::text) as retry from pgqueue.queue) q")
