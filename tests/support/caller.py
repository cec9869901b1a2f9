"""A client as handlers see it: a real channel, in memory, whose other end is in the test's hands."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from tests.support.memory_transport import CLIENT, memory_pair


class Caller:
    """``channel`` is the server's end; no task runs for it, unless the test is within `answering`."""

    def __init__(self, addr: str = CLIENT, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.transport, theirs = memory_pair(addr)
        self.channel = Channel(theirs, max_frame_bytes=max_frame_bytes)
        self._connection = Connection(MAX_FRAME_BYTES)
        self._received: list[Command] = []

    def received(self) -> list[Command]:
        """All answers and requests that were sent to it up to now; what the test removes stays away."""
        while True:
            all_sent = self.channel.flush_now()
            data = self.transport.take()
            self._received += self._connection.receive_data(data)
            if all_sent or not data:
                return self._received

    @asynccontextmanager
    async def answering(self, answer: Callable[[Command], Command | None]) -> AsyncIterator[None]:
        """Requests of the server are answered, by ``answer``, until the end of the block. It ends the connection."""
        client = Channel(self.transport, max_frame_bytes=MAX_FRAME_BYTES)

        def dispatch(channel: Channel, request: Command) -> None:
            response = answer(request)
            if response is not None:
                channel.reply(request, response)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run, dispatch)
            nursery.start_soon(self.channel.run, lambda channel, request: None)
            yield
            nursery.cancel_scope.cancel()


class Answers:
    """For `Caller.answering`: answers all requests with ``body``, and keeps them; oneway requests get no answer."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.asked: list[Command] = []

    def answer(self, request: Command) -> Command | None:
        if request.is_oneway:
            return None
        self.asked.append(request)
        return request.respond(body=self.body)
