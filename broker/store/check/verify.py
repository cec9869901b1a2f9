"""Reads the whole store of a stopped broker and reports each damage: file, offset, reason. Changes nothing.

The commit log is the truth: each record is checked with its CRC, and queues and index files are compared with the log.
After damage in the log, reading goes on at the next sound record. Blocks of the log are compared with their sums.
Neighbours: log_files.py (the log, read only), repair.py, broker/commands/verify_store.py (the command).
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeVar

from skylark.broker.store.check.sum_check import WRONG_BLOCK, SumCheck
from skylark.broker.store.checkpoint import (
    ABORT,
    CheckpointState,
    LastStop,
    is_whole_checkpoint,
    read_abort,
    read_checkpoint,
)
from skylark.broker.store.index.index_file import ENTRY as INDEX_ENTRY
from skylark.broker.store.index.index_file import ENTRY_BYTES as INDEX_ENTRY_BYTES
from skylark.broker.store.index.index_file import MAX_SECONDS, SLOT_BYTES, SLOTS_AT, IndexFile, index_file_bytes
from skylark.broker.store.inventory import FILE_NAME as INVENTORY
from skylark.broker.store.inventory import Inventoried, read_inventory
from skylark.broker.store.log.commitlog import PROGRESS_RECORDS
from skylark.broker.store.log.log_files import LogFile, LogFiles
from skylark.broker.store.log.segment import file_names, file_path
from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.queue.batch_queue import BatchAt
from skylark.broker.store.queue.ends import FILE_NAME as QUEUE_ENDS
from skylark.broker.store.queue.ends import QueueEnds, read_queue_ends
from skylark.broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, BLANK_SIZE, ENTRY, ENTRY_BYTES, messages_in
from skylark.broker.store.queue.rebuild import is_queued
from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.store.recovery import why_torn
from skylark.broker.store.sums.sum_files import bases_in, path_in
from skylark.mqcommon.daemons.open_files import open_files_limit
from skylark.mqcommon.disk.atomic import has_crc
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.loading import LOST_ERRNOS, Loader, LossyMap, lost_places
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.flags import INNER_BATCH
from skylark.mqcommon.message.javahash import KeyHasher
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.message.light import in_each_queue
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.message.record_keys import record_keys
from skylark.mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC

T = TypeVar("T")
# How many entries are read at once.
_READ = 4096
# The most queue files that are mapped at one time.
MAX_MAPPED = 500


class DamagedPart(Enum):
    """The part of the store that is damaged."""

    LOG = "commit log"
    QUEUE = "consume queue"
    INDEX = "index"
    SUMS = "block sums"
    #: The small files that say what the store must have: a start goes on without them.
    NOTES = "notes of the store"


@lazy_dataclass(frozen=True)
class Damage:
    """Bytes ``offset`` to ``end`` of ``file`` are not what they should be."""

    part: DamagedPart
    file: str
    offset: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: offset {self.offset}: {self.reason}"


@lazy_dataclass
class VerifyReport:
    """The numbers of a reading, and the damage. ``torn_tail``: never durable; the next start cuts these bytes."""

    records: int = 0
    log_start: int = 0
    log_end: int = 0
    queues: int = 0
    index_files: int = 0
    damages: list[Damage] = field(default_factory=list)
    #: Bytes that the disk cannot read. What was there may be reported as damage, too.
    lost: list[Damage] = field(default_factory=list)
    torn_tail: Damage | None = None
    unchecked: list[str] = field(default_factory=list)
    # Topic -> queue -> next offset after its last message in the log.
    queue_ends: dict[str, dict[int, int]] = field(default_factory=dict)


class Verification:
    """One reading of the store in ``directory``, whose lock the caller holds. ``on_progress``: (bytes read, total).

    The log is read twice if it has sums: record by record, and block by block.
    """

    def __init__(
        self, fs: FileSystem, directory: str, slots: int, capacity: int, on_progress: Callable[[int, int], None]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._on_progress = on_progress
        self._report = VerifyReport()
        state = self._noted(
            "checkpoint",
            partial(read_checkpoint, fs, f"{directory}/checkpoint"),
            "whether the log had more messages at its end, and the block sums: a start without it drops them",
            is_whole_checkpoint,
        )
        self._state, self._knows_checkpoint = state or CheckpointState(), state is not None
        self._known_end = self._state.log_durable_to
        stop = self._noted(ABORT, partial(read_abort, fs, directory), "how the last run ended: as by a power loss")
        self._last_stop = stop or LastStop.POWER_LOSS
        inventory = self._noted(
            INVENTORY,
            partial(read_inventory, fs, directory),
            "whether first files of the log, or sums, are missing",
            has_crc,
        )
        self._inventory = inventory or Inventoried()
        self._log = LogFiles(fs, f"{directory}/commitlog", partial(self._lost, DamagedPart.LOG))
        in_queue = partial(self._lost, DamagedPart.QUEUE)
        self._queues = QueueCheck(
            fs, f"{directory}/consumequeue", f"{directory}/batchconsumequeue", self._log, in_queue
        )
        has_sums = self._uses_sums and bool(bases_in(fs, directory))
        self._most_bytes = self._log.total_bytes * (2 if has_sums else 1)
        self._compare = in_each_queue(self._queues.compare)
        in_index = partial(self._lost, DamagedPart.INDEX)
        self._index = IndexCheck(fs, f"{directory}/index", slots, capacity, in_index)

    def run(self) -> VerifyReport:
        """Read everything."""
        report, log = self._report, self._log
        for path, size, reason in log.problems:
            self._damage(path, size, size, reason)
        for base in self._lost_bases():
            self._damage(file_path(f"{self._directory}/commitlog", base), 0, 0, "the file is missing")
        if log.files:
            report.log_start = report.log_end = log.files[0].base
            self._read_log()
        self._judge_end()
        self._check_sums()
        ends = self._noted(
            QUEUE_ENDS,
            partial(read_queue_ends, self._fs, self._directory),
            "which queues are so new that they need not have a file",
            has_crc,
        )
        self._add(DamagedPart.QUEUE, self._queues.finish(report.log_end, ends))
        self._add(DamagedPart.INDEX, self._index.finish(log, report.log_start, report.log_end))
        report.queues, report.index_files = self._queues.count, self._index.count
        report.unchecked += self._index.unchecked
        report.queue_ends = self._queues.ends()
        log.close()
        parts = [*DamagedPart]
        report.lost.sort(key=lambda each: (parts.index(each.part), each.file, each.offset))
        return report

    def _lost_bases(self) -> range:
        """The starts of files that are missing before the first file. RocketMQ may have cleaned them up."""
        # Only the inventory knows that the log once began earlier: the files themselves show no gap at their start.
        start = self._inventory.log_start
        files, size = self._log.files, self._log.file_bytes
        if start is None or not files or self._state.used_by_rocketmq:
            return range(0)
        return range(start // size * size, files[0].base, size)

    def _read_log(self) -> None:
        at: int | None = self._log.files[0].base
        while at is not None and (file := self._log.at(at)) is not None:
            at = self._read_file(file, max(at, file.base))

    def _read_file(self, file: LogFile, at: int) -> int | None:
        """Check the records from ``at`` on; returns where to go on; None at the end of the log."""
        base, end = file.base, file.end
        loader = Loader(file.map, at - base, file.size)
        while at + BLANK_BYTES <= end:
            loader.load_to(at - base + BLANK_BYTES)
            length, magic = SIZE_MAGIC.unpack_from(file.view, at - base)
            if magic == BLANK_MAGIC and at + length == end:
                loader.load_to(file.size)
                break
            loader.load_to(min(at + length + BLANK_BYTES, end) - base)
            view = file.view
            record, reason = valid_record(view[at - base : min(at + length, end) - base], at)
            # Only bytes that were not flushed can be torn; earlier sound records are whole.
            if record is not None and at >= self._known_end:
                reason = why_torn(self._state, self._last_stop, view, at - base, record)
            if record is None or reason:
                return self._skip_damage(file, at, reason if length or magic else "")
            self._add_record(record)
            at += record.size
        self._report.log_end = end
        return end

    def _skip_damage(self, file: LogFile, at: int, reason: str) -> int | None:
        """Return where to continue after ``at``, where no sound record is; None if the log ends there.

        If a sound record follows, the bytes before it are reported as damage.
        """
        # A sound record further on shows that the log continued: then this is damage, and not the torn end of a crash.
        following = self._log.next_sound_after(at)
        if following is None:
            self._report.log_end = at
            if reason:
                self._report.torn_tail = Damage(DamagedPart.LOG, file.path, at - file.base, file.size, reason)
            return None
        end = min(following, file.end)
        self._damage(
            file.path,
            at - file.base,
            end - file.base,
            f"{reason or 'zeros where a record was'}; the next sound record begins {following - at:,} bytes later",
        )
        for between in self._log.files:
            if file.base < between.base and between.end <= following:
                self._damage(between.path, 0, between.size, "no sound record in the whole file")
        return following

    def _add_record(self, record: Record) -> None:
        report = self._report
        report.records += 1
        self._compare(record)
        if not report.records % PROGRESS_RECORDS:
            self._on_progress(record.physical_offset - report.log_start, self._most_bytes)

    def _judge_end(self) -> None:
        """Report damage if the log ends before the offset up to which it was on disk."""
        # The checkpoint and its flush mark say up to where the log was on disk. If bytes before that are missing, this
        # is not a torn tail that the next start may cut.
        report, known = self._report, self._known_end
        if not self._log.files or known <= report.log_end:
            return
        torn, report.torn_tail = report.torn_tail, None
        file = self._log.at(report.log_end) or self._log.files[-1]
        reason = torn.reason if torn else "zeros where a record was"
        self._damage(
            file.path,
            report.log_end - file.base,
            file.size,
            f"{reason}; the log went on to offset {known:,}, and no sound record follows",
        )

    @property
    def _uses_sums(self) -> bool:
        """Whether a start would trust the files of block sums."""
        return self._state.keeps_sums and not self._state.used_by_rocketmq

    def _check_sums(self) -> None:
        """Report blocks that do not match their sums, where no damaged record is reported already."""
        report, log = self._report, self._log
        if not self._uses_sums:
            if self._knows_checkpoint and bases_in(self._fs, self._directory):
                report.unchecked.append("block sums: another version has used the store, and the next start drops them")
            return
        known, there = self._inventory.sums, bases_in(self._fs, self._directory)
        for base in sorted(known.intersection(file.base for file in log.files).difference(there)):
            path = path_in(self._directory, base)
            report.unchecked.append(f"{path}: the file is missing; the scrub of the broker makes it again")
        sums = SumCheck(self._fs, self._directory, log.file_bytes)
        self._add(DamagedPart.SUMS, sums.wrong_files())

        def show(offset: int) -> None:
            self._on_progress(log.total_bytes + offset - report.log_start, self._most_bytes)

        for path, start, end in sums.wrong_blocks(log, report.log_end, show):
            named = (*report.damages, *report.lost)
            if not any(each.file == path and each.offset < end and start < each.end for each in named):
                report.damages.append(Damage(DamagedPart.SUMS, path, start, end, WRONG_BLOCK))

    def _noted(
        self, name: str, read: Callable[[], T], unchecked: str, is_whole: Callable[[bytes], bool] = lambda data: True
    ) -> T | None:
        """What ``read`` reads of the file ``name``.

        None, and this is ``unchecked``, if the disk cannot read the file, or its bytes are not ``is_whole``.
        """
        path = f"{self._directory}/{name}"
        try:
            found = read()
            if not self._fs.exists(path) or is_whole(data := self._fs.read(path)):
                return found
            reason = "the file is empty" if not data else "the file is damaged"
            self._report.damages.append(Damage(DamagedPart.NOTES, path, 0, len(data), reason))
            self._report.unchecked.append(f"{unchecked} ({path})")
            return None
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            # ``read`` may read a second file, too.
            path = str(error.filename or path)
            reason = f"the disk cannot read this file ({error.strerror}): it is failing"
            self._report.lost.append(Damage(DamagedPart.NOTES, path, 0, 0, reason))
            self._report.unchecked.append(f"{unchecked} ({path})")
            return None

    def _lost(self, part: DamagedPart, path: str, at: int, size: int) -> None:
        damage = Damage(part, path, at, at + size, f"the disk cannot read {size:,} bytes: it is failing")
        if damage not in self._report.lost:
            self._report.lost.append(damage)

    def _damage(self, path: str, offset: int, end: int, reason: str) -> None:
        self._report.damages.append(Damage(DamagedPart.LOG, path, offset, end, reason))

    def _add(self, part: DamagedPart, found: Iterable[tuple[str, int, str]]) -> None:
        self._report.damages += [Damage(part, path, offset, offset, reason) for path, offset, reason in found]


class _QueueFiles(ABC):
    """The files of one queue in ``directory``, and the differences found so far."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory
        self.sizes = {int(name): fs.size(f"{directory}/{name}") for name in file_names(fs, directory)}
        self._file_bytes = max(self.sizes.values(), default=0)
        # The offset after the last message in the log; -1 for a queue that has only files.
        self.next_offset = 0
        self._wrong = 0
        self._first_wrong = ("", 0, "")

    def finish(self, log_end: int, *, is_known: bool) -> Iterator[tuple[str, int, str]]:
        """(path, offset in it, what is wrong). ``is_known``: the queue existed when the ends were last noted."""
        # A queue that is newer than the last noted ends may have had no time to write its first file.
        if not self.sizes and self.next_offset >= 0:
            if is_known:
                yield self.directory, 0, f"no file, but the log has messages up to {self.next_offset - 1}"
            return
        for base, size in self.sizes.items():
            if size < self._file_bytes:
                path = file_path(self.directory, base)
                yield path, size, f"the file ends after {size:,} of {self._file_bytes:,} bytes"
        if self.next_offset >= 0:
            self._check_end(log_end)
        if self._wrong:
            path, offset, reason = self._first_wrong
            yield path, offset, reason + (f"; {self._wrong - 1:,} more are wrong" if self._wrong > 1 else "")

    def _begin_again(self, offset: int) -> None:
        """Forget earlier differences at message 0: the topic was deleted and made again."""
        if offset == 0:
            self._wrong = 0

    def _note_wrong(self, path: str, at: int, reason: str) -> None:
        if not self._wrong:
            self._first_wrong = (path, at, reason)
        self._wrong += 1

    @abstractmethod
    def _check_end(self, log_end: int) -> None:
        """Report entries after the last message's entry that point into the log, which ends at ``log_end``."""


class _Queue(_QueueFiles):
    """A queue with an entry for each message."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        on_map: Callable[["_Queue"], None],
        on_lost: Callable[[str, int, int], None],
    ) -> None:
        super().__init__(fs, directory)
        self._on_map = on_map
        self._on_lost = on_lost
        self._maps: dict[int, LossyMap] = {}

    def compare(self, record: Record, tags_code: int | None, log: LogFiles) -> None:
        """Check that the queue has ``record`` at its offset. ``tags_code``: None, if any is right."""
        offset = record.queue_offset
        self._begin_again(offset)
        self.next_offset = offset + 1
        found = self._entry(offset)
        wanted = record.physical_offset, record.size, found[2] if tags_code is None else tags_code
        # A topic that was deleted and made again: its queue has later messages in the places of the earlier ones.
        later = found[0] > record.physical_offset and log.store_time_at(found[0]) >= 0
        if found != wanted and not later:
            self._note_wrong_at(
                offset, f"message {offset} is at {wanted}, but the entry says {found} (offset in the log, size, tag)"
            )

    def _check_end(self, log_end: int) -> None:
        physical, size, _ = self._entry(self.next_offset)
        if not self._wrong and size not in (0, BLANK_SIZE) and physical < log_end:
            self._note_wrong_at(self.next_offset, f"message {self.next_offset} is not in the log")

    def _entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code); zeros if the files have none."""
        path, base = self._place(offset)
        at = offset * ENTRY_BYTES - base
        if at + ENTRY_BYTES > self.sizes.get(base, 0):
            return 0, 0, 0
        if base not in self._maps:
            self._on_map(self)
            file = self._fs.open_map(path, self.sizes[base], create=False)
            self._maps[base] = LossyMap(file, partial(self._on_lost, path))
        # Not through the map, which would have to be loaded from its start each time that the file is mapped again.
        return ENTRY.unpack(self._maps[base].pread(at, ENTRY_BYTES))

    def _place(self, offset: int) -> tuple[str, int]:
        """(path, position of its first byte) of the file for message ``offset``."""
        base = offset * ENTRY_BYTES // self._file_bytes * self._file_bytes if self._file_bytes else 0
        return file_path(self.directory, base), base

    def _note_wrong_at(self, offset: int, reason: str) -> None:
        path, base = self._place(offset)
        self._note_wrong(path, offset * ENTRY_BYTES - base, reason)

    def close(self) -> None:
        for file in self._maps.values():
            file.close()
        self._maps.clear()


class BatchFiles(_QueueFiles):
    """A queue with an entry for each batch."""

    def __init__(
        self, fs: FileSystem, directory: str, log_start: int, on_lost: Callable[[str, int, int], None]
    ) -> None:
        super().__init__(fs, directory)
        self._log_start = log_start
        self._on_lost = on_lost
        self._entries = self._read()
        self._next = next(self._entries, None)

    def compare(self, record: Record, tags_code: int) -> None:
        """Check that the next entry is for ``record``."""
        offset, physical, messages = record.queue_offset, record.physical_offset, messages_in(record)
        self._begin_again(offset)
        self.next_offset = offset + messages
        # Entries and records are both in the order of the log, so they are merged: an element of one side alone is an
        # error.
        while self._next is not None and self._next[1].physical < physical:
            self._note_stray()
        if self._next is None or self._next[1].physical > physical:
            place = (self.directory, 0) if self._next is None else self._next[0]
            self._note_wrong(*place, f"messages {offset} to {self.next_offset - 1} have no entry")
            return
        place, found = self._next
        self._next = next(self._entries, None)
        wanted = BatchAt(physical, record.size, tags_code, record.store_timestamp, offset, messages)
        if found[:6] != wanted[:6]:
            self._note_wrong(*place, f"the entry of messages {offset} to {wanted.end - 1} is {found}, not {wanted}")

    def _check_end(self, log_end: int) -> None:
        while self._next is not None and self._next[1].physical < log_end:
            self._note_stray()

    def _note_stray(self) -> None:
        """Skip the next entry, which names no record of the queue: its message was cleaned up, or it is wrong."""
        assert self._next is not None
        place, entry = self._next
        if entry.physical >= self._log_start:
            self._note_wrong(*place, f"messages {entry.base} to {entry.end - 1} are not in the log")
        self._next = next(self._entries, None)

    def _read(self) -> Iterator[tuple[tuple[str, int], BatchAt]]:
        """((path, offset in it), entry) of all entries."""
        for base, size in self.sizes.items():
            path, at = file_path(self.directory, base), 0
            while at + BATCH_ENTRY_BYTES <= size:
                raw = self._part(path, at, min(_READ, (size - at) // BATCH_ENTRY_BYTES) * BATCH_ENTRY_BYTES)
                for entry in map(BatchAt._make, BATCH_ENTRY.iter_unpack(raw)):
                    if not entry.is_entry:
                        break
                    yield (path, at), entry
                    at += BATCH_ENTRY_BYTES
                else:
                    continue
                break

    def _part(self, path: str, at: int, size: int) -> bytes:
        # The file is open only meanwhile: a store may have more queues than a process may have descriptors.
        file = LossyMap(self._fs.open_map(path, create=False), partial(self._on_lost, path))
        try:
            return file.pread(at, size)
        finally:
            file.close()


class QueueCheck:
    """`compare` each record in the order of the log, then `finish`. ``batch_directory``: where batch queues are.

    ``on_lost`` gets (path, at, size) of bytes that the disk has lost.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        batch_directory: str,
        log: LogFiles,
        on_lost: Callable[[str, int, int], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._batch_directory = batch_directory
        self._log = log
        self._on_lost = on_lost
        self._tag_codes = TagCodes()
        self._queues: dict[tuple[str, int], _Queue | BatchFiles] = {}
        self._mapped: list[_Queue] = []

    @property
    def count(self) -> int:
        return len(self._queues)

    def ends(self) -> dict[str, dict[int, int]]:
        """Topic -> queue -> next offset after its last message in the log."""
        ends: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self._queues.items():
            ends.setdefault(topic, {})[queue_id] = queue.next_offset
        return ends

    def compare(self, record: Record) -> None:
        """Check that the queue has ``record`` at its offset."""
        if not is_queued(record.sys_flag):
            return
        queue = self._queues.get((record.topic, record.queue_id))
        if queue is None:
            queue = self._add(record.topic, record.queue_id, batch=record.sys_flag & INNER_BATCH != 0)
        if isinstance(queue, BatchFiles):
            queue.compare(record, self._tag_codes.of_record(record))
            return
        # The tags code of a waiting message is a time, by the conf of the broker that wrote it; RocketMQ has a hash.
        waits = record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
        queue.compare(record, None if waits else self._tag_codes.of_record(record), self._log)

    def finish(self, log_end: int, ends: QueueEnds | None) -> Iterator[tuple[str, int, str]]:
        """(path, offset in it, what is wrong) of each queue that differs from the log."""
        # Queues whose messages were all removed from the log still have files, whose sizes are checked.
        for directory in (self._directory, self._batch_directory):
            for topic in self._fs.listdir(directory):
                for name in self._fs.listdir(f"{directory}/{topic}"):
                    if name.isdigit() and (topic, int(name)) not in self._queues:
                        self._add(topic, int(name)).next_offset = -1
        for (topic, queue_id), queue in self._queues.items():
            yield from queue.finish(log_end, is_known=ends is None or queue_id in ends.queues.get(topic, {}))
            if isinstance(queue, _Queue):
                queue.close()

    def _add(self, topic: str, queue_id: int, *, batch: bool = False) -> _Queue | BatchFiles:
        """Add the check of a queue. ``batch``: whether it is a batch queue, if no files show this."""
        log_start = self._log.files[0].base if self._log.files else 0
        of_batches = BatchFiles(self._fs, f"{self._batch_directory}/{topic}/{queue_id}", log_start, self._on_lost)
        queue = _Queue(self._fs, f"{self._directory}/{topic}/{queue_id}", self._note_map, self._on_lost)
        is_batch = bool(of_batches.sizes) or (batch and not queue.sizes)
        self._queues[topic, queue_id] = of_batches if is_batch else queue
        return self._queues[topic, queue_id]

    def _note_map(self, queue: _Queue) -> None:
        if len(self._mapped) >= min(MAX_MAPPED, open_files_limit() // 8):
            # A file is mapped again when the next record of its queue comes.
            for other in self._mapped:
                other.close()
            self._mapped.clear()
        self._mapped.append(queue)


class _Facts(NamedTuple):
    """The values that the index entries of a message must have."""

    hashes: frozenset[int]
    seconds: int


class IndexCheck:
    """Checks the files of ``directory``, made for ``slots`` slots and ``capacity`` entries.

    ``on_lost`` gets (path, at, size) of bytes that the disk has lost.
    """

    def __init__(
        self, fs: FileSystem, directory: str, slots: int, capacity: int, on_lost: Callable[[str, int, int], None]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._on_lost = on_lost
        self._hasher = KeyHasher()
        self.count = 0
        self.unchecked: list[str] = []

    def finish(self, log: LogFiles, log_start: int, log_end: int) -> Iterator[tuple[str, int, str]]:
        """(path, offset in it, what is wrong) of each wrong file."""
        size = index_file_bytes(self._slots, self._capacity)
        before = -1
        for name in self._fs.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if not name.isdigit():
                continue
            self.count += 1
            if (found := self._fs.size(path)) != size:
                self.unchecked.append(
                    f"{path}: it has {found:,} bytes, but maxHashSlotNum and maxIndexNum make {size:,}; give the"
                    " broker's conf file with -c. With these settings the broker would rebuild the index when it starts"
                )
                continue
            map_ = self._fs.open_map(path, size, create=False)
            if lost := lost_places(map_, size):
                for at, many in lost:
                    self._on_lost(path, at, many)
                map_.close()
                continue
            file = IndexFile(map_, self._slots, self._capacity)
            try:
                yield from self._check(file, path, log, (before, log_start, log_end))
                before = file.end_physical
            finally:
                file.close()

    def _check(
        self, file: IndexFile, path: str, log: LogFiles, bounds: tuple[int, int, int]
    ) -> Iterator[tuple[str, int, str]]:
        before, log_start, log_end = bounds
        if file.count > 1 and not file.is_sound(before, log_end):
            yield path, 0, "its header is impossible"
            return
        for physical, stored_ms in ((file.begin_physical, file.begin_ms), (file.end_physical, file.end_ms)):
            if file.count > 1 and physical >= log_start and log.store_time_at(physical) != stored_ms:
                yield path, 0, f"its header says that the message at {physical} was stored at {stored_ms}"
                return
        yield from self._check_entries(file, path, log, log_start)

    def _check_entries(
        self, file: IndexFile, path: str, log: LogFiles, log_start: int
    ) -> Iterator[tuple[str, int, str]]:
        """Find the first wrong entry or slot: the chains of the slots must lead to each message."""
        newest = array("i", bytes(file.slots * SLOT_BYTES))
        physical, facts = -1, None
        for number in range(1, file.count):
            at, known = file.entries_at + number * INDEX_ENTRY_BYTES, physical
            key_hash, physical, seconds, previous = INDEX_ENTRY.unpack_from(file.view, at)
            if physical >= log_start and log.store_time_at(physical) < 0:
                yield path, at, f"entry {number} points at {physical}, where no record begins"
                return
            # The keys of one message follow one another; its record is decoded once for all of them.
            if physical != known:
                facts = self._facts(file, log, physical) if physical >= log_start else None
            is_right = facts is None or (key_hash in facts.hashes and seconds == facts.seconds)
            if not is_right or key_hash < 0 or previous != newest[key_hash % file.slots]:
                yield path, at, f"entry {number} does not match any key of the message at {physical}"
                return
            newest[key_hash % file.slots] = number
        if file.count > 1 and physical != file.end_physical:
            yield path, 0, f"its header says that its last message is at {file.end_physical}, not at {physical}"
        slots = file.newest_entries()
        if slots != newest:
            place = next(place for place, number in enumerate(newest) if slots[place] != number)
            yield path, SLOTS_AT + place * SLOT_BYTES, f"slot {place} does not point at entry {newest[place]}"

    def _facts(self, file: IndexFile, log: LogFiles, physical: int) -> _Facts | None:
        """What an entry for the record at ``physical`` must say; None if the record is damaged, see `Verification`."""
        record = log.record_at(physical)
        if record is None:
            return None
        # An index of an older version lacks the keys of messages in batches, but has no others.
        prefix, known = record.topic.encode() + b"#", record_keys(record)
        hashes = frozenset(self._hasher.index_hash(prefix + key) for key in known)
        return _Facts(hashes, min(max((record.store_timestamp - file.begin_ms) // 1000, 0), MAX_SECONDS))
