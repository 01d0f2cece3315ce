"""The application: routes, who gets through, and what is said when something goes wrong."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from psycopg_pool import PoolTimeout
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import pgqueue
from pgqueue import config, database
from pgqueue.errors import ConfigError, JobNotFound, PgqueueError, SchemaError
from pgqueue.web import access, actions, pages, search, shown
from pgqueue.web.access import Authorize, Tokens, Viewer
from pgqueue.web.headers import SafeHeaders
from pgqueue.web.live import Live
from pgqueue.web.source import Ask, Source

logger = logging.getLogger("pgqueue.web")

HERE = Path(__file__).parent
FORM_BYTES = 2_000_000  # an edited payload, percent-encoded
SAID = "pgqueue_said"
PAGES: dict[str, pages.Show] = {
    "/": pages.overview,
    "/queues": pages.queues,
    "/queues/{queue}": pages.queue,
    "/tasks": pages.tasks,
    "/jobs": pages.jobs,
    "/jobs/{id}": pages.job,
    "/flows": pages.flows,
    "/flows/{id}": pages.flow,
    "/dead": pages.dead,
    "/recurring": pages.recurring,
    "/recurring/{name}": pages.recurring_job,
    "/workers": pages.workers,
    "/system": pages.system,
}
NAVIGATION = (
    ("/", "Overview", "o"), ("/queues", "Queues", "q"), ("/tasks", "Tasks", "t"), ("/jobs", "Jobs", "j"),
    ("/flows", "Flows", "f"), ("/dead", "Dead letters", "d"), ("/recurring", "Recurring", "r"),
    ("/workers", "Workers", "w"), ("/system", "System", "s"),
)  # fmt: skip


class Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def create(
    database_url: str | None = None,
    *,
    authorize: Authorize | None = None,
    actions: bool = False,
    token: str | None = None,
    reader_token: str | None = None,
    hosts: Sequence[str] | None = None,
    environment: str | None = None,
    hide: Sequence[str] = (),
    seconds: float = 5.0,
) -> Starlette:
    """The page as an ASGI application.

    Who may look is decided by `authorize`, or by tokens; with neither it is a ConfigError. With tokens, `actions` lets
    the holder of `token` act. `hosts` are the names under which it may be asked for, `hide` names of payload members
    that are masked beside those that sound like a secret, `seconds` what the database may take for a statement.
    """
    if authorize is None:
        if token is None and reader_token is None:
            raise ConfigError(
                "the page would be open to everyone: give token=…, or authorize=…, a function of the request"
            )
        authorize = Tokens(token, reader_token, actions)
    elif token is not None or reader_token is not None:
        raise ConfigError("give a token or authorize=…, not both")
    conninfo = config.conninfo(database_url)
    return _Web(conninfo, authorize, hosts, environment, tuple(hide), seconds).app()


class _Web:
    def __init__(
        self, conninfo: str, authorize: Authorize, hosts: Sequence[str] | None, environment: str | None,
        hide: tuple[str, ...], seconds: float,
    ) -> None:  # fmt: skip
        self._authorize = authorize
        self._hosts = None if hosts is None else tuple(host.lower() for host in hosts)
        self._hide = hide
        self._source = Source(conninfo, seconds)
        self._live = Live()
        self._env = _environment()
        self._env.globals.update(
            version=pgqueue.__version__, environment=environment, database_name=config.describe(conninfo),
            navigation=NAVIGATION,
        )  # fmt: skip

    def app(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            self._source.start()
            yield
            await self._source.close()

        routes = [
            Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
            Route("/login", self._guarded(self._login, public=True), methods=["GET", "POST"]),
            Route("/logout", self._guarded(self._logout), methods=["POST"]),
            Route("/confirm/{verb}", self._guarded(self._confirm), methods=["GET"]),
            Route("/do/{verb}", self._guarded(self._do), methods=["POST"]),
            *(Route(path, self._guarded(self._page(show)), methods=["GET"]) for path, show in PAGES.items()),
            Route("/{rest:path}", self._guarded(self._nowhere), methods=["GET"]),
        ]
        made = Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(SafeHeaders)])
        made.state.close = self._source.close  # for who mounts it: lifespans of mounted apps are not run
        return made

    # ------------------------------------------------------------------------------------- who gets through

    def _guarded(
        self, endpoint: Callable[[Request, Viewer], Awaitable[Response]], public: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            viewer = None
            try:
                if not access.known_host(request, self._hosts):
                    raise Refused(400, "This page is not served under that name: see --allow-host.")
                if access.asked_for_by_another_site(request):
                    raise Refused(403, "Another site asked for this, not a person.")
                viewer = await access.viewer_of(self._authorize, request)
                if request.method == "POST" and not access.same_origin(request):
                    raise Refused(403, "This form did not come from the page itself.")
                if viewer is None and not public:
                    return self._stranger(request)
                return await endpoint(request, viewer or Viewer("nobody"))
            except Exception as error:
                return self._trouble(request, viewer, error)

        return guarded

    def _stranger(self, request: Request) -> Response:
        if isinstance(self._authorize, Tokens) and request.method == "GET" and not _is_stream(request):
            here = _path(request) + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{_root(request)}/login?{urlencode({'next': here})}", 303)
        raise Refused(401, "Who are you? Log in first.")

    async def _login(self, request: Request, viewer: Viewer) -> Response:
        del viewer
        tokens = self._authorize
        if not isinstance(tokens, Tokens):
            raise Refused(404, "There is nothing to log in to.")
        to = request.query_params.get("next", "/")
        if not to.startswith("/") or to.startswith("//") or "\\" in to or any(ord(c) < 32 for c in to):
            to = "/"
        if request.method == "GET":
            return self._html(request, None, "login.html", {"title": "Log in", "next": to, "wrong": False})
        cookie = tokens.cookie(dict(await _form(request)).get("token", "").strip())
        if cookie is None:
            logger.warning("a wrong token from %s", _address(request))
            return self._html(request, None, "login.html", {"title": "Log in", "next": to, "wrong": True}, 401)
        response = RedirectResponse(_root(request) + to, 303)
        response.set_cookie(
            access.COOKIE, cookie, max_age=access.COOKIE_SECONDS, path=_root(request) or "/", httponly=True,
            samesite="lax", secure=access.came_by_tls(request),
        )  # fmt: skip
        return response

    async def _logout(self, request: Request, viewer: Viewer) -> Response:
        del viewer
        response = RedirectResponse(_root(request) + "/login", 303)
        response.delete_cookie(access.COOKIE, path=_root(request) or "/", httponly=True, samesite="lax")
        return response

    # ----------------------------------------------------------------------------------------------- pages

    def _page(self, show: pages.Show) -> Callable[[Request, Viewer], Awaitable[Response]]:
        async def endpoint(request: Request, viewer: Viewer) -> Response:
            if _is_stream(request):
                return self._stream(request, viewer, show)
            page, context = await self._asked(request, viewer, show)
            said = _said(request)
            response = self._html(request, viewer, page.template, {**context, "said": said}, page.status)
            if said:
                response.delete_cookie(SAID, path=_root(request) or "/")
            return response

        return endpoint

    async def _asked(self, request: Request, viewer: Viewer, show: pages.Show) -> tuple[pages.Page, dict[str, Any]]:
        async with self._source.asking(viewer) as ask:
            now = await ask(database.clock())
            page = await show(ask, pages.Asked(request.path_params, request.query_params, self._hide, now))
        return page, {"title": page.title, "now": now, "live": page.status == 200, **page.context}

    def _stream(self, request: Request, viewer: Viewer, show: pages.Show) -> Response:
        if self._live.full:
            return Response(status_code=503, headers={"retry-after": "30"})

        async def make() -> str:
            try:
                page, context = await self._asked(request, viewer, show)
            except (psycopg.Error, PoolTimeout, PgqueueError, pages.NotThere) as error:
                status, text = _explained(error)
                return self._render(
                    request, viewer, "error.html", {"title": "Trouble", "text": text, "code": status}, True
                )
            return self._render(request, viewer, page.template, {**context, "said": None}, True)

        key = f"{viewer.may_act} {_root(request)} {request.url.path}?{request.url.query}"
        return StreamingResponse(
            self._live.stream(key, make), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _nowhere(self, request: Request, viewer: Viewer) -> Response:
        del request, viewer
        raise Refused(404, "There is no such page.")

    # --------------------------------------------------------------------------------------------- actions

    async def _confirm(self, request: Request, viewer: Viewer) -> Response:
        name, verb = self._verb(request, viewer)
        if access.led_by_another_site(request):  # to whoever is about to press a key
            raise Refused(403, "Another site led here. Ask for it on the page itself.")
        form = self._read(request.query_params.multi_items())
        context: dict[str, Any] = {"verb": verb, "name": name, "form": form, "count": None, "values": dict(form.values)}
        async with self._source.asking(viewer) as ask:
            if verb.many:
                context["count"] = await actions.count(ask, form.target)
            if name == "retry":
                context["values"]["payload"] = await actions.payload_of(ask, form.target, self._hide)
            elif name == "set_queue":
                context["values"] |= await actions.settings_of(ask, form.target)
        said = shown.number(len(form.targets)) if name.endswith("_selected") else form.target
        context |= {"title": verb.title.format(said), "back": actions.back_of(name, form)}
        return self._html(request, viewer, "confirm.html", context)

    async def _do(self, request: Request, viewer: Viewer) -> Response:
        name, verb = self._verb(request, viewer)
        form = self._read(await _form(request))

        def asking() -> AbstractAsyncContextManager[Ask]:
            return self._source.asking(viewer, writing=True)

        done, unfinished = await actions.carry_out(asking, name, form, viewer.name, _address(request))
        logger.info("%r: %s %.200r", viewer.name, name, form.targets[:5])
        if unfinished:
            context = {"title": verb.title.format(form.target), "name": name, "form": form, "done": done,
                       "back": actions.back_of(name, form)}  # fmt: skip
            return self._html(request, viewer, "unfinished.html", context)
        response = RedirectResponse(_root(request) + actions.back_of(name, form), 303)
        said = base64.urlsafe_b64encode(done.said[:500].encode()).decode()
        response.set_cookie(
            SAID, said, max_age=60, path=_root(request) or "/", httponly=True, samesite="strict",
            secure=access.came_by_tls(request),
        )  # fmt: skip
        return response

    def _verb(self, request: Request, viewer: Viewer) -> tuple[str, actions.Verb]:
        name = request.path_params["verb"]
        if name not in actions.VERBS:
            raise Refused(404, "There is no such action.")
        if not viewer.may_act:
            raise Refused(403, "This page is read-only: start it with --actions, or log in with the operator's token.")
        return name, actions.VERBS[name]

    def _read(self, given: Sequence[tuple[str, str]]) -> actions.Form:
        targets = [value for name, value in given if name == "target" and value][: actions.SELECTED]
        if not targets:
            raise Refused(400, "Nothing was selected.")
        if any("\0" in value for _, value in given):
            raise Refused(400, "A NUL is in no name of ours.")
        return actions.Form(targets, {name: value for name, value in given if name != "target"}, self._hide)

    # --------------------------------------------------------------------------------------------- answers

    def _html(
        self, request: Request, viewer: Viewer | None, template: str, context: dict[str, Any], status: int = 200
    ) -> HTMLResponse:
        return HTMLResponse(self._render(request, viewer, template, context), status)

    def _render(
        self, request: Request, viewer: Viewer | None, template: str, context: dict[str, Any], main_only: bool = False
    ) -> str:
        root = _root(request)
        found = self._env.get_template(template)
        whole = {
            "root": root, "path": _path(request), "viewer": viewer, "may_act": viewer is not None and viewer.may_act,
            "query": dict(request.query_params), "can_log_out": isinstance(self._authorize, Tokens), "said": None,
            "live": False, **context,
        }  # fmt: skip
        if main_only:
            return "".join(found.blocks["main"](found.new_context(whole)))
        return found.render(whole)

    def _trouble(self, request: Request, viewer: Viewer | None, error: Exception) -> Response:
        status, text = _explained(error)
        if status == 500:
            logger.error("%s %r failed", request.method, request.url.path, exc_info=error)
        elif status == 403:
            by = viewer.name if viewer else "a stranger"
            logger.warning("refused %r from %s: %s %r", by, _address(request), request.method, request.url.path)
        context = {"title": "Refused" if status < 500 else "Trouble", "text": text, "code": status}
        return self._html(request, viewer, "error.html", context, status)


def _explained(error: Exception) -> tuple[int, str]:
    """What happened and what to do, for people; nothing about the inside."""
    match error:
        case Refused():
            return error.status, str(error)
        case JobNotFound() | pages.NotThere():
            return 404, f"{str(error)[:1].upper()}{str(error)[1:]}."
        case SchemaError():
            return 503, "The schema of this database is older than this pgqueue: run pgqueue migrate."
        case PgqueueError():
            return 400, f"{str(error)[:1].upper()}{str(error)[1:]}"
        case psycopg.errors.QueryCanceled():
            return (
                503,
                "Too much: the database gave up after its time. Narrow it: name a queue, a status, a shorter time.",
            )
        case psycopg.errors.InsufficientPrivilege() | psycopg.errors.ReadOnlySqlTransaction():
            return 403, "The role of the database that serves you may not do this."
        case PoolTimeout() | psycopg.OperationalError() | psycopg.InterfaceError():
            return 503, "The database does not answer. This page tries again by itself."
        case psycopg.DataError():
            return 400, "The database does not take this value."
    return 500, "Something went wrong here; the log says what."


def _environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    env.filters.update(
        number=shown.number, percent=shown.percent, seconds=shown.seconds, size=shown.size, rate=shown.rate,
        moment=shown.moment, clock=shown.clock, ago=shown.ago, pretty=shown.pretty,
        compact=shown.compact, plain=shown.plain, share=shown.progress, segment=lambda text: quote(str(text), safe=""),
    )  # fmt: skip
    env.globals.update(
        command=shown.command, term=search.term, q=lambda **terms: urlencode(terms), hidden=shown.HIDDEN,
        shown=pages.SHOWN, outcome_css=pages.OUTCOMES, urlencoded=lambda query, **more: urlencode({**query, **more}),
    )  # fmt: skip
    return env


async def _form(request: Request) -> list[tuple[str, str]]:
    """A form as browsers send it. (Starlette's own would need another library.)"""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Refused(415, "Only forms are taken here.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise Refused(413, "That is too big.")
    try:
        return parse_qsl(bytes(body).decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise Refused(400, "This is not a form.") from None


def _said(request: Request) -> str | None:
    try:
        return base64.urlsafe_b64decode(request.cookies.get(SAID, "").encode()).decode()[:500] or None
    except ValueError:
        return None


def _address(request: Request) -> str | None:
    return request.client and request.client.host


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _path(request: Request) -> str:
    """Without where the application is mounted."""
    return request.url.path.removeprefix(_root(request)) or "/"


def _is_stream(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("text/event-stream")
