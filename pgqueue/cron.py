"""When a recurring job is due: cron expressions by the wall clock of a zone, and plain distances.

    Schedule.parse("0 9 * * 1-5", "Europe/Berlin")
    Schedule.parse("*/10 * * * * *")                # six fields: seconds first
    Schedule.parse("@daily"), Schedule.parse("every 90s")

What the fields mean (names, lists, steps, L, LW, 5L, 5#3, day and weekday) is cronsim's business, and it is asked for
wall-clock times without any zone. What a wall-clock time means in a zone is decided here, because no library has both
clock changes right for every expression: croniter runs `30 2 * * *` twice in autumn, cronsim `*/5 2 * * *` and all
expressions with seconds; in spring it leaves them out.

    fixed hours    (`30 2 * * *`, `0 */2 * * *`): each wall-clock time is due once. One that comes twice counts the
                   first time; one that the clock jumps over is due at the moment of the jump.
    every hour     (`*/15 * * * *`, `@hourly`, `0 * * * *`): due whenever a clock on the wall shows it; so the quarter
                   hours go on, evenly, through an hour that comes twice.
    every 90s      real time, whatever clocks show; counted from starts_at, else from 1970-01-01 00:00 UTC, so that
                   `every 1h` is on the hour, and a deploy does not begin it anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from pgqueue.errors import InvalidArgument

LONGEST = 256  # characters: what is longer was not written by a person, and costs time and memory to read
ALIASES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *", "@minutely": "* * * * *",
}  # fmt: skip
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_EVERY = re.compile(r"every\s+((?:\d{1,9}\s*[smhdw]\s*)+)", re.ASCII | re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
_SHORTEST, _LONGEST = _SECOND, timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When something is due. Made by `parse`, or by `of` from what the database has."""

    cron: str | None
    every: timedelta | None
    timezone: str
    anchor: datetime = _EPOCH  # of every

    @classmethod
    def parse(cls, text: str, timezone: str = "UTC", *, starts_at: datetime | None = None) -> Schedule:
        """From what people write. Raises `InvalidArgument`, also for what is never due."""
        if not isinstance(text, str):
            raise InvalidArgument(f"a schedule is a text such as '0 9 * * 1-5' or 'every 90s', not {text!r}")
        text = text.strip()
        if text.lower().startswith("every"):
            return cls.of(None, _distance(text), timezone, starts_at)
        return cls.of(text, None, timezone, starts_at)

    @classmethod
    def of(
        cls, cron: str | None, every: timedelta | None, timezone: str = "UTC", starts_at: datetime | None = None
    ) -> Schedule:
        zone_named(timezone)
        if every is not None and not _SHORTEST <= every <= _LONGEST:
            raise InvalidArgument(f"every must be between 1 second and 3650 days, not {every}")
        if cron is not None:
            _checked(cron)
        return cls(cron, every, timezone, starts_at or _EPOCH)

    def next(self, after: datetime) -> datetime | None:
        """The first due time after this moment; None if there is none (within fifty years)."""
        try:
            if self.every is not None:
                return self.anchor + ((after - self.anchor) // self.every + 1) * self.every
            return self._wall().next(_utc(after))
        except (OverflowError, ValueError):  # the end of the calendar
            return None

    def last(self, until: datetime) -> datetime | None:
        """The last due time up to this moment, which counts."""
        try:
            if self.every is not None:
                return self.anchor + ((until - self.anchor) // self.every) * self.every
            return self._wall().last(_utc(until))
        except (OverflowError, ValueError):
            return None

    def between(self, after: datetime, until: datetime, take: int) -> list[datetime]:
        """The last `take` due times after the one moment and up to the other, ascending: found from the end, so that a
        ticker that was gone for a year does not count seconds."""
        found: list[datetime] = []
        at = self.last(until)
        while at is not None and at > after and len(found) < take:
            found.append(at)
            at = self.last(at - timedelta(microseconds=1))
        return found[::-1]

    def describe(self) -> str:
        """In plain language."""
        if self.every is not None:
            return f"every {_spoken(self.every)}"
        text = CronSim(_expression(self.cron or ""), datetime(2000, 1, 1)).explain()
        return f"{text[:1].lower()}{text[1:]}"

    def __str__(self) -> str:
        """As it can be parsed again."""
        return self.cron if self.cron is not None else f"every {_written(self.every or _SECOND)}"

    def _wall(self) -> _Wall:
        return _Wall(_expression(self.cron or ""), zone_named(self.timezone))


def zone_named(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # not there; not a name; a folder
        raise InvalidArgument(f"there is no time zone {name!r} here: use a name such as Europe/Berlin or UTC") from None


# ------------------------------------------------------------------------------- wall clocks in a zone


class _Wall:
    """A cron expression in a zone. Moments are in UTC, wall-clock times without a zone."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression = expression
        self._zone = zone
        self._every_hour = len(CronSim(expression, _NEVER).hours) == 24

    def next(self, after: datetime) -> datetime | None:
        return self._next_shown(after) if self._every_hour else self._next_once(after)

    def last(self, until: datetime) -> datetime | None:
        return self._last_shown(until) if self._every_hour else self._last_once(until)

    # -- fixed hours: each wall-clock time once

    def _next_once(self, after: datetime) -> datetime | None:
        shown = (after + self._offset(after)).replace(microsecond=0)
        return next((at for wall in self._walls(shown) if (at := self._first(wall)) > after), None)

    def _last_once(self, until: datetime) -> datetime | None:
        # In an hour that comes for the second time, all of the first one lies behind: so by the greater offset.
        shown = until + max(self._offset(until), self._offset(until - _DAY))
        return next((at for wall in self._walls(shown, back=True) if (at := self._first(wall)) <= until), None)

    def _first(self, wall: datetime) -> datetime:
        """The first moment at which the wall clock shows this, or something later for the first time."""
        before, after = (_utc(wall.replace(tzinfo=self._zone, fold=fold)) for fold in (0, 1))
        if before <= after:
            return before
        jump = self._change(after, before)  # the clock jumps over it, somewhere between the two readings
        return before if jump is None else jump

    # -- every hour: whenever the clock shows it

    def _next_shown(self, after: datetime) -> datetime | None:
        offset = self._offset(after)
        shown = (after + offset).replace(microsecond=0)
        while (wall := next(self._walls(shown), None)) is not None:
            at = wall.replace(tzinfo=UTC) - offset
            change = self._change(after, at)
            if change is None:
                return at
            after, offset = change, self._offset(change)
            shown = after + offset - _SECOND
        return None

    def _last_shown(self, until: datetime) -> datetime | None:
        offset = self._offset(until)
        shown = until + offset
        while (wall := next(self._walls(shown, back=True), None)) is not None:
            at = wall.replace(tzinfo=UTC) - offset
            change = self._change(until, at)
            if change is None:
                return at
            until, offset = change - _SECOND, self._offset(change - _SECOND)
            shown = until + offset
        return None

    # -- details

    def _walls(self, shown: datetime, *, back: bool = False) -> Iterator[datetime]:
        """Wall-clock times after the one shown; backwards, it counts too."""
        start = shown.replace(tzinfo=None)
        if back:
            start = start.replace(microsecond=0) + _SECOND
        return iter(CronSim(self._expression, start, reverse=back))

    def _offset(self, at: datetime) -> timedelta:
        return at.astimezone(self._zone).utcoffset() or timedelta(0)

    def _change(self, start: datetime, end: datetime) -> datetime | None:
        """The clock change nearest to the start, on the way to the end: its first moment. Two changes within a day that
        undo each other would be missed; there are none."""
        offset, step = self._offset(start), _DAY if end >= start else -_DAY
        same = start
        while same != end:
            probe = same + step
            if (probe > end) == (step > timedelta(0)):
                probe = end
            if self._offset(probe) != offset:
                low, high = (same, probe) if same < probe else (probe, same)
                low_offset = self._offset(low)
                while high - low > _SECOND:
                    middle = low + (high - low) // 2
                    low, high = (middle, high) if self._offset(middle) == low_offset else (low, middle)
                return high.replace(microsecond=0)
            same = probe
        return None


# --------------------------------------------------------------------------------------------- reading

_NEVER = datetime(2000, 1, 1)


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _expression(text: str) -> str:
    return ALIASES.get(text.lower(), text)


@lru_cache(512)
def _checked(text: str) -> None:
    """Raises unless the expression can be read and is due at some time."""
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    if len(text) > LONGEST:
        raise InvalidArgument(f"a cron expression has at most {LONGEST} characters: {shown}")
    if text.startswith("@") and text.lower() not in ALIASES:
        raise InvalidArgument(f"there is no alias {shown}: known are {', '.join(ALIASES)}")
    try:
        never = next(iter(CronSim(_expression(text), _NEVER)), None) is None
    except (CronSimError, ValueError, OverflowError, AssertionError) as error:
        what = str(error) if isinstance(error, CronSimError) else "cannot be read"
        raise InvalidArgument(
            f"not a cron expression: {shown!r} ({what[:1].lower()}{what[1:]}); it has five fields, minute hour day "
            "month weekday, or six with seconds first"
        ) from None
    if never:
        raise InvalidArgument(f"{shown!r} is never due: no such day comes")


def _distance(text: str) -> timedelta:
    """`every 90s`, `every 1h30m`."""
    match = _EVERY.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{text[:60]!r}: say it like 'every 90s' or 'every 1h30m', with the units s, m, h, d, w")
    parts = re.findall(r"(\d+)\s*([smhdw])", match[1].lower())
    if len({unit for _, unit in parts}) < len(parts):
        raise InvalidArgument(f"{text[:60]!r} has a unit twice")
    try:
        return sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta(0))
    except OverflowError:
        raise InvalidArgument(f"{text[:60]!r} is too long: at most 3650 days") from None


def _parts(span: timedelta) -> list[tuple[str, str, str]]:
    """Days, hours, minutes and seconds: number, unit, name."""
    minutes, seconds = divmod(span.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    second = f"{seconds + span.microseconds / 1e6:g}"
    found = [(str(span.days), "d", "day"), (str(hours), "h", "hour"), (str(minutes), "m", "minute"),
             (second, "s", "second")]  # fmt: skip
    return [part for part in found if part[0] != "0"]


def _written(span: timedelta) -> str:
    return "".join(f"{number}{unit}" for number, unit, _ in _parts(span))


def _spoken(span: timedelta) -> str:
    parts = _parts(span)
    if len(parts) == 1 and parts[0][0] == "1":
        return parts[0][2]
    return " ".join(f"{number} {name}{'' if number == '1' else 's'}" for number, _, name in parts)
