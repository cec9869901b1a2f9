"""The guard in front of all pages, and the registry of pages and changes.

A page is a GET, with its figures as JSON below /api; a change is a POST. Every route has the role that it needs; there
is no other way to register one. A change needs the token of the person's session in its form, must not come from
another site, and leaves a line in the log: person, address, change, object and outcome. No line has a secret.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import resources
from secrets import token_urlsafe
from typing import Any, Final
from urllib.parse import quote, urlsplit

import click
import orjson
import trio
from markupsafe import Markup
from quart import Request, Response, g, redirect, render_template, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.options import ConsoleOptions
from skylark.mqconsole.people.people import LoginFailed, People
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.findings import counts, with_away
from skylark.mqconsole.showing.previews import one_line, printable
from skylark.mqconsole.watching.checkup import Checkup
from skylark.mqconsole.watching.collector import Collector
from skylark.mqconsole.web.asking import Asked, Done, Download, Fields, NoSuchThing, View
from skylark.mqconsole.web.compiled_templates import compiled_templates
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.admin.failures import explain

logger = logging.getLogger(__name__)
audit = logging.getLogger("skylark.mqconsole.audit")

COOKIE: Final = "mqconsole"
TOKEN_FIELD: Final = "token"
#: The header with which static/console.js loads a page again.
REFRESH: Final = "X-Refresh"
#: The most bytes of a form. Brokers take messages up to 4 MiB, which are larger when encoded in a form.
MOST_BODY_BYTES: Final = 16 * 1024 * 1024
#: The most windows that are kept up to date at once.
MOST_STREAMS: Final = 500
STREAM_QUIET_S: Final = 15.0
MOST_IN_AUDIT: Final = 500
#: The most sessions with notices, and the most notices of a session that loads no page.
_NOTICES_OF_SESSIONS: Final = 256
_NOTICES_OF_A_SESSION: Final = 8
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
#: The most characters of a path in the log.
_MOST_LOGGED: Final = 200
_NOT_THERE: Final = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.QUERY_NOT_FOUND,
)
_REFUSED: Final = (ResponseCode.NO_PERMISSION,)

Handler = Callable[..., Awaitable[View | Download]]
Change = Callable[..., Awaitable[Done]]


@lazy_dataclass(frozen=True, slots=True)
class Route:
    """A registered route: what the guard must know of it."""

    rule: str
    method: str
    role: Role


class Refused(UserError):
    """The guard refuses a request; ``status`` is the status of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Site:
    """The application; pages and changes are added with `page`, `download` and `change`."""

    def __init__(self, people: People, collector: Collector, checkup: Checkup, options: ConsoleOptions) -> None:
        self.people = people
        self.collector = collector
        self._checkup = checkup
        self._options = options
        self._cookie = f"__Host-{COOKIE}" if options.is_https else COOKIE
        self._streams = 0
        self._notices: dict[str, list[tuple[str, str]]] = {}
        self.routes: list[Route] = []
        self.app = app = QuartTrio("skylark.mqconsole", static_folder=None, template_folder="templates")
        app.config["MAX_CONTENT_LENGTH"] = MOST_BODY_BYTES
        app.config["RESPONSE_TIMEOUT"] = None
        app.jinja_env.bytecode_cache = app.jinja_env.bytecode_cache or compiled_templates()
        app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
        app.jinja_env.filters |= {
            "count": texts.count,
            "size": texts.size,
            "percent": texts.percent,
            "duration": texts.duration,
            "moment": texts.moment,
            "setting": texts.setting,
            "part": partial(quote, safe=""),
            "printable": printable,
        }
        app.before_request(self._identify)
        app.after_request(self._harden)
        app.register_error_handler(Exception, self._failed)
        app.add_url_rule("/events", "events", self._events)
        self._files = static_files()
        app.add_url_rule("/static/<name>", "static", self._static)
        self.routes.append(Route("/events", "GET", Role.READER))

    # --- registration

    def page(self, rule: str, role: Role, template: str, handler: Handler) -> None:
        """Register a page, and its figures below /api."""

        async def as_html(**parts: str) -> Response:
            view = await self._handle(role, handler, parts)
            assert isinstance(view, View)
            return await self.render(template, view)

        async def as_json(**parts: str) -> Response:
            view = await self._handle(role, handler, parts)
            assert isinstance(view, View)
            return Response(orjson.dumps(_jsonable(view.plain())), content_type="application/json")

        self._add(rule, "GET", role, as_html)
        self._add("/api/overview" if rule == "/" else f"/api{rule}", "GET", role, as_json)

    def download(self, rule: str, role: Role, handler: Handler) -> None:
        """Register a file or a picture."""

        async def load(**parts: str) -> Response:
            found = await self._handle(role, handler, parts)
            assert isinstance(found, Download)
            response = Response(found.body, content_type=found.content_type)
            if found.file_name:
                response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(found.file_name)}"
            return response

        self._add(rule, "GET", role, load)

    def change(self, rule: str, role: Role, change: Change) -> None:
        """Register a change. The audit log has the function's name."""

        async def act(**parts: str) -> Response:
            return await self._change(role, change, parts)

        self._add(rule, "POST", role, act)

    def open_to_all(self, rule: str, method: str, act: Callable[[], Awaitable[Response]]) -> None:
        """Register a route that needs no login."""
        self._add(rule, method, Role.NOBODY, act)

    def _add(self, rule: str, method: str, role: Role, act: Callable[..., Awaitable[Any]]) -> None:
        self.app.add_url_rule(rule, f"{method} {rule}", act, methods=[method])
        self.routes.append(Route(rule, method, role))

    # --- each request

    async def _identify(self) -> None:
        """Find the person of the request. Raises Refused for a host name that the console does not serve."""
        allowed = self._options.allowed_hosts
        host = urlsplit(f"//{request.host}").hostname or ""
        if allowed and host not in allowed and f"[{host}]" not in allowed:
            raise Refused(421, f"this console does not serve the name {host}; see the option hostNames")
        # Without a login there is no cookie that browsers withhold from other sites' requests.
        if _is_cross_site(request) and not _is_followed_link(request):
            raise Refused(
                403, "other sites may link to this console, and load nothing from it: open it in a window of its own"
            )
        g.session_id = self.people.tokens.session_id(request.cookies.get(self._cookie, ""))
        # A browser without a session gets an id before the login, too: the login form has a token for this id.
        if g.session_id is None:
            g.session_id = token_urlsafe(32)
        # An open window that only refreshes itself does not extend the session.
        is_background = REFRESH in request.headers or request.path == "/events"
        g.person = self.people.find(g.session_id, is_use=not is_background)

    async def _harden(self, response: Response) -> Response:
        response.headers.update(_HEADERS)
        if self._options.is_https:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"
        if request.path.startswith("/static/"):
            response.headers["Cache-Control"] = "public, max-age=3600"
            return response
        response.headers["Cache-Control"] = "no-store"
        is_page = request.method == "GET" and (response.content_type or "").startswith("text/html")
        if is_page and "session_id" in g and self._cookie not in request.cookies:
            self.set_cookie(response, g.session_id)
        return response

    def set_cookie(self, response: Response, session_id: str) -> None:
        """Give the browser this session."""
        response.set_cookie(
            self._cookie,
            self.people.tokens.cookie(session_id),
            httponly=True,
            secure=self._options.is_https,
            samesite="Lax",
            path="/",
        )

    def check_person(self, role: Role) -> None:
        """Raises Refused unless the person of the request has the role."""
        person = g.person
        if person is None:
            raise Refused(401, "log in first")
        if person.role < role:
            raise Refused(403, f"this needs the role {role.title}, and you are {person.role.title}")

    def check_form(self, form: Mapping[str, str]) -> None:
        """Raises Refused unless the console made the form, for this session."""
        # Browsers that do not send the header are stopped by the token alone.
        if _is_cross_site(request):
            raise Refused(403, "this form comes from another site")
        if not self.people.tokens.is_form_token(g.session_id, form.get(TOKEN_FIELD, "")):
            raise Refused(403, "this form is too old, or not from this console: load the page again")

    def check_size(self, most_bytes: int) -> None:
        """Raises Refused for a larger form, or a form of unknown size: forms are read before the login."""
        if request.content_length is None or request.content_length > most_bytes:
            raise Refused(413, "this form is too large")

    async def _handle(self, role: Role, handler: Handler, parts: Mapping[str, str]) -> View | Download:
        self.check_person(role)
        person = g.person
        with person.deadline():
            return await handler(Asked(person, Fields(request.args), self.collector), **parts)

    async def _change(self, role: Role, change: Change, parts: Mapping[str, str]) -> Response:
        self.check_person(role)
        form = await request.form
        self.check_form(form)
        person = g.person
        outcome, about = "failed", " ".join(parts.values())
        try:
            with person.deadline():
                done = await change(Asked(person, Fields(form), self.collector), **parts)
            outcome = "done"
        except SkylarkError as error:
            outcome = f"refused: {explain(error)}"
            raise
        finally:
            what = about or form.get("topic", "") or form.get("group", "")
            # Also when the browser has gone, or the console has failed: the broker may have made the change.
            self.audit(person.name, person.role.title, change.__name__, what, outcome)
            person.forget_answers()
            self.collector.refresh_tables()
        self.notify("good", done.text)
        return _see(done.location)

    def audit(self, name: str, role: str, change: str, about: str, outcome: str) -> None:
        """Write one line to the audit log. Names are quoted, so that no name can forge a line."""
        who, what, how = name[:MOST_IN_AUDIT], about[:MOST_IN_AUDIT], one_line(outcome)[:MOST_IN_AUDIT]
        audit.info("%r (%s) from %s: %s %r: %s", who, role, client_host(request), change, what, how)

    def notify(self, kind: str, text: str) -> None:
        """Show ``text`` on the next page of the session."""
        self._notices[g.session_id] = [*self._notices.get(g.session_id, [])[1 - _NOTICES_OF_A_SESSION :], (kind, text)]
        while len(self._notices) > _NOTICES_OF_SESSIONS:
            del self._notices[next(iter(self._notices))]

    # --- answers

    async def render(self, template: str, view: View, status: int = 200) -> Response:
        """A page of the console."""
        # A background refresh must not use up the notice that is meant for the next page.
        notices = [] if REFRESH in request.headers else self._notices.pop(g.session_id, [])
        pictures = {name: Markup(svg) for name, svg in view.pictures.items()}
        html = await render_template(
            template,
            view=view,
            **view.data,
            tables=view.tables,
            pictures=pictures,
            person=g.person,
            role=Role,
            has_login=self.people.has_login,
            snapshot=self.collector.snapshot,
            ills=counts(with_away(self._checkup.findings, self.collector.snapshot.away)),
            token=self.people.tokens.form_token(g.session_id),
            notices=notices,
            here=request.full_path.rstrip("?"),
            args=request.args,
        )
        return Response(html, status, content_type="text/html; charset=utf-8")

    async def _failed(self, error: Exception) -> Response:
        """The page or JSON of an error. Errors of the console itself are logged, not shown."""
        status, text = _status_of(error)
        if status == 500:
            logger.error("%s %s failed", request.method, one_line(request.path[:_MOST_LOGGED]), exc_info=error)
        if request.path.startswith("/api/"):
            return Response(orjson.dumps({"error": text}), status, content_type="application/json")
        if status == 401 and request.method == "GET" and request.path != "/events":
            return _see(f"/login?next={quote(request.full_path.rstrip('?'), safe='/')}")
        is_users = isinstance(error, SkylarkError | click.ClickException) and not isinstance(
            error, Refused | LoginFailed
        )
        if request.method == "POST" and is_users and (back := _back_to(request)):
            self.notify("bad", text)
            return _see(back)
        if "session_id" not in g:
            return Response(text, status, content_type="text/plain; charset=utf-8")
        return await self.render("error.html", View(f"Error {status}", {"text": text}), status)

    async def _static(self, name: str) -> Response:
        """A static file. All static files are in memory, so no name leads to the file system."""
        if name not in self._files:
            raise NoSuchThing(f"there is no file {one_line(name[:100])}")
        return Response(self._files[name], content_type=_TYPES[name.rpartition(".")[2]])

    async def _events(self) -> Response:
        """A line for each new snapshot, as server-sent events."""
        self.check_person(Role.READER)
        if self._streams >= MOST_STREAMS:
            raise Refused(503, "too many windows are kept up to date; this one is not")

        async def lines() -> Any:
            self._streams += 1
            try:
                version = self.collector.snapshot.version
                while True:
                    with trio.move_on_after(STREAM_QUIET_S) as waited:
                        version = (await self.collector.newer_than(version)).version
                    yield b": quiet\n\n" if waited.cancelled_caught else f"data: {version}\n\n".encode()
                    # After the session has ended, stop telling of changes.
                    if self.people.find(session_id, is_use=False) is None:
                        return
            finally:
                self._streams -= 1

        session_id = g.session_id
        return Response(lines(), content_type="text/event-stream")


def client_host(asked: Request) -> str:
    """The address of the browser, or of the proxy in front of the console."""
    remote = asked.remote_addr or ""
    return split_address(remote)[0] if ":" in remote and remote.count(":") == 1 else remote


def _is_cross_site(asked: Request) -> bool:
    """Whether another site caused the request; False when the browser does not tell."""
    return asked.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none")


def _is_followed_link(asked: Request) -> bool:
    """Whether the answer becomes a page in its own window, which no other site can read."""
    return asked.headers.get("Sec-Fetch-Mode") == "navigate" and asked.headers.get("Sec-Fetch-Dest") == "document"


def _status_of(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        return error.code or 500, error.description or error.name
    if isinstance(error, click.ClickException):
        return 400, error.format_message()
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, LoginFailed):
        return 401, str(error)
    if isinstance(error, NoSuchThing) or (isinstance(error, RouteNotFound) and not error.is_passing):
        return 404, explain(error)
    if isinstance(error, BrokerError):
        status = 404 if error.code in _NOT_THERE else 403 if error.code in _REFUSED else 502
        return status, explain(error)
    if isinstance(error, UserError):
        return 400, explain(error)
    if isinstance(error, SkylarkError):
        return 502, explain(error)
    return 500, "the console has failed; its log has the reason"


def _see(location: str) -> Response:
    response = redirect(location, 303)
    assert isinstance(response, Response)
    return response


def own_page(location: str) -> str:
    """``location`` if it is a path of this console, else empty.

    Browsers take ``//host`` and ``/\\host`` for other sites.
    """
    is_ours = location.startswith("/") and not location.startswith("//") and "\\" not in location
    return location if is_ours and location.isprintable() else ""


def _back_to(asked: Request) -> str:
    """The path of the console's page whose form was sent; empty when unknown."""
    # The browser writes this header, so only a path of this host is accepted.
    referrer = urlsplit(asked.headers.get("Referer", ""))
    if referrer.netloc != asked.host:
        return ""
    return own_page(referrer.path + (f"?{referrer.query}" if referrer.query else ""))


def static_files() -> dict[str, bytes]:
    """The files that the pages load, by name."""
    return {file.name: file.read_bytes() for file in resources.files("skylark.mqconsole").joinpath("static").iterdir()}


def _jsonable(value: Any) -> Any:
    """As text: integers of more than 64 bits, and values of types that JSON lacks."""
    if isinstance(value, Mapping):
        return {str(name): _jsonable(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if isinstance(value, int | float | None) else str(value)
