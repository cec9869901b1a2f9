"""After a sync that failed, a later sync must not be trusted for the same bytes: they have to be written once more.

Linux reports the failure once, and counts the pages as written from then on. They stay in the page cache, so the next
process of this boot reads them as if nothing had happened, and its syncs succeed without them.
"""

from skylark.mqcommon.disk.files import FileSystem, MappedFile

_STEP_BYTES = 1024 * 1024


def write_again(file: MappedFile, start: int, end: int) -> None:
    """Write bytes ``start`` to ``end`` to their places, so that the next sync puts them on disk. Blocks.

    A start does this with what an earlier process of the same boot may have failed to sync. The bytes do not change, so
    a crash at any time is harmless.
    """
    for at in range(start, end, _STEP_BYTES):
        # A copy: the kernel must not read from the pages that it writes.
        file.pwrite(at, memoryview(bytes(file.view[at : min(at + _STEP_BYTES, end)])))


def sync_apart(fs: FileSystem, path: str) -> None:
    """Make all bytes written to the file ``path`` survive a power loss, for a repair that goes on after an error.

    Linux reports an error of the disk once to each descriptor. This sync has a descriptor of its own, so the owner of
    the file, which must not go on, gets the error from the owner's next sync, too. Blocks.
    """
    file = fs.open_map(path, create=False)
    try:
        file.sync()
    finally:
        file.close()
