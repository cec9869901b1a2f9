"""The loop that makes pages of the commit log ready ahead of its end, in a thread, so that appends need not wait.

Neighbour: store/log/commitlog.py (which pages).
"""

from contextlib import suppress

import trio

from broker.part import Part
from broker.store.log.commitlog import CommitLog
from mqcommon.errors import FileClosed
from mqcommon.signal import Signal


class PopulatePages(Part):
    """Prepares the pages of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._wanted = Signal()
        # Its own thread: it may wait for the disk, and must not keep others waiting for a thread.
        self._thread = trio.CapacityLimiter(1)

    def after_turn(self) -> None:
        """Wake the loop if the log has grown enough."""
        if self._log.end > self._log.populate_at:
            self._wanted.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        task_status.started()
        while True:
            await self._wanted.wait()
            while span := self._log.take_unpopulated():
                with suppress(FileClosed):  # the log has rolled on, and the file was removed
                    await trio.to_thread.run_sync(
                        span.file.populate, span.at, span.size, abandon_on_cancel=True, limiter=self._thread
                    )
