"""Who gets through, and what nobody gets through."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from pgqueue import cli_web, web
from pgqueue import database as db
from pgqueue.errors import ConfigError
from pgqueue.web import access
from pgqueue.web.actions import VERBS, Verb
from pgqueue.web.app import PAGES
from tests.cli.conftest import Run, run  # noqa: F401
from tests.support import Conn, claim_one, enqueue, rows, value, worker
from tests.web.conftest import Serve

TOKEN, READER = "operator-token-0123456789", "reader-token-0123456789"
PATHS = [path for path in PAGES if "{" not in path]


def nothing_happened(conn: Conn) -> bool:
    return value(conn, "select count(*) from pgqueue.audit") == 0 and not value(
        conn, "select exists (select 1 from pgqueue.queue where paused_at is not null)"
    )


# ---------------------------------------------------------------------------------------- closed by default


def test_without_a_token_or_a_function_that_authorizes_there_is_no_page(dsn: str) -> None:
    with pytest.raises(ConfigError, match="open to everyone"):
        web.create(dsn)


def test_a_token_that_can_be_guessed_is_refused(dsn: str) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        web.create(dsn, token="short")  # noqa: S106
    with pytest.raises(ConfigError, match="another one"):
        web.create(dsn, token=TOKEN, reader_token=TOKEN)


def test_the_command_refuses_to_listen_where_others_can_reach_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.delenv("PGQUEUE_WEB_TOKEN", raising=False)
    monkeypatch.delenv("PGQUEUE_WEB_READER_TOKEN", raising=False)
    for host in ("0.0.0.0", "192.0.2.7", "::", "example.com"):  # noqa: S104
        told = run("web", "--host", host)
        assert (told.code, "set PGQUEUE_WEB_TOKEN" in told.err) == (1, True), host
    assert all(cli_web._is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "[::1]"))


@pytest.mark.parametrize("path", [*PATHS, "/jobs/1", "/queues/q", "/confirm/cancel?target=1", "/nowhere"])
def test_a_stranger_sees_nothing_but_the_log_in(serve: Serve, path: str) -> None:
    site = serve(token=TOKEN)
    answer = site.get(path)
    assert (answer.status, answer.headers["location"].startswith("/login?next=")) == (303, True)
    assert site.get(path, authorization="Bearer wrong").status == 303
    assert site.get(path, cookie=f"{access.COOKIE}=9999999999.{'0' * 64}").status == 303
    assert site.get(path, accept="text/event-stream").status == 401


# ------------------------------------------------------------------------------------------------- tokens


def test_who_logs_in_gets_a_cookie_that_is_not_the_token(serve: Serve) -> None:
    site = serve(token=TOKEN)
    answer = site.post("/login?next=/jobs", {"token": TOKEN})
    assert (answer.status, answer.headers["location"]) == (303, "/jobs")
    cookie = answer.cookies[access.COOKIE]
    assert TOKEN not in cookie
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "samesite=lax" in answer.headers["set-cookie"].lower()
    assert site.get("/jobs", cookie=f"{access.COOKIE}={cookie}").status == 200


def test_a_cookie_ends_and_its_end_cannot_be_moved(serve: Serve) -> None:
    site = serve(token=TOKEN)
    past, ahead = str(int(time.time()) - 1), str(int(time.time()) + 10**6)
    old = access._signed(TOKEN, past)
    assert site.get("/", cookie=f"{access.COOKIE}={past}.{old}").status == 303
    assert site.get("/", cookie=f"{access.COOKIE}={ahead}.{old}").status == 303
    for bad in ("", ".", "x.y", f"{ahead}.\xe9", f"١٢.{old}".encode().decode("latin-1"), f"{'9' * 5000}.{old}"):
        assert site.get("/", cookie=f"{access.COOKIE}={bad}").status == 303


def test_a_wrong_token_is_told_so_and_gets_no_cookie(serve: Serve) -> None:
    answer = serve(token=TOKEN).post("/login", {"token": "wrong"})
    assert (answer.status, access.COOKIE in answer.cookies) == (401, False)


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_logging_in_leads_nowhere_else(serve: Serve, to: str) -> None:
    from urllib.parse import quote

    answer = serve(token=TOKEN).post(f"/login?next={quote(to)}", {"token": TOKEN})
    assert answer.headers["location"] == "/"


# ------------------------------------------------------------------------------------------------ read-only


def every_action(conn: Conn) -> list[tuple[str, str]]:
    enqueue(conn)
    died = claim_one(conn, w := worker(conn))
    db.execute(conn, db.fail(w, [db.Failure(died.id, died.token, "boom", fatal=True)]))
    db.execute(conn, db.set_recurring("r", {"task": "t", "queue": "q", "cron": "@daily"}))
    live = enqueue(conn, run_in=timedelta(hours=1))
    targets = {
        "retry": str(died.id), "cancel": str(live), "run_now": str(live), "retry_selected": str(died.id),
        "cancel_selected": str(live), "retry_matching": "status:dead", "cancel_matching": "status:scheduled",
        "purge_matching": "status:dead", "drain": str(w), "pause_task": "t", "resume_task": "t", "open_circuit": "t",
        "close_circuit": "t", "pause_recurring": "r", "resume_recurring": "r", "run_recurring": "r",
    }  # fmt: skip
    return [(verb, targets.get(verb, "q")) for verb in VERBS]


@pytest.mark.parametrize("how", ["open", "reader's token", "operator's token without --actions"])
def test_a_reader_can_do_nothing_whatever_is_sent(conn: Conn, serve: Serve, how: str) -> None:
    site, headers = serve(), {}
    if how == "reader's token":
        site, headers = serve(token=TOKEN, reader_token=READER, actions=True), {"authorization": f"Bearer {READER}"}
    elif how != "open":
        site, headers = serve(token=TOKEN), {"authorization": f"Bearer {TOKEN}"}
    actions = every_action(conn)
    before = rows(conn, "select id, status from pgqueue.job order by id")
    for verb, target in actions:
        assert site.post(f"/do/{verb}", {"target": target, "max_running": "1"}, **headers).status == 403, verb
        assert site.get(f"/confirm/{verb}?target={target}", **headers).status == 403, verb
    assert rows(conn, "select id, status from pgqueue.job order by id") == before
    assert nothing_happened(conn)
    assert "/confirm/" not in "".join(site.get(path, **headers).text for path in PATHS)


def _verb_of(name: str) -> tuple[str, Verb]:
    return name, VERBS[name]


def test_the_database_refuses_what_a_mistake_in_the_page_would_let_through(
    conn: Conn, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall behind the wall: with the check of the page gone, the role still may not."""
    from pgqueue.web.app import _Web

    actions = every_action(conn)
    before = rows(conn, "select id, status from pgqueue.job order by id")
    monkeypatch.setattr(_Web, "_verb", lambda *given: _verb_of(given[1].path_params["verb"]))
    site = serve()
    for verb, target in actions:
        assert site.post(f"/do/{verb}", {"target": target, "max_running": "1"}).status in (400, 403), verb
    assert rows(conn, "select id, status from pgqueue.job order by id") == before
    assert nothing_happened(conn)


def test_a_reader_sees_no_payload_result_or_traceback(conn: Conn, serve: Serve) -> None:
    id = enqueue(conn, {"note": "S3CRET"}, meta={"note": "S3CRET"})
    job = claim_one(conn, w := worker(conn))
    db.execute(conn, db.log(w, id, job.token, [(job.enqueued_at, "info", "S3CRET")]))
    db.execute(conn, db.save_step(w, id, job.token, "s", "S3CRET"))
    db.execute(conn, db.fail(w, [db.Failure(id, job.token, "boom", "E", "trace S3CRET", fatal=True)]))
    path = f"/jobs/{id}"
    assert "S3CRET" not in serve().get(path).text
    assert serve(may_act=True).get(path).text.count("S3CRET") == 5


# ----------------------------------------------------------------------------------------------------- CSRF


FOREIGN = {
    "another site": {"sec_fetch_site": "cross-site"},
    "another host of the site": {"sec_fetch_site": "same-site"},
    "typed or from nowhere": {"sec_fetch_site": "none"},
    "an old browser, another origin": {"sec_fetch_site": "", "origin": "https://evil.example"},
    "a sandboxed frame": {"sec_fetch_site": "", "origin": "null"},
    "no word of where from": {"sec_fetch_site": ""},
    # Behind a proxy that asks for a password, browsers add it to the forms of other sites, too.
    "another site, with a password": {"sec_fetch_site": "cross-site", "authorization": "Basic YTpi"},
    "the same, an old browser": {"sec_fetch_site": "", "origin": "https://evil.example", "authorization": "Basic YTpi"},
    "a password, and no word of where from": {"sec_fetch_site": "", "authorization": "Basic YTpi"},
    "another site, with a token": {"sec_fetch_site": "cross-site", "authorization": "Bearer x"},
}


@pytest.mark.parametrize("where", FOREIGN)
def test_a_form_from_elsewhere_does_nothing(conn: Conn, serve: Serve, where: str) -> None:
    enqueue(conn)
    site = serve(may_act=True)
    headers = {name.replace("_", "-"): text for name, text in FOREIGN[where].items()}
    assert site.post("/do/pause_queue", {"target": "q"}, **headers).status == 403
    assert nothing_happened(conn)


def test_a_script_needs_no_origin_with_its_token(conn: Conn, serve: Serve) -> None:
    site = serve(token=TOKEN, actions=True)
    headers = {"sec-fetch-site": "", "authorization": f"Bearer {TOKEN}"}
    assert site.post("/do/pause_queue", {"target": "q"}, **headers).status == 303
    assert not nothing_happened(conn)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_link_to_a_page_and_nothing_else(conn: Conn, serve: Serve, site: str) -> None:
    """An image there would cost the database a search each."""
    page = serve()
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert page.get("/jobs", **link).status == 200
    for mode, dest in (("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty")):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
        assert page.get("/jobs", **headers).status == 403, dest
        assert page.get("/jobs", accept="text/event-stream", **headers).status == 403, dest


def test_another_site_cannot_put_a_confirmation_before_somebody_who_types(conn: Conn, serve: Serve) -> None:
    enqueue(conn)
    site = serve(may_act=True)
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    asked = "/confirm/cancel_matching?target=status:pending"
    assert site.get(asked, **link).status == 403
    text = site.get(asked, **{**link, "sec-fetch-site": "same-origin"}).text
    assert "autofocus" not in text  # nor does a key that is held down confirm what it asked for
    assert "autofocus" in site.get("/confirm/resume_queue?target=q").text


def test_behind_a_proxy_with_tls_the_cookie_is_for_tls_alone(serve: Serve) -> None:
    site = serve(token=TOKEN)
    assert "Secure" not in site.post("/login", {"token": TOKEN}).headers["set-cookie"]
    answer = site.post("/login", {"token": TOKEN}, origin="https://queue.example")
    assert "Secure" in answer.headers["set-cookie"]


def test_who_is_refused_is_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    serve().post("/do/pause_queue", {"target": "q"})
    assert "refused 'local' from 127.0.0.1: POST '/do/pause_queue'" in caplog.text


def test_an_old_browser_is_believed_by_its_origin(conn: Conn, serve: Serve) -> None:
    site = serve(may_act=True)
    answer = site.post("/do/pause_queue", {"target": "q"}, **{"sec-fetch-site": "", "origin": site.url})
    assert answer.status == 303
    assert not nothing_happened(conn)


def test_an_action_is_never_a_get(conn: Conn, serve: Serve) -> None:
    assert serve(may_act=True).get("/do/pause_queue?target=q").status == 404
    assert nothing_happened(conn)


def test_a_form_must_be_a_form_and_has_an_end(serve: Serve) -> None:
    site = serve(may_act=True)
    assert site.post("/do/pause_queue", {"target": "q"}, **{"content-type": "text/plain"}).status == 415
    assert site.post("/do/pause_queue", {"target": "q" * 2_100_000}).status == 413
    assert site.post("/do/pause_queue", {}).status == 400
    assert site.post("/do/explode", {"target": "q"}).status == 404


def test_a_name_that_leads_to_our_address_by_rebinding_is_not_served(serve: Serve) -> None:
    site = serve(hosts=access.LOOPBACK)
    assert site.get("/").status == 200
    port = site.url.rsplit(":", 1)[1]
    assert site.get("/", host=f"localhost:{port}").status == 200
    for host in (f"evil.example:{port}", "evil.example", "", "127.0.0.1.evil.example"):
        assert site.get("/", host=host or "x").status == 400, host


# ------------------------------------------------------------------------------------------ headers and paths


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/page.js", "/static/nothing", "/jobs/1"])
def test_every_answer_forbids_what_is_not_ours(serve: Serve, path: str) -> None:
    headers = serve().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == ("no-cache" if path == "/static/page.js" else "no-store")


@pytest.mark.parametrize("path", [
    "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/%2e%2e/errors.py", "/static/....//app.py",
    "/static//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/queues/..%2f..%2fetc", "/recurring/%00", "/queues/%00",
    "/jobs/99999999999999999999999", "/jobs/-1", "/jobs/1%20or%201=1", "/jobs/٣", "/recurring/%ff",
])  # fmt: skip
def test_tricks_with_paths_find_nothing(serve: Serve, path: str) -> None:
    from urllib.parse import quote

    answer = serve().get(quote(path, safe="/%"))
    assert answer.status in (400, 404), path
    assert "import" not in answer.text
    assert "root:" not in answer.text


# ------------------------------------------------------------------------------------------------- mounted


def test_mounted_in_another_app_its_links_and_forms_stay_inside(conn: Conn, dsn: str, serve: Serve) -> None:
    async def who(request: HTTPConnection) -> web.Viewer | None:
        name = request.headers.get("x-user")
        return web.Viewer(name, may_act=name == "ada") if name else None

    page = web.create(dsn, authorize=who)
    site = serve(app=Starlette(routes=[Mount("/ops/queue", page)]), close=page.state.close)
    enqueue(conn)
    assert site.get("/ops/queue/").status == 401
    text = site.get("/ops/queue/", **{"x-user": "ada"}).text
    assert 'href="/ops/queue/queues/q"' in text
    assert 'href="/queues' not in text
    assert site.get("/ops/queue/static/page.css").status == 200
    assert site.post("/ops/queue/do/pause_queue", {"target": "q"}, **{"x-user": "bob"}).status == 403
    answer = site.post("/ops/queue/do/pause_queue", {"target": "q"}, **{"x-user": "ada"})
    assert (answer.status, answer.headers["location"]) == (303, "/ops/queue/queues/q")
    assert value(conn, "select actor from pgqueue.audit") == "ada"
