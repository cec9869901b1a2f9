"""How far everything is on disk: 4096 bytes.

 0     RocketMQ's: physicMsgTimestamp 8 | logicsMsgTimestamp 8 | indexMsgTimestamp 8 | masterFlushedOffset 8
       | confirmPhyOffset 8
 2048  ours, two slots of 1024, written in turn: magic 4 | sequence 8 | logOffset 8 | clean 4 | crc 4

``logOffset``: all of the log before it is on disk, and so is what queues and index hold of it. A slot with
a wrong CRC was torn by a power loss; the other one holds.
"""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from broker.store.consumequeue import ConsumeQueue
from mqcommon.files import FileSystem

CHECKPOINT_BYTES = 4096
_TIMES = struct.Struct(">qqq")
_SLOT = struct.Struct(">IqqI")
_CRC = struct.Struct(">I")
_MAGIC = 0x534B594C
_SLOTS_AT = (2048, 3072)


@dataclass(frozen=True)
class CheckpointState:
    """What the file says. ``log_offset`` is None in a file that only RocketMQ has written."""

    log_offset: int | None = None
    clean: bool = False
    log_timestamp: int = 0
    # RocketMQ: messages stored before this time (ms) are on disk, in the log and the queues.
    flushed_timestamp: int = 0

    @property
    def crashed(self) -> bool:
        """Whether it was written by a store that was open, and not closed since."""
        return self.log_offset is not None and not self.clean


class NotedEnd(NamedTuple):
    """The offsets that a queue had when its tail was copied."""

    queue: ConsumeQueue
    low: int
    next_offset: int


@dataclass
class CheckpointMark:
    """What a checkpoint is to make durable, step by step; see `MessageStore.begin_checkpoint`."""

    log_offset: int
    timestamp: int
    # So many queues were touched before the mark and are not written yet.
    left: int
    # Topics that were removed, and directories whose files were.
    gone: list[str]
    emptied: list[str]
    # (where the log starts, the ends of the index files) when the ends are to be noted on disk.
    ends_head: tuple[int, dict[str, int]] | None
    # The log up to here holds all messages that `noted` counts.
    noted_to: int
    noted: list[NotedEnd] = field(default_factory=list)


class Checkpoint:
    """The file ``path``; made when missing."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        short = fs.exists(path) and fs.size(path) < CHECKPOINT_BYTES
        if short:
            fs.remove(path)
        self._file = fs.open_map(path, CHECKPOINT_BYTES, create=True)
        self.state, self._sequence = _parse(self._file.view[:])

    def write(self, log_offset: int, log_timestamp: int, *, clean: bool = False) -> None:
        """Record that the log is durable up to ``log_offset``, and sync. Runs in any thread, one at a time."""
        self._sequence += 1
        view = self._file.view
        _TIMES.pack_into(view, 0, log_timestamp, log_timestamp, log_timestamp)
        slot = _SLOT.pack(_MAGIC, self._sequence, log_offset, clean)
        at = _SLOTS_AT[self._sequence % 2]
        view[at : at + _SLOT.size + _CRC.size] = slot + _CRC.pack(crc32(slot))
        self._file.sync()
        self.state = CheckpointState(log_offset, clean, log_timestamp, log_timestamp)

    def close(self) -> None:
        self._file.close()


def read_checkpoint(fs: FileSystem, path: str) -> CheckpointState:
    """What the file says, without opening it for writing; nothing when there is none."""
    if not fs.exists(path):
        return CheckpointState()
    return _parse(fs.read(path).ljust(CHECKPOINT_BYTES, b"\0"))[0]


def _parse(data: bytes) -> tuple[CheckpointState, int]:
    """(what it says, the sequence of its newest slot)."""
    best: tuple[int, int, int] | None = None
    for at in _SLOTS_AT:
        raw = data[at : at + _SLOT.size]
        magic, sequence, log_offset, clean = _SLOT.unpack(raw)
        (crc,) = _CRC.unpack_from(data, at + _SLOT.size)
        if magic == _MAGIC and crc == crc32(raw) and (best is None or sequence > best[0]):
            best = (sequence, log_offset, clean)
    times = _TIMES.unpack_from(data, 0)
    if best is None:
        return CheckpointState(log_timestamp=times[0], flushed_timestamp=min(times[:2])), 0
    return CheckpointState(best[1], bool(best[2]), times[0], min(times[:2])), best[0]
