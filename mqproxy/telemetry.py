"""The proxy's side of the streams of Telemetry: commands that the proxy sends of itself, next to answers."""

import logging
from typing import Protocol

import trio

from skylark.mqproxy.wire import messaging_pb2 as wire

logger = logging.getLogger(__name__)

# The most commands that wait for a client that does not read, and their bytes, as some have whole messages. Brokers
# repeat a check of a transaction; the senders of other commands get an error.
MAX_WAITING = 100
MAX_WAITING_BYTES = 16 * 1024 * 1024


class Writer(Protocol):
    """A call whose answer is a stream."""

    async def write(self, message: bytes) -> None:
        """Send one message; waits while the client does not read."""


class Stream:
    """One stream, to which one message is written at a time.

    Commands that the proxy sends of itself are written by tasks of ``nursery``, which ends with the stream.
    """

    def __init__(self, client_id: str, address: str, call: Writer, nursery: trio.Nursery) -> None:
        self._client_id = client_id
        #: Where the client is.
        self.address = address
        self._call = call
        self._nursery = nursery
        self._turn = trio.Lock()
        self._waiting = 0
        self._waiting_bytes = 0

    async def write(self, command: wire.TelemetryCommand) -> None:
        """Send a command; waits while the client does not read."""
        async with self._turn:
            await self._call.write(command.SerializeToString())

    def push(self, command: wire.TelemetryCommand) -> bool:
        """Send a command soon; False when too many wait already."""
        size = command.ByteSize()
        # A command that is larger than the limit of waiting bytes is sent alone.
        if self._waiting >= MAX_WAITING or (self._waiting and self._waiting_bytes + size > MAX_WAITING_BYTES):
            logger.info("client %s does not read: a command to it is dropped", self._client_id)
            return False
        self._waiting += 1
        self._waiting_bytes += size
        self._nursery.start_soon(self._push, command, size)
        return True

    async def _push(self, command: wire.TelemetryCommand, size: int) -> None:
        try:
            await self.write(command)
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size
