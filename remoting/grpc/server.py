"""A gRPC server: accepts connections within their limits, scans them, and stops gracefully."""

import logging
from collections.abc import Mapping

import trio

from skylark.mqcommon.polling import poll_until
from skylark.remoting.grpc.call import Streaming, Unary
from skylark.remoting.grpc.connection import GrpcConnection
from skylark.remoting.grpc.limits import REFUSED, CallBudget, GrpcLimits
from skylark.remoting.net.accepting import accept_connections
from skylark.remoting.net.limits import BufferBudget, ConnectionBudget, Refusals
from skylark.remoting.net.scanning import scan_connections
from skylark.remoting.net.transport import Listener, Transport

logger = logging.getLogger(__name__)

# Turns of the loop until a connection that has arrived is served: `accept` returns, and its task starts.
_ACCEPT_TURNS = 3


class GrpcServer:
    """Serves ``methods``, by their paths: ``/package.Service/Method``."""

    def __init__(
        self,
        methods: Mapping[str, Unary | Streaming],
        *,
        limits: GrpcLimits | None = None,
        connections: ConnectionBudget | None = None,
    ) -> None:
        """``connections`` is shared by all servers of a daemon; 10,000 of its own when there is none."""
        self._methods = methods
        self._limits = limits or GrpcLimits()
        self._connections = connections or ConnectionBudget(10_000)
        self.refusals = Refusals(REFUSED)
        self._buffers = BufferBudget(self._limits.max_buffered_bytes)
        self._calls = CallBudget(self._limits.max_calls, self.refusals)
        self._accepting = trio.CancelScope()
        self._open: set[GrpcConnection] = set()
        self._is_leaving = False

    def __len__(self) -> int:
        """The number of open connections."""
        return len(self._open)

    async def serve_on(
        self, listeners: list[Listener], *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve on open ``listeners`` until cancelled, which cuts all calls; starts with the first ``ip:port``."""
        # Two nurseries with different lives: closing the listeners must not end the connections.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scan_connections, self._open, GrpcConnection.scan, self._buffers)
            task_status.started(listeners[0].address)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(
                            accept_connections, listener, nursery, self._serve, self._connections, self.refusals
                        )
            # Open connections are served until `leave` or cancellation ends them.
            await trio.sleep_forever()

    def stop_accepting(self) -> None:
        """Close the listening sockets; open connections are served on."""
        self._accepting.cancel()

    async def leave(self, timeout_s: float) -> bool:
        """Ask all clients to leave, and wait until they have: their calls are answered before.

        At most ``timeout_s``, then the rest is cut; False when a connection was cut. Call `stop_accepting` before.
        """
        self._is_leaving = True
        for connection in list(self._open):
            connection.leave()
        # Without these turns connections that were accepted just now would not be waited for.
        for _ in range(_ACCEPT_TURNS):
            await trio.lowlevel.checkpoint()
        have_left = await poll_until(lambda: not self._open, timeout_s)
        for connection in list(self._open):
            connection.close(f"the server stops; the client did not leave in {timeout_s} s")
        return have_left

    async def _serve(self, transport: Transport) -> None:
        connection = GrpcConnection(transport, self._methods, self._limits, self._calls, self._buffers)
        self._open.add(connection)
        self._buffers.holders.add(connection)
        if self._is_leaving:
            connection.leave()
        try:
            await connection.run()
        except* Exception as group:
            # A bug here closes the connection that triggered it, and no other.
            logger.error("connection of %s closed after an error", connection.remote, exc_info=group)
        finally:
            self._open.discard(connection)
            self._buffers.holders.discard(connection)
            if connection.exceeded:
                detail = f"connection closed: {connection.closed_reason}"
                self.refusals.count(connection.exceeded, trio.current_time(), connection.remote, detail)
