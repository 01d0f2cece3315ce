"""What the pages show, as text: all of it is there without a script."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue import web
from pgqueue.web import access, source
from pgqueue.web.app import PAGES
from tests.support import Conn, claim, claim_one, enqueue, lose, row, worker
from tests.web.conftest import Serve
from tests.web.test_actions import die

HOSTILE = """"'><script>alert(1)</script><img src=x onerror=alert(2)>{{1009*1009}}</textarea></pre>\u202e"""


def fill(conn: Conn, text: str) -> int:
    """`text` wherever a client, a worker or an operator may put one; the id of a job that has it all."""
    w = db.execute(conn, db.register_worker(text, ["q"], 30, {"version": text, "tasks": [text], "concurrency": 2}))
    id = enqueue(conn, {text: text}, key=text, tags=[text[:100]], meta={text: text}, group=text, priority=100)
    claimed = claim_one(conn, w)
    db.execute(conn, db.progress(w, id, claimed.token, {text: text}))
    db.execute(conn, db.log(w, id, claimed.token, [(claimed.enqueued_at, "error", text)]))
    db.execute(conn, db.save_step(w, id, claimed.token, text[:100], {text: text}))
    db.execute(conn, db.fail(w, [db.Failure(id, claimed.token, text, text[:100], text, fatal=True)]))
    enqueue(conn, {text: text}, key=text + "2", tags=[text[:100]], priority=100)
    again = claim_one(conn, w)
    db.execute(conn, db.progress(w, again.id, again.token, 0.5))
    db.execute(conn, db.pause("q", reason=text))
    db.execute(conn, db.pause_task("t", reason=text))
    db.execute(conn, db.force_circuit("u", "open", text))
    db.execute(conn, db.set_queue("q", {"group_max_running": 1}))
    db.execute(conn, db.pause_group("q", text, reason=text))
    db.execute(conn, db.set_recurring("r", {"task": "t", "queue": "q", "cron": "@daily", "payload": {text: text}}))
    db.execute(conn, db.pause_recurring("r", reason=text))
    db.execute(conn, db.record_audit(text, text, "pause_queue", text, {text: text}))
    first = {"queue": "q", "task": "t", "name": text}
    made = db.execute(conn, db.enqueue_flow({"name": text, "jobs": [first, {**first, "name": "last", "after": [0]}]}))
    db.execute(conn, db.cancel_flow(made.id, text))
    return id


def paths(conn: Conn, id: int) -> list[str]:
    flow = row(conn, "select flow_id, job_id from pgqueue.flow_node order by job_id desc limit 1")
    found = [path.format(id=flow["flow_id"] if "flow" in path else id, queue="q", name="r") for path in PAGES]
    found.append(f"/jobs/{flow['job_id']}")
    return [*found, "/jobs?q=status:dead", f"/confirm/retry?target={id}", "/confirm/pause_queue?target=q",
            "/confirm/retry_matching?target=status:dead"]  # fmt: skip


@pytest.mark.parametrize("may_act", [False, True])
def test_nothing_that_anybody_wrote_becomes_markup(conn: Conn, serve: Serve, may_act: bool) -> None:
    id = fill(conn, HOSTILE)
    site = serve(may_act=may_act)
    for path in paths(conn, id):
        answer = site.get(path)
        if path.startswith("/confirm") and not may_act:
            continue
        assert answer.status == 200, path
        assert "<script>" not in answer.text, path
        assert "<img" not in answer.text, path
        assert "1018081" not in answer.text, path
        assert "\u202e" not in answer.text, path
        assert "style=" not in answer.text, path
    assert "&lt;script&gt;" in site.get(f"/jobs/{id}").text


@pytest.mark.parametrize("info", [
    [1], "x", None, {"version": [1], "concurrency": -3, "tasks": 7}, {"version": {"a": 1}, "concurrency": "many"},
    {"concurrency": 10**30}, {"weights": [1], "reserved": {"q": "x"}}, {"weights": {"q": None}},
])  # fmt: skip
def test_whatever_a_worker_says_of_itself_the_pages_are_there(conn: Conn, serve: Serve, info: Any) -> None:
    worker(conn)
    conn.execute("update pgqueue.worker set info = %s", [json.dumps(info)])
    site = serve()
    assert {site.get(path).status for path in ("/", "/workers", "/queues/q", "/system")} == {200}


@pytest.mark.parametrize("may_act", [False, True])
def test_a_secret_in_what_a_job_reports_is_hidden(conn: Conn, serve: Serve, may_act: bool) -> None:
    id = enqueue(conn, {"password": "S3CRET"}, meta={"api_key": "S3CRET"})
    job = claim_one(conn, w := worker(conn))
    db.execute(conn, db.progress(w, id, job.token, {"session_id": "S3CRET", "mine": "S3CRET"}))
    db.execute(conn, db.save_step(w, id, job.token, "s", {"token": "S3CRET"}))
    site = serve(app=web.create(conn.info.dsn, authorize=access.anyone(may_act), hide=["mine"]))
    for path in (f"/jobs/{id}", "/workers", "/jobs", "/"):
        assert "S3CRET" not in site.get(path).text, path
        assert "S3CRET" not in site.first_event(path), path


def test_of_what_has_no_end_the_last_is_shown(conn: Conn, serve: Serve) -> None:
    id = enqueue(conn, {"long": "y" * 150_000})
    job = claim_one(conn, w := worker(conn))
    lines = [(job.enqueued_at + timedelta(seconds=n), "info", f"line {n}.") for n in range(400)]
    db.execute(conn, db.log(w, id, job.token, lines))
    text = serve(may_act=True).get(f"/jobs/{id}").text
    assert ("line 399." in text, "line 99." in text, "the last 300 lines" in text) == (True, False, True)
    assert 90_000 < text.count("y") < 101_000
    assert "characters more" in text


@pytest.mark.parametrize("path", ["/jobs", "/dead"])
def test_what_is_searched_for_is_said_back_as_text(serve: Serve, path: str) -> None:
    from urllib.parse import quote

    for text in (HOSTILE, f"colour:{HOSTILE}", f"status:{HOSTILE}", f"queue:{HOSTILE}"):
        answer = serve().get(f"{path}?q={quote(text)}")
        assert answer.status in (200, 400)
        assert "<script>" not in answer.text


@pytest.mark.parametrize("path", [path for path in PAGES if "{" not in path])
@pytest.mark.parametrize("range_name", ["15m", "7d", "nonsense"])
def test_a_page_of_an_empty_queue_says_so(serve: Serve, conn: Conn, path: str, range_name: str) -> None:
    answer = serve(may_act=True).get(f"{path}?range={range_name}")
    assert answer.status == 200
    assert "<h1" in answer.text


@pytest.mark.parametrize("path", ["/jobs/999", "/queues/none", "/recurring/none", "/nowhere"])
def test_what_is_not_there_is_a_404_in_words(serve: Serve, path: str) -> None:
    answer = serve().get(path)
    assert (answer.status, 'role="alert"' in answer.text) == (404, True)


def test_the_overview_says_what_needs_a_look(conn: Conn, serve: Serve) -> None:
    site = serve()
    enqueue(conn)
    conn.execute("update pgqueue.job_live set rank_at = rank_at - interval '1 hour'")
    text = site.get("/").text
    assert "no live worker" in text
    assert "1h" in text
    lose(conn, worker(conn))
    assert "1 silent" in site.get("/").text
    die(conn)
    text = site.get("/").text
    assert "status 503" in text
    assert "HTTPError" in text


def test_of_very_many_queues_those_that_need_a_look_come_first(conn: Conn, serve: Serve) -> None:
    worker(conn, [f"served-{n}" for n in range(30)])
    enqueue(conn, queue="zz-nobody-serves")
    text = serve().get("/").text
    assert "zz-nobody-serves" in text
    assert "6 more queues" in text
    assert "served-29" in serve().get("/queues").text


def test_weights_and_reserved_slots_are_shown(conn: Conn, serve: Serve) -> None:
    info = {"weights": {"q": 4, "other": 1}, "reserved": {"q": 2}}
    db.execute(conn, db.register_worker("w", ["q", "other"], 30, info))
    text = serve().get("/workers").text
    assert "× 4" in text
    assert "(2 reserved)" in text
    assert "weight 4" in serve().get("/queues/q").text


def test_many_findings_of_one_kind_do_not_bury_the_others(conn: Conn, serve: Serve) -> None:
    for n in range(8):
        enqueue(conn, queue=f"nobody-{n}")
    conn.execute("update pgqueue.job_live set rank_at = rank_at - interval '1 hour'")
    text = serve().get("/").text
    assert "and 7 more of this kind" in text
    assert text.index("nobody-0") < text.index("and 7 more")


def test_the_next_runs_are_told_before_a_ticker_has_seen_it(conn: Conn, serve: Serve) -> None:
    db.execute(conn, db.set_recurring("r", {"task": "t", "queue": "q", "cron": "0 2 * * *", "timezone": "Asia/Tokyo"}))
    text = serve().get("/recurring/r").text
    assert text.count("02:00:00 +0900") == 5
    assert "no ticker has seen it yet" in text


def test_work_that_waits_is_told_of_a_queue_that_stands_still(conn: Conn, serve: Serve) -> None:
    enqueue(conn)
    conn.execute(
        "insert into pgqueue.tally (at, jobs, run_bucket, outcome, queue, task)"
        " values (date_trunc('hour', now()) - interval '5 hours', 10, 24, 'completed', 'q', 't')"
    )
    assert "1m" in serve().get("/queues/q").text.partition("Work waiting")[2][:40]


def test_jobs_are_paged_by_id_and_every_one_is_seen_once(conn: Conn, serve: Serve) -> None:
    import html
    import re

    db.execute(conn, db.enqueue_many("q", "t", [{}] * 120))
    site, at, seen = serve(), "/jobs?q=queue:q", []
    for _ in range(3):
        text = site.get(at).text
        seen += re.findall(r'<tr id="job-(\d+)">', text)
        found = re.search(r'rel="next" href="([^"]+)"', text)
        if found is None:
            break
        at = "/jobs" + html.unescape(found[1])
    assert (len(seen), len(set(seen))) == (120, 120)


def test_a_job_tells_its_story(conn: Conn, serve: Serve) -> None:
    id = enqueue(
        conn, {"order_id": 12345678901234567890}, retry={"type": "fixed", "delay": 60}, key="k:1", tags=["vip"]
    )
    claimed = claim_one(conn, w := worker(conn))
    db.execute(conn, db.fail(w, [db.Failure(id, claimed.token, "no answer", "TimeoutError", "in line 7")]))
    text = serve(may_act=True).get(f"/jobs/{id}").text
    for words in ("attempt 1 failed", "TimeoutError", "in line 7", "12345678901234567890", "k:1", "vip", "Run now",
                  f"pgqueue why {id}", "again after 1m"):  # fmt: skip
        assert words in text, words


def test_a_job_of_a_flow_shows_what_runs_before_and_after_it(conn: Conn, serve: Serve) -> None:
    part = {"queue": "q", "task": "part"}
    jobs = [{"queue": "q", "task": "t", "name": "first"}, *[{**part, "after": [0]}] * 50,
            {"queue": "q", "task": "t", "name": "last", "after": list(range(1, 51))}]  # fmt: skip
    made = db.execute(conn, db.enqueue_flow({"name": "album", "jobs": jobs}))
    w = worker(conn)
    first = claim_one(conn, w)
    db.execute(conn, db.complete(w, [(first.id, first.token)]))
    died = claim(conn, w, 2)[0]
    db.execute(conn, db.fail(w, [db.Failure(died.id, died.token, "boom", "ValueError", fatal=True)]))
    site = serve(may_act=True)
    for path in (f"/jobs/{made.job_ids[0]}", f"/flows/{made.id}"):
        text = site.get(path).text
        for words in ("album", "part × 50", "1 dead", "48 pending", "1 running", "last", "2 of 52 ended"):
            assert words in text, (path, words)
    assert "Cancel" in site.get(f"/flows/{made.id}").text
    last = site.get(f"/jobs/{made.job_ids[-1]}").text
    assert "which 1 died or was cancelled and 49 have not ended" in last
    assert "Run now" not in last
    assert f"/flows/{made.id}" in site.get("/flows?status=running").text
    assert "None is failed" in site.get("/flows?status=failed").text
    assert site.get("/flows/123456789").status == 404


def test_a_flow_is_cancelled_from_its_page(conn: Conn, serve: Serve) -> None:
    made = db.execute(
        conn, db.enqueue_flow({"jobs": [{"queue": "q", "task": "t"}, {"queue": "q", "task": "u", "after": [0]}]})
    )
    site = serve(may_act=True)
    answer = site.post("/do/cancel_flow", {"target": made.id, "reason": "ordered twice"})
    assert (answer.status, answer.headers["location"]) == (303, f"/flows/{made.id}")
    assert "ordered twice" in site.get(f"/flows/{made.id}").text
    assert row(conn, "select action, target from pgqueue.audit_log") == {
        "action": "cancel_flow",
        "target": str(made.id),
    }
    assert serve().post("/do/cancel_flow", {"target": made.id}).status == 403


def test_dead_letters_are_grouped_by_what_they_died_of(conn: Conn, serve: Serve) -> None:
    for n in range(3):
        die(conn, {"n": n})
    text = serve(may_act=True).get("/dead").text
    assert "1 kinds of error, 3 dead letters" in text or "1 kind of error, 3 dead letters" in text
    assert "+3 in the last hour" in text
    assert "Retry all" in text


def test_a_query_that_takes_too_long_is_given_up_with_a_word_on_what_to_do(conn: Conn, serve: Serve) -> None:
    site = serve(seconds=0.2)
    conn.execute("begin")
    conn.execute("lock table pgqueue.queue in access exclusive mode")
    answer = site.get("/queues")
    conn.execute("rollback")
    assert (answer.status, "Too much" in answer.text) == (503, True)
    assert site.get("/queues").status == 200


def test_a_database_that_does_not_answer_is_said_in_words(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WAIT_SECONDS", 0.3)
    answer = serve(database_url="postgresql://127.0.0.1:1/none").get("/")
    assert (answer.status, "does not answer" in answer.text) == (503, True)
    assert "127.0.0.1:1" in answer.text
    assert "Traceback" not in answer.text
