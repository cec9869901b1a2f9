"""A channel that has ended is gone at once: its buffers do not wait for a garbage collection."""

import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import ConnectionLost, RemotingError, TooManyRequests
from skylark.remoting.net import channel as channel_module
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.in_process import Direction
from skylark.remoting.net.transport import Transport
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES, encode
from tests.remoting.net.served import reset
from tests.remoting.net.test_server import BIG, ECHO, serving
from tests.support.memory_transport import MemoryTransport, memory_pair
from tests.support.waiting import until


async def leave(stream: Transport) -> None:
    await stream.aclose()


async def break_down(stream: Transport) -> None:
    reset(stream)


async def send_junk(stream: Transport) -> None:
    await stream.send_all(b"\0\xff" * 10)


async def reset_before_reading(stream: Transport) -> None:
    await stream.send_all(b"\0" + encode(Command(BIG)) * 20)
    await trio.testing.wait_all_tasks_blocked()
    reset(stream)


@pytest.mark.parametrize("end", [leave, break_down, send_junk, reset_before_reading])
@pytest.mark.parametrize("over_tcp", [True, False])
async def test_a_channel_that_closed_is_gone_without_a_garbage_collection(
    end: Callable[[Transport], Awaitable[None]], over_tcp: bool
) -> None:
    async with serving(over_tcp=over_tcp) as served:
        stream = await served.stream()
        await stream.send_all(encode(Command(ECHO, body=bytes(100_000)))[:-1])
        await until(
            lambda: any(channel.buffered_bytes > 90_000 for channel in served.server.channels), "part of a frame"
        )
        gc.disable()
        try:
            closed = weakref.ref(next(iter(served.server.channels)))
            await end(stream)
            await until(lambda: not served.server.channels, "the end of the connection")
            await until(lambda: closed() is None, "the channel is gone")
        finally:
            gc.enable()


async def test_a_scan_keeps_no_channel_alive(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    scanned: list[int] = []
    monkeypatch.setattr(Channel, "expire_requests", lambda channel, now: scanned.append(1))
    async with serving() as served:
        stream = await served.stream()
        await trio.sleep(1.5)
        assert scanned
        gc.disable()
        try:
            closed = weakref.ref(next(iter(served.server.channels)))
            await stream.aclose()
            await until(lambda: closed() is None, "the channel is gone")
        finally:
            gc.enable()


class BreaksForWriting(MemoryTransport):
    """As a socket that the peer has reset: what came before can be read."""

    __slots__ = ("is_broken",)

    def try_send(self, pieces: list[bytes | memoryview]) -> int:
        if self.is_broken:
            raise trio.BrokenResourceError("reset")
        return super().try_send(pieces)

    async def send_all(self, data: bytes | memoryview) -> None:
        if self.is_broken:
            raise trio.BrokenResourceError("reset")
        await super().send_all(data)


async def test_answers_that_came_before_the_end_count_though_a_write_fails_first() -> None:
    for _ in range(30):  # whether the writer or the reader runs first is random
        up, down = Direction(1_000), Direction(1_000)
        ours, theirs = BreaksForWriting("c:1", "s:1", down, up), MemoryTransport("s:1", "c:1", up, down)
        ours.is_broken = False
        channel = Channel(ours, max_frame_bytes=MAX_FRAME_BYTES)
        ended: list[Command | RemotingError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run, lambda channel, command: None)
            first, second = Command(ECHO), Command(ECHO)
            channel.submit(first, 60_000, ended.append)
            await channel.sent()
            ours.is_broken = True
            theirs.try_send([encode(first.respond())])
            nursery.start_soon(theirs.aclose)
            channel.submit(second, 60_000, ended.append)
        assert [type(each) for each in ended] == [Command, ConnectionLost]


async def test_requests_are_refused_at_the_limit_and_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_IN_FLIGHT", 2)
    channel, ended = Channel(memory_pair()[0], max_frame_bytes=MAX_FRAME_BYTES), list[Command | RemotingError]()
    for _ in range(2):
        channel.submit(Command(ECHO), 1_000, ended.append)
    with pytest.raises(TooManyRequests):
        channel.submit(Command(ECHO), 1_000, ended.append)
    assert ended == []
    channel.close("the test is over")
    with pytest.raises(ConnectionLost, match="the test is over"):
        channel.submit(Command(ECHO), 1_000, ended.append)
