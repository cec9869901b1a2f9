"""Up to where the store is on disk (the file ``checkpoint``), and how its last run ended (the file ``abort``).

``checkpoint``, 4096 bytes:

 0     RocketMQ's: physicMsgTimestamp 8 | logicsMsgTimestamp 8 | indexMsgTimestamp 8 | masterFlushedOffset 8
       | confirmPhyOffset 8
 2048  ours, two slots of 1024, written in turn: magic 4 | sequence 8 | logOffset 8 | clean 4 | logTimestamp 8
      | RocketMQ's first three, as we wrote them 24 | crc 4
      +128 and +192 in each slot, written in turn, the flush mark: magic 4 | sequence 8 | flushedTo 8 | crc 4
      +256 in each slot, the mark of a version that keeps block sums: magic 4 | sequence 8 | crc 4; +320 `TailSum`

Invariant: all of the log before ``logOffset`` is on disk, and so are the queue and index entries of its messages.
Recovery reads nothing before ``logOffset``, so a checkpoint that claims too much loses messages from their queues. It
is therefore written last, after everything that it claims is synced. A power loss can tear only the slot that is being
written: its CRC is then wrong, and the other slot, which claims less, is used.
"""

import os
import struct
import threading
from contextlib import suppress
from dataclasses import field
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from skylark.broker.store.index.index import Index, IndexState
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.log_files import HEAD_BYTES, stored_ms
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.ends import EndsTable
from skylark.mqcommon.disk.files import FileSystem, ReadableFiles
from skylark.mqcommon.errors import DiskFull
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

CHECKPOINT_BYTES = 4096
_TIMES = struct.Struct(">qqq")
_SLOT = struct.Struct(">IqqIqqqq")
_CRC = struct.Struct(">I")
_MAGIC = 0x534B594D
# Slots of older versions, which wrote one time to all three places.
_OLD_SLOT = struct.Struct(">IqqI")
_OLD_MAGIC = 0x534B594C
_SLOTS_AT = (2048, 3072)
# In the sector of its slot: a power loss leaves both or neither.
_MARKS_AT = (128, 192)
_MARK = struct.Struct(">Iqq")
_MARK_MAGIC = 0x534B464D
_SUMS_AT = 256
_SUMS = struct.Struct(">Iq")
_SUMS_MAGIC = 0x534B4253
# magic 4 | sequence 8 | `TailSum` 12 | crc 4
_TAIL_AT = 320
_TAIL = struct.Struct(">IqqI")
_TAIL_MAGIC = 0x534B5453


class LastStop(Enum):
    """How the last run ended."""

    CLEAN = "clean"
    KILLED = "killed"  # on this boot: everything that was written is in the page cache
    POWER_LOSS = "power loss"  # or unknown


class TailSum(NamedTuple):
    """What a checkpoint knows of the last block of the log, which is not full and so has no sum of its own.

    ``crc``: the CRC-32 of the block's bytes before the checkpoint's ``logOffset``. ``ours_from``: see `BlockSums`.
    """

    ours_from: int
    crc: int


@lazy_dataclass(frozen=True)
class CheckpointState:
    """The contents of the file. ``log_offset`` is None in a file that only RocketMQ has written."""

    log_offset: int | None = None
    clean: bool = False
    log_timestamp: int = 0
    # RocketMQ: messages stored before this time (ms) are on disk, in the log and the queues.
    flushed_timestamp: int = 0
    # Whether RocketMQ has written the file after Skylark.
    used_by_rocketmq: bool = False
    # The flush mark: all of the log before it is on disk. None in a file that RocketMQ or an older version wrote last.
    flushed_to: int | None = None
    # Whether the version that wrote the file last keeps the sums of the log's blocks as the log changes.
    keeps_sums: bool = False
    # None where the last block may have bytes that the process neither wrote nor compared, but only read from the disk.
    tail: TailSum | None = None

    @property
    def crashed(self) -> bool:
        """Whether the last writer of the file was an open store that was never closed."""
        return self.log_offset is not None and not self.clean

    @property
    def log_durable_to(self) -> int:
        """All of the log before this is known to have been on disk."""
        return max(self.log_offset or 0, self.flushed_to or 0)


class NotedEnd(NamedTuple):
    """The offsets that a queue had when its tail was copied."""

    queue: ConsumeQueue
    low: int
    next_offset: int


@lazy_dataclass
class CheckpointMark:
    """What one checkpoint makes durable, and its progress; see `MessageStore.begin_checkpoint`."""

    log_offset: int
    timestamp: int
    # The number of queues that were touched before the mark and are not written yet.
    left: int
    # The number of queue entries added in this run when the checkpoint began.
    entries: int
    # Topics that were removed; and directories whose files were removed.
    gone: list[str]
    emptied: list[str]
    # (start of the log, ends of the index files) if this checkpoint also writes `queueEnds`.
    ends_head: tuple[int, dict[str, int]] | None
    # None when there is no index.
    index_state: IndexState | None
    # The log up to here holds every message that `noted` counts.
    noted_to: int
    noted: list[NotedEnd] = field(default_factory=list)


class StoreCheckpoint:
    """The file ``path``, which is created if missing.

    The flush mark in it says how far the log alone is on disk. It is set after each fsync of the log, before the sends
    that waited are answered, and is not synced itself: a power loss leaves an earlier mark, which claims less. So
    damage before the mark is never a torn tail, and nothing after it was acknowledged with SYNC_FLUSH. A mark counts
    only with the sequence of the newest slot or a higher one: an older version, or a cut of the log, makes earlier
    marks void.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        short = fs.exists(path) and fs.size(path) < CHECKPOINT_BYTES
        if short:
            fs.remove(path)
        self._file = fs.open_map(path, CHECKPOINT_BYTES, create=True)
        self.state, self._sequence = _parse(self._file.view[:])
        # One thread may write a checkpoint while another records a flush.
        self._writing = threading.Lock()
        self._flushed_to = 0
        self._marks = 0
        # What was written last; None before the first time.
        self._last: tuple[int, int, tuple[int, int, int], bool, TailSum | None] | None = None

    def write(
        self,
        log_offset: int,
        log_timestamp: int,
        times: tuple[int, int, int],
        *,
        clean: bool = False,
        is_cut: bool = False,
        tail: TailSum | None = None,
    ) -> None:
        """Record that the log is durable up to ``log_offset``, and sync. Runs in any thread, one at a time.

        ``log_timestamp``: when its last message was stored; ``times``: the three times for RocketMQ; ``is_cut``: the
        log ends there now, so flushes that were noted before do not count; ``tail``: see `TailSum`.
        """
        view = self._file.view
        with self._writing:
            # Write the older slot: a power loss may tear the slot that is being written, and the other slot stays.
            self._sequence += 1
            self._flushed_to = log_offset if is_cut else max(self._flushed_to, log_offset)
            # Write the mark first: after a kill between the two, this mark counts for the old slot, too.
            self._put_mark()
            _TIMES.pack_into(view, 0, *times)
            slot = _SLOT.pack(_MAGIC, self._sequence, log_offset, clean, log_timestamp, *times)
            at = _SLOTS_AT[self._sequence % 2]
            sums = _SUMS.pack(_SUMS_MAGIC, self._sequence)
            view[at + _SUMS_AT : at + _SUMS_AT + len(sums) + _CRC.size] = sums + _CRC.pack(crc32(sums))
            of_tail = bytes(_TAIL.size) if tail is None else _TAIL.pack(_TAIL_MAGIC, self._sequence, *tail)
            view[at + _TAIL_AT : at + _TAIL_AT + len(of_tail) + _CRC.size] = of_tail + _CRC.pack(crc32(of_tail))
            view[at : at + _SLOT.size + _CRC.size] = slot + _CRC.pack(crc32(slot))
        self._file.sync()
        flushed = min(times[:2])
        self._last = log_offset, log_timestamp, times, clean, tail
        self.state = CheckpointState(
            log_offset, clean, log_timestamp, flushed, flushed_to=self._flushed_to, keeps_sums=True, tail=tail
        )

    def is_whole(self, data: bytes) -> bool:
        """Whether ``data`` are the bytes of the file, as far as they count. No write may run meanwhile."""
        written = sum(_read_slot(data, at) is not None for at in _SLOTS_AT) if len(data) == CHECKPOINT_BYTES else 0
        if written < min(self._sequence, len(_SLOTS_AT)):
            return False
        state, sequence = _parse(data)
        is_same = (state.log_offset, state.clean, sequence) == (self.state.log_offset, self.state.clean, self._sequence)
        return is_same and not state.used_by_rocketmq and state.flushed_to is not None

    def write_again(self) -> None:
        """Write both slots again, as `write`: the file is damaged."""
        if self._last is not None:
            log_offset, log_timestamp, times, clean, tail = self._last
            for _ in _SLOTS_AT:
                self.write(log_offset, log_timestamp, times, clean=clean, tail=tail)
            with self._writing:
                self._file.pwrite(0, memoryview(self._file.view[:]))
            self._file.sync()

    def note_flushed(self, offset: int) -> None:
        """Record that the log is on disk up to ``offset``, without a sync. For any thread."""
        with self._writing:
            if offset > self._flushed_to:
                self._flushed_to = offset
                self._put_mark()

    def _put_mark(self) -> None:
        # Write the two marks in turn: a kill may leave half of the mark that is being written.
        self._marks += 1
        at = _SLOTS_AT[self._sequence % 2] + _MARKS_AT[self._marks % 2]
        mark = _MARK.pack(_MARK_MAGIC, self._sequence, self._flushed_to)
        self._file.view[at : at + _MARK.size + _CRC.size] = mark + _CRC.pack(crc32(mark))

    def close(self) -> None:
        self._file.close()


def read_checkpoint(fs: ReadableFiles, path: str) -> CheckpointState:
    """The contents of the file, without opening it for writing; an empty state if there is none."""
    if not fs.exists(path):
        return CheckpointState()
    return _parse(fs.read(path).ljust(CHECKPOINT_BYTES, b"\0"))[0]


def is_whole_checkpoint(data: bytes) -> bool:
    """Whether ``data``, all bytes of the file, tell how far the store was on disk, as Skylark or RocketMQ wrote them.

    One slot is enough: a power loss may tear the other slot. RocketMQ writes no slot.
    """
    if len(data) < CHECKPOINT_BYTES:
        return False
    has_slot = any(_read_slot(data, at) is not None for at in _SLOTS_AT)
    return has_slot or not any(any(data[at : at + _SLOT.size + _CRC.size]) for at in _SLOTS_AT)


def make_durable(
    fs: FileSystem, directory: str, log: CommitLog, index: Index, ends: EndsTable, mark: CheckpointMark
) -> None:
    """Sync log and index up to ``mark``, whose queues are written already. For any thread.

    Must be done before the checkpoint is written. `queueEnds` counts messages up to ``noted_to``, so the log is synced
    that far first: otherwise a power loss could take messages that the next start expects to find.
    """
    # The order matters: the log, the names of removed files, the index, and last queueEnds, which relies on all of
    # them.
    if log.flushed < (mark.log_offset if mark.ends_head is None else mark.noted_to):
        log.flush()
    for emptied in mark.emptied:
        # The directory may be removed, too: then the nearest existing parent directory is synced.
        while not fs.is_dir(emptied):
            emptied = os.path.dirname(emptied)
        fs.fsync_dir(emptied)
    index.sync()
    if mark.ends_head is not None:
        ends.write(fs, directory, *mark.ends_head)


def rocketmq_times(log: CommitLog, mark: CheckpointMark, *, clean: bool) -> tuple[int, int, int]:
    """physicMsgTimestamp, logicsMsgTimestamp, indexMsgTimestamp for ``mark``. Reads a file: for any thread.

    After a crash RocketMQ drops the newest index file if it has messages stored after the third time, as it has nearly
    always. RocketMQ must then read again all messages of that file, and all that the index lacks. So the first two
    times are at most the time of the first of these messages. After a clean stop RocketMQ drops no file and reads
    nothing again.
    """
    latest, index = mark.timestamp, mark.index_state
    if index is None:
        return latest, latest, 0
    if clean and index.position >= mark.log_offset:
        return latest, latest, latest
    again_from = latest
    if index.newest_begin_ms is not None:
        again_from = index.newest_begin_ms
    elif index.position < mark.log_offset:
        again_from = stored_ms(log.chain.read_file(index.position, HEAD_BYTES)) or 0
    again_from = min(again_from, latest)
    return again_from, again_from, index.older_end_ms


def _parse(data: bytes) -> tuple[CheckpointState, int]:
    """(state, sequence of the newest slot)."""
    times = _TIMES.unpack_from(data, 0)
    found = [slot for at in _SLOTS_AT if (slot := _read_slot(data, at)) is not None]
    if not found:
        return CheckpointState(log_timestamp=times[0], flushed_timestamp=min(times[:2])), 0
    # The newest whole slot. RocketMQ's times beside it differ if RocketMQ has written the file since.
    sequence, log_offset, clean, log_timestamp, written = max(found)
    if not written:
        # Written by an older version, which put the same time in all three places.
        log_timestamp, written = times[0], (times[0],) * 3
    # RocketMQ's times differ from those in the slot if RocketMQ has used the store since. After a crash it reads the
    # log again from the newest file whose first message was stored 3 s before the first two times, and drops index
    # files with messages stored after the third one. So these times must not claim more than the index holds: see
    # `rocketmq_times`.
    is_foreign = times != written
    flushed_to = None if is_foreign else _read_marks(data, sequence)
    flushed, keeps_sums, tail = min(times[:2]), _keeps_sums(data, sequence), _read_tail(data, sequence)
    return CheckpointState(
        log_offset, bool(clean), log_timestamp, flushed, is_foreign, flushed_to, keeps_sums, tail
    ), sequence


def _read_marks(data: bytes, sequence: int) -> int | None:
    """The newest flush mark that is at least as new as the slot ``sequence``."""
    found: list[tuple[int, int]] = []
    for at in (slot + mark for slot in _SLOTS_AT for mark in _MARKS_AT):
        magic, of_slot, flushed_to = _MARK.unpack_from(data, at)
        (crc,) = _CRC.unpack_from(data, at + _MARK.size)
        if magic == _MARK_MAGIC and crc == crc32(data[at : at + _MARK.size]) and of_slot >= sequence:
            found.append((of_slot, flushed_to))
    return max(found)[1] if found else None


def _keeps_sums(data: bytes, sequence: int) -> bool:
    """Whether a version that keeps block sums has written the slot ``sequence``: an older one leaves an old mark."""
    at = _SLOTS_AT[sequence % 2] + _SUMS_AT
    mark = data[at : at + _SUMS.size]
    return mark == _SUMS.pack(_SUMS_MAGIC, sequence) and _CRC.unpack_from(data, at + _SUMS.size)[0] == crc32(mark)


def _read_tail(data: bytes, sequence: int) -> TailSum | None:
    at = _SLOTS_AT[sequence % 2] + _TAIL_AT
    magic, of_slot, *tail = _TAIL.unpack_from(data, at)
    is_whole = _CRC.unpack_from(data, at + _TAIL.size)[0] == crc32(data[at : at + _TAIL.size])
    return TailSum(*tail) if is_whole and (magic, of_slot) == (_TAIL_MAGIC, sequence) else None


def _read_slot(data: bytes, at: int) -> tuple[int, int, int, int, tuple[int, ...]] | None:
    """(sequence, log offset, clean, log timestamp, RocketMQ's times); None if the slot is torn or was never written."""
    for layout, wanted in ((_SLOT, _MAGIC), (_OLD_SLOT, _OLD_MAGIC)):
        magic, sequence, log_offset, clean, *more = layout.unpack_from(data, at)
        (crc,) = _CRC.unpack_from(data, at + layout.size)
        if magic == wanted and crc == crc32(data[at : at + layout.size]):
            log_timestamp, *written = more or [0]
            return sequence, log_offset, clean, log_timestamp, tuple(written)
    return None


# ``abort`` exists while the store is open. RocketMQ's file is empty or holds a process id. Ours holds the machine's
# boot id: if that is unchanged at the next start, everything that a killed broker wrote is still in the page cache. A
# stop also leaves the file when the index lacks messages, with a text that says so: without the file, RocketMQ would
# take the index as complete.
ABORT = "abort"
_INDEX_LACKS = "closed; the index lacks messages"
_PAGES_LOST = "killed; pages are lost"


def read_abort(fs: ReadableFiles, directory: str) -> LastStop:
    """How the last run ended, judging by this file alone."""
    path = f"{directory}/{ABORT}"
    if not fs.exists(path):
        return LastStop.CLEAN
    boot_id = fs.read(path).decode("ascii", "replace").strip()
    if boot_id == _INDEX_LACKS:
        return LastStop.CLEAN
    return LastStop.KILLED if boot_id and boot_id == fs.boot_id() else LastStop.POWER_LOSS


def write_abort(fs: FileSystem, directory: str) -> None:
    """Mark the store as open. The file is synced, so that it is there after a power loss too.

    On a full disk the file is empty or missing. The checkpoint then shows the crash, which is treated as a power loss.
    """
    _write(fs, directory, fs.boot_id())


def mark_pages_lost(fs: FileSystem, directory: str) -> None:
    """Have the next start, too, recover as after a power loss, although this boot goes on."""
    _write(fs, directory, _PAGES_LOST)


def remove_abort(fs: FileSystem, directory: str, *, index_is_complete: bool = True) -> None:
    """Mark the store as closed, with everything on disk; without ``index_is_complete`` all but the index."""
    path = f"{directory}/{ABORT}"
    if not index_is_complete:
        _write(fs, directory, _INDEX_LACKS)
    elif fs.exists(path):
        fs.remove(path)


def _write(fs: FileSystem, directory: str, text: str) -> None:
    with suppress(DiskFull):
        file = fs.open_append(f"{directory}/{ABORT}")
        try:
            file.truncate(0)
            with suppress(DiskFull):
                file.write(f"{text}\n".encode())
            file.sync()
        finally:
            file.close()
