"""How values are shown: as text, which templates escape. Nothing here makes HTML but `moment` and `ago`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from markupsafe import Markup

from pgqueue.cli_output import duration

HIDDEN = "••••••"
_SECRET = re.compile(
    r"passw|passphrase|secret|token|credential|authori[sz]ation|api_?key|private_?key|access_?key|cookie|session_?id"
    r"|card_?(no|num)|^card$|^cvv|^cvc|^pin$|^ssn$|^iban$",
    re.IGNORECASE,
)
# Characters that turn the direction of what follows, or that nobody sees: a name must not look like another.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def plain(value: Any) -> str:
    return _CONTROL.sub("�", str(value))


def number(value: float | Decimal | None) -> str:
    """12, 4,711, 1.2 M."""
    if value is None:
        return "–"
    value = float(value)
    if abs(value) >= 9_999_500:
        return f"{value / 1e6:,.1f} M"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    if share is None:
        return "–"
    return "0 %" if share == 0 else "< 0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def seconds(value: float | Decimal | timedelta | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if 0 < value < 0.001:
        return "< 1ms"
    return duration(round(float(value), 1 if value >= 1 else 4) if value < 60 else float(value))


def size(value: float | None) -> str:
    amount = float(value or 0)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1024 or unit == "TB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"


def rate(per_second: float | None) -> str:
    """1.2 k/s, 4/min, 3/h: whichever has a figure before its point."""
    if not per_second:
        return "0" if per_second == 0 else "–"
    if per_second >= 1000:
        return f"{per_second / 1000:.1f} k/s"
    if per_second >= 1:
        return f"{per_second:.3g}/s"
    return f"{per_second * 60:.2g}/min" if per_second * 60 >= 1 else f"{per_second * 3600:.2g}/h"


def moment(at: datetime | None) -> Markup:
    """In UTC; the script turns it to the reader's zone."""
    if at is None:
        return Markup("–")
    at = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(
        at.isoformat(), at.strftime("%a %Y-%m-%d %H:%M:%S.%f")[:-3], at.strftime("%Y-%m-%d %H:%M:%S")
    )


def clock(at: datetime) -> Markup:
    """The time of day of a log line, to the millisecond; turned by the script, too."""
    at = at.astimezone(UTC)
    return Markup('<time class="ms" datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(), at.strftime("%a %Y-%m-%d %H:%M:%S.%f")[:-3], at.strftime("%H:%M:%S.%f")[:-3]
    )


def ago(at: datetime | None, now: datetime) -> Markup:
    """3s ago, in 5m; the moment itself on hover."""
    if at is None:
        return Markup("–")
    passed = (now - at).total_seconds()
    words = f"{_rough(passed)} ago" if passed >= 0 else f"in {_rough(-passed)}"
    at = at.astimezone(UTC)
    return Markup('<time class="ago" datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(), at.strftime("%a %Y-%m-%d %H:%M:%S"), words
    )


def _rough(passed: float) -> str:
    return duration(round(passed)) if passed >= 1 else "0s"


def pretty(value: Any, most: int | None = None) -> str:
    """JSON as it is: large numbers keep all their digits, and what nobody sees is escaped, so that it can be read,
    edited and read back as the same."""
    text = _CONTROL.sub(_escaped, json.dumps(value, indent=2, ensure_ascii=False, default=str))
    return text if most is None or len(text) <= most else f"{text[:most]}\n… {number(len(text) - most)} characters more"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def compact(value: Any, most: int = 120) -> str:
    text = _CONTROL.sub("�", json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= most else f"{text[:most]}…"


def progress(value: Any) -> float | None:
    """The share that a handler has told of, if it is one."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1 else None


def command(*words: object) -> str:
    """As it can be pasted into a shell."""
    return shlex.join(["pgqueue", *(plain(word) for word in words)])


def redact(value: Any, hide: Collection[str] = ()) -> Any:
    """The same with what its name calls a secret hidden, at any depth; `hide` are names of your own."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if _SECRET.search(name) or name in hide else redact(member, hide)
            for name, member in value.items()
        }
    return [redact(member, hide) for member in value] if isinstance(value, list) else value


_NOTHING = object()


def restore(edited: Any, stored: Any) -> Any:
    """What was edited, with what had been hidden put back where it still stands. ValueError: it stands where nothing
    was, and the job would run with the mask for a value."""
    if edited == HIDDEN:
        if stored is _NOTHING:
            raise ValueError(f"{HIDDEN} stands where no hidden value was: write the value itself")
        return stored
    if isinstance(edited, dict):
        known = stored if isinstance(stored, dict) else {}
        return {name: restore(member, known.get(name, _NOTHING)) for name, member in edited.items()}
    if isinstance(edited, list):
        # Which is which is known only as long as none came or went.
        same = stored if isinstance(stored, list) and len(stored) == len(edited) else [_NOTHING] * len(edited)
        return [restore(*pair) for pair in zip(edited, same, strict=True)]
    return edited
