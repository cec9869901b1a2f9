"""One index file: RocketMQ's hash table on disk.

header 40: beginTimestamp 8 | endTimestamp 8 | beginPhysical 8 | endPhysical 8 | slotCount 4
           | indexCount 4 (starts at 1)
slots:     newest index of the slot 4, each
entries:   keyHash 4 | physicalOffset 8 | seconds since beginTimestamp 4 | previous index of the slot 4, each
"""

import struct
from collections.abc import Iterator

from common.files import MappedFile

_HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
SLOTS_AT = _HEADER.size


def index_file_bytes(slots: int, capacity: int) -> int:
    """The size of a file with so many slots and entries."""
    return _HEADER.size + slots * _SLOT.size + capacity * _ENTRY.size


class IndexFile:
    """One file of ``slots`` hash slots and ``capacity`` entries."""

    def __init__(self, file: MappedFile, slots: int, capacity: int) -> None:
        self.file = file
        self.view = file.view
        self.slots = slots
        self.capacity = capacity
        self.entries_at = SLOTS_AT + slots * _SLOT.size
        (self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, self.slot_count, count) = (
            _HEADER.unpack_from(self.view, 0)
        )
        self.count: int = max(count, 1)

    @property
    def name(self) -> str:
        return self.file.path.rpartition("/")[2]

    def is_sound(self, after: int, log_end: int) -> bool:
        """Whether the header can be true: a file with messages from physical offset ``after`` on, before ``log_end``.

        The keys of one message may stand in two files.
        """
        return 1 < self.count <= self.capacity and after <= self.begin_physical <= self.end_physical < log_end

    @property
    def room(self) -> int:
        """How many entries fit yet."""
        return self.capacity - self.count

    def put_many(self, entries: list[tuple[int, int, int]]) -> None:
        """Add (key hash, physical offset, store time in ms) rows, as many as there is room for, and the header."""
        if not entries:
            return
        view, slots = self.view, self.slots
        unpack_slot, pack_slot, pack_entry = _SLOT.unpack_from, _SLOT.pack_into, _ENTRY.pack
        count = self.count
        if count == 1:
            _, self.begin_physical, self.begin_ms = entries[0]
        begin_ms = self.begin_ms
        packed: list[bytes] = []
        for key_hash, physical, store_ms in entries:
            slot_at = SLOTS_AT + key_hash % slots * 4
            (previous,) = unpack_slot(view, slot_at)
            if not 0 < previous < count:
                previous = 0
                self.slot_count += 1
            packed.append(pack_entry(key_hash, physical, max((store_ms - begin_ms) // 1000, 0), previous))
            pack_slot(view, slot_at, count)
            count += 1
        at = self.entries_at + self.count * _ENTRY.size
        data = b"".join(packed)
        view[at : at + len(data)] = data
        self.count = count
        _, self.end_physical, self.end_ms = entries[-1]
        self._write_header()

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with this hash, stored within the time range; newest first."""
        (at,) = _SLOT.unpack_from(self.view, SLOTS_AT + key_hash % self.slots * 4)
        while 0 < at < self.count:
            found_hash, physical, seconds, previous = _ENTRY.unpack_from(self.view, self.entries_at + at * 20)
            stored_ms = self.begin_ms + seconds * 1000
            # Entries hold whole seconds only.
            if found_hash == key_hash and begin_ms - 1000 < stored_ms <= end_ms:
                yield physical
            if previous >= at:
                return
            at = previous

    def _write_header(self) -> None:
        times_and_places = (self.begin_ms, self.end_ms, self.begin_physical, self.end_physical)
        _HEADER.pack_into(self.view, 0, *times_and_places, self.slot_count, self.count)
