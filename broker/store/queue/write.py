"""Writes entries of a queue to its files, in a thread, from a copy that the event loop made.

A file has its full size at once, as RocketMQ's has. Its blocks are allocated as needed, before they are written, so
that a full disk raises DiskFull: 4 KiB at first, then twice as much each time up to 80 KiB, then in steps of 80 KiB.
"""

from dataclasses import dataclass

from broker.store.log.segment import NAME_DIGITS
from mqcommon.disk.files import FileSystem, MappedFile

_FIRST_BYTES = 4096
_STEP_BYTES = 20 * 4096


@dataclass(frozen=True, slots=True)
class QueueWrite:
    """``data`` goes to position ``at`` of the queue in ``directory``, whose files have ``segment_bytes``."""

    directory: str
    segment_bytes: int
    at: int
    data: bytes

    def run(self, fs: FileSystem) -> list[MappedFile]:
        """Write it; the caller syncs and closes the files. Blocks. After DiskFull or OSError it may be half written."""
        files: list[MappedFile] = []
        try:
            at, end = self.at, self.at + len(self.data)
            while at < end:
                base = at // self.segment_bytes * self.segment_bytes
                stop = min(end, base + self.segment_bytes)
                file = self._open(fs, f"{self.directory}/{base:0{NAME_DIGITS}d}")
                files.append(file)
                file.allocate(_allocated_to(stop - base, self.segment_bytes))
                file.pwrite(at - base, memoryview(self.data)[at - self.at : stop - self.at])
                at = stop
        except BaseException:
            for file in files:
                file.close()
            raise
        return files

    def _open(self, fs: FileSystem, path: str) -> MappedFile:
        try:
            return fs.open_map(path, self.segment_bytes, create=True, allocated=0)
        except FileNotFoundError:
            fs.mkdirs(self.directory)
            return fs.open_map(path, self.segment_bytes, create=True, allocated=0)


def _allocated_to(end: int, segment_bytes: int) -> int:
    """How many bytes of a file have blocks when those before ``end`` are written."""
    allocated = _FIRST_BYTES
    while allocated < min(end, _STEP_BYTES):
        allocated *= 2
    if allocated > _STEP_BYTES:
        allocated = -(-end // _STEP_BYTES) * _STEP_BYTES
    return min(allocated, segment_bytes)
