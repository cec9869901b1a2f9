"""From what a stop or crash left to a store that can go on.

After a clean stop the checkpoint says where the log ends. After a crash the log is read from the checkpoint on: all
before it is on disk. The first bytes that are no sound record are the torn tail: cut, and reported. Queues and index
get what the log has and they have not.
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.store.commitlog import CommitLog
from common.errors import ProtocolError
from common.message.record import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC, Record, decode_record


@dataclass
class RecoveryReport:
    """What recovery did, for the log of whoever opened the store."""

    scanned_from: int = 0
    end: int = 0
    records: int = 0
    torn_file: str = ""
    torn_reason: str = ""
    clean: bool = True


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
