"""HTTP pages: good requests, garbage, and clients that are slow."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.metrics.http_pages import MAX_CONNECTIONS, REQUEST_S, Page, PageServer, text_page
from skylark.remoting.net.transport import Transport
from tests.support.memory_transport import MemoryNetwork

HELLO = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"


async def hello(accept: str) -> Page:
    return Page(HTTPStatus.OK, [b"hel", b"lo"])


async def echo(accept: str) -> Page:
    return text_page(HTTPStatus.OK, accept)


async def not_ready(accept: str) -> Page:
    return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "the store is full")


async def broken(accept: str) -> Page:
    raise ValueError("a bug")


@asynccontextmanager
async def serving() -> AsyncIterator[MemoryNetwork]:
    network = MemoryNetwork()
    pages = {"/hello": hello, "/readyz": not_ready, "/broken": broken, "/echo": echo}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(PageServer(pages).serve, network.listen("127.0.0.1:5557"))
        yield network
        nursery.cancel_scope.cancel()


async def answer(transport: Transport, request: bytes) -> bytes:
    await transport.send_all(request)
    found = b""
    while piece := await transport.receive(4_096):
        found += piece
    return found


async def ask(network: MemoryNetwork, request: bytes) -> bytes:
    transport = await network.connect("127.0.0.1", 5557)
    async with transport:
        return await answer(transport, request)


async def test_pages_are_answered_and_closed() -> None:
    async with serving() as network:
        found = await ask(network, b"GET /hello?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 200 OK\r\n") and found.endswith(b"\r\n\r\nhello")
        assert b"Content-Length: 5\r\n" in found
        found = await ask(network, b"HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 200 OK\r\n") and found.endswith(b"\r\n\r\n")
        found = await ask(network, b"GET /readyz HTTP/1.0\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and found.endswith(b"the store is full\n")


async def test_a_page_gets_what_the_client_accepts() -> None:
    async with serving() as network:
        asked = b"GET /echo HTTP/1.1\r\nHost: a\r\nAccept: text/html;q=0.5\r\nACCEPT: */*\r\n\r\n"
        assert (await ask(network, asked)).endswith(b"\r\n\r\ntext/html;q=0.5,*/*\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", b"404"),
        (b"POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"garbage\r\n\r\n", b"400"),
        (b"GET /hello HTTP/1.1\r\nHost: " + b"a" * 100_000, b"431"),
    ],
)
async def test_a_request_for_no_page_is_refused(request_: bytes, status: bytes) -> None:
    async with serving() as network:
        assert (await ask(network, request_))[9:12] == status


@given(st.binary(max_size=200))
def test_garbage_leaves_no_trace(data: bytes) -> None:
    async def main() -> None:
        async with serving() as network:
            transport = await network.connect("127.0.0.1", 5557)
            await transport.send_all(data)
            await trio.testing.wait_all_tasks_blocked()
            await transport.aclose()
            assert (await ask(network, b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")).endswith(b"hello")

    trio.run(main)


async def test_a_failure_of_one_page_is_logged_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as network:
        assert await ask(network, b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n") == b""
        assert "a page for" in caplog.text
        assert (await ask(network, b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")).endswith(b"hello")


async def test_a_client_without_a_request_is_told_and_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as network:
        start = trio.current_time()
        assert (await ask(network, b"GET /hel")).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - start == REQUEST_S


async def test_clients_with_half_a_request_keep_nobody_out(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as network:
        start = trio.current_time()
        for _ in range(300):
            silent = await network.connect("127.0.0.1", 5557)
            await silent.send_all(b"GET /hel")
        assert (await ask(network, HELLO)).endswith(b"hello")
        assert trio.current_time() == start


async def test_pages_that_cost_little_are_answered_while_another_is_made() -> None:
    network, is_made = MemoryNetwork(), trio.Event()

    async def slow(accept: str) -> Page:
        await is_made.wait()
        return await hello(accept)

    async with trio.open_nursery() as nursery:
        server = PageServer({"/slow": slow, "/hello": hello}, cheap=["/hello"])
        nursery.start_soon(server.serve, network.listen("127.0.0.1:5557"))
        scrapes = [await network.connect("127.0.0.1", 5557) for _ in range(MAX_CONNECTIONS)]
        for scrape in scrapes:
            await scrape.send_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        # The oldest gives way.
        assert (await ask(network, HELLO)).endswith(b"hello")
        assert await scrapes[0].receive(10) == b""
        is_made.set()
        assert (await scrapes[1].receive(10)) == b"HTTP/1.1 2"
        nursery.cancel_scope.cancel()
