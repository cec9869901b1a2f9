"""A channel that has ended is gone at once: its buffers do not wait for a garbage collection."""

import gc
import struct
import weakref
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from remoting.net import server as server_module
from remoting.net.channel import Channel
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from tests.remoting.net.test_server import BIG, ECHO, serving, until


async def leave(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


async def send_junk(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\0\xff" * 10)


async def reset_before_reading(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\0" + encode(Command(BIG)) * 20)
    await trio.testing.wait_all_tasks_blocked()
    await reset(stream)


@pytest.mark.parametrize("end", [leave, reset, send_junk, reset_before_reading])
async def test_a_channel_that_closed_is_gone_without_a_garbage_collection(
    end: Callable[[trio.SocketStream], Awaitable[None]],
) -> None:
    async with serving() as (server, addr):
        host, _, port = addr.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(encode(Command(ECHO, body=bytes(100_000)))[:-1])
        await until(lambda: any(channel.buffered_bytes > 90_000 for channel in server.channels))
        gc.disable()
        try:
            closed = weakref.ref(next(iter(server.channels)))
            await end(stream)
            await until(lambda: not server.channels)
            await until(lambda: closed() is None)
        finally:
            gc.enable()


async def test_a_scan_keeps_no_channel_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[int] = []
    monkeypatch.setattr(server_module, "SCAN_INTERVAL_S", 0.001)
    monkeypatch.setattr(Channel, "expire_requests", lambda channel, now: scanned.append(1))
    async with serving() as (server, addr):
        host, _, port = addr.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        await until(lambda: bool(scanned))
        gc.disable()
        try:
            closed = weakref.ref(next(iter(server.channels)))
            await stream.aclose()
            await until(lambda: closed() is None)
        finally:
            gc.enable()
