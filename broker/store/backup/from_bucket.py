"""Makes a store from a set's bucket alone: the newest files of the log, the metadata, and where each queue goes on.

Only the newest files come back to the disk; a broker with the same tierPath reads older messages from the bucket. Each
file is proved by its CRC. Until the restore is done, the file ``unfinishedRestore`` is in the new store, as in
restoring.py; the same command goes on where it was interrupted.
Neighbours: mqcommon/tier/restore.py (one file), broker/commands/tier_restore.py (the command).
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from skylark.broker.store.backup.manifest import MARKER, remove_tree
from skylark.broker.store.backup.restoring import MAY_STAY, claim, new_store
from skylark.broker.store.begun import QueueEnd, learn_ends
from skylark.broker.store.checkpoint import StoreCheckpoint
from skylark.broker.store.inventory import Inventory
from skylark.broker.store.log.segment import PIECE_BYTES, file_names, file_path
from skylark.broker.store.queue.ends import QueueEnds, write_queue_ends
from skylark.broker.store.restored import RestoredFrom
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.manifest import Manifest, Segment
from skylark.mqcommon.tier.metadata import MetadataCopy
from skylark.mqcommon.tier.restore import NotWhole, read_pieces, restore_segment
from skylark.mqcommon.tier.segment_index import SegmentIndex

_PARTIAL = ".partial"

#: Called with the bytes done and the bytes in all.
Progress = Callable[[int, int], None]


class BucketRestore:
    """Restores one set to ``directory``. Steps: `prepare`, `log`, `metadata`, `recover`, `finish`. All block."""

    def __init__(
        self, fs: FileSystem, bucket: Bucket, manifest: Manifest, metadata: MetadataCopy, directory: str, again: str
    ) -> None:
        """``again``: the command that goes on with an interrupted restore."""
        self._fs = fs
        self._bucket = bucket
        self._manifest = manifest
        self._metadata = metadata
        self._directory = directory
        self._again = again
        self._log = f"{directory}/commitlog"
        #: Where the log of the new store begins. Known after `log`.
        self.start = manifest.end
        #: Why the log begins later than was asked for; "" if it begins where it should.
        self.shortened = ""

    def prepare(self, segments: Sequence[Segment]) -> None:
        """Check that there is room for ``segments`` and the tails, and mark the new store as unfinished."""
        tail_bytes = self._manifest.tails[-1].end - self._manifest.end if self._manifest.tails else 0
        needed = self._manifest.segment_bytes * (len(segments) + 1) + tail_bytes
        names = self._fs.listdir(self._log) if self._fs.exists(f"{self._directory}/{MARKER}") else []
        there = sum(self._fs.size(f"{self._log}/{name}") for name in names)
        if claim(self._fs, self._directory, max(needed - there, 0), self._again):
            # The bucket may have grown meanwhile, or another part of the log may be wanted now: only the wanted files
            # of the log stay.
            wanted = {file_path(self._log, segment.start) for segment in segments}
            for name in self._fs.listdir(self._log):
                if f"{self._log}/{name}" not in wanted:
                    self._fs.remove(f"{self._log}/{name}")
            remove_tree(self._fs, self._directory, but=MAY_STAY | {MARKER, "commitlog"})

    def log(self, segments: Sequence[Segment], progress: Progress = lambda done, total: None) -> None:
        """Make the files of ``segments`` (the newest ones, oldest first), and the file that was still written."""
        fs = self._fs
        fs.mkdirs(self._log)
        self._tails()
        total, done = sum(segment.end - segment.start for segment in segments), 0
        # The newest first: whatever happens, the log has no gap.
        for segment in reversed(segments):
            try:
                self._file(segment, lambda at, done=done: progress(done + at, total))  # type: ignore[misc]
            except NotWhole as why:
                self.shortened = str(why)
                self._drop_before(self.start)
                break
            self.start = segment.start
            done += segment.end - segment.start
        fs.fsync_dir(self._log)

    def _drop_before(self, start: int) -> None:
        """Remove older files, which an interrupted restore has made: the log must have no gap."""
        for name in file_names(self._fs, self._log):
            if int(name) < start:
                self._fs.remove(f"{self._log}/{name}")

    def _file(self, segment: Segment, progress: Callable[[int], None]) -> None:
        fs, path, size = self._fs, file_path(self._log, segment.start), segment.end - segment.start
        if fs.exists(path) and fs.size(path) == size and _crc(fs, path, size) == segment.crc:
            return  # the run that was interrupted has made this file
        partial = path + _PARTIAL
        if fs.exists(partial):
            fs.remove(partial)
        file = fs.open_map(partial, size, create=True)
        try:
            with memoryview(file.view) as out:
                restore_segment(
                    self._bucket, segment, SegmentIndex.decode(self._bucket.get(segment.index.name)), out, progress
                )
            file.sync()
        except NotWhole:
            fs.remove(partial)
            raise
        finally:
            file.close()
        fs.rename(partial, path)

    def _tails(self) -> None:
        """Make the files with the bytes after the last segment: at least one file, which says where the log goes on."""
        fs, manifest, size = self._fs, self._manifest, self._manifest.segment_bytes
        end = max([manifest.end + 1, *(tail.end for tail in manifest.tails)])
        for base in range(manifest.end, end, size):
            path = file_path(self._log, base)
            if fs.exists(path):
                fs.remove(path)
            file = fs.open_map(path, size, create=True)
            try:
                for tail in manifest.tails:
                    first, last = max(tail.start, base), min(tail.end, base + size)
                    if first < last:
                        data = b"".join(read_pieces(self._bucket, tail.stored))
                        file.view[first - base : last - base] = data[first - tail.start : last - tail.start]
                file.sync()
            finally:
                file.close()

    def metadata(self) -> None:
        """Write the metadata, and what a start needs to know about the log."""
        fs, directory = self._fs, self._directory
        for path, data in self._metadata.files.items():
            if ".." in PurePosixPath(path).parts or path.startswith("/"):
                raise UserError(
                    f"the copy of the metadata has a file {path!r}, outside of the store: it is not genuine"
                )
            fs.mkdirs(f"{directory}/{path}".rpartition("/")[0])
            write_atomic(fs, f"{directory}/{path}", data)
        checkpoint = StoreCheckpoint(fs, f"{directory}/checkpoint")
        # No queue has an entry yet. The log before the tails is proved: damage there is not taken for a torn end.
        checkpoint.note_flushed(self._manifest.end)
        checkpoint.write(self.start, 0, (0, 0, 0))
        checkpoint.close()
        inventory = Inventory(fs, directory)
        inventory.note_log_start(lambda: self.start)
        if self._metadata.files:
            inventory.note_metadata()
        write_queue_ends(fs, directory, QueueEnds(self.start))

    def recover(
        self, queues: Iterable[QueueEnd], is_batch: Callable[[str], bool], say: Callable[[str], None]
    ) -> MessageStore:
        """Open the new store, which makes queues and index of the log. The caller closes it.

        A queue of ``queues`` without a message in the log goes on at its ``next_offset``. ``is_batch``: whether a
        topic's queues are batch queues.
        """
        sizes = self._metadata
        options = StoreOptions(
            self._directory,
            commitlog_segment_bytes=self._manifest.segment_bytes,
            consumequeue_segment_bytes=sizes.consumequeue_segment_bytes,
            batchqueue_segment_bytes=sizes.batchqueue_segment_bytes,
            index_slots=sizes.index_slots,
            index_capacity=sizes.index_capacity,
        )
        store = new_store(self._fs, options)
        store.queues.use_kinds(is_batch)
        store.open(say)
        learn_ends(store.queues, queues)
        return store

    def finish(self) -> None:
        """Let brokers open the store."""
        RestoredFrom(self._fs, self._directory).note(self._manifest.number, self._manifest.generation)
        self._fs.remove(f"{self._directory}/{MARKER}")
        self._fs.fsync_dir(self._directory)


def _crc(fs: FileSystem, path: str, size: int) -> int:
    crc = 0
    for at in range(0, size, PIECE_BYTES):
        crc = large_crc32(fs.read_part(path, at, min(PIECE_BYTES, size - at)), crc)
    return crc
