"""The file ``abort``: it exists while the store is open. A start that finds it knows that the store was not closed.

RocketMQ's file is empty or holds a process id. Ours holds the machine's boot id: if that is unchanged at the next
start, everything that a killed broker wrote is still in the page cache. A stop also leaves the file when the index
lacks messages, with a text that says so: without the file, RocketMQ would take the index as complete.
"""

from contextlib import suppress

from broker.store.recovery import LastStop
from mqcommon.disk.files import FileSystem, ReadableFiles
from mqcommon.errors import DiskFull

ABORT = "abort"
_INDEX_LACKS = "closed; the index lacks messages"


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


def remove_abort(fs: FileSystem, directory: str, *, index_is_complete: bool = True) -> None:
    """Mark the store as closed, with everything on disk."""
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
