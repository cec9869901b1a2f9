"""What hostile clients can do to a server: each meets a limit, nothing of it stays, and other clients are served."""

import gc
import struct
import weakref
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.remoting.grpc.call import Call, Streaming, Unary
from skylark.remoting.grpc.connection import READ_BYTES, TURN_S
from skylark.remoting.grpc.limits import GrpcLimits
from skylark.remoting.grpc.messages import framed
from skylark.remoting.grpc.statuses import StatusCode
from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.errors import ErrorCode
from skylark.remoting.http2.events import Event
from skylark.remoting.http2.limits import Http2Limits
from skylark.remoting.net.limits import ConnectionBudget
from tests.remoting.grpc.raw_client import WINDOWS, Raw, RawClient, begun, raw
from tests.support.amounts import amount
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    broken,
    call,
    frame,
    headers,
    opened,
)

CALM = ErrorCode.ENHANCE_YOUR_CALM
ECHO, WAIT, STREAM, LARGE = b"/t.T/Echo", b"/t.T/Wait", b"/t.T/Stream", b"/t.T/Large"


class Running:
    """Methods, and how many of their tasks run."""

    def __init__(self) -> None:
        self.tasks = self.most_tasks = 0
        self.methods: dict[str, Unary | Streaming] = {
            "/t.T/Echo": Unary(lambda call: None, lambda call, request: request),
            "/t.T/Wait": Unary(lambda call: None, self.wait),
            "/t.T/Stream": Streaming(self.stream),
            "/t.T/Large": Unary(lambda call: None, lambda call, request: bytes(100_000)),
        }

    async def wait(self, call: Call, request: bytes) -> bytes:
        self.tasks += 1
        self.most_tasks = max(self.tasks, self.most_tasks)
        try:
            await trio.sleep_forever()
        finally:
            self.tasks -= 1
        raise AssertionError

    async def stream(self, call: Call) -> None:
        await self.wait(call, b"")


@pytest.fixture
def running() -> Running:
    return Running()


async def check_served(served: Raw) -> None:
    """An honest client is served, and nothing is left of the others."""
    client = await served.connect(call(ECHO, b"tea", []))
    assert client.answer().data == framed(b"tea")
    await client.transport.aclose()
    await wait_all_tasks_blocked()
    assert (served.server._calls.used, served.server._buffers.used, len(served.server)) == (0, 0, 0)
    assert served.server._connections.used == 0


# --- floods: (what comes after the beginning of the connection, the number of frames until the limit)


def rapid_reset(number: int) -> bytes:
    """CVE-2023-44487"""
    stream = 2 * number + 1
    return call(WAIT, b"", [], stream=stream) + frame(RST_STREAM, 0, stream, struct.pack(">I", ErrorCode.CANCEL))


def made_to_reset(number: int) -> bytes:
    """CVE-2025-8671: the server is made to reset the streams."""
    stream = 2 * number + 1
    return call(WAIT, b"", [], stream=stream) + frame(WINDOW_UPDATE, 0, stream, bytes(4))


def continuation(number: int) -> bytes:
    """CVE-2024-27316: a header block without an end."""
    return begun(ECHO, flags=0) if not number else frame(CONTINUATION, 0, 1, headers([(b"x", b"y" * 100)]))


def ping(number: int) -> bytes:
    """CVE-2019-9512"""
    return frame(PING, 0, 0, bytes(8))


def settings(number: int) -> bytes:
    """CVE-2019-9515"""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100))


def empty(number: int) -> bytes:
    """CVE-2019-9518"""
    return begun(WAIT) if not number else frame(DATA, 0, 1)


def reset(number: int) -> bytes:
    """CVE-2019-9514: each frame asks for a reset."""
    return call(ECHO, b"", []) if not number else begun(ECHO)


def header_bomb(number: int) -> bytes:
    """A field in the table, which each of a block's bytes then repeats."""
    if not number:
        return begun(ECHO)
    block = b"\x40\x01x" + b"\x7f\x81\x1e" + b"y" * 4_000
    return frame(HEADERS, END_HEADERS, 2 * number + 1, block + b"\xbe" * 10_000)


@pytest.mark.parametrize("flood", [rapid_reset, made_to_reset, continuation, ping, settings, empty, reset, header_bomb])
async def test_a_flood_ends_its_connection(
    running: Running, mock_clock: MockClock, flood: Callable[[int], bytes]
) -> None:
    limits = GrpcLimits(http2=Http2Limits(max_concurrent_streams=50, pings_a_second=100), min_idle_ping_interval_ms=0)
    async with raw(running.methods, mock_clock, limits) as served:
        client = await served.connect()
        for number in range(5_000):
            await client.transport.send_all(flood(number))
            if number % 100 == 99:
                await client.seen()
            if client.goaways():
                break
        (goaway,) = client.goaways()
        assert goaway[1] in (CALM, ErrorCode.COMPRESSION_ERROR)
        assert running.most_tasks <= 50
        await served.wait(2)
        assert client.is_closed and running.tasks == 0
        await check_served(served)
        # One line in the log, whatever the number of frames.
        assert sum(served.server.refusals.counts.values()) == 1


@pytest.mark.parametrize("seed", range(amount(20, 2_000)))
async def test_odd_frames_end_their_connection_only(
    running: Running, mock_clock: MockClock, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(seed)
    async with raw(running.methods, mock_clock) as served:
        honest = await served.connect(call(WAIT, b"", []))
        for _ in range(10):
            odd = random.choice([broken(random), call(ECHO, b"tea", [])])
            client = await served.connect(opened(call(STREAM, b"", [], stream=1)) + odd[24:], begins=False)
            await client.transport.aclose()
        await wait_all_tasks_blocked()
        assert (len(served.server), running.tasks) == (1, 1)
        assert not [record for record in caplog.records if record.exc_info]
        await honest.transport.aclose()
        await wait_all_tasks_blocked()
        await check_served(served)


async def test_more_streams_than_the_limit_are_refused(running: Running, mock_clock: MockClock) -> None:
    limits = GrpcLimits(http2=Http2Limits(max_concurrent_streams=10))
    async with raw(running.methods, mock_clock, limits) as served:
        client = await served.connect(*(call(WAIT, b"", [], stream=2 * number + 1) for number in range(15)))
        refused = [stream for stream in range(1, 31, 2) if client.answer(stream).reset == ErrorCode.REFUSED_STREAM]
        assert (len(refused), running.tasks) == (5, 10)
        await client.transport.aclose()
        await wait_all_tasks_blocked()
        assert running.tasks == 0
        await check_served(served)


async def test_more_calls_than_the_limit_of_all_connections_are_refused(
    running: Running, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw(running.methods, mock_clock, GrpcLimits(max_calls=3)) as served:
        first = await served.connect(call(WAIT, b"", []), call(WAIT, b"", [], stream=3))
        second = await served.connect(*(call(WAIT, b"", [], stream=stream) for stream in (1, 3, 5)))
        exhausted = str(int(StatusCode.RESOURCE_EXHAUSTED))
        assert [second.status(stream) for stream in (1, 3, 5)] == [None, exhausted, exhausted]
        assert served.server.refusals.counts["calls"] == 2
        assert caplog.text.count("too many calls are in progress") == 1
        await first.send(frame(RST_STREAM, 0, 1, bytes(4)))
        await second.send(call(ECHO, b"tea", [], stream=7))
        assert second.status(7) == "0"


async def test_more_connections_than_the_budget_are_closed(running: Running, mock_clock: MockClock) -> None:
    async with raw(running.methods, mock_clock, connections=ConnectionBudget(1)) as served:
        first = await served.connect()
        second = RawClient(await served.network.connect("127.0.0.1", 10911))
        await wait_all_tasks_blocked()
        assert second.is_closed and not first.is_closed
        assert served.server.refusals.counts["connections"] == 1
        await first.transport.aclose()
        await wait_all_tasks_blocked()
        await check_served(served)


async def test_unfinished_requests_that_fill_the_memory_end_the_largest_connections(
    running: Running, mock_clock: MockClock
) -> None:
    limits = GrpcLimits(max_buffered_bytes=1_000_000)
    async with raw(running.methods, mock_clock, limits) as served:
        honest = await served.connect(begun(ECHO), frame(DATA, 0, 1, framed(b"tea")[:-1]))
        hoarder = await served.connect(begun(ECHO))
        for number in range(100):
            prefix = struct.pack(">BI", 0, 2_000_000) if not number else b""
            await hoarder.transport.send_all(frame(DATA, 0, 1, prefix + bytes(16_000)))
            await hoarder.seen()
            if hoarder.is_closed:
                break
        assert hoarder.is_closed and not honest.is_closed
        assert served.server.refusals.counts["buffered_bytes"] == 1
        await honest.send(frame(DATA, END_STREAM, 1, framed(b"tea")[-1:]))
        assert honest.answer().data == framed(b"tea")
        await honest.transport.aclose()
        await wait_all_tasks_blocked()
        await check_served(served)


async def test_a_window_of_zero_holds_no_more_than_the_limit(running: Running, mock_clock: MockClock) -> None:
    """CVE-2019-9511 and 9517: large answers to a client that takes nothing."""
    limits = GrpcLimits(http2=Http2Limits(max_unsent_bytes=1_000_000))
    async with raw(running.methods, mock_clock, limits) as served:
        client = await served.connect(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
        for number in range(100):
            await client.send(call(LARGE, b"", [], stream=2 * number + 1))
            assert all(one.buffered_bytes < 1_200_000 for one in served.server._open)
        await client.transport.aclose()
        await wait_all_tasks_blocked()
        await check_served(served)


async def test_no_more_is_read_from_a_client_that_does_not_read(mock_clock: MockClock) -> None:
    handled = 0

    def answer(call: Call, request: bytes) -> bytes:
        nonlocal handled
        handled += 1
        return bytes(10_000)

    async with raw({"/t.T/Large": Unary(lambda call: None, answer)}, mock_clock, capacity=100_000) as served:
        client = await served.connect(WINDOWS)
        count = 1_000
        calls = b"".join(call(LARGE, b"", [], stream=2 * number + 1) for number in range(count))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.transport.send_all, calls)
            await wait_all_tasks_blocked()
            assert 0 < handled < 300
            while not client.answer(2 * count - 1).has_ended:
                await client.seen()
        assert handled == count


async def test_large_messages_of_many_streams_wait_for_a_client_that_does_not_read(mock_clock: MockClock) -> None:
    async def pour(call: Call) -> None:
        await call.write(bytes(300_000))

    async with raw({"/t.T/Pour": Streaming(pour)}, mock_clock, capacity=100_000) as served:
        client = await served.connect(WINDOWS)
        await client.transport.send_all(b"".join(begun(b"/t.T/Pour", stream=stream) for stream in range(1, 80, 2)))
        await wait_all_tasks_blocked()
        (connection,) = served.server._open
        assert 200_000 < connection.buffered_bytes < 700_000
        assert not client.is_closed
        # A client that then reads gets all.
        while not all(client.answer(stream).has_ended for stream in range(1, 80, 2)):
            await client.seen()
        assert all(len(client.answer(stream).data) == 300_005 for stream in range(1, 80, 2))


async def test_a_stream_without_an_end_leaves_turns_to_others(running: Running, mock_clock: MockClock) -> None:
    async def pour(call: Call) -> None:
        while True:
            await call.write(b"a drop", b"and another")

    async with raw({**running.methods, "/t.T/Pour": Streaming(pour)}, mock_clock, capacity=100_000) as served:
        client = await served.connect(WINDOWS, begun(b"/t.T/Pour"))
        (connection,) = served.server._open
        assert connection.buffered_bytes < 500_000
        assert client.answer().data.startswith(framed(b"a drop") + framed(b"and another"))
        client.transport.cut()
        await wait_all_tasks_blocked()
        await check_served(served)


async def _closes(served: Raw, client: RawClient) -> None:
    await client.transport.aclose()


async def _is_cut(served: Raw, client: RawClient) -> None:
    client.transport.cut()


async def _breaks_a_rule(served: Raw, client: RawClient) -> None:
    await client.send(frame(DATA, 0, 0, b"x"))
    await served.wait(2)


async def _is_asked_to_leave(served: Raw, client: RawClient) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.server.leave, 5)
        await served.wait(10)


@pytest.mark.parametrize("end", [_closes, _is_cut, _breaks_a_rule, _is_asked_to_leave])
async def test_nothing_of_a_connection_stays(
    running: Running, mock_clock: MockClock, end: Callable[[Raw, RawClient], Awaitable[None]]
) -> None:
    """Its memory is free at once, without a garbage collection."""
    async with raw(running.methods, mock_clock) as served:
        client = await served.connect(
            call(WAIT, b"", []), begun(STREAM, stream=3), begun(ECHO, stream=5), call(ECHO, b"tea", [], stream=7)
        )
        await client.send(frame(DATA, 0, 5, framed(bytes(1_000))[:-1]))
        await client.send(call(LARGE, b"", [], stream=9))
        (connection,) = [weakref.ref(one) for one in served.server._open]
        assert served.server._calls.used == 3
        gc.collect()
        gc.disable()
        try:
            await end(served, client)
            await wait_all_tasks_blocked()
            assert connection() is None
        finally:
            gc.enable()
        assert running.tasks == 0
        await check_served(served)


async def test_others_are_served_within_a_long_read(mock_clock: MockClock) -> None:
    order: list[str] = []

    def slow(call: Call, request: bytes) -> bytes:
        order.append(call.peer)
        if call.peer == honest.transport.local:
            # The answers made so far do not wait for the rest.
            assert greedy.transport._incoming.size
        mock_clock.jump(TURN_S / 5)
        return request

    async with raw({"/t.T/Slow": Unary(lambda call: None, slow)}, mock_clock) as served:
        greedy, honest = await served.connect(), await served.connect()
        sent = b"".join(call(b"/t.T/Slow", b"", [], stream=2 * number + 1) for number in range(40))
        await greedy.transport.send_all(sent)
        await honest.transport.send_all(call(b"/t.T/Slow", b"", []))
        await greedy.seen()
        await honest.seen()
        assert honest.status() == "0" and greedy.status(79) == "0"
        assert order.index(honest.transport.local) < 20


async def test_others_are_served_within_a_bulk_read(
    running: Running, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    served_after: list[int] = []

    def echo(call: Call, request: bytes) -> bytes:
        served_after.append(len(sizes))
        return request

    methods = {**running.methods, "/t.T/Echo": Unary(lambda call: None, echo)}
    async with raw(methods, mock_clock) as served:
        greedy = await served.connect()
        (connection,) = served.server._open
        honest = await served.connect()
        receive, greedys = ServerConnection.receive, connection.http2

        def slow(http2: ServerConnection, data: bytes, now_s: float) -> list[Event]:
            if http2 is not greedys:
                return receive(http2, data, now_s)
            sizes.append(len(data))
            if len(sizes) == 20:
                # Sixteen parts of one read follow the first fifteen, of smaller reads.
                honest.transport.try_send([call(ECHO, b"tea", [])])
            mock_clock.jump(2 * TURN_S)
            return receive(http2, data, now_s)

        monkeypatch.setattr(ServerConnection, "receive", slow)
        part = frame(DATA, 0, 1, bytes(16_000))
        first = frame(DATA, 0, 1, struct.pack(">BI", 0, 4_000_000) + bytes(15_995))
        parts = [begun(WAIT), first, *[part] * 3]
        sent = b"".join(
            one if stream == 1 else one[:5] + struct.pack(">I", stream) + one[9:]
            for stream in range(1, 33, 2)
            for one in parts
        )
        await greedy.transport.send_all(sent)
        await greedy.seen()
        await honest.seen()
        assert (max(sizes), sum(sizes)) == (READ_BYTES, len(sent))
        assert len(sizes) > 31
        assert honest.status() == "0"
        assert 20 <= served_after[0] < 25
