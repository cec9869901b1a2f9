"""The noted ends of all queues: with them a start need not open each queue, and notices lost queues.

File ``queueEnds``: crc 4 | CBOR [version, log start, {topic: {queueId: [min, next]}}, [[index file, end physical]],
[[topic, queueId] whose rebuilding has begun]]

It is written at open, at a clean stop, and every 10 s with a checkpoint. After a clean stop it is exact, after a crash
it is a lower bound. The store works without it (RocketMQ has none): queues are then taken as they are found.

File ``queueEnds.since``: crc of ``queueEnds`` 4 | for each later checkpoint: crc 4 | size 4 | CBOR [[topics removed],
{topic: {queueId: [min, next]}} of the queues that it has written]. A killed process leaves this file whole, so the next
start notices any missing part of a queue file. After a power loss the file is not used, as it is not synced.
"""

import struct
from collections.abc import Mapping
from dataclasses import field
from typing import Any
from zlib import crc32

import cbor2

from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.disk.files import FileSystem, ReadableFiles
from skylark.mqcommon.errors import DiskFull, OutOfDescriptors
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

FILE_NAME = "queueEnds"
SINCE_NAME = "queueEnds.since"
_VERSION = 2
_CRC = struct.Struct(">I")
_FRAME = struct.Struct(">II")
# CBOR: an array of five items, and a map whose number of pairs follows as 4 bytes.
_ARRAY_OF_5 = b"\x85"
_MAP = struct.Struct(">BI")


@lazy_dataclass(frozen=True)
class QueueEnds:
    """``queues``: topic -> queue -> (min offset, next offset); ``index_files``: name -> last physical offset in it.

    ``unfinished``: queues that a start began to rebuild. Any of their entries may be missing.
    """

    log_start: int = 0
    queues: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    index_files: dict[str, int] = field(default_factory=dict)
    unfinished: tuple[tuple[str, int], ...] = ()

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue's noted next offset; 0 if it is not noted."""
        return self.queues.get(topic, {}).get(queue_id, (0, 0))[1]


def write_queue_ends(fs: FileSystem, directory: str, ends: QueueEnds) -> None:
    """Replace the file, atomically and durably. A full disk removes it: old ends may name queues that are gone."""
    rows: list[Any] = [_VERSION, ends.log_start, ends.queues, list(ends.index_files.items()), ends.unfinished]
    _write(fs, directory, cbor2.dumps(rows))


def _write(fs: FileSystem, directory: str, data: bytes) -> bool:
    """Whether the file was written."""
    path = f"{directory}/{FILE_NAME}"
    try:
        write_with_crc(fs, path, data)
    except OutOfDescriptors:
        raise
    except DiskFull:
        if fs.exists(path):
            fs.remove(path)
            fs.fsync_dir(directory)
        return False
    return True


class EndsTable:
    """The ends of all queues, encoded per topic, as few of 100,000 queues change between two checkpoints.

    Only the thread that makes a checkpoint uses it.
    """

    def __init__(self) -> None:
        self._topics: dict[str, bytes] = {}
        # The crc of `queueEnds` if this table wrote it last, and whether `queueEnds.since` belongs to it.
        self._written: bytes | None = None
        self._is_since = False

    def replace(self, queues: Mapping[str, Mapping[int, tuple[int, int]]]) -> None:
        """Forget everything, and take the ends of all ``queues``; the caller writes `queueEnds`."""
        self._written = None
        self._topics = {topic: cbor2.dumps(by_id) for topic, by_id in queues.items() if by_id}

    def drop(self, topic: str) -> None:
        """Forget the queues of ``topic``."""
        self._topics.pop(topic, None)

    def set(self, topic: str, ends: Mapping[int, tuple[int, int]]) -> None:
        """Set the (min, next) offsets of some queues of ``topic``."""
        known = self._topics.get(topic)
        self._topics[topic] = cbor2.dumps({**(cbor2.loads(known) if known else {}), **ends})

    def write(self, fs: FileSystem, directory: str, log_start: int, index_files: dict[str, int]) -> None:
        """As `write_queue_ends`."""
        parts = [_ARRAY_OF_5, cbor2.dumps(_VERSION), cbor2.dumps(log_start), _MAP.pack(0xBA, len(self._topics))]
        for topic, ends in self._topics.items():
            parts += (cbor2.dumps(topic), ends)
        parts += (cbor2.dumps(list(index_files.items())), cbor2.dumps(()))
        data = b"".join(parts)
        # Remove the additions first: if `queueEnds` gets the same bytes as before, they would still seem to be its own.
        remove_since(fs, directory)
        self._written = _CRC.pack(crc32(data)) if _write(fs, directory, data) else None
        self._is_since = False

    def add(
        self, fs: FileSystem, directory: str, gone: list[str], ends: Mapping[str, Mapping[int, tuple[int, int]]]
    ) -> None:
        """Add what one checkpoint has changed to `queueEnds.since`. Without room on the disk it is left out."""
        if self._written is None or not (gone or ends):
            return
        data = cbor2.dumps([gone, ends])
        frame = _FRAME.pack(crc32(data), len(data)) + data
        try:
            file = fs.open_append(f"{directory}/{SINCE_NAME}")
            try:
                if not self._is_since:
                    file.truncate(0)
                    frame = self._written + frame
                file.write(frame)
            finally:
                file.close()
        except DiskFull:
            # A part of the frame may have been written, and no later frame would be read.
            self._written = None
        else:
            self._is_since = True


def remove_since(fs: FileSystem, directory: str) -> None:
    """Remove `queueEnds.since`. A start does so unless the last process was killed: else the file may be wrong."""
    path = f"{directory}/{SINCE_NAME}"
    if fs.exists(path):
        fs.remove(path)


def read_queue_ends(fs: ReadableFiles, directory: str) -> QueueEnds | None:
    """The contents of both files; None if `queueEnds` is missing or damaged."""
    data = read_with_crc(fs, f"{directory}/{FILE_NAME}")
    if data is None:
        return None
    version, *rows = cbor2.loads(data)
    if version != _VERSION:
        return None
    log_start, queues, index_files, unfinished = rows
    ends = {topic: {int(n): (low, high) for n, (low, high) in by_id.items()} for topic, by_id in queues.items()}
    _add_since(fs, directory, _CRC.pack(crc32(data)), ends)
    return QueueEnds(log_start, ends, dict(index_files), tuple((topic, number) for topic, number in unfinished))


def is_whole_since(data: bytes) -> bool:
    """Whether ``data``, of `queueEnds.since`, has nothing but whole frames."""
    at = _CRC.size
    while at + _FRAME.size <= len(data):
        crc, size = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if not size or crc32(data[at : at + size]) != crc:
            return False
        at += size
    return at == len(data)


def _add_since(fs: ReadableFiles, directory: str, written: bytes, ends: dict[str, dict[int, tuple[int, int]]]) -> None:
    path = f"{directory}/{SINCE_NAME}"
    raw = fs.read(path) if fs.exists(path) else b""
    at = _CRC.size
    # Additions to another `queueEnds`: a start or a stop wrote a new one, and their removal did not reach the disk.
    if raw[:at] != written:
        return
    # Up to the first frame that is not whole: the process was killed while it wrote that one.
    while at + _FRAME.size <= len(raw):
        crc, size = _FRAME.unpack_from(raw, at)
        at += _FRAME.size
        data = raw[at : at + size]
        # A frame has data: the CRC of no bytes is 0, so zeros at the end of the file would look like an empty frame.
        if not data or len(data) < size or crc32(data) != crc:
            return
        gone, changed = cbor2.loads(data)
        for topic in gone:
            ends.pop(topic, None)
        for topic, by_id in changed.items():
            known = ends.setdefault(topic, {})
            known.update((int(number), (low, high)) for number, (low, high) in by_id.items())
        at += size
