"""What an operator does from the page: it happens, once, and is on record."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.web import actions, shown
from tests.support import Conn, claim_one, enqueue, job, row, rows, value, worker
from tests.web.conftest import Serve


def die(conn: Conn, payload: dict[str, Any] | None = None, **options: Any) -> int:
    id = enqueue(conn, payload, priority=100, **options)
    claimed = claim_one(conn, w := worker(conn))
    assert claimed.id == id
    db.execute(conn, db.fail(w, [db.Failure(id, claimed.token, "status 503", "HTTPError", fatal=True)]))
    return id


def audited(conn: Conn) -> list[tuple[str, str, Any]]:
    return [tuple(each.values()) for each in rows(conn, "select action, target, detail from pgqueue.audit order by id")]


def test_a_dead_job_is_edited_and_retried_and_what_was_hidden_comes_back(conn: Conn, serve: Serve) -> None:
    id = die(conn, {"to": "a@example", "token": "s3cret"})
    site = serve(may_act=True)
    form = site.get(f"/confirm/retry?target={id}").text
    assert "s3cret" not in form
    assert "a@example" in form
    edited = json.dumps({"to": "b@example", "token": shown.HIDDEN})
    answer = site.post("/do/retry", {"target": id, "payload": edited, "max_attempts": "7", "in": "10m"})
    assert (answer.status, answer.headers["location"]) == (303, f"/jobs/{id}")
    found = job(conn, id)
    assert (found["status"], found["payload"]) == ("scheduled", {"to": "b@example", "token": "s3cret"})
    assert found["max_attempts"] == 7
    assert audited(conn) == [("retry", str(id), {"payload_edited": True, "max_attempts": 7, "in": "10m"})]


@pytest.mark.parametrize("moved", [
    {"cards": [{"pin": shown.HIDDEN}]}, {"cards": [{"pin": 1}, {"pin": 2}], "new": shown.HIDDEN},
    {"cards": {"pin": shown.HIDDEN}},
])  # fmt: skip
def test_a_mask_that_was_moved_is_never_taken_for_the_value(conn: Conn, serve: Serve, moved: dict[str, Any]) -> None:
    id = die(conn, {"cards": [{"pin": 1}, {"pin": 2}]})
    answer = serve(may_act=True).post("/do/retry", {"target": id, "payload": json.dumps(moved)})
    assert (answer.status, "no hidden value" in answer.text) == (400, True)
    assert job(conn, id)["status"] == "dead"


@pytest.mark.parametrize("payload", [
    {"token": None, "a": 1}, {"who": "\u200dfamily\u200c \ufeff\u202e\x07\x7f"}, {"\u202ename": "x"},
    {"big": "x" * 200_000},
])  # fmt: skip
def test_a_payload_that_nobody_edited_comes_back_as_it_was(conn: Conn, serve: Serve, payload: dict[str, Any]) -> None:
    """Whatever the page does to show it."""
    id = die(conn, payload)
    site = serve(may_act=True)
    found = re.search(r"<textarea[^>]*>(.*?)</textarea>", site.get(f"/confirm/retry?target={id}").text, re.DOTALL)
    assert found
    assert site.post("/do/retry", {"target": id, "payload": html.unescape(found[1])}).status == 303
    assert job(conn, id)["payload"] == payload
    assert audited(conn)[0][2]["payload_edited"] is False


def test_true_is_not_the_same_as_one(conn: Conn, serve: Serve) -> None:
    id = die(conn, {"dry_run": 1})
    serve(may_act=True).post("/do/retry", {"target": id, "payload": '{"dry_run": true}'})
    assert job(conn, id)["payload"]["dry_run"] is True


@pytest.mark.parametrize("number", ["--5", "-", "1e9", "0x10", "9" * 30])
def test_what_is_no_number_is_said(conn: Conn, serve: Serve, number: str) -> None:
    enqueue(conn)
    answer = serve(may_act=True).post("/do/set_queue", {"target": "q", "max_running": number})
    assert (answer.status, "must be a whole number" in answer.text) == (400, True)


def test_what_was_done_is_told_once(conn: Conn, serve: Serve) -> None:
    id = die(conn)
    site = serve(may_act=True)
    answer = site.post("/do/retry", {"target": id})
    cookie = f"pgqueue_said={answer.cookies['pgqueue_said']}"
    again = site.get(f"/jobs/{id}", cookie=cookie)
    assert f"Job {id} is pending again." in again.text
    assert again.cookies["pgqueue_said"] == '""'


@pytest.mark.parametrize("payload", ["{", "[1]", '{"a": NaN}', '{"a": "\\u0000"}', "[" * 100_000])
def test_a_payload_that_cannot_be_changes_nothing_and_is_not_on_record(conn: Conn, serve: Serve, payload: str) -> None:
    id = die(conn, {"a": 1})
    assert serve(may_act=True).post("/do/retry", {"target": id, "payload": payload}).status == 400
    assert job(conn, id)["status"] == "dead"
    assert audited(conn) == []


def test_a_job_is_cancelled_and_one_that_is_over_is_not(conn: Conn, serve: Serve) -> None:
    id, site = enqueue(conn), serve(may_act=True)
    assert site.post("/do/cancel", {"target": id, "reason": "by mistake"}).status == 303
    assert job(conn, id)["status"] == "cancelled"
    assert site.post("/do/run_now", {"target": id}).status == 400
    assert site.post("/do/cancel", {"target": 10**9}).status == 404
    assert [each[0] for each in audited(conn)] == ["cancel"]


def test_a_scheduled_job_is_run_now(conn: Conn, serve: Serve) -> None:
    id = enqueue(conn, {"a": 1}, key="k", run_in=timedelta(days=1))
    assert serve(may_act=True).post("/do/run_now", {"target": id}).status == 303
    assert (job(conn, id)["status"], job(conn, id)["key"]) == ("pending", "k")


def test_selected_jobs_are_retried_and_one_that_cannot_be_stops_no_other(conn: Conn, serve: Serve) -> None:
    dead, live = [die(conn), die(conn)], enqueue(conn)
    site = serve(may_act=True)
    answer = site.post("/do/retry_selected", {"target": [dead[0], live, dead[1]], "q": "status:dead"})
    assert answer.headers["location"] == "/jobs?q=status%3Adead"
    assert {job(conn, id)["status"] for id in dead} == {"pending"}
    assert row(conn, "select detail ->> 'done' as done from pgqueue.audit")["done"] == "2"


def test_all_that_match_are_counted_before_and_retried(conn: Conn, serve: Serve) -> None:
    for n in range(12):
        die(conn, {"n": n}, task="a" if n < 8 else "b")
    site = serve(may_act=True)
    assert "8 jobs" in site.get("/confirm/retry_matching?target=status:dead%20task:a").text
    assert site.post("/do/retry_matching", {"target": "status:dead task:a", "spread": "10m"}).status == 303
    assert value(conn, "select count(*) from pgqueue.job_dead") == 4
    assert value(conn, "select count(*) from pgqueue.job_live where run_at > now()") == 8
    assert audited(conn)[0][2] == {"retried": 8, "skipped": 0, "spread": "10m"}


@pytest.mark.parametrize(("most", "words"), [(400, "2 jobs"), (0.5, "so many that counting them takes too long")])
def test_what_takes_long_to_count_can_be_confirmed_without(
    conn: Conn, serve: Serve, monkeypatch: pytest.MonkeyPatch, most: float, words: str
) -> None:
    for n in range(2):
        die(conn, {"n": n})
    if most < 1:  # as if there were tens of millions
        monkeypatch.setattr(actions, "COUNTING_MS", 50)
        slow = "select count(*) from pgqueue.dead_job, lateral (select pg_sleep(5)) s"
        monkeypatch.setattr(db, "count_jobs", lambda *_, **__: db.Call(slow, [], len))
    site = serve(may_act=True)
    text = site.get("/confirm/retry_matching?target=status:dead").text
    assert words in text
    assert "disabled" not in text
    assert site.post("/do/retry_matching", {"target": "status:dead"}).status == 303
    assert value(conn, "select count(*) from pgqueue.job_dead") == 0


@pytest.mark.parametrize("target", ["", "task:a", "status:running", "status:dead,completed", "status:dead key:a"])
def test_a_bulk_action_must_say_what_it_means(conn: Conn, serve: Serve, target: str) -> None:
    die(conn)
    assert serve(may_act=True).post("/do/retry_matching", {"target": target}).status == 400
    assert value(conn, "select count(*) from pgqueue.job_dead") == 1


def test_what_is_not_done_in_time_is_gone_on_with(conn: Conn, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "BATCH", 2)
    monkeypatch.setattr(actions, "BUSY_SECONDS", 0)
    for n in range(5):
        enqueue(conn, {"n": n})
    site = serve(may_act=True)
    form: dict[str, Any] = {"target": "status:pending", "reason": "r"}
    first = site.post("/do/cancel_matching", form)
    assert (first.status, "Cancelled 2 jobs." in first.text) == (200, True)
    after = value(conn, "select max(id) from pgqueue.job where status = 'cancelled'")
    assert f'name="after_id" value="{after}"' in first.text
    second = site.post("/do/cancel_matching", {**form, "after_id": after, "so_far": 2})
    assert "Cancelled 4 jobs." in second.text
    assert value(conn, "select count(*) from pgqueue.job_live") == 1
    assert [each[2]["cancelled"] for each in audited(conn)] == [2, 2]


def test_the_batches_of_one_request_are_each_on_record(
    conn: Conn, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "BATCH", 2)
    for n in range(5):
        enqueue(conn, {"n": n})
    assert serve(may_act=True).post("/do/cancel_matching", {"target": "status:pending"}).status == 303
    assert value(conn, "select count(*) from pgqueue.job_live") == 0
    assert sum(each[2]["cancelled"] for each in audited(conn)) == 5


def test_queues_tasks_workers_and_recurring_jobs_obey(conn: Conn, serve: Serve) -> None:
    w = worker(conn)
    enqueue(conn)
    db.execute(conn, db.set_recurring("nightly", {"task": "t", "queue": "q", "cron": "@daily"}))
    site = serve(may_act=True)

    def do(verb: str, target: object, **form: str) -> None:
        assert site.post(f"/do/{verb}", {"target": target, **form}).status == 303, verb

    do("pause_queue", "q", **{"for": "2h", "reason": "deploy"})
    found = row(conn, "select paused_until - now() as left, paused_reason from pgqueue.queue where queue = 'q'")
    assert timedelta(minutes=119) < found["left"] <= timedelta(hours=2)
    assert found["paused_reason"] == "deploy"
    do("resume_queue", "q")
    do("set_queue", "q", max_running="3", rate="")
    assert value(conn, "select max_running from pgqueue.queue where queue = 'q'") == 3
    do("set_queue", "q", max_running="")
    do("set_queue", "q", rate="5", rate_seconds="0.5", max_running="")
    assert value(conn, "select rate_seconds from pgqueue.queue where queue = 'q'") == 0.5
    form = site.get("/confirm/set_queue?target=q").text
    do("set_queue", "q", **dict(re.findall(r'name="(\w+)" value="([^"]*)" autocomplete', form)))  # as it stands there
    do("set_queue", "q", rate="", rate_seconds="1")
    assert value(conn, "select max_running from pgqueue.queue where queue = 'q'") is None
    do("pause_task", "t")
    assert value(conn, "select paused_at is not null from pgqueue.task where task = 't'")
    do("resume_task", "t")
    do("open_circuit", "t", reason="bank is down")
    assert value(conn, "select circuit from pgqueue.task where task = 't'") == "open"
    do("close_circuit", "t")
    do("run_recurring", "nightly")
    do("pause_recurring", "nightly", **{"for": "1d"})
    assert value(conn, "select state from pgqueue.recurring_status") == "paused"
    do("resume_recurring", "nightly")
    do("drain", w)
    assert value(conn, "select state from pgqueue.worker_status") == "draining"
    assert len(audited(conn)) == 15
    assert {each["actor"] for each in rows(conn, "select actor from pgqueue.audit")} == {"local"}


def test_an_action_that_fails_leaves_no_record_and_a_record_that_fails_no_action(
    conn: Conn, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, site = enqueue(conn), serve(may_act=True)
    assert site.post("/do/set_queue", {"target": "q", "max_running": "-5"}).status == 400
    assert audited(conn) == []
    monkeypatch.setattr(db, "record_audit", lambda *_: db.Call("select 1 / 0", [], len))
    assert site.post("/do/cancel", {"target": id}).status == 400
    assert job(conn, id)["status"] == "pending"
