"""Bad input at every public door: SQL, the Python client, the command line, the web page.

Whatever comes in, what comes out is an answer or an error of ours; and after an error everything is as it was. 4,000 inputs by
default, the same ones each time; PGQUEUE_FUZZ makes it more, PGQUEUE_FUZZ_SEED others. An input that did harm is in the
failure's message.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
import typer.main
from psycopg import sql
from psycopg.types.json import Jsonb

import pgqueue
from pgqueue import cli
from pgqueue import database as db
from pgqueue.cron import Schedule
from pgqueue.errors import PgqueueError
from pgqueue.web import actions
from pgqueue.web.app import PAGES
from tests.cli.conftest import Run
from tests.fuzz import nasty
from tests.fuzz.nasty import Nasty
from tests.support import FIXED, Conn, claim, enqueue, rows, value, worker
from tests.web.conftest import Serve

COUNT = int(os.environ.get("PGQUEUE_FUZZ", "4000"))
SEED = os.environ.get("PGQUEUE_FUZZ_SEED", "0")

COUNTED = (
    "select sum(n) from (select count(*) as n from pgqueue.job union all select count(*) from pgqueue.flow union all"
    " select count(*) from pgqueue.flow_node union all select count(*) from pgqueue.queue union all"
    " select count(*) from pgqueue.lane union all select count(*) from pgqueue.recurring_job union all"
    " select count(*) from pgqueue.task union all select count(*) from pgqueue.worker union all"
    " select count(*) from pgqueue.key_hold union all select count(*) from pgqueue.queue_group union all"
    " select count(*) from pgqueue.job_attempt union all select count(*) from pgqueue.audit) c"
)


def inputs(door: str, share: float) -> Iterator[tuple[int, Nasty]]:
    for number in range(int(COUNT * share)):
        yield number, Nasty(f"{SEED} {door} {number}")


@pytest.fixture
def world(conn: Conn) -> Conn:
    """Something of each kind, so that there is what could be harmed."""
    one = worker(conn, ["q"], 86_400)
    for key in ("a", "b", "c", "d"):
        enqueue(conn, key=key, retry=FIXED)
    died, cancelled, _ = claim(conn, one, 3)
    db.execute(conn, db.fail(one, [db.Failure(died.id, died.token, "boom", fatal=True)]))
    db.execute(conn, db.cancel(cancelled.id))
    db.execute(conn, db.cancel_claimed(one, [(cancelled.id, cancelled.token)]))
    node = {"queue": "q", "task": "t"}
    db.execute(conn, db.enqueue_flow({"jobs": [node, {**node, "after": [0]}]}))
    db.execute(conn, db.set_recurring("r", {"task": "t", "every": "1 hour"}))
    return conn


# ----------------------------------------------------------------------------------------------------- SQL

# Bad sequences, names and so on are refused by PostgreSQL before a function of ours is called; these are what is left.
TYPES: dict[str, Callable[[Nasty], Any]] = {
    "text": Nasty.text,
    "jsonb": lambda n: Jsonb(n.one([n.payload, n.policy, n.flow, lambda **_: n.settings(
        n.one([nasty.SETTINGS, nasty.OF_RECURRING, nasty.OF_TASKS, nasty.OF_FILTERS]), True)])(in_sql=True)),
    "integer": lambda n: max(min(n.often(n.small(), n.integer), 2**31 - 1), -(2**31)),
    "smallint": lambda n: max(min(n.integer(), 32767), -32768),
    "bigint": lambda n: max(min(n.often(n.small(), n.integer), 2**63 - 1), -(2**63)),
    "boolean": lambda n: n.one([True, False]),
    "real": lambda n: n.one([0, 1, -1, 0.05, 1e-30, 1e30, float("nan"), float("inf")]),
    "double precision": lambda n: n.one([0.0, 1.0, -1.0, 60.0, 1e308, float("nan"), float("inf"), float("-inf")]),
    "interval": lambda n: n.one(["0", "1 hour", "1 month", "-1 day", "3651 days", "100000000 days", "178000000 years", "-100000 years", "1 us"]),
    "timestamp with time zone": lambda n: n.one(
        ["2100-01-01Z", "1970-01-01Z", "infinity", "-infinity", "4713-01-01 BC", "294276-12-31Z", "2020-01-01Z", "9999-12-31Z"]),
}  # fmt: skip


def argument(n: Nasty, kind: str) -> Any:
    if n.random.random() < 0.12:
        return None
    if kind.endswith("[]"):
        made = [argument(n, kind[:-2]) for _ in range(n.random.randrange(4))]
        return [each.obj if isinstance(each, Jsonb) else each for each in made] if kind == "jsonb" else made
    return TYPES[kind](n)


def functions(conn: Conn) -> list[tuple[str, list[str], int]]:
    """Name, types of arguments, how many of them have a default: of all that any role may call."""
    found = rows(
        conn,
        "select p.proname as name, array(select format_type(t, null) from unnest(p.proargtypes) t) as types,"
        " p.pronargdefaults as optional from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'pgqueue' and exists (select 1 from unnest('{producer,worker,operator,reader}'::text[]) r"
        " where has_function_privilege('pgqueue_' || r, p.oid, 'execute')) order by 1, 2",
    )
    return [(each["name"], each["types"], each["optional"]) for each in found]


@pytest.mark.timeout(0)
def test_sql(world: Conn) -> None:
    known = functions(world)
    assert len(known) > 60
    assert {kind.removesuffix("[]") for _, types, _ in known for kind in types} <= TYPES.keys()
    before = value(world, COUNTED)
    codes: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    world.execute("set statement_timeout = '5s'")
    world.autocommit = False
    for number, n in inputs("sql", 0.5):
        name, types, optional = n.one(known)
        given = [argument(n, kind) for kind in types[: len(types) - n.random.randrange(optional + 1)]]
        casts = sql.SQL(", ").join(sql.SQL("%s::") + sql.SQL(kind) for kind, _ in zip(types, given, strict=False))
        statement = sql.SQL("select * from pgqueue.{}({})").format(sql.Identifier(name), casts)
        try:
            world.execute(statement, given).fetchall()
            codes["fine"] += 1
        except psycopg.Error as error:
            codes[error.sqlstate or "none"] += 1
            if not (error.sqlstate or "").startswith("PQ"):
                wrong[f"{name} {error.sqlstate}"] = f"input {number}: {tuple(given)!r}: {error.diag.message_primary}"
        finally:
            world.rollback()
    world.autocommit = True
    assert value(world, COUNTED) == before
    assert not wrong, "\n".join(f"{what}: {why}" for what, why in wrong.items())
    assert codes["fine"] > 100
    assert codes["PQ001"] > 100
    print(dict(codes))


# -------------------------------------------------------------------------------------------------- Python


def options(n: Nasty) -> dict[str, Any]:
    """What may be said of a job: mostly one thing that is odd, so that it is not hidden by another."""
    known: dict[str, Callable[[], Any]] = {
        "key": n.any_text, "on_conflict": lambda: n.one(["skip", "raise", "replace", *n.one([[], [n.any_text()]])]), "key_ttl": n.interval,
        "priority": lambda: n.often(n.small(), n.scalar), "run_at": lambda: n.one(nasty.MOMENTS), "run_in": n.interval,
        "expires_at": lambda: n.one(nasty.MOMENTS), "expires_in": n.interval, "max_attempts": lambda: n.often(n.small(), n.scalar),
        "retry": n.policy, "tags": lambda: n.often([n.any_text()], n.json), "meta": lambda: n.often({"m": n.json(1)}, n.json),
        "retain_for": n.interval, "group": n.any_text, "timeout_seconds": lambda: n.often(n.small(), n.scalar),
    }  # fmt: skip
    return {name: known[name]() for name in n.random.sample(list(known), n.one([0, 1, 1, 2, 3]))}


def client_calls(n: Nasty, app: pgqueue.App, conn: Conn) -> dict[str, Callable[[], Any]]:
    def where() -> dict[str, Any]:
        return n.settings(nasty.OF_FILTERS)

    def a_filter() -> db.Filter:
        return db.Filter(queue=n.often("q", n.any_text), task=n.any_text(), error=n.any_text(), tag=n.any_text(),
                         finished_after=n.one(nasty.MOMENTS), fingerprint=n.any_text(), group_key=n.any_text())  # fmt: skip

    def using() -> Any:
        said = options(n)
        for name in ("key_ttl", "run_in", "expires_in", "retain_for"):
            if name in said:
                said[name] = n.often(said[name], lambda: n.one([*nasty.FLOATS, "soon", None]))
        if "timeout_seconds" in said:
            del said["timeout_seconds"]
            said["timeout"] = n.one([*nasty.FLOATS, *nasty.LENGTHS])
        return app.using(n.name(), **said)

    run: Callable[[db.Call[Any]], Any] = lambda call: db.execute(conn, call)  # noqa: E731
    many = [n.often({"a": 1}, n.payload) for _ in range(n.random.randrange(4))]
    return {
        "enqueue": lambda: run(db.enqueue(n.name(), n.name(), n.often({"a": 1}, n.payload), **options(n))),
        "enqueue_many": lambda: run(db.enqueue_many(
            n.name(), n.name(), many, keys=[n.any_text() for _ in many] if n.small() > 3 else None,
            priorities=[n.small() for _ in range(len(many))] if n.small() > 5 else None,
            **{name: given for name, given in options(n).items() if name != "key"})),
        "app.enqueue": lambda: using().enqueue(**{"a": n.json()}),
        "app.enqueue_many": lambda: using().enqueue_many([{"a": n.json()} for _ in range(n.random.randrange(3))]),
        "enqueue_flow": lambda: run(db.enqueue_flow(n.flow())),
        "set_queue": lambda: app.set_queue(n.name(), **{k: v for k, v in n.settings(nasty.SETTINGS).items() if k != "queue"}),
        "set_task": lambda: app.set_task(n.name(), **n.settings(nasty.OF_TASKS)),
        "set_defaults": lambda: run(db.set_defaults(n.settings(nasty.SETTINGS))),
        "set_recurring": lambda: run(db.set_recurring(n.name(), {"task": "t", "every": "1 hour", **n.settings(nasty.OF_RECURRING)})),
        "reconcile_recurring": lambda: run(db.reconcile_recurring(n.name(), {n.name(): n.settings(nasty.OF_RECURRING)})),
        "recurring.set": lambda: app.recurring.set(
            n.name(), n.one(nasty.CRONS), app.using("t").s(a=1), tz=n.often("UTC", lambda: n.one(nasty.ZONES)),
            **n.settings(["jitter", "catch_up", "catch_up_max", "overlap", "expires_in", "priority", "starts_at", "ends_at"])),
        "schedule": lambda: Schedule.parse(n.one([*nasty.CRONS, n.any_text()]), n.often("UTC", lambda: n.one(nasty.ZONES))).describe(),
        "pause": lambda: app.pause(n.name(), until=n.one([None, *nasty.MOMENTS]), reason=n.any_text()),
        "pause_group": lambda: app.pause_group(n.name(), n.any_text(), until=n.one([None, *nasty.MOMENTS])),
        "pause_task": lambda: app.pause_task(n.name(), until=n.one([None, *nasty.MOMENTS]), reason=n.any_text()),
        "pause_recurring": lambda: run(db.pause_recurring(n.often("r", n.any_text), until=None, pause_for=n.interval())),
        "resume": lambda: (app.resume(n.any_text()), app.resume_task(n.any_text()), app.resume_group(n.any_text(), n.any_text())),
        "delete_queue": lambda: app.delete_queue(n.any_text()),
        "retry": lambda: app.retry(n.often(n.small(), n.integer), payload=n.often(None, n.payload), max_attempts=n.often(3, n.scalar),
                                   run_at=n.one([None, *nasty.MOMENTS])),
        "cancel": lambda: app.cancel(n.integer(), n.any_text()),
        "job": lambda: app.job(n.integer()).status(),
        "flow": lambda: app.flow(n.integer()).status(),
        "retry_many": lambda: run(db.retry_many(a_filter(), status=n.one(["dead", "cancelled", n.text()]), spread=n.interval(),
                                                after_id=n.small(), batch=n.often(10, n.small))),
        "purge": lambda: run(db.purge(a_filter(), status=n.one(["dead", "completed", n.text()]), batch=n.often(10, n.small))),
        "cancel_many": lambda: run(db.cancel_many(where(), reason=n.any_text(), batch=n.often(10, n.small))),
        "list_jobs": lambda: run(db.list_jobs(where(), before=n.one([None, n.small()]), batch=n.often(10, n.small))),
        "list_dead": lambda: run(db.list_dead(where(), batch=n.often(10, n.small))),
        "count_jobs": lambda: run(db.count_jobs(where())),
        "events": lambda: run(db.events(n.often(None, n.text))),
        "stats": lambda: run(db.stats(n.one(nasty.MOMENTS), n.one([None, *nasty.MOMENTS]), queue=n.any_text(), by=n.often("task", n.text))),
        "timeline": lambda: run(db.timeline(n.one(nasty.MOMENTS), n.one(nasty.MOMENTS), n.interval(), queue=n.any_text())),
        "held_snapshots": lambda: run(db.held_snapshots(n.interval())),
        "retry_delay": lambda: run(db.retry_delay(n.often({"type": "fixed", "delay": 1}, n.policy), n.small())),
        "register_worker": lambda: run(db.register_worker(n.any_text(), [n.name()], n.often(30, n.small), n.one([None, {"a": n.json()}]))),
        "progress": lambda: run(db.progress(1, n.small(), 1, n.json())),
        "save_step": lambda: run(db.save_step(1, n.small(), 1, n.any_text(), n.json())),
        "snooze": lambda: run(db.snooze(1, [(1, 1)], [n.one(nasty.FLOATS)])),
        "fail": lambda: run(db.fail(1, [db.Failure(1, 1, n.any_text(), n.any_text(), n.any_text(), n.one([None, *nasty.FLOATS]))])),
    }  # fmt: skip


@pytest.mark.timeout(0)
def test_python(world: Conn, dsn: str) -> None:
    app = pgqueue.App(dsn)
    outcomes: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    before = value(world, COUNTED)
    for number, n in inputs("python", 0.38):
        calls = client_calls(n, app, world)
        name = n.one(sorted(calls))
        try:
            calls[name]()
            outcomes["fine"] += 1
            before = value(world, COUNTED)
        except PgqueueError as error:
            outcomes[type(error).__name__] += 1
            if value(world, COUNTED) != before:
                wrong[f"{name} does half of it"] = f"input {number}: {error!r}"
        except Exception as error:
            wrong[f"{name} {type(error).__name__}"] = f"input {number}: {error!r}"
    app.close()
    assert not wrong, "\n".join(f"{what}: {why}" for what, why in wrong.items())
    assert outcomes["fine"] > 100
    assert outcomes["InvalidArgument"] > 100
    print(dict(outcomes))


# -------------------------------------------------------------------------------------------- command line

ENDLESS = {
    "bench",
    "demo",
    "metrics",
    "web",
    "work",
    "cron",
    "dev",
    "top",
    "tail",
    "migrate",
    "pg",
    "status",
}  # or not about the queue


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if name in ENDLESS:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def word(n: Nasty, parameter: Any) -> str:
    """A value for it, of a kind that it might take. What no argument of a process can be, is not one here."""
    name = parameter.name or ""
    kind = getattr(parameter, "type_descriptor", None) or getattr(
        parameter, "type", None
    )  # of typer, which has a click of its own; else of click
    choices = [str(getattr(each, "value", each)) for each in getattr(kind, "choices", None) or ()]
    guesses: list[Callable[[], str]] = [n.text, lambda: str(n.small()), lambda: str(n.integer()), lambda: "\udcff"]
    if choices:
        guesses += [lambda: str(n.one(choices))] * 5
    elif any(part in name for part in ("payload", "filter")):
        guesses += [n.json_text] * 4
    elif "schedule" in name or name == "name":
        guesses += [lambda: n.one(nasty.CRONS), lambda: "r", lambda: "r"]
    elif name == "tz":
        guesses += [lambda: n.one(nasty.ZONES)] * 3
    elif "settings" in name or "setting" in name:
        guesses += [lambda: f"{n.one(nasty.SETTINGS)}={n.one([n.json_text, n.text])()}"] * 6
    elif any(part in name for part in ("queue", "task")):
        guesses += [n.name] * 5
    else:
        guesses += [
            lambda: n.one(nasty.SPANS),
            lambda: n.one(nasty.TIMES),
            lambda: str(n.small()),
            lambda: n.one(["1h", "10m"]),
        ]
    return n.one(guesses)().replace("\0", "")  # type: ignore[no-any-return]


def words(n: Nasty, command: Any) -> list[str]:
    chosen: list[str] = []
    arguments: list[str] = []
    for parameter in command.params:
        if parameter.name in ("database_url", "help", "app_name"):
            continue
        if parameter.param_type_name == "argument":
            if parameter.required or n.random.random() < 0.7:
                arguments += [
                    word(n, parameter) for _ in range(1 if parameter.nargs == 1 else n.random.randrange(1, 3))
                ]
        elif n.random.random() < 0.25 or parameter.required:
            flag = n.one(parameter.opts)
            chosen += [flag] if getattr(parameter, "is_flag", False) else [flag, word(n, parameter)]
    return [*chosen, "--", *arguments] if arguments else chosen


@pytest.mark.timeout(0)
def test_command_line(world: Conn, run: Run) -> None:
    known = dict(commands(typer.main.get_command(cli.app)))
    assert len(known) > 30
    ended: Counter[int] = Counter()
    wrong: dict[str, str] = {}
    for number, n in inputs("cli", 0.05):
        path = n.one(sorted(known))
        given = words(n, known[path])
        before = value(world, COUNTED)
        what = f"input {number}: pgqueue {' '.join(path)} {given!r}"
        try:
            answer = run(*path, *given, stdin=n.json_text())
        except Exception as error:
            wrong[f"{' '.join(path)}: {type(error).__name__}"] = f"{what}: {error!r}"
            continue
        ended[answer.code] += 1
        # Several jobs may be named, and what can be done with one of them is done (3); any other error changes nothing.
        faults = {
            "its exit code": answer.code not in (0, 1, 2, 3, 4, 5),
            "a traceback": "Traceback" in answer.err + answer.out,
            "not a word": answer.code in (1, 2) and not answer.err.strip(),
            "an error of PostgreSQL": "PostgreSQL refused" in answer.err,
            "half of it was done": answer.code in (1, 2) and value(world, COUNTED) != before,
        }
        for fault in (name for name, is_so in faults.items() if is_so):
            wrong[f"{' '.join(path)}: {fault}"] = f"{what}: {answer.code}, {answer.err.strip()[-300:]}"
    assert not wrong, "\n".join(f"{which}: {why}" for which, why in wrong.items())
    assert ended[0] > 10
    assert ended[2] > 10
    print(dict(ended))


# ---------------------------------------------------------------------------------------------------- HTTP


def request(n: Nasty) -> tuple[str, str, list[tuple[str, str]]]:
    texts = [each for each in nasty.WORDS if "\0" not in each]

    def some() -> str:
        return str(
            n.one(
                [n.text, lambda: n.one(texts), lambda: str(n.integer()), lambda: n.one(nasty.SPANS), lambda: "a\0b"]
            )()
        )

    if n.random.random() < 0.5:
        path = re.sub(
            r"{(queue|id|name)}", lambda _: quote(n.often(n.one(["q", "1", "r"]), some), safe=""), n.one(list(PAGES))
        )
        asked = {
            name: some()
            for name in n.random.sample(["q", "before", "range", "status", "x", "queue"], n.random.randrange(3))
        }
        return "GET", f"{path}?{urlencode(asked)}", []
    verb = n.one([*actions.VERBS, "nonsense"])
    known = actions.VERBS.get(verb)
    target = n.one(["status:dead", "status:pending", "status:dead age>1h", "queue:q", some()]) if known and known.many else \
        n.often(n.one(["q", "1", "2", "3", "t", "r"]), some)  # fmt: skip
    form = [("target", target)]
    for field in known.fields if known else ():
        if n.random.random() < 0.6:
            form.append((field.name, n.one([some, n.json_text, lambda: str(n.small()), lambda: "10m"])()))
    for extra in ("after_id", "so_far", "q"):
        if n.random.random() < 0.1:
            form.append((extra, some()))
    if n.random.random() < 0.3:
        return "GET", f"/confirm/{quote(verb)}?{urlencode(form)}", []
    return "POST", f"/do/{quote(verb)}", form


@pytest.mark.timeout(0)
def test_web(world: Conn, serve: Serve) -> None:
    site = serve(may_act=True)
    statuses: Counter[int] = Counter()
    for number, n in inputs("web", 0.07):
        method, path, form = request(n)
        before = value(world, COUNTED)
        answer = site.get(path) if method == "GET" else site.send(path, form)
        statuses[answer.status] += 1
        what = f"input {number}: {method} {path} {form!r}: {answer.status}"
        assert answer.status < 500, what
        if answer.status >= 400:
            assert value(world, COUNTED) == before, f"{what}: half of it was done"
    assert statuses[200] > 20
    assert statuses[400] > 20
    print(dict(statuses))


# --------------------------------------------------------------------------------- what was found before

TOO_LONG = [timedelta.max, timedelta.min, timedelta(days=100_000_000), timedelta(days=-10_000_000)]


@pytest.mark.parametrize("span", TOO_LONG, ids=str)
@pytest.mark.parametrize("which", ["run_in", "expires_in", "key_ttl", "retain_for"])
def test_a_span_that_leaves_the_calendar_is_an_invalid_argument(
    conn: Conn, dsn: str, which: str, span: timedelta
) -> None:
    said: dict[str, Any] = {which: span, **({"key": "k"} if which == "key_ttl" else {})}
    with pytest.raises(pgqueue.InvalidArgument):
        db.execute(conn, db.enqueue("q", "t", **said))
    many: dict[str, Any] = {which: span}
    with pytest.raises(pgqueue.InvalidArgument):
        db.execute(conn, db.enqueue_many("q", "t", [{}], **many))
    app = pgqueue.App(dsn)
    with pytest.raises(pgqueue.InvalidArgument):
        app.using("t", **said).enqueue()
    with pytest.raises(pgqueue.InvalidArgument):
        pgqueue.gather(app.using("t", **said).s()).enqueue()
    app.close()
    assert value(conn, "select count(*) from pgqueue.job") == 0
