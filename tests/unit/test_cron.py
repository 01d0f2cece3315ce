"""When recurring jobs are due, against a clock on the wall that is watched minute by minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgqueue.cron import ALIASES, LONGEST, Schedule
from pgqueue.errors import InvalidArgument

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

# ------------------------------------------------------------------------------------- both clock changes

ZONES = [
    "Europe/Berlin", "Europe/London", "Europe/Dublin", "America/New_York", "America/St_Johns", "America/Santiago",
    "America/Havana", "America/Sao_Paulo", "Africa/Casablanca", "Africa/Cairo", "Asia/Beirut", "Asia/Jerusalem",
    "Asia/Kathmandu", "Asia/Kolkata", "Australia/Sydney", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham",
    "Pacific/Auckland", "Atlantic/Azores", "UTC",
]  # fmt: skip
EXPRESSIONS = [
    "* * * * *", "*/15 * * * *", "0 * * * *", "30 * * * *", "7,37 * * * 0,6", "0 0 * * *", "30 0 * * *", "30 1 * * *",
    "30 2 * * *", "0 3 * * *", "15 2 * * 0", "45 1 * * *", "10,40 2,3 * * *", "*/5 2 * * *", "* 1 * * *", "0 */2 * * *",
    "*/20 0-4 * * *", "59 23 * * *", "0 9 * * 1-5", "0 0,12 * * 0",
]  # fmt: skip


@cache
def changes(zone: str) -> list[datetime]:
    """Every clock change from 2024 to 2030, to the minute; in a zone that has none, some midnights instead."""
    found = []
    at, info = datetime(2024, 1, 1, tzinfo=UTC), ZoneInfo(zone)
    while at.year < 2031:
        if (at + DAY).astimezone(info).utcoffset() != at.astimezone(info).utcoffset():
            low, high = at, at + DAY
            while high - low > MINUTE:
                middle = low + (high - low) // 2
                same = middle.astimezone(info).utcoffset() == low.astimezone(info).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high.replace(second=0, microsecond=0))
        at += DAY
    return found or [datetime(year, 2, 28, 18, 15, tzinfo=UTC) for year in range(2024, 2031)]


def numbers(field: str, least: int, most: int) -> set[int]:
    """What a field without names or specials means: all that EXPRESSIONS need."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0-59" if span == "*" else span).partition("-")
        found |= set(range(max(int(first), least), min(int(last or first), most) + 1, int(step or 1)))
    return found


def watched(zone: str, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Each minute as it passes, and what the clock on the wall shows then."""
    info = ZoneInfo(zone)
    while start <= end:
        yield start, start.astimezone(info).replace(tzinfo=None)
        start += MINUTE


def oracle(expression: str, minutes: list[tuple[datetime, datetime]]) -> list[datetime]:
    """A patient watchman. He has a list of wall-clock times and does each of them once, when he first sees it; when the
    clock has jumped, he does at once what it has jumped over. If his list has every hour of the day, he simply goes by
    what he sees."""
    minute, hour, _, _, weekday = expression.split()
    minutes_due, hours_due, days_due = numbers(minute, 0, 59), numbers(hour, 0, 23), numbers(weekday, 0, 6)

    def on_the_list(wall: datetime) -> bool:
        return wall.minute in minutes_due and wall.hour in hours_due and wall.isoweekday() % 7 in days_due

    due: list[datetime] = []
    seen: set[datetime] = set()
    expected = minutes[0][1]
    for at, wall in minutes:
        if len(hours_due) == 24:
            if on_the_list(wall):
                due.append(at)
            continue
        todo = [wall] if wall <= expected else [expected + n * MINUTE for n in range((wall - expected) // MINUTE + 1)]
        todo = [each for each in todo if each not in seen and on_the_list(each)]
        if todo:
            due.append(at)
        seen.update(todo)
        expected = wall + MINUTE
    return due


def count_cases() -> int:
    return sum(len(changes(zone)) for zone in ZONES) * len(EXPRESSIONS)


def test_there_are_enough_cases() -> None:
    assert count_cases() >= 2000
    assert {change.year for zone in ZONES for change in changes(zone)} == set(range(2024, 2031))


@pytest.mark.parametrize("zone", ZONES)
def test_around_every_clock_change_nothing_is_due_twice_and_nothing_is_missed(zone: str) -> None:
    for change in changes(zone):
        start, end = change - 6 * HOUR, change + 6 * HOUR
        minutes = list(watched(zone, start, end))
        for expression in EXPRESSIONS:
            expected = oracle(expression, minutes)
            schedule = Schedule.parse(expression, zone)
            found = []
            at = schedule.next(start - timedelta(microseconds=1))
            while at is not None and at <= end:
                found.append(at)
                at = schedule.next(at)
            case = (zone, expression, change.isoformat())
            # The watchman has not seen what was before his first hour: leave it out, on both sides.
            begin = start + 2 * HOUR
            assert [at for at in found if at > begin] == [at for at in expected if at > begin], case
            assert schedule.between(begin, end, 10_000) == [at for at in found if at > begin], case


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 * * * *", "*/7 1 * * *"])
def test_the_next_and_the_last_due_time_of_any_second_agree(zone: str, expression: str) -> None:
    schedule = Schedule.parse(expression, zone)
    for change in changes(zone)[:2]:
        due = schedule.between(change - 50 * HOUR, change + 50 * HOUR, 10_000)
        for n in range(-4 * 3600, 4 * 3600, 97):
            at = change + timedelta(seconds=n, microseconds=n % 3 * 333_333)
            assert schedule.next(at) == next(each for each in due if each > at)
            assert schedule.last(at) == next(each for each in reversed(due) if each <= at)


def due(expression: str, zone: str, start: str, count: int) -> list[str]:
    schedule = Schedule.parse(expression, zone)
    found: list[str] = []
    at: datetime | None = datetime.fromisoformat(start).astimezone(UTC)
    while len(found) < count and (at := schedule.next(at)) is not None:  # type: ignore[arg-type]
        found.append(at.astimezone(ZoneInfo(zone)).isoformat())
    return found


def test_a_time_that_comes_twice_is_due_the_first_time() -> None:
    assert due("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00+02:00", 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_a_time_that_the_clock_jumps_over_is_due_at_the_jump() -> None:
    assert due("30 2 * * *", "Europe/Berlin", "2026-03-29T00:00+01:00", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert due("15 2 * * *", "Australia/Lord_Howe", "2026-10-04T00:00+10:30", 1) == ["2026-10-04T02:30:00+11:00"]
    assert due("0 0 * * *", "America/Santiago", "2026-09-05T12:00-04:00", 1) == ["2026-09-06T01:00:00-03:00"]
    assert due("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00-10:00", 1) == ["2011-12-31T00:00:00+14:00"]


def test_seconds_follow_the_same_rules() -> None:
    assert due("15 30 2 * * *", "Europe/Berlin", "2026-10-25T00:00+02:00", 2) == [
        "2026-10-25T02:30:15+02:00",
        "2026-10-26T02:30:15+01:00",
    ]
    assert due("*/30 * * * * *", "Europe/Berlin", "2026-10-25T02:59:10+02:00", 3) == [
        "2026-10-25T02:59:30+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:00:30+01:00",
    ]


def test_every_hour_of_the_day_goes_on_evenly_through_both_changes() -> None:
    schedule = Schedule.parse("*/15 * * * *", "Europe/Berlin")
    for day in (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)):
        times = schedule.between(day - 3 * HOUR, day + 5 * HOUR, 1000)
        assert {after - before for before, after in pairwise(times)} == {timedelta(minutes=15)}


# -------------------------------------------------------------------------------------------- what is meant


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 29 2 *", ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]),
        ("0 0 L * *", ["2026-01-31T00:00:00+00:00", "2026-02-28T00:00:00+00:00"]),
        ("0 0 LW * *", ["2026-01-30T00:00:00+00:00", "2026-02-27T00:00:00+00:00"]),
        ("0 0 * * 5L", ["2026-01-30T00:00:00+00:00", "2026-02-27T00:00:00+00:00"]),
        ("0 0 * * fri#3", ["2026-01-16T00:00:00+00:00", "2026-02-20T00:00:00+00:00"]),
        ("0 0 13 * 5", ["2026-01-02T00:00:00+00:00", "2026-01-09T00:00:00+00:00"]),  # day or weekday
        ("0 0 * jan-mar MON", ["2026-01-05T00:00:00+00:00", "2026-01-12T00:00:00+00:00"]),
        ("0 0 * * 7", ["2026-01-04T00:00:00+00:00", "2026-01-11T00:00:00+00:00"]),
        ("50/5 9 * * *", ["2026-01-01T09:50:00+00:00", "2026-01-01T09:55:00+00:00"]),
        ("59 59 23 31 12 *", ["2026-12-31T23:59:59+00:00", "2027-12-31T23:59:59+00:00"]),
        ("@hourly", ["2026-01-01T01:00:00+00:00", "2026-01-01T02:00:00+00:00"]),
        ("@Weekly", ["2026-01-04T00:00:00+00:00", "2026-01-11T00:00:00+00:00"]),
        ("every 90s", ["2026-01-01T00:01:30+00:00", "2026-01-01T00:03:00+00:00"]),
        ("every 1h", ["2026-01-01T01:00:00+00:00", "2026-01-01T02:00:00+00:00"]),
        ("Every 1h 30m", ["2026-01-01T01:30:00+00:00", "2026-01-01T03:00:00+00:00"]),
    ],
)
def test_an_expression_means_what_people_think(expression: str, expected: list[str]) -> None:
    assert due(expression, "UTC", "2026-01-01T00:00+00:00", 2) == expected


def test_every_counts_from_its_start() -> None:
    start = datetime(2026, 1, 1, 12, 0, 7, tzinfo=UTC)
    schedule = Schedule.parse("every 90s", starts_at=start)
    assert schedule.next(start - timedelta(microseconds=1)) == start
    assert schedule.next(start) == start + timedelta(seconds=90)
    assert schedule.last(start + timedelta(seconds=89)) == start


def test_a_year_without_a_ticker_costs_no_time() -> None:
    now = datetime(2026, 10, 25, 3, 0, 0, 500, tzinfo=UTC)
    began = time.perf_counter()
    for text in ("* * * * * *", "every 1s", "* 2 * * *", "0 0 29 2 *"):
        times = Schedule.parse(text, "Europe/Berlin").between(now - 365 * DAY, now, 101)
        assert len(times) == (0 if "29" in text else 101)
        assert times == sorted(set(times))
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("at", [datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)])
def test_the_ends_of_the_calendar_are_no_error(at: datetime) -> None:
    for text in ("* * * * *", "0 2 * * *", "every 3650d"):
        schedule = Schedule.parse(text, "America/St_Johns")
        schedule.next(at)
        schedule.last(at)


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 31 2,4,6,9,11 *", "day-of-month"),
        ("0 0 */31 2 MON#5", "never due"),
        ("0 9 * *", "five fields"),
        ("0 0 0 0 0 0 0", "five fields"),
        ("", "five fields"),
        ("60 * * * *", "bad minute"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("0 0 * * MON#6", "bad day-of-week"),
        ("1-" + "9" * 90 + " * * * *", "bad minute"),
        ("٣ * * * *", "bad minute"),
        ("h * * * *", "bad minute"),
        ("@reboot", "there is no alias"),
        ("0-59/1," * 5000 + "1 * * * *", f"at most {LONGEST} characters"),
        ("every 0s", "between 1 second and"),
        ("every 500ms", "say it like"),
        ("every 1s 1s", "unit twice"),
        ("every 999999999d", "between 1 second and|too long"),
        ("every " + "1" * 10_000 + "s", "say it like"),
        ("every", "say it like"),
        ("0 0 * * *\0", "bad day-of-week"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(text: str, told: str) -> None:
    began = time.perf_counter()
    with pytest.raises(InvalidArgument, match=told) as error:
        Schedule.parse(text)
    assert time.perf_counter() - began < 0.5
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../UTC", "/etc/passwd", "Europe", "x" * 5000, "UTC\0", "\ud800"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no time zone"):
        Schedule.parse("0 9 * * *", zone)


FIELD = st.text("0123456789*/-,L#WMONJAFRI ", max_size=12)


@settings(max_examples=2000, deadline=2000)
@given(st.one_of(st.text(max_size=80), st.lists(FIELD, min_size=5, max_size=6).map(" ".join)))
@example("0 0 * * jul")
@example("* * L,1#2 * *")
def test_whatever_is_typed_is_refused_or_has_due_times_and_a_description(text: str) -> None:
    try:
        schedule = Schedule.parse(text, "Europe/Berlin")
    except InvalidArgument:
        return
    now = datetime(2026, 10, 24, 23, 59, 59, tzinfo=UTC)
    following = schedule.next(now)
    assert following is not None
    assert following > now
    assert schedule.last(following) == following
    assert schedule.describe()
    assert Schedule.parse(str(schedule), "Europe/Berlin") == schedule


# ---------------------------------------------------------------------------------------------- descriptions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 9 * * 1-5", "at 09:00 on Monday through Friday"),
        ("*/15 * * * *", "every 15th minute of every hour"),
        ("0 0 29 2 *", "at 00:00 on February 29"),
        ("@daily", "at 00:00 every day"),
        ("every 90s", "every 1 minute 30 seconds"),
        ("every 1h", "every hour"),
        ("every 2w", "every 14 days"),
    ],
)
def test_a_schedule_is_described_in_plain_language(text: str, said: str) -> None:
    assert Schedule.parse(text).describe() == said


def test_every_alias_is_known_and_described() -> None:
    assert all(Schedule.parse(alias).describe() for alias in ALIASES)
