"""Broken requests at the HTTP ports of daemons: each connection is answered or closed, and the server lives on."""

import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from random import Random
from typing import Any

import pytest
import trio

from skylark.mqconsole.web.http_server import HttpServer
from skylark.remoting.metrics.http_pages import PageServer, text_page
from skylark.remoting.net.transport import Listener
from tests.fuzz.mutate import mutated
from tests.support.memory_transport import MemoryNetwork

SECONDS, NIGHTLY_SECONDS = 0.2, 50
# The least number of inputs: a busy machine may try fewer in its time.
LEAST = 100
PORT = 8088
CORPUS = [
    b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\na=b",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na=b\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x05\x02\0\0\0\0\x01\0\0\0\x01\xff",
    b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
]


async def application(
    scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    while (event := await receive())["type"] == "http.request" and event["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def console(listener: Listener) -> None:
    await HttpServer(application, "http").serve([listener], trio.Event())


async def metrics(listener: Listener) -> None:
    async def page(accept: str) -> Any:
        return text_page(HTTPStatus.OK, "ok")

    await PageServer({"/hello": page}).serve(listener)


async def fuzz(serve: Callable[[Listener], Awaitable[None]], seconds: float, random: Random) -> int:
    network, count = MemoryNetwork(), 0
    listener = network.listen(f"127.0.0.1:{PORT}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, listener)
        end = time.monotonic() + seconds
        while count < LEAST or time.monotonic() < end:
            data = mutated(random, CORPUS)
            cut = random.randrange(len(data) + 1)
            async with await network.connect("127.0.0.1", PORT) as transport:
                try:
                    for piece in (data[:cut], data[cut:]):
                        await transport.send_all(piece)
                        await trio.lowlevel.checkpoint()
                except trio.BrokenResourceError:
                    pass  # the server has seen enough
            count += 1
        async with await network.connect("127.0.0.1", PORT) as transport:
            await transport.send_all(CORPUS[0])
            assert (await transport.receive(1_000)).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()
    return count


@pytest.mark.parametrize("serve", [console, metrics])
async def test_no_request_ends_the_server(
    serve: Callable[[Listener], Awaitable[None]], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await fuzz(serve, SECONDS, Random(seed))
    assert not caplog.records


@pytest.mark.nightly
@pytest.mark.parametrize("serve", [console, metrics])
async def test_no_request_ends_the_server_for_a_minute(
    serve: Callable[[Listener], Awaitable[None]], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    await fuzz(serve, NIGHTLY_SECONDS, Random(seed))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
