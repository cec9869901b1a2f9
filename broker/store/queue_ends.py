"""What the store had at its last checkpoints: so that a start need not open each queue, and sees when one is gone.

File ``queueEnds``: crc 4 | CBOR [version, log start, {topic: {queueId: [min, next]}}, [[index file, end physical]],
[[topic, queueId] whose making anew has begun]]

It is written at open, at a clean stop, and now and then with a checkpoint. After a clean stop it is exact, after a
crash a lower bound. It is no more than a hint: without it (RocketMQ has none) queues are taken as they are found.
"""

import struct
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
    data = cbor2.dumps(rows)
    path = f"{directory}/{FILE_NAME}"
    try:
        write_atomic(fs, path, _CRC.pack(crc32(data)) + data)
    except OutOfDescriptors:
        raise
    except DiskFull:
        if fs.exists(path):
            fs.remove(path)
            fs.fsync_dir(directory)


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
