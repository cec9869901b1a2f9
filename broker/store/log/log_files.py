"""Read-only access to the commit log's files, however damaged they are."""

import mmap
from collections.abc import Callable, Iterator
from functools import partial

from skylark.broker.store.log.segment import file_names, file_path
from skylark.broker.store.log.valid_record import past_torn, valid_record
from skylark.mqcommon.disk.files import ReadableFiles, ReadableMap
from skylark.mqcommon.disk.loading import PIECE_BYTES, LossyMap, load
from skylark.mqcommon.message.flags import HOSTS_V6
from skylark.mqcommon.message.layout import (
    BLANK_BYTES,
    HEAD_V4,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    SIZE_MAGIC,
    STORE_TIME,
)
from skylark.mqcommon.message.record import Record

_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = HEAD_V4.starts["magic"]
_HEAD = HEAD_V4.reader("magic", "physical_offset", "sys_flag")

# The bytes of a file that `stored_ms` needs.
HEAD_BYTES = max(head.ends["store_timestamp"] for head in HEADS.values())
_MAGIC_FLAG = HEAD_V4.reader("magic", "sys_flag")


class LogFile:
    """One file: bytes ``base`` to ``end`` of the log. `load` bytes before they are read from ``view``."""

    def __init__(self, path: str, base: int, map_: ReadableMap) -> None:
        self.path = path
        self.base = base
        self.size = map_.size
        self.end = base + map_.size
        self.map = map_

    @property
    def view(self) -> mmap.mmap:
        """The bytes of the file; another view after each `load` that has met lost bytes."""
        return self.map.view

    def load(self, at: int, size: int) -> None:
        """Have up to ``size`` bytes of the file from ``at`` on in memory. Blocks. Unreadable."""
        load(self.map, at, min(size, self.size - at))

    def next_sound(self, start: int, end: int | None = None, *, torn: int | None = None) -> int | None:
        """Physical offset of the first sound record at or after ``start`` (and before ``end``).

        ``torn``: where the sound records ended. The records of a batch that was being written there do not count.
        """
        base = self.base
        if torn is not None and base <= torn < self.end:
            self.load(torn - base, BLANK_BYTES)
            start = max(start, base + past_torn(self.view, torn - base))
        first = max(start - base, 0) + _MAGIC_AT
        # No record begins at the file's last byte. CPython before 3.11.5 looks one byte beyond `stop` (gh-105235).
        # At the end of the map that address may be unmapped, and the process would die.
        stop = self.size - 1 if end is None else min(end - base, self.size - 1)
        found = sorted(at for magic in _MAGICS if (at := self._find(magic, first, stop)) >= 0)
        while found:
            at = found[0] - _MAGIC_AT
            if self.sound_at(base + at) is not None:
                return base + at
            again = self._find(self.view[found[0] : found[0] + 4], found[0] + 1, stop)
            found = sorted([*found[1:], again] if again >= 0 else found[1:])
        return None

    def _find(self, magic: bytes, first: int, stop: int) -> int:
        """Where ``magic`` is first found from ``first`` on, before ``stop``; -1 if nowhere. Loads the bytes."""
        while first < stop:
            end = min(first + PIECE_BYTES, stop)
            self.load(first, end - first)
            if (at := self.view.find(magic, first, end)) >= 0 or end == stop:
                return at
            first = end - len(magic) + 1
        return -1

    def sound_after(self, start: int, end: int) -> Iterator[Record]:
        """The sound records at or after ``start`` that begin before ``end``, whatever lies between them."""
        at: int | None = max(start, self.base)
        while at is not None and at < end:
            record = self.sound_at(at)
            if record is None:
                at = self.next_sound(at + 1, end)
                continue
            yield record
            at += record.size

    def sound_at(self, physical: int) -> Record | None:
        """The sound record that starts at ``physical``."""
        if not self.base <= physical <= self.end - MIN_RECORD:
            return None
        at = physical - self.base
        self.load(at, BLANK_BYTES)
        size, _ = SIZE_MAGIC.unpack_from(self.view, at)
        if not MIN_RECORD <= size <= self.size - at:
            return None
        self.load(at, size)
        return valid_record(self.view[at : at + size], physical)[0]


class LogFiles:
    """All files of ``directory`` that can be mapped. ``problems``: (path, size, problem) of the other files.

    ``on_lost`` gets (path, at, size) of bytes that the disk has lost, which are zeros then; without it, they are an
    Unreadable for who needs them.
    """

    def __init__(
        self, fs: ReadableFiles, directory: str, on_lost: Callable[[str, int, int], None] | None = None
    ) -> None:
        names = file_names(fs, directory)
        sizes = [fs.size(f"{directory}/{name}") for name in names]
        self.file_bytes = max(sizes, default=0)
        self.files: list[LogFile] = []
        self.problems: list[tuple[str, int, str]] = []
        expected = int(names[0]) if names else 0
        for name, size in zip(names, sizes, strict=True):
            path = f"{directory}/{name}"
            if int(name) != expected:
                self.problems.append((file_path(directory, expected), 0, "the file is missing"))
            if size != self.file_bytes and name != names[-1]:
                # The last one may be short: a crash may have come before it was allocated.
                self.problems.append((path, size, f"the file ends after {size:,} of {self.file_bytes:,} bytes"))
            expected = int(name) + self.file_bytes
            if size:
                map_ = fs.open_map(path, size, create=False)
                if on_lost is not None:
                    map_ = LossyMap(map_, partial(on_lost, path))
                self.files.append(LogFile(path, int(name), map_))
        self.total_bytes = sum(sizes) or 1

    def at(self, offset: int) -> LogFile | None:
        """The file that holds ``offset``; in a gap, the next file."""
        return next((file for file in self.files if file.end > offset), None)

    def next_sound_after(self, torn: int) -> int | None:
        """Physical offset of the first sound record after ``torn``, where the sound records ended, in any file."""
        for file in self.files:
            if file.end > torn + 1 and (found := file.next_sound(torn + 1, torn=torn)) is not None:
                return found
        return None

    def store_time_at(self, physical: int) -> int:
        """When the record whose head is at ``physical`` was stored (ms); -1 if no record begins there."""
        file = self.at(physical)
        if file is None or not file.base <= physical <= file.end - MIN_RECORD:
            return -1
        at = physical - file.base
        file.load(at, HEAD_BYTES)
        magic, written_at, sys_flag = _HEAD.unpack_from(file.view, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or written_at != physical:
            return -1
        return int(STORE_TIME[sys_flag & HOSTS_V6].unpack_from(file.view, at)[0])

    def record_at(self, physical: int) -> Record | None:
        """The sound record that starts at ``physical``."""
        file = self.at(physical)
        return None if file is None else file.sound_at(physical)

    def close(self) -> None:
        for file in self.files:
            file.map.close()


def stored_ms(head: bytes) -> int | None:
    """When the first record of a file was stored (ms), given the file's head; None if no record begins there."""
    if len(head) < HEAD_BYTES:
        return None
    magic, sys_flag = _MAGIC_FLAG.unpack_from(head)
    return int(STORE_TIME[sys_flag & HOSTS_V6].unpack_from(head)[0]) if magic in (MAGIC_V1, MAGIC_V2) else None
