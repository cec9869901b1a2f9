"""From what a stop or crash left to a store that can go on.

After a clean stop the checkpoint says where the log ends. After a crash the log is read from the checkpoint on: all
before it is on disk. The first bytes that are no sound record are the torn tail: cut, and reported. Queues get
what the log has and they have not; the index catches up by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.store.checkpoint import CheckpointState
from broker.store.commitlog import CommitLog
from broker.store.index import Index
from broker.store.queues import Queues
from broker.store.tags import TagCodes
from common.errors import ProtocolError
from common.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    SIZE_MAGIC,
    Record,
    decode_record,
    record_queue_offset,
)


@dataclass
class RecoveryReport:
    """What recovery did, for the log of whoever opened the store."""

    scanned_from: int = 0
    end: int = 0
    records: int = 0
    torn_file: str = ""
    torn_reason: str = ""
    clean: bool = True


class Recovery:
    """Recovers the parts of one store, once."""

    def __init__(self, log: CommitLog, queues: Queues, index: Index, tag_codes: TagCodes) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._tag_codes = tag_codes
        # The latest store time that is known of.
        self.last_timestamp = 0

    def run(self, state: CheckpointState, *, crashed: bool) -> RecoveryReport:
        """Make the parts agree with the log, from where ``state`` says that they may not."""
        log = self._log
        start = log.start if state.log_offset is None else max(state.log_offset, log.start)
        if state.clean and not crashed and not log.holds_something_at(start):
            report = RecoveryReport(scanned_from=start, end=min(start, log.chain.end))
        else:
            report = scan_log(log, min(start, log.chain.end), lambda record: None)
        log.open_at(report.end, flushed=min(report.scanned_from, report.end), clear=not report.clean)
        self._index.open_at(log)
        self.last_timestamp = state.log_timestamp
        self._queues.load(log.start, lambda *entry: self._is_sound(report, *entry), crashed=not report.clean)
        if not report.clean or (log.end > log.start and not self._queues):
            self._redo_from(report.scanned_from if self._queues else log.start)
        return report

    def _is_sound(self, report: RecoveryReport, offset: int, physical: int, size: int) -> bool:
        """Whether a consume queue's entry is true."""
        if report.clean:
            return physical + size <= self._log.end
        # What lies behind the checkpoint is made anew; before it, the log itself must agree.
        raw = self._log.record_at(physical) if physical < report.scanned_from else None
        return raw is not None and len(raw) == size and record_queue_offset(raw) == offset

    def _redo_from(self, start: int) -> None:
        """Queues get what the log has from ``start`` on; from its beginning when that leaves a gap."""
        gaps = 0

        def redo(record: Record) -> None:
            nonlocal gaps
            gaps += self._redo(record)

        scan_log(self._log, start, redo)
        if gaps and start > self._log.start:
            self._redo_from(self._log.start)

    def _redo(self, record: Record) -> bool:
        """The queue gets a record that the log has; whether it lacks messages before it."""
        queue = self._queues.get(record.topic, record.queue_id)
        gap = record.queue_offset > queue.next_offset
        tags_code = self._tag_codes.of(record.properties)
        queue.put_at(record.queue_offset, record.physical_offset, record.size, tags_code)
        self._queues.touch(queue)
        self.last_timestamp = max(self.last_timestamp, record.store_timestamp)
        return gap


def scan_log(log: CommitLog, start: int, on_record: Callable[[Record], None]) -> RecoveryReport:
    """Read the log from ``start``, a record's beginning, to its end; each sound record goes to ``on_record``."""
    report = RecoveryReport(scanned_from=start, end=start, clean=False)
    segment = log.chain.at(start)
    at = start
    while segment is not None:
        view = segment.file.view
        base = segment.base
        while at + BLANK_BYTES <= segment.end:
            size, magic = SIZE_MAGIC.unpack_from(view, at - base)
            if magic == BLANK_MAGIC and at + size == segment.end:
                break
            if size == 0 and magic == 0:
                report.end = at
                return report
            record, reason = _sound_record(bytes(view[at - base : at - base + size]), at)
            if record is None:
                report.end, report.torn_file, report.torn_reason = at, segment.path, reason
                return report
            on_record(record)
            report.records += 1
            at += size
        at = segment.end
        report.end = at
        segment = log.chain.at(at)
    return report


def _sound_record(raw: bytes, physical: int) -> tuple[Record | None, str]:
    try:
        record = decode_record(raw)
    except ProtocolError as error:
        return None, str(error)
    if record.physical_offset != physical:
        return None, f"the record says it is at {record.physical_offset}"
    if not record.topic or "\0" in record.topic or b"\0" in record.properties:
        # The CRC covers the body only; a copy cut short leaves zeros here.
        return None, "the topic or the properties hold zeros"
    return record, ""
