"""The file ``unfinishedCut``: a truncation has begun, and must be ended before the store is used again.

crc 4 | CBOR [version, start, end, timestamp, [[topic, queueId, low, next offset, next offset before the cut,
              first place cut, end of the places]]]

Invariant: until this file is on disk, the store is not changed; once it is, all later steps can be repeated from it,
any number of times, with the same result. Nothing is appended to the log before the file is removed. So a crash at any
time leaves the old log or the cut one.
RocketMQ does not know the file: after a crash in a truncation, start Skylark once before a Java broker uses the store.

`truncate_log` and `truncate_queues` do the work on disk. No file gets shorter, not even for a moment: the event loop
may have it mapped, or open it meanwhile. Its end is overwritten with zeros instead, which are what a file has after its
last entry. `resume_truncation` does everything again at a start, since it is not known how far a crashed one went.
Neighbours: tasks/truncate.py (writes the file, and does the steps in a running store), store.py (resumes).
"""

from collections.abc import Sequence
from typing import NamedTuple

import cbor2

from skylark.broker.store.checkpoint import CheckpointMark, StoreCheckpoint, rocketmq_times
from skylark.broker.store.index.index import Index
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.segment import file_names
from skylark.broker.store.queue.ends import QueueEnds, read_queue_ends, write_queue_ends
from skylark.broker.store.queue.entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from skylark.broker.store.queue.queues import Queues
from skylark.broker.store.sums.sum_files import SumFiles
from skylark.mqcommon.disk.atomic import read_with_crc, unshare, write_with_crc
from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.errors import NewerVersion, StoreCorrupt

FILE_NAME = "unfinishedCut"
_VERSION = 1

_ZEROS = memoryview(bytes(1024 * 1024))
# From this many files on, the whole file system is synced instead.
_SYNC_TOGETHER = 100


class QueueTruncation(NamedTuple):
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


class TruncationIntent(NamedTuple):
    """The log loses the bytes ``start`` to ``end``; ``timestamp``: no message before ``start`` was stored later."""

    start: int
    end: int
    timestamp: int
    queues: list[QueueTruncation]


def write_intent(fs: FileSystem, directory: str, intent: TruncationIntent) -> None:
    """Begin the cut. Durable. After an error the file may be there, or not: see `withdraw_intent`."""
    write_with_crc(fs, f"{directory}/{FILE_NAME}", cbor2.dumps([_VERSION, *intent]))


def read_intent(fs: FileSystem, directory: str) -> TruncationIntent | None:
    """The cut that has begun; None when there is none."""
    path = f"{directory}/{FILE_NAME}"
    if not fs.exists(path):
        return None
    data = read_with_crc(fs, path)
    if data is None:
        raise StoreCorrupt(path, 0, "its CRC is wrong, so it is not known where the log must be cut")
    version, start, end, timestamp, queues = cbor2.loads(data)
    if version != _VERSION:
        raise NewerVersion(path, 0, f"version {version} of its format")
    return TruncationIntent(start, end, timestamp, [QueueTruncation(*queue) for queue in queues])


def remove_intent(fs: FileSystem, directory: str) -> None:
    """Remove the intent of a cut that is done. Durable: else a start after a power loss could cut new messages."""
    fs.remove(f"{directory}/{FILE_NAME}")
    fs.fsync_dir(directory)


def withdraw_intent(fs: FileSystem, directory: str) -> None:
    """After `write_intent` has failed: see to it that no start does this cut. If that fails, too, a start may do it."""
    # The name appears before the directory is synced, which may have failed.
    if fs.exists(f"{directory}/{FILE_NAME}"):
        remove_intent(fs, directory)


def unshare_files(fs: FileSystem, directory: str, queues: Queues, intent: TruncationIntent) -> None:
    """Give the store files of its own where a cut will overwrite files that a backup has, too. Blocks.

    Maps that are open must be let go before anything is written to these files.
    """
    of_queues = (_bytes_of(queues, cut)[:2] for cut in intent.queues)
    for of_chain, start in ((directory, intent.start), *of_queues):
        names = file_names(fs, of_chain)
        kept = [*names[:1], *(name for name in names[1:] if int(name) < start)]
        if kept:
            unshare(fs, f"{of_chain}/{kept[-1]}")


def _bytes_of(queues: Queues, cut: QueueTruncation) -> tuple[str, int, int]:
    """The directory of the queue, and the bytes in its files, from and to, that are cut."""
    directory, start, end = queues.directory, cut.next_offset * ENTRY_BYTES, cut.before * ENTRY_BYTES
    if cut.first_place >= 0:
        directory = queues.batch_directory
        start, end = cut.first_place * BATCH_ENTRY_BYTES, cut.end_place * BATCH_ENTRY_BYTES
    return f"{directory}/{cut.topic}/{cut.queue_id}", start, end


def truncate_log(fs: FileSystem, directory: str, start: int, end: int) -> None:
    """Remove bytes ``start`` to ``end`` of the log in ``directory``, durably."""
    names = file_names(fs, directory)
    # Remove the newest first, each removal durable before the next, so that there is never a gap.
    while len(names) > 1 and int(names[-1]) >= start:
        fs.remove(f"{directory}/{names.pop()}")
        fs.fsync_dir(directory)
    if names and (file := _zeroed(fs, directory, names[-1], start, end)) is not None:
        _sync([file])


def truncate_queues(fs: FileSystem, queues: Queues, cuts: Sequence[QueueTruncation]) -> None:
    """Remove the entries from the queues' files, durably. Of ``queues`` only the directories are used."""
    # In any order: the intent is on disk, and a start that finds it does all of this again.
    files: list[MappedFile] = []
    for cut in cuts:
        of_queue, start, end = _bytes_of(queues, cut)
        names = file_names(fs, of_queue)
        # The first file stays: its name says where the queue begins.
        removed = [name for name in names[1:] if int(name) >= start]
        for name in reversed(removed):
            fs.remove(f"{of_queue}/{name}")
        if removed:
            fs.fsync_dir(of_queue)
        kept = names[: len(names) - len(removed)]
        if kept and (file := _zeroed(fs, of_queue, kept[-1], start, end)) is not None:
            files.append(file)
        if len(files) >= _SYNC_TOGETHER:
            fs.sync_all(of_queue)
            while files:
                files.pop().close()
    _sync(files)


def _zeroed(fs: FileSystem, directory: str, name: str, start: int, end: int) -> MappedFile | None:
    """Write zeros over the bytes ``start`` to ``end`` that are in this file; None when none are."""
    base, path = int(name), f"{directory}/{name}"
    size = fs.size(path)
    at, stop = max(start - base, 0), min(end - base, size)
    if at >= stop:
        return None
    # Zeros instead of a shorter file: all files of a chain have one size, and zeros end the queue or the log.
    file = fs.open_map(path, size, create=False)
    try:
        while at < stop:
            zeros = _ZEROS[: stop - at]
            file.pwrite(at, zeros)
            at += len(zeros)
    except BaseException:
        file.close()
        raise
    return file


def _sync(files: list[MappedFile]) -> None:
    try:
        for file in files:
            file.sync()
    finally:
        for file in files:
            file.close()


def resume_truncation(
    fs: FileSystem,
    directory: str,
    checkpoint: StoreCheckpoint,
    log: CommitLog,
    sum_files: SumFiles,
    queues: Queues,
    index: Index,
) -> None:
    """End the cut that has begun, if there is one. ``index`` is loaded, log and queues are not. Blocks."""
    intent = read_intent(fs, directory)
    if intent is None:
        return
    # A kill may have come before the name was on disk; a power loss could then still undo the intent, but not the cut.
    # All steps are done again, as it is not known which of them were done. Each gives the same result a second time.
    fs.fsync_dir(directory)
    sum_files.cut(intent.start)
    truncate_log(fs, log.chain.directory, intent.start, intent.end)
    truncate_queues(fs, queues, intent.queues)
    for file in index.retire_after(intent.start):
        fs.remove(file.file.path)
        file.close()
    index.cut(intent.start)
    # The checkpoint and the noted ends still claim the cut bytes: lower them before the intent is removed.
    state = checkpoint.state
    if state.log_offset is not None:
        offset, timestamp = min(state.log_offset, intent.start), min(state.log_timestamp, intent.timestamp)
        mark = CheckpointMark(offset, timestamp, 0, 0, [], [], None, index.state(), noted_to=offset)
        checkpoint.write(offset, timestamp, rocketmq_times(log, mark, clean=False), is_cut=True)
    ends = read_queue_ends(fs, directory)
    if ends is not None:
        write_queue_ends(fs, directory, _cut_ends(ends, intent, index))
    remove_intent(fs, directory)


def _cut_ends(ends: QueueEnds, intent: TruncationIntent, index: Index) -> QueueEnds:
    queues = {topic: dict(by_id) for topic, by_id in ends.queues.items()}
    for cut in intent.queues:
        by_id = queues.setdefault(cut.topic, {})
        by_id.pop(cut.queue_id, None)
        if cut.next_offset:
            by_id[cut.queue_id] = cut.low, cut.next_offset
    return QueueEnds(ends.log_start, queues, index.ends(), ends.unfinished)
