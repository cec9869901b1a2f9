"""Keeps bad bytes for people to look at, before they are overwritten: files in ``damaged/`` of the store."""

from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull

DIRECTORY = "damaged"
# 64 MiB if all are blocks of the log; an administrator who has looked at them removes them.
MAX_KEPT = 256


def keep_damaged(fs: FileSystem, root: str, name: str, data: bytes) -> str:
    """Keep ``data`` as the file ``name``, for the store in ``root``; returns the path, or why there is none. Blocks."""
    directory = f"{root}/{DIRECTORY}"
    path = f"{directory}/{name}"
    try:
        fs.mkdirs(directory)
        if fs.exists(path):
            return path  # of the first time: what came later may be a repair that failed
        if len(fs.listdir(directory)) >= MAX_KEPT:
            return f"not kept, as {directory} has {MAX_KEPT} files: look at them, and remove them"
        file = fs.open_append(path)
        try:
            file.write(data)
            file.sync()
        finally:
            file.close()
    except (DiskFull, OSError) as error:
        # The bytes are of no use to the broker, so a full disk does not keep it from a repair.
        return f"not kept: {error}"
    return path
