"""One index file, RocketMQ's hash table on disk.

header 40: beginTimestamp 8 | endTimestamp 8 | beginPhysical 8 | endPhysical 8 | slotCount 4
           | indexCount 4 (starts at 1)
slots:     newest index of the slot 4, each
entries:   keyHash 4 | physicalOffset 8 | seconds since beginTimestamp 4 | previous index of the slot 4, each
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from skylark.broker.store.log.residency import ColdBlocks, NotResident, bytes_got, check_resident
from skylark.broker.store.sums.growing_sums import GrowingSums, PrefixSum
from skylark.mqcommon.disk.files import MappedFile
from skylark.mqcommon.disk.loading import load
from skylark.mqcommon.errors import RequestRefused

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
SLOTS_AT = HEADER.size
# A slot is one int. `IndexFile` reads and writes all slots as one array.
SLOT_BYTES = 4
ENTRY_BYTES = ENTRY.size
MAX_SECONDS = 0x7FFFFFFF

_unpack_entry = ENTRY.unpack_from
# A new file has its full size, as in RocketMQ (420 MB). Its blocks are allocated in steps, as entries need them.
ALLOCATED_BYTES = 4 * 1024 * 1024
_SLOTS_AT_ONCE = 65_536
# For fewer entries numpy's calls would cost more than a loop.
LEAST_COLUMNS = 64
_ENTRIES_AT_ONCE = 1024
_SYSTEM_BUSY = 2


def entries_at(slots: int) -> int:
    """Where entry 0 is in a file with ``slots`` slots."""
    return SLOTS_AT + slots * SLOT_BYTES


def index_file_bytes(slots: int, capacity: int) -> int:
    """The size of a file with this many slots and entries."""
    return entries_at(slots) + capacity * ENTRY_BYTES


class IndexFile:
    """One file of ``slots`` hash slots and ``capacity`` entries."""

    def __init__(self, file: MappedFile, slots: int, capacity: int) -> None:
        self.file = file
        load(file, 0, SLOTS_AT)
        self.view = file.view
        self.slots = slots
        self.capacity = capacity
        self.entries_at = entries_at(slots)
        # Read in the machine's byte order, which is not the file's: see `_swapped`.
        self._slots = memoryview(self.view)[SLOTS_AT : self.entries_at].cast("i")
        #: The sums of the file's blocks. Header and slots have sums only in a file that gets no more entries.
        self.sums = GrowingSums(file.size)
        self.read_header()
        #: Whether this process has made the file.
        self.is_new = self.count == 1
        # Whether header and slots are in memory, and have no sums: this is asked before each new entry.
        self._may_change_slots = False

    def read_header(self) -> None:
        """Take times, places and counts from the file."""
        (self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, self.slot_count, count) = (
            HEADER.unpack_from(self.view, 0)
        )
        self.count: int = max(count, 1)

    @property
    def name(self) -> str:
        return self.file.path.rpartition("/")[2]

    @property
    def used_bytes(self) -> int:
        """Where the entries end."""
        return self.entries_at + self.count * ENTRY_BYTES

    def take_sums(self, first: int, rows: bytes, *, may_have_changed: bool) -> None:
        """Use the sums of an earlier process. ``may_have_changed``: header and slots, since the sums were written."""
        self._may_change_slots = False
        self.sums.take_rows(first, rows, self.used_bytes)
        if may_have_changed:
            self.sums.forget_to(self.entries_at)

    def slot_sums(self) -> dict[int, PrefixSum]:
        """The sums of header and slots, which must be in memory, while nothing is added."""
        found: dict[int, PrefixSum] = {}
        at = 0
        while at < self.entries_at:
            number = self.sums.number_at(at)
            block = self.sums.block(number)
            found[number] = PrefixSum.of(self.view[at : min(block.end, self.used_bytes)])
            at = block.end
        return found

    def add_sums(self, sums: Mapping[int, PrefixSum]) -> None:
        """Use these sums of blocks."""
        self._may_change_slots = False
        for number, known in sums.items():
            self.sums.put(number, known)

    def take_repair(self, sums: Mapping[int, PrefixSum]) -> None:
        """The file was made again, and its blocks have these ``sums``: a search may use them."""
        self.read_header()
        self.sums = GrowingSums(self.file.size)
        self.add_sums(sums)

    def is_sound(self, after: int, log_end: int) -> bool:
        """Whether the header is possible: its messages are between the physical offsets ``after`` and ``log_end``.

        ``after`` is the last message of the file before; both files may have keys of that message.
        """
        return 1 < self.count <= self.capacity and after <= self.begin_physical <= self.end_physical < log_end

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return self.capacity - self.count

    def put_many(
        self, hashes: Sequence[int], physicals: Sequence[int], times_ms: Sequence[int], np: Any = None
    ) -> None:
        """Add entries (key hash, physical offset, store time), at most `room` of them, and write the header.

        With numpy as ``np`` many are added by columns. DiskFull changes nothing. The order matters: first the entries,
        then the slots that point at them, then the header. A kill in between leaves slots that are ahead of the header,
        but no slot loses its older entries.
        """
        if not hashes:
            return
        # Get disk blocks and memory before anything changes: after that no step may fail half way.
        self._check_slots()
        first = self.count
        end = self.entries_at + (first + len(hashes)) * ENTRY_BYTES
        self.file.allocate(min(-(-end // ALLOCATED_BYTES) * ALLOCATED_BYTES, self.file.size))
        if first == 1:
            self.begin_physical, self.begin_ms = physicals[0], times_ms[0]
        if np is not None and len(hashes) >= LEAST_COLUMNS:
            self._put_columns(np, hashes, physicals, times_ms)
        else:
            self._put_rows(hashes, physicals, times_ms)
        self.end_physical, self.end_ms = physicals[-1], times_ms[-1]
        self._write_header()

    def _put_rows(self, hashes: Sequence[int], physicals: Sequence[int], times_ms: Sequence[int]) -> None:
        """Write the entries, then the slots."""
        first, slots = self.count, self._slots
        places = [key_hash % self.slots for key_hash in hashes]
        previous = self._newest_of(places)
        self.slot_count += previous.count(0)
        self._write_entries(b"".join(map(ENTRY.pack, hashes, physicals, self._seconds(times_ms), previous)))
        for place, number in zip(places, _swapped(range(first, self.count)), strict=True):
            slots[place] = number

    def _put_columns(self, np: Any, hashes: Sequence[int], physicals: Sequence[int], times_ms: Sequence[int]) -> None:
        """As `_put_rows`, all entries at once."""
        numbers = np.arange(self.count, self.count + len(hashes))
        entries = np.empty(len(hashes), [("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
        entries["hash"], entries["physical"] = hashes, physicals
        seconds = self._seconds(times_ms)
        entries["seconds"] = next(seconds) if isinstance(seconds, repeat) else seconds
        places = entries["hash"].astype(np.int64) % self.slots
        # This array must be dropped before the file is closed: a mapped file with an array on it cannot be closed.
        slots = np.frombuffer(self._slots, ">i4")
        previous = slots[places].astype(np.int64)
        if int(previous.max()) >= self.count or int(previous.min()) < 0:
            previous = np.array([self._known(number) for number in previous.tolist()], np.int64)
        # Several new entries in one slot: the predecessor of each is the new one before it, not the slot's old entry.
        order = np.argsort(places, kind="stable")
        again = np.flatnonzero(places[order[1:]] == places[order[:-1]])
        previous[order[again + 1]] = numbers[order[again]]
        self.slot_count += int((previous == 0).sum())
        entries["previous"] = previous
        self._write_entries(entries.tobytes())
        # If a slot gets several numbers, the last one stays.
        slots[places] = numbers

    def _write_entries(self, data: bytes) -> None:
        """Write new entries after the present ones, and count them."""
        at = self.entries_at + self.count * ENTRY_BYTES
        self.view[at : at + len(data)] = data
        self.sums.extend(at, data)
        self.count += len(data) // ENTRY_BYTES

    def newest(self, key_hash: int) -> int:
        """The newest entry in the slot of this hash, where `walk` begins; 0 if there is none."""
        place = key_hash % self.slots
        self._check(SLOTS_AT + place * SLOT_BYTES, SLOT_BYTES)
        (number,) = _swapped([self._slots[place]])
        return self._known(number)

    def walk(self, at: int, key_hash: int, begin_ms: int, end_ms: int, most: int) -> tuple[list[int], int, int]:
        """Look at up to ``most`` entries of a slot, newest first, from entry ``at`` on.

        Returns (physical offsets of entries with this hash and time range, number of entries looked at, next entry or 0
        at the end). Stops early before an entry that is on disk only; NotResident if that is the first one.
        RequestRefused while the file is damaged.
        """
        found: list[int] = []
        looked = 0
        while 0 < at < self.count and looked < most:
            entry_at = self.entries_at + at * ENTRY_BYTES
            try:
                self._check(entry_at, ENTRY_BYTES)
            except NotResident:
                if not looked:
                    raise
                break
            found_hash, physical, seconds, previous = _unpack_entry(self.view, entry_at)
            looked += 1
            stored_ms = self.begin_ms + seconds * 1000
            # Entries hold whole seconds only.
            if found_hash == key_hash and begin_ms - 1000 < stored_ms <= end_ms:
                found.append(physical)
            # Entry numbers fall along a slot. A number that does not fall is damage, and the walk would never end.
            at = previous if previous < at else 0
        return found, looked, at if 0 < at < self.count else 0

    def cut(self, physical: int) -> None:
        """Remove the entries of messages at or after ``physical``, durably; at least the first one must stay.

        Blocks: for a thread. After a crash at any time the cut can be repeated: the entries themselves stay, and each
        says what was in its slot before. The header is written when the slots are on disk.
        """
        self.sums = GrowingSums(self.file.size)
        self.file.pread(SLOTS_AT, self.entries_at - SLOTS_AT)  # so that no page fault blocks the interpreter below
        # First reset slots that a kill left past the count: they would point at entries of other messages once new
        # entries come. Then, newest first, each cut entry puts its predecessor back into its slot.
        self._settle_slots()
        count, kept = self.count, self._count_before(physical)
        if kept == count:
            return
        first_in_slot = 0
        for end in range(count, kept, -_ENTRIES_AT_ONCE):
            start = max(end - _ENTRIES_AT_ONCE, kept)
            raw = self.file.pread(self.entries_at + start * ENTRY_BYTES, (end - start) * ENTRY_BYTES)
            hashes, _, _, previous = zip(*ENTRY.iter_unpack(raw), strict=True)
            for key_hash, number in zip(reversed(hashes), reversed(_swapped(previous)), strict=True):
                self._slots[key_hash % self.slots] = number
            first_in_slot += previous.count(0)
        self.file.sync()
        _, self.end_physical, seconds, _ = self._entry(kept - 1)
        # An entry has whole seconds only: no message before it was stored later than this.
        self.end_ms = min(self.end_ms, self.begin_ms + seconds * 1000 + 999)
        self.slot_count -= first_in_slot
        self.count = kept
        self._write_header()
        self.file.sync()

    def _settle_slots(self) -> None:
        """Reset slots that point past the count, as a kill may leave some: other messages' entries will come there."""
        for at in range(0, self.slots, _SLOTS_AT_ONCE):
            numbers = _swapped_bytes(self._slots[at : at + _SLOTS_AT_ONCE].tobytes())
            if max(numbers) >= self.count or min(numbers) < 0:
                self._slots[at : at + _SLOTS_AT_ONCE] = memoryview(_swapped(map(self._known, numbers)))

    def _count_before(self, physical: int) -> int:
        """What `count` was before the first message at or after ``physical`` was added."""
        return bisect_left(range(self.count), physical, 1, key=lambda number: self._entry(number)[1])

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        return ENTRY.unpack(self.file.pread(self.entries_at + number * ENTRY_BYTES, ENTRY_BYTES))

    def newest_entries(self) -> "array[int]":
        """The newest entry of each slot; 0 where there is none."""
        return array("i", map(self._known, _swapped(self._slots)))

    def _check(self, at: int, size: int) -> None:
        """Within `resident_only`, raise NotResident unless these bytes are in memory, and fit the sums of their blocks.

        RequestRefused while a block does not fit: a search that went on could miss messages.
        """
        if bytes_got() is None:
            return
        if self.sums.suspects:
            text = f"the index file {self.name} is damaged, and is being made again from the log; try again later"
            raise RequestRefused(_SYSTEM_BUSY, text)
        is_resident = self.file.resident(at, size)
        if not is_resident or self.sums.needs_look(at, size):
            raise ColdBlocks(self.file, 0, at, size, self.sums, on_disk=not is_resident)

    def _check_slots(self) -> None:
        """NotResident if the slots are on disk only, as they may be after a start: a new entry may change any slot."""
        if self._may_change_slots:
            return
        if not self.is_new:
            if bytes_got() is not None and self.sums.needs_look(0, self.entries_at):
                raise ColdBlocks(self.file, 0, 0, self.entries_at, self.sums, on_disk=True)
            check_resident(self.file, 0, self.entries_at)
        # From now on header and slots change.
        if self.sums.sum_of(0).size:
            self.sums.forget_to(self.entries_at)
        self._may_change_slots = True

    def close(self) -> None:
        self._slots.release()
        self.file.close()

    def _newest_of(self, places: list[int]) -> "array[int]":
        """For a new entry in each of these slots in turn: the entry before it in the slot, 0 if there is none."""
        slots = self._slots
        found = _swapped([slots[place] for place in places])
        if max(found) >= self.count or min(found) < 0:
            found = array("i", map(self._known, found))
        # Several new entries in one slot: the predecessor of each is the new one before it, not the slot's old entry.
        if len(set(places)) < len(places):
            newest: dict[int, int] = {}
            for number, place in enumerate(places):
                found[number] = newest.get(place, found[number])
                newest[place] = self.count + number
        return found

    def _known(self, number: int) -> int:
        """The newest entry of a slot that says ``number``, without entries that a kill left past the header's count."""
        while number >= self.count:
            if number >= self.capacity:
                return 0
            before = _unpack_entry(self.view, self.entries_at + number * ENTRY_BYTES)[3]
            if before >= number:
                return 0
            number = before
        return max(number, 0)

    def _seconds(self, times_ms: Sequence[int]) -> Iterable[int]:
        """The times in seconds since the file's first message, as entries hold them."""
        begin_ms = self.begin_ms
        earliest, latest = (min(times_ms) - begin_ms) // 1000, (max(times_ms) - begin_ms) // 1000
        if earliest == latest and 0 <= earliest <= MAX_SECONDS:
            return repeat(earliest)
        # No CRC covers a record's time: it may be any number.
        return [min(max((time_ms - begin_ms) // 1000, 0), MAX_SECONDS) for time_ms in times_ms]

    def _write_header(self) -> None:
        times_and_places = (self.begin_ms, self.end_ms, self.begin_physical, self.end_physical)
        HEADER.pack_into(self.view, 0, *times_and_places, self.slot_count, self.count)


def _swapped(numbers: Iterable[int]) -> "array[int]":
    """Slot values converted between the file's byte order and the machine's."""
    return _swapped_bytes(array("i", numbers))


def _swapped_bytes(numbers: "bytes | array[int]") -> "array[int]":
    """As `_swapped`, for many: bytes are taken as they are."""
    swapped = array("i", numbers)
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped
