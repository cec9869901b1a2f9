"""The loops that make the store durable; fsync runs in a thread, one at a time.

ASYNC_FLUSH: every ``flushIntervalCommitLog`` when enough pages wait, else after the thorough interval.
SYNC_FLUSH: whenever somebody waits, and one fsync serves all who wait when it starts.
The checkpoint follows, so that a crash has little to read again.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from broker.options import BrokerOptions
from broker.part import Part
from broker.store.checkpoint import CheckpointMark
from broker.store.log.residency import NotResident, resident_only, warm
from broker.store.store import MAX_ENTRIES_WAITING, QUEUES, WAITING, MessageStore
from broker.writing.group_commit import GroupCommit
from mqcommon.errors import DiskFull, OutOfDescriptors, StoreError
from mqcommon.signal import Signal

logger = logging.getLogger(__name__)

PAGE_BYTES = 4096
CHECKPOINT_INTERVAL_S = 1.0
EXPIRE_INTERVAL_S = 0.1
# A second's messages are some 100,000.
ENTRIES_INTERVAL_S = 0.1
# The last quarter of a file of 1 GiB takes seconds to fill.
NEXT_FILE_INTERVAL_S = 0.1
# The ends of 10,000 queues take some 10 ms to note.
ENDS_INTERVAL_S = 10.0
# The index follows in what time is left: large steps while nobody asks for anything, small ones (some 5 % of the
# loop's time) while there is traffic, so that it always gets on. Messages come in faster than that, so when it is
# this far behind (some million messages, a second's work), it takes what time it needs to fall back no further.
INDEX_STEP_IDLE = 200
INDEX_STEP_BUSY = 100
MAX_INDEX_BEHIND_BYTES = 256 * 1024 * 1024
# A slave that catches up copies first.
MAX_SLAVE_INDEX_BEHIND_BYTES = 4 * 1024 * 1024 * 1024
INDEX_PAUSE_BUSY_S = 0.002
INDEX_PAUSE_DONE_S = 0.05
# With no room on the disk.
PAUSE_FULL_S = 10.0
# With no file descriptor left.
PAUSE_DESCRIPTORS_S = 1.0


class Flusher(Part):
    """Flushes one store."""

    def __init__(
        self,
        store: MessageStore,
        commits: GroupCommit,
        options: BrokerOptions,
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        """``settle`` returns when no topic is known that a power loss could take; StoreError when that can't be."""
        self._store = store
        self._commits = commits
        self._options = options
        self._settle = settle
        # One fsync of the log at a time, whoever wants it.
        self._flushing = trio.Lock()
        # Held while something is made durable: who removes files must not meet that.
        self.one_at_a_time = trio.Lock()
        self._waiting = Signal()
        self._busy = False
        self._may_be_behind = MAX_INDEX_BEHIND_BYTES
        self._most_behind = 0
        self._next_ends = 0.0
        # Why entries of queues are kept in memory; "" when they can be written.
        self._cannot_write = store.refusal_of(QUEUES)

    def after_turn(self) -> None:
        """Somebody may wait for a flush."""
        self._busy = True
        if self._commits:
            self._waiting.set()

    async def flush(self) -> None:
        """Make the log durable now, and answer who waited for that."""
        async with self._flushing:
            reached = await trio.to_thread.run_sync(self._store.flush)
            if not self._commits:
                return
            try:
                # A message without its topic is lost, too; a send may have made it.
                await self._settle()
            except StoreError as error:
                logger.error("sends answered FLUSH_DISK_TIMEOUT, their topic may not be on disk: %s", error)
                self._commits.give_up(reached)
            else:
                self._commits.advance(reached)

    async def checkpoint(self, *, note_ends: bool = False) -> None:
        """Queues and index become durable as far as the log is, and the checkpoint says so.

        With ``note_ends``, and now and then, the log is flushed, and the ends of the queues are noted. When entries of
        queues cannot be written, sends are refused until a later checkpoint can. OutOfDescriptors: the next one may
        do all of it.
        """
        async with self.one_at_a_time:
            now = trio.current_time()
            with_ends = note_ends or now >= self._next_ends
            mark = self._store.begin_checkpoint(with_ends=with_ends, as_flushed=not with_ends)
            done = False
            try:
                if await self._write_queues(mark):
                    await self._finish(mark)
                    done = True
            finally:
                # Also when it is cancelled: the checkpoint of a stop writes what this one took.
                if not done:
                    self._store.give_up_checkpoint(mark)
            if done and with_ends:
                self._next_ends = now + ENDS_INTERVAL_S
            elif note_ends and self._cannot_write:
                # The cleaner waits for this, and the disk for the cleaner.
                ends = self._store.ends_now()
                await self.flush()
                await trio.to_thread.run_sync(self._store.note_ends, ends)

    async def _write_queues(self, mark: CheckpointMark) -> bool:
        """Whether the entries that wait in memory are in the queues' files."""
        store, before = self._store, self._cannot_write
        try:
            if store.queues.must_remove_files:
                await trio.to_thread.run_sync(store.queues.remove_files)
            while steps := store.take_queues(mark):
                await trio.to_thread.run_sync(store.write_queues, steps)
                store.queues_written(steps)
            self._cannot_write = ""
        except OutOfDescriptors:
            raise  # it is tried again soon, and sends go on as long as not too many entries wait
        except (DiskFull, OSError) as error:
            self._cannot_write = str(error)
        store.refuse(QUEUES, self._cannot_write)
        if self._cannot_write and not before:
            logger.error("sends are refused: entries of consume queues cannot be written: %s", self._cannot_write)
        elif before and not self._cannot_write:
            logger.info("sends are taken again: all entries of consume queues are written")
        return not self._cannot_write

    async def _finish(self, mark: CheckpointMark) -> None:
        if mark.ends_head is not None:
            # Ends that the log may lose would be missed by a start. Who waits for the log does not wait for more.
            await self.flush()
        await trio.to_thread.run_sync(self._store.finish_checkpoint, mark)

    async def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues for good. OSError when files could not be removed: the next checkpoint tries again.

        The topic may be made again meanwhile. Its new queues get files at the next checkpoint only, after the old files
        are gone: both happen under `one_at_a_time`.
        """
        async with self.one_at_a_time:
            self._store.delete_topic(topic)
            await trio.to_thread.run_sync(self._store.queues.remove_files)
        # The noted ends must not name its queues: a start would miss them.
        await self.checkpoint(note_ends=True)

    def index_may_lag(self, most_bytes: int) -> None:
        """How far the index may be behind the log before it takes time from other work."""
        self._may_be_behind = most_bytes

    async def stop(self) -> None:
        """What was stored is made durable. When no file can be opened now, the store's close does it."""
        with suppress(OutOfDescriptors):
            await self.flush()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """All loops, until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                self._flush_waiting if self._options.flush_disk_type == "SYNC_FLUSH" else self._flush_often
            )
            nursery.start_soon(self._checkpoint_often)
            nursery.start_soon(self._expire_often)
            nursery.start_soon(self._bound_entries)
            nursery.start_soon(self._build_index)
            nursery.start_soon(self._make_files)

    async def _flush_waiting(self) -> None:
        while True:
            await self._waiting.wait()
            while self._commits:
                await self._try(self.flush)

    async def _flush_often(self) -> None:
        options = self._options
        thorough_s = options.flush_commit_log_thorough_interval / 1000
        last = trio.current_time()
        while True:
            await trio.sleep(options.flush_interval_commit_log / 1000)
            log = self._store.log
            behind = log.end - log.flushed
            now = trio.current_time()
            if behind >= options.flush_commit_log_least_pages * PAGE_BYTES or (behind and now - last >= thorough_s):
                await self._try(self.flush)
                last = now

    async def _checkpoint_often(self) -> None:
        done = -1
        self._next_ends = trio.current_time() + ENDS_INTERVAL_S
        while True:
            await trio.sleep(CHECKPOINT_INTERVAL_S)
            log = self._store.log
            if (
                self._cannot_write
                or self._store.queues.must_remove_files
                or log.flushed != done
                or (log.flushed != log.end and trio.current_time() >= self._next_ends)
            ):
                flushed = log.flushed
                if await self._try(self.checkpoint):
                    done = flushed

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Whether ``step`` was done. It waits for a while, and is to be tried again, when no file can be opened."""
        try:
            await step()
        except OutOfDescriptors as error:
            logger.error("nothing can be made durable, next try in %g s: %s", PAUSE_DESCRIPTORS_S, error)
            await trio.sleep(PAUSE_DESCRIPTORS_S)
            return False
        return True

    async def _bound_entries(self) -> None:
        """Entries of queues wait in memory for the checkpoint: sends are refused when it is too late."""
        store, told = self._store, False
        while True:
            await trio.sleep(ENTRIES_INTERVAL_S)
            too_many = store.entries_waiting > MAX_ENTRIES_WAITING
            if too_many == told:
                continue
            told = too_many
            if too_many:
                reason = f"{store.entries_waiting:,} entries of consume queues wait in memory for a slow disk"
                logger.error("sends are refused: %s", reason)
                store.refuse(WAITING, reason)
            else:
                logger.info("sends are taken again: the entries of consume queues that waited are written")
                store.refuse(WAITING, "")

    async def _expire_often(self) -> None:
        while True:
            await trio.sleep(EXPIRE_INTERVAL_S)
            if late := self._commits.expire(trio.current_time()):
                logger.warning("flush took longer than syncFlushTimeout: %d sends answered FLUSH_DISK_TIMEOUT", late)

    async def _make_files(self) -> None:
        while True:
            await trio.sleep(NEXT_FILE_INTERVAL_S)
            if self._store.log.wants_file:
                try:
                    await trio.to_thread.run_sync(self._store.log.make_file, self._store.log.chain.end)
                except (DiskFull, OSError) as error:
                    # Sends are refused only when the log gets there.
                    logger.warning("the next file of the commit log cannot be made yet: %s", error)
                    await trio.sleep(PAUSE_FULL_S)

    async def _build_index(self) -> None:
        self._most_behind = max(self._store.index_behind, self._may_be_behind)
        while True:
            busy, self._busy = self._busy, False
            try:
                with resident_only():
                    built = self._index_step(INDEX_STEP_BUSY if busy else INDEX_STEP_IDLE)
            except NotResident as cold:
                await trio.to_thread.run_sync(warm, cold, abandon_on_cancel=True)
                continue
            except DiskFull as error:
                # Messages are stored and read without it; it goes on from where it is when there is room.
                logger.error("the index waits for room: %s", error)
                await trio.sleep(PAUSE_FULL_S)
                built = 0
            self._most_behind = max(self._store.index_behind, self._may_be_behind)
            if not built:
                await trio.sleep(INDEX_PAUSE_DONE_S)
            elif busy:
                await trio.sleep(INDEX_PAUSE_BUSY_S)
            else:
                await trio.lowlevel.checkpoint()

    def _index_step(self, limit: int) -> int:
        """One step of the index; a larger one when it would be further behind than it may be, or than it was."""
        store = self._store
        built = step = store.build_index(limit)
        while step and store.index_behind > self._most_behind:
            step = store.build_index(limit)
            built += step
        return built
