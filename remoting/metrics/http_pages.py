"""HTTP pages of a daemon: a GET of a few paths, answered, and the connection is closed.

h11 reads the request, so garbage is a 400 and no more. Limits: the number of connections, the size of a request (h11's
16 KiB), the time until the request has arrived, and the time of the whole exchange. With too many connections, each new
connection closes an old one. It belongs to the address (IPv6: /64) with the most connections; it is the connection that
has waited longest without a request, or else the oldest. So no client keeps the others out. Expensive pages are made
one at a time; the others wait, within their time.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus

import h11
import trio

from skylark.mqcommon.addresses import limited_network, split_address
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.transport import Listener, Transport

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
TIMEOUT_S = 30.0
#: How long a client may take to send its request.
REQUEST_S = 5.0
_READ_BYTES = 16 * 1024
_ACCEPT_PAUSE_S = 0.1
TEXT = "text/plain; charset=utf-8"


@lazy_dataclass(frozen=True, slots=True)
class Page:
    """An answer. ``pieces`` are sent one after another."""

    status: HTTPStatus
    pieces: list[bytes]
    content_type: str = TEXT


#: Pages by path; a page is made for the header ``Accept`` of a request.
Pages = Mapping[str, Callable[[str], Awaitable[Page]]]


def text_page(status: HTTPStatus, text: str) -> Page:
    """A page of one line."""
    return Page(status, [f"{text}\n".encode()])


@lazy_dataclass(eq=False, slots=True)
class _Exchange:
    """One connection. ``scope`` ends it."""

    network: str
    scope: trio.CancelScope
    has_request: bool = False


class PageServer:
    """Serves ``pages``; those in ``cheap`` are answered while another one is being made."""

    def __init__(self, pages: Pages, cheap: Collection[str] = ()) -> None:
        self._pages = pages
        self._cheap = cheap
        # The oldest first.
        self._open: dict[_Exchange, None] = {}
        self._one_at_a_time = trio.Lock()

    async def serve(self, listener: Listener) -> None:
        """Serve until cancelled."""
        async with listener, trio.open_nursery() as nursery:
            while True:
                try:
                    transport = await listener.accept()
                except OSError as error:
                    # Usually no descriptor is free. The daemon must not end because of a page.
                    logger.error("no page is served now: %s", error)
                    await trio.sleep(_ACCEPT_PAUSE_S)
                    continue
                if len(self._open) >= MAX_CONNECTIONS:
                    self._make_room()
                network = limited_network(split_address(transport.remote)[0])
                exchange = _Exchange(network, trio.CancelScope())
                self._open[exchange] = None
                nursery.start_soon(self._connection, transport, exchange)

    def _make_room(self) -> None:
        busiest, _ = Counter(each.network for each in self._open).most_common(1)[0]
        of_busiest = [each for each in self._open if each.network == busiest]
        # Removed here and not when its task has ended: the next connection would count the closed one, too.
        gives_way = next((each for each in of_busiest if not each.has_request), of_busiest[0])
        del self._open[gives_way]
        gives_way.scope.cancel()

    async def _connection(self, transport: Transport, exchange: _Exchange) -> None:
        try:
            with exchange.scope, trio.move_on_after(TIMEOUT_S):
                try:
                    await self._exchange(transport, exchange)
                except (trio.BrokenResourceError, h11.LocalProtocolError):
                    pass  # the client has gone
                except Exception:
                    logger.exception("a page for %s failed", transport.remote)
        finally:
            self._open.pop(exchange, None)
            await trio.aclose_forcefully(transport)

    async def _exchange(self, transport: Transport, exchange: _Exchange) -> None:
        connection = h11.Connection(h11.SERVER)
        page = await self._answer(connection, transport, exchange)
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

    async def _answer(self, connection: h11.Connection, transport: Transport, exchange: _Exchange) -> Page:
        request = None
        try:
            with trio.move_on_after(REQUEST_S):
                request = await self._request(connection, transport)
        except h11.RemoteProtocolError as error:
            return text_page(HTTPStatus(error.error_status_hint), f"bad request: {error}")
        if request is None:
            return text_page(HTTPStatus.REQUEST_TIMEOUT, f"no request within {REQUEST_S:g} s")
        exchange.has_request = True
        path = request.target.partition(b"?")[0].decode("latin-1")
        if request.method not in (b"GET", b"HEAD"):
            return text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        page = self._pages.get(path)
        if page is None:
            return text_page(HTTPStatus.NOT_FOUND, f"the pages are {' '.join(self._pages)}")
        accept = ",".join(value.decode("latin-1") for name, value in request.headers if name == b"accept")
        if path in self._cheap:
            return await page(accept)
        # A page of metrics has all values in memory: only one of them at a time.
        async with self._one_at_a_time:
            return await page(accept)

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
