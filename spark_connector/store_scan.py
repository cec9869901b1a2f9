"""What the log has after the last entries of its queues, as a broker's start would find it. Reads, changes nothing.

A broker writes entries after their records, so that a killed one leaves messages that no queue file has. Its next start
reads the log from its checkpoint on and adds them. `scan` does the same, with the same rules (sound.py, recovery.py),
and keeps the entries in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.store.log.log_files import LogFile, LogFiles
from broker.store.log.sound import sound_record
from broker.store.queue.entry import ENTRY, ENTRY_BYTES
from broker.store.queue.rebuild import is_queued
from broker.store.recovery import LOOK_BEYOND_BYTES
from mqcommon.errors import StoreCorrupt
from mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MIN_RECORD, SIZE_MAGIC
from mqcommon.message.light import in_each_queue
from mqcommon.message.record import Record
from spark_connector.store_queue import BLANK

Place = tuple[str, int]  # topic, queue
# Says why a sound record, at some byte of a mapped file, is a torn copy; "" if it is not.
IsTorn = Callable[[LogFile, int, Record], str]


@dataclass
class Tail:
    """Entries of a queue, from offset ``first`` on, as queue files have them."""

    first: int
    entries: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        return self.first + len(self.entries) // ENTRY_BYTES

    def put(self, record: Record) -> None:
        """Add a record that comes later in the log than all before. Where offsets go back, the topic was made again."""
        offset = record.queue_offset
        if offset < self.first:
            self.first = offset
            self.entries.clear()
        del self.entries[(offset - self.first) * ENTRY_BYTES :]
        missing = offset - self.end
        if missing * MIN_RECORD > record.physical_offset:
            raise StoreCorrupt(
                "the commit log",
                record.physical_offset,
                f"the record says that it is message {offset} of {record.topic}/{record.queue_id},"
                f" but the one before it is message {self.end - 1}",
            )
        self.entries += BLANK * missing + ENTRY.pack(record.physical_offset, record.size, 0)


@dataclass
class Scanned:
    """What was found. ``torn``: where the log ends in the middle of a record, and why; "" if it does not."""

    end: int
    tails: dict[Place, Tail] = field(default_factory=dict)
    torn: str = ""
    #: Bytes that are no records, with sound records behind them: (path, first byte, reason).
    holes: list[tuple[str, int, str]] = field(default_factory=list)


def scan(log: LogFiles, start: int, wants: Callable[[Record], bool], torn: IsTorn) -> Scanned:
    """Read the log from ``start``, where a record begins. ``wants`` says of which records entries are kept."""
    found = Scanned(start)

    def keep(record: Record) -> None:
        if is_queued(record.sys_flag) and wants(record):
            place = record.topic, record.queue_id
            tail = found.tails.get(place)
            if tail is None:
                tail = found.tails[place] = Tail(record.queue_offset)
            tail.put(record)

    each = in_each_queue(keep)
    at: int | None = start
    while at is not None and (file := log.at(at)) is not None:
        if file.base > at:
            found.holes.append((file.path, 0, f"the file before it is missing: the log has nothing from {at} on"))
        at = _read_file(log, file, max(at, file.base), each, torn, found)
    return found


def _read_file(
    log: LogFiles, file: LogFile, at: int, on_record: Callable[[Record], None], torn: IsTorn, found: Scanned
) -> int | None:
    """Read one file; returns where to go on, None at the end of the log."""
    view, base, end = file.view, file.base, file.end
    while at + BLANK_BYTES <= end:
        size, magic = SIZE_MAGIC.unpack_from(view, at - base)
        if magic == BLANK_MAGIC and at + size == end:
            break
        record, reason = sound_record(view[at - base : min(at + size, end) - base], at)
        if record is not None:
            reason = torn(file, at - base, record)
        if record is None or reason:
            following = _next_sound(log, file, at)
            found.end = at
            if following is not None:
                reason = reason if size or magic else "zeros where a record was"
                found.holes.append((file.path, at - base, f"{reason}; the next record begins at {following}"))
            elif size or magic:
                found.torn = f"the log ends at byte {at - base} of {file.path}, in the middle of a record: {reason}"
            return following
        on_record(record)
        at += record.size
    found.end = end
    return end


def _next_sound(log: LogFiles, file: LogFile, at: int) -> int | None:
    """Where the next sound record after ``at`` begins, if there is one nearby, or in a later file that is in use."""
    found = file.next_sound(at + 1, min(at + LOOK_BEYOND_BYTES, file.end), torn=at)
    later = [each for each in log.files if each.base > file.base and any(each.view[:BLANK_BYTES])]
    while found is None and later:
        found = later[0].next_sound(later[0].base)
        del later[0]
    return found
