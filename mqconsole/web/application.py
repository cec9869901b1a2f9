"""A small application of ASGI for the console: routes, requests, answers. It knows nothing of pages and people.

A route is a path of fixed parts and of names in angle brackets, each of which stands for one part of the path. Forms
are urlencoded. When the client has gone, the handler of its request is cancelled.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import trio

from skylark.mqcommon.errors import UserError

_FORM: Final = "application/x-www-form-urlencoded"
_MOST_FIELDS: Final = 10_000
# What a location may have besides letters and digits; other characters are escaped.
_SAFE_IN_LOCATION: Final = "%/:?&=#+,;@!$'()*~[]"
# A value of a cookie, as it may stand without quotes (RFC 6265).
_PLAIN_COOKIE: Final = re.compile(r"[!#-+\--:<-\[\]-~]*")


class Refused(UserError):
    """A request is refused; ``status`` is the status of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Request:
    """A request of a browser. ``person`` and ``session_id`` are set by the guard of the pages."""

    def __init__(self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], most_body_bytes: int) -> None:
        self._receive = receive
        self._most_body_bytes = most_body_bytes
        self._is_read = trio.Event()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        #: The query as it was sent.
        self.query: str = scope["query_string"].decode("latin-1")
        #: Header → value; names are in lower case, several values of a header are joined.
        self.headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            joint = "; " if key == "cookie" else ", "
            self.headers[key] = f"{self.headers[key]}{joint}{text}" if key in self.headers else text
        #: The address of the browser, or of the proxy in front of the console.
        self.client_host: str = scope["client"][0]
        self.session_id = ""
        self.person: Any = None

    @property
    def host(self) -> str:
        """The host that the browser asks for, with its port."""
        return self.headers.get("host", "")

    @property
    def location(self) -> str:
        """The path with the query, as a location of this console."""
        path = quote(self.path, safe=_SAFE_IN_LOCATION.replace("?", "").replace("#", "").replace("%", ""))
        return f"{path}?{self.query}" if self.query else path

    @property
    def content_length(self) -> int | None:
        """The size of the body in bytes; None when the browser does not say."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isdecimal() else None

    @property
    def has_unread_body(self) -> bool:
        """Whether the browser sends a body of which `form` has not read all."""
        has_body = bool(self.content_length) or "transfer-encoding" in self.headers
        return has_body and not self._is_read.is_set()

    @cached_property
    def args(self) -> dict[str, str]:
        """The fields of the query; of several values of a field the first."""
        return _fields(self.query)

    @cached_property
    def cookies(self) -> dict[str, str]:
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name: value.strip('"') for name, equals, value in pairs if equals}

    async def form(self) -> dict[str, str]:
        """The fields of the form; none for a body of another type. Raises Refused when the body is too large."""
        size, body = 0, list[bytes]()
        while not self._is_read.is_set():
            event = await self._receive()
            piece = event.get("body", b"")
            size += len(piece)
            if size > self._most_body_bytes:
                raise Refused(413, "this form is too large")
            body.append(piece)
            if not event.get("more_body", False):
                self._is_read.set()
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            return {}
        return _fields(b"".join(body).decode("latin-1"))

    async def until_gone(self) -> None:
        """Return when the client has gone. A body is left to `form`."""
        if self.has_unread_body:
            await self._is_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _fields(text: str) -> dict[str, str]:
    """The fields of urlencoded ``text``, which is ASCII. Raises Refused when there are too many."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refused(400, f"a form has at most {_MOST_FIELDS:,} fields") from None
    return dict(reversed(pairs))


class Response:
    """An answer; ``body`` is whole, or comes piece by piece."""

    def __init__(
        self,
        body: bytes | str | AsyncGenerator[bytes, None],
        status: int = 200,
        content_type: str = "text/html; charset=utf-8",
    ) -> None:
        self.body = body.encode() if isinstance(body, str) else body
        self.status = status
        self.headers = {"Content-Type": content_type}
        self._cookies: list[str] = []

    @property
    def content_type(self) -> str:
        return self.headers["Content-Type"]

    def set_cookie(self, name: str, value: str, *, secure: bool) -> None:
        """Set a cookie for all pages, which scripts cannot read and other sites' forms do not send."""
        assert _PLAIN_COOKIE.fullmatch(value)
        self._cookies.append(f"{name}={value};{' Secure;' if secure else ''} HttpOnly; Path=/; SameSite=Lax")

    def start(self) -> dict[str, Any]:
        """The first message of ASGI."""
        headers = [*self.headers.items(), *(("Set-Cookie", cookie) for cookie in self._cookies)]
        if isinstance(self.body, bytes):
            headers.append(("Content-Length", str(len(self.body))))
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return {"type": "http.response.start", "status": self.status, "headers": pairs}


def redirect(location: str) -> Response:
    """See another page: the answer to a form."""
    response = Response("", 303)
    response.headers["Location"] = quote(location, safe=_SAFE_IN_LOCATION)
    return response


def json_response(document: bytes, status: int = 200) -> Response:
    """A document of JSON, already encoded."""
    return Response(document.decode(), status, "application/json")


Act = Callable[..., Awaitable[Response]]


class Application:
    """Answers the requests of ASGI.

    ``before`` is called before each handler, ``failed`` makes the answer of an error, and ``after`` completes each
    answer.
    """

    def __init__(
        self,
        before: Callable[[Request], Awaitable[None]],
        failed: Callable[[Request, Exception], Awaitable[Response]],
        after: Callable[[Request, Response], Awaitable[None]],
        most_body_bytes: int,
    ) -> None:
        self._before = before
        self._failed = failed
        self._after = after
        self._most_body_bytes = most_body_bytes
        # Fixed paths, and patterns of the others: method → handler.
        self._fixed: dict[str, dict[str, Act]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Act]]] = {}

    def add(self, rule: str, method: str, act: Act) -> None:
        """Call ``act`` with the request, and the parts of ``rule`` by name."""
        if "<" not in rule:
            self._fixed.setdefault(rule, {})[method] = act
            return
        if rule not in self._patterns:
            self._patterns[rule] = re.compile(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", rule)), {}
        self._patterns[rule][1][method] = act

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        request = Request(scope, receive, self._most_body_bytes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_gone, request, nursery.cancel_scope)
            await self._send(request, await self._response(request), send)
            nursery.cancel_scope.cancel()

    async def _end_when_gone(self, request: Request, scope: trio.CancelScope) -> None:
        await request.until_gone()
        scope.cancel()

    async def _response(self, request: Request) -> Response:
        try:
            await self._before(request)
            act, parts = self._handler(request)
            response = await act(request, **parts)
        except Exception as error:
            response = await self._failed(request, error)
        await self._after(request, response)
        if request.has_unread_body:
            # The next request would have to wait until all of the body has been read.
            response.headers["Connection"] = "close"
        return response

    def _handler(self, request: Request) -> tuple[Act, dict[str, str]]:
        acts, parts = self._fixed.get(request.path), dict[str, str]()
        if acts is None:
            for pattern, of_pattern in self._patterns.values():
                if (found := pattern.fullmatch(request.path)) is not None:
                    acts, parts = of_pattern, found.groupdict()
                    break
            else:
                raise Refused(404, "there is no such page")
        act = acts.get("GET" if request.method == "HEAD" else request.method)
        if act is None:
            raise Refused(405, f"this page does not take {request.method}")
        return act, parts

    async def _send(self, request: Request, response: Response, send: Callable[[Any], Awaitable[None]]) -> None:
        await send(response.start())
        if isinstance(response.body, bytes):
            body = b"" if request.method == "HEAD" else response.body
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        async with aclosing(response.body) as pieces:
            if request.method != "HEAD":
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
