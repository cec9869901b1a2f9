"""TCP links through this process, which a test can cut: nothing arrives any more, and connections stay open."""

from contextlib import suppress

import trio

from scripts.daemons import HOST

GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class Link:
    """Connections to ``addr`` are connections to ``port`` of this machine, while the link is not cut.

    The near side is the one that connects.
    """

    def __init__(self, port: int, host: str = HOST, listen_port: int = 0) -> None:
        """A link that listens at ``host``; ``listen_port`` 0 takes a free port."""
        self._port = port
        self._host = host
        self._listen_port = listen_port
        # Whole from the near side to the far side, and back.
        self._there = trio.Event()
        self._back = trio.Event()
        self.mend()

    @property
    def addr(self) -> str:
        """Known as soon as it runs."""
        return f"{self._host}:{self._listen_port}"

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        """Cut the link: from now on nothing arrives, neither bytes nor the end of a connection.

        ``there``, ``back``: what the near side sends is lost, what the far side sends is lost.
        """
        if there:
            self._there = trio.Event()
        if back:
            self._back = trio.Event()

    def mend(self) -> None:
        """Mend the link: bytes that were sent meanwhile arrive."""
        self._there.set()
        self._back.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward until cancelled."""
        (listener,) = await trio.open_tcp_listeners(self._listen_port, host=self._host)
        self._listen_port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._connected, [listener])

    async def _until_whole(self) -> None:
        await self._there.wait()
        await self._back.wait()

    async def _connected(self, near: trio.SocketStream) -> None:
        # A connection needs packets in both directions before it is open.
        await self._until_whole()
        with suppress(OSError):
            async with near, await trio.open_tcp_stream(HOST, self._port) as far, trio.open_nursery() as nursery:

                async def forward(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                    with suppress(*GONE):
                        async for data in source:
                            await (self._there if source is near else self._back).wait()
                            await sink.send_all(data)
                    await self._until_whole()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(forward, near, far)
                nursery.start_soon(forward, far, near)
