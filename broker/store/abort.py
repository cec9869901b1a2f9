"""The file ``abort``: there while the store is open, so that a start sees that nobody closed it.

RocketMQ's holds nothing, or a process id. Ours holds the machine's boot id: under the same one, all that a killed
broker wrote is still in the page cache. A stop whose index lacks messages leaves the file, too, and says so in it:
without it RocketMQ would take the index as complete.
"""

from contextlib import suppress

from broker.store.recovery import LastStop
from mqcommon.errors import DiskFull
from mqcommon.files import FileSystem

ABORT = "abort"
_INDEX_LACKS = "closed; the index lacks messages"


def read_abort(fs: FileSystem, directory: str) -> LastStop:
    """How the store was left, as far as this file tells."""
    path = f"{directory}/{ABORT}"
    if not fs.exists(path):
        return LastStop.CLEAN
    boot_id = fs.read(path).decode("ascii", "replace").strip()
    if boot_id == _INDEX_LACKS:
        return LastStop.CLEAN
    return LastStop.KILLED if boot_id and boot_id == fs.boot_id() else LastStop.POWER_LOSS


def write_abort(fs: FileSystem, directory: str) -> None:
    """The store is open now. Durable, so that it tells of a power loss too.

    On a full disk the file is empty, or missing, and the checkpoint tells: a crash counts as a power loss then.
    """
    _write(fs, directory, fs.boot_id())


def remove_abort(fs: FileSystem, directory: str, *, index_is_complete: bool = True) -> None:
    """The store was closed, and all of it is on disk."""
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
