"""The console's HTTP server: what it answers, what ends a connection, and that nothing ends more than one."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing

from skylark.mqconsole.web import http_server
from skylark.mqconsole.web.http_server import GRACE_S, IDLE_S, MOST_HEAD_BYTES, READ_S, WRITE_S, HttpServer
from skylark.mqconsole.web.site import own_page
from tests.mqconsole.consoles import console
from tests.support.memory_transport import MemoryNetwork, MemoryTransport

Receive, Send = Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]
HELLO = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"
PORT = 8088
#: Larger than what the network in memory holds.
LONG = 3 * 1024 * 1024


async def application(scope: Any, receive: Receive, send: Send) -> None:
    body = b""
    if scope["path"] == "/broken":
        raise ValueError("a bug of the application")
    if scope["path"] == "/never":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    if scope["path"] == "/echo":
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
    body = body or b"x" * LONG if scope["path"] == "/long" else body or scope["path"].encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class Running:
    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.stopping = trio.Event()
        self.ended = trio.Event()

    async def connect(self, host: str = "127.0.0.1") -> MemoryTransport:
        self.network.client_host = host
        return await self.network.connect("127.0.0.1", PORT)

    async def ask(self, request: bytes) -> bytes:
        async with await self.connect() as transport:
            await transport.send_all(request)
            return await rest(transport)


@asynccontextmanager
async def serving() -> AsyncIterator[Running]:
    running = Running()

    listener = running.network.listen(f"127.0.0.1:{PORT}")

    async def serve() -> None:
        await HttpServer(application, "http").serve([listener], running.stopping)
        running.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield running
        nursery.cancel_scope.cancel()


async def rest(transport: MemoryTransport) -> bytes:
    """All that comes until the server closes the connection."""
    found = b""
    with suppress(trio.BrokenResourceError):
        while piece := await transport.receive(1 << 20):
            found += piece
    return found


async def answer(transport: MemoryTransport, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        found += await transport.receive(1 << 20)
    return found


async def test_a_connection_has_one_request_after_another() -> None:
    async with serving() as running, await running.connect() as transport:
        for path in (b"/one", b"/two?x=%2F", b"/a%20b"):
            await transport.send_all(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            shown = path.partition(b"?")[0].replace(b"%20", b" ")
            assert (await answer(transport, shown)).startswith(b"HTTP/1.1 200")
        await transport.send_all(HELLO + HELLO)
        assert (await answer(transport, b"/hello")).count(b"HTTP/1.1 200") in (1, 2)


async def test_a_body_is_read_whole_also_when_the_client_waits_for_leave_to_send_it() -> None:
    async with serving() as running, await running.connect() as transport:
        head = b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 6\r\n\r\n"
        await transport.send_all(head)
        assert b"100" in await answer(transport, b"\r\n\r\n")
        await transport.send_all(b"abc")
        await transport.send_all(b"def")
        assert (await answer(transport, b"abcdef")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("close", [b"HTTP/1.0\r\n\r\n", b"HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"])
async def test_a_client_that_wants_one_answer_gets_it_and_the_end(close: bytes) -> None:
    async with serving() as running:
        assert (await running.ask(b"GET /hello " + close)).endswith(b"\r\n\r\n/hello")


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \x7f!!\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Protocol: \xff\xfe\r\n",
}
REFUSED = {
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    "http2 path that is not ASCII": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x05\x01\x05\0\0\0\x01\x44\x03\xff\xfe\xfd",
    "http2 priority": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x05\x02\0\0\0\0\x01\0\0\0\x01\xff",
    "connect without a path": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "target that is not ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "whole url": b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "no http": b"\x16\x03\x01\0\xa5\x01\0\0\xa1\r\n\r\n",
    "only a letter": b"GET ?a HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
async def test_an_upgrade_is_answered_as_if_nobody_had_asked_for_it(upgrade: bytes) -> None:
    async with serving() as running, await running.connect() as transport:
        await transport.send_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n" + upgrade + b"\r\n")
        assert (await answer(transport, b"/hello")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED)
async def test_a_request_that_http_does_not_allow_is_refused(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running:
        async with await running.connect() as transport:
            await transport.send_all(request_)
            assert (await transport.receive(1_000)).startswith(b"HTTP/1.1 400")
        async with await running.connect() as transport:
            await transport.send_all(HELLO)
            assert await answer(transport, b"/hello")
    assert not caplog.records


async def test_the_console_itself_lives_on(caplog: pytest.LogCaptureFixture) -> None:
    async with console("127.0.0.1:9") as address:
        host, _, port = address.removeprefix("http://").rpartition(":")
        for first in (
            *REFUSED.values(),
            *(b"GET /login HTTP/1.1\r\nHost: a\r\n" + it + b"\r\n" for it in UPGRADES.values()),
        ):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(first)
                assert (await stream.receive_some(1_000)).startswith(b"HTTP/1.1 4")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "path", ["/static/%00", "/static/..%2fconsole.py", "/static/" + "a" * 5_000, "/static/", "/%ff%fe"]
)
async def test_an_odd_path_is_not_found_and_leaves_nothing_in_the_log(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with console("127.0.0.1:9") as address:
        host, _, port = address.removeprefix("http://").rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await stream.receive_some(1_000)).startswith(b"HTTP/1.1 404")
    assert not [record for record in caplog.records if record.name.startswith("skylark.mqconsole.web")]


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("/topics?q=a", "/topics?q=a"),
        ("//evil", ""),
        ("/\\evil", ""),
        ("\\\\evil", ""),
        ("/a\nb", ""),
        ("http://evil/", ""),
    ],
)
def test_a_redirect_stays_in_the_console(location: str, found: str) -> None:
    assert own_page(location) == found


async def test_an_error_of_the_application_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running, await running.connect() as other:
        await other.send_all(HELLO)
        assert await answer(other, b"/hello")
        for _ in range(3):
            assert await running.ask(b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n") == b""
        await other.send_all(HELLO)
        assert await answer(other, b"/hello")
    assert caplog.text.count("failed and was closed") == 1


async def test_a_client_that_has_gone_ends_its_request() -> None:
    async with serving() as running:
        async with await running.connect() as transport:
            await transport.send_all(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        running.stopping.set()
        with trio.fail_after(GRACE_S / 2):
            await running.ended.wait()


async def test_slow_clients_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as running:
        for begun, limit_s in (
            (b"", IDLE_S),
            (b"GET ", READ_S),
            (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", READ_S),
        ):
            started = trio.current_time()
            async with await running.connect() as transport:
                if begun:
                    await transport.send_all(begun)
                await rest(transport)
            assert trio.current_time() - started == pytest.approx(limit_s)
        started = trio.current_time()
        async with await running.connect() as transport:
            await transport.send_all(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
            await trio.sleep(WRITE_S + 0.1)
            assert len(await rest(transport)) < LONG


async def test_a_head_without_an_end_is_refused() -> None:
    async with serving() as running, await running.connect() as transport:
        await transport.send_all(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * MOST_HEAD_BYTES * 2)
        assert (await transport.receive(1_000)).startswith(b"HTTP/1.1 431")


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 5)
    yield 5


async def test_too_many_connections_cost_those_who_have_the_most(most: int) -> None:
    async with serving() as running, await running.connect("10.0.0.2") as alone:
        await alone.send_all(b"GET /hel")
        many = [await running.connect("10.0.0.1") for _ in range(most + 3)]
        await trio.testing.wait_all_tasks_blocked()
        await alone.send_all(HELLO[8:])
        assert await answer(alone, b"/hello")
        assert await rest(many[0]) == b""
        await many[-1].send_all(HELLO)
        assert await answer(many[-1], b"/hello")


async def test_a_stop_closes_idle_connections_at_once_and_answers_those_in_progress(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving() as running, await running.connect() as idle, await running.connect() as busy:
        await busy.send_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
        await trio.testing.wait_all_tasks_blocked()
        running.stopping.set()
        assert await rest(idle) == b""
        await busy.send_all(b"b")
        assert (await rest(busy)).endswith(b"ab")
        await running.ended.wait()
