"""Reading the commit log record by record, from one offset to where the sound records end."""

from collections.abc import Callable
from dataclasses import dataclass

from broker.store.commitlog import CommitLog
from mqcommon.errors import ProtocolError
from mqcommon.message.record import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC, Record, decode_record

# How many records are read between two calls of ``on_progress``.
PROGRESS_RECORDS = 4096

OnRecord = Callable[[Record], None]
OnProgress = Callable[[int], None]


@dataclass
class ScanResult:
    """``end``: one past the last sound record; ``reason``: why it ends in ``file`` there, "" when nothing follows."""

    end: int
    records: int = 0
    file: str = ""
    reason: str = ""


def scan_log(
    log: CommitLog, start: int, on_record: OnRecord, on_progress: OnProgress, *, check_crc: bool = True
) -> ScanResult:
    """Read the log from ``start``, a record's beginning; each sound record goes to ``on_record``."""
    found = ScanResult(start)
    segment = log.chain.at(start)
    at = start
    while segment is not None:
        view, base, end = segment.file.view, segment.base, segment.end
        while at + BLANK_BYTES <= end:
            size, magic = SIZE_MAGIC.unpack_from(view, at - base)
            if magic == BLANK_MAGIC and at + size == end:
                break
            if size == 0 and magic == 0:
                found.end = at
                return found
            record, reason = sound_record(view[at - base : min(at + size, end) - base], at, check_crc=check_crc)
            if record is None:
                found.end, found.file, found.reason = at, segment.path, reason
                return found
            on_record(record)
            found.records += 1
            at += size
            if not found.records % PROGRESS_RECORDS:
                on_progress(at)
        found.end = at = end
        segment = log.chain.at(at)
    return found


def sound_record(raw: bytes, physical: int, *, check_crc: bool = True) -> tuple[Record | None, str]:
    """The record at ``physical``, or None and why the bytes are none."""
    try:
        record = decode_record(raw, check_crc=check_crc)
    except ProtocolError as error:
        return None, str(error)
    if record.physical_offset != physical:
        return None, f"the record says it is at {record.physical_offset}"
    if record.queue_id < 0 or record.queue_offset < 0:
        return None, f"the record says it is message {record.queue_offset} of queue {record.queue_id}"
    if not record.topic or "\0" in record.topic or b"\0" in record.properties:
        # The CRC covers the body only; a copy cut short leaves zeros here.
        return None, "the topic or the properties hold zeros"
    return record, ""
