"""The page on a real port over a real database, and a real browser."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

from pgqueue import web
from pgqueue.web import access
from tests.support import Conn, wait_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: dict[str, str]
    cookies: dict[str, str]


@dataclass(frozen=True)
class Site:
    """pgqueue.web on a port of its own."""

    url: str

    def get(self, path: str, **headers: str) -> Answer:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, form: dict[str, Any], **headers: str) -> Answer:
        """As a browser sends a form of a page of ours, unless the headers say otherwise."""
        given = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded", **headers}
        return self._ask("POST", path, urlencode(form, doseq=True), given)

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        conn = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items() if value}
        conn.request(method, path, body, sent)
        response = conn.getresponse()
        set_cookies = response.headers.get_all("set-cookie") or []
        pairs = (each.split(";")[0].partition("=") for each in set_cookies)
        answer = Answer(
            response.status,
            response.read().decode(),
            {name.lower(): value for name, value in response.getheaders()},
            {name: value for name, _, value in pairs},
        )
        conn.close()
        return answer


Serve = Callable[..., Site]


@pytest.fixture
def serve(dsn: str, conn: Conn) -> Iterator[Serve]:
    """serve(): open, read-only; serve(may_act=True); or any arguments of web.create."""
    with ExitStack() as stack:

        def one(may_act: bool = False, app: Any = None, **options: Any) -> Site:
            if app is None:
                if not {"token", "reader_token", "authorize"} & options.keys():
                    options["authorize"] = access.anyone(may_act)
                app = web.create(options.pop("database_url", dsn), **options)
            server = uvicorn.Server(
                uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
            )
            listening = server.config.bind_socket()
            thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(20)
                listening.close()

            stack.callback(stop)
            wait_until(lambda: server.started)
            return Site(f"http://127.0.0.1:{listening.getsockname()[1]}")

        yield one


# Not for the session: its event loop would be in the way of the asynchronous tests that follow.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("PGQUEUE_NEEDS_BROWSER"):
            pytest.fail("no Chromium, though PGQUEUE_NEEDS_BROWSER says that there is one")
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"],
        )
        yield launched
        launched.close()


@dataclass
class Tab:
    """A page of the browser, and everything that went wrong in it."""

    page: Page
    wrong: list[str]

    def hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.wrong.append(f"console: {said.text}")

    def refuse(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()


OpenTab = Callable[..., Tab]


@pytest.fixture
def tab(browser: Browser) -> Iterator[OpenTab]:
    """tab(url, dark=True, width=390, …): opens it; at the end nothing may have gone wrong in any of them."""
    opened: list[tuple[Any, Tab]] = []

    def open_one(url: str, dark: bool = False, width: int = 1280, height: int = 800, **options: Any) -> Tab:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
        )
        page = context.new_page()
        made = Tab(page, [])
        page.on("pageerror", lambda error: made.wrong.append(f"error: {error}"))
        page.on("console", made.hear)
        page.on("dialog", made.refuse)
        page.goto(url)
        opened.append((context, made))
        return made

    yield open_one
    for context, _ in opened:
        context.close()
    assert [wrong for _, made in opened for wrong in made.wrong] == []
