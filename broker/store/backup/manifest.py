"""What a backup holds: the file ``backup.json``, which is written last, so that a backup without it is not whole.

``STORE/backup/NAME`` is one backup, with the files of a store under their usual names. ``NAME.partial`` is a backup
that is being made. JSON: {"format": 1, what `Manifest` has, "files": [[path, size, written, crc], ...]}.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, field

from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import StoreError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: In the store's directory: its backups.
DIRECTORY = "backup"
FILE_NAME = "backup.json"
PARTIAL = ".partial"
FORMAT = 1
#: In a store that is not whole, until its restore is done: the command that restores it.
MARKER = "unfinishedRestore"
# Files whose rows are encoded at once: JSON holds the GIL meanwhile.
_ROWS = 500


@lazy_dataclass(frozen=True, slots=True)
class BackupFile:
    """One file: ``path`` in the backup, ``size`` in bytes; all bytes from ``written`` on are zeros.

    ``crc``: CRC-32 of the bytes before ``written``; None for a file that was linked and therefore not read.
    """

    path: str
    size: int
    written: int
    crc: int | None


@lazy_dataclass(frozen=True, slots=True)
class StoreSizes:
    """The sizes in the store's options, in bytes or entries: a store made of the backup must have the same."""

    commitlog_segment_bytes: int
    consumequeue_segment_bytes: int
    batchqueue_segment_bytes: int
    index_slots: int
    index_capacity: int


@lazy_dataclass(frozen=True, slots=True)
class Origin:
    """The broker whose store was backed up. ``kind``: master or slave; ``mode``: plain, Controller or DLedger."""

    broker_name: str
    cluster_name: str
    kind: str
    mode: str
    version: str


@lazy_dataclass(frozen=True, slots=True)
class Manifest:
    """The backup holds the log from ``log_start`` to ``log_end``, and the metadata of that moment, ``made_ms``."""

    origin: Origin
    sizes: StoreSizes
    made_ms: int
    log_start: int
    log_end: int
    files: list[BackupFile] = field(default_factory=list)

    @property
    def written(self) -> int:
        """Bytes to copy."""
        return sum(file.written for file in self.files)


def write_manifest(fs: FileSystem, directory: str, manifest: Manifest) -> None:
    """Write the file into ``directory``, durably. Blocks."""
    write_atomic(fs, f"{directory}/{FILE_NAME}", _pieces(manifest))


def _pieces(manifest: Manifest) -> Iterator[bytes]:
    head = {
        "format": FORMAT,
        "origin": asdict(manifest.origin),
        "sizes": asdict(manifest.sizes),
        "madeMs": manifest.made_ms,
        "logStart": manifest.log_start,
        "logEnd": manifest.log_end,
    }
    yield json.dumps(head, indent=1)[:-2].encode() + b',\n "files": [\n'
    for at in range(0, len(manifest.files), _ROWS):
        rows = [json.dumps([each.path, each.size, each.written, each.crc]) for each in manifest.files[at : at + _ROWS]]
        yield ("  " + ",\n  ".join(rows) + (",\n" if at + _ROWS < len(manifest.files) else "\n")).encode()
    yield b" ]\n}\n"


def read_manifest(fs: FileSystem, directory: str) -> Manifest:
    """The manifest of the backup in ``directory``. UserError if there is no whole backup that this version can read."""
    path = f"{directory}/{FILE_NAME}"
    if not fs.exists(path):
        why = "it was interrupted" if directory.rstrip("/").endswith(PARTIAL) else f"it has no {FILE_NAME}"
        raise UserError(f"{directory} is not a whole backup: {why}. Give a directory that mqadmin backup has made")
    try:
        found = json.loads(fs.read(path))
        if found["format"] != FORMAT:
            raise UserError(f"{path} was written by a newer version (format {found['format']}): restore with that one")
        return Manifest(
            Origin(**found["origin"]),
            StoreSizes(**found["sizes"]),
            found["madeMs"],
            found["logStart"],
            found["logEnd"],
            [BackupFile(*row) for row in found["files"]],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged: {type(error).__name__}: {error}; take another copy of the backup"
        ) from None


def refuse_unfinished(fs: FileSystem, directory: str) -> None:
    """StoreError when the store in ``directory`` is not whole."""
    path = f"{directory}/{MARKER}"
    if fs.exists(path):
        again = fs.read(path).decode("utf-8", "replace").strip()
        raise StoreError(f"{directory} is not whole: a restore was interrupted. Run again: {again}")


def remove_tree(fs: FileSystem, path: str, *, but: frozenset[str] = frozenset()) -> None:
    """Remove a directory and all that is in it, except the names in ``but``, which keep the directory. Blocks."""
    for name in fs.listdir(path):
        each = f"{path}/{name}"
        if name in but:
            continue
        if fs.is_dir(each):
            remove_tree(fs, each)
        else:
            fs.remove(each)
    fs.remove_empty_dir(path)
