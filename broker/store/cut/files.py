"""Cuts the files of log and queues. Each step can be repeated, so that a start can end what a crash interrupted.

No file gets shorter, not even for a moment: the event loop may have it mapped, or open it meanwhile. Its end is
overwritten with zeros instead, which are what a file has after its last entry.
"""

from collections.abc import Sequence

from broker.store.cut.intent import QueueCut
from broker.store.log.segment import NAME_DIGITS
from broker.store.queue.entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from broker.store.queue.queues import Queues
from mqcommon.disk.files import FileSystem, MappedFile

_ZEROS = memoryview(bytes(1024 * 1024))
# From this many files on, the whole file system is synced instead.
_SYNC_TOGETHER = 100


def cut_log(fs: FileSystem, directory: str, start: int, end: int) -> None:
    """Remove bytes ``start`` to ``end`` of the log in ``directory``, durably."""
    names = _file_names(fs, directory)
    # The newest first, and each removal durable before the next, so that there is never a gap.
    while len(names) > 1 and int(names[-1]) >= start:
        fs.remove(f"{directory}/{names.pop()}")
        fs.fsync_dir(directory)
    if names and (file := _zeroed(fs, directory, names[-1], start, end)) is not None:
        _sync([file])


def cut_queues(fs: FileSystem, queues: Queues, cuts: Sequence[QueueCut]) -> None:
    """Remove the entries from the queues' files, durably. Of ``queues`` only the directories are used."""
    files: list[MappedFile] = []
    for cut in cuts:
        directory, start, end = queues.directory, cut.next_offset * ENTRY_BYTES, cut.before * ENTRY_BYTES
        if cut.first_place >= 0:
            directory = queues.batch_directory
            start, end = cut.first_place * BATCH_ENTRY_BYTES, cut.end_place * BATCH_ENTRY_BYTES
        of_queue = f"{directory}/{cut.topic}/{cut.queue_id}"
        names = _file_names(fs, of_queue)
        removed = [name for name in names[1:] if int(name) >= start]
        for name in reversed(removed):
            fs.remove(f"{of_queue}/{name}")
        if removed:
            fs.fsync_dir(of_queue)
        kept = names[: len(names) - len(removed)]
        if kept and (file := _zeroed(fs, of_queue, kept[-1], start, end)) is not None:
            files.append(file)
        if len(files) >= _SYNC_TOGETHER:
            fs.sync_all(directory)
            while files:
                files.pop().close()
    _sync(files)


def _file_names(fs: FileSystem, directory: str) -> list[str]:
    return [name for name in fs.listdir(directory) if len(name) == NAME_DIGITS and name.isdigit()]


def _zeroed(fs: FileSystem, directory: str, name: str, start: int, end: int) -> MappedFile | None:
    """Write zeros over the bytes ``start`` to ``end`` that are in this file; None when none are."""
    base, path = int(name), f"{directory}/{name}"
    size = fs.size(path)
    at, stop = max(start - base, 0), min(end - base, size)
    if at >= stop:
        return None
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
