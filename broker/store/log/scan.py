"""Reading the commit log record by record, from one offset to where the sound records end."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass

from broker.store.log.commitlog import CommitLog
from broker.store.log.valid_record import valid_record
from mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from mqcommon.message.record import Record

# How many records are read between two calls of ``on_progress``.
PROGRESS_RECORDS = 4096

OnRecord = Callable[[Record], None]
OnProgress = Callable[[int], None]
# Says why a sound record, at some byte of a mapped file, is a torn copy; "" if it is not.
IsTorn = Callable[[mmap.mmap, int, Record], str]


@dataclass
class ScanResult:
    """``end``: one past the last sound record; ``reason``: what is wrong there in ``file``, "" if nothing follows."""

    end: int
    records: int = 0
    file: str = ""
    reason: str = ""


def scan_log(
    log: CommitLog,
    start: int,
    on_record: OnRecord,
    on_progress: OnProgress,
    *,
    check_crc: bool = True,
    torn: IsTorn = lambda view, at, record: "",
) -> ScanResult:
    """Read the log from ``start``, where a record must begin. ``on_record`` gets each sound record."""
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
            record, reason = valid_record(view[at - base : min(at + size, end) - base], at, check_crc=check_crc)
            if record is not None:
                reason = torn(view, at - base, record)
            if record is None or reason:
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
