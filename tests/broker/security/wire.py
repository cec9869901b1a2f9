"""A client that sends exactly the requests that a test has signed: nothing is added afterwards.

It signs as RocketMQ's clients do, or whole requests once it has asked for a challenge.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mqcommon.addresses import split_address
from remoting.protocol.command import Command
from remoting.protocol.connection import Connection
from remoting.protocol.frame import MAX_FRAME_BYTES, encode
from remoting.protocol.requests.clients import CHALLENGE
from remoting.protocol.signature import Credentials, WholeSignatures, sign
from tests.broker.security.users.rows import SECRET


class Wire:
    """One connection to a broker."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._connection = Connection(MAX_FRAME_BYTES)
        self._opaque = 0
        self._signatures: WholeSignatures | None = None

    async def ask_for_challenge(self) -> None:
        """From now on whole requests are signed."""
        answer = await self.ask(CHALLENGE.command(None))
        self._signatures = WholeSignatures(CHALLENGE.answer_header_type.from_answer(answer.ext).challenge)

    async def ask(self, request: Command, name: str = "", secret: str = SECRET) -> Command:
        """The answer to ``request``, signed as the user ``name``, or not signed at all."""
        if name and self._signatures is not None:
            self._signatures.sign(request, Credentials(name, secret))
        elif name:
            sign(request, Credentials(name, secret))
        self._opaque += 1
        request.opaque = self._opaque
        await self._stream.send_all(encode(request))
        while True:
            for answer in self._connection.receive_data(await self._stream.receive_some()):
                if answer.opaque == self._opaque:
                    return answer

    async def send(self, request: Command) -> None:
        """Send a oneway request that is not signed."""
        await self._stream.send_all(encode(request))


@asynccontextmanager
async def connected(addr: str) -> AsyncIterator[Wire]:
    async with await trio.open_tcp_stream(*split_address(addr)) as stream:
        with trio.fail_after(20):
            yield Wire(stream)
