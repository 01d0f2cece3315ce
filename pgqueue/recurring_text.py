"""How recurring jobs are shown to people: as tables, and in words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo

from rich.markup import escape
from rich.table import Table

from pgqueue.cron import Schedule, zone_named
from pgqueue.database import RecurringDetail, RecurringRun, RecurringStatus
from pgqueue.errors import InvalidArgument


def list_table(found: Iterable[RecurringStatus]) -> Table:
    table = _table("name", "state", "schedule", "zone", "task", "next", "last due", "last job", "owner")
    for each in found:
        zone = each.timezone
        table.add_row(
            each.name, _state(each), escape(each.schedule), escape(zone), f"{each.task} in {each.queue}",
            _at(next_of(each), zone), _at(each.last_due_at, zone), _last_job(each), _owner(each),
        )  # fmt: skip
    return table


def facts_table(status: RecurringStatus, detail: RecurringDetail) -> Table:
    zone = status.timezone
    of_jobs = {
        "group": detail.group_key, "priority": detail.priority or None, "max attempts": detail.max_attempts,
        "retry": detail.retry,
        "timeout": detail.timeout_seconds and f"{detail.timeout_seconds} s", "tags": detail.tags,
        "kept": detail.retain_for, "meta": detail.meta,
    }  # fmt: skip
    facts = {
        "schedule": f"{status.schedule}  ({_described(status)})", "zone": zone, "state": _state(status),
        "task": f"{status.task} in queue {status.queue}", "payload": json.dumps(detail.payload, ensure_ascii=False),
        "next": _both(next_of(status), zone), "last job": _last_job(status), "last error": status.last_error,
        "missed": _both(status.missed_at, zone),
        "catch-up": status.catch_up + (f", at most {detail.catch_up_max}" if status.catch_up == "all" else ""),
        "overlap": status.overlap, "jitter": f"up to {status.jitter}" if status.jitter else None,
        "starts": _both(status.starts_at, zone), "ends": _both(status.ends_at, zone),
        "expires": detail.expires_in and f"{detail.expires_in} after it is due",
        "jobs": ", ".join(f"{key} {each}" for key, each in of_jobs.items() if each is not None),
        "owner": _whose(status),
    }  # fmt: skip
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    table.add_row("name", escape(status.name), style="bold")
    for key, fact in facts.items():
        if fact:
            table.add_row(key, fact if key == "state" else escape(str(fact)))
    return table


def runs_table(runs: Iterable[RecurringRun], zone: str) -> Table:
    table = _table("due", "dealt with", "outcome", "job", "status", "error")
    for run in runs:
        table.add_row(
            _at(run.due_at, zone), _at(run.fired_at, zone), run.outcome, str(run.job_id or ""), run.status or "",
            escape(run.error or ""),
        )  # fmt: skip
    return table


def next_table(times: Iterable[datetime], zone: str) -> Table:
    now = datetime.now(UTC)
    table = _table(zone, "UTC", "in")
    for at in times:
        local = f"{at.astimezone(_zone(zone)):%a %Y-%m-%d %H:%M:%S %z}"
        table.add_row(local, f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}", _rough(at - now))
    return table


def next_of(status: RecurringStatus) -> datetime | None:
    return status.next_run_at if status.state in ("scheduled", "late", "broken") else None


# --------------------------------------------------------------------------------------------- in words

_STYLES = {"scheduled": "green", "late": "red", "broken": "red", "paused": "yellow", "new": "blue"}


def _state(status: RecurringStatus) -> str:
    why = {"broken": status.broken_reason, "paused": status.paused_reason}.get(status.state)
    ends = status.paused_until if status.state == "paused" else None
    until = f" until {_at(ends, status.timezone)}" if ends else ""
    late = " (does a ticker run? `pgqueue cron`)" if status.state == "late" else ""
    style = _STYLES.get(status.state, "dim")
    return f"[{style}]{status.state}[/]{until}{late}" + (f": {escape(why)}" if why else "")


def _described(status: RecurringStatus) -> str:
    try:
        return Schedule.parse(status.schedule).describe()
    except InvalidArgument:
        return "not understood"


def _last_job(status: RecurringStatus) -> str:
    if status.last_job_id is None:
        return ""
    return f"{status.last_job_id} {status.last_status or 'pruned'}"


def _owner(status: RecurringStatus) -> str:
    return status.owner + (" (edited)" if status.edited_at else "")


def _whose(status: RecurringStatus) -> str:
    if status.owner == "operator":
        return "operator: made at run time, no app touches it"
    if status.edited_at is None:
        return f"code: {status.source} declares it"
    return f"code: {status.source} declares it; edited {_at(status.edited_at, 'UTC')} UTC, until that changes"


def _zone(name: str) -> tzinfo:
    try:
        return zone_named(name)
    except InvalidArgument:
        return UTC


def _at(at: datetime | None, zone: str) -> str:
    return "" if at is None else f"{at.astimezone(_zone(zone)):%Y-%m-%d %H:%M:%S}"


def _both(at: datetime | None, zone: str) -> str | None:
    if at is None:
        return None
    utc = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return utc if zone == "UTC" else f"{at.astimezone(_zone(zone)):%Y-%m-%d %H:%M:%S %Z} ({utc})"


def _rough(span: timedelta) -> str:
    total = int(span.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if total >= 2 * size:
            return f"{total / size:.0f} {unit}"
    return f"{total} s"


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 1, 0, 0), header_style="bold underline")
