"""The proxy's side of the streams of Telemetry: commands that the proxy sends of itself, next to answers."""

import asyncio
import logging
from typing import Any

from skylark.mqproxy.wire import messaging_pb2 as wire

logger = logging.getLogger(__name__)

# The most commands that wait for a client that does not read, and their bytes, as some have whole messages. Brokers
# repeat a check of a transaction; the senders of other commands get an error.
MAX_WAITING = 100
MAX_WAITING_BYTES = 16 * 1024 * 1024


class Stream:
    """One stream; gRPC writes one message at a time."""

    def __init__(self, client_id: str, address: str, context: Any) -> None:
        self._client_id = client_id
        #: Where the client is.
        self.address = address
        self._context = context
        self._turn = asyncio.Lock()
        self._pushing: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0

    async def write(self, command: wire.TelemetryCommand) -> None:
        """Send a command, and return when gRPC has taken it."""
        async with self._turn:
            await self._context.write(command)

    def push(self, command: wire.TelemetryCommand) -> bool:
        """Send a command soon; False when too many wait already."""
        size = command.ByteSize()
        # A command that is larger than the limit of waiting bytes is sent alone.
        if len(self._pushing) >= MAX_WAITING or (self._pushing and self._waiting_bytes + size > MAX_WAITING_BYTES):
            logger.info("client %s does not read: a command to it is dropped", self._client_id)
            return False
        task = asyncio.get_running_loop().create_task(self._push(command))
        self._pushing.add(task)
        self._waiting_bytes += size

        def ended(task: asyncio.Task[None]) -> None:
            self._pushing.discard(task)
            self._waiting_bytes -= size

        task.add_done_callback(ended)
        return True

    async def close(self) -> None:
        """End the stream; commands that were not sent are dropped."""
        for task in self._pushing:
            task.cancel()
        if self._pushing:
            await asyncio.wait(self._pushing)

    async def _push(self, command: wire.TelemetryCommand) -> None:
        try:
            await self.write(command)
        except Exception as error:
            # gRPC has several errors for a stream that has ended meanwhile.
            logger.info("a command to client %s was not sent: %s", self._client_id, error)
