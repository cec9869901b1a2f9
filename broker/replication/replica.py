"""The store of a slave: its log is a byte-for-byte copy of the master's, and its queues are built from its records.

`append` takes bytes that may end within a large record (whole_records.py); ``raw_end`` is their end. `build` checks the
CRCs of whole records, adds these to their queues in steps, and moves ``log.end`` past them. Invariant: the queues have
exactly the messages before ``log.end``, and readers see nothing after it, so no reader gets a part of a record.
`finish` makes it an ordinary store again. After a crash, recovery cuts what follows the last whole record.
`ReplicaRuns` parses runs of similar records together, the usual case while a slave catches up.
Neighbours: commitlog.py, recovery.py (the same after a crash), replication/slave.py (owns this).
"""

import struct
from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple
from zlib import crc32

from skylark.broker.replication.whole_records import WholeRecords
from skylark.broker.store.log.residency import check_resident
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.log.valid_record import is_storable
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import ENTRY
from skylark.broker.store.queue.rebuild import is_queued
from skylark.broker.store.queue.tags import TAGS, TagCodes
from skylark.broker.store.store import MAX_ENTRIES_WAITING, MessageStore
from skylark.mqcommon.disk.loading import read
from skylark.mqcommon.errors import DiskFull, ProtocolError, StoreCorrupt
from skylark.mqcommon.message.columns import MIN_RUN, Fixed, Run, RunReader, Shape
from skylark.mqcommon.message.flags import HOSTS_V6, INNER_BATCH, WRAPPED
from skylark.mqcommon.message.layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    HEAD_V4,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    PROPERTIES_LENGTH,
    SIZE_MAGIC,
    TAIL_BYTES_V1,
    TOPIC_LENGTH_V1,
)
from skylark.mqcommon.message.light import OFFSETS, light_places
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC

_HEAD = HEAD_V4.reader(
    *("size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag"),
    *("store_timestamp", "body_length"),
)
_BODY_AT = HEAD_V4.size
_TOPIC_LENGTH_BYTES = TOPIC_LENGTH_V1.size
_PROPERTIES_LENGTH_BYTES = PROPERTIES_LENGTH.size
# How much of the log is copied and parsed at once.
STEP_BYTES = 256 * 1024
# Topic names that are kept decoded.
_MAX_TOPICS = 10_000


class BadRecord(StoreCorrupt):
    """Bytes of a copied log, from ``physical`` on, are not the record that must be there; nothing after it is queued.

    ``size``: how many bytes the record seems to have.
    """

    def __init__(self, segment: Segment, physical: int, size: int, reason: str) -> None:
        super().__init__(segment.path, physical - segment.base, reason)
        self.physical = physical
        self.size = size


class QueueRun(NamedTuple):
    """Consecutive entries of one queue, from queue offset ``first`` on."""

    queue_id: int
    first: int
    entries: bytes


class RunEntries(NamedTuple):
    """The queue entries of ``records`` records of one topic, and their latest store time."""

    records: int
    topic: bytes
    queues: list[QueueRun]
    latest_ms: int


class Replica:
    """Writes to the open ``store`` of a slave, as the only writer."""

    def __init__(self, store: MessageStore, unwritten: Callable[[], str] = str) -> None:
        """``unwritten``: why queue entries cannot be written and stay in memory; "" if they can."""
        self._store = store
        self._unwritten = unwritten
        self.log = store.log
        self._queues = store.queues
        self._tag_codes = store.tag_codes
        self._runs = ReplicaRuns(self._tag_codes)
        self._next_try = 0
        # The next record moves a queue: `build` stops before it until it is called with ``guarded``.
        self.wants_guard = False
        self._topic_names: dict[bytes, str] = {}

    @property
    def raw_end(self) -> int:
        """The end of the bytes received, which may lie within a record."""
        return self.log.raw_end

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty, so that it may begin at any offset."""
        return self.log.raw_end == self.log.start

    @property
    def behind(self) -> int:
        """How many bytes the queues lag behind the log."""
        return self.log.raw_end - self.log.end

    @property
    def must_wait(self) -> bool:
        """Whether `build` should pause, because too many queue entries wait in memory for a checkpoint."""
        return self._store.entries_waiting > MAX_ENTRIES_WAITING

    @property
    def refusal(self) -> str:
        """Why the queues get no entries: those in memory cannot be written. "" if they can."""
        return self._unwritten()

    def begin_at(self, offset: int) -> None:
        """Let the empty log begin at ``offset``, the start of one of the master's files. Blocks; may raise DiskFull."""
        log = self.log
        if offset == log.start and log.chain.segments:
            return
        if offset % log.chain.segment_bytes:
            raise ProtocolError(
                f"the master's log begins at {offset}, which is not a multiple of {log.chain.segment_bytes} bytes:"
                " set mappedFileSizeCommitLog to the master's value"
            )
        self._store.begun.note(offset)
        log.chain.remove_all()
        log.chain.extend(offset)
        log.open_at(offset, flushed=offset, clear=False)
        self._store.index.position = offset

    def whole_records(self) -> WholeRecords:
        """Takes the bytes that follow ``raw_end``. Reads the heads of all records that have no queue entries yet."""
        log = self.log
        at, end = log.end, log.raw_end
        while at < end:
            segment = log.chain.at(at)
            assert segment is not None
            left = segment.end - at
            head = read(segment.file, at - segment.base, BLANK_BYTES)
            size, magic = SIZE_MAGIC.unpack(head) if left >= BLANK_BYTES else (0, BLANK_MAGIC)
            if magic == BLANK_MAGIC:
                size = left
            elif end < at + BLANK_BYTES or magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD <= size <= left:
                return WholeRecords.unchecked()
            at += size
        return WholeRecords(log.chain.segment_bytes, end, at - end)

    def append(self, data: memoryview) -> int:
        """Add bytes at ``raw_end``; returns how many fit. The rest needs `CommitLog.add_file` first."""
        if self.log.needs_file:
            return 0
        file, at, size = self.log.room(len(data))
        # Use pwrite: the kernel copies from the first byte on. A copy into the map need not, and if a kill left whole
        # records after a torn one, this would look like damage.
        file.pwrite(at, data[:size])
        self.log.copied(size)
        return size

    def build(self, limit: int, *, guarded: bool = False) -> int:
        """Add up to ``limit`` whole records to their queues; returns how many.

        ``guarded``: no other thread uses queue files. Without it, building stops before a record whose queue has to
        move, as when a topic was deleted and created again; then `wants_guard` is set.
        BadRecord when the bytes are not records. DiskFull when queue entries cannot be written.
        """
        if reason := self.refusal:
            raise DiskFull(reason)
        return self._build(limit, guarded)

    def _build(self, limit: int, guarded: bool) -> int:
        done = 0
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
            # Bytes that were received long ago may be on disk only: a page fault would hold up the event loop.
            check_resident(segment.file, at - segment.base, step_end - at)
            data = segment.file.view[at - segment.base : step_end - segment.base]
            size, magic = SIZE_MAGIC.unpack_from(data) if len(data) >= BLANK_BYTES else (0, 0)
            if magic == BLANK_MAGIC or segment.end - at < BLANK_BYTES:
                if magic == BLANK_MAGIC and at + size != segment.end:
                    raise self._corrupt(at, f"a filler of {size} bytes does not end with the file")
                # The whole filler must be here: a log that ends within it would go on there after a role change.
                if end < segment.end:
                    break
                log.end = end
                continue
            # A record larger than a step is read whole: otherwise building would never get past it.
            if len(data) < size <= end - at:
                check_resident(segment.file, at - segment.base, size)
                data = segment.file.view[at - segment.base : at - segment.base + size]
            count = self._build_from(data, at, segment.end - at, limit - done, guarded)
            if not count:
                break
            done += count
        return done

    def finish(self) -> None:
        """Add all whole records to their queues and cut a partial record at the end, so that messages can be appended.

        Blocks. After StoreCorrupt or DiskFull nothing may be appended: it would be written over bytes that others count
        as copied.
        """
        # Queue all whole records first: the next appended message gets its queue offset from the queue. Then cut the
        # partial record: the next record would follow a torn one. Entries that cannot be written to disk now wait in
        # memory, and `Reason.ENTRIES_UNWRITTEN` refuses messages until they are written.
        while self._build(10_000, guarded=True):
            pass
        if self.log.chain.segments:
            self.log.open_at(self.log.end, flushed=self.log.flushed, clear=self.behind > 0)

    def _build_from(self, data: bytes, start: int, file_left: int, limit: int, guarded: bool) -> int:
        """Queue the whole records at the beginning of ``data``, which is at ``start`` in the log; returns how many.

        ``file_left``: bytes from ``start`` to the end of the file.
        """
        # Each record is checked before it is queued: size, place, body CRC, topic. A record that fails is never shown
        # to a reader, and copying stops with an error that names its place.
        at, done, total = 0, 0, len(data)
        self._next_try = 0
        latest = 0
        unpack, unpack_length = _HEAD.unpack_from, PROPERTIES_LENGTH.unpack_from
        topics, queues, codes = self._topic_names, self._queues, self._tag_codes
        try:
            while done < limit and total - at >= MIN_RECORD:
                size, magic, crc, queue_id, queue_offset, physical, sys_flag, stored_ms, body_bytes = unpack(data, at)
                if magic == BLANK_MAGIC:
                    break
                if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD <= size <= file_left - at:
                    raise self._corrupt(start + at, f"size {size}, magic {magic:#010x} where a record begins")
                if at + size > total:
                    break
                tail_at = at + _BODY_AT + body_bytes
                if magic == MAGIC_V2 or sys_flag & HOSTS_V6 or not 0 <= body_bytes <= size - MIN_RECORD:
                    queue_id, queue_offset, physical, sys_flag, stored_ms, topic, properties = self._unusual(
                        data[at : at + size], start + at
                    )
                else:
                    if done >= self._next_try and is_queued(sys_flag) and not sys_flag & INNER_BATCH:
                        run = self._runs.read(data, at, size, body_bytes, start + at, limit - done)
                        if run is not None and self._queue_run(run, start + at):
                            at += run.records * size
                            done += run.records
                            latest = max(latest, run.latest_ms)
                            continue
                        self._next_try = done + MIN_RUN
                    topic_at = tail_at + _TOPIC_LENGTH_BYTES
                    topic_end = topic_at + data[tail_at]
                    properties_at = topic_end + _PROPERTIES_LENGTH_BYTES
                    raw = data[topic_at:topic_end]
                    properties = data[properties_at : at + size]
                    topic = topics.get(raw) or self._topic(raw, start + at)
                    if properties_at > at + size or unpack_length(data, topic_end)[0] != at + size - properties_at:
                        raise self._corrupt(start + at, "topic and properties do not end where the record does", size)
                    if crc32(data[at + _BODY_AT : tail_at]) & CRC_MASK != crc:
                        self._check_given_up(start + at, size)
                if physical != start + at or queue_id < 0 or queue_offset < 0:
                    raise self._misplaced(start + at, queue_id, queue_offset, physical)
                if is_queued(sys_flag):
                    if sys_flag & INNER_BATCH and self._must_change(topic, queue_id, guarded):
                        break
                    queue = queues.of_record(topic, queue_id, sys_flag, queue_offset)
                    light = light_places(properties)
                    moves = light or queue_offset != queue.next_offset
                    if moves and not self._moved(queue, queue_offset, light, physical, guarded):
                        break
                    if sys_flag & WRAPPED == WRAPPED:
                        self._add_batch(queue, data[at : at + size])
                    else:
                        waits = queue.is_delayed
                        code = codes.of_waiting(topic, properties, stored_ms) if waits else codes.of(properties)
                        queue.append(physical, size, code, stored_ms, 1)
                        if light:
                            self._add_light(light, physical, size, code)
                    self._written(queue)
                latest = stored_ms if stored_ms > latest else latest
                at, done = at + size, done + 1
        finally:
            # Also after an error: the log's end must include each record that a queue has.
            self.log.end = start + at
            self._store.follow_time(latest)
            self._store.copies += done
        return done

    def _queue_run(self, run: RunEntries, physical: int) -> bool:
        """Add the run's entries to their queues; False when the records must be read one by one."""
        topic = self._topic_names.get(run.topic) or self._topic(run.topic, physical)
        if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return False  # the entries of its queues hold a time for each message
        queues = [(self._queues.get(topic, one.queue_id), one) for one in run.queues]
        # All queues before the first entry: a run that is refused half way would be queued again, record by record.
        if any(queue.next_offset != one.first or queue.is_batch for queue, one in queues):
            return False
        for queue, one in queues:
            queue.append_many(one.entries)
            self._written(queue)
        return True

    def _must_change(self, topic: str, queue_id: int, guarded: bool) -> bool:
        """Whether a plain queue must be made again as a batch queue, and may not be now. Sets ``wants_guard`` then."""
        queue = self._queues.find(topic, queue_id)
        self.wants_guard = queue is not None and not queue.is_batch and queue.next_offset > 0 and not guarded
        return self.wants_guard

    def _add_batch(self, queue: ConsumeQueue, raw: bytes) -> None:
        record = decode_record(raw, check_crc=False)
        queue.put_record(record, self._tag_codes.of_record(record))

    def _moved(
        self, queue: ConsumeQueue, offset: int, light: list[tuple[str, int]], physical: int, guarded: bool
    ) -> bool:
        """Let the queues of a record go on at its offsets, or set ``wants_guard`` and return False."""
        places = [(queue, offset), *((self._queues.get(name, 0), at) for name, at in light)]
        # A queue that never had an entry has no files.
        self.wants_guard = not guarded and any(one.next_offset not in (0, at) for one, at in places)
        for one, at in places if not self.wants_guard else ():
            if at != one.next_offset:
                self._move(one, at, physical)
        return not self.wants_guard

    def _add_light(self, light: list[tuple[str, int]], physical: int, size: int, code: int) -> None:
        for name, _ in light:
            queue = self._queues.get(name, 0)
            queue.append(physical, size, code)
            self._written(queue)
            self._store.copies += 1

    def _written(self, queue: ConsumeQueue) -> None:
        if not queue.dirty:
            self._queues.touch(queue)
        if queue.is_awaited:
            self._store.arrived.add(queue)

    def _unusual(self, raw: bytes, physical: int) -> tuple[int, int, int, int, int, str, bytes]:
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError as error:
            raise self._corrupt(physical, str(error), len(raw)) from None
        if crc32(record.body) & CRC_MASK != record.body_crc:
            self._check_given_up(physical, len(raw))
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
            raise self._corrupt(physical, f"{raw!r} is not a topic")
        if len(self._topic_names) >= _MAX_TOPICS:
            self._topic_names.clear()
        self._topic_names[raw] = topic
        return topic

    def _move(self, queue: ConsumeQueue, offset: int, physical: int) -> None:
        """Let the queue continue at ``offset``: its topic was deleted and created again, or the log begins here."""
        gap = offset - queue.next_offset
        if offset == 0:
            # Entries of the deleted topic must not be read as the first messages of the new one.
            self._queues.clear(queue)
            queue.continue_at(0)
        # No CRC covers the queue offset. A gap of more messages than the log before this record can hold is damage, and
        # filling it would take the disk.
        elif gap > 0 and not queue.is_empty and gap > (physical - self.log.start) // queue.least_bytes:
            raise self._corrupt(
                physical,
                f"the record says it is message {offset} of {queue.topic}/{queue.queue_id},"
                f" where {queue.next_offset} is expected",
            )
        else:
            queue.move_to(offset)

    def _misplaced(self, at: int, queue_id: int, offset: int, physical: int) -> BadRecord:
        place = f"message {offset} of queue {queue_id} at {physical}"
        return self._corrupt(at, f"the record says it is {place}")

    def _check_given_up(self, physical: int, size: int) -> None:
        """BadRecord for a record whose body is damaged, unless readers skip it: no replica has it."""
        blocks = self.log.blocks
        if blocks.hold is None or not blocks.is_given_up(physical):
            raise self._corrupt(
                physical,
                f"the body of the record in bytes {physical} to {physical + size} of the log does not match its CRC",
                size,
            )

    def _corrupt(self, physical: int, reason: str, size: int = BLANK_BYTES) -> BadRecord:
        segment = self.log.chain.at(physical)
        assert segment is not None
        return BadRecord(segment, physical, size, f"not a record of the master's log: {reason}")


_RUN_HEAD = HEAD_V4.format("body_crc", "queue_id", "queue_offset", "physical_offset", "store_timestamp")
_MAX_REACH = 512


class _RunConstants(NamedTuple):
    topic: bytes
    tag_code: int


class ReplicaRuns:
    """Reads runs of similar records, and remembers what the last records had in common.

    All records of a run have the same size, topic and tag (mqcommon/message/columns.py). `Replica` reads other records
    one by one.
    """

    def __init__(self, tag_codes: TagCodes) -> None:
        self._tag_codes = tag_codes
        self._runs = RunReader(self._learn, _MAX_REACH)

    def read(self, data: bytes, at: int, size: int, body_bytes: int, physical: int, limit: int) -> RunEntries | None:
        """The run that begins with the record of ``size`` bytes at ``at``, which is whole; None when there is none.

        ``physical``: where that record is in the log. At most ``limit`` records.
        """
        most = min(limit, (len(data) - at) // size, self._runs.reach)
        if most < MIN_RUN:
            return None
        run = self._runs.read(data[at : at + most * size], size, body_bytes)
        if run is None:
            return None
        entries = _entries(run, size, physical)
        if entries is None:
            self._runs.refuse()
        return entries

    def _learn(self, raw: bytes, body_bytes: int) -> Shape[_RunConstants] | None:
        tail_at = HEAD_V4.size + body_bytes
        tail = raw[tail_at:]
        head_bytes = TAIL_BYTES_V1 + tail[0]
        head, properties = tail[:head_bytes], tail[head_bytes:]
        length_at = head_bytes - PROPERTIES_LENGTH.size
        if len(head) < head_bytes or PROPERTIES_LENGTH.unpack_from(head, length_at)[0] != len(properties):
            return None
        name = TAGS + b"\x01"
        at = 0 if properties.startswith(name) else properties.find(b"\x02" + name)
        # The tag's property with its borders, and where it is in the tail; empty without a tag.
        tag, tag_at = b"", head_bytes
        if at >= 0:
            end = properties.find(b"\x02", at + 1)
            tag = properties[at : end + 1 if end >= 0 else None]
            tag_at += at
        rest = len(tail) - tag_at - len(tag)
        # The body is column 5; 6 and 8 are fixed.
        record = struct.Struct(f"{_RUN_HEAD}{body_bytes}s{head_bytes}s{tag_at - head_bytes}s{len(tag)}s{rest}s")
        fixed = Fixed(6, tail_at, head), Fixed(8, tail_at + tag_at, tag)
        topic = head[TOPIC_LENGTH_V1.size : length_at]
        return Shape(record, fixed, _RunConstants(topic, self._tag_codes.of(properties)))


def _entries(run: Run[_RunConstants], size: int, physical: int) -> RunEntries | None:
    """None when the records must be read one by one."""
    crcs, ids, offsets, places, times, bodies, _, before, _, after = run.columns
    if (
        tuple([crc32(body) & CRC_MASK for body in bodies]) != crcs
        or places != tuple(range(physical, physical + run.records * size, size))
        # The rest of the properties may contain another tag, or bytes that look like a tag.
        or b"".join(before).find(TAGS) >= 0
        or (rest := b"".join(after)).find(TAGS) >= 0
        # Records in light queues have entries in further queues.
        or rest.find(OFFSETS) >= 0
    ):
        return None
    queues = _by_queue(ids, offsets, places, size, run.known.tag_code)
    return None if queues is None else RunEntries(run.records, run.known.topic, queues, max(times))


def _by_queue(
    ids: tuple[int, ...], offsets: tuple[int, ...], places: tuple[int, ...], size: int, tag_code: int
) -> list[QueueRun] | None:
    """The entries by queue; None when the messages of some queue are not consecutive."""
    rows: dict[int, tuple[list[int], list[int]]] = {}
    if ids.count(ids[0]) == len(ids):
        rows[ids[0]] = list(offsets), list(places)
    else:
        for queue_id, offset, place in zip(ids, offsets, places, strict=True):
            row = rows.get(queue_id)
            if row is None:
                rows[queue_id] = [offset], [place]
            else:
                row[0].append(offset)
                row[1].append(place)
    found = []
    for queue_id, (its_offsets, its_places) in rows.items():
        first = its_offsets[0]
        if queue_id < 0 or its_offsets != list(range(first, first + len(its_offsets))):
            return None
        entries = b"".join(map(ENTRY.pack, its_places, repeat(size), repeat(tag_code)))
        found.append(QueueRun(queue_id, first, entries))
    return found
