"""Makes metadata durable: one fsync for all waiting requests, offsets by interval, compaction. Blocks in threads only.

An admin request appends its change and awaits `wait`. A change that no request waits for (a topic created by a send) is
synced just as soon.
Neighbours: meta/metadata.py (the tables), admin/ (wait), broker.py (runs and closes this).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from skylark.broker.meta.consumer_offsets import SLICE
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.mqcommon.errors import OutOfDescriptors, StoreError
from skylark.mqcommon.signal import Signal

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10
# The pause when no file descriptor is left.
RETRY_S = 1.0


class _Round:
    """The next fsync, and the event that its waiters wait for."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error = ""


class Persister(Part):
    """Makes one Metadata durable."""

    def __init__(self, metadata: Metadata, options: BrokerOptions) -> None:
        self._metadata = metadata
        self._journal = metadata.journal
        self._options = options
        self._wanted = Signal()
        self._syncing = False
        # Why the last fsync failed; "" if it succeeded.
        self._unsynced = ""
        self._round = _Round()
        self._appending = trio.Lock()
        self._compacting = False
        # Held while files of metadata are replaced or removed.
        self._replacing = trio.Lock()
        self._stopped = ""
        self._failing = False
        #: Returns when the other members of the set have all changes that they need; StoreError if that is not sure.
        self.agreed: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    async def wait(self) -> None:
        """Return when all changes appended so far survive power loss; StoreError if they may not."""
        if self._stopped:
            raise StoreError(self._stopped)
        current = self._round
        self._wanted.set()
        await current.done.wait()
        if current.error:
            raise StoreError(current.error)
        await self.agreed()

    async def settle(self) -> None:
        """As `wait`, but return at once if everything appended is on disk already."""
        if self._syncing or self._wanted.is_set():
            await self.wait()
        elif self._unsynced:
            raise StoreError(self._unsynced)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all loops until cancelled."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sync_when_wanted, nursery)
                nursery.start_soon(self._append_offsets_often)
        finally:
            # No fsync follows: present and later waiters get an error instead of waiting for ever.
            self._stopped = "the broker is stopping: the change may be lost"
            self._end_round(self._round, self._stopped)

    async def append_offsets(self) -> None:
        """Append the consumer offsets that changed, in slices, so that other tasks run in between."""
        offsets = self._metadata.consumer_offsets
        # One call at a time: offsets that a call has popped are in the journal only when the call returns.
        async with self._appending:
            changed = offsets.pop_changed()
            done = 0
            try:
                while done < len(changed):
                    offsets.append_changed(changed[done : done + SLICE])
                    done += SLICE
                    await trio.lowlevel.checkpoint()
            finally:
                # Offsets that were not appended, because of an error or a cancellation, count as changed again: the
                # next call appends them.
                offsets.put_back(changed[done:])

    async def close(self) -> None:
        """Append offsets, sync, close the journal. Never takes longer than CLOSE_TIMEOUT_S."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S) as scope:
            try:
                await self.append_offsets()
            except StoreError as error:
                logger.error("consumer offsets of the last interval are lost: %s", error)
            try:
                await trio.to_thread.run_sync(self._journal.close, abandon_on_cancel=True)
            except (OSError, StoreError) as error:
                logger.error("metadata journal not closed cleanly: %s", error)
        if scope.cancelled_caught:
            logger.error("metadata journal not closed within %d s", CLOSE_TIMEOUT_S)

    @asynccontextmanager
    async def files_kept(self) -> AsyncIterator[None]:
        """Let no file of metadata be replaced or removed meanwhile: wait for a compaction that runs, begin none."""
        async with self._replacing:
            yield

    def appended(self) -> None:
        """Have the journal synced soon: something was appended."""
        self._wanted.set()

    async def _sync_when_wanted(self, nursery: trio.Nursery) -> None:
        while True:
            await self._wanted.wait()
            # A waiter that comes from now on waits for the next fsync: its change may have been appended after this
            # fsync began.
            current, self._round = self._round, _Round()
            error = "the broker is stopping: the change may be lost"
            self._syncing = True
            try:
                await trio.to_thread.run_sync(self._journal.sync)
                error = ""
            except OutOfDescriptors as failure:
                error = str(failure)
                logger.error("metadata not synced, next try in %g s: %s", RETRY_S, error)
                self._end_round(current, error)
                await trio.sleep(RETRY_S)
                self._wanted.set()
            except StoreError as failure:
                error = str(failure)
                logger.error("metadata not synced: %s", error)
            finally:
                self._syncing, self._unsynced = False, error
                self._end_round(current, error)
            if self._journal.wants_compaction and not self._compacting:
                self._compacting = True
                nursery.start_soon(self.compact)

    async def _append_offsets_often(self) -> None:
        while True:
            await trio.sleep(self._options.flush_consumer_offset_interval / 1000)
            try:
                await self.append_offsets()
            except StoreError as error:
                if not self._failing:
                    logger.error("consumer offsets not written to the journal, tried again each interval: %s", error)
                self._failing = True
            else:
                self._failing = False

    async def compact(self) -> bool:
        """Replace all files by a snapshot of the tables as they are in memory; returns whether that was possible."""
        self._compacting = True
        try:
            async with self._replacing:
                # Both happen in one turn of the loop: the snapshot is exactly the state at the new journal's start.
                compaction = self._journal.begin_compaction()
                state = self._metadata.state()
                try:
                    await trio.to_thread.run_sync(compaction.write, state)
                finally:
                    self._journal.end_compaction(compaction)
            logger.info("metadata compacted to a snapshot of %d bytes", compaction.snapshot_bytes)
            return True
        except StoreError as error:
            logger.error("metadata not compacted, the journal keeps growing: %s", error)
            return False
        finally:
            self._compacting = False

    def _end_round(self, ended: _Round, error: str) -> None:
        ended.error = error
        ended.done.set()
