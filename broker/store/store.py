"""The store's public interface: open, put, read, make durable, close.

Sync, one thread; `flush` and `finish_checkpoint` may run elsewhere.

An append goes into the commit log and its consume queue at once; the index follows by `build_index`. A put survives the
death of this process; `flush` makes it survive power loss. The callers choose which of the two they acknowledge.

In Controller mode consumers see no message that ends after `MessageStore.confirmed`: reads for consumers are named
"visible", or get the offset as an argument. The broker itself may read later messages. Messages that it stores because
of them come after them in the log, and are cut off with them.
Neighbours: checkpoint.py (the file), reader.py and query.py (reads), recovery.py, tasks/flush.py (when to make durable,
and in which thread).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from skylark.broker.store.begun import BegunAt
from skylark.broker.store.checkpoint import (
    CheckpointMark,
    CheckpointState,
    LastStop,
    NotedEnd,
    StoreCheckpoint,
    TailSum,
    make_durable,
    mark_pages_lost,
    read_abort,
    remove_abort,
    rocketmq_times,
    write_abort,
)
from skylark.broker.store.clock_steps import BY_CLOCK, LEAST_STEP_MS, ClockSteps
from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.index.index import Index
from skylark.broker.store.inventory import FILE_NAME as INVENTORY
from skylark.broker.store.inventory import Inventory
from skylark.broker.store.log.commitlog import CommitLog, refuse_other_size
from skylark.broker.store.log.log_files import HEAD_BYTES, stored_ms
from skylark.broker.store.log.residency import ask
from skylark.broker.store.log.segment import file_path
from skylark.broker.store.query import KeyQuery, QueryResult, WantedKey, first_store_time, offset_by_time, store_time
from skylark.broker.store.queue.batch_records import Batch, RecordPlace
from skylark.broker.store.queue.consumequeue import ConsumeQueue, QueueWrite
from skylark.broker.store.queue.delay_levels import DEFAULT, DelayLevels
from skylark.broker.store.queue.ends import EndsTable, QueueEnds, read_queue_ends, remove_since, write_queue_ends
from skylark.broker.store.queue.entry import BATCH_ENTRY_BYTES, BLANK_SIZE, ENTRY_BYTES
from skylark.broker.store.queue.entry_repair import mend_block
from skylark.broker.store.queue.queues import Queues
from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.store.reader import Entry, GetResult, GetStatus, first_offset, read_queue, shown_first_offset
from skylark.broker.store.recovery import PagesLost, Progress, Recovery, RecoveryReport, StoreFiles
from skylark.broker.store.restored import RestoredFrom
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.broker.store.sums.derived_sums import DerivedRows, IndexRows, QueueRows, read_sums, write_sums
from skylark.broker.store.sums.sum_files import SumFiles, bases_in
from skylark.broker.store.truncation.intent import resume_truncation
from skylark.broker.store.truncation.saved import Survey, prune, save
from skylark.broker.store.visible import visible_end
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull, OutOfDescriptors, RequestRefused, StoreCorrupt, StoreError, StoreLocked
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.flags import WRAPPED
from skylark.mqcommon.message.layout import MAX_PROPERTIES
from skylark.mqcommon.message.record import BatchHead, decode_record, encode_record, record_physical_offset


class PutResult(NamedTuple):
    """Where a message is. The put is durable when the log is flushed or replicated up to ``end``."""

    physical_offset: int
    queue_offset: int
    end: int
    store_timestamp: int
    #: With this a producer can recall a timed message.
    recall_handle: str = ""


class BatchPutResult(NamedTuple):
    """Where the messages of a batch are; queue offsets count up from ``queue_offset``."""

    physical_offsets: Sequence[int]
    queue_offset: int
    end: int
    store_timestamp: int


class DamagedTail(NamedTuple):
    """The first part of a block, whose bytes differ from the sum of the part in the checkpoint."""

    part: Block
    sum: BlockSum


# How many messages a stop adds to a lagging index: some 500 ms.
CLOSE_CATCH_UP = 200_000
# The most queue entries that may wait in memory while a slow disk delays the checkpoint: 100 MB, and as much again for
# the copies that are being written.
MAX_ENTRIES_WAITING = 5_000_000
# Queues that a checkpoint writes in one step: copying their tails takes the event loop some milliseconds.
QUEUES_AT_ONCE = 1_000
# From this many files on, the whole file system is synced instead: one by one they take six times as long.
SYNC_TOGETHER = 100

# What to do about damage that stops a start.
REMEDY = (
    "To examine the store, run: broker verifyStore {directory}. If another broker of its set has the messages, let this"
    " one copy them again: broker resyncSlave {directory} (in a DLedger group: docs/operate/dledger.md). Otherwise keep"
    " every sound message, and save the damaged bytes: broker verifyStore --repair {directory}"
)

# `entries` reads at most this many bytes of messages from the bucket at once.
OLDER_BYTES = 1 << 20
_BLANK_ENTRY: Entry = (0, BLANK_SIZE, 0)

QueueStep = tuple[ConsumeQueue, QueueWrite]
_ILLEGAL = 13


@lazy_dataclass(frozen=True)
class StoreOptions:
    """Where the store is, and the sizes of its files in bytes."""

    directory: str
    commitlog_segment_bytes: int = 1 << 30
    consumequeue_segment_bytes: int = 300_000 * ENTRY_BYTES
    index_slots: int = 5_000_000
    index_capacity: int = 20_000_000
    index_enabled: bool = True
    delay_levels: DelayLevels = DEFAULT
    batchqueue_segment_bytes: int = 300_000 * BATCH_ENTRY_BYTES


class MessageStore:
    """A store. `open` recovers it if needed; after `close` the next `open` has nothing to recover."""

    def __init__(self, fs: FileSystem, options: StoreOptions, clock: Clock, store_host: bytes) -> None:
        # CPython keeps at most 29 attributes in an object. More would all be in a dict, and slow down each put.
        directory = options.directory
        self._fs = fs
        self.options = options
        self._clock = clock
        self._host = store_host
        self._make_files()
        #: The tags codes of queue entries.
        self.tag_codes = TagCodes(options.delay_levels)
        # Queues for which held pulls may wait and that got messages since the owner of the pulls last looked.
        self.arrived: set[ConsumeQueue] = set()
        #: Up to where the log is confirmed; None without Controller mode.
        self.confirmed: Callable[[], int] | None = None
        #: Messages that were put, their bytes, and messages that came from a master as bytes of its log.
        self.puts = 0
        self.put_bytes = 0
        self.copies = 0
        #: Whether the store lacks queues whose messages all came before its log.
        self.begun = BegunAt(fs, directory)
        #: Which manifest of a bucket the store was made from.
        self.restored = RestoredFrom(fs, directory)
        #: How the clock was set while this store is open; `check_clock` notes that.
        self.clock_steps = ClockSteps()
        # --- how far the store is on disk. The first two are set when the store is opened.
        self._checkpoint: StoreCheckpoint
        #: What must be there at the next start.
        self.inventory: Inventory
        self._ends = EndsTable()
        # When the last message was stored, and when the last message on disk was stored (ms).
        self._last_timestamp = 0
        self._flushed_timestamp = 0
        # Whether a sync failed: then it is unknown which bytes are on disk, so none may be called durable any more.
        self._has_failed = False
        self._ends_noted_to = 0
        self._entries_written = 0
        #: Why block sums could not be written to disk; "" if they could. The next checkpoint tries again.
        self.sums_unwritten = ""
        #: The end of the log of the last checkpoint, if the start has found other bytes there than were written.
        self.damaged_tail: DamagedTail | None = None

    def _make_files(self) -> None:
        """Make the objects for log, queues and index, as they are before any file is read."""
        fs, options, directory = self._fs, self.options, self.options.directory
        self.log = CommitLog(fs, f"{directory}/commitlog", options.commitlog_segment_bytes)
        #: The sums of the log's blocks on disk.
        self.sum_files = SumFiles(
            fs,
            directory,
            self.log.sums,
            options.commitlog_segment_bytes,
            lambda bases: self.inventory.forget_sums(bases),
        )
        self.queues = Queues(
            fs,
            f"{directory}/consumequeue",
            options.consumequeue_segment_bytes,
            self._host,
            f"{directory}/batchconsumequeue",
            options.batchqueue_segment_bytes,
            options.delay_levels,
            partial(mend_block, self.log),
        )
        self.index = Index(
            fs, f"{directory}/index", options.index_slots, options.index_capacity, enabled=options.index_enabled
        )

    def _close_files(self) -> None:
        self.queues.close()
        self.index.close()
        self.log.close()

    def open(self, progress: Progress = lambda line: None) -> RecoveryReport:
        """Lock the directory and recover. Raises StoreLocked, StoreCorrupt or DiskFull.

        ``progress`` gets one line per second while that runs.
        """
        fs, directory = self._fs, self.options.directory
        fs.mkdirs(directory)
        try:
            self._lock = fs.lock(f"{directory}/lock")
        except StoreLocked:
            raise StoreLocked(
                f"store {directory} is open in another broker; stop that one or set another storePathRootDir"
            ) from None
        try:
            report = self._recover(progress)
        except BaseException:
            self._lock.close()
            raise
        return report

    def _recover(self, progress: Progress) -> RecoveryReport:
        fs, directory = self._fs, self.options.directory
        self.begun.load()
        self.restored.load()
        self._checkpoint = StoreCheckpoint(fs, f"{directory}/checkpoint")
        self.inventory = Inventory(fs, directory)
        state = self._checkpoint.state
        ours = state.log_offset is not None
        refuse_other_size(fs, self.log.chain.directory, self.options.commitlog_segment_bytes, ours=ours)
        # Before anything is written: the checkpoint of this start will say that it keeps the sums.
        are_stale = not state.keeps_sums and self.sum_files.drop_all()
        # Without the abort file (a full disk had no room for it) the checkpoint shows whether the store was closed.
        last_stop = read_abort(fs, directory)
        if last_stop is LastStop.CLEAN and self._checkpoint.state.crashed:
            last_stop = LastStop.POWER_LOSS
        try:
            recovery, report = self._recover_after(last_stop, progress)
        except PagesLost as lost:
            progress("bytes that the killed broker had written are gone: recovering as after a power loss")
            # Also if this start is killed while it does that.
            mark_pages_lost(fs, directory)
            self._close_files()
            self._make_files()
            recovery, report = self._recover_after(LastStop.POWER_LOSS, progress)
            if not report.torn_reason:
                report.torn_file, report.torn_reason = lost.file, lost.reason
        self._last_timestamp = self._flushed_timestamp = recovery.last_timestamp
        self.log.bodies_only_from = report.scanned_from
        is_unchanged = last_stop is LastStop.CLEAN and not self._checkpoint.state.used_by_rocketmq
        self._take_sums(read_sums(fs, directory), is_unchanged=is_unchanged)
        report.ahead_ms = self.ahead_ms
        report.sums_dropped = "another version has used the store" if are_stale else self._load_sums(report, state)
        self._take_tail(report, state)
        write_abort(fs, directory)
        # From here on the checkpoint, too, shows a stop that is not clean.
        self._ends.replace(self.queues.ends())
        try:
            self.checkpoint(with_ends=True)
        except (DiskFull, OSError) as error:
            if not ours:
                raise  # without a checkpoint the next start would take the store for RocketMQ's
            # Reads work without the entries on disk, and the next checkpoint tries again.
            report.unwritten = str(error)
        return report

    def _recover_after(self, last_stop: LastStop, progress: Progress) -> tuple[Recovery, RecoveryReport]:
        fs, directory = self._fs, self.options.directory
        if last_stop is not LastStop.KILLED:
            remove_since(fs, directory)
        # Finish an interrupted truncation before anything is read: until then log and queues do not agree.
        self.index.load()
        resume_truncation(fs, directory, self._checkpoint, self.log, self.sum_files, self.queues, self.index)
        state = self._checkpoint.state
        self.log.chain.load(state.log_durable_to)
        if not state.used_by_rocketmq:
            self._refuse_lost_files(self.inventory.log_start)
        if self.log.chain.segments:
            # A kill may have come between the removal of a file and the sync of its directory. A later power loss must
            # not bring the file back: the noted ends of queues rely on that.
            fs.fsync_dir(self.log.chain.directory)
        recovery = Recovery(
            StoreFiles(self.log, self.queues, self.tag_codes, self.index),
            self._clock,
            progress,
            note_ends=partial(write_queue_ends, fs, directory),
            write_queues=self._write_all_queues,
            keep=self._keep_tail,
            remedy=REMEDY.format(directory=directory),
        )
        return recovery, recovery.run(state, last_stop, read_queue_ends(fs, directory))

    def _load_sums(self, report: RecoveryReport, state: CheckpointState) -> str:
        """Read the block sums; returns why some were dropped. ``state``: the checkpoint as the last run left it."""
        chain = self.log.chain

        def read(block: Block) -> bytes:
            return chain.read_file(block.start, block.size)

        bases = {segment.base for segment in chain.segments}
        expected = self.inventory.sums & bases
        report.sums_lost = sorted(expected.difference(bases_in(self._fs, self.options.directory)))
        dropped = self.sum_files.load(bases, self.log.end, read, may_be_cut=state.used_by_rocketmq)
        self.sum_files.lost = sorted({*report.sums_lost, *expected.intersection(self.sum_files.damaged)})
        return dropped

    @property
    def sums_lost(self) -> list[int]:
        """The log files that lack sums since the start: their files of sums were gone, or damaged."""
        return [base for base in self.sum_files.lost if base >= self.log.start and self.log.sums.lacks(base)]

    def _take_tail(self, report: RecoveryReport, state: CheckpointState) -> None:
        """Find out from where on the end of the log is as it was written, so that its blocks may be sealed."""
        log, offset, tail = self.log, state.log_offset, state.tail
        sums = log.sums
        sums.ours_from = sums.next_to_seal = sums.first_block_after(log.end)
        # A program that has used the store since may have cut the log there.
        if tail is None or state.used_by_rocketmq or offset is None or not log.start <= offset <= log.end:
            return
        block = sums.block_at(offset)
        try:
            data = log.chain.read_file(block.start, offset - block.start)
        except OSError:
            data = b""
        if len(data) < offset - block.start or large_crc32(data) != tail.crc:
            self.damaged_tail = DamagedTail(Block(block.start, offset - block.start), BlockSum(tail.crc, False))
            return
        # The recovery has read all records after ``offset``. After a kill the page cache has what the process wrote.
        sums.ours_from = tail.ours_from if report.last_stop is LastStop.KILLED else block.start
        newest = next(sums.newest(), None)
        sums.next_to_seal = min(max(sums.ours_from, newest.end if newest else 0), block.start)

    def _tail_sum(self, end: int) -> TailSum | None:
        """What is known of the block in which the log ended at ``end``. For any thread."""
        sums = self.log.sums
        start = sums.block_at(end).start
        segment = self.log.chain.at(start)
        if start < sums.ours_from or segment is None:
            return None
        try:
            if not segment.file.resident(start - segment.base, end - start):
                return None  # the disk may have changed the bytes since they were written
            with memoryview(segment.file.view) as view:
                return TailSum(sums.ours_from, large_crc32(view[start - segment.base : end - segment.base]))
        except (ValueError, OSError):  # the map is closed: the cleaner has removed the file
            return None

    def _keep_tail(self, start: int, end: int) -> str:
        """Save these bytes of the log; returns where. DiskFull, OSError."""
        survey = Survey(self.log.chain.read_file, start, end, self.log.start, self.log.chain.segment_bytes)
        path = save(self._fs, self.options.directory, survey, start, end)
        prune(self._fs, self.options.directory)
        return path

    def _refuse_lost_files(self, start: int | None) -> None:
        """StoreCorrupt if the log, which started at ``start`` at the latest, starts later."""
        chain = self.log.chain
        if start is not None and (not chain.segments or chain.start > start):
            base = start // chain.segment_bytes * chain.segment_bytes
            raise StoreCorrupt(
                file_path(chain.directory, base),
                0,
                "the file is missing, and this broker has not cleaned it up. Put it back, or do without its messages: "
                f"broker verifyStore --repair {self.options.directory}. If RocketMQ's broker cleaned it up, remove "
                f"{self.options.directory}/{INVENTORY}",
            )

    def close(self) -> str:
        """Make everything durable, write a clean checkpoint, and unlock the directory.

        Returns "", or why the next start must still read the end of the log: on a full disk, for example, queue entries
        cannot be written.

        After a failed sync no checkpoint is written, and the store is only closed. A later sync could succeed although
        the kernel has dropped the bytes of the failed one, so nothing can be called durable any more.
        """
        try:
            if not self._has_failed:
                with suppress(DiskFull):
                    self.build_index(CLOSE_CATCH_UP)
                self.checkpoint(with_ends=True, clean=True)
                with suppress(DiskFull, OSError):  # without them the scrub compares more with the log
                    for file in self.index.files[-1:]:
                        # Slots that have a sum were not changed: a sum of what is in memory now could hide damage.
                        # A stop does not wait for reads. Slots that were changed are in memory, as a rule.
                        is_known = bool(file.sums.suspects or file.sums.sum_of(0).size)
                        if not is_known and file.file.resident(0, file.entries_at):
                            file.add_sums(file.slot_sums())
                    self.write_sums(list(self.queue_sums(self.queues)))
                remove_abort(self._fs, self.options.directory, index_is_complete=not self.index_behind)
        except (DiskFull, OSError) as error:
            return str(error)
        finally:
            self._close_files()
            self._checkpoint.close()
            self._lock.close()
        return ""

    # --- the sums of queues and index

    def _take_sums(self, known: DerivedRows, *, is_unchanged: bool) -> None:
        """``is_unchanged``: they were written by a stop, and nothing has used the store since."""
        for row in known.queues:
            queue = self.queues.find(row.topic, row.queue_id)
            if queue is not None and queue.is_batch == row.is_batch:
                queue.take_sums(row.first, row.rows)
        files = {file.name: file for file in self.index.files}
        for name, first, rows in known.index_files:
            if (file := files.get(name)) is not None:
                file.take_sums(first, rows, may_have_changed=file is self.index.files[-1] and not is_unchanged)

    def queue_sums(self, queues: Iterable[ConsumeQueue]) -> Iterator[QueueRows]:
        """The sums of these queues, for `write_sums`."""
        for queue in queues:
            if (found := queue.sums.rows())[1]:
                yield QueueRows(queue.is_batch, queue.topic, queue.queue_id, *found)

    def write_sums(self, queues: Sequence[QueueRows]) -> None:
        """Write the sums of the queues, and of the index, to disk. Blocks; for any thread, one at a time."""
        index_files = [IndexRows(file.name, *file.sums.rows()) for file in self.index.files[:]]
        write_sums(self._fs, self.options.directory, DerivedRows(queues, index_files))

    # --- small files, see healing/small_files.py

    def is_checkpoint(self, data: bytes) -> bool:
        """Whether ``data`` are what the file `checkpoint` must have. Beside no checkpoint; for any thread."""
        return self._checkpoint.is_whole(data)

    def write_checkpoint_again(self) -> None:
        """Write the last checkpoint once more. Blocks; beside no checkpoint. StoreError as in `flush`."""
        with self._must_succeed():
            self._checkpoint.write_again()

    def is_abort(self, data: bytes) -> bool:
        """Whether ``data`` are what the file `abort` of an open store must have."""
        return data.decode("ascii", "replace").strip() == self._fs.boot_id()

    def write_abort_again(self) -> None:
        """Mark the store as open once more. Blocks."""
        write_abort(self._fs, self.options.directory)

    # --- writing

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> PutResult:
        """Append one message. RequestRefused when it is too large for the files, DiskFull when there is no room."""
        queue = self.queues.get(topic, queue_id)
        size = queue.record_overhead + len(born_host) + len(body) + len(properties)
        log = self.log
        if size > log.max_record_bytes or len(properties) > MAX_PROPERTIES:
            raise self._too_large(size, len(properties))
        physical = log.reserve(size)
        now = self._now(topic)
        queue_offset = queue.next_offset
        log.write(
            physical,
            encode_record(
                queue.magic,
                queue.topic_tail,
                queue.queue_id,
                queue_offset,
                physical,
                body,
                properties,
                flag,
                sys_flag | queue.sys_flag,
                born_timestamp,
                born_host,
                now,
                self._host,
                reconsume_times,
                prepared_transaction_offset,
            ),
        )
        codes = self.tag_codes
        code = codes.of_waiting(topic, properties, now) if queue.is_delayed else codes.of(properties)
        queue.append(physical, size, code, now, 1)
        self._written(queue, 1, size)
        return PutResult(physical, queue_offset, physical + size, now)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch: Batch,
        *,
        suffix: bytes = b"",
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> BatchPutResult:
        """Append the messages of ``batch`` to one queue, all or none; each gets a record of its own.

        ``suffix``: encoded properties that are added after each message's own.
        """
        queue = self.queues.get(topic, queue_id)
        assert not queue.is_batch, "its batches go to put_inner"
        overhead = queue.record_overhead + len(born_host) + len(suffix)
        total = self._checked_bytes(batch, overhead, len(suffix))
        log = self.log
        start = log.reserve(total)
        now = self._now(topic)
        queue_offset = queue.next_offset
        head = BatchHead(queue.magic, queue_id, sys_flag, born_timestamp, born_host, now, self._host, reconsume_times)
        place = RecordPlace(head, queue.topic_tail, suffix, overhead, start, queue_offset, queue.is_delayed)
        codes = self.tag_codes
        made = batch.make(place, partial(codes.of_waiting, topic, stored_ms=now) if queue.is_delayed else codes.of)
        log.write_batch(start, made.records)
        queue.append_many(made.entries)
        self._written(queue, len(batch), total)
        return BatchPutResult(made.physical_offsets, queue_offset, start + total, now)

    def check_batch(self, topic: str, queue_id: int, batch: Batch, *, suffix: bytes, born_host: bytes) -> None:
        """RequestRefused when `put_batch` would refuse the batch because it is too large; nothing is stored."""
        overhead = self.queues.get(topic, queue_id).record_overhead + len(born_host) + len(suffix)
        self._checked_bytes(batch, overhead, len(suffix))

    def put_inner(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        messages: int,
        properties: bytes,
        *,
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> BatchPutResult:
        """Append ``batch``, the body of a batch send with this number of messages, to a batch queue as one record.

        ``properties``: of the batch, with INNER_NUM, and with TAGS if all messages have that tag.
        """
        queue = self.queues.get(topic, queue_id)
        assert queue.is_batch, "plain queues have no entries for batches"
        queue_offset = queue.next_offset
        properties += b"INNER_BASE\x01%d\x02" % queue_offset
        size = queue.record_overhead + len(born_host) + len(batch) + len(properties)
        log = self.log
        if size > log.max_record_bytes or len(properties) > MAX_PROPERTIES:
            raise self._too_large(size, len(properties))
        physical = log.reserve(size)
        now = self._now(topic)
        sys_flag |= WRAPPED
        record = encode_record(
            queue.magic,
            queue.topic_tail,
            queue_id,
            queue_offset,
            physical,
            batch,
            properties,
            0,
            sys_flag,
            born_timestamp,
            born_host,
            now,
            self._host,
            reconsume_times,
            0,
        )
        log.write(physical, record)
        queue.append(physical, size, self.tag_codes.of_batch(properties, batch, sys_flag), now, messages)
        self._written(queue, messages, size)
        return BatchPutResult([physical] * messages, queue_offset, physical + size, now)

    def follow_time(self, timestamp: int) -> None:
        """Later messages get store times at or after ``timestamp``, the store time of a message from a master."""
        self._last_timestamp = max(self._last_timestamp, timestamp)

    @property
    def now_ms(self) -> int:
        """The time of the clock, which store times may be ahead of."""
        return self._clock.now_ms()

    @property
    def ahead_ms(self) -> int:
        """How far the store time of the newest message is in the future: the clock was set back since."""
        return max(self._last_timestamp - self.now_ms, 0)

    def check_clock(self) -> None:
        """Note in `clock_steps` whether the clock was set since the last call."""
        steady_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        # If the process stood still between the two reads, it would see a false step; the next call checks again.
        if self._clock.monotonic_ms() - steady_ms < LEAST_STEP_MS // 2:
            self.clock_steps.see(now_ms, steady_ms, self.log.end)

    @property
    def index_behind(self) -> int:
        """Bytes of the log whose messages the index does not hold yet."""
        return max(self.log.end - self.index.position, 0)

    def delete_topic(self, topic: str, before: int | None = None) -> None:
        """Forget the queues of ``topic``; its messages stay in the log until that is cleaned.

        With ``before``, only queues whose messages are all before this offset of the log are forgotten: other queues
        belong to a topic that was made again after that.
        The caller must write a checkpoint next. Recovery reads the log only after it, so the queues do not come back.
        The checkpoint also removes the queues' files, unless `Queues.remove_files` did it before.
        """

        def is_wanted(queue: ConsumeQueue) -> bool:
            return before is None or self._is_before(queue, before)

        self.arrived.difference_update(self.queues.remove(topic, is_wanted))

    def has_queues_before(self, topic: str, before: int) -> bool:
        """Whether `delete_topic` with ``before`` would forget a queue."""
        return any(self._is_before(queue, before) for queue in self.queues.of_topic(topic))

    def _is_before(self, queue: ConsumeQueue, before: int) -> bool:
        _, physical, size = queue.last_entry()
        # Of a queue whose messages have all expired, the log's start tells whether they were of the old topic.
        return physical < before if size else self.log.start < before

    # --- reading

    @property
    def safe_end(self) -> int:
        """Up to where the log is on disk, and in Controller mode confirmed.

        An offset that slaves copy before they have the log, or that the next start reads, may be saved only if it does
        not depend on later bytes of the log.
        """
        return self.log.flushed if self.confirmed is None else min(self.log.flushed, self.confirmed())

    def get(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, wanted: Filter = ALL
    ) -> GetResult:
        """Messages of a queue; see `read_queue`."""
        return read_queue(self.log, self.queues.find(topic, queue_id), offset, max_count, max_bytes, wanted)

    def entries(self, queue: ConsumeQueue, offset: int, count: int) -> list[Entry]:
        """Up to ``count`` entries of a queue whose messages wait, from ``offset`` on; none if the messages are gone.

        Entries of messages in the bucket are made from the messages, blank ones where there is none. InBucket as in
        `ask`.
        """
        if offset >= queue.min_offset:
            return list(islice(queue.entries(offset, count), count))
        found = read_queue(self.log, queue, offset, count, OLDER_BYTES)
        made: list[Entry] = []
        if found.status is GetStatus.FOUND:
            for at in record_starts(found.records):
                record = decode_record(found.records, at, check_crc=False)
                made += [_BLANK_ENTRY] * (record.queue_offset - offset - len(made))
                made.append((record.physical_offset, record.size, self.tag_codes.of_record(record)))
        return made

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message will get."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    def readable_end(self, topic: str, queue_id: int) -> int:
        """As `max_offset`, without messages after a seal."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.next_offset if queue.sealed_at is None else queue.sealed_at

    def visible_end(self, topic: str, queue_id: int) -> int:
        """As `readable_end`, without messages that are not confirmed."""
        queue = self.queues.find(topic, queue_id)
        if queue is None or self.confirmed is None:
            return self.readable_end(topic, queue_id)
        return min(visible_end(self.log, queue, self.confirmed()), self.readable_end(topic, queue_id))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the oldest message that is still stored, or in the bucket. InBucket as in `ask`."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else first_offset(self.log, queue)

    def shown_min_offset(self, topic: str, queue_id: int) -> int:
        """As `min_offset`, for figures: the queue's start in the store as long as the bucket's is not known."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else shown_first_offset(self.log, queue)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "LOWER") -> int:
        """The first visible offset stored at or after a time, or (UPPER) the last one stored at or before it."""
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return 0
        end = self.visible_end(topic, queue_id)
        return offset_by_time(self.log, queue, end, timestamp_ms, upper=boundary == "UPPER")

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored (ms); -1 if there is none."""
        queue = self.queues.find(topic, queue_id)
        return -1 if queue is None else store_time(self.log, queue, offset)

    def first_store_time(self, topic: str, queue_id: int) -> int:
        """When the oldest message of a queue was stored (ms); -1 when there is none."""
        queue = self.queues.find(topic, queue_id)
        return -1 if queue is None else first_store_time(self.log, queue)

    def earliest_store_time(self) -> int:
        """When the oldest message of the log, or of the bucket, was stored (ms); -1 when there is none."""
        log = self.log
        if log.older is not None and (older_ms := log.older.earliest_ms) > 0:
            return older_ms
        time_ms = stored_ms(log.glance(log.start, HEAD_BYTES)) if log.end - log.start >= HEAD_BYTES else None
        return -1 if time_ms is None else time_ms

    def record_at(self, physical_offset: int) -> bytes | None:
        """The message that starts at ``physical_offset``, in the store or in the bucket; None when no message does.

        InBucket as in `ask`.
        """
        log = self.log
        if log.older is not None and 0 <= physical_offset < log.start:
            return ask(log.older.record_at, physical_offset)
        raw = log.record_at(physical_offset)
        # The bytes of a message's body may look like a record.
        return raw if raw is not None and record_physical_offset(raw) == physical_offset else None

    def visible_record_at(self, physical_offset: int) -> bytes | None:
        """As `record_at`, without messages that consumers do not see yet."""
        raw = self.record_at(physical_offset)
        if raw is None or self.confirmed is None or physical_offset + len(raw) <= self.confirmed():
            return raw
        return None

    def start_query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        max_bytes: int = 1 << 24,
        *,
        unique: bool = False,
    ) -> KeyQuery:
        """Search by key (``unique``: by unique key only), newest first, up to ``max_num`` and ``max_bytes``."""
        wanted = WantedKey(topic, key, max_num, begin_ms, end_ms, max_bytes, unique)
        return KeyQuery(self.log, self.index, self.build_index, wanted, self.confirmed)

    def query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, *, unique: bool = False
    ) -> QueryResult:
        """`start_query` with all its steps at once: not for the event loop."""
        search = self.start_query(topic, key, max_num, begin_ms, end_ms, unique=unique)
        while search.step():
            pass
        return search.result

    def build_index(self, limit: int) -> int:
        """Let the index catch up by at most ``limit`` messages; returns how many."""
        done = 0
        # A step may find only the filler at the end of a file, and no message.
        while done < limit and self.index.position < self.log.end and not self.index.is_held:
            done += self.index.build(self.log, limit - done)
        return done

    # --- durability

    def flush(self) -> int:
        """Make the log durable up to its present end, and return this offset. Runs in any thread, one at a time.

        Raises StoreError on failure: what is on disk is then unknown, and the store can only be closed. Raises
        OutOfDescriptors if the call can be repeated.
        """
        timestamp = self._last_timestamp
        with self._must_succeed():
            reached = self.log.flush()
        # Before the caller answers the sends that waited for it.
        self._checkpoint.note_flushed(reached)
        self._flushed_timestamp = timestamp
        return reached

    @property
    def durable_end(self) -> int:
        """All of the log before this is on disk, and so are the queue and index entries of its messages."""
        return self._checkpoint.state.log_offset or 0

    @property
    def entries_waiting(self) -> int:
        """Upper bound of the queue entries that are in memory only: those added since the last checkpoint."""
        return self.puts + self.copies - self._entries_written

    @property
    def ends_noted_to(self) -> int:
        """Where `durable_end` was when the ends of the queues were last noted on disk."""
        return self._ends_noted_to

    def begin_checkpoint(self, *, with_ends: bool = False, as_flushed: bool = False) -> CheckpointMark:
        """Begin a checkpoint: fix the offset that it will claim.

        The caller then repeats `take_queues`, `write_queues` and `queues_written` until there is nothing to take, and
        calls `finish_checkpoint`. It has steps because the event loop owns the queues and a thread writes their files.

        The order of the steps is the safety argument. The mark is taken first. Then every queue that was touched before
        the mark is written and synced, then log and index are synced, and the checkpoint file comes last. So at any
        crash the file on disk claims only what is durable; recovery takes the rest from the log. Messages that arrive
        meanwhile may get to disk early, which is harmless: recovery checks them against the log. A checkpoint that
        fails at any step writes nothing to the file; `give_up_checkpoint` marks its queues as touched again, so that
        the next checkpoint covers them.

        ``with_ends``: also write the ends of all queues, so that a start notices lost ones.
        ``as_flushed``: cover only what is on disk of the log already, instead of flushing it.
        """
        end, timestamp = self.log.end, self._last_timestamp
        if as_flushed:
            end, timestamp = self.log.flushed, self._flushed_timestamp
        head = (self.log.start, self.index.ends()) if with_ends else None
        gone, emptied = self.queues.take_removed()
        left, entries, index_state = self.queues.dirty_count, self.puts + self.copies, self.index.state()
        return CheckpointMark(end, timestamp, left, entries, gone, emptied, head, index_state, noted_to=self.log.end)

    def take_queues(self, mark: CheckpointMark, limit: int = QUEUES_AT_ONCE) -> list[QueueStep]:
        """Copies of the tails of some queues, to be written; empty when ``mark`` needs no more."""
        queues = self.queues.take_dirty(min(limit, mark.left))
        mark.left = mark.left - len(queues) if queues else 0
        if not queues:
            self._entries_written = mark.entries
        mark.noted_to = self.log.end
        mark.noted += [NotedEnd(queue, queue.min_offset, queue.next_offset) for queue in queues]
        return [(queue, queue.unwritten()) for queue in queues]

    def write_queues(self, steps: Sequence[QueueStep]) -> None:
        """Write the copies, and make them durable. Runs in any thread, one at a time, after `Queues.remove_files`.

        Raises DiskFull or OSError if they cannot be written, StoreError as in `flush`. Call `give_up_checkpoint` then.
        """
        # Written, then synced, and only after that dropped from memory (`queues_written`): a failure leaves all entries
        # in the tails, and the next checkpoint writes them to the same places once more.
        together = len(steps) >= SYNC_TOGETHER
        for _, write in steps:
            files = write.run(self._fs)
            try:
                if not together:
                    with self._must_succeed():
                        for file in files:
                            file.sync()
            finally:
                for file in files:
                    file.close()
        if together:
            with self._must_succeed():
                self._fs.sync_all(self.options.directory)

    def queues_written(self, steps: Sequence[QueueStep]) -> None:
        """Drop the entries that `write_queues` has written from memory."""
        for queue, write in steps:
            queue.written(write)

    def ends_now(self) -> QueueEnds:
        """The first and the next offset of each queue, and the last offset in each index file."""
        return QueueEnds(self.log.start, self.queues.ends(), self.index.ends())

    def note_ends(self, ends: QueueEnds) -> None:
        """Write ``ends`` to disk without a checkpoint.

        Needed on a full disk, where no checkpoint can be written: no file of the log may be removed before the ends of
        its queues are noted. All messages that ``ends`` counts must be on disk: a restart reads from the log the
        entries that the files of the queues lack. Runs in any thread, one at a time, and beside no checkpoint.
        """
        self._ends.replace(ends.queues)
        with self._must_succeed():
            write_queue_ends(self._fs, self.options.directory, ends)
        self._ends_noted_to = self.durable_end

    @property
    def last_timestamp(self) -> int:
        """The store time of the newest message, or a later time."""
        return self._last_timestamp

    def mark_now(self) -> CheckpointMark:
        """A mark for `lower_checkpoint`: the log as it is now, and no queue that must be written first."""
        return CheckpointMark(
            log_offset=self.log.end,
            timestamp=self._last_timestamp,
            left=0,
            entries=0,
            gone=[],
            emptied=[],
            ends_head=None,
            index_state=self.index.state(),
            noted_to=self.log.end,
        )

    def lower_timestamps(self, timestamp: int) -> None:
        """Lower the times of the last message to ``timestamp``: the log was truncated."""
        self._last_timestamp = min(self._last_timestamp, timestamp)
        self._flushed_timestamp = min(self._flushed_timestamp, timestamp)

    def lower_checkpoint(self, mark: CheckpointMark, ends: QueueEnds) -> None:
        """Write the checkpoint of a truncated log: the one on disk still covers messages that are gone.

        The truncation began with a checkpoint of all queues, so all that ``mark`` and ``ends`` claim is on disk
        already. Runs in any thread, one at a time.
        """
        with self._must_succeed():
            times = rocketmq_times(self.log, mark, clean=False)
            self._checkpoint.write(mark.log_offset, mark.timestamp, times, is_cut=True)
        self.note_ends(ends)

    @contextmanager
    def truncating_files(self) -> Iterator[None]:
        """Steps of a truncation: after an error within, the store can only be closed; a restart does the rest."""
        try:
            yield
        except (OSError, StoreError) as error:
            self._has_failed = True
            text = "the log is truncated only in part, the broker stops; when it starts again it does the rest"
            raise StoreError(f"{text}: {error}") from error

    def give_up_checkpoint(self, mark: CheckpointMark) -> None:
        """Abandon a checkpoint that failed: the next one covers everything in ``mark``."""
        for noted in mark.noted:
            # A topic that was deleted, and made again, has other queues now.
            if self.queues.find(noted.queue.topic, noted.queue.queue_id) is noted.queue:
                self.queues.touch(noted.queue)
        self.queues.put_back_removed(mark.gone, mark.emptied)

    def finish_checkpoint(self, mark: CheckpointMark, *, clean: bool = False) -> None:
        """Make log, index and noted ends durable up to ``mark``, then write the checkpoint.

        Raises StoreError and OutOfDescriptors, as `flush`. Call `give_up_checkpoint` then. Runs in any thread, one at a
        time.
        """
        assert not mark.left, "queues of the mark are not written yet"
        ends: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in mark.gone:
            self._ends.drop(topic)
        for queue, low, next_offset in mark.noted:
            if next_offset:  # an empty queue needs no note: it begins at 0 again
                ends.setdefault(queue.topic, {})[queue.queue_id] = low, next_offset
        for topic, by_id in ends.items():
            self._ends.set(topic, by_id)
        with self._must_succeed():
            # With a head `make_durable` writes the ends of all queues; without one, those that changed are added.
            make_durable(self._fs, self.options.directory, self.log, self.index, self._ends, mark)
            if mark.ends_head is None:
                self._ends.add(self._fs, self.options.directory, mark.gone, ends)
            times = rocketmq_times(self.log, mark, clean=clean)
            tail = self._tail_sum(mark.log_offset)
            self._checkpoint.write(mark.log_offset, mark.timestamp, times, clean=clean, tail=tail)
            # An empty log may have no file, which the next start would miss.
            if mark.log_offset > self.log.start:
                self.inventory.note_log_start(lambda: self.log.start)
        if mark.ends_head is not None:
            self._ends_noted_to = mark.log_offset
            self._write_sums()

    def _write_sums(self) -> None:
        # Outside of what must succeed: sums that get lost are made again by a scrub.
        had_changed = self.log.sums.has_changed
        try:
            self.sum_files.write()
            if had_changed:
                self.inventory.note_sums(bases_in(self._fs, self.options.directory))
            self.sums_unwritten = ""
        except (DiskFull, OSError) as error:
            self.sums_unwritten = str(error)

    def checkpoint(self, *, with_ends: bool = False, as_flushed: bool = False, clean: bool = False) -> None:
        """All steps of a checkpoint at once, as `begin_checkpoint` describes them; ``clean``: the last one of a stop.

        Blocks; only while nothing else uses the store. Raises as `write_queues`: no checkpoint was written then.
        """
        mark = self.begin_checkpoint(with_ends=with_ends, as_flushed=as_flushed)
        try:
            self.queues.remove_files()  # of topics that were deleted
            while steps := self.take_queues(mark):
                self.write_queues(steps)
                self.queues_written(steps)
            self.finish_checkpoint(mark, clean=clean)
        except BaseException:
            self.give_up_checkpoint(mark)
            raise

    def _write_all_queues(self) -> None:
        """Write the queues' entries to their files, without a checkpoint: recovery makes room in memory."""
        while queues := self.queues.take_dirty(QUEUES_AT_ONCE):
            steps = [(queue, queue.unwritten()) for queue in queues]
            self.write_queues(steps)
            self.queues_written(steps)

    @contextmanager
    def _must_succeed(self) -> Iterator[None]:
        """After an error within, the store can only be closed: a page whose fsync failed may be dropped by the system.

        OutOfDescriptors is no such error: a file could not be opened, and a later sync of that file covers its pages.
        """
        try:
            yield
        except OutOfDescriptors:
            raise
        except OSError as error:
            self._has_failed = True
            raise StoreError(f"the store cannot be made durable, the broker stops: {error}") from error

    # --- inside

    def _now(self, topic: str) -> int:
        # Store times never go back, not even over a restart, so that a queue can be searched by time. Messages that
        # wait for a time are not searched for by time: their due times are counted from the clock.
        now = self._clock.now_ms()
        if now < self._last_timestamp:
            return now if topic in BY_CLOCK else self._last_timestamp
        self._last_timestamp = now
        return now

    def _checked_bytes(self, batch: Batch, overhead: int, suffix_length: int) -> int:
        """The bytes of all records of ``batch`` together. RequestRefused when they do not fit into the log's files."""
        total, most_properties = batch.total_bytes(overhead), batch.most_properties + suffix_length
        if total > self.log.max_record_bytes or most_properties > MAX_PROPERTIES:
            raise self._too_large(total, most_properties)
        return total

    def _too_large(self, size: int, properties_size: int) -> RequestRefused:
        return RequestRefused(
            _ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"properties: {properties_size} bytes, at most {MAX_PROPERTIES}; "
            f"record: {size} bytes, at most {self.log.max_record_bytes}",
        )

    def _written(self, queue: ConsumeQueue, count: int, size: int) -> None:
        self.puts += count
        self.put_bytes += size
        if not queue.dirty:
            self.queues.touch(queue)
        if queue.is_awaited:
            self.arrived.add(queue)
