"""The messages of the log after the last entries of its queues, as a broker's start finds them. Changes nothing.

A broker writes entries after their records, so a killed broker leaves messages that no queue file has. Its next start
reads the log from its checkpoint on and adds them. `scan` does the same, with the same rules (valid_record.py,
recovery.py), and keeps the entries in memory. Many sound records are taken at once by `run_at`, as one by one they
would take far too long. It is stricter than valid_record.py: where bytes need more than its checks (a light queue, an
inner batch, a NUL among the properties, damage) it takes nothing, and the scan reads these records one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skylark.broker.store.log.log_files import LogFile, LogFiles
from skylark.broker.store.log.valid_record import is_storable, valid_record
from skylark.broker.store.queue.entry import ENTRY, ENTRY_BYTES
from skylark.broker.store.queue.rebuild import is_queued
from skylark.broker.store.recovery import LOOK_BEYOND_BYTES
from skylark.mqcommon.errors import ProtocolError, StoreCorrupt
from skylark.mqcommon.message.columns import MIN_RUN, DamagedRecord
from skylark.mqcommon.message.flags import INNER_BATCH, TRANSACTION_MASK
from skylark.mqcommon.message.inner import inner_count
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC
from skylark.mqcommon.message.light import MARK, in_each_queue
from skylark.mqcommon.message.record import Record
from skylark.sdk.arrow.decode import check_bodies
from skylark.sdk.arrow.records import Ints, Mask, Records, gather, is_text, physical_offsets
from skylark.spark_connector.store.files import BLANK, ENTRIES

# How much of the log is scanned at once.
RUN_BYTES = 4 * 1024 * 1024
_MAGICS = MAGIC_V1, MAGIC_V2


class LogRun(NamedTuple):
    """Records that follow one another; ``topic_numbers`` are places in ``topics``."""

    bytes: int
    topics: list[str]
    topic_numbers: Ints
    queue_ids: Ints
    offsets: Ints
    physical: Ints
    sizes: Ints
    is_queued: Mask


def run_at(data: bytes, physical: int) -> LogRun | None:
    """The whole records with which ``data`` begins, which is at ``physical`` in the log; None if they are too few."""
    starts, end = _starts(data)
    if len(starts) < MIN_RUN or data.find(MARK, 0, end) >= 0:
        return None
    try:
        records = Records(memoryview(data)[:end], np.array(starts, dtype=np.int64))
        check_bodies(records)
    except DamagedRecord:
        return None
    places = records.starts + physical
    offsets, queue_ids = records.column("queue_offset"), records.column("queue_id")
    names = gather(records.data, records.topic_at, records.topic_lengths, pa.string())
    properties = gather(records.data, records.properties_at, records.properties_lengths, pa.binary())
    if (
        (physical_offsets(records.heads) != places).any()
        or (records.sys_flags & INNER_BATCH).any()
        or (offsets < 0).any()
        or not is_text(names)
        or _holds_nul(properties)
    ):
        return None
    coded = pc.dictionary_encode(names)
    topics: list[str] = coded.dictionary.to_pylist()
    lowest = int(queue_ids.min())
    if not all(is_storable(topic, lowest) for topic in topics):
        return None
    kinds = records.sys_flags & TRANSACTION_MASK
    queued = np.isin(kinds, [kind for kind in range(TRANSACTION_MASK + 1) if is_queued(kind)])
    numbers = coded.indices.to_numpy().astype(np.int64)
    return LogRun(
        end,
        topics,
        numbers,
        queue_ids.astype(np.int64),
        offsets,
        places,
        records.heads["size"].astype(np.int64),
        queued,
    )


def _starts(data: bytes) -> tuple[list[int], int]:
    """(where the whole records begin, where the last one ends)."""
    starts, at, last = [], 0, len(data) - BLANK_BYTES
    unpack = SIZE_MAGIC.unpack_from
    while at <= last:
        size, magic = unpack(data, at)
        if magic not in _MAGICS or size < MIN_RECORD or at + size > len(data):
            break
        starts.append(at)
        at += size
    return starts, at


def _holds_nul(values: pa.Array) -> bool:
    if not len(values):
        return False
    bounds = np.frombuffer(values.buffers()[1], np.int32)
    raw = np.frombuffer(values.buffers()[2], np.uint8) if values.buffers()[2] else np.zeros(0, np.uint8)
    return bool((raw[bounds[values.offset] : bounds[values.offset + len(values)]] == 0).any())


Place = tuple[str, int]  # topic, queue
# Says why a sound record, at some byte of a mapped file, is a torn copy; "" if it is not.
IsTorn = Callable[[LogFile, int, Record], str]


@dataclass
class Tail:
    """Entries of a queue, from offset ``first`` on, as queue files have them."""

    first: int
    entries: bytearray = field(default_factory=bytearray)
    #: Whether its records may be whole batches: a batch has one entry, and blanks for its further messages.
    is_batch: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.entries) // ENTRY_BYTES

    def put(self, record: Record) -> None:
        """Add a record that comes later in the log than all before. Where offsets go back, the topic was made again."""
        self._put(record.queue_offset, record.physical_offset, record.size, f"{record.topic}/{record.queue_id}")
        if record.sys_flag & INNER_BATCH:
            self.is_batch = True
            self.entries += BLANK * (_messages_in(record) - 1)

    def put_run(self, offsets: Ints, physical: Ints, sizes: Ints, name: str) -> None:
        """As `put` of each record."""
        if offsets[0] == self.end and (np.diff(offsets) == 1).all():
            entries = np.zeros(len(offsets), dtype=ENTRIES)
            entries["physical"], entries["size"] = physical, sizes
            self.entries += entries.tobytes()
            return
        for each in zip(offsets.tolist(), physical.tolist(), sizes.tolist(), strict=True):
            self._put(*each, name)

    def _put(self, offset: int, physical: int, size: int, name: str) -> None:
        # The topic was deleted and made again: offsets begin anew, and earlier entries belong to the old topic.
        if offset < self.first:
            self.first = offset
            self.entries.clear()
        del self.entries[(offset - self.first) * ENTRY_BYTES :]
        # A gap is filled with blanks. It cannot have more messages than fit into the log before this record: an absurd
        # offset must not fill the memory.
        missing = offset - self.end
        if missing * MIN_RECORD > physical:
            raise StoreCorrupt(
                "the commit log",
                physical,
                f"the record says that it is message {offset} of {name}, but the one before it is {self.end - 1}",
            )
        self.entries += BLANK * missing + ENTRY.pack(physical, size, 0)


@dataclass
class Scanned:
    """The result of a scan. ``torn``: where and why the log ends in the middle of a record; "" if it does not."""

    end: int
    tails: dict[Place, Tail] = field(default_factory=dict)
    torn: str = ""
    #: Bytes that are no records, with sound records after them: (path, first byte, reason).
    holes: list[tuple[str, int, str]] = field(default_factory=list)


def _messages_in(record: Record) -> int:
    """A record that does not say how many messages it has counts as one."""
    try:
        return inner_count(record)
    except ProtocolError:
        return 1


def scan(log: LogFiles, start: int, keep_from: int, always: set[Place], torn: IsTorn) -> Scanned:
    """Read the log from ``start``, where a record begins.

    Entries are kept of records from ``keep_from`` on, and of all records in the queues ``always``.
    """
    found = Scanned(start)
    scanning = _Scan(log, keep_from, always, torn, found)
    at: int | None = start
    while at is not None and (file := log.at(at)) is not None:
        if file.base > at:
            found.holes.append((file.path, 0, f"the file before it is missing: the log has nothing from {at} on"))
        at = scanning.read_file(file, max(at, file.base))
    return found


class _Scan:
    """Goes through the files, and adds to ``found``."""

    def __init__(self, log: LogFiles, keep_from: int, always: set[Place], torn: IsTorn, found: Scanned) -> None:
        self._log = log
        self._keep_from = keep_from
        self._always = always
        self._torn = torn
        self._found = found
        self._keep_each = in_each_queue(self._keep)

    def read_file(self, file: LogFile, at: int) -> int | None:
        """Read one file; returns where to go on, None at the end of the log."""
        view, base, end = file.view, file.base, file.end
        one_by_one_to = at
        while at + BLANK_BYTES <= end:
            if at >= one_by_one_to:
                # Many records at once, if they are plain and sound. Where none can be taken, the next RUN_BYTES are
                # read one by one: to try again at each record would cost more.
                run = run_at(view[at - base : at - base + RUN_BYTES], at)
                if run is not None:
                    self._keep_run(run)
                    at += run.bytes
                    continue
                one_by_one_to = at + RUN_BYTES
            size, magic = SIZE_MAGIC.unpack_from(view, at - base)
            if magic == BLANK_MAGIC and at + size == end:
                break
            record, reason = valid_record(view[at - base : min(at + size, end) - base], at)
            if record is not None:
                reason = self._torn(file, at - base, record)
            if record is None or reason:
                # The end of the log, or damage. A sound record after it means damage, and the scan goes on at this
                # record.
                following = _next_sound(self._log, file, at)
                if record is None and following is not None and _is_sound(file, at):
                    # A running broker has written this record, and later ones, since the scan read these bytes.
                    continue
                self._report(file, at, reason, following, is_empty=not size and not magic)
                return following
            self._keep_each(record)
            at += record.size
        self._found.end = end
        return end

    def _report(self, file: LogFile, at: int, reason: str, following: int | None, *, is_empty: bool) -> None:
        """Report that there is no sound record at ``at``: the log ends there, or is damaged up to ``following``."""
        found = self._found
        found.end = at
        if following is not None:
            reason = "zeros where a record was" if is_empty else reason
            found.holes.append((file.path, at - file.base, f"{reason}; the next record begins at {following}"))
        elif not is_empty:
            found.torn = f"the log ends at byte {at - file.base} of {file.path}, in the middle of a record: {reason}"

    def _keep(self, record: Record) -> None:
        place = record.topic, record.queue_id
        if is_queued(record.sys_flag) and (record.physical_offset >= self._keep_from or place in self._always):
            self._tail(place, record.queue_offset).put(record)

    def _keep_run(self, run: LogRun) -> None:
        places = run.topic_numbers << 32 | run.queue_ids
        queued = np.flatnonzero(run.is_queued)
        # One sort, not a pass over all rows for each of thousands of queues. It keeps the order within a queue.
        by_place = queued[np.argsort(places[queued], kind="stable")]
        for rows in np.split(by_place, np.flatnonzero(np.diff(places[by_place])) + 1):
            if not len(rows):
                continue  # nothing is queued
            code = int(places[rows[0]])
            place = run.topics[code >> 32], code & 0xFFFFFFFF
            if place not in self._always:
                rows = rows[run.physical[rows] >= self._keep_from]
            if len(rows):
                offsets = run.offsets[rows]
                tail = self._tail(place, int(offsets[0]))
                tail.put_run(offsets, run.physical[rows], run.sizes[rows], f"{place[0]}/{place[1]}")

    def _tail(self, place: Place, first: int) -> Tail:
        tail = self._found.tails.get(place)
        if tail is None:
            tail = self._found.tails[place] = Tail(first)
        return tail


def _is_sound(file: LogFile, at: int) -> bool:
    """Whether there is a sound record."""
    size, _ = SIZE_MAGIC.unpack_from(file.view, at - file.base)
    return valid_record(file.view[at - file.base : min(at + max(size, 0), file.end) - file.base], at)[0] is not None


def _next_sound(log: LogFiles, file: LogFile, at: int) -> int | None:
    """Where the next sound record after ``at`` begins, if there is one nearby, or in a later file that is in use."""
    found = file.next_sound(at + 1, min(at + LOOK_BEYOND_BYTES, file.end), torn=at)
    later = [each for each in log.files if each.base > file.base and any(each.view[:BLANK_BYTES])]
    while found is None and later:
        found = later[0].next_sound(later[0].base)
        del later[0]
    return found
