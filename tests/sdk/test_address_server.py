"""The address server, in memory and virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from mqcommon.backoff import Backoff
from mqcommon.errors import ConnectFailed, ProtocolError
from remoting.net.transport import Transport
from sdk.nameservers import MAX_ANSWER_BYTES, REFRESH_S, AddressServer, addresses_in_answer
from tests.support.memory_transport import MemoryTransport, memory_pair

URL = "http://jmenv.example:8080/rocketmq/nsaddr?nofix=1"
BACKOFF = Backoff(0.05, 0.5, Random(0))


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


class Web:
    """An HTTP server: ``replies`` in turn, the last one for ever; None is silence, an OSError a refusal."""

    def __init__(self, nursery: trio.Nursery, *replies: bytes | OSError | None) -> None:
        self.nursery = nursery
        self.replies = list(replies)
        self.asked: list[tuple[float, bytes]] = []
        self.addrs: list[tuple[str, int]] = []

    async def connect(self, host: str, port: int) -> Transport:
        await trio.lowlevel.checkpoint()
        self.addrs.append((host, port))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, OSError):
            raise reply
        mine, theirs = memory_pair()
        self.nursery.start_soon(self._serve, theirs, reply)
        return mine

    async def _serve(self, transport: MemoryTransport, reply: bytes | None) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += await transport.receive(1000)
        self.asked.append((trio.current_time(), request))
        if reply is None:
            await trio.sleep_forever()
        else:
            await transport.send_all(reply)
            await transport.aclose()

    @property
    def server(self) -> AddressServer:
        return AddressServer(URL, self.connect)


async def test_what_is_asked(nursery: trio.Nursery) -> None:
    web = Web(nursery, answer(b"a:1;b:2\n"))
    assert await web.server.fetch() == ("a:1", "b:2")
    assert web.addrs == [("jmenv.example", 8080)]
    (request,) = [request for _, request in web.asked]
    assert request.splitlines()[:2] == [b"GET /rocketmq/nsaddr?nofix=1 HTTP/1.1", b"Host: jmenv.example:8080"]
    assert b"Connection: close" in request


@pytest.mark.parametrize(
    ("data", "addrs"),
    [
        (answer(b"a:1"), ("a:1",)),
        (answer(b"a:1;b:2", Content_Length="7"), ("a:1", "b:2")),
        (answer(b"\r\n a:1,b:2 \r\nmore:3"), ("a:1", "b:2")),
        (answer(b"3\r\na:1\r\n4\r\n;b:2\r\n0\r\n\r\n", Transfer_Encoding="chunked"), ("a:1", "b:2")),
        (b"HTTP/1.0 200\r\n\r\na:1", ("a:1",)),
    ],
)
def test_answers_that_list_addresses(data: bytes, addrs: tuple[str, ...]) -> None:
    assert addresses_in_answer(data) == addrs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        answer(b""),
        answer(b" ; "),
        answer(b"<html>not here</html>"),
        answer(b"a:1", "404 Not Found"),
        answer(b"", "302 Found", Location="http://other/"),
        answer(b"a:1;b", Content_Length="50"),
        answer(b"\xff:1"),
        answer(b"zz\r\na:1", Transfer_Encoding="chunked"),
    ],
)
def test_answers_that_cannot_be_used(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        addresses_in_answer(data)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda body: answer(body)))
def test_any_answer_is_a_list_or_an_error(data: bytes) -> None:
    try:
        assert addresses_in_answer(data)
    except ProtocolError as error:
        assert str(error)


async def test_a_long_answer_is_refused(nursery: trio.Nursery) -> None:
    web = Web(nursery, answer(b"a:1;" * MAX_ANSWER_BYTES))
    with pytest.raises(ProtocolError, match=str(MAX_ANSWER_BYTES)):
        await web.server.fetch()


async def test_silence_has_an_end(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectFailed, match="no answer"):
        await Web(nursery, None).server.fetch()


async def test_a_refused_connection_is_named(nursery: trio.Nursery) -> None:
    with pytest.raises(ConnectFailed, match="jmenv"):
        await Web(nursery, ConnectionRefusedError(111, "Connection refused")).server.fetch()


@asynccontextmanager
async def following(web: Web) -> AsyncIterator[list[tuple[str, ...]]]:
    """What the follower finds."""
    found: list[tuple[str, ...]] = []

    def note(addrs: tuple[str, ...]) -> bool:
        found.append(addrs)
        return found[-2:-1] != [addrs]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(web.server.follow, note, BACKOFF)
        yield found
        nursery.cancel_scope.cancel()


async def test_the_list_is_refreshed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    web = Web(nursery, answer(b"a:1"), answer(b"b:2"))
    async with following(web) as found:
        await trio.sleep(1)
        assert found == [("a:1",)]
        await trio.sleep(REFRESH_S)
        assert found == [("a:1",), ("b:2",)]
    first, second = (when for when, _ in web.asked)
    assert second - first == pytest.approx(REFRESH_S)


async def test_a_server_that_is_down_first_is_asked_soon_again(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    web = Web(nursery, refused, answer(b"", "503 Service Unavailable"), refused, answer(b"a:1"))
    async with following(web) as found:
        await trio.sleep(5)
        assert found == [("a:1",)]
    assert [record.levelname for record in caplog.records if "address server" in record.message].count("WARNING") == 1


async def test_the_last_list_stays_while_the_server_is_down(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    web = Web(nursery, answer(b"a:1"), answer(b"junk"))
    async with following(web) as found:
        await trio.sleep(3 * REFRESH_S + 1)
    assert found == [("a:1",)]
    assert len(web.asked) == 4
