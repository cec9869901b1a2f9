"""A proxy in a thread of its own, for a daemon whose main thread runs a trio loop.

Its asyncio loop gathers sends for the thread of the SDK: see sdk/aio/gathering.py.
"""

import asyncio
from collections.abc import Callable

import trio

from skylark.mqproxy.metrics import Meters
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.server import serve
from skylark.sdk.aio.gathering import GatheringLoop


class ProxyThread:
    """Runs `serve` in an asyncio loop."""

    def __init__(self, options: ProxyOptions) -> None:
        self.options = options
        #: The counts of the proxy, and whether it serves.
        self.meters = Meters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        """Serve until `stop`, or until cancelled. Started with the address; raises the errors of the start."""
        token = trio.lowlevel.current_trio_token()

        def started(address: str) -> None:
            token.run_sync_soon(task_status.started, address)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled)
            await trio.to_thread.run_sync(self._work, started)
            nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """Begin a graceful stop; `run` returns when it is done."""
        if self._loop is None:
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def _stop_when_cancelled(self) -> None:
        # The thread cannot be cancelled: it stops as gracefully as after `stop`, and then `run` returns.
        try:
            await trio.sleep_forever()
        finally:
            if self._loop is None or not self._loop.is_closed():
                self.stop()

    def _work(self, started: Callable[[str], None]) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            await serve(self.options, started, self._stopping, self.meters)

        # Not uvloop: with it a send took a tenth more processor time.
        with asyncio.Runner(loop_factory=GatheringLoop) as runner:
            runner.run(main())
