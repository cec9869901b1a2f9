"""The loops that make the store durable; fsync runs in a thread, one at a time.

ASYNC_FLUSH: flush every ``flushIntervalCommitLog`` if enough pages are new, else after the thorough interval.
SYNC_FLUSH: flush as soon as a send waits; one fsync serves all sends that wait when it starts.
A checkpoint follows each second, so that recovery has little of the log to read again.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.checkpoint import CheckpointMark
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.broker.store.store import MAX_ENTRIES_WAITING, MessageStore
from skylark.broker.tasks.slow_flush import SlowFlushes
from skylark.broker.writing.admission import Admission, Reason
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.errors import DiskFull, FileClosed, OutOfDescriptors, StoreError
from skylark.mqcommon.metrics.metric import Histogram
from skylark.mqcommon.signal import Signal

logger = logging.getLogger(__name__)

PAGE_BYTES = 4096
CHECKPOINT_INTERVAL_S = 1.0
# In one second some 100,000 messages can arrive. The last quarter of a file of 1 GiB takes seconds to fill.
WATCH_INTERVAL_S = 0.1
# Noting the ends of 10,000 queues takes some 10 ms.
ENDS_INTERVAL_S = 10.0
# The index uses idle time: large steps while there are no requests, and small steps (some 5 % of the loop's time) while
# there are requests, so that it always makes progress. Messages can arrive faster than small steps index them. So once
# the index is this far behind (some million messages, a second's work), it takes the time it needs not to lag further.
INDEX_STEP_IDLE = 200
INDEX_STEP_BUSY = 100
MAX_INDEX_BEHIND_BYTES = 256 * 1024 * 1024
# A slave that catches up copies the log first and indexes later.
MAX_SLAVE_INDEX_BEHIND_BYTES = 4 * 1024 * 1024 * 1024
INDEX_PAUSE_BUSY_S = 0.002
# The pause after a step that has indexed all that is there. It is longer, so that more messages share the next step.
INDEX_PAUSE_NEAR_S = 0.01
INDEX_PAUSE_DONE_S = 0.05
# While nothing comes, each pause is twice as long as the pause before, up to this.
INDEX_PAUSE_IDLE_S = 0.2
# The pause when the disk is full.
PAUSE_FULL_S = 10.0
# The pause when no file descriptor is left.
PAUSE_DESCRIPTORS_S = 1.0


class Flusher(Part):
    """Flushes one store."""

    def __init__(
        self,
        store: MessageStore,
        commits: LogWaits,
        admission: Admission,
        options: BrokerOptions,
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        """``settle`` returns when all known topics are durable; StoreError if they cannot be made durable."""
        self._store = store
        self._commits = commits
        self._admission = admission
        self._options = options
        self._settle = settle
        #: How long flushes took.
        self.times_ms = Histogram()
        self._slow = SlowFlushes()
        # Held during an fsync of the log: one at a time.
        self._flushing = trio.Lock()
        # Held while files of queues or the index are written, synced, moved or removed.
        self.one_at_a_time = trio.Lock()
        #: Held while damaged bytes of the log are written again.
        self.repairing = trio.Lock()
        self._waiting = Signal()
        self._wants_file = Signal()
        self._busy = False
        self._may_be_behind = MAX_INDEX_BEHIND_BYTES
        self._most_behind = 0
        self._next_ends = 0.0
        # Why known topics could not be made durable in the last flush; "" if they could.
        self._unsettled = ""
        # Why block sums could not be written at the last checkpoint; "" if they could.
        self._sums_unwritten = ""

    @property
    def unwritten(self) -> str:
        """Why queue entries cannot be written and stay in memory; "" if they can."""
        return self._admission.why(Reason.ENTRIES_UNWRITTEN)

    @property
    def disk_fault(self) -> str:
        """Why the disk counts as stuck; "" if it does not."""
        return self._slow.stuck(trio.current_time())

    @property
    def is_held_up(self) -> bool:
        """Whether the disk takes long for a flush at the moment."""
        return self._slow.is_long(trio.current_time())

    @property
    def slowest_ms(self) -> int:
        """The longest flush of the last minutes."""
        return round(self._slow.slowest_s(trio.current_time()) * 1_000)

    def after_turn(self) -> None:
        """Start a flush if a send waits for one."""
        self._busy = True
        if self._commits:
            self._waiting.set()

    async def flush(self) -> None:
        """Make the log durable now, and answer the sends that waited for it."""
        # Group commit: sends that come while an fsync runs wait for the lock, and share the next fsync. ``reached`` is
        # the log's end before the fsync began, so the fsync covers all rows up to ``reached``, and no later rows.
        async with self._flushing:
            start = trio.current_time()
            self._slow.begin(start)
            try:
                reached = await trio.to_thread.run_sync(self._store.flush)
            finally:
                if text := self._slow.end(trio.current_time()):
                    logger.warning(text)
            self.times_ms.add((trio.current_time() - start) * 1_000)
            if not self._commits:
                return
            try:
                # A send may have made its topic. Without the topic the message would be lost, so the topic must be
                # durable first.
                await self._settle()
            except StoreError as error:
                # Log this once and not with each flush: a failed journal stays failed until a restart.
                if str(error) != self._unsettled:
                    logger.error("sends answered FLUSH_DISK_TIMEOUT, their topic may not be on disk: %s", error)
                self._unsettled = str(error)
                self._commits.advance(reached, is_safe=False)
            else:
                self._unsettled = ""
                self._commits.advance(reached)

    async def checkpoint(self, *, note_ends: bool = False) -> None:
        """Make queues and index durable as far as the log is, and write the checkpoint.

        With ``note_ends``, and at least every ENDS_INTERVAL_S, also flush the log and note the ends of the queues. If
        queue entries cannot be written, sends are refused until a later checkpoint can write them. After
        OutOfDescriptors the next checkpoint does the same work.
        """
        async with self.one_at_a_time:
            now = trio.current_time()
            with_ends = note_ends or now >= self._next_ends
            # The mark first, then queues, then log and index, the file last: see `begin_checkpoint`.
            mark = self._store.begin_checkpoint(with_ends=with_ends, as_flushed=not with_ends)
            done = False
            try:
                if await self._write_queues(mark):
                    await self._finish(mark)
                    done = True
            finally:
                # Give up after a cancellation, too: the checkpoint of a stop must cover the queues that this one took.
                if not done:
                    self._store.give_up_checkpoint(mark)
            if done and with_ends:
                self._next_ends = now + ENDS_INTERVAL_S
            elif note_ends and self.unwritten:
                # The disk is full. Only the cleaner can make room, and it needs the noted ends before it may remove
                # files.
                ends = self._store.ends_now()
                await self.flush()
                await trio.to_thread.run_sync(self._store.note_ends, ends)

    async def _write_queues(self, mark: CheckpointMark) -> bool:
        """Write the tails of all queues to their files; returns whether that was possible."""
        store, before = self._store, self.unwritten
        try:
            if store.queues.must_remove_files:
                await trio.to_thread.run_sync(store.queues.remove_files)
            while steps := store.take_queues(mark):
                await trio.to_thread.run_sync(store.write_queues, steps)
                store.queues_written(steps)
            self._admission.allow(Reason.ENTRIES_UNWRITTEN)
        except OutOfDescriptors:
            raise  # the caller tries again soon; sends are taken until too many entries wait
        except (DiskFull, OSError) as error:
            self._admission.refuse(Reason.ENTRIES_UNWRITTEN, str(error))
        if self.unwritten and not before:
            logger.error(
                "sends are refused: entries of consume queues cannot be written: %s; make room or mend the disk,"
                " then sends are accepted again",
                self.unwritten,
            )
        elif before and not self.unwritten:
            logger.info("sends are accepted again: all entries of consume queues are written")
        return not self.unwritten

    async def _finish(self, mark: CheckpointMark) -> None:
        if mark.ends_head is not None:
            # The log must be on disk up to the noted ends: otherwise, after a power loss, a start would report messages
            # as missing.
            await self.flush()
        await trio.to_thread.run_sync(self._store.finish_checkpoint, mark)
        before, self._sums_unwritten = self._sums_unwritten, self._store.sums_unwritten
        if self._sums_unwritten and not before:
            logger.warning("block sums cannot be written, they stay in memory: %s", self._sums_unwritten)

    async def delete_topic(self, topic: str, before: int | None = None) -> int:
        """Remove the topic's queues for good; returns the log's end. ``before`` as in `MessageStore.delete_topic`.

        OSError if files could not be removed, StoreError if the removal is not durable; the next checkpoint tries
        again. The topic may be made again meanwhile: only a checkpoint makes files for its new queues, and the old
        files are gone by then, as both run under `one_at_a_time`.
        """
        async with self.one_at_a_time:
            self._store.delete_topic(topic, before)
            end = self._store.log.raw_end
            await trio.to_thread.run_sync(self._store.queues.remove_files)
        # Remove the topic's queues from the noted ends: otherwise the next start would rebuild them.
        await self.checkpoint(note_ends=True)
        if self.unwritten:
            raise StoreError(f"no checkpoint without the queues of {topic} could be written: {self.unwritten}")
        return end

    def index_may_lag(self, most_bytes: int) -> None:
        """Set how far the index may be behind the log before it takes time from other work."""
        self._may_be_behind = most_bytes

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Let nothing be flushed or repaired, and no file of queues or index be written or removed."""
        async with self.one_at_a_time, self._flushing, self.repairing:
            yield

    def log_ends_at(self, end: int) -> None:
        """Fail the sends that wait for bytes after ``end``, where the log is cut: these no longer count as flushed."""
        self._commits.cut(end)

    async def stop(self) -> None:
        """Make all stored messages durable. If no file descriptor is left, the store's close does it."""
        with suppress(OutOfDescriptors):
            await self.flush()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all loops until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                self._flush_waiting if self._options.flush_disk_type == "SYNC_FLUSH" else self._flush_often
            )
            nursery.start_soon(self._checkpoint_often)
            nursery.start_soon(self._watch)
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
                self.unwritten
                or self._store.queues.must_remove_files
                or log.flushed != done
                or ((log.flushed != log.end or log.sums.has_changed) and trio.current_time() >= self._next_ends)
            ):
                # Read before the checkpoint: bytes that are flushed during it are left to the next checkpoint.
                flushed = log.flushed
                if await self._try(self.checkpoint):
                    done = flushed

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Run ``step``; returns whether it was done. If no file descriptor is left, pause; the caller repeats it."""
        try:
            await step()
        except OutOfDescriptors as error:
            logger.error("nothing can be made durable, next try in %g s: %s", PAUSE_DESCRIPTORS_S, error)
            await trio.sleep(PAUSE_DESCRIPTORS_S)
            return False
        return True

    async def _watch(self) -> None:
        """Look at intervals at what needs no thread: one timer for all of this wakes an idle broker less often."""
        while True:
            await trio.sleep(WATCH_INTERVAL_S)
            self._bound_entries()
            self._expire()
            if self._store.log.wants_file:
                self._wants_file.set()

    def _bound_entries(self) -> None:
        """Refuse sends while too many queue entries wait in memory for a checkpoint."""
        waiting, admission = self._store.entries_waiting, self._admission
        too_many = waiting > MAX_ENTRIES_WAITING
        if too_many == admission.holds(Reason.ENTRIES_WAITING):
            return
        if too_many:
            reason = f"{waiting:,} entries of consume queues wait in memory for a slow disk"
            logger.error("sends are refused: %s", reason)
            admission.refuse(Reason.ENTRIES_WAITING, reason)
        else:
            logger.info("sends are accepted again: the entries of consume queues that waited are written")
            admission.allow(Reason.ENTRIES_WAITING)

    def _expire(self) -> None:
        """Answer the sends that have waited too long, and log an fsync that is slow."""
        if text := self._slow.slow(trio.current_time()):
            logger.warning(text)
        if late := self._commits.expire(trio.current_time()):
            logger.warning("flush took longer than syncFlushTimeout: %d sends answered FLUSH_DISK_TIMEOUT", late)

    async def _make_files(self) -> None:
        while True:
            await self._wants_file.wait()
            try:
                await trio.to_thread.run_sync(self._store.log.make_file, self._store.log.chain.end)
            except (DiskFull, OSError) as error:
                # Sends go on until the current file is full.
                logger.warning("the next file of the commit log cannot be made yet: %s", error)
                await trio.sleep(PAUSE_FULL_S)
            # A signal that was set again during this work would ask for one file too many.
            self._wants_file.clear()

    async def _build_index(self) -> None:
        self._most_behind = max(self._store.index_behind, self._may_be_behind)
        done_pause_s = INDEX_PAUSE_DONE_S
        while True:
            busy, self._busy = self._busy, False
            try:
                with resident_only():
                    built = self._index_step(INDEX_STEP_BUSY if busy else INDEX_STEP_IDLE)
            except NotResident as cold:
                if not await self._warm_for_index(cold):
                    await trio.sleep(PAUSE_FULL_S)
                continue
            except DiskFull as error:
                # Messages are stored and read without the index. It continues at its position when there is room.
                logger.error("the index is not updated until there is room on the disk: %s", error)
                await trio.sleep(PAUSE_FULL_S)
                built = 0
            self._most_behind = max(self._store.index_behind, self._may_be_behind)
            if busy or built:
                done_pause_s = INDEX_PAUSE_DONE_S
            if not built:
                await trio.sleep(done_pause_s)
                done_pause_s = min(2 * done_pause_s, INDEX_PAUSE_IDLE_S)
            elif busy:
                await trio.sleep(INDEX_PAUSE_NEAR_S if built < INDEX_STEP_BUSY else INDEX_PAUSE_BUSY_S)
            else:
                await trio.lowlevel.checkpoint()

    async def _warm_for_index(self, cold: NotResident) -> bool:
        """Read what the index lacks; whether the disk could read it."""
        try:
            await trio.to_thread.run_sync(warm, cold, abandon_on_cancel=True)
        except OSError as error:
            span = cold.spans[0]
            text = "the index is not updated until the disk can read %s at byte %d again: %s"
            logger.error(text, span.file.path, span.at, error)
            return False
        return True

    def _index_step(self, limit: int) -> int:
        """Index up to ``limit`` messages; repeated while the index lags too far, or more than after the last step."""
        store = self._store
        built = step = store.build_index(limit)
        while step and store.index_behind > self._most_behind:
            step = store.build_index(limit)
            built += step
        return built


class PopulatePages(Part):
    """Maps pages ahead of the end of one log, in a thread, so that the event loop writes to them at once."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._wanted = Signal()
        # The work has a thread of its own: it may wait for the disk, and other work must not wait for a thread.
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
