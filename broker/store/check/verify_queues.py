"""Compares consume queues with the records of the log, in the order of the log. Read only."""

from collections.abc import Callable, Iterator

from broker.store.check.verify_batches import BatchFiles
from broker.store.log.log_files import LogFiles
from broker.store.log.segment import NAME_DIGITS
from broker.store.queue.ends import QueueEnds
from broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from broker.store.queue.rebuild import is_queued
from broker.store.queue.tags import TagCodes
from mqcommon.disk.files import FileSystem, MappedFile
from mqcommon.message.flags import INNER_BATCH
from mqcommon.message.record import Record
from mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC

# The most queue files that are mapped at one time.
MAX_MAPPED = 500


class _Queue:
    """The files of one queue, and the differences found so far."""

    def __init__(self, fs: FileSystem, directory: str, on_map: Callable[["_Queue"], None]) -> None:
        self._fs = fs
        self._on_map = on_map
        self.directory = directory
        names = [n for n in fs.listdir(directory) if len(n) == NAME_DIGITS and n.isdigit()]
        self.sizes = {int(name): fs.size(f"{directory}/{name}") for name in names}
        self._file_bytes = max(self.sizes.values(), default=0)
        self._maps: dict[int, MappedFile] = {}
        self.next_offset = 0
        self.wrong = 0
        self.first_wrong = ("", 0, "")

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code); zeros if the files have none."""
        path, base = self.place(offset)
        at = offset * ENTRY_BYTES - base
        if at + ENTRY_BYTES > self.sizes.get(base, 0):
            return 0, 0, 0
        if base not in self._maps:
            self._on_map(self)
            self._maps[base] = self._fs.open_map(path, self.sizes[base], create=False)
        return ENTRY.unpack_from(self._maps[base].view, at)

    def place(self, offset: int) -> tuple[str, int]:
        """(path, position of its first byte) of the file for message ``offset``."""
        base = offset * ENTRY_BYTES // self._file_bytes * self._file_bytes if self._file_bytes else 0
        return f"{self.directory}/{base:0{NAME_DIGITS}d}", base

    def note_wrong(self, offset: int, reason: str) -> None:
        path, base = self.place(offset)
        if not self.wrong:
            self.first_wrong = (path, offset * ENTRY_BYTES - base, reason)
        self.wrong += 1

    def size_problems(self) -> Iterator[tuple[str, int, str]]:
        """Report files that are shorter than the others of the queue."""
        for base, size in self.sizes.items():
            if size < self._file_bytes:
                path = f"{self.directory}/{base:0{NAME_DIGITS}d}"
                yield path, size, f"the file ends after {size:,} of {self._file_bytes:,} bytes"

    def close(self) -> None:
        for map_ in self._maps.values():
            map_.close()
        self._maps.clear()


class QueueCheck:
    """`compare` each record in the order of the log, then `finish`. ``batch_directory``: that of batch queues."""

    def __init__(self, fs: FileSystem, directory: str, batch_directory: str, log: LogFiles) -> None:
        self._fs = fs
        self._directory = directory
        self._batch_directory = batch_directory
        self._log = log
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
        offset = record.queue_offset
        if offset == 0:
            # Earlier differences were of a topic that was deleted and made again.
            queue.wrong = 0
        queue.next_offset = offset + 1
        found = queue.entry(offset)
        # Here the tags code is a time, by the conf of the broker that wrote it; RocketMQ's timed messages have a hash.
        code = found[2] if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) else self._tag_codes.of_record(record)
        wanted = record.physical_offset, record.size, code
        # A topic that was deleted and made again: its queue has later messages in the places of the earlier ones.
        later = found[0] > record.physical_offset and self._log.store_time_at(found[0]) >= 0
        if found != wanted and not later:
            queue.note_wrong(
                offset, f"message {offset} is at {wanted}, but the entry says {found} (offset in the log, size, tag)"
            )

    def finish(self, log_end: int, ends: QueueEnds | None) -> Iterator[tuple[str, int, str]]:
        """(path, offset in it, what is wrong) of each queue that differs from the log."""
        for directory in (self._directory, self._batch_directory):
            for topic in self._fs.listdir(directory):
                for name in self._fs.listdir(f"{directory}/{topic}"):
                    if name.isdigit() and (topic, int(name)) not in self._queues:
                        self._add(topic, int(name)).next_offset = -1
        for (topic, queue_id), queue in self._queues.items():
            known = ends is None or queue_id in ends.queues.get(topic, {})
            if isinstance(queue, BatchFiles):
                yield from queue.finish(log_end, is_known=known)
                continue
            if not queue.sizes and queue.next_offset >= 0:
                if known:
                    yield queue.directory, 0, f"no file, but the log has messages up to {queue.next_offset - 1}"
                continue
            yield from queue.size_problems()
            if queue.wrong:
                path, offset, reason = queue.first_wrong
                more = f"; {queue.wrong - 1:,} more are wrong" if queue.wrong > 1 else ""
                yield path, offset, reason + more
            elif queue.next_offset >= 0:
                physical, size, _ = queue.entry(queue.next_offset)
                if size not in (0, BLANK_SIZE) and physical < log_end:
                    path, base = queue.place(queue.next_offset)
                    at = queue.next_offset * ENTRY_BYTES - base
                    yield path, at, f"message {queue.next_offset} is not in the log"
            queue.close()

    def _add(self, topic: str, queue_id: int, *, batch: bool = False) -> _Queue | BatchFiles:
        """``batch``: whether it is a batch queue, if no files tell."""
        log_start = self._log.files[0].base if self._log.files else 0
        of_batches = BatchFiles(self._fs, f"{self._batch_directory}/{topic}/{queue_id}", log_start)
        queue = _Queue(self._fs, f"{self._directory}/{topic}/{queue_id}", self._note_map)
        is_batch = bool(of_batches.sizes) or (batch and not queue.sizes)
        self._queues[topic, queue_id] = of_batches if is_batch else queue
        return self._queues[topic, queue_id]

    def _note_map(self, queue: _Queue) -> None:
        if len(self._mapped) >= MAX_MAPPED:
            # A file is mapped again when the next record of its queue comes.
            for other in self._mapped:
                other.close()
            self._mapped.clear()
        self._mapped.append(queue)
