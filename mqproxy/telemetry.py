"""The proxy's side of the streams of Telemetry: commands that the proxy sends of itself, next to answers."""

import asyncio
import logging
from typing import Any

from mqproxy.wire import messaging_pb2 as wire

logger = logging.getLogger(__name__)

# Commands that wait for a client that does not read. A check of a transaction comes again; who asks otherwise is told.
MAX_WAITING = 100


class Stream:
    """One stream; gRPC writes one message at a time."""

    def __init__(self, client_id: str, address: str, context: Any) -> None:
        self._client_id = client_id
        #: Where the client is.
        self.address = address
        self._context = context
        self._turn = asyncio.Lock()
        self._pushing: set[asyncio.Task[None]] = set()

    async def write(self, command: wire.TelemetryCommand) -> None:
        """Send a command, and return when gRPC has taken it."""
        async with self._turn:
            await self._context.write(command)

    def push(self, command: wire.TelemetryCommand) -> bool:
        """Send a command soon; False when too many wait already."""
        if len(self._pushing) >= MAX_WAITING:
            logger.info("client %s does not read: a command to it is dropped", self._client_id)
            return False
        task = asyncio.get_running_loop().create_task(self._push(command))
        self._pushing.add(task)
        task.add_done_callback(self._pushing.discard)
        return True

    async def close(self) -> None:
        """The stream ends; what was not sent is dropped."""
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
