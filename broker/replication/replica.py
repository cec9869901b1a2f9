"""The store of a slave: its log is its master's, byte for byte; queues are made of the records in it.

`append` takes bytes as they come, and they may end within a record; ``raw_end`` is how far they go. `build` checks the
CRC of whole records and gives them to their queues, in steps, and moves the log's end behind them: readers see nothing
before that.
`finish` makes it an ordinary store again. What a crash leaves behind the last whole record is a torn tail for recovery.
Neighbours: commitlog.py (`room`), recovery.py (the same after a crash), replication/slave.py (owns this).
"""

import struct
from zlib import crc32

from broker.replication.replica_runs import MIN_RUN, Run, RunReader
from broker.store.log.residency import Span, check_resident
from broker.store.log.sound import is_storable
from broker.store.queue.consumequeue import ConsumeQueue
from broker.store.queue.rebuild import is_queued
from broker.store.queue.tags import TagCodes
from broker.store.store import MAX_ENTRIES_WAITING, QUEUES, MessageStore
from mqcommon.errors import DiskFull, ProtocolError, StoreCorrupt
from mqcommon.message.flags import BORN_HOST_V6, STORE_HOST_V6
from mqcommon.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    SIZE_MAGIC,
    decode_record,
)

# Of a record with IPv4 hosts: size, magic, bodyCRC, queueId, queueOffset, physicalOffset, sysFlag, storeTimestamp,
# bodyLength.
_HEAD = struct.Struct(">IIIi4xqqi16xq20xi")
_LENGTH = struct.Struct(">H")
_V6 = BORN_HOST_V6 | STORE_HOST_V6
# How much of the log is copied at once to be taken apart.
STEP_BYTES = 256 * 1024
_MAX_TOPICS = 10_000


class Replica:
    """The open ``store`` of a slave, which nobody else writes to."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.log = store.log
        self._queues = store.queues
        self._tag_codes = TagCodes()
        self._runs = RunReader(self._tag_codes)
        self._next_try = 0
        # The next record moves a queue: `build` stops before it until it is called with ``guarded``.
        self.wants_guard = False
        self._topics: dict[bytes, str] = {}

    @property
    def raw_end(self) -> int:
        """One past the last byte that is here."""
        return self.log.raw_end

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever stored, so that the log may begin anywhere."""
        return self.log.raw_end == self.log.start

    @property
    def behind(self) -> int:
        """Bytes that no queue knows yet."""
        return self.log.raw_end - self.log.end

    @property
    def must_wait(self) -> bool:
        """Whether so many entries of queues wait in memory for a checkpoint that `build` should add no more."""
        return self._store.entries_waiting > MAX_ENTRIES_WAITING

    def begin_at(self, offset: int) -> None:
        """The empty log begins at ``offset``, the start of one of the master's files. Blocks; DiskFull."""
        log = self.log
        if offset == log.start and log.chain.segments:
            return
        if offset % log.chain.segment_bytes:
            raise ProtocolError(
                f"the master's log begins at {offset}, where no file of {log.chain.segment_bytes} bytes begins:"
                " set mappedFileSizeCommitLog to what the master has"
            )
        log.chain.remove_all()
        log.chain.extend(offset)
        log.open_at(offset, flushed=offset, clear=False)
        self._store.index.position = offset

    @property
    def needs_file(self) -> bool:
        return self.log.needs_file

    def prepare_file(self, end: int) -> None:
        """Make the file that begins at ``end``, where the log's files end. For any thread; DiskFull."""
        self.log.make_file(end)

    def make_file(self) -> None:
        """Add the next file of the log. Blocks but for after `prepare_file`; DiskFull."""
        self.log.add_file()

    def append(self, data: memoryview) -> int:
        """Add bytes at ``raw_end``; returns how many: what does not fit needs `make_file` first."""
        if self.log.needs_file:
            return 0
        file, at, size = self.log.room(len(data))
        file.view[at : at + size] = data[:size]
        self.log.copied(size)
        return size

    def room(self, size: int) -> Span:
        """Where the next ``size`` bytes go, or as many of them as fit: for writing many in a thread, then `copied`."""
        return self.log.room(size)

    def copied(self, size: int) -> None:
        """So many bytes were written where `room` said."""
        self.log.copied(size)

    def build(self, limit: int, *, guarded: bool = False) -> int:
        """Give up to ``limit`` whole records to their queues; returns how many.

        ``guarded``: no other thread uses files of queues. Without that it stops before a record whose queue has to
        move, as when a topic was deleted and made again; then `wants_guard` is set.
        StoreCorrupt when the bytes are no records. DiskFull when entries of queues cannot be written.
        """
        done = 0
        if reason := self._store.refusal_of(QUEUES):
            raise DiskFull(reason)
        self.wants_guard = False
        while done < limit:
            log = self.log
            segment = log.chain.at(log.end)
            if segment is None:
                break
            at, end = log.end, min(log.raw_end, segment.end)
            step_end = min(at + STEP_BYTES, end)
            if step_end == at < segment.end:
                break
            check_resident(segment.file, at - segment.base, step_end - at)
            data = segment.file.view[at - segment.base : step_end - segment.base]
            size, magic = SIZE_MAGIC.unpack_from(data) if len(data) >= BLANK_BYTES else (0, 0)
            if magic == BLANK_MAGIC or segment.end - at < BLANK_BYTES:
                if magic == BLANK_MAGIC and at + size != segment.end:
                    raise self._corrupt(at, f"a filler of {size} bytes does not end with the file")
                if end < segment.end:
                    break
                log.end = end
                continue
            if len(data) < size <= end - at:
                data = segment.file.view[at - segment.base : at - segment.base + size]
            count = self._build_from(data, at, segment.end - at, limit - done, guarded)
            if not count:
                break
            done += count
        return done

    def finish(self) -> None:
        """Give all whole records to their queues, and cut what is part of one: the log can be appended to. Blocks."""
        while self.build(10_000, guarded=True):
            pass
        if self.log.chain.segments:
            self.log.open_at(self.log.end, flushed=self.log.flushed, clear=self.behind > 0)

    def _build_from(self, data: bytes, start: int, room: int, limit: int, guarded: bool) -> int:
        """Queue the whole records at the beginning of ``data``, which lies at ``start``; how many."""
        at, done, total = 0, 0, len(data)
        self._next_try = 0
        latest = 0
        unpack, topics, queues = _HEAD.unpack_from, self._topics, self._queues
        try:
            while done < limit and total - at >= MIN_RECORD:
                size, magic, crc, queue_id, queue_offset, physical, sys_flag, stored_ms, body_bytes = unpack(data, at)
                if magic == BLANK_MAGIC:
                    break
                if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD <= size <= room - at:
                    raise self._corrupt(start + at, f"size {size}, magic {magic:#010x} where a record begins")
                if at + size > total:
                    break
                tail_at = at + _HEAD.size + body_bytes
                if magic == MAGIC_V2 or sys_flag & _V6 or not at + _HEAD.size <= tail_at < at + size - 2:
                    queue_id, queue_offset, physical, sys_flag, stored_ms, topic, properties = self._unusual(
                        data[at : at + size], start + at
                    )
                else:
                    if done >= self._next_try and is_queued(sys_flag):
                        run = self._runs.read(data, at, size, body_bytes, start + at, limit - done)
                        if run is not None and self._queue_run(run, start + at):
                            at += run.records * size
                            done += run.records
                            latest = max(latest, run.latest_ms)
                            continue
                        self._next_try = done + MIN_RUN
                    topic_end = tail_at + 1 + data[tail_at]
                    raw = data[tail_at + 1 : topic_end]
                    properties = data[topic_end + 2 : at + size]
                    topic = topics.get(raw) or self._topic(raw, start + at)
                    length = len(properties)
                    if topic_end + 2 + length != at + size or data[topic_end : topic_end + 2] != _LENGTH.pack(length):
                        raise self._corrupt(start + at, "topic and properties do not end where the record does")
                    if crc32(data[at + _HEAD.size : tail_at]) & CRC_MASK != crc:
                        raise self._damaged(start + at, size)
                if physical != start + at or queue_id < 0 or queue_offset < 0:
                    raise self._corrupt(
                        start + at, f"the record says it is message {queue_offset} of queue {queue_id} at {physical}"
                    )
                if is_queued(sys_flag):
                    queue = queues.get(topic, queue_id)
                    if queue_offset != queue.next_offset:
                        # A queue that never had an entry has no files.
                        if queue.next_offset and not guarded:
                            self.wants_guard = True
                            break
                        self._move(queue, queue_offset, physical)
                    queue.append(physical, size, self._tag_codes.of(properties))
                    self._written(queue)
                latest = stored_ms if stored_ms > latest else latest
                at += size
                done += 1
        finally:
            # What the queues know is part of the log.
            self.log.end = start + at
            self._store.follow_time(latest)
            self._store.copies += done
        return done

    def _queue_run(self, run: Run, physical: int) -> bool:
        """Give the run's entries to their queues; whether that could be done at once."""
        topic = self._topics.get(run.topic) or self._topic(run.topic, physical)
        queues = [(self._queues.get(topic, one.queue_id), one) for one in run.queues]
        if any(queue.next_offset != one.first for queue, one in queues):
            return False
        for queue, one in queues:
            queue.append_many(one.entries)
            self._written(queue)
        return True

    def _written(self, queue: ConsumeQueue) -> None:
        if not queue.dirty:
            self._queues.touch(queue)
        if queue.is_awaited:
            self._store.arrived.add(queue)

    def _unusual(self, raw: bytes, physical: int) -> tuple[int, int, int, int, int, str, bytes]:
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError as error:
            raise self._corrupt(physical, str(error)) from None
        if crc32(record.body) & CRC_MASK != record.body_crc:
            raise self._damaged(physical, len(raw))
        return (
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            record.sys_flag,
            record.store_timestamp,
            self._topic(record.topic.encode(), physical),
            record.properties,
        )

    def _topic(self, raw: bytes, physical: int) -> str:
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            topic = ""
        if not is_storable(topic, 0):
            raise self._corrupt(physical, f"{raw!r} is no topic")
        if len(self._topics) >= _MAX_TOPICS:
            self._topics.clear()
        self._topics[raw] = topic
        return topic

    def _move(self, queue: ConsumeQueue, offset: int, physical: int) -> None:
        """The queue goes on elsewhere: its topic was deleted and made again, or it begins here as the log does."""
        gap = offset - queue.next_offset
        if offset == 0:
            self._queues.clear(queue)
            queue.continue_at(0)
        elif gap > 0 and not queue.is_empty and gap > (physical - self.log.start) // MIN_RECORD:
            raise self._corrupt(
                physical,
                f"the record says it is message {offset} of {queue.topic}/{queue.queue_id},"
                f" where {queue.next_offset} is expected",
            )
        else:
            queue.move_to(offset)

    def _damaged(self, physical: int, size: int) -> StoreCorrupt:
        return self._corrupt(
            physical,
            f"the body of the record in bytes {physical} to {physical + size} of the log does not match its CRC",
        )

    def _corrupt(self, physical: int, reason: str) -> StoreCorrupt:
        segment = self.log.chain.at(physical)
        assert segment is not None
        return StoreCorrupt(segment.path, physical - segment.base, f"the master sent no record: {reason}")
