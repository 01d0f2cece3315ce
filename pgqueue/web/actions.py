"""What an operator can do from the page: a verb each, with what a confirmation asks for and what is then called.

An action and its audit record are one transaction. Work on many jobs goes in batches, each with a record of its own;
what is left after BUSY_SECONDS is offered to be gone on with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode

from pgqueue import database
from pgqueue.errors import InvalidArgument, JobNotFound, PayloadError, PgqueueError
from pgqueue.web import search, shown
from pgqueue.web.source import Ask

BATCH = 1000
BUSY_SECONDS = 3.0
COUNTED = 1_000_000  # nobody needs to know more exactly how many it will be
COUNTING_MS = 400
SELECTED = 200  # jobs that can be named in one request
EDITED = 100_000  # characters of a payload that are shown for editing


@dataclass(frozen=True)
class Form:
    """What was sent: several targets, and one value a field."""

    targets: Sequence[str]
    values: Mapping[str, str]
    hide: Sequence[str] = ()

    def text(self, name: str) -> str | None:
        return self.values.get(name, "").strip() or None

    def span(self, name: str) -> timedelta | None:
        given = self.text(name)
        return None if given is None else search.span(given)

    def whole(self, name: str) -> int | None:
        given = self.text(name)
        if given is None:
            return None
        if not given.removeprefix("-").isdecimal() or len(given) > 18:
            raise InvalidArgument(f"{name.replace('_', ' ')} must be a whole number, not {given!r}")
        return int(given)

    def number(self, name: str) -> float | None:
        given = self.text(name)
        try:
            return None if given is None else float(given)
        except ValueError:
            raise InvalidArgument(f"{name.replace('_', ' ')} must be a number, not {given!r}") from None

    @property
    def target(self) -> str:
        return self.targets[0]


@dataclass(frozen=True)
class Field:
    name: str
    label: str
    hint: str = ""
    kind: Literal["text", "json", "choice"] = "text"
    choices: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True)
class Done:
    """What to tell, and what is to be gone on with."""

    said: str
    detail: dict[str, Any] = field(default_factory=dict)
    after_id: int | None = None
    so_far: int = 0


Perform = Callable[[Ask, Form], Awaitable[Done]]


@dataclass(frozen=True)
class Verb:
    title: str  # with {} for the target
    perform: Perform
    back: str  # where to go afterwards, with {} for the target
    fields: tuple[Field, ...] = ()
    warning: str = ""
    many: bool = False  # the target is a search
    danger: bool = False


REASON = Field("reason", "Reason", "kept with it, and in the audit record")
FOR = Field("for", "For", "30m, 2h, 1d; empty: until somebody resumes it")


def _id(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidArgument(f"{text!r} is not the id of a job")
    return int(text)


async def _until(ask: Ask, form: Form) -> datetime | None:
    span = form.span("for")
    return None if span is None else await ask(database.clock()) + span


# ----------------------------------------------------------------------------------------------- one job


async def _retry(ask: Ask, form: Form) -> Done:
    id = _id(form.target)
    payload = await _edited(ask, id, form)
    wait, attempts = form.span("in"), form.whole("max_attempts")
    run_at = None if wait is None else await ask(database.clock()) + wait
    status = await ask(database.retry(id, payload=payload, max_attempts=attempts, run_at=run_at))
    detail = {"payload_edited": payload is not None, "max_attempts": attempts, "in": form.text("in")}
    return Done(f"Job {id} is {status} again.", detail)


async def _edited(ask: Ask, id: int, form: Form) -> dict[str, Any] | None:
    """The payload if it was changed, with what the page hides put back."""
    given = form.text("payload")
    if given is None:
        return None
    try:
        edited = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is not JSON: {error}") from None
    if not isinstance(edited, dict):
        raise PayloadError('a payload is a JSON object of arguments: {"order_id": 7}')
    found = await ask(database.job_detail(id))
    if not found:
        raise JobNotFound(f"there is no job {id}, or it has been pruned")
    stored = found[0]["payload"]
    try:
        whole = cast(dict[str, Any], shown.restore(edited, stored))
    except ValueError as error:
        raise PayloadError(str(error)) from None
    # As texts: to Python, true is 1.
    return None if json.dumps(whole, sort_keys=True) == json.dumps(stored, sort_keys=True) else whole


async def payload_of(ask: Ask, id: str, hide: Sequence[str]) -> str:
    """As the form for editing shows it; empty, which leaves it as it is, if the form could not be sent back."""
    found = await ask(database.job_detail(_id(id)))
    text = shown.pretty(shown.redact(found[0]["payload"], hide)) if found else ""
    return text if len(text) <= EDITED else ""


async def _cancel(ask: Ask, form: Form) -> Done:
    id, reason = _id(form.target), form.text("reason")
    became = await ask(database.cancel(id, reason))
    said = f"Job {id} was asked to stop." if became == "running" else f"Job {id} is {became}."
    return Done(said, {"reason": reason, "became": became})


async def _run_now(ask: Ask, form: Form) -> Done:
    id = _id(form.target)
    before = (await ask(database.look_up(id))).status
    found = await ask(database.job_status(id))
    if found and found[0]["waits_for"] == "parents":
        raise InvalidArgument(f"job {id} runs when the jobs of its flow have ended that it runs after")
    if before not in ("scheduled", "blocked"):
        raise InvalidArgument(f"job {id} is {before}: only a scheduled or blocked one can be run now")
    # The same as its remedy in why(): in one transaction, so that it is never seen cancelled.
    await ask(database.cancel(id, "run now"))
    status = await ask(database.retry(id))
    return Done(f"Job {id} is {status}, with fresh attempts.", {"before": before})


async def _cancel_flow(ask: Ask, form: Form) -> Done:
    id, reason = _id(form.target), form.text("reason")
    done = await ask(database.cancel_flow(id, reason))
    said = f"{shown.number(done.cancelled)} jobs of flow {id} cancelled, {shown.number(done.asked)} asked to stop."
    return Done(said, {"reason": reason, **done._asdict()})


# ------------------------------------------------------------------------------------------ several jobs


def _each(verb: str, one: Callable[[int, Form], database.Call[Any]]) -> Perform:
    """Those that were ticked: that something cannot be done with one does not stop the others."""

    async def perform(ask: Ask, form: Form) -> Done:
        ids = list(dict.fromkeys(_id(text) for text in form.targets))[:SELECTED]
        done, refused = 0, []
        for id in ids:
            try:
                async with ask.undone_if_it_fails():
                    await ask(one(id, form))
                done += 1
            except PgqueueError as error:
                refused.append(str(error))
        said = f"{verb} {shown.number(done)} of {shown.number(len(ids))} jobs."
        return Done(
            f"{said} {refused[0]}" if refused else said, {"ids": ids, "done": done, "reason": form.text("reason")}
        )

    return perform


async def _wanted(ask: Ask, form: Form) -> search.Search:
    wanted = search.parse(form.target, await ask(database.clock()))
    if not wanted.statuses:
        raise InvalidArgument("say which status is meant, for example status:dead")
    return wanted


async def count(ask: Ask, text: str) -> tuple[int | None, bool]:
    """How many match, and whether there may be more. None: to count them would take too long; a bulk action goes by
    batches, and can be stopped."""
    where = search.parse(text, await ask(database.clock())).where
    for most in (COUNTED, BATCH):
        found = await ask.within(COUNTING_MS, database.count_jobs(where, most=most))
        if found is not None:
            return found, found == most
    return None, True


def _finished(wanted: search.Search, known: Sequence[str]) -> Any:
    if len(wanted.statuses) != 1 or wanted.statuses[0] not in known:
        raise InvalidArgument(f"only {' or '.join(known)} jobs, one status at a time: status:{known[0]}")
    return wanted.statuses[0]


async def _retry_matching(ask: Ask, form: Form) -> Done:
    wanted = await _wanted(ask, form)
    status = _finished(wanted, ("dead", "cancelled"))
    told = await ask(database.retry_many(
        wanted.to_finish(status), status=status, spread=form.span("spread") or timedelta(0),
        after_id=form.whole("after_id") or 0, batch=BATCH,
    ))  # fmt: skip
    so_far = (form.whole("so_far") or 0) + told.retried
    kept = f" {told.skipped} stay, because another job has their key." if told.skipped else ""
    detail = {"retried": told.retried, "skipped": told.skipped, "spread": form.text("spread")}
    return Done(f"Retried {shown.number(so_far)} jobs.{kept}", detail, told.last_id, so_far)


async def _cancel_matching(ask: Ask, form: Form) -> Done:
    wanted = await _wanted(ask, form)
    reason = form.text("reason")
    told = await ask(
        database.cancel_many(wanted.where, reason=reason, after_id=form.whole("after_id") or 0, batch=BATCH)
    )
    so_far = (form.whole("so_far") or 0) + told.cancelled + told.asked
    asked = f" {told.asked} running ones were asked to stop." if told.asked else ""
    detail = {"cancelled": told.cancelled, "asked": told.asked, "reason": reason}
    return Done(f"Cancelled {shown.number(so_far)} jobs.{asked}", detail, told.last_id, so_far)


async def _purge_matching(ask: Ask, form: Form) -> Done:
    wanted = await _wanted(ask, form)
    status = _finished(wanted, ("dead", "cancelled", "completed"))
    call = database.purge(wanted.to_finish(status), status=status, after_id=form.whole("after_id") or 0, batch=BATCH)
    told = await ask(call)
    so_far = (form.whole("so_far") or 0) + told.purged
    return Done(f"Removed {shown.number(so_far)} jobs for good.", {"purged": told.purged}, told.last_id, so_far)


# ------------------------------------------------------------------------- queues, tasks, workers, recurring


async def _pause_queue(ask: Ask, form: Form) -> Done:
    await ask(database.pause(form.target, until=await _until(ask, form), reason=form.text("reason")))
    return Done(f"Queue {form.target} is paused.", {"for": form.text("for"), "reason": form.text("reason")})


async def _resume_queue(ask: Ask, form: Form) -> Done:
    was = await ask(database.resume(form.target))
    return Done(f"Queue {form.target} {'goes on' if was else 'was not paused'}.", {"was_paused": was})


LIMITS = {
    "max_running": "so many at the same time, over all workers", "rate": "so many starts …",
    "rate_seconds": "… within so many seconds", "rate_burst": "so many at once",
    "group_max_running": "so many of one group at the same time", "group_rate": "so many starts of one group …",
    "group_rate_seconds": "… within so many seconds", "max_depth": "full when so many wait",
    "shed_below": "when full: cancel those below this priority; empty: refuse all",
    "max_attempts": "then it is a dead letter", "timeout_seconds": "an attempt may take so long",
    "boost_seconds": "the head start of one point of priority",
}  # fmt: skip


async def _set_queue(ask: Ask, form: Form) -> Done:
    given: dict[str, float | None] = {
        name: form.number(name) if name.endswith("rate_seconds") else form.whole(name)
        for name in LIMITS if name in form.values
    }  # fmt: skip
    now = (await ask(database.queue_status(form.target)) or [{}])[0]
    changed = {name: value for name, value in given.items() if value != now.get(name)}
    if not changed:
        return Done(f"Nothing changed in queue {form.target}.")
    await ask(database.set_queue(form.target, changed))
    told = ", ".join(f"{name} {'back to the default' if value is None else value}" for name, value in changed.items())
    return Done(f"Queue {form.target}: {told}.", {"changed": changed})


async def settings_of(ask: Ask, queue: str) -> dict[str, str]:
    now = (await ask(database.queue_status(queue)) or [{}])[0]
    return {name: f"{now[name]:g}" if isinstance(now[name], float) else str(now[name])
            for name in LIMITS if now.get(name) is not None}  # fmt: skip


async def _pause_task(ask: Ask, form: Form) -> Done:
    await ask(database.pause_task(form.target, until=await _until(ask, form), reason=form.text("reason")))
    return Done(f"Task {form.target} is paused.", {"for": form.text("for"), "reason": form.text("reason")})


async def _resume_task(ask: Ask, form: Form) -> Done:
    was = await ask(database.resume_task(form.target))
    return Done(f"Task {form.target} {'goes on' if was else 'was not paused'}.", {"was_paused": was})


async def _open_circuit(ask: Ask, form: Form) -> Done:
    await ask(database.force_circuit(form.target, "open", form.text("reason")))
    return Done(f"The circuit of {form.target} is open.", {"reason": form.text("reason")})


async def _close_circuit(ask: Ask, form: Form) -> Done:
    await ask(database.force_circuit(form.target, "closed"))
    return Done(f"The circuit of {form.target} is closed.")


async def _pause_recurring(ask: Ask, form: Form) -> Done:
    await ask(database.pause_recurring(form.target, pause_for=form.span("for"), reason=form.text("reason")))
    return Done(f"{form.target} is paused.", {"for": form.text("for"), "reason": form.text("reason")})


async def _resume_recurring(ask: Ask, form: Form) -> Done:
    was = await ask(database.resume_recurring(form.target))
    return Done(f"{form.target} {'goes on' if was else 'was not paused'}.", {"was_paused": was})


async def _run_recurring(ask: Ask, form: Form) -> Done:
    id = await ask(database.run_recurring_now(form.target))
    return Done(f"{form.target}: job {id} was enqueued.", {"job_id": id})


async def _drain(ask: Ask, form: Form) -> Done:
    id = _id(form.target)
    was = await ask(database.drain(id))
    return Done(f"Worker {id} {'finishes what it runs and ends' if was else 'is gone already'}.", {"was_alive": was})


_SPREAD = Field(
    "spread", "Spread over", "10m: start at random times within this, so that what recovers is not hit at once"
)

VERBS: dict[str, Verb] = {
    "retry": Verb("Retry job {}", _retry, "/jobs/{}", (
        Field("payload", "Payload", f"change it if you like; {shown.HIDDEN} keeps what is hidden, nothing keeps it all",
              "json"),
        Field("max_attempts", "Attempts", "empty: as before"), Field("in", "Not before", "10m from now, say"),
    )),
    "cancel": Verb("Cancel job {}", _cancel, "/jobs/{}", (REASON,), "A running job is asked to stop.", danger=True),
    "run_now": Verb("Run job {} now", _run_now, "/jobs/{}", (), "It starts over, with fresh attempts."),
    "retry_selected": Verb("Retry {} selected jobs", _each("Retried", lambda id, _: database.retry(id)), "/jobs?{}"),
    "cancel_selected": Verb("Cancel {} selected jobs", _each(
        "Cancelled", lambda id, form: database.cancel(id, form.text("reason"))), "/jobs?{}", (REASON,), danger=True),
    "retry_matching": Verb("Retry all jobs that match", _retry_matching, "/jobs?{}", (_SPREAD,), many=True),
    "cancel_matching": Verb("Cancel all jobs that match", _cancel_matching, "/jobs?{}", (REASON,), many=True,
                            danger=True),
    "purge_matching": Verb("Remove all jobs that match", _purge_matching, "/jobs?{}", (), "They are gone for good.",
                           many=True, danger=True),
    "pause_queue": Verb("Pause queue {}", _pause_queue, "/queues/{}", (FOR, REASON),
                        "Running jobs go on; nothing more starts."),
    "resume_queue": Verb("Resume queue {}", _resume_queue, "/queues/{}"),
    "set_queue": Verb("Settings of queue {}", _set_queue, "/queues/{}", tuple(
        Field(name, name.replace("_", " ").capitalize(), hint) for name, hint in LIMITS.items()
    ), "They hold at once, for jobs that wait already too. Empty: no limit, or the default."),
    "pause_task": Verb("Pause task {}", _pause_task, "/tasks", (FOR, REASON),
                       "Its jobs wait; those of other tasks go on."),
    "resume_task": Verb("Resume task {}", _resume_task, "/tasks"),
    "open_circuit": Verb("Open the circuit of {}", _open_circuit, "/tasks", (REASON,),
                         "No job of it starts until the circuit is probed."),
    "close_circuit": Verb("Close the circuit of {}", _close_circuit, "/tasks"),
    "pause_recurring": Verb("Pause {}", _pause_recurring, "/recurring/{}", (FOR, REASON), "Nothing is due meanwhile."),
    "resume_recurring": Verb("Resume {}", _resume_recurring, "/recurring/{}"),
    "run_recurring": Verb("Run {} now", _run_recurring, "/recurring/{}", (), "One job more; its next due time stays."),
    "cancel_flow": Verb("Cancel flow {}", _cancel_flow, "/flows/{}", (REASON,),
                        "All of it that waits is cancelled, what runs is asked to stop.", danger=True),
    "drain": Verb("Drain worker {}", _drain, "/workers", (), "It claims no more, finishes what it runs, and ends.",
                  danger=True),
}  # fmt: skip


def back_of(name: str, form: Form) -> str:
    """Where to go afterwards: always a page of ours."""
    verb = VERBS[name]
    if verb.back.endswith("?{}"):
        return verb.back.format(urlencode({"q": form.target if verb.many else form.values.get("q", "")}))
    return verb.back.format(quote(form.target, safe=""))


async def carry_out(
    asking: Callable[[], Any], name: str, form: Form, actor: str, address: str | None
) -> tuple[Done, bool]:
    """Does it, with its record. True: it was not done with in time, and goes on after Done.after_id."""
    verb, began = VERBS[name], time.monotonic()
    while True:
        async with asking() as ask:
            done = await verb.perform(ask, form)
            target = form.target if len(form.targets) == 1 else f"{len(form.targets)} jobs"
            await ask(database.record_audit(actor, address, name, target, done.detail))
        if done.after_id is None:
            return done, False
        if time.monotonic() - began > BUSY_SECONDS:
            return done, True
        form = Form(
            form.targets,
            {**form.values, "after_id": str(done.after_id), "so_far": str(done.so_far)},
            form.hide,
        )
