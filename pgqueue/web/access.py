"""Who may see the page, who may act, and whether a request comes from the page itself.

Closed unless told otherwise: without a token or a function that authorizes, nothing is served.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from pgqueue.errors import ConfigError

COOKIE = "pgqueue_web"
COOKIE_SECONDS = 12 * 3600
SHORTEST_TOKEN = 16
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Viewer:
    """Somebody who may look; `may_act` decides which role of the database serves them."""

    name: str
    may_act: bool = False


Authorize = Callable[[HTTPConnection], Awaitable[Viewer | None] | Viewer | None]


async def viewer_of(authorize: Authorize, request: HTTPConnection) -> Viewer | None:
    found = authorize(request)
    return await found if inspect.isawaitable(found) else found


def anyone(may_act: bool) -> Authorize:
    """For a loopback address, where the machine's own users are the only ones who get here."""
    viewer = Viewer("local", may_act)
    return lambda _: viewer


class Tokens:
    """One token for those who act, one for those who only look; either in a header or, after logging in, as a cookie.

    The cookie is not the token: it ends, and what it was made from cannot be had from it.
    """

    def __init__(self, token: str | None, reader_token: str | None, actions: bool) -> None:
        for given in (token, reader_token):
            if given is not None and len(given) < SHORTEST_TOKEN:
                raise ConfigError(f"a token needs at least {SHORTEST_TOKEN} characters: try `openssl rand -hex 24`")
        if token is not None and token == reader_token:
            raise ConfigError("the reader's token must be another one than the operator's")
        self._known = [
            (each, viewer)
            for each, viewer in ((token, Viewer("operator", actions)), (reader_token, Viewer("reader")))
            if each is not None
        ]

    def __call__(self, request: HTTPConnection) -> Viewer | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.viewer(given.strip())
        return self._of_cookie(request.cookies.get(COOKIE, ""))

    def viewer(self, given: str) -> Viewer | None:
        found = None
        for token, viewer in self._known:  # all of them, so that the time says nothing
            if hmac.compare_digest(token.encode(), given.encode("utf-8", "replace")):
                found = viewer
        return found

    def cookie(self, given: str) -> str | None:
        """What a browser is to keep for this token; None: it is not one."""
        if self.viewer(given) is None:
            return None
        ends = str(int(time.time()) + COOKIE_SECONDS)
        return f"{ends}.{_signed(given, ends)}"

    def _of_cookie(self, cookie: str) -> Viewer | None:
        ends, _, signature = cookie.partition(".")
        found = None
        for token, viewer in self._known:
            # As bytes: texts with other than ASCII cannot be compared.
            if hmac.compare_digest(_signed(token, ends).encode(), signature.encode("utf-8", "replace")):
                found = viewer
        return found if ends.isascii() and ends.isdigit() and int(ends[:12]) > time.time() else None


def _signed(token: str, ends: str) -> str:
    message = f"pgqueue web {ends}".encode("utf-8", "replace")
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def same_origin(request: HTTPConnection) -> bool:
    """Whether a form was sent by a page of ours. A browser says so itself; who says nothing is not believed."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc == request.headers.get("host")
    # A script's. Of Basic and Negotiate that would not follow: browsers add those to the forms of other sites, too.
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def led_by_another_site(request: HTTPConnection) -> bool:
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def asked_for_by_another_site(request: HTTPConnection) -> bool:
    """By an image, a frame or a script there, that is; a link that somebody follows is no harm."""
    if not led_by_another_site(request):
        return False
    return (request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")) != ("navigate", "document")


def came_by_tls(request: HTTPConnection) -> bool:
    """As the browser sees it: behind a proxy only the origin that it names tells."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def known_host(request: HTTPConnection, hosts: tuple[str, ...] | None) -> bool:
    """Against DNS rebinding: an attacker's page whose name suddenly leads to our loopback address is of our origin to
    the browser, but it comes with that name."""
    if hosts is None:
        return True
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rsplit(":", 1)[0]
    return name.lower() in hosts
