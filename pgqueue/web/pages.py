"""What each page shows: a function a page, that asks in one transaction and returns what its template needs."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from pgqueue import database, flow_tree
from pgqueue.cron import Schedule, zone_named
from pgqueue.database import Rows
from pgqueue.errors import InvalidArgument, JobNotFound
from pgqueue.web import charts, search, shown
from pgqueue.web.source import Ask

PAGE = 50
FLOW_STATUSES = ("running", "stalled", "cancelling", "failed", "cancelled", "completed")
FIRST = 25  # queues on the overview
ROWS = 500  # of queues, tasks, workers on their pages
LINES = 300  # of a job's log, attempts, steps: the last ones
SHOWN = 100_000  # characters of a payload or a result
FLOW_LINES = 200  # of a tree; more is for the command line
RANGES: dict[str, tuple[timedelta, timedelta]] = {  # how far back, in which steps
    "15m": (timedelta(minutes=15), timedelta(minutes=1)),
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "6h": (timedelta(hours=6), timedelta(minutes=5)),
    # From an hour on they come from metrics by the hour: those by the minute of a day take a second with 100 tasks.
    "24h": (timedelta(hours=24), timedelta(hours=1)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
NO_HOUR: dict[str, Any] = {
    **dict.fromkeys(("completed", "failed", "dead", "per_second"), 0),
    **dict.fromkeys(("run_mean_seconds", *(f"{what}_p{n}_seconds" for what in ("wait", "run") for n in (50, 95, 99)))),
}
COUNTED_GROUPS = 20_000  # dead letters that are grouped; more says nothing new


@dataclass(frozen=True)
class Asked:
    """What a page is asked for."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    hide: Collection[str]
    now: datetime  # by the database's clock


@dataclass(frozen=True)
class Page:
    template: str
    title: str
    context: dict[str, Any]
    status: int = 200


Show = Callable[[Ask, Asked], Awaitable[Page]]


class NotThere(Exception):
    """There is no such queue, worker, recurring job."""


async def overview(ask: Ask, asked: Asked) -> Page:
    now = asked.now
    name, steps = await _timeline(ask, asked, now)
    queues = await _queues(ask, now)
    checks = await ask(database.checks())
    workers = await _workers(ask)
    groups = (await ask(database.dead_groups({"finished_after": _before(now, hours=1)}, most=COUNTED_GROUPS)))[:6]
    recent = steps[-6:] if len(steps) > 6 else steps
    span = (now - recent[0]["at"]).total_seconds() if recent else 1
    done, bad = (sum(step[what] for step in recent) for what in ("completed", "failed"))
    died = sum(step["dead"] for step in steps)
    return Page("overview.html", "Overview", {
        "range": name, "ranges": RANGES, "charts": _charts(steps),
        "alerts": (wrong := [each for each in checks if each["verdict"] != "ok"]), "kinds": _kinds(wrong),
        "checked": len(checks), "groups": groups,
        "queues": sorted(queues, key=_trouble)[:FIRST], "left_out": len(queues) - FIRST,
        "recent": await ask(database.recent_failure(8)),
        "total": {what: sum(queue[what] for queue in queues)
                  for what in ("pending", "scheduled", "blocked", "running", "dead")},
        "oldest": max((q for q in queues if q["oldest_waiting_seconds"] is not None),
                      key=lambda q: q["oldest_waiting_seconds"], default=None),
        "alive": sum(worker["state"] in ("alive", "draining") for worker in workers),
        "silent": sum(worker["state"] == "silent" for worker in workers),
        "slots": sum(worker["slots"] for worker in workers if worker["state"] in ("alive", "draining")),
        "per_second": done / max(span, 1), "fails": bad + sum(step["dead"] for step in recent),
        "fail_share": _share(bad + sum(step["dead"] for step in recent), done), "died": died,
        "sparks": {
            "waiting": charts.spark([step["waiting"] for step in steps], "c-wait"),
            "done": charts.spark([step["completed"] for step in steps], "c-done"),
            "failed": charts.spark([step["failed"] + step["dead"] for step in steps], "c-dead"),
            "oldest": charts.spark([step["oldest_waiting_seconds"] for step in steps], "c-wait"),
            "dead": charts.spark(list(itertools.accumulate(step["dead"] for step in steps)), "c-dead"),
            "running": charts.spark([step["running"] for step in steps], "c-run"),
        },
    })  # fmt: skip


async def queues(ask: Ask, asked: Asked) -> Page:
    found = await _queues(ask, asked.now)
    return Page("queues.html", "Queues", {"queues": found[:ROWS], "left_out": len(found) - ROWS})


async def queue(ask: Ask, asked: Asked) -> Page:
    name = asked.path["queue"]
    now = asked.now
    found = await _queues(ask, now, name)
    if not found:
        raise NotThere(f"there is no queue {name}")
    range_name, steps = await _timeline(ask, asked, now, queue=name)
    since = now - RANGES[range_name][0]
    return Page("queue.html", f"Queue {name}", {
        "queue": found[0], "range": range_name, "ranges": RANGES, "charts": _charts(steps),
        "why": await ask(database.why_queue(name)), "groups": await ask(database.group_status(name)),
        "tasks": await ask(database.stats(since, now, queue=name)),
        "work_waiting": await _work_waiting(ask, found[0], now), "weights": await _weights(ask, name),
    })  # fmt: skip


async def tasks(ask: Ask, asked: Asked) -> Page:
    now = asked.now
    name = _range_of(asked)
    found = await ask(database.stats(now - RANGES[name][0], now))
    for row in found:
        row["share"] = _share(row["failed"] + row["dead"], row["completed"])
    states = {row["task"]: row for row in await ask(database.task_status())}
    quiet = [state for task, state in states.items() if task not in {row["task"] for row in found}]
    return Page("tasks.html", "Tasks", {
        "tasks": sorted(found, key=lambda row: -row["completed"])[:ROWS], "states": states, "quiet": quiet[:ROWS],
        "left_out": max(len(found) - ROWS, 0) + max(len(quiet) - ROWS, 0),
        "range": name, "ranges": RANGES,
    })  # fmt: skip


async def jobs(ask: Ask, asked: Asked) -> Page:
    now = asked.now
    text = asked.query.get("q", "").strip()
    context: dict[str, Any] = {
        "jobs": [], "next": None, "wrong": None, "looked_at": False, "statuses": search.STATUSES,
        "names": search.NAMES, "may": [], "known_queues": [], "known_tasks": [],
    }  # fmt: skip
    try:
        wanted = search.parse(text, now)
        if wanted.id is not None:
            found = await ask(database.job_status(wanted.id))
        else:
            found = await ask(database.list_jobs(wanted.where, before=_id(asked.query.get("before")), batch=PAGE))
            if found and found[-1]["status"] is None:
                context["next"], context["looked_at"] = found.pop()["id"], True
            elif len(found) == PAGE:
                context["next"] = found[-1]["id"]
    except InvalidArgument as error:
        return Page("jobs.html", "Jobs", {**context, "wrong": str(error)}, 400)
    # For completion: what ended in the last hour or is on this page. Asking for all there is would count their jobs.
    seen = [*await ask(database.stats(now - timedelta(hours=1), now)), *found]
    context["known_queues"] = sorted({row["queue"] for row in seen})
    context["known_tasks"] = sorted({row["task"] for row in seen})
    context["jobs"] = found
    context["may"] = _bulk(wanted)
    if context["next"] is not None:
        context["next"] = "?" + urlencode({"q": text, "before": context["next"]})
    context["paged"] = "before" in asked.query
    return Page("jobs.html", "Jobs", context)


def _bulk(wanted: search.Search) -> list[str]:
    """What can be done with all that match."""
    statuses = set(wanted.statuses)
    live = {"pending", "scheduled", "blocked", "running"}
    found = []
    if wanted.id is None:
        found += ["retry_matching"] if (statuses and statuses <= {"dead"}) or statuses == {"cancelled"} else []
        found += ["cancel_matching"] if statuses and statuses <= live else []
        found += ["purge_matching"] if statuses in ({"dead"}, {"cancelled"}, {"completed"}) else []
    return found


async def job(ask: Ask, asked: Asked) -> Page:
    id = _id(asked.path["id"]) or 0
    found = await ask(database.job_status(id))
    if not found:
        raise JobNotFound(f"there is no job {id}, or it has been pruned")
    row = {**found[0], "progress": shown.redact(found[0]["progress"], asked.hide)}
    now = asked.now
    context: dict[str, Any] = {
        "job": row, "why": await ask(database.why(id)), "full": None, "steps": [], "lines": [],
        "share": shown.progress(row["progress"]), "most": LINES,
    }  # fmt: skip
    if ask.viewer.may_act:
        context["attempts"] = await ask(database.attempt(id, LINES))
        full = (await ask(database.job_detail(id)) or [{}])[0]
        context["full"] = {name: shown.redact(full.get(name), asked.hide) for name in ("payload", "result", "meta")}
        context["full"]["retry"] = full.get("retry")
        context["steps"] = [
            {**step, "result": shown.redact(step["result"], asked.hide)} for step in await ask(database.step(id, LINES))
        ]
        context["lines"] = await ask(database.log_line(id, LINES))
    else:
        context["attempts"] = await ask(database.job_history(id, LINES))
    context["flow"] = None if row["flow_id"] is None else await _flow(ask, row["flow_id"])
    context["stretch"] = _stretch(row, context["attempts"], now)
    context["commands"] = _commands(row)
    return Page("job.html", f"Job {id}", context)


async def flows(ask: Ask, asked: Asked) -> Page:
    status = asked.query.get("status") or None
    found = await ask(database.flow_status(status, _id(asked.query.get("before")), PAGE))
    more = {"before": found[-1]["id"], **({"status": status} if status else {})} if len(found) == PAGE else None
    return Page("flows.html", "Flows", {
        "flows": found, "status": status, "statuses": FLOW_STATUSES, "next": more and "?" + urlencode(more),
    })  # fmt: skip


async def flow(ask: Ask, asked: Asked) -> Page:
    id = _id(asked.path["id"]) or 0
    command = shown.command("flows", "show", id)
    return Page("flow.html", f"Flow {id}", {"flow": await _flow(ask, id), "command": command})


async def _flow(ask: Ask, id: int) -> dict[str, Any]:
    jobs = await ask(database.list_flow(id))
    lines = flow_tree.lines(jobs)
    return {"info": await ask(database.look_up_flow(id)), "lines": lines[:FLOW_LINES], "more": lines[FLOW_LINES:]}


def _commands(row: Mapping[str, Any]) -> list[str]:
    id, status = row["id"], row["status"]
    found = [shown.command("why", id), shown.command("jobs", "show", id)]
    if status in ("dead", "cancelled"):
        found.append(shown.command("jobs", "retry", id))
    elif status != "completed":
        found.append(shown.command("jobs", "cancel", id))
    return found


def _stretch(row: Mapping[str, Any], attempts: Rows, now: datetime) -> Any:
    """The life of the job as a bar: grey while it waited, coloured while it ran."""
    begin, end = row["enqueued_at"], row["finished_at"] or now
    spans = []
    for attempt in attempts:
        until = attempt["finished_at"] or (
            end if attempt["outcome"] in ("running", "completed") else attempt["started_at"]
        )
        words = f"attempt {attempt['attempt']}: {attempt['outcome']}, {shown.seconds(until - attempt['started_at'])}"
        spans.append((attempt["started_at"], until, OUTCOMES.get(attempt["outcome"], "c-wait"), words))
    return charts.stretch(begin, max(end, begin + timedelta(milliseconds=1)), spans)


OUTCOMES = {
    "completed": "c-done", "failed": "c-fail", "lost": "c-dead", "running": "c-run", "dead": "c-dead",
    "snoozed": "c-snooze", "released": "c-snooze", "cancelled": "c-snooze",
}  # fmt: skip


async def dead(ask: Ask, asked: Asked) -> Page:
    now = asked.now
    context: dict[str, Any] = {"wrong": None, "groups": []}
    try:
        wanted = search.parse(asked.query.get("q", ""), now)
        where = {name: value for name, value in wanted.where.items() if name != "status"}
        every = await ask(database.dead_groups(where, most=COUNTED_GROUPS))
        recent = {**where, "finished_after": _before(now, hours=1)}
        grown = {_group(row): row["jobs"] for row in await ask(database.dead_groups(recent, most=COUNTED_GROUPS))}
    except InvalidArgument as error:
        return Page("dead.html", "Dead letters", {**context, "wrong": str(error)}, 400)
    for row in every:
        row["grown"] = grown.get(_group(row), 0)
    context["total"] = sum(row["jobs"] for row in every)
    context["bounded"] = context["total"] >= COUNTED_GROUPS
    context["groups"] = every[:100]
    context["left_out"] = len(every) - 100
    name, steps = await _timeline(ask, asked, now)
    context |= {"range": name, "ranges": RANGES}
    context["chart"] = charts.bars(
        "Died", [step["at"] for step in steps], [charts.Series("dead", "c-dead", [step["dead"] for step in steps])]
    )
    return Page("dead.html", "Dead letters", context)


def _group(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["queue"], row["task"], row["fingerprint"]


async def recurring(ask: Ask, asked: Asked) -> Page:
    found = await ask(database.recurring_status())
    now = asked.now
    return Page("recurring.html", "Recurring jobs", {"rows": [(each, *_said(each, now, 1)) for each in found]})


async def recurring_job(ask: Ask, asked: Asked) -> Page:
    name = asked.path["name"]
    found = await ask(database.recurring_status(name))
    if not found:
        raise NotThere(f"there is no recurring job {name}")
    now = asked.now
    words, times = _said(found[0], now, 5)
    detail = None
    if ask.viewer.may_act:
        details = await ask(database.recurring_detail(name))
        detail = details[0] if details else None
    return Page("recurring_job.html", f"Recurring job {name}", {
        "status": found[0], "words": words, "times": times, "detail": detail, "zone": zone_named(found[0].timezone),
        "payload": None if detail is None else shown.redact(detail.payload, asked.hide),
        "runs": await ask(database.recurring_history(name, 25)),
    })  # fmt: skip


def _said(status: database.RecurringStatus, now: datetime, count: int) -> tuple[str, list[datetime]]:
    """In plain language, and the next due times."""
    try:
        schedule = Schedule.parse(status.schedule, status.timezone, starts_at=status.starts_at)
        words = schedule.describe()
    except InvalidArgument as error:
        return f"not understood: {error}", []
    times: list[datetime] = []
    # What no ticker has planned yet can be told all the same.
    at = schedule.next(now) if status.state == "new" else status.next_run_at
    while at is not None and (status.ends_at is None or at <= status.ends_at):
        times.append(at)
        if len(times) == count:
            break
        at = schedule.next(max(at, now - timedelta(days=1)))
    return words, times if status.state in ("new", "scheduled", "late", "paused", "broken") else []


async def workers(ask: Ask, asked: Asked) -> Page:
    found = await _workers(ask)
    jobs: dict[int, list[dict[str, Any]]] = {}
    for each in await ask(database.running_job(most=500)):
        jobs.setdefault(each["worker_id"], []).append({**each, "progress": shown.redact(each["progress"], asked.hide)})
    order = {"silent": 0, "alive": 1, "draining": 2, "lost": 3}
    found = sorted(found, key=lambda row: (order.get(row["state"], 9), -row["id"]))
    versions = {row["version"] for row in found if row["state"] in ("alive", "draining")}
    return Page("workers.html", "Workers", {
        "workers": [row for row in found if row["state"] != "lost"][:ROWS],
        "left_out": sum(row["state"] != "lost" for row in found) - ROWS,
        "lost": [row for row in found if row["state"] == "lost"][:20],
        "jobs": jobs, "versions": sorted(filter(None, versions)),
    })  # fmt: skip


async def system(ask: Ask, _: Asked) -> Page:
    checks = await ask(database.checks())
    return Page("system.html", "System", {
        "kinds": _kinds(checks), "server_version": await ask(database.server_version()),
        "sizes": await ask(database.table_sizes()), "gauges": await ask(database.gauges()),
        "held": await ask(database.held_snapshots(timedelta(seconds=10))) if ask.viewer.may_act else None,
        "audit": await ask(database.audit_log()),
    })  # fmt: skip


# --------------------------------------------------------------------------------------------- details


async def _queues(ask: Ask, now: datetime, name: str | None = None) -> Rows:
    """What each is now, and what it did in the last hour. (Of queue_stats, which would count what waits once more.)"""
    since = now - timedelta(hours=1)
    stats = {row["queue"]: row for row in await ask(database.stats(since, now, queue=name, by="queue"))}
    found = []
    for row in await ask(database.queue_status(name)):
        hour = stats.get(row["queue"], NO_HOUR)
        merged = {**hour, **row, "died": hour["dead"]}
        merged["share"] = _share(hour["failed"] + hour["dead"], hour["completed"])
        merged["unserved"] = not row["workers"] and row["pending"] + row["scheduled"] + row["running"] > 0
        found.append(merged)
    return found


async def _weights(ask: Ask, queue: str) -> str:
    """How its workers share their time: by weights they gave it, if they gave any."""
    serving = [row for row in await _workers(ask) if row["state"] in ("alive", "draining") and queue in row["queues"]]
    weights = sorted({row["weights"].get(queue, 1) for row in serving})
    return "" if weights in ([], [1]) else f"weight {', '.join(map(str, weights))}"


async def _work_waiting(ask: Ask, row: Mapping[str, Any], now: datetime) -> float | None:
    """Seconds, by what its jobs took in the last hour; of a queue that stands still, before."""
    mean = row["run_mean_seconds"]
    if mean is None:
        since = now - timedelta(days=30)
        mean = next((each["run_mean_seconds"] for each in
                     await ask(database.stats(since, now, queue=row["queue"], by="queue"))), None)  # fmt: skip
    return None if mean is None else float(row["pending"]) * float(mean)


def _trouble(queue: Mapping[str, Any]) -> tuple[bool, bool, float, str]:
    """What needs a look first."""
    waited = float(queue["oldest_waiting_seconds"] or 0)
    return not queue["unserved"], not queue["paused"], -waited, queue["queue"]


async def _timeline(ask: Ask, asked: Asked, now: datetime, **of: str) -> tuple[str, Rows]:
    name = _range_of(asked)
    back, step = RANGES[name]
    return name, await ask(database.timeline(now - back, now, step, **of))


def _range_of(asked: Asked) -> str:
    name = asked.query.get("range", "1h")
    return name if name in RANGES else "1h"


def _charts(steps: Rows) -> list[charts.Chart]:
    at = [step["at"] for step in steps]

    def of(*names: tuple[str, str, str]) -> list[charts.Series]:
        return [charts.Series(name, css, [step[column] for step in steps]) for name, css, column in names]

    return [
        charts.bars("Ended", at, of(("completed", "c-done", "completed"), ("failed, retried", "c-fail", "failed"),
                                    ("dead", "c-dead", "dead")), "attempts in each step"),
        charts.lines("Waiting", at, of(("waiting", "c-wait", "waiting"), ("running", "c-run", "running")),
                     "jobs at each time"),
        charts.lines("Wait", at, [*of(("p50", "c-p50", "wait_p50_seconds"), ("p95", "c-p95", "wait_p95_seconds"),
                                      ("p99", "c-p99", "wait_p99_seconds"),
                                      ("oldest waiting", "c-old", "oldest_waiting_seconds"))],
                     "rises: more workers", log=True, say=shown.seconds),
        charts.lines("Run", at, of(("p50", "c-p50", "run_p50_seconds"), ("p95", "c-p95", "run_p95_seconds"),
                                   ("p99", "c-p99", "run_p99_seconds")),
                     "rises: look at the handler", log=True, say=shown.seconds),
    ]  # fmt: skip


def _kinds(checks: Rows) -> list[tuple[str, Rows]]:
    """By kind, the worst first."""
    order = {"broken": 0, "warning": 1, "ok": 2}
    kinds: dict[str, Rows] = {}
    for each in sorted(checks, key=lambda row: order.get(row["verdict"], 1)):
        kinds.setdefault(each["name"], []).append(each)
    return list(kinds.items())


def _share(bad: int, good: int) -> float | None:
    return bad / (bad + good) if bad + good else None


async def _workers(ask: Ask) -> Rows:
    """With what each says of itself, which may be anything."""
    found = await ask(database.worker_status())
    for row in found:
        info = row["info"] if isinstance(row["info"], dict) else {}
        version, slots = info.get("version"), info.get("concurrency")
        row["version"] = version if isinstance(version, str) else None
        row["slots"] = slots if isinstance(slots, int) and 0 < slots < 100_000 else 0
        for name in ("weights", "reserved"):
            said = info.get(name)
            row[name] = {queue: n for queue, n in said.items() if isinstance(n, int)} if isinstance(said, dict) else {}
    return found


def _before(now: datetime, hours: int) -> str:
    return (now - timedelta(hours=hours)).astimezone(UTC).isoformat()


def _id(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else None
