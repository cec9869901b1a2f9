"""The file ``unfinishedCut``: a cut has begun, and must be ended before the store is used again.

crc 4 | CBOR [version, start, end, timestamp, [[topic, queueId, low, next offset, next offset before the cut,
              first place cut, end of the places]]]

Invariant: until this file is on disk, nothing of the store is changed; once it is, everything that follows can be done
again from it, any number of times, with the same result. Nothing is appended to the log before the file is gone. So a
crash at any time leaves the old log or the cut one.
RocketMQ does not know the file: after a crash in a cut, start Skylark once before a Java broker uses the store.
Neighbours: cut.py (writes it), resume.py (reads it at a start).
"""

import struct
from typing import NamedTuple
from zlib import crc32

import cbor2

from mqcommon.disk.atomic import write_atomic
from mqcommon.disk.files import FileSystem
from mqcommon.errors import StoreCorrupt

FILE_NAME = "unfinishedCut"
_VERSION = 1
_CRC = struct.Struct(">I")


class QueueCut(NamedTuple):
    """The queue goes from ``low`` to ``next_offset``; it ended at ``before``.

    Of a batch queue the entries at the places ``first_place`` to ``end_place`` are cut; -1 stands for a plain queue.
    """

    topic: str
    queue_id: int
    low: int
    next_offset: int
    before: int
    first_place: int = -1
    end_place: int = -1


class Intent(NamedTuple):
    """The log loses the bytes ``start`` to ``end``; ``timestamp``: no message before ``start`` was stored later."""

    start: int
    end: int
    timestamp: int
    queues: list[QueueCut]


def write_intent(fs: FileSystem, directory: str, intent: Intent) -> None:
    """Begin the cut. Durable; DiskFull changes nothing."""
    data = cbor2.dumps([_VERSION, *intent])
    write_atomic(fs, f"{directory}/{FILE_NAME}", _CRC.pack(crc32(data)) + data)


def read_intent(fs: FileSystem, directory: str) -> Intent | None:
    """The cut that has begun; None when there is none."""
    path = f"{directory}/{FILE_NAME}"
    if not fs.exists(path):
        return None
    raw = fs.read(path)
    data = raw[_CRC.size :]
    if len(raw) < _CRC.size or _CRC.unpack_from(raw)[0] != crc32(data):
        raise StoreCorrupt(path, 0, "its CRC is wrong, so it is not known where the log must be cut")
    version, start, end, timestamp, queues = cbor2.loads(data)
    if version != _VERSION:
        raise StoreCorrupt(path, 0, f"it was written by a newer version ({version}): start that one")
    return Intent(start, end, timestamp, [QueueCut(*queue) for queue in queues])


def remove_intent(fs: FileSystem, directory: str) -> None:
    """The cut is done. Durable: if a power loss brought the file back, the next start would cut new messages."""
    fs.remove(f"{directory}/{FILE_NAME}")
    fs.fsync_dir(directory)
