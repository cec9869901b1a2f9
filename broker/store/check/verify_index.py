"""Checks index files: headers, slots and entries must match the keys of the messages. Read only."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from broker.store.index.index_file import (
    ENTRY,
    ENTRY_BYTES,
    MAX_SECONDS,
    SLOT_BYTES,
    SLOTS_AT,
    IndexFile,
    index_file_bytes,
)
from broker.store.index.log_keys import record_keys
from broker.store.log.log_files import LogFiles
from mqcommon.disk.files import FileSystem
from mqcommon.message.javahash import KeyHasher

_unpack_entry = ENTRY.unpack_from


class _Facts(NamedTuple):
    """What the index entries of a message must contain."""

    hashes: frozenset[int]
    seconds: int


class IndexCheck:
    """Checks the files of ``directory``, made for ``slots`` slots and ``capacity`` entries."""

    def __init__(self, fs: FileSystem, directory: str, slots: int, capacity: int) -> None:
        self._fs = fs
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._hasher = KeyHasher()
        self.count = 0
        self.unchecked: list[str] = []

    def finish(self, log: LogFiles, log_start: int, log_end: int) -> Iterator[tuple[str, int, str]]:
        """(path, offset in it, what is wrong) of each wrong file."""
        size = index_file_bytes(self._slots, self._capacity)
        before = -1
        for name in self._fs.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if not name.isdigit():
                continue
            self.count += 1
            if (found := self._fs.size(path)) != size:
                self.unchecked.append(
                    f"{path}: it has {found:,} bytes, but maxHashSlotNum and maxIndexNum make {size:,}; give the"
                    " broker's conf file with -c. With these settings the broker would rebuild the index when it starts"
                )
                continue
            file = IndexFile(self._fs.open_map(path, size, create=False), self._slots, self._capacity)
            try:
                yield from self._check(file, path, log, (before, log_start, log_end))
                before = file.end_physical
            finally:
                file.close()

    def _check(
        self, file: IndexFile, path: str, log: LogFiles, bounds: tuple[int, int, int]
    ) -> Iterator[tuple[str, int, str]]:
        before, log_start, log_end = bounds
        if file.count > 1 and not file.is_sound(before, log_end):
            yield path, 0, "its header is impossible"
            return
        for physical, stored_ms in ((file.begin_physical, file.begin_ms), (file.end_physical, file.end_ms)):
            if file.count > 1 and physical >= log_start and log.store_time_at(physical) != stored_ms:
                yield path, 0, f"its header says that the message at {physical} was stored at {stored_ms}"
                return
        yield from self._check_entries(file, path, log, log_start)

    def _check_entries(
        self, file: IndexFile, path: str, log: LogFiles, log_start: int
    ) -> Iterator[tuple[str, int, str]]:
        """Find the first wrong entry or slot: the chains of the slots must lead to each message."""
        newest = array("i", bytes(file.slots * SLOT_BYTES))
        physical, facts = -1, None
        for number in range(1, file.count):
            at, known = file.entries_at + number * ENTRY_BYTES, physical
            key_hash, physical, seconds, previous = _unpack_entry(file.view, at)
            if physical >= log_start and log.store_time_at(physical) < 0:
                yield path, at, f"entry {number} points at {physical}, where no record begins"
                return
            if physical != known:
                facts = self._facts(file, log, physical) if physical >= log_start else None
            is_right = facts is None or (key_hash in facts.hashes and seconds == facts.seconds)
            if not is_right or key_hash < 0 or previous != newest[key_hash % file.slots]:
                yield path, at, f"entry {number} does not match any key of the message at {physical}"
                return
            newest[key_hash % file.slots] = number
        if file.count > 1 and physical != file.end_physical:
            yield path, 0, f"its header says that its last message is at {file.end_physical}, not at {physical}"
        slots = file.newest_entries()
        if slots != newest:
            place = next(place for place, number in enumerate(newest) if slots[place] != number)
            yield path, SLOTS_AT + place * SLOT_BYTES, f"slot {place} does not point at entry {newest[place]}"

    def _facts(self, file: IndexFile, log: LogFiles, physical: int) -> "_Facts | None":
        """None if the record is damaged, which the check of the log reports."""
        record = log.record_at(physical)
        if record is None:
            return None
        # An index of an older version lacks the keys of messages in batches, but has no others.
        prefix, known = record.topic.encode() + b"#", record_keys(record)
        hashes = frozenset(self._hasher.index_hash(prefix + key) for key in known)
        return _Facts(hashes, min(max((record.store_timestamp - file.begin_ms) // 1000, 0), MAX_SECONDS))
