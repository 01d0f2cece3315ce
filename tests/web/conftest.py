"""The page on a real port over a real database, and a real browser."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright
from starlette.responses import Response

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

    def send(self, path: str, form: list[tuple[str, str]]) -> Answer:
        """The same of a form in which a name may stand twice."""
        given = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
        return self._ask("POST", path, urlencode(form), given)

    def first_event(self, path: str) -> str:
        """What a stream sends first: the main part of the page."""
        conn = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=20)
        conn.request("GET", path, headers={"accept": "text/event-stream"})
        response = conn.getresponse()
        lines: list[str] = []
        while (line := response.readline().decode()) != "\n" or not lines:
            if line.startswith("data:"):
                lines.append(line)
        conn.close()
        return "".join(lines)

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
Close = Callable[[], Awaitable[None]]


class Port:
    """A server that outlives tests: to start and to stop one takes longer than most of them."""

    def __init__(self) -> None:
        self.app: Any = None
        self.close: Close | None = None
        config = uvicorn.Config(self, host="127.0.0.1", port=0, log_level="error", lifespan="off",
                                timeout_graceful_shutdown=1)  # fmt: skip
        self.server = uvicorn.Server(config)
        self.listening = config.bind_socket()
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server.started)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def _run(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            await self.server.serve(sockets=[self.listening])

        asyncio.run(serve())

    def free(self) -> None:
        close, self.app, self.close = self.close, _nobody, None
        if close is not None:
            asyncio.run_coroutine_threadsafe(_closed(close), self.loop).result(20)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        self.listening.close()


async def _closed(close: Close) -> None:
    await close()


async def _nobody(scope: Any, receive: Any, send: Any) -> None:
    await Response(status_code=503)(scope, receive, send)


@pytest.fixture(scope="session")
def ports() -> Iterator[list[Port]]:
    """Those that no test uses at the moment."""
    made: list[Port] = []
    yield made
    for each in made:
        each.stop()


@pytest.fixture
def serve(dsn: str, conn: Conn, ports: list[Port]) -> Iterator[Serve]:
    """serve(): open, read-only; serve(may_act=True); or any arguments of web.create."""
    taken: list[Port] = []

    def one(may_act: bool = False, app: Any = None, close: Close | None = None, **options: Any) -> Site:
        if app is None:
            if not {"token", "reader_token", "authorize"} & options.keys():
                options["authorize"] = access.anyone(may_act)
            app = web.create(options.pop("database_url", dsn), **options)
        port = ports.pop() if ports else Port()
        taken.append(port)
        port.app, port.close = app, close or app.state.close
        return Site(port.url)

    yield one
    for port in taken:
        port.free()
        ports.append(port)


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
