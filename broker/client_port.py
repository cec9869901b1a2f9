"""The port for clients, as two parts: `ClientPort` accepts connections, `OpenConnections` drains them at the stop.

Requests are refused as soon as `ClientPort` stops. The parts between the two then answer requests in flight, and
`OpenConnections` waits until these answers have been sent.
"""

from collections.abc import Sequence

import trio

from broker.part import Part
from remoting.net.server import Server
from remoting.net.transport import Listener

DRAIN_TIMEOUT_MS = 2_000


class OpenConnections(Part):
    """Its stop returns when all answers are sent, or after `DRAIN_TIMEOUT_MS`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def stop(self) -> None:
        await self._server.drain(DRAIN_TIMEOUT_MS)


class ClientPort(Part):
    """Serves on ``listeners``."""

    def __init__(self, server: Server, listeners: Sequence[Listener]) -> None:
        self._server = server
        self._listeners = list(listeners)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled: open connections are still served after `stop`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._server.serve_on, self._listeners)
            task_status.started()

    async def stop(self) -> None:
        self._server.stop_accepting()
