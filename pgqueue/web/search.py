"""The search language of the jobs page: terms that must all hold.

    status:dead queue:email task:send_receipt tag:vip key:receipt:7 worker:3 group:dd6b2029
    error:"no answer" type:TimeoutError age>1h age<2d ended<30m 4711

`status:` may be repeated: any of them. A value with blanks stands in quotes. A number alone is the id of a job; any
other word alone is looked for in errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pgqueue.database import Filter
from pgqueue.errors import InvalidArgument

STATUSES = ("pending", "running", "scheduled", "blocked", "completed", "dead", "cancelled")
TEXTS = {
    "queue": "queue", "task": "task", "tag": "tag", "key": "key", "error": "error", "type": "error_type",
    "error_type": "error_type", "group": "fingerprint", "fingerprint": "fingerprint",
}  # fmt: skip
AGES = {"age": "enqueued", "enqueued": "enqueued", "ended": "finished", "finished": "finished"}
NAMES = ("status:", "queue:", "task:", "tag:", "key:", "error:", "type:", "group:", "worker:", "age>", "age<", "ended<")

LONGEST = 2000
_TERM = re.compile(r'\s*(?:(?P<name>[a-z_]+)(?P<sign>[:<>])(?P<quoted>"[^"]*")?(?P<plain>\S*)|(?P<word>"[^"]*"|\S+))')
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class Search:
    """What was asked for: a filter as list_jobs() takes it, and the id of one job, if that was all."""

    text: str
    where: dict[str, Any] = field(default_factory=dict)
    id: int | None = None

    @property
    def statuses(self) -> list[str]:
        return list(self.where.get("status", ()))

    def to_finish(self, status: str) -> Filter:
        """The same for commands that take finished jobs only; InvalidArgument if they cannot tell as much."""
        extra = set(self.where) - {
            "status", "queue", "task", "tag", "error", "error_type", "fingerprint", "finished_after", "finished_before",
        }  # fmt: skip
        if extra:
            names = ", ".join(sorted(extra))
            raise InvalidArgument(
                f"{status} jobs cannot be taken all at once by {names}: select them, or search otherwise"
            )
        given = {name: value for name, value in self.where.items() if name != "status"}
        for name in ("finished_after", "finished_before"):
            if name in given:
                given[name] = datetime.fromisoformat(given[name])
        return Filter(**given)


def parse(text: str, now: datetime) -> Search:
    """InvalidArgument says which term is not understood."""
    if len(text) > LONGEST:  # what is cut off would make it find more, and retry or remove it
        raise InvalidArgument(f"a search has {LONGEST} characters at most")
    where: dict[str, Any] = {}
    words: list[str] = []
    for found in _TERM.finditer(text.strip()):
        if found["word"] is not None:
            words.append(found["word"].strip('"'))
        else:
            value = f"{(found['quoted'] or '').strip(chr(34))}{found['plain'] or ''}"
            _add(where, found["name"], found["sign"], value, now)
    if len(words) == 1 and words[0].lstrip("#").isdecimal() and not where:
        id = int(words[0].lstrip("#"))
        return Search(text, id=min(id, 2**63 - 1))
    if words:
        if "error" in where:
            raise InvalidArgument(f'put what the error contains in quotes: error:"{where["error"]} {" ".join(words)}"')
        where["error"] = " ".join(words)
    return Search(text, where)


def _add(where: dict[str, Any], name: str, sign: str, value: str, now: datetime) -> None:
    if name in AGES and sign in "<>":
        # Older than an hour: before the moment an hour ago.
        _once(where, f"{AGES[name]}_{'before' if sign == '>' else 'after'}", (now - span(value)).isoformat(), name)
    elif sign != ":" or not value:
        raise InvalidArgument(f"{name}{sign}{value} is not understood: try {', '.join(NAMES)}")
    elif name in ("status", "state"):
        statuses = [_one_of(each, STATUSES) for each in value.split(",")]
        where["status"] = list(dict.fromkeys([*where.get("status", ()), *statuses]))
    elif name == "worker":
        if not value.isdecimal() or len(value) > 18:
            raise InvalidArgument(f"worker:{value} is not understood: a worker has a number")
        _once(where, "worker_id", int(value), name)
    elif name in TEXTS:
        _once(where, TEXTS[name], value, name)
    else:
        raise InvalidArgument(f"{name}: is not known: try {', '.join(NAMES)}")


def _once(where: dict[str, Any], column: str, value: object, name: str) -> None:
    """All terms must hold: the last one of two must not win."""
    if where.get(column, value) != value:
        raise InvalidArgument(f"{name} stands there twice: it can be asked for once")
    where[column] = value


def _one_of(value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InvalidArgument(f"there is no status {value}: {', '.join(known)}")
    return value


def span(text: str) -> timedelta:
    """`90s`, `10m`, `1h30m`, `2d`."""
    if not _SPAN.fullmatch(text.strip()):
        raise InvalidArgument(f"{text!r} is not a time span: use 30s, 10m, 2h, 1h30m or 7d")
    total = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)([smhdw])", text))
    if total > 3650 * 86400:
        raise InvalidArgument(f"{text!r} is more than ten years")
    return timedelta(seconds=total)


def term(name: str, value: object) -> str:
    """A term that finds this value."""
    said = str(value)
    return f'{name}:"{said}"' if re.search(r"\s", said) and '"' not in said else f"{name}:{said}"
