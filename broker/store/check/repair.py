"""Repairs a damaged store so that it starts. Cut bytes are saved beside their file; sound records stay in place.

- Damage between sound records: the bytes are saved to FILE.damaged-OFFSET and replaced by a record that belongs to no
  queue, or by RocketMQ's filler if no sound record follows in the file. The messages there are lost. In their queues
  they leave holes, which readers skip.
- Damage at the end of the log: the bytes are saved and zeroed; the log ends there.
- A missing file between others: replaced by an empty one.
- What the disk cannot read of the log: zeros are written there, which makes the sectors readable again.
- Notes of the store that the disk cannot read, or that are damaged: removed; the next start goes on without them, and
  writes new ones. The file ``abort`` is written anew. The bytes of damaged notes are kept in ``damaged/``.
- Wrong queues and index files: removed; the next start rebuilds them.
- Blocks that do not match their sums, though their records are sound: the bytes stay, the sums are dropped.
Neighbours: verify.py (finds the damage), recovery.py (rebuilds queues).
"""

from collections.abc import Callable
from zlib import crc32

from skylark.broker.store.check.verify import Damage, DamagedPart, VerifyReport
from skylark.broker.store.checkpoint import ABORT, StoreCheckpoint, mark_pages_lost, read_checkpoint
from skylark.broker.store.damaged_bytes import keep_damaged
from skylark.broker.store.inventory import Inventory
from skylark.broker.store.queue.ends import QueueEnds, read_queue_ends, write_queue_ends
from skylark.broker.store.sums.block_sums import BlockSums
from skylark.broker.store.sums.sum_files import SumFiles, path_in
from skylark.mqcommon.disk.atomic import unshare
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.flags import TRANSACTION_ROLLBACK
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MIN_RECORD, SIZE_MAGIC
from skylark.mqcommon.message.record import encode_record, topic_field

# The topic of the records that replace damage.
DAMAGED_TOPIC = "DAMAGED"
_HOST = bytes(8)


class Repair:
    """Repairs the damage in ``report`` of the store in ``directory``, whose lock the caller holds."""

    def __init__(self, fs: FileSystem, directory: str, report: VerifyReport, say: Callable[[str], None]) -> None:
        self._fs = fs
        self._directory = directory
        self._report = report
        self._say = say

    def run(self) -> None:
        """Change the files. The caller must then open the store, which rebuilds the queues."""
        report, fs, directory = self._report, self._fs, self._directory
        # First: what follows reads them.
        self._remove_wrong_notes()
        log_damages = [damage for damage in report.damages if damage.part is DamagedPart.LOG]
        if report.torn_tail is not None:
            log_damages.append(report.torn_tail)
        log_lost = [damage for damage in report.lost if damage.part is DamagedPart.LOG]
        file_bytes = max((fs.size(path) for path in self._log_paths()), default=0)
        self._drop_sums([*log_damages, *log_lost], file_bytes)
        for damage in log_lost:
            self._make_readable(damage)
        for damage in log_damages:
            self._repair_log(damage, file_bytes)
        if log_damages:
            self._end_log()
        self._forget_queues(everything=bool(log_damages))
        if log_damages or any(damage.part is DamagedPart.INDEX for damage in (*report.damages, *report.lost)):
            self._remove_all(f"{directory}/index", "removed, the index is rebuilt")

    def _remove_wrong_notes(self) -> None:
        for damage in self._report.damages:
            if damage.part is DamagedPart.NOTES:
                data = self._fs.read(damage.file)
                name = f"{damage.file.rpartition('/')[2]}.{crc32(data):08x}"
                kept = keep_damaged(self._fs, self._directory, name, data)
                self._remove(damage.file)
                self._say(f"{damage.file}: removed, and the next start goes on without it; its bytes: {kept}")
        for damage in self._report.lost:
            if damage.part is not DamagedPart.NOTES:
                continue
            if damage.file == f"{self._directory}/{ABORT}":
                # Without the file the next start would take the store as closed.
                mark_pages_lost(self._fs, self._directory)
                done = "written anew, as after a power loss"
            else:
                self._remove(damage.file)
                done = "removed, and the next start goes on without it"
            self._say(f"{damage.file}: {done}: the disk could not read it")

    def _remove(self, note: str) -> None:
        self._fs.remove(note)
        self._fs.fsync_dir(self._directory)

    def _log_paths(self) -> list[str]:
        directory = f"{self._directory}/commitlog"
        return [f"{directory}/{name}" for name in self._fs.listdir(directory) if name.isdigit()]

    def _drop_sums(self, log_damages: list[Damage], file_bytes: int) -> None:
        """Drop sums that the log will not match: otherwise a broker would take its bytes for damaged."""
        fs, directory = self._fs, self._directory
        wrong = [damage for damage in self._report.damages if damage.part is DamagedPart.SUMS]
        inventory = Inventory(fs, directory)
        files = SumFiles(fs, directory, BlockSums(file_bytes), file_bytes, inventory.forget_sums)
        damaged = files.read()
        inventory.forget_sums(damaged)
        for base in damaged:
            fs.remove(path_in(directory, base))
            self._say(f"{path_in(directory, base)}: removed; a scrub makes the sums again")
        blocks = [damage for damage in wrong if damage.end]
        files.drop(self._span(damage, file_bytes) for damage in (*blocks, *log_damages))
        if blocks:
            self._say(f"the sums of {len(blocks)} blocks are dropped: their messages stay as they are, though changed")

    def _span(self, damage: Damage, file_bytes: int) -> tuple[int, int]:
        """From where to where the log is damaged; a file of another size is damaged up to its end."""
        fs, path = self._fs, damage.file
        base, is_whole = int(path.rpartition("/")[2]), fs.exists(path) and fs.size(path) == file_bytes
        return base + damage.offset, base + (damage.end if is_whole else file_bytes)

    def _make_readable(self, damage: Damage) -> None:
        """Write zeros where the disk cannot read: then the file may be read through its map."""
        # In place also where a backup has the same file: the backup cannot be read there either.
        path, size = damage.file, damage.end - damage.offset
        file = self._fs.open_map(path, 0, create=False)
        try:
            file.pwrite(damage.offset, memoryview(bytes(size)))
            file.sync()
        except OSError as error:
            raise UserError(
                f"{path}: the disk can neither read nor write {size:,} bytes at offset {damage.offset}"
                f" ({error.strerror or error}): copy the store to a sound disk (cp -a, and for this file dd"
                " conv=noerror,sync bs=4096), and repair it there"
            ) from error
        finally:
            file.close()
        self._say(f"{path}: {size:,} bytes at offset {damage.offset} are zeros now: the disk could not read them")

    def _repair_log(self, damage: Damage, file_bytes: int) -> None:
        fs, path = self._fs, damage.file
        base = int(path.rpartition("/")[2])
        start, end = (offset - base for offset in self._span(damage, file_bytes))
        if fs.exists(path):
            unshare(fs, path)
        file = fs.open_map(path, file_bytes, create=True)
        try:
            view = file.view
            cut = view[start:end].rstrip(b"\0")
            # Save and sync the bytes before they are overwritten: they are needed if the repair turns out to be wrong.
            if cut:
                saved = f"{path}.damaged-{start}"
                self._save(saved, cut)
                self._say(f"{path}: {len(cut):,} bytes at offset {start} saved to {saved}")
            if base + end <= self._report.log_end:
                view[start:end] = _placeholder(base + start, end - start, fills_file=end == file_bytes)
            else:
                view[start:end] = bytes(end - start)
            file.sync()
        finally:
            file.close()

    def _save(self, path: str, data: bytes) -> None:
        if self._fs.exists(path):
            self._fs.remove(path)
        file = self._fs.open_append(path)
        try:
            file.write(data)
            file.sync()
        finally:
            file.close()

    def _end_log(self) -> None:
        """Write a clean checkpoint, so that the next start takes the log as it is now."""
        path = f"{self._directory}/checkpoint"
        timestamp = read_checkpoint(self._fs, path).log_timestamp
        checkpoint = StoreCheckpoint(self._fs, path)
        # Times of 0: RocketMQ would rebuild its index.
        checkpoint.write(self._report.log_end, timestamp, (0, 0, 0), clean=True)
        checkpoint.close()
        abort = f"{self._directory}/{ABORT}"
        if self._fs.exists(abort):
            self._fs.remove(abort)

    def _forget_queues(self, *, everything: bool) -> None:
        """Remove the files of wrong queues, and note their ends, so that the next start rebuilds them."""
        roots = f"{self._directory}/consumequeue", f"{self._directory}/batchconsumequeue"
        damages = (*self._report.damages, *self._report.lost)
        wrong = {damage.file for damage in damages if damage.part is DamagedPart.QUEUE}
        ends = read_queue_ends(self._fs, self._directory) or QueueEnds(log_start=self._report.log_start)
        queues = {topic: dict(by_id) for topic, by_id in ends.queues.items()}
        for topic, by_id in self._report.queue_ends.items():
            for queue_id, end in by_id.items():
                directories = tuple(f"{root}/{topic}/{queue_id}" for root in roots)
                if end < 0 or not (everything or any(path.startswith(directories) for path in wrong)):
                    continue
                if everything and ends.queues and queue_id not in ends.queues.get(topic, {}):
                    continue  # its topic was deleted
                queues.setdefault(topic, {})[queue_id] = (0, max(end, ends.next_offset(topic, queue_id)))
                for directory in directories:
                    self._remove_all(directory, "removed, the queue is rebuilt")
        write_queue_ends(self._fs, self._directory, QueueEnds(ends.log_start, queues, ends.index_files))

    def _remove_all(self, directory: str, why: str) -> None:
        names = self._fs.listdir(directory)
        for name in names:
            self._fs.remove(f"{directory}/{name}")
        if names:
            self._fs.fsync_dir(directory)
            self._say(f"{directory}: {why}")


def _placeholder(physical: int, size: int, *, fills_file: bool) -> bytes:
    """A record of ``size`` bytes that belongs to no queue; at the end of a file RocketMQ's filler."""
    if fills_file:
        return SIZE_MAGIC.pack(size, BLANK_MAGIC).ljust(size, b"\0") if size >= BLANK_BYTES else bytes(size)
    topic = DAMAGED_TOPIC[: max(1, size - MIN_RECORD)]
    magic, tail = topic_field(topic)
    body = bytes(size - MIN_RECORD - len(topic))
    return encode_record(magic, tail, 0, 0, physical, body, b"", 0, TRANSACTION_ROLLBACK, 0, _HOST, 0, _HOST, 0, 0)
