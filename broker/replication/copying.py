"""Queues of a log that is copied: they are built in small steps while bytes arrive, so as not to block the event loop.

`QueueBuilding` serves each kind of slave. Neighbours: replica.py (the log and its queues), slave.py (bytes of a
master), dledger/following.py (entries of a leader).
"""

import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio

from skylark.broker.cold_reads import Healer
from skylark.broker.replication.replica import BadRecord, Replica
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import Damaged, NotResident, resident_only, warm
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
# Pause before the other replicas are asked again for a record that is damaged here.
HEAL_PAUSE_S = 1.0
# How long they are asked each time.
HEAL_S = 3.0


@lazy_dataclass(frozen=True, slots=True)
class CopiedLog:
    """The log that is copied. ``arrived`` is called when queues got messages.

    ``guard`` is `Flusher.one_at_a_time`: a task holds it while it removes or moves queue files, or starts the log at
    another offset. ``flush`` makes the log durable; None: reports do not wait for that. ``healer``: repairs damaged
    blocks.
    """

    replica: Replica
    arrived: Callable[[], None]
    guard: trio.Lock
    flush: Callable[[], Awaitable[None]] | None = None
    healer: Callable[[], Healer | None] = lambda: None


class QueueBuilding:
    """Builds the queues of a copied log: `run` it, and call `grown` when the log has grown.

    A record that is damaged in this log is repaired as other replicas have it. Until then the log goes on to be copied,
    but no queue gets messages after that record.
    """

    def __init__(self, log: CopiedLog) -> None:
        self._replica = log.replica
        self._arrived = log.arrived
        self._guard = log.guard
        self._healer = log.healer
        # The damaged record that was repaired last; the same one is not repaired again in the same step.
        self._healed_at = -1
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
            with suppress(BadRecord):  # `run` has it repaired
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
            try:
                await self.build_rest()
            except BadRecord as bad:
                self._note_problem(str(bad))
                await trio.sleep(HEAL_PAUSE_S)
                self._to_build.set()
            self._built.set()

    async def build_rest(self) -> None:
        """Build until the queues have all whole records. BadRecord when one is damaged, and no replica has given it."""
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
            while True:
                try:
                    return await trio.to_thread.run_sync(self._replica.finish)
                except BadRecord as bad:
                    if not await self._heal(bad):
                        raise

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
            return await self._read_cold(cold)
        except BadRecord as bad:
            if await self._heal(bad):
                return False
            raise

    async def _read_cold(self, cold: NotResident) -> bool:
        """Read what a step lacks; always False: there is more to build."""
        log = self._replica.log
        at, segment = log.end, log.chain.at(log.end)
        try:
            await trio.to_thread.run_sync(warm, cold)
        except (Damaged, OSError) as error:
            if segment is None or (isinstance(error, OSError) and error.errno != errno.EIO):
                raise
            bad = BadRecord(segment, at, cold.spans[0].size, str(error))
            if not await self._heal(bad):
                raise bad from error
        return False

    async def _heal(self, bad: BadRecord) -> bool:
        """Whether the blocks with the damaged record were repaired, and it may be read again."""
        healer, log = self._healer(), self._replica.log
        is_whole = False
        # A record that is damaged still after a repair has no sound copy.
        if healer is not None and bad.physical != self._healed_at:
            with trio.move_on_after(HEAL_S):
                is_whole = await healer.heal(list(log.sums.blocks(bad.physical, bad.physical + bad.size)))
        self._healed_at = bad.physical if is_whole else -1
        return is_whole

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            logger.error(
                "%s. No replica has given it: the log is copied on, but messages from there on are not shown here, and this"
                " broker cannot become the master",
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
