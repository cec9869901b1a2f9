"""Accepting goes on when descriptors were short, and ends with other errors."""

import errno
import os

import pytest
import trio
import trio.testing

from skylark.remoting.net.accepting import accept_connections
from skylark.remoting.net.limits import ConnectionBudget, Refusals
from skylark.remoting.net.transport import Transport
from tests.support.memory_transport import MemoryListener, MemoryNetwork


class Short(MemoryListener):
    """The first calls fail with these errors."""

    def __init__(self, *codes: int) -> None:
        super().__init__(MemoryNetwork(), "127.0.0.1:10911")
        self._network.listeners[self.address] = self
        self.codes = list(codes)

    async def accept(self) -> Transport:
        if self.codes:
            code = self.codes.pop(0)
            raise OSError(code, os.strerror(code))
        return await super().accept()

    async def client(self) -> Transport:
        return await self._network.connect("127.0.0.1", 10911)


async def hello(transport: Transport) -> None:
    await transport.send_all(b"hello")


async def test_connections_wait_while_descriptors_or_memory_are_short(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener, refusals = Short(errno.EMFILE, errno.ENFILE, errno.ENOBUFS), Refusals()
    async with trio.open_nursery() as nursery:
        client = await listener.client()
        nursery.start_soon(accept_connections, listener, nursery, hello, ConnectionBudget(1), refusals)
        assert await client.receive(5) == b"hello"
        nursery.cancel_scope.cancel()
    assert refusals.counts["accepts_failed"] == 3
    assert caplog.text.count("accept failed: [Errno 24] Too many open files; connections wait") == 1


async def test_another_error_ends_the_listener() -> None:
    listener = Short(errno.EBADF)
    async with trio.open_nursery() as nursery:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await accept_connections(listener, nursery, hello, ConnectionBudget(1), Refusals())
    with pytest.raises(ConnectionRefusedError):
        await listener.client()
