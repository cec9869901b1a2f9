"""Queues of a log that is copied: they are built in small steps while bytes arrive, so as not to block the event loop.

`QueueBuilding` serves each kind of slave. Neighbours: replica.py (the log and its queues), slave.py (bytes of a
master), dledger/following.py (entries of a leader).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio

from skylark.broker.replication.replica import BadRecord, Replica
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.mqcommon.disk.loading import LOST_ERRNOS
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.signal import Signal

logger = logging.getLogger(__name__)

# Records per step of building queues: about a millisecond.
BUILD_RECORDS = 300
# Pause before the next step when too many queue entries wait to be written.
ENTRIES_PAUSE_S = 0.05
# The last bytes of the log are almost certainly in the page cache. Queues that lag more check that before they read.
NEAR_BYTES = 4 * 1024 * 1024
MAX_BEHIND_BYTES = 1024 * 1024 * 1024
# Pause before a record that was bad after it was mended, or given up, is read again.
BAD_PAUSE_S = 1.0
# How long a slave waits for damage to be mended that keeps it from becoming the master.
FINISH_S = 3.0


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
    """Builds the queues of a copied log: `run` it, and call `grown` when the log has grown.

    A record that is damaged in this log is mended as other replicas have it. Until then the log is copied on, but no
    queue gets messages after that record. If no replica has it, it is given up, and readers skip it (damage_hold.py).
    """

    def __init__(self, log: CopiedLog) -> None:
        self._replica = log.replica
        self._arrived = log.arrived
        self._guard = log.guard
        # Where the record was damaged that was mended, or given up, last.
        self._mended_at = -1
        #: The damaged record that no replica has given yet; "" if there is none.
        self.problem = ""
        self._to_build = Signal()
        self._built = Signal()
        # Held while queues are built, and while the log is cut.
        self._building = trio.Lock()

    def grown(self) -> None:
        """Build a step, if the bytes for it are in memory, and let `run` build the rest."""
        replica = self._replica
        if replica.behind < NEAR_BYTES and not replica.must_wait and not self.problem:
            with suppress(BadRecord):  # `run` has it mended
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
            await self._build_when_mended()
            self._built.set()

    async def build_rest(self) -> None:
        """Build until the queues have all whole records. BadRecord when one is damaged."""
        async with self._building:
            while not await self._build_more():
                await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def complete(self) -> AsyncIterator[None]:
        """Within the block the queues have all whole records, and nothing is built: the log may be cut.

        A truncation looks for the new ends in the queues, so it needs all entries before the cut.
        """
        await self._build_when_mended()
        async with self._building:
            yield

    async def finish(self) -> None:
        """Call when nothing is copied any more: all whole records get their entries, and a partial one is cut.

        StoreCorrupt and DiskFull as in `Replica.finish`.
        """
        deadline = trio.current_time() + FINISH_S
        async with self._building:
            while True:
                try:
                    return await trio.to_thread.run_sync(self._replica.finish)
                except BadRecord as error:
                    if self._replica.log.blocks.hold is None:
                        raise
                    bad = error
                with trio.move_on_at(deadline) as waiting:
                    await self._wait_for(bad)
                if waiting.cancelled_caught:
                    raise bad

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
            self._note_problem("")
            return not done
        except NotResident as cold:
            await self._read_cold(cold)
            return False

    async def _read_cold(self, cold: NotResident) -> None:
        """Read the bytes that a step lacks."""
        log = self._replica.log
        at, segment = log.end, log.chain.at(log.end)
        try:
            await trio.to_thread.run_sync(warm, cold)
        except OSError as error:
            if segment is None or error.errno not in LOST_ERRNOS:
                raise
            raise BadRecord(segment, at, cold.spans[0].size, str(error)) from None

    async def _build_when_mended(self) -> None:
        """As `build_rest`; waits for damaged records to be mended, or given up."""
        while True:
            try:
                return await self.build_rest()
            except BadRecord as error:
                bad = error.with_traceback(None)
            self._note_problem(str(bad))
            await self._wait_for(bad)

    async def _wait_for(self, bad: BadRecord) -> None:
        """Return when it is worth while to read the record again."""
        log = self._replica.log
        if bad.physical == self._mended_at or log.blocks.hold is None:
            await trio.sleep(BAD_PAUSE_S)
            self._mended_at = -1
        else:
            await log.blocks.hold.wait([*log.sums.blocks(bad.physical, bad.physical + bad.size)])
            self._mended_at = bad.physical

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            logger.error(
                "%s. No replica has given the record yet: the log is copied on, but messages from the record on are not"
                " shown here, and this broker cannot become the master",
                problem,
            )
        elif self.problem and not problem:
            logger.warning("the copied log is whole again: %s", self.problem)
        self.problem = problem


async def add_file(log: CommitLog) -> None:
    """Add the next file to a log that is copied; DiskFull."""
    # The list of files changes in the event loop only: the cleaner changes it, too.
    await trio.to_thread.run_sync(log.make_file, log.raw_end)
    log.add_file()
