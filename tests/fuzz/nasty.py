"""Values that a door must either take or refuse in so many words: edges, mistakes, attacks, and noise."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

INTEGERS = [
    0,
    1,
    -1,
    2,
    5,
    100,
    -100,
    101,
    1000,
    32000,
    32001,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
]
FLOATS = [0.0, -0.0, 0.5, 1e-9, 1.0, 60.0, 1e6, 1e15, 1e308, -1.5, float("inf"), float("-inf"), float("nan")]
WORDS = [
    "q", "t", "a.b:c_d-e", "default", "0", "null", "true", "x" * 128, "x" * 129, "", " ", "a b", "q\n", "\t", "it's", 'say "q"',
    "'; drop table x; --", "$1", "%s", "%(a)s", "{}", "{0}", "\\", "/", "..", "ü", "日本", "\u202e", "\u200b", "🙂", "-", "--", "-x",
    "skip", "raise", "replace", "pending", "dead", "completed", "cancelled", "NaN", "infinity", "1e400", "x" * 5000,
    "status:dead", "age>1h", "error:", 'error:"x', "queue:q task:t", "#7", "9" * 25, "0x10", "1_000", "٣",
]  # fmt: skip
NOT_TEXTS = ["\0", "a\0b", "\ud800", "x\udfff", "\udcff"]  # no database takes them
SPANS = ["30s", "10m", "2h", "1h30m", "7d", "0s", "", "5", "-5s", "1.5h", "9" * 30 + "d", "1e5s", "s", "1w1w", "10000000000d", "3651d",
         "99999999w", "0.0000001s"]  # fmt: skip
TIMES = ["2100-01-01T00:00:00Z", "2100-01-01", "now", "infinity", "-infinity", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
         "294277-01-01", "4713-01-01 BC", "2100-13-01", "2100-01-01T00:00:00+99:00", "yesterday", "1e10"]  # fmt: skip
CRONS = [
    "* * * * *", "*/5 * * * *", "0 0 30 2 *", "60 * * * *", "* * * *", "0 0 1 1 * 2020", "@daily", "@reboot", "@", "every 90s",
    "every", "every 0s", "every 1s", "every -1s", "every 99999999999999w", "0 0 31 2,4 *", "59/15 * * * *", "0 0 L * *", "0 0 * * 5#6",
    "0 0 * * MON-FRI", "* " * 200, "*/0 * * * *", "1-0 * * * *", "*/99999999999999999999 * * * *", "0 0 W * *", "a b c d e",
    "*\u2009* * * *", "* * * * * *", "0 0 29 2 1", "?,? * * * *", "0,0,0,0 * * * *", "1,2,,3 * * * *", "0 0 0 * *", "0 24 * * *",
]  # fmt: skip
ZONES = [
    "UTC",
    "Europe/Berlin",
    "Asia/Kathmandu",
    "Mars/Base",
    "",
    "..",
    "/etc/passwd",
    "../UTC",
    "EST5EDT",
    "x" * 65,
    "Europe",
    "utc",
]
MOMENTS = [
    datetime(2100, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
    datetime(2100, 1, 1), datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))), datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
]  # fmt: skip
LENGTHS = [
    timedelta(0), timedelta(seconds=1), timedelta(hours=1), timedelta(days=3650), timedelta(days=3651), -timedelta(seconds=1),
    timedelta.max, timedelta.min, timedelta(days=3_000_000), timedelta(days=100_000_000), timedelta(days=-1_000_000), timedelta(microseconds=1),
]  # fmt: skip
POLICIES = [
    {"type": "fixed", "delay": 60}, {"type": "exponential"}, {"type": "exponential", "base": 1e308, "factor": 1e308}, {"type": "list", "delays": []},
    {"type": "list", "delays": [1, "2"]}, {"type": "linear", "base": -1}, {"type": []}, {}, [], "fixed",
    {"type": "fixed", "delay": True}, {"type": "fixed", "delay": {"a": 1}}, {"type": "fixed", "delay": 1, "jitter": "decorrelated"},
]  # fmt: skip
SETTINGS = [
    "max_attempts", "max_crashes", "retry", "timeout_seconds", "boost_seconds", "retain_completed", "retain_dead", "max_running", "rate",
    "rate_seconds", "rate_burst", "fair", "group_max_running", "group_on_retry", "group_rate", "group_rate_seconds", "group_rate_burst",
    "max_depth", "shed_below", "payload_max_bytes", "queue", "nonsense",
]  # fmt: skip
OF_RECURRING = [
    "queue", "task", "payload", "cron", "every", "timezone", "starts_at", "ends_at", "jitter", "catch_up", "catch_up_max", "overlap",
    "priority", "max_attempts", "retry", "timeout_seconds", "tags", "meta", "expires_in", "retain_for", "group_key", "version",
]  # fmt: skip
OF_TASKS = ["breaker_rate", "breaker_min", "breaker_window", "breaker_open", "nonsense"]
OF_FILTERS = [
    "status", "queue", "task", "key", "tag", "worker_id", "group_key", "waits_for", "error_type", "error", "fingerprint",
    "enqueued_after", "enqueued_before", "finished_after", "finished_before", "nonsense",
]  # fmt: skip
OF_JOBS = [
    "name", "after", "on_death", "results", "queue", "task", "payload", "key", "on_conflict", "key_ttl", "priority", "run_at", "run_in",
    "expires_at", "expires_in", "max_attempts", "retry", "timeout_seconds", "tags", "meta", "retain_for", "group_key", "nonsense",
]  # fmt: skip


class Nasty:
    """Draws them. The same seed draws the same."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)  # noqa: S311

    def one(self, known: Any) -> Any:
        return self.random.choice(known)

    def often(self, good: Any, other: Callable[[], Any], share: float = 0.6) -> Any:
        """Something good, mostly: or the first refusal would hide all others."""
        return good if self.random.random() < share else other()

    def text(self) -> str:
        kind = self.random.random()
        if kind < 0.6:
            return str(self.one(WORDS))
        if kind < 0.7:
            return str(self.one([*SPANS, *TIMES, *CRONS, *ZONES]))
        return "".join(chr(self.random.choice([self.random.randrange(32, 127), self.random.randrange(1, 0xD800)]))
                       for _ in range(self.random.randrange(20)))  # fmt: skip

    def any_text(self) -> str:
        return str(self.one(NOT_TEXTS)) if self.random.random() < 0.1 else self.text()

    def integer(self) -> int:
        return int(self.one(INTEGERS)) if self.random.random() < 0.7 else self.random.randrange(-(2**33), 2**33)

    def small(self) -> int:
        return self.random.randrange(-2, 12)

    def scalar(self, in_sql: bool = False) -> Any:
        kinds: list[Callable[[], Any]] = [
            self.text, self.integer, self.small, lambda: None, lambda: self.random.random() < 0.5,
            lambda: self.one([0.5, -1.5, 1e15, 1e300]), lambda: self.one(SPANS), lambda: self.one(TIMES),
        ]  # fmt: skip
        if not in_sql:
            kinds += [
                lambda: self.one(FLOATS),
                self.any_text,
                lambda: self.one(MOMENTS),
                lambda: {1},
                lambda: b"x",
                object,
            ]
        return self.one(kinds)()

    def json(self, depth: int = 3, in_sql: bool = False) -> Any:
        kind = self.random.random()
        if depth == 0 or kind < 0.5:
            return self.scalar(in_sql)
        if kind < 0.55:
            return self.deep(self.random.choice([10, 62, 63, 64, 65, 200]))
        if kind < 0.75:
            return [self.json(depth - 1, in_sql) for _ in range(self.random.randrange(4))]
        return {
            self.text() if in_sql else self.any_text(): self.json(depth - 1, in_sql)
            for _ in range(self.random.randrange(4))
        }

    def deep(self, levels: int) -> Any:
        inner: Any = []
        for _ in range(levels):
            inner = [inner] if self.random.random() < 0.5 else {"a": inner}
        return inner

    def payload(self, in_sql: bool = False) -> Any:
        found = self.json(3, in_sql)
        return found if isinstance(found, dict) or self.random.random() < 0.3 else {"a": found}

    def policy(self, in_sql: bool = False) -> Any:
        known = POLICIES if in_sql else [*POLICIES, {"type": "polynomial", "power": float("inf")}]
        return self.one(known) if self.random.random() < 0.7 else self.json(2, in_sql)

    def settings(self, names: list[str], in_sql: bool = False) -> dict[str, Any]:
        """A few of these, with values that are right now and then."""
        special: dict[str, Callable[[], Any]] = {
            "retry": lambda: self.policy(in_sql), "payload": lambda: self.payload(in_sql), "cron": lambda: self.one(CRONS),
            "timezone": lambda: self.one(ZONES), "every": lambda: self.one(["90 seconds", "1 hour", "1 month", "0", "-1 day", 60, *SPANS]),
            "queue": self.name, "task": self.name, "tags": lambda: self.often(["a"], lambda: self.json(1, in_sql)),
            "after": lambda: [self.often(0, lambda: self.json(2, in_sql)) for _ in range(self.small() % 3)],
            "on_death": lambda: self.one(["wait", "stop", "continue", "explode", None]),
            "results": lambda: self.json(2, in_sql), "meta": lambda: self.json(2, in_sql),
        }  # fmt: skip
        chosen = self.random.sample(names, self.random.randrange(min(5, len(names))))
        return {name: special.get(name, lambda: self.scalar(in_sql))() for name in chosen}

    def name(self) -> str:
        return str(self.often("q", self.text, 0.7))

    def interval(self) -> timedelta:
        return (
            self.one(LENGTHS) if self.random.random() < 0.6 else timedelta(seconds=self.random.randrange(-100, 10**6))
        )

    def flow(self, in_sql: bool = False) -> Any:
        jobs = [{"queue": "q", "task": "t", **self.settings(OF_JOBS, in_sql)} for _ in range(self.random.randrange(4))]
        graph = {"jobs": jobs, **({"name": self.text()} if self.random.random() < 0.3 else {})}
        if self.random.random() < 0.2:
            graph["on_done"] = self.often({"queue": "q", "task": "t"}, lambda: self.json(2, in_sql))
        return self.often(graph, lambda: self.json(3, in_sql), 0.9)

    def json_text(self) -> str:
        found = self.often({"a": 1}, lambda: self.payload(in_sql=True))
        return json.dumps(found) if self.random.random() < 0.8 else self.text()
