"""The store's public interface: open, put, close; its reads are in reads.py.

Sync, one thread; `flush` and `finish_checkpoint` may run elsewhere.

An append goes into the commit log and its consume queue at once; the index follows by `build_index`. A put survives the
death of this process; `flush` makes it survive power loss. The callers choose which of the two they acknowledge.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from broker.store.abort import read_abort, remove_abort, write_abort
from broker.store.checkpoint import Checkpoint
from broker.store.cut.resume import resume_cut
from broker.store.durable import DurableStore
from broker.store.index.index import Index
from broker.store.inventory import FILE_NAME as INVENTORY
from broker.store.inventory import Inventory
from broker.store.log.commitlog import CommitLog
from broker.store.log.file_size import refuse_other_size
from broker.store.log.segment import NAME_DIGITS
from broker.store.put_result import BatchPutResult, PutResult
from broker.store.queue.batch_records import make_batch_records
from broker.store.queue.consumequeue import ConsumeQueue
from broker.store.queue.delay_levels import DEFAULT, DelayLevels
from broker.store.queue.ends import read_queue_ends, remove_since, write_queue_ends
from broker.store.queue.entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from broker.store.queue.queues import Queues
from broker.store.queue.tags import TagCodes
from broker.store.reads import Reads
from broker.store.recovery import LastStop, Progress, Recovery, RecoveryReport
from mqcommon.clock import Clock
from mqcommon.disk.files import FileSystem
from mqcommon.errors import DiskFull, RequestRefused, StoreCorrupt, StoreLocked
from mqcommon.message.flags import WRAPPED
from mqcommon.message.layout import MAX_PROPERTIES
from mqcommon.message.record import BatchHead, encode_record

# How many messages a stop adds to a lagging index: some 500 ms.
CLOSE_CATCH_UP = 200_000
# The most queue entries that may wait in memory while a slow disk delays the checkpoint: 100 MB, and as much again for
# the copies that are being written.
MAX_ENTRIES_WAITING = 5_000_000
# Names for `MessageStore.refuse`: queue entries cannot be written; too many of them wait.
QUEUES = "queues"
WAITING = "waiting entries"
_ILLEGAL = 13


@dataclass(frozen=True)
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


class MessageStore(DurableStore, Reads):
    """A store. `open` recovers it if needed; after `close` the next `open` has nothing to recover."""

    def __init__(self, fs: FileSystem, options: StoreOptions, clock: Clock, store_host: bytes) -> None:
        directory = options.directory
        super().__init__(
            fs,
            directory,
            CommitLog(fs, f"{directory}/commitlog", options.commitlog_segment_bytes),
            Queues(
                fs, f"{directory}/consumequeue", options.consumequeue_segment_bytes, store_host,
                f"{directory}/batchconsumequeue", options.batchqueue_segment_bytes, options.delay_levels,
            ),
            Index(fs, f"{directory}/index", options.index_slots, options.index_capacity, enabled=options.index_enabled),
        )  # fmt: skip
        self._options = options
        self._clock = clock
        self._host = store_host
        #: The tags codes of queue entries.
        self.tag_codes = TagCodes(options.delay_levels)
        # Queues for which held pulls may wait and that got messages since the owner of the pulls last looked.
        self.arrived: set[ConsumeQueue] = set()
        self.confirmed = None
        self.put_bytes = 0
        # Name of the part that refuses messages -> reason.
        self._refusals: dict[str, str] = {}

    def open(self, progress: Progress = lambda line: None) -> RecoveryReport:
        """Lock the directory and recover. Raises StoreLocked, StoreCorrupt or DiskFull.

        ``progress`` gets one line per second while that runs.
        """
        fs, directory = self._fs, self._options.directory
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
        fs, directory = self._fs, self._options.directory
        self._checkpoint = Checkpoint(fs, f"{directory}/checkpoint")
        ours = self._checkpoint.state.log_offset is not None
        refuse_other_size(fs, self.log.chain.directory, self._options.commitlog_segment_bytes, ours=ours)
        last_stop = read_abort(fs, directory)
        if last_stop is LastStop.CLEAN and self._checkpoint.state.crashed:
            last_stop = LastStop.POWER_LOSS
        if last_stop is not LastStop.KILLED:
            remove_since(fs, directory)
        self.index.load()
        resume_cut(fs, directory, self._checkpoint, self.log, self.queues, self.index)
        self.log.chain.load(self._checkpoint.state.log_offset or 0)
        self.inventory = Inventory(fs, directory)
        if not self._checkpoint.state.used_by_rocketmq:
            self._refuse_lost_files(self.inventory.log_start)
        if self.log.chain.segments:
            # A kill may have come between the removal of a file and the sync of its directory. A later power loss must
            # not bring the file back: the noted ends of queues rely on that.
            fs.fsync_dir(self.log.chain.directory)
        note_ends = partial(write_queue_ends, fs, directory)
        recovery = Recovery(
            self.log, self.queues, self.index, self.tag_codes, self._clock, progress, note_ends, self._write_all_queues
        )
        report = recovery.run(self._checkpoint.state, last_stop, read_queue_ends(fs, directory))
        self._last_timestamp = self._flushed_timestamp = recovery.last_timestamp
        report.ahead_ms = max(recovery.last_timestamp - self._clock.now_ms(), 0)
        write_abort(fs, directory)
        # From here on the checkpoint, too, shows a stop that is not clean.
        self._ends.replace(self.queues.ends())
        try:
            self.checkpoint(with_ends=True)
        except (DiskFull, OSError) as error:
            if not ours:
                raise  # without a checkpoint the next start would take the store for RocketMQ's
            # Reads work without it, and the next checkpoint tries again.
            self.refuse(QUEUES, str(error))
        return report

    def _refuse_lost_files(self, start: int | None) -> None:
        """StoreCorrupt if the log, which started at ``start`` at the latest, starts later."""
        chain = self.log.chain
        if start is not None and (not chain.segments or chain.start > start):
            base = start // chain.segment_bytes * chain.segment_bytes
            raise StoreCorrupt(
                f"{chain.directory}/{base:0{NAME_DIGITS}d}",
                0,
                "the file is missing, and this broker has not cleaned it up. Put it back, or do without its messages: "
                f"broker verifyStore --repair {self._options.directory}. If RocketMQ's broker cleaned it up, remove "
                f"{self._options.directory}/{INVENTORY}",
            )

    def close(self) -> str:
        """Make everything durable, write a clean checkpoint, and unlock the directory.

        Returns "", or why the next start must still read the end of the log: on a full disk, for example, queue entries
        cannot be written.

        After a failed sync no checkpoint is written, and the store is only closed. A later sync could succeed although
        the kernel has dropped the bytes of the failed one, so nothing can be called durable any more.
        """
        try:
            if not self._sync_failed:
                with suppress(DiskFull):
                    self.build_index(CLOSE_CATCH_UP)
                self.checkpoint(with_ends=True, clean=True)
                remove_abort(self._fs, self._options.directory, index_is_complete=not self.index_behind)
        except (DiskFull, OSError) as error:
            return str(error)
        finally:
            self.queues.close()
            self.index.close()
            self.log.close()
            self._checkpoint.close()
            self._lock.close()
        return ""

    # --- writing

    @property
    def refusal(self) -> str:
        """Why messages are refused, even if the log has room for them; "" if they are taken."""
        return next(iter(self._refusals.values()), "")

    def refusal_of(self, who: str) -> str:
        """Why the part named ``who`` refuses messages; "" if it does not."""
        return self._refusals.get(who, "")

    def refuse(self, who: str, reason: str) -> None:
        """Refuse messages until ``who`` calls this again with "" as the reason."""
        if reason:
            self._refusals[who] = reason
        else:
            self._refusals.pop(who, None)

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
        if self._refusals:
            raise DiskFull(self.refusal)
        queue = self.queues.get(topic, queue_id)
        size = queue.record_overhead + len(born_host) + len(body) + len(properties)
        log = self.log
        if size > log.max_record_bytes or len(properties) > MAX_PROPERTIES:
            raise self._too_large(size, len(properties))
        physical = log.reserve(size)
        now = self._now()
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
        messages: Sequence[tuple[int, bytes, bytes]],
        *,
        suffix: bytes = b"",
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> BatchPutResult:
        """Append (flag, body, properties) rows to one queue, all or none; each becomes a message of its own.

        ``suffix``: encoded properties that are added after each message's own.
        """
        if self._refusals:
            raise DiskFull(self.refusal)
        queue = self.queues.get(topic, queue_id)
        assert not queue.is_batch, "its batches go to put_inner"
        overhead = queue.record_overhead + len(born_host) + len(suffix)
        lengths = [len(properties) for _, _, properties in messages]
        sizes = [overhead + len(body) + length for (_, body, _), length in zip(messages, lengths, strict=True)]
        total = sum(sizes)
        log = self.log
        most_properties = max(lengths) + len(suffix)
        if total > log.max_record_bytes or most_properties > MAX_PROPERTIES:
            raise self._too_large(total, most_properties)
        start = log.reserve(total)
        now = self._now()
        queue_offset = queue.next_offset
        head = BatchHead(queue.magic, queue_id, sys_flag, born_timestamp, born_host, now, self._host, reconsume_times)
        made = make_batch_records(
            head, queue.topic_tail, messages, sizes, lengths, suffix, start, queue_offset, self.tag_codes.of
        )
        log.write_batch(start, made.records)
        queue.append_many(made.entries)
        self._written(queue, len(messages), total)
        return BatchPutResult(made.physical_offsets, queue_offset, start + total, now)

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
        """Append ``batch``, the body of a batch send with so many messages, to a batch queue as one record.

        ``properties``: of the batch, with INNER_NUM, and with TAGS if all messages have that tag.
        """
        if self._refusals:
            raise DiskFull(self.refusal)
        queue = self.queues.get(topic, queue_id)
        assert queue.is_batch, "plain queues have no entries for batches"
        queue_offset = queue.next_offset
        properties += b"INNER_BASE\x01%d\x02" % queue_offset
        size = queue.record_overhead + len(born_host) + len(batch) + len(properties)
        log = self.log
        if size > log.max_record_bytes or len(properties) > MAX_PROPERTIES:
            raise self._too_large(size, len(properties))
        physical = log.reserve(size)
        now = self._now()
        sys_flag |= WRAPPED
        record = encode_record(
            queue.magic, queue.topic_tail, queue_id, queue_offset, physical, batch, properties, 0, sys_flag,
            born_timestamp, born_host, now, self._host, reconsume_times, 0,
        )  # fmt: skip
        log.write(physical, record)
        queue.append(physical, size, self.tag_codes.of_batch(properties, batch, sys_flag), now, messages)
        self._written(queue, messages, size)
        return BatchPutResult([physical] * messages, queue_offset, physical + size, now)

    def follow_time(self, timestamp: int) -> None:
        """Later messages get store times at or after ``timestamp``, which is that of a message from a master."""
        self._last_timestamp = max(self._last_timestamp, timestamp)

    @property
    def index_behind(self) -> int:
        """Bytes of the log whose messages the index does not hold yet."""
        return max(self.log.end - self.index.position, 0)

    def delete_topic(self, topic: str) -> None:
        """Forget the queues of ``topic``; its messages stay in the log until that is cleaned.

        The caller must write a checkpoint next. Recovery reads the log only after it, so the queues do not come back.
        The checkpoint also removes the queues' files, unless `Queues.remove_files` did it before.
        """
        self.arrived.difference_update(self.queues.remove(topic))

    # --- inside

    def _now(self) -> int:
        # Store times never go back, not even over a restart, so that a queue can be searched by time.
        now = self._clock.now_ms()
        if now < self._last_timestamp:
            return self._last_timestamp
        self._last_timestamp = now
        return now

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
