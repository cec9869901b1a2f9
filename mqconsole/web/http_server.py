"""The console's HTTP server: an ASGI application over HTTP/1.1. h11 reads and writes the protocol.

HTTP/2, h2c and WebSocket are not supported: an upgrade in a request is ignored. An exception in one connection ends
this connection only. Limits: connections in all (when there are too many, an idle one of the
network with the most connections gives way), the head of a request, and each wait for a client that is slow to send or
to read.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import h11
import trio

from skylark.mqcommon.addresses import limited_network, split_address
from skylark.remoting.net.transport import Listener, Transport

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 1_000
#: The most bytes of a request's line and headers, and of data sent before the last request is answered.
MOST_HEAD_BYTES: Final = 64 * 1024
#: A connection that has begun no request is closed after this time.
IDLE_S: Final = 60.0
#: The time in which the head of a request must arrive after its first byte, and each further piece of a body.
READ_S: Final = 20.0
#: The time in which a client must read each piece of an answer.
WRITE_S: Final = 20.0
#: The time that requests in progress have when the console stops.
GRACE_S: Final = 2.0
#: Errors of connections are logged with their traceback this often at most.
_LOG_S: Final = 60.0
_READ_BYTES: Final = 16 * 1024
_ACCEPT_PAUSE_S: Final = 0.1
# How many bytes, and for how long, are still read from a refused client, so that it gets the answer.
_LINGER_BYTES: Final = 32 * 1024 * 1024
_LINGER_S: Final = 5.0

Event = Mapping[str, Any]
#: An ASGI application (https://asgi.readthedocs.io), of which only "http" is asked.
Application = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class HttpServer:
    """Serves ``application`` until cancelled or stopped."""

    def __init__(self, application: Application, scheme: str) -> None:
        self._application = application
        self._scheme = scheme
        self._open: dict[_Connection, None] = {}
        self._is_stopping = False
        self._quiet_until = float("-inf")

    async def serve(self, listeners: Iterable[Listener], stopping: trio.Event) -> None:
        """Serve until ``stopping``; requests in progress then have `GRACE_S`."""
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener, connections)
                await stopping.wait()
                accepting.cancel_scope.cancel()
            self._is_stopping = True
            connections.cancel_scope.deadline = trio.current_time() + GRACE_S
            for connection in self._open:
                if connection.is_idle:
                    connection.scope.cancel()

    async def _accept(self, listener: Listener, connections: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    transport = await listener.accept()
                except OSError as error:
                    logger.error("browsers cannot connect now: %s", error)
                    await trio.sleep(_ACCEPT_PAUSE_S)
                    continue
                if len(self._open) >= MOST_CONNECTIONS and not self._make_room():
                    await trio.aclose_forcefully(transport)
                    continue
                connection = _Connection(transport, self._scheme)
                self._open[connection] = None
                connections.start_soon(self._connection, connection)

    def _make_room(self) -> bool:
        """Close an idle connection of the network with the most idle connections; False when none is idle."""
        idle = Counter(each.network for each in self._open if each.is_idle)
        if not idle:
            return False
        ((busiest, _),) = idle.most_common(1)
        gives_way = next(each for each in self._open if each.is_idle and each.network == busiest)
        # Remove the connection here, not when its task has ended: the next connection would count it again.
        del self._open[gives_way]
        gives_way.scope.cancel()
        return True

    async def _connection(self, connection: "_Connection") -> None:
        try:
            with connection.scope:
                while not self._is_stopping and await connection.serve_one(self._application):
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass  # the client has gone, or speaks something else
        except Exception:
            self._log_failure(connection)
        finally:
            self._open.pop(connection, None)
            await trio.aclose_forcefully(connection.transport)

    def _log_failure(self, connection: "_Connection") -> None:
        now = trio.current_time()
        if now >= self._quiet_until:
            self._quiet_until = now + _LOG_S
            logger.exception("the connection of %s failed and was closed", connection.transport.remote)


class _Connection:
    """The connection of a browser; cancelling ``scope`` ends it."""

    def __init__(self, transport: Transport, scheme: str) -> None:
        self.transport = transport
        self.network = limited_network(split_address(transport.remote)[0])
        self.scope = trio.CancelScope()
        #: Whether no complete request has arrived, so that nobody waits for an answer.
        self.is_idle = True
        self._scheme = scheme
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)

    async def serve_one(self, application: Application) -> bool:
        """Read a request and have it answered. Returns whether the connection can have another request."""
        try:
            request = await self._request()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, "no request that HTTP/1.1 allows")
            return False
        if request is None:
            return False
        if not request.target.startswith(b"/"):
            await self._refuse(400, "the target of a request is a path")
            return False
        exchange = _Exchange(self._http, self.transport, self.scope.cancel)
        await application(self._scope_of(request), exchange.receive, exchange.send)
        if not exchange.is_answered:
            return False
        while self._http.their_state is h11.SEND_BODY and self._http.next_event() is not h11.NEED_DATA:
            pass  # the application has not asked for all of the body
        if self._http.their_state is h11.SEND_BODY:
            await self._linger()
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    async def _request(self) -> h11.Request | None:
        """The next request; None when the client sends none in time."""
        self.is_idle = True
        has_begun = False
        with trio.move_on_after(IDLE_S) as limit:
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    self.is_idle = False
                    return event
                if event is not h11.NEED_DATA:
                    return None
                self._http.receive_data(await self.transport.receive(_READ_BYTES))
                if not has_begun:
                    has_begun = True
                    limit.deadline = trio.current_time() + READ_S
        return None

    # The members are specified by ASGI.
    def _scope_of(self, request: h11.Request) -> dict[str, Any]:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii").upper(),
            "scheme": self._scheme,
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": split_address(self.transport.remote),
            "server": split_address(self.transport.local),
            "extensions": {},
        }

    async def _refuse(self, status: int, text: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        answer = b""
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            answer += self._http.send(event) or b""
        with trio.move_on_after(WRITE_S):
            await self.transport.send_all(answer)
            await self._linger()

    async def _linger(self) -> None:
        """Read data that is still on its way: closing the connection before would lose the answer."""
        left = _LINGER_BYTES
        with trio.move_on_after(_LINGER_S):
            while left > 0 and (data := await self.transport.receive(_READ_BYTES)):
                left -= len(data)


class _Exchange:
    """One request and its answer: ``receive`` and ``send`` of ASGI. ``give_up`` cancels their caller."""

    def __init__(self, http: h11.Connection, transport: Transport, give_up: Callable[[], None]) -> None:
        self._http = http
        self._transport = transport
        self._give_up = give_up
        self._start: h11.Response | None = None
        self._has_left = False
        self.is_answered = False

    async def receive(self) -> Event:
        """The next piece of the body; then nothing until the client has gone."""
        while not self._has_left:
            try:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    return {"type": "http.request", "body": bytes(event.data), "more_body": True}
                if isinstance(event, h11.EndOfMessage):
                    return {"type": "http.request", "body": b"", "more_body": False}
                if event is h11.PAUSED:
                    await self._until_gone()
                elif event is h11.NEED_DATA:
                    await self._read_more()
                else:
                    self._has_left = True
            except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
                self._has_left = True
        return {"type": "http.disconnect"}

    async def _read_more(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            await self._write(h11.InformationalResponse(status_code=100, headers=[]))
        with trio.move_on_after(READ_S) as limit:
            self._http.receive_data(await self._transport.receive(_READ_BYTES))
        self._has_left = limit.cancelled_caught

    async def _until_gone(self) -> None:
        """Return when the client has gone. It may send its next request early, within limits."""
        while len(self._http.trailing_data[0]) < MOST_HEAD_BYTES:
            data = await self._transport.receive(_READ_BYTES)
            self._http.receive_data(data)
            if not data:
                self._has_left = True
                return
        await trio.sleep_forever()

    async def send(self, message: Event) -> None:
        """Send a part of the answer. When the client has gone or does not read, the request is cancelled."""
        if message["type"] == "http.response.start":
            self._start = h11.Response(status_code=message["status"], headers=list(message["headers"]))
        elif message["type"] == "http.response.body":
            if self._start is not None:
                start, self._start = self._start, None
                await self._write(start)
            if body := message.get("body", b""):
                await self._write(h11.Data(data=body))
            if not message.get("more_body", False):
                await self._write(h11.EndOfMessage())
                self.is_answered = True

    async def _write(self, event: h11.Event) -> None:
        if not self._has_left and (data := self._http.send(event)):
            try:
                with trio.fail_after(WRITE_S):
                    await self._transport.send_all(data)
            except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                self._has_left = True
        if self._has_left:
            # Not raised: the application would treat the error as its own.
            self._give_up()
            await trio.lowlevel.checkpoint()
