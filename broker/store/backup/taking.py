"""Takes a backup of an open store, while messages are stored: hard links of whole files, copies of the others.

The backup is what a crash would have left of the log at one moment, the cut, with the metadata of that same moment:
- Everything that the cut needs on disk is there before it: a checkpoint is written first.
- The log goes up to the cut. Whole files before the cut are linked: nobody changes them any more, and who would (a cut
  of a slave's log, a repair) gives the store files of its own first, see `unshare`. The last file is copied.
- Queues are linked and copied after the cut, a few at a time. Their entries of later messages are left out. If a queue
  is removed meanwhile, the first start of the backup makes it anew from the log.
- The newest index file changes in place, so it is left out, and built anew from the log.
- The backup's own checkpoint claims the queues as far as the checkpoint before the cut, and the log up to the cut: so
  damage in a backup is never taken for the torn end of a crash.
A file that is to be copied is linked first: with the link the bytes before the cut stay readable whatever happens to
the store, so the copying, which takes long, holds no lock. Names appear under ``NAME.partial``, which is renamed last.
Neighbours: manifest.py, restoring.py, broker/admin/backup.py (the order of the steps, and the locks).
"""

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from skylark.broker.store.backup.manifest import (
    DIRECTORY,
    PARTIAL,
    BackupFile,
    Manifest,
    Origin,
    StoreSizes,
    remove_tree,
    write_manifest,
)
from skylark.broker.store.checkpoint import StoreCheckpoint
from skylark.broker.store.inventory import Inventory
from skylark.broker.store.log.segment import file_path
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.ends import FILE_NAME as QUEUE_ENDS
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.sum_files import path_in
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull, UserError

# How much is copied at once, and between two syncs: otherwise the syncs of sends would wait for all of it.
PIECE_BYTES = 1024 * 1024
SYNC_EVERY_BYTES = 16 * 1024 * 1024
# From this many files on, the whole file system is synced instead.
_SYNC_TOGETHER = 100
_PHYSICAL_BYTES = 8

#: Called with the bytes done and the bytes in all; what it raises ends the copying.
Progress = Callable[[int, int], None]


class LogPart(NamedTuple):
    """The first ``size`` bytes of the log file that begins at ``base``; ``is_whole``: of a file that is full."""

    base: int
    size: int
    is_whole: bool


def log_parts(bases: Sequence[int], segment_bytes: int, end: int) -> list[LogPart]:
    """What a backup needs of the files at ``bases`` for a log that ends at ``end``. Pure."""
    parts = [LogPart(base, min(end - base, segment_bytes), end - base >= segment_bytes) for base in bases if base < end]
    # A log without a message may begin anywhere: its first file has the place in its name.
    return parts or [LogPart(base, 0, is_whole=False) for base in bases[:1]]


def bytes_before(entries: bytes, entry_bytes: int, log_end: int) -> int:
    """How many bytes of a queue's ``entries`` are of messages before ``log_end``. Pure.

    An entry begins with its physical offset. These rise; a blank entry, which has 0, is never the last one.
    """
    size = len(entries) // entry_bytes * entry_bytes
    while size and int.from_bytes(entries[size - entry_bytes :][:_PHYSICAL_BYTES], "big", signed=True) >= log_end:
        size -= entry_bytes
    return size


class QueueFilesNow(NamedTuple):
    """The files of a queue at one moment: they begin at ``bases``, and entries are in them up to the byte ``end``."""

    directory: str
    bases: list[int]
    segment_bytes: int
    entry_bytes: int
    end: int


def files_now(queue: ConsumeQueue) -> QueueFilesNow:
    """Only on the event loop, while no checkpoint writes the queue."""
    chain = queue.chain
    bases = [segment.base for segment in chain.segments]
    return QueueFilesNow(queue.directory, bases, chain.segment_bytes, queue.entry_bytes, queue.stored_bytes)


class _Open(NamedTuple):
    """A file of which the first ``limit`` bytes are copied, to a file of ``size`` bytes; 0: no more than is copied.

    ``entry_bytes``: of a queue; entries after the cut are left out.
    """

    path: str
    limit: int
    size: int = 0
    entry_bytes: int = 0


class StoreBackup:
    """One backup of ``store``, called ``name``; see the module.

    Steps: `begin`, `note_index`, then after a checkpoint `cut`, `link_log` and `link` of metadata, then `link_queues`
    for all queues, and `finish`. All but `note_index` and `cut` block: for any thread, one at a time.
    """

    def __init__(self, fs: FileSystem, store: MessageStore, name: str) -> None:
        self._fs = fs
        self._root = store.options.directory
        self._store = store
        #: Where the backup will be.
        self.directory = f"{self._root}/{DIRECTORY}/{name}"
        self._partial = self.directory + PARTIAL
        self._made: set[str] = set()
        self._files: list[BackupFile] = []
        self._open: list[_Open] = []
        self._index: list[str] = []
        self._bases: list[int] = []
        self._durable_end = self._timestamp = self._cuts = 0
        #: The log ends here in the backup.
        self.log_end = 0
        #: Bytes of linked files, and of files that are copied.
        self.linked = 0
        self.to_copy = 0

    @property
    def log_start(self) -> int:
        """The log starts here in the backup."""
        return self._bases[0] if self._bases else 0

    @property
    def files(self) -> int:
        """How many files the backup has."""
        return len(self._files)

    def begin(self) -> None:
        """Make the directory. UserError if there is a backup of the name."""
        if self._fs.exists(self.directory):
            raise UserError(f"{self.directory} exists already: give another name")
        if self._fs.exists(self._partial):
            remove_tree(self._fs, self._partial)
        self._mkdirs(self._partial)

    def note_index(self) -> None:
        """Note the index files that get no more entries. The checkpoint that follows syncs them."""
        self._index = [file.file.path for file in self._store.index.files[:-1]]

    def cut(self) -> None:
        """This is the moment of the backup. The caller keeps files from being removed until `link_log` is done."""
        log = self._store.log
        self.log_end, self._cuts = log.end, log.cuts
        self._bases = [segment.base for segment in log.chain.segments]
        self._durable_end = min(self._store.durable_end, log.end)
        self._timestamp = self._store.last_timestamp

    def link_log(self, most_used_ratio: float, more_bytes: int) -> None:
        """Link log and index. DiskFull when the copies (``more_bytes``: of others) would fill the disk to this ratio.

        At that ratio the broker refuses sends.
        """
        chain = self._store.log.chain
        parts = log_parts(self._bases, chain.segment_bytes, self.log_end)
        needed = more_bytes + sum(part.size for part in parts if not part.is_whole)
        usage = self._fs.disk_usage(self._root)
        if usage.used + needed > (usage.used + usage.free) * most_used_ratio / 100:
            raise DiskFull(
                f"{self.directory}: the backup copies {needed:,} bytes, and with them over {most_used_ratio:g}% of the"
                " disk would be in use, where sends are refused: make room, or delete older backups"
            )
        for part in parts:
            path = file_path(chain.directory, part.base)
            self.link(path, None if part.is_whole else part.size, size=0 if part.is_whole else chain.segment_bytes)
            # With its sums a file that is not read now can be checked as a whole after the restore.
            sums = path_in(self._root, part.base)
            if part.is_whole and self._fs.exists(sums):
                self.link(sums)
        for path in self._index:
            self.link(path)
        if self._fs.exists(f"{self._root}/{QUEUE_ENDS}"):  # a full disk may have had no room for it
            self.link(f"{self._root}/{QUEUE_ENDS}")

    def link_queues(self, queues: Iterable[QueueFilesNow]) -> None:
        """Link the files of ``queues``."""
        for queue in queues:
            for base in queue.bases:
                path, held = file_path(queue.directory, base), min(queue.end - base, queue.segment_bytes)
                if held <= 0:
                    continue
                last = self._fs.read_part(path, held - queue.entry_bytes, queue.entry_bytes)
                if held == queue.segment_bytes and bytes_before(last, queue.entry_bytes, self.log_end):
                    self.link(path)
                else:
                    self.link(path, held, size=queue.segment_bytes, entry_bytes=queue.entry_bytes)

    def link(self, path: str, limit: int | None = None, *, size: int = 0, entry_bytes: int = 0) -> None:
        """Add the store's file ``path``, whose bytes never change; or its first ``limit`` bytes, which do not.

        ``size``: of the copy, which ends in zeros.
        """
        relative = path.removeprefix(f"{self._root}/")
        new = f"{self._partial}/{relative}"
        self._mkdirs(new.rpartition("/")[0])
        try:
            self._fs.link(path, new)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise UserError(
                    f"{path} and {self._root}/{DIRECTORY} are on different file systems, so the file cannot be linked:"
                    f" have {DIRECTORY} on the file system of the commit log, or stop the broker and copy its store"
                ) from None
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise UserError(
                    f"{path} cannot be linked ({error.strerror}): the file system has no hard links, or no more for"
                    " this file: stop the broker and copy its store, or make a snapshot of the file system"
                ) from None
            raise
        if limit is None:
            bytes_ = self._fs.size(new)
            self._files.append(BackupFile(relative, bytes_, bytes_, None))
            self.linked += bytes_
        else:
            self._open.append(_Open(relative, limit, size, entry_bytes))
            self.to_copy += limit

    def finish(self, origin: Origin, made_ms: int, progress: Progress = lambda done, total: None) -> None:
        """Copy what must be copied, make the backup durable, and give it its name.

        The log must be durable up to `log_end`. UserError when bytes were cut from the log meanwhile.
        """
        fs, partial, together = self._fs, self._partial, len(self._files) + len(self._open) >= _SYNC_TOGETHER
        done = 0
        for each in self._open:
            progress(done, self.to_copy)
            self._copy(each, done, progress, sync=not together)
            done += each.limit
        # The cut log may have been a part of what the queues and the metadata of this backup name.
        if self._store.log.cuts != self._cuts:
            raise UserError("this slave's log was cut meanwhile, to follow another master: make the backup again")
        checkpoint = StoreCheckpoint(fs, f"{partial}/checkpoint")
        # RocketMQ's times are 0: it would read the whole log.
        checkpoint.note_flushed(self.log_end)
        checkpoint.write(self._durable_end, self._timestamp, (0, 0, 0))
        checkpoint.close()
        inventory = Inventory(fs, partial)
        if self._bases:
            inventory.note_log_start(lambda: self.log_start)
        inventory.note_metadata()
        for name in ("checkpoint", "inventory"):
            data = fs.read(f"{partial}/{name}")
            self._files.append(BackupFile(name, len(data), len(data), large_crc32(data)))
        if together:
            fs.sync_all(partial)
        else:
            for directory in sorted(self._made, reverse=True):
                fs.fsync_dir(directory)
        options = self._store.options
        sizes = StoreSizes(
            options.commitlog_segment_bytes,
            options.consumequeue_segment_bytes,
            options.batchqueue_segment_bytes,
            options.index_slots,
            options.index_capacity,
        )
        files = sorted(self._files, key=lambda file: file.path)
        write_manifest(fs, partial, Manifest(origin, sizes, made_ms, self.log_start, self.log_end, files))
        fs.rename(partial, self.directory)
        fs.fsync_dir(f"{self._root}/{DIRECTORY}")
        fs.fsync_dir(self._root)

    def give_up(self) -> None:
        """Remove what is there of an unfinished backup."""
        if self._fs.exists(self._partial):
            remove_tree(self._fs, self._partial)

    def _copy(self, open_: _Open, done: int, progress: Progress, *, sync: bool) -> None:
        """Replace the link by a copy of the bytes that belong to the backup."""
        fs, path = self._fs, f"{self._partial}/{open_.path}"
        limit = open_.limit
        if open_.entry_bytes:
            limit = bytes_before(fs.read_part(path, 0, limit), open_.entry_bytes, self.log_end)
            if not limit:
                fs.remove(path)
                return
        copy = fs.open_append(path + PARTIAL)
        crc = at = 0
        try:
            while at < limit:
                piece = fs.read_part(path, at, min(PIECE_BYTES, limit - at))
                if not piece:
                    raise OSError(errno.EIO, f"the file ends after {at} of {limit} bytes", path)
                copy.write(piece)
                crc, at = large_crc32(piece, crc), at + len(piece)
                if at % SYNC_EVERY_BYTES == 0:
                    copy.sync()
                    progress(done + at, self.to_copy)
            if open_.size > limit:
                copy.truncate(open_.size)
            if sync:
                copy.sync()
        finally:
            copy.close()
        fs.rename(path + PARTIAL, path)
        self._files.append(BackupFile(open_.path, max(open_.size, limit), limit, crc))

    def _mkdirs(self, path: str) -> None:
        # Each new directory, and the directory that has its name, is synced at the end.
        while len(path) >= len(f"{self._root}/{DIRECTORY}") and path not in self._made:
            self._fs.mkdirs(path)
            self._made.add(path)
            path = path.rpartition("/")[0]


def remove_partial(fs: FileSystem, root: str) -> list[str]:
    """Remove the backups that a broker has left unfinished; returns their paths. Blocks."""
    directory = f"{root}/{DIRECTORY}"
    found = [f"{directory}/{name}" for name in fs.listdir(directory) if name.endswith(PARTIAL)]
    for path in found:
        remove_tree(fs, path)
    return found
