from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pgqueue import cli
from pgqueue import database as db
from tests.cli.test_migrate import pgqueue
from tests.sql.recurring import backdate, definition, set_recurring, state, tick_all
from tests.support import Conn, job, value

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(conn: Conn, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: its own takes a second or two to start, and there are many here."""
    monkeypatch.setenv("DATABASE_URL", dsn)

    def in_process(*arguments: str) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["pgqueue", "recurring", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return CompletedProcess(arguments, int(end.value.code or 0), told.out, told.err)

    return in_process


def done(told: CompletedProcess[str]) -> str:
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_one_is_added_listed_shown_edited_and_removed(conn: Conn, run: Run) -> None:
    assert "no recurring jobs" in done(run("list"))
    told = done(run("add", "nightly", "0 2 * * *", "report", "-p", '{"region": "eu"}', "--tz", "Europe/Berlin",
                    "--overlap", "skip", "--jitter", "5m", "--starts-at", "2027-01-01T00:00",
                    "--tag", "x"))  # fmt: skip
    assert told == "added nightly: at 02:00 every day, Europe/Berlin\n"
    made = definition(conn, "nightly")
    assert (made["payload"], made["overlap"], made["tags"]) == ({"region": "eu"}, "skip", ["x"])
    assert made["starts_at"] == datetime(2026, 12, 31, 23, tzinfo=UTC), "in its own zone"
    tick_all(conn)
    listed = done(run("list"))
    assert re.search(r"nightly +scheduled +0 2 \* \* \* +Europe/Berlin +report in default +2027-01-01 02:00:00", listed)
    shown = done(run("show", "nightly"))
    for part in ("at 02:00 every day", "2027-01-01 02:00:00 CET (2027-01-01 01:00:00 UTC)", "up to 0:05:00",
                 '{"region": "eu"}', "operator: made at run time", "tags ['x']"):  # fmt: skip
        assert part in shown, shown
    assert (
        done(run("edit", "nightly", "--schedule", "every 90s", "--unset", "jitter", "--unset", "starts-at"))
        == "changed nightly\n"
    )
    made = definition(conn, "nightly")
    assert (made["every"], made["cron"], made["jitter"], made["starts_at"], made["overlap"]) == (
        timedelta(seconds=90), None, timedelta(0), None, "skip",
    )  # fmt: skip
    assert done(run("remove", "nightly")) == "removed nightly\n"
    assert run("remove", "nightly").returncode == 3


def test_a_group_is_given_shown_changed_and_taken_away(conn: Conn, run: Run) -> None:
    done(run("add", "nightly", "@daily", "report", "--group", "tenant:7"))
    assert definition(conn, "nightly")["group_key"] == "tenant:7"
    assert "group tenant:7" in done(run("show", "nightly"))
    assert json.loads(done(run("show", "nightly", "--json")))["group_key"] == "tenant:7"
    done(run("edit", "nightly", "-g", "tenant:8"))
    assert definition(conn, "nightly")["group_key"] == "tenant:8"
    done(run("edit", "nightly", "--unset", "group"))
    assert definition(conn, "nightly")["group_key"] is None
    assert run("edit", "nightly", "-g", "x" * 600).returncode == 1


def test_json_has_everything(conn: Conn, run: Run) -> None:
    set_recurring(conn, task="t", every="90 s", payload={"a": 1}, tags=["x"])
    id = json.loads(done(run("run", "a", "--json")))["job_id"]
    (listed,) = json.loads(done(run("list", "--json")))
    assert (listed["name"], listed["state"], listed["schedule"], listed["last_job_id"]) == ("a", "new", "every 90s", id)
    shown = json.loads(done(run("show", "a", "--json")))
    assert (shown["payload"], shown["every"], shown["tags"]) == ({"a": 1}, 90.0, ["x"])
    assert [(each["outcome"], each["job_id"], each["status"]) for each in shown["runs"]] == [("manual", id, "pending")]
    following = json.loads(done(run("next", "a", "--json", "-n", "2")))
    assert (following["description"], len(following["next"])) == ("every 1 minute 30 seconds", 2)


def test_next_tells_the_zone_utc_and_plain_language(conn: Conn, run: Run) -> None:
    told = done(run("next", "0 9 * * 1-5", "--tz", "Asia/Kathmandu", "-n", "3")).splitlines()
    assert told[0] == "0 9 * * 1-5: at 09:00 on Monday through Friday, Asia/Kathmandu"
    assert told[1].split() == ["Asia/Kathmandu", "UTC", "in"]
    assert len(told) == 5
    assert all(re.match(r"(Mon|Tue|Wed|Thu|Fri) \S+ 09:00:00 \+0545 +\S+ 03:15:00 ", line) for line in told[2:])
    set_recurring(conn, task="t", cron="@hourly", ends_at=(datetime.now(UTC) + timedelta(minutes=90)).isoformat())
    db.execute(conn, db.pause_recurring("a"))
    told = done(run("next", "a")).splitlines()
    assert told[0] == "@hourly: at the start of every hour, UTC; it is paused"
    assert len(told) in (3, 4), "it ends"


def test_pause_resume_and_run(conn: Conn, run: Run) -> None:
    set_recurring(conn, task="t", every="1 hour", overlap="skip")
    assert done(run("pause", "a", "--for", "2h", "-r", "too loud")) == "paused a for 2h\n"
    assert (
        timedelta(minutes=119) < definition(conn)["paused_until"] - definition(conn)["paused_at"] < timedelta(hours=2.1)
    )
    assert "too loud" in done(run("list"))
    assert state(conn) == "paused"
    assert done(run("resume", "a")) == "resumed a\n"
    again = run("resume", "a")
    assert (again.returncode, again.stdout) == (3, "a was not paused\n")
    (id,) = re.findall(r"job (\d+)\n", done(run("run", "a")))
    assert job(conn, int(id))["status"] == "pending"
    refused = run("run", "a")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert f"job {id} of recurring job 'a' is not finished" in refused.stderr


def test_what_an_app_declares_shows_who_wins(conn: Conn, run: Run) -> None:
    db.execute(conn, db.reconcile_recurring("shop:app", {"a": {"task": "t", "every": "1 hour"}}))
    assert "code: shop:app declares it" in done(run("show", "a"))
    told = run("edit", "a", "--schedule", "every 5m")
    assert (told.returncode, told.stdout) == (0, "changed a\n")
    assert told.stderr == "shop:app declares it: this edit holds until that declaration changes\n"
    assert re.search(r"code: shop:app declares it; edited .* UTC, until that changes", done(run("show", "a")))
    assert "code (edited)" in done(run("list"))
    refused = run("remove", "a")
    assert refused.returncode == 3
    assert "Pause it, or take it out of the code." in refused.stderr
    assert done(run("remove", "a", "--although-declared")) == "removed a\n"


@pytest.mark.parametrize("fault", ["late", "broken"])
def test_show_exits_with_3_if_something_is_wrong(conn: Conn, run: Run, fault: str) -> None:
    set_recurring(conn, task="t", every="1 hour")
    tick_all(conn)
    assert run("show", "a").returncode == 0
    if fault == "late":
        backdate(conn, timedelta(hours=2))
    else:
        db.execute(conn, db.mark_recurring("a", definition(conn)["version"], "no such [zone]"))
    shown = run("show", "a")
    assert shown.returncode == 3
    assert ("does a ticker run?" if fault == "late" else "no such [zone]") in shown.stdout


BAD: list[tuple[list[str], int, str]] = [
    (["add", "a", "0 0 30 2 *", "t"], 1, "not a cron expression: '0 0 30 2 *'"),
    (["add", "a", "@daily", "t", "--tz", "Mars/Olympus"], 1, "there is no time zone 'Mars/Olympus'"),
    (["add", "a", "@daily", "t", "-p", "{"], 1, "--payload is not JSON"),
    (["add", "a", "@daily", "t", "-p", "[]"], 1, "a payload is a JSON object"),
    (["add", "a", "@daily", "t", "--jitter", "long"], 1, "--jitter takes a time span like 90s"),
    (["add", "a", "@daily", "t", "--ends-at", "soon"], 1, "--ends-at takes a time like"),
    (["add", "a b", "@daily", "t"], 1, "bad name 'a b'"),
    (["add", "taken", "@daily", "t"], 1, "there is a recurring job 'taken' already"),
    (["add", "a", "@daily", "t", "--overlap", "yes"], 2, "yes"),
    (["add", "a", "@daily", "ghost", "-A", "tests.worker.recurring_app:app"], 1, "has no task 'ghost'"),
    (["edit", "taken"], 2, "say what to change"),
    (["edit", "nobody", "--queue", "q"], 3, "there is no recurring job 'nobody'"),
    (["edit", "taken", "--tz", "Mars/Olympus"], 1, "there is no time zone"),
    (["show", "nobody"], 3, "there is no recurring job 'nobody'"),
    (["next", "nobody"], 3, "there is no recurring job 'nobody'"),
    (["next", "0 0 30 2 *"], 1, "not a cron expression"),
    (["next", "taken", "--tz", "UTC"], 2, "has its own zone"),
    (["pause", "nobody"], 3, "there is no recurring job 'nobody'"),
    (["pause", "taken", "--for", "long"], 1, "--for takes a time span"),
    (["run", "nobody"], 3, "there is no recurring job 'nobody'"),
]


@pytest.mark.parametrize(("arguments", "code", "told"), BAD, ids=lambda each: str(each)[:60])
def test_whatever_is_wrong_is_one_sentence_and_changes_nothing(
    conn: Conn, run: Run, arguments: list[str], code: int, told: str
) -> None:
    set_recurring(conn, "taken", task="t", cron="@daily")
    before = definition(conn, "taken")
    refused = run(*arguments)
    assert refused.returncode == code
    assert told in refused.stderr
    assert definition(conn, "taken") == before
    assert value(conn, "select count(*) from pgqueue.recurring_job") == 1


def test_an_app_lends_its_queue_and_checks_the_arguments(conn: Conn, run: Run) -> None:
    app = ["-A", "tests.worker.recurring_app:app"]
    done(run("add", "a", "@daily", "report", "-p", '{"region": "eu"}', *app))
    assert definition(conn)["queue"] == "r"
    refused = run("add", "b", "@daily", "report", "-p", '{"regoin": "eu"}', *app)
    assert refused.returncode == 1
    assert "did you mean 'region'" in refused.stderr


def test_it_is_a_command_of_pgqueue(conn: Conn, dsn: str, tmp_path: Path) -> None:
    set_recurring(conn, task="t", cron="@daily")
    told = pgqueue("recurring", "list", cwd=tmp_path, DATABASE_URL=dsn)
    assert re.search(r"a +new +@daily +UTC +t in default", done(told))
    told = pgqueue("recurring", "show", "nobody", cwd=tmp_path, DATABASE_URL=dsn)
    assert (told.returncode, told.stderr) == (3, "Error: there is no recurring job 'nobody'\n")
