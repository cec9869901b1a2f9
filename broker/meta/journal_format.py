"""The bytes of a metadata journal, both ways.

A file is a header and records without gaps; integers are big-endian:

    header   | "SKYMETA1" 8 | number 8 | length of journal number-1 when this one was begun 8 |
    record   | 0xDA7A5EED 4 | length 4 | crc32 4 | durable 8 | CBOR [kind, payload], ``length`` bytes |

``crc32`` covers ``durable`` and the CBOR. ``durable`` says how many bytes of this file were known to be on disk when
the record was written. It tells a torn tail from rot, which is damage to bytes that were on disk: bytes after every
known durable length were never acknowledged and may be cut; damage before it is rot. This module only reports;
journal.py decides.
"""

import re
import struct
from typing import Any, NamedTuple
from zlib import crc32

import cbor2

from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

MAGIC = b"SKYMETA1"
MARK = b"\xda\x7a\x5e\xed"
# A record is one change or a slice of a table, far smaller than this: a larger length is damage.
MAX_RECORD_BYTES = 64 * 1024 * 1024

_HEADER = struct.Struct(">8sQQ")
_RECORD = struct.Struct(">4sIIQ")
_DURABLE = struct.Struct(">Q")
HEADER_BYTES = _HEADER.size
RECORD_HEAD_BYTES = _RECORD.size

_NAME = re.compile(r"metadata\.(journal|snapshot)\.(\d{1,18})(\.tmp)?")


class JournalRecord(NamedTuple):
    """One change; ``offset`` is where it starts in its file."""

    offset: int
    kind: str
    payload: Any


@lazy_dataclass(frozen=True, slots=True)
class Scan:
    """The readable records of a file, and why reading stopped."""

    records: list[JournalRecord]
    #: Bytes of the header and of all records before the first damage.
    good_bytes: int
    #: Length of the journal before this one when this one was begun; None if the header is not readable.
    previous_bytes: int | None
    #: The highest durable length in any record of this file.
    durable_bytes: int
    #: Why reading stopped before the end; "" if it did not.
    damage: str = ""

    @property
    def rotten(self) -> bool:
        """Whether bytes that were known to be on disk are damaged now."""
        return bool(self.damage) and self.good_bytes < self.durable_bytes


def encode_header(number: int, previous_bytes: int) -> bytes:
    return _HEADER.pack(MAGIC, number, previous_bytes)


def encode_record(kind: str, payload: Any, durable_bytes: int) -> bytes:
    data = cbor2.dumps([kind, payload])
    known = _DURABLE.pack(durable_bytes)
    return _RECORD.pack(MARK, len(data), crc32(data, crc32(known)), durable_bytes) + data


def scan(data: bytes, number: int) -> Scan:
    """Read the file of journal (or snapshot) ``number``; never raises, whatever the bytes are."""
    if len(data) < HEADER_BYTES or data[:HEADER_BYTES] == bytes(HEADER_BYTES):
        durable = _find_durable(data, 0)
        return Scan([], 0, None, durable, "the header is missing" if data else "")
    magic, written_number, previous_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC or written_number != number:
        # Only rot or another program causes this, so the whole file counts as known to be on disk.
        return Scan([], 0, None, len(data), f"no header of Skylark's journal {number}")
    records: list[JournalRecord] = []
    durable, offset, damage = 0, HEADER_BYTES, ""
    while offset < len(data):
        found = _read_record(data, offset)
        if isinstance(found, str):
            # Reading stops here, but whole records may follow. Their durable lengths show whether the damaged bytes
            # were on disk (rot), or never acknowledged (a torn tail).
            damage = found
            durable = max(durable, _find_durable(data, offset))
            break
        record, known, offset = found
        durable = max(durable, known)
        records.append(record)
    return Scan(records, offset, previous_bytes, durable, damage)


def _read_record(data: bytes, offset: int) -> tuple[JournalRecord, int, int] | str:
    """The record at ``offset``, its durable length and the start of the next record; or why it cannot be read."""
    start = offset + RECORD_HEAD_BYTES
    if start > len(data):
        return "the file ends inside a record's head"
    mark, length, checksum, durable = _RECORD.unpack_from(data, offset)
    if mark != MARK:
        return "no record starts here"
    if length > MAX_RECORD_BYTES:
        return f"a record of {length} bytes"
    end = start + length
    if end > len(data):
        return "the file ends inside a record"
    body = data[start:end]
    if crc32(body, crc32(_DURABLE.pack(durable))) != checksum:
        return "the checksum is wrong"
    try:
        kind, payload = cbor2.loads(body)
    except (cbor2.CBORError, ValueError, TypeError, RecursionError):
        return "the content is not what Skylark writes"
    if not isinstance(kind, str):
        return "the content is not what Skylark writes"
    return JournalRecord(offset, kind, payload), durable, end


def _find_durable(data: bytes, offset: int) -> int:
    """The highest durable length in any whole record after the damage at ``offset``."""
    durable = 0
    while (offset := data.find(MARK, offset)) >= 0:
        found = _read_record(data, offset)
        if isinstance(found, str):
            offset += 1
        else:
            _, known, offset = found
            durable = max(durable, known)
    return durable


@lazy_dataclass(frozen=True, slots=True)
class Listing:
    """Numbers of the files present, in order; ``half_written``: paths of unfinished snapshots."""

    journals: list[int]
    snapshots: list[int]
    half_written: list[str]


@lazy_dataclass(frozen=True, slots=True)
class JournalPaths:
    directory: str

    def journal(self, number: int) -> str:
        return f"{self.directory}/metadata.journal.{number}"

    def snapshot(self, number: int) -> str:
        return f"{self.directory}/metadata.snapshot.{number}"

    def half_snapshot(self, number: int) -> str:
        return f"{self.snapshot(number)}.tmp"

    def listing(self, fs: FileSystem) -> Listing:
        found = Listing([], [], [])
        for name in fs.listdir(self.directory):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            kind, number, half = match.groups()
            if half:
                found.half_written.append(f"{self.directory}/{name}")
            else:
                (found.journals if kind == "journal" else found.snapshots).append(int(number))
        found.journals.sort()
        found.snapshots.sort()
        return found

    def older(self, listing: Listing, base: int) -> list[str]:
        """Paths of the files that snapshot ``base`` replaces."""
        journals = [self.journal(n) for n in listing.journals if n < base]
        return journals + [self.snapshot(n) for n in listing.snapshots if n < base]
