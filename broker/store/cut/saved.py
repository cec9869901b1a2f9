"""What was cut from the log is kept in the directory ``cut``, in files named NUMBER-FROM-TO.log, the newest last.

FROM and TO are offsets of the log, and the file has exactly these bytes. The directory is bounded: after each cut, old
files go as long as there are more than KEEP_FILES, or KEEP_BYTES beside the newest.
Neighbours: survey.py, cut.py; commands/print_cut.py (prints the messages of a file).
"""

from contextlib import suppress

from broker.store.cut.survey import Survey
from mqcommon.disk.atomic import write_atomic
from mqcommon.disk.files import FileSystem
from mqcommon.errors import DiskFull

DIRECTORY = "cut"
KEEP_FILES = 20
KEEP_BYTES = 1 << 30
_SUFFIX = ".log"


def save(fs: FileSystem, directory: str, survey: Survey, start: int, end: int) -> str:
    """Write bytes ``start`` to ``end`` of the log durably to a new file; returns its path. Blocks.

    ``directory`` is the store's. DiskFull leaves no file.
    """
    kept = f"{directory}/{DIRECTORY}"
    number = max((_number(name) for name in _names(fs, kept)), default=0) + 1
    path = f"{kept}/{number:06d}-{start:020d}-{end:020d}{_SUFFIX}"
    try:
        fs.mkdirs(kept)
        fs.fsync_dir(directory)
        write_atomic(fs, path, survey.pieces())
    except DiskFull as error:
        with suppress(FileNotFoundError):
            fs.remove(f"{path}.tmp")
        raise DiskFull(
            f"the end of the log, bytes {start} to {end}, is not what the master has and must be cut, but it cannot be"
            f" saved first in {kept}: {error}. Nothing is cut until there is room; remove old files there, or other"
            " ones"
        ) from error
    return path


def prune(fs: FileSystem, directory: str) -> list[str]:
    """Remove the oldest files beyond the bounds; returns their paths. Blocks."""
    kept = f"{directory}/{DIRECTORY}"
    newest_first = sorted(_names(fs, kept), key=_number, reverse=True)
    total, removed = 0, []
    for place, name in enumerate(newest_first):
        path = f"{kept}/{name}"
        total += fs.size(path) if place else 0
        if place >= KEEP_FILES or total > KEEP_BYTES:
            fs.remove(path)
            removed.append(path)
    return removed


def start_of(path: str) -> int | None:
    """The offset in the log of the first byte of such a file; None if its name is another."""
    parts = path.rpartition("/")[2].removesuffix(_SUFFIX).split("-")
    return int(parts[1]) if len(parts) == 3 and all(map(str.isdigit, parts)) else None


def _names(fs: FileSystem, kept: str) -> list[str]:
    return [name for name in fs.listdir(kept) if name.endswith(_SUFFIX) and _number(name)]


def _number(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else 0
