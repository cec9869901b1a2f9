"""Makes a store of a backup: copies its files, and lets a start recover the copy.

While that is not done, the file ``unfinishedRestore`` is in the new store: no broker opens it, and the same restore may
begin anew there. The backup itself is not changed.
Neighbours: manifest.py, taking.py, broker/commands/restore.py.
"""

from collections.abc import Callable

from skylark.broker.store.backup.manifest import MARKER, BackupFile, Manifest, remove_tree
from skylark.broker.store.backup.taking import PIECE_BYTES, SYNC_EVERY_BYTES, Progress
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull, StoreCorrupt, UserError
from skylark.mqcommon.message.ids import encode_host

#: What may be in the directory of a new store: a mount point has this.
MAY_STAY = frozenset({"lost+found", "lock"})
# From this many files on, the whole file system is synced instead.
_SYNC_TOGETHER = 100


def options_of(manifest: Manifest, directory: str) -> StoreOptions:
    """The options with which the store in ``directory``, made of the backup, is opened."""
    sizes = manifest.sizes
    return StoreOptions(
        directory,
        commitlog_segment_bytes=sizes.commitlog_segment_bytes,
        consumequeue_segment_bytes=sizes.consumequeue_segment_bytes,
        batchqueue_segment_bytes=sizes.batchqueue_segment_bytes,
        index_slots=sizes.index_slots,
        index_capacity=sizes.index_capacity,
    )


def check_files(fs: FileSystem, backup: str, manifest: Manifest) -> None:
    """StoreCorrupt unless all files are there, in their sizes."""
    for file in manifest.files:
        path = f"{backup}/{file.path}"
        size = fs.size(path) if fs.exists(path) else -1
        if size != file.size:
            what = f"the file has {size:,} of its {file.size:,} bytes" if size >= 0 else "the file is missing"
            raise StoreCorrupt(path, max(size, 0), f"{what}: take another copy of the backup")


def claim(fs: FileSystem, directory: str, needed: int, again: str) -> bool:
    """Mark ``directory`` as a store that is being made by the command ``again``; returns whether it was marked before.

    UserError when it has something else, DiskFull when it has no room for ``needed`` more bytes.
    """
    marker = f"{directory}/{MARKER}"
    is_again = fs.exists(marker)
    found = [name for name in fs.listdir(directory) if name not in MAY_STAY]
    if found and not is_again:
        raise UserError(
            f"{directory} is not empty ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''}): give a new"
            f" directory, or move this one away: mv {directory} {directory}.old"
        )
    fs.mkdirs(directory)
    free = fs.disk_usage(directory).free
    if needed > free:
        raise DiskFull(f"{directory}: the new store needs {needed:,} bytes, {free:,} are free")
    write_atomic(fs, marker, f"{again}\n".encode())
    return is_again


def new_store(fs: FileSystem, options: StoreOptions) -> MessageStore:
    """A store for a command that has no broker."""
    return MessageStore(fs, options, SystemClock(), encode_host("127.0.0.1", 0))


class Restore:
    """Restores the backup in ``backup`` to ``directory``. Steps: `prepare`, `copy`, `recover`, `finish`. All block."""

    def __init__(self, fs: FileSystem, backup: str, directory: str, manifest: Manifest) -> None:
        self._fs = fs
        self._backup = backup
        self._directory = directory
        self._manifest = manifest
        self._marker = f"{directory}/{MARKER}"

    def prepare(self) -> None:
        """Check both sides, and mark the new store as unfinished. Errors change nothing."""
        fs, directory = self._fs, self._directory
        check_files(fs, self._backup, self._manifest)
        needed = self._manifest.written - sum(fs.size(path) for path in self._leftovers())
        if claim(fs, directory, needed, f"broker restore {self._backup} {directory}"):
            remove_tree(fs, directory, but=MAY_STAY | {MARKER})

    def _leftovers(self) -> list[str]:
        paths = [f"{self._directory}/{file.path}" for file in self._manifest.files]
        return [path for path in paths if self._fs.exists(path)]

    def copy(self, progress: Progress = lambda done, total: None) -> None:
        """Copy all files. StoreCorrupt when a file is not as it was written."""
        files, total = self._manifest.files, self._manifest.written
        together = len(files) >= _SYNC_TOGETHER
        done, made = 0, set[str]()
        for file in files:
            made.add(f"{self._directory}/{file.path}".rpartition("/")[0])
            self._copy(file, lambda at, done=done: progress(done + at, total), sync=not together)  # type: ignore[misc]
            done += file.written
        if together:
            self._fs.sync_all(self._directory)
        for directory in made if not together else ():
            self._fs.fsync_dir(directory)

    def _copy(self, file: BackupFile, progress: Callable[[int], None], *, sync: bool) -> None:
        fs, source, path = self._fs, f"{self._backup}/{file.path}", f"{self._directory}/{file.path}"
        fs.mkdirs(path.rpartition("/")[0])
        copy = fs.open_append(path)
        crc = at = 0
        try:
            while at < file.written:
                piece = fs.read_part(source, at, min(PIECE_BYTES, file.written - at))
                if not piece:
                    raise StoreCorrupt(source, at, "the file ends here: take another copy of the backup")
                copy.write(piece)
                crc, at = large_crc32(piece, crc), at + len(piece)
                progress(at)
                if at % SYNC_EVERY_BYTES == 0:
                    copy.sync()
            if file.size > file.written:
                copy.truncate(file.size)
            if sync:
                copy.sync()
        finally:
            copy.close()
        if file.crc not in (None, crc):
            reason = "the file was changed since the backup was made (CRC): take another copy of the backup"
            raise StoreCorrupt(source, 0, reason)

    def recover(self, say: Callable[[str], None]) -> MessageStore:
        """Open the new store, as after a power loss: queues and index follow the log. The caller closes it.

        StoreCorrupt when the log is damaged.
        """
        store = new_store(self._fs, options_of(self._manifest, self._directory))
        store.open(say)
        return store

    def finish(self) -> None:
        """Let brokers open the store."""
        self._fs.remove(self._marker)
        self._fs.fsync_dir(self._directory)
