"""Turns ENOSPC and EDQUOT into one error that says what to do. Neighbour: files.py."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator

from mqcommon.errors import DiskFull

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def raising_disk_full(path: str, needed: int = 0) -> Iterator[None]:
    """Raise DiskFull when there is no room for ``needed`` bytes, or, with 0, for a new name in a directory."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        free = f", {shutil.disk_usage(os.path.dirname(path) or '.').free:,} are free" if needed else ""
        what = f"{needed:,} bytes" if needed else "another name"
        raise DiskFull(f"{path}: no room for {what}{free}: make room or move the store") from error
