"""Queues of a log that is copied: they are built in small steps while bytes arrive, so as not to block the event loop.

`QueueBuilding` serves each kind of slave. Neighbours: replica.py (the log and its queues), slave.py (bytes of a
master), dledger/following.py (entries of a leader).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from skylark.broker.replication.replica import Replica
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.signal import Signal

# Records per step of building queues: about a millisecond.
BUILD_RECORDS = 300
# Pause before the next step when too many queue entries wait to be written.
ENTRIES_PAUSE_S = 0.05
# The last bytes of the log are almost certainly in the page cache. Queues that lag more check that before they read.
NEAR_BYTES = 4 * 1024 * 1024
MAX_BEHIND_BYTES = 1024 * 1024 * 1024


@lazy_dataclass(frozen=True, slots=True)
class CopiedLog:
    """The log that is copied. ``arrived`` is called when queues got messages.

    ``guard`` is `Flusher.one_at_a_time`: a task holds it while it removes or moves queue files, or starts the log at
    another offset. ``flush`` makes the log durable; None: reports do not wait for that.
    """

    replica: Replica
    arrived: Callable[[], None]
    guard: trio.Lock
    flush: Callable[[], Awaitable[None]] | None = None


class QueueBuilding:
    """Builds the queues of a copied log: `run` it, and call `grown` when the log has grown."""

    def __init__(self, log: CopiedLog) -> None:
        self._replica = log.replica
        self._arrived = log.arrived
        self._guard = log.guard
        self._to_build = Signal()
        self._built = Signal()
        # Held while queues are built, and while the log is cut.
        self._building = trio.Lock()

    def grown(self) -> None:
        """Build a step, if the bytes for it are in memory, and let `run` build the rest."""
        replica = self._replica
        if replica.behind < NEAR_BYTES and not replica.must_wait:
            self._step()
        if replica.behind:
            self._to_build.set()

    async def wait_for_room(self) -> None:
        """Wait while the queues lag too far behind the log."""
        while self._replica.behind > MAX_BEHIND_BYTES:
            self._built.clear()
            await self._built.wait()

    async def run(self) -> None:
        """Build queues whenever the log has grown."""
        while True:
            await self._to_build.wait()
            await self.build_rest()
            self._built.set()

    async def build_rest(self) -> None:
        """Build until the queues have all whole records."""
        async with self._building:
            while not await self._build_more():
                await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def complete(self) -> AsyncIterator[None]:
        """Within the block the queues have all whole records, and nothing is built: the log may be cut.

        A truncation looks for the new ends in the queues, so it needs all entries before the cut.
        """
        await self.build_rest()
        async with self._building:
            yield

    async def finish(self) -> None:
        """Call when nothing is copied any more: all whole records get their entries, and a partial one is cut.

        StoreCorrupt and DiskFull as in `Replica.finish`.
        """
        async with self._building:
            await trio.to_thread.run_sync(self._replica.finish)

    def _step(self, *, guarded: bool = False) -> int:
        """Add a few records to their queues; returns how many."""
        done = self._replica.build(BUILD_RECORDS, guarded=guarded)
        if done:
            self._arrived()
        return done

    async def _build_more(self) -> bool:
        """Build a step; returns whether there was nothing left to build."""
        if self._replica.must_wait:
            await trio.sleep(ENTRIES_PAUSE_S)
            return False
        try:
            with resident_only():
                done = self._step()
            if not done and self._replica.wants_guard:
                async with self._guard:
                    with resident_only():
                        done = self._step(guarded=True)
            return not done
        except NotResident as cold:
            await trio.to_thread.run_sync(warm, cold)
            return False


async def add_file(log: CommitLog) -> None:
    """Add the next file to a log that is copied; DiskFull."""
    # The list of files changes in the event loop only: the cleaner changes it, too.
    await trio.to_thread.run_sync(log.make_file, log.raw_end)
    log.add_file()
