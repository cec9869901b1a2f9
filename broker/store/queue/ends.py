"""What the store had at its last checkpoints: so that a start need not open each queue, and sees when one is gone.

File ``queueEnds``: crc 4 | CBOR [version, log start, {topic: {queueId: [min, next]}}, [[index file, end physical]],
[[topic, queueId] whose making anew has begun]]

It is written at open, at a clean stop, and now and then with a checkpoint. After a clean stop it is exact, after a
crash a lower bound. It is no more than a hint: without it (RocketMQ has none) queues are taken as they are found.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import cbor2

from mqcommon.atomic import write_atomic
from mqcommon.errors import DiskFull, OutOfDescriptors
from mqcommon.files import FileSystem

FILE_NAME = "queueEnds"
_VERSION = 2
_CRC = struct.Struct(">I")
# CBOR: an array of five items, and a map whose number of pairs follows as 4 bytes.
_ARRAY_OF_5 = b"\x85"
_MAP = struct.Struct(">BI")


@dataclass(frozen=True)
class QueueEnds:
    """``queues``: topic -> queue -> (min offset, next offset); ``index_files``: name -> last physical offset in it.

    ``unfinished``: queues that a start began to make anew. Their files may hold any part of what they should.
    """

    log_start: int = 0
    queues: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    index_files: dict[str, int] = field(default_factory=dict)
    unfinished: tuple[tuple[str, int], ...] = ()

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the queue had reached; 0 when it is not known."""
        return self.queues.get(topic, {}).get(queue_id, (0, 0))[1]


def write_queue_ends(fs: FileSystem, directory: str, ends: QueueEnds) -> None:
    """Make ``ends`` durable, in one step. On a full disk there are none then: old ones may name what is gone."""
    rows: list[Any] = [_VERSION, ends.log_start, ends.queues, list(ends.index_files.items()), ends.unfinished]
    _write(fs, directory, cbor2.dumps(rows))


def _write(fs: FileSystem, directory: str, data: bytes) -> None:
    path = f"{directory}/{FILE_NAME}"
    try:
        write_atomic(fs, path, _CRC.pack(crc32(data)) + data)
    except OutOfDescriptors:
        raise
    except DiskFull:
        if fs.exists(path):
            fs.remove(path)
            fs.fsync_dir(directory)


class EndsTable:
    """The ends of all queues, encoded by topic: of 100,000 queues few change between two checkpoints.

    It belongs to whoever makes a checkpoint: one thread at a time.
    """

    def __init__(self) -> None:
        self._topics: dict[str, bytes] = {}

    def replace(self, queues: Mapping[str, Mapping[int, tuple[int, int]]]) -> None:
        """``queues``: all there are."""
        self._topics = {topic: cbor2.dumps(by_id) for topic, by_id in queues.items() if by_id}

    def drop(self, topic: str) -> None:
        """The queues of ``topic`` are gone."""
        self._topics.pop(topic, None)

    def note(self, topic: str, ends: Mapping[int, tuple[int, int]]) -> None:
        """Some queues of ``topic`` have these (min, next) offsets."""
        known = self._topics.get(topic)
        self._topics[topic] = cbor2.dumps({**(cbor2.loads(known) if known else {}), **ends})

    def write(self, fs: FileSystem, directory: str, log_start: int, index_files: dict[str, int]) -> None:
        """As `write_queue_ends`."""
        parts = [_ARRAY_OF_5, cbor2.dumps(_VERSION), cbor2.dumps(log_start), _MAP.pack(0xBA, len(self._topics))]
        for topic, ends in self._topics.items():
            parts += (cbor2.dumps(topic), ends)
        parts += (cbor2.dumps(list(index_files.items())), cbor2.dumps(()))
        _write(fs, directory, b"".join(parts))


def read_queue_ends(fs: FileSystem, directory: str) -> QueueEnds | None:
    """What the file says; None when there is none, or it is broken."""
    path = f"{directory}/{FILE_NAME}"
    if not fs.exists(path):
        return None
    raw = fs.read(path)
    data = raw[_CRC.size :]
    if len(raw) < _CRC.size or _CRC.unpack_from(raw)[0] != crc32(data):
        return None
    version, *rows = cbor2.loads(data)
    if version != _VERSION:
        return None
    log_start, queues, index_files, unfinished = rows
    ends = {topic: {int(n): (low, high) for n, (low, high) in by_id.items()} for topic, by_id in queues.items()}
    return QueueEnds(log_start, ends, dict(index_files), tuple((topic, number) for topic, number in unfinished))
