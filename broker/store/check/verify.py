"""Reads the whole store of a stopped broker and reports each damage: file, offset, reason. Changes nothing.

The commit log is the truth: each record is checked with its CRC, and queues and index files are compared with the log.
After damage in the log, reading goes on at the next sound record.
Neighbours: log_files.py (the log, read only), verify_queues.py and verify_index.py (the comparisons), repair.py,
broker/commands/verify_store.py (the command).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from broker.store.abort import read_abort
from broker.store.check.verify_index import IndexCheck
from broker.store.check.verify_queues import QueueCheck
from broker.store.checkpoint import read_checkpoint
from broker.store.inventory import read_inventory
from broker.store.log.log_files import LogFile, LogFiles
from broker.store.log.scan import PROGRESS_RECORDS
from broker.store.log.segment import NAME_DIGITS
from broker.store.log.sound import sound_record
from broker.store.queue.ends import read_queue_ends
from broker.store.recovery import why_torn
from mqcommon.disk.files import FileSystem
from mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from mqcommon.message.light import in_each_queue
from mqcommon.message.record import Record


class Part(Enum):
    """The part of the store that is damaged."""

    LOG = "commit log"
    QUEUE = "consume queue"
    INDEX = "index"


@dataclass(frozen=True)
class Damage:
    """Bytes ``offset`` to ``end`` of ``file`` are not what they should be."""

    part: Part
    file: str
    offset: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: offset {self.offset}: {self.reason}"


@dataclass
class VerifyReport:
    """What was read, and what is wrong. ``torn_tail``: never durable; the next start cuts it."""

    records: int = 0
    log_start: int = 0
    log_end: int = 0
    queues: int = 0
    index_files: int = 0
    damages: list[Damage] = field(default_factory=list)
    torn_tail: Damage | None = None
    unchecked: list[str] = field(default_factory=list)
    # Topic -> queue -> next offset after its last message in the log.
    queue_ends: dict[str, dict[int, int]] = field(default_factory=dict)


class Verification:
    """One reading of the store in ``directory``, whose lock the caller holds. ``on_progress``: (bytes read, total)."""

    def __init__(
        self, fs: FileSystem, directory: str, slots: int, capacity: int, on_progress: Callable[[int, int], None]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._on_progress = on_progress
        self._report = VerifyReport()
        self._state = read_checkpoint(fs, f"{directory}/checkpoint")
        self._known_end = self._state.log_offset or 0
        self._last_stop = read_abort(fs, directory)
        self._log = LogFiles(fs, f"{directory}/commitlog")
        self._queues = QueueCheck(fs, f"{directory}/consumequeue", f"{directory}/batchconsumequeue", self._log)
        self._compare = in_each_queue(self._queues.compare)
        self._index = IndexCheck(fs, f"{directory}/index", slots, capacity)

    def run(self) -> VerifyReport:
        """Read everything."""
        report, log = self._report, self._log
        for path, size, reason in log.problems:
            self._damage(path, size, size, reason)
        for base in self._lost_bases():
            self._damage(f"{self._directory}/commitlog/{base:0{NAME_DIGITS}d}", 0, 0, "the file is missing")
        if log.files:
            report.log_start = report.log_end = log.files[0].base
            self._read_log()
        self._judge_end()
        ends = read_queue_ends(self._fs, self._directory)
        self._add(Part.QUEUE, self._queues.finish(report.log_end, ends))
        self._add(Part.INDEX, self._index.finish(log, report.log_start, report.log_end))
        report.queues, report.index_files = self._queues.count, self._index.count
        report.unchecked += self._index.unchecked
        report.queue_ends = self._queues.ends()
        log.close()
        return report

    def _lost_bases(self) -> range:
        """Where the files begin that are missing before the first one. RocketMQ may have cleaned them up."""
        start, _ = read_inventory(self._fs, self._directory)
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
        view, base, end = file.view, file.base, file.end
        while at + BLANK_BYTES <= end:
            length, magic = SIZE_MAGIC.unpack_from(view, at - base)
            if magic == BLANK_MAGIC and at + length == end:
                break
            record, reason = sound_record(view[at - base : min(at + length, end) - base], at)
            if record is not None and at >= self._known_end:
                reason = why_torn(self._state, self._last_stop, view, at - base, record)
            if record is None or reason:
                return self._look_past(file, at, reason if length or magic else "")
            self._take(record)
            at += record.size
        self._report.log_end = end
        return end

    def _look_past(self, file: LogFile, at: int, reason: str) -> int | None:
        """There is no sound record at ``at``: the log ends there, or it is damaged up to the next sound record."""
        following = self._log.next_sound_after(at)
        if following is None:
            self._report.log_end = at
            if reason:
                self._report.torn_tail = Damage(Part.LOG, file.path, at - file.base, file.size, reason)
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

    def _take(self, record: Record) -> None:
        report = self._report
        report.records += 1
        self._compare(record)
        if not report.records % PROGRESS_RECORDS:
            self._on_progress(record.physical_offset - report.log_start, self._log.total_bytes)

    def _judge_end(self) -> None:
        """Report damage if the log ends before the offset up to which it was on disk."""
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

    def _damage(self, path: str, offset: int, end: int, reason: str) -> None:
        self._report.damages.append(Damage(Part.LOG, path, offset, end, reason))

    def _add(self, part: Part, found: Iterable[tuple[str, int, str]]) -> None:
        self._report.damages += [Damage(part, path, offset, offset, reason) for path, offset, reason in found]
