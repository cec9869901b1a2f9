"""HTTP pages of a daemon: a GET of a few paths, answered, and the connection is closed.

h11 reads the request, so garbage is a 400 and no more. Limits: connections, the size of a request (h11's 16 KiB), and
the time of a whole exchange. One page is made at a time; the others wait, within their time.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import h11
import trio

from remoting.net.transport import Listener, Transport

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
TIMEOUT_S = 30.0
_READ_BYTES = 16 * 1024
_ACCEPT_PAUSE_S = 0.1
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer. ``pieces`` are sent one after another."""

    status: HTTPStatus
    pieces: list[bytes]
    content_type: str = TEXT


#: Pages by path.
Pages = Mapping[str, Callable[[], Awaitable[Page]]]


def text_page(status: HTTPStatus, text: str) -> Page:
    """A page of one line."""
    return Page(status, [f"{text}\n".encode()])


class PageServer:
    """Serves ``pages``."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._places = trio.Semaphore(MAX_CONNECTIONS)
        self._one_at_a_time = trio.Lock()

    async def serve(self, listener: Listener) -> None:
        """Serve until cancelled."""
        async with listener, trio.open_nursery() as nursery:
            while True:
                await self._places.acquire()
                try:
                    transport = await listener.accept()
                except OSError as error:
                    self._places.release()
                    logger.error("no page is served now: %s", error)
                    await trio.sleep(_ACCEPT_PAUSE_S)
                    continue
                nursery.start_soon(self._connection, transport)

    async def _connection(self, transport: Transport) -> None:
        try:
            with trio.move_on_after(TIMEOUT_S):
                try:
                    await self._exchange(transport)
                except (trio.BrokenResourceError, h11.LocalProtocolError):
                    pass  # the client has gone
                except Exception:
                    logger.exception("a page for %s failed", transport.remote)
        finally:
            self._places.release()
            await trio.aclose_forcefully(transport)

    async def _exchange(self, transport: Transport) -> None:
        connection = h11.Connection(h11.SERVER)
        page = await self._answer(connection, transport)
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(sum(map(len, page.pieces)))),
            ("Connection", "close"),
        ]
        response = h11.Response(status_code=page.status, headers=headers, reason=page.status.phrase)
        await self._send(transport, connection.send(response))
        for piece in page.pieces:
            # h11 leaves the body of an answer to HEAD out.
            await self._send(transport, connection.send(h11.Data(data=piece)))
        await self._send(transport, connection.send(h11.EndOfMessage()))

    async def _answer(self, connection: h11.Connection, transport: Transport) -> Page:
        try:
            request = await self._request(connection, transport)
        except h11.RemoteProtocolError as error:
            return text_page(HTTPStatus(error.error_status_hint), f"bad request: {error}")
        path = request.target.partition(b"?")[0].decode("latin-1")
        if request.method not in (b"GET", b"HEAD"):
            return text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        page = self._pages.get(path)
        if page is None:
            return text_page(HTTPStatus.NOT_FOUND, f"the pages are {' '.join(self._pages)}")
        async with self._one_at_a_time:
            return await page()

    async def _request(self, connection: h11.Connection, transport: Transport) -> h11.Request:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is h11.NEED_DATA:
                connection.receive_data(await transport.receive(_READ_BYTES))
            elif isinstance(event, h11.ConnectionClosed):
                raise trio.BrokenResourceError("closed before a request")

    async def _send(self, transport: Transport, data: bytes | None) -> None:
        if data:
            await transport.send_all(data)
