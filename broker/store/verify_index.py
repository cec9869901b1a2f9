"""Index files: whether their headers can be true and their entries point at records; read only."""

import struct
from collections.abc import Iterator

from broker.store.index_file import IndexFile, index_file_bytes
from broker.store.log_files import LogFiles
from common.files import FileSystem

_ENTRY = struct.Struct(">iqii")


class IndexCheck:
    """The files of ``directory``, made for so many slots and entries."""

    def __init__(self, fs: FileSystem, directory: str, slots: int, capacity: int) -> None:
        self._fs = fs
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self.count = 0
        self.unchecked: list[str] = []

    def finish(self, log: LogFiles, log_start: int, log_end: int) -> Iterator[tuple[str, int, str]]:
        """(path, offset in it, what is wrong) of each file that is not as it should be."""
        size = index_file_bytes(self._slots, self._capacity)
        before = -1
        for name in self._fs.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if not name.isdigit():
                continue
            self.count += 1
            if (found := self._fs.size(path)) != size:
                self.unchecked.append(
                    f"{path}: {found:,} bytes are not what maxHashSlotNum and maxIndexNum ask for ({size:,}); give the"
                    " conf file with -c, or the broker makes the index anew when it starts"
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
            yield path, 0, "its header cannot be true"
            return
        for physical, stored_ms in ((file.begin_physical, file.begin_ms), (file.end_physical, file.end_ms)):
            if file.count > 1 and physical >= log_start and log.store_time_at(physical) != stored_ms:
                yield path, 0, f"its header says that the message at {physical} was stored at {stored_ms}"
                return
        for number in range(1, file.count):
            at = file.entries_at + number * _ENTRY.size
            _, physical, seconds, previous = _ENTRY.unpack_from(file.view, at)
            pointed = physical < log_start or log.store_time_at(physical) >= 0
            if not pointed or previous >= number or previous < 0 or seconds < 0:
                yield path, at, f"entry {number} points at {physical}, where no record begins"
                return
