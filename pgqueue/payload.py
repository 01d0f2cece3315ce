"""Payloads as JSON text that PostgreSQL and every JSON reader accept; refused before any SQL is sent.

PostgreSQL and psycopg each refuse some of these with an error of their own (NUL, lone surrogates, NaN, depth, size),
and accept others that do harm later (1e400 reads back as infinity). Here all of them are one `PayloadError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgqueue.errors import PayloadError

MAX_BYTES = 134_217_728  # the most that payload_max_bytes can be; the database refuses what is above its own limit
RESULT_MAX_BYTES = 262_144
MAX_DEPTH = 64


def encode(payload: Mapping[str, Any], max_bytes: int = MAX_BYTES) -> str:
    """The payload as JSON text, or a `PayloadError` that says where and why not."""
    if not isinstance(payload, Mapping):
        raise PayloadError(f"a payload is a mapping of argument names to values, not {type(payload).__name__}")
    if _check(payload) and (least := _least_bytes(payload, {})) > max_bytes:
        raise PayloadError(f"{least:,} bytes of JSON, as the same values are in it many times: at most {max_bytes:,}")
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is not JSON: {error}") from None
    size = len(text.encode())
    if size > max_bytes:
        raise PayloadError(f"{size:,} bytes of JSON: at most {max_bytes:,}; store the data elsewhere and its id here")
    return text


def _check(payload: Mapping[str, Any]) -> bool:
    """Whether something is in it more than once: `x = [x, x]` sixty times has a JSON form of exabytes."""
    seen: dict[int, tuple[int, Any]] = {}  # how deep, and what: kept, so that its id is not given to another
    shared = False
    # Depth first with a stack of our own: a payload nested 20,000 deep must not exhaust Python's.
    stack: list[tuple[Any, int, str]] = [(payload, 1, "payload")]
    while stack:
        value, depth, where = stack.pop()
        if isinstance(value, str):
            _check_text(value, where)
        elif value is None or isinstance(value, int):
            continue
        elif isinstance(value, float):
            if value != value or value in (float("inf"), float("-inf")):
                raise PayloadError(f"{where} is {value}, which JSON does not have")
        elif isinstance(value, (list, tuple, Mapping)):
            if depth > MAX_DEPTH:
                raise PayloadError(f"{where[:200]}…: nested deeper than {MAX_DEPTH} levels")
            if (before := seen.get(id(value))) is not None:
                shared = True
                if depth <= before[0]:
                    continue
            seen[id(value)] = depth, value
            if isinstance(value, (list, tuple)):
                short = len(where) < 200
                stack += [(item, depth + 1, f"{where}[{n}]" if short else where) for n, item in enumerate(value)]
                continue
            for key, member in value.items():
                if not isinstance(key, str):
                    raise PayloadError(f"{where} has the key {key!r}: keys must be texts")
                _check_text(key, where)
                stack.append((member, depth + 1, f"{where}.{key}" if len(where) < 200 else where))
        else:
            raise PayloadError(f"{where} is a {type(value).__name__}, which JSON does not have")
    return shared


def _least_bytes(value: Any, known: dict[int, tuple[int, Any]]) -> int:
    """Of a value that has been checked, its JSON has so many bytes or more; each list and mapping is looked at once."""
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, (list, tuple, Mapping)):
        return 1
    if (found := known.get(id(value))) is None:
        names = sum(len(name) + 3 for name in value) if isinstance(value, Mapping) else 0
        members = value.values() if isinstance(value, Mapping) else value
        size = 1 + max(len(value), 1) + names + sum(_least_bytes(member, known) for member in members)
        found = known[id(value)] = size, value
    return found[0]


def _check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise PayloadError(f"{where} contains a NUL character, which PostgreSQL cannot store")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(f"{where} contains a lone surrogate at position {error.start}") from None


# json.loads() asks what it was given and looks for blanks around it: two thirds of its time for a small payload.
_scan_json = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands where JSON should be that PostgreSQL accepts but Python cannot read: a number of 5,000 digits, say."""

    text: str
    reason: str


def decode(data: bytes | bytearray | memoryview | str) -> Any:
    """JSON as PostgreSQL writes it (no blanks around it), as Python values. One bad value must not fail a whole batch:
    it comes as `Undecodable`."""
    text = data if isinstance(data, str) else str(data, "utf-8")
    try:
        return _scan_json(text, 0)[0]
    except (ValueError, RecursionError, StopIteration) as error:
        return Undecodable(text, str(error))


def clean_text(text: str, limit: int = 65_536) -> str:
    """Any text, error messages above all, as PostgreSQL can store it: nothing raises while reporting an error."""
    return text[:limit].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
