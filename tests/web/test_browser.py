"""In a real browser: what is drawn, what moves, what does not run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pgqueue import database as db
from pgqueue.web import live
from pgqueue.web.app import PAGES
from tests.support import Conn, claim_one, enqueue, job, value, wait_until, worker
from tests.web.conftest import OpenTab, Serve
from tests.web.test_access import TOKEN
from tests.web.test_actions import die
from tests.web.test_pages import HOSTILE, fill, paths

ROUND = 0.2  # seconds between two updates of a live page


def updates(page: Any) -> int:
    return int(page.locator("main").get_attribute("data-updates") or 0)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", ROUND)


def test_every_page_fits_and_can_be_read(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    """On a phone and on a desk, in the light and in the dark."""
    id = fill(conn, "text" * 20)
    site = serve(may_act=True)
    page = tab(site.url).page
    for path in paths(conn, id):
        page.goto(site.url + path)
        assert page.locator("h1, h2").count() > 0, path
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            # Nothing sticks out: wide tables scroll by themselves.
            assert page.evaluate(TOO_WIDE) == [], (path, width)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate(CONTRAST) == [], (path, width, scheme)


TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter((node) =>
  !node.closest(".wide, nav.pages, .hidden, pre") && node.getBoundingClientRect().right > innerWidth + 1
).map((node) => node.outerHTML.slice(0, 120))"""
# Texts that can hardly be told from what is behind them, as WCAG reckons it.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgb = (colour) => known.get(colour) ?? known.set(colour, painted(colour)).get(colour);
  const painted = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const linear = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return rgb("Canvas");
  };
  const found = [];
  for (const node of document.querySelectorAll("main *, header *, nav *")) {
    if (![...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !node.getClientRects().length) continue;
    if (node.closest("svg, .hidden, :disabled, .chart.empty, option")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.4) found.push(`${contrast.toFixed(2)} ${node.outerHTML.slice(0, 120)}`);
  }
  return found;
}"""


def test_a_hostile_payload_runs_nothing(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    id = fill(conn, HOSTILE)
    site = serve(may_act=True)
    opened = tab(site.url)
    for path in [*paths(conn, id), f"/jobs?q={HOSTILE.split('{')[0]}"]:
        opened.page.goto(site.url + path)
        if opened.page.locator("main[data-live]").count():
            opened.page.wait_for_selector("main[data-updates]")  # through the script, too
        assert opened.page.locator("main img, main script, main iframe").count() == 0, path
        opened.wrong[:] = [each for each in opened.wrong if "400 (Bad Request)" not in each]
    assert opened.wrong == []


def test_the_policy_stops_a_script_that_got_in_all_the_same(serve: Serve, tab: OpenTab) -> None:
    opened = tab(serve().url)
    opened.page.evaluate(
        "() => { const made = document.createElement('script'); made.textContent = 'window.ran = 1';"
        " document.body.append(made); }"
    )
    assert opened.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in each for each in opened.wrong)
    opened.wrong.clear()


def test_a_new_job_appears_by_itself(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    page = tab(serve().url + "/jobs").page
    assert page.get_by_text("No job matches.").count() == 1
    id = enqueue(conn)
    page.wait_for_selector(f"#job-{id}", timeout=20_000)
    claim_one(conn, worker(conn))
    page.wait_for_selector(f"#job-{id} .s-running", timeout=20_000)


def test_what_was_opened_typed_and_ticked_outlives_an_update(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    ids = [enqueue(conn) for _ in range(3)]
    page = tab(serve(may_act=True).url + "/jobs").page
    page.locator(f"input[value='{ids[0]}'][name=target]").check()
    page.locator("#help summary").click()
    page.locator("#q").fill("status:de")
    id = enqueue(conn)
    page.wait_for_selector(f"#job-{id}", timeout=20_000)  # what has not changed is not sent: this is the update
    assert page.locator("tbody tr").count() == 4
    assert page.locator(f"input[value='{ids[0]}'][name=target]").is_checked()
    assert page.locator("input[name=target]:checked").count() == 1
    assert page.locator("#help").evaluate("each => each.open")
    assert page.locator("#q").input_value() == "status:de"


def test_a_hidden_tab_and_a_paused_page_ask_for_nothing(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    page = tab(serve().url + "/queues").page
    page.wait_for_selector("main[data-updates]")
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    seen = updates(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    enqueue(conn)
    page.wait_for_timeout(5000 * ROUND)  # several rounds would have passed
    assert (updates(page), asked) == (seen, [])
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', { value: false, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.wait_for_selector("#queue-q", timeout=20_000)
    page.locator("#live").click()
    assert page.locator("#live").inner_text() == "paused"


def test_times_are_those_of_the_reader_and_utc_on_hover(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    id = enqueue(conn)
    conn.execute("update pgqueue.job_live set enqueued_at = '2026-01-02 03:04:05+00', rank_at = rank_at")
    page = tab(f"{serve().url}/jobs/{id}", timezone_id="Asia/Kathmandu").page
    found = page.locator(".events time").first
    assert found.inner_text() == "2026-01-02 08:49:05"
    assert "03:04:05.000 UTC" in (found.get_attribute("title") or "")


def test_a_log_line_has_the_time_of_the_reader_too(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    id = enqueue(conn)
    claimed = claim_one(conn, w := worker(conn))
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    db.execute(conn, db.log(w, id, claimed.token, [(at, "info", "hello")]))
    page = tab(f"{serve(may_act=True).url}/jobs/{id}", timezone_id="Asia/Kathmandu").page
    assert page.locator(".log").inner_text().strip() == "08:49:05.678 INFO hello"


def test_a_command_is_copied_as_it_stands(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    id = die(conn, {"who": "Ada"})
    page = tab(f"{serve(may_act=True).url}/jobs/{id}", permissions=["clipboard-read", "clipboard-write"]).page
    for found, words in ((page.locator(".facts code.copy").last, f"pgqueue jobs retry {id}"),
                         (page.locator("pre.json").first, '{\n  "who": "Ada"\n}')):  # fmt: skip
        found.get_by_role("button").click()
        page.wait_for_function("words => navigator.clipboard.readText().then((text) => text === words)", arg=words)


def test_every_page_can_be_read_without_a_script(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    id = fill(conn, "text")
    site = serve()
    page = tab(site.url, java_script_enabled=False).page
    for path in paths(conn, id)[: len(PAGES)]:
        page.goto(site.url + path)
        assert len(page.locator("main").inner_text()) > 20, path
        assert page.locator("#live").is_hidden(), path


def test_an_action_is_done_by_keyboard_alone_without_a_script(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    id = die(conn, {"a": 1})
    page = tab(f"{serve(may_act=True).url}/jobs/{id}", java_script_enabled=False).page
    page.get_by_role("button", name="Retry, edit …").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/confirm/retry**")
    page.get_by_role("button", name="Retry").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{id}")
    assert page.get_by_role("status").inner_text() == f"Job {id} is pending again."
    assert job(conn, id)["status"] == "pending"


def test_keys_lead_to_every_page_and_to_the_search(serve: Serve, tab: OpenTab) -> None:
    site = serve()
    page = tab(site.url).page
    for letter, path in zip(
        "qtjfdrws", ("queues", "tasks", "jobs", "flows", "dead", "recurring", "workers", "system"), strict=True
    ):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(f"**/{path}")
    page.keyboard.press("/")
    page.keyboard.type("4711")
    assert page.locator("#find").input_value() == "4711"


def test_the_last_term_of_a_search_is_completed(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    enqueue(conn, queue="email")
    db.execute(conn, db.pause("email"))
    page = tab(serve().url + "/jobs").page
    page.locator("#q").press_sequentially("status:dead queue:em")
    assert page.locator("#terms option").evaluate_all("all => all.map((each) => each.value)") == [
        "status:dead queue:email"
    ]


def test_selected_jobs_are_cancelled_together(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    ids = [enqueue(conn) for _ in range(3)]
    page = tab(serve(may_act=True).url + "/jobs").page
    page.locator("#every").check()
    page.locator("#bulk").get_by_role("button", name="Cancel").click()
    page.wait_for_url("**/confirm/cancel_selected**")
    page.get_by_label("Reason").fill("by mistake")
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_url("**/jobs?**")
    assert {job(conn, id)["status"] for id in ids} == {"cancelled"}


def test_many_jobs_are_retried_batch_by_batch_to_the_end(
    conn: Conn, serve: Serve, tab: OpenTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgqueue.web import actions

    monkeypatch.setattr(actions, "BATCH", 2)
    monkeypatch.setattr(actions, "BUSY_SECONDS", 0)
    for n in range(5):
        die(conn, {"n": n})
    page = tab(serve(may_act=True).url + "/dead").page
    page.get_by_role("button", name="Retry all").click()
    page.get_by_role("button", name="Retry 5").click()
    wait_until(lambda: value(conn, "select count(*) from pgqueue.job_dead") == 0)
    page.wait_for_url("**/jobs?**")
    assert page.get_by_role("status").inner_text() == "Retried 5 jobs."


def test_a_form_on_another_site_does_nothing(conn: Conn, serve: Serve, tab: OpenTab) -> None:
    """With the cookie of somebody who is logged in, from another origin, as an attacker would."""
    site = serve(token=TOKEN, actions=True)
    opened = tab(site.url)
    page = opened.page
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector(".tile")
    attack: Callable[[str], str] = lambda action: (  # noqa: E731
        f'<form method="post" action="{site.url}/do/pause_queue"><input name="target" value="q">{action}</form>'
    )
    page.route("http://evil.test/**", lambda route: route.fulfill(
        content_type="text/html", body=attack("<button>win</button>")))  # fmt: skip
    page.goto("http://evil.test/")
    page.get_by_role("button", name="win").click()
    page.wait_for_url(f"{site.url}/**")
    assert value(conn, "select count(*) from pgqueue.audit") == 0
    opened.wrong.clear()  # the browser tells of the 403
    page.goto(site.url + "/queues")
    assert page.get_by_role("heading", name="Queues").count() == 1  # still logged in: it was not the cookie that failed


def test_no_other_site_can_show_it_in_a_frame(serve: Serve, tab: OpenTab) -> None:
    site = serve()
    opened = tab(site.url)
    opened.page.route("http://evil.test/**", lambda route: route.fulfill(
        content_type="text/html", body=f'<iframe src="{site.url}/"></iframe>'))  # fmt: skip
    opened.page.goto("http://evil.test/")
    opened.page.wait_for_timeout(500)
    frame = opened.page.frames[-1]
    assert frame.url.startswith("chrome-error:") or frame.locator(".tile").count() == 0
    opened.wrong.clear()


def test_logging_out_ends_it(serve: Serve, tab: OpenTab) -> None:
    page = tab(serve(token=TOKEN).url).page
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    assert page.get_by_label("Token").count() == 1
