"""What a sound record is, and how to tell a torn copy of a record from a whole one. Pure.

Sends, queues, recovery, slaves and verifyStore share this definition, so that a record that a send accepted stays
valid. A record's properties may hold any byte.

A record can be torn only where the log is not known to be on disk. Slaves, too, only write whole records
(replication/whole_records.py), so no sector has a part of a record and zeros after it. Bytes that never got to disk are
zeros, as files are zeroed before use: whole sectors after a power loss, all bytes from some byte on after a kill.
Zeros in the head or in a length make the record unsound, zeros in the body fail its CRC, and no topic has zeros. Two
cases remain:
- The properties end in a zero, and nothing follows the record. Properties that Skylark stores end in ``\\x02`` (the
  callers of `put` ensure that). So the record is torn, or it is a Java broker's whose last value ends in a NUL.
- A whole sector of the properties is zeros (power loss only). Properties with that many NULs in a row are `sealed` when
  they are stored: a CRC follows them.
Neighbours: scan.py and verify.py (read the log), recovery.py (knows what is on disk).
"""

from typing import Protocol
from zlib import crc32

from skylark.mqcommon.crc import LARGE_BYTES, large_crc32
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.layout import BLANK_BYTES, CRC_MASK, SIZE_MAGIC, UNFINISHED_MAGIC
from skylark.mqcommon.message.record import Record, decode_record

# A disk writes a sector whole or not at all. A page of the page cache is a multiple of it.
SECTOR_BYTES = 512
SECTOR_OF_ZEROS = bytes(SECTOR_BYTES)
# A topic is also the name of a directory.
MAX_TOPIC_BYTES = 255

# Fewer zeros at the end of a sector are content.
_TORN_ZEROS = 8

_SEAL = b"PROPERTIES_CRC32\x01"


class _View(Protocol):
    """A mapped file."""

    def __getitem__(self, part: slice, /) -> bytes: ...


def is_storable(topic: str, queue_id: int) -> bool:
    """Whether messages of this topic and queue can be stored."""
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        return False
    return (
        0 < size <= MAX_TOPIC_BYTES
        and "\0" not in topic
        and "/" not in topic
        and topic not in (".", "..")
        and queue_id >= 0
    )


def valid_record(raw: bytes, physical: int, *, check_crc: bool = True) -> tuple[Record | None, str]:
    """(the record at ``physical``, ""), or (None, why the bytes are not a sound record)."""
    try:
        record = decode_record(raw, check_crc=False)
    except ProtocolError as error:
        return None, str(error)
    if check_crc and (large_crc32 if len(raw) >= LARGE_BYTES else crc32)(record.body) & CRC_MASK != record.body_crc:
        return None, "body does not match its CRC"
    if record.physical_offset != physical:
        return None, f"the record says it is at {record.physical_offset}"
    if record.queue_offset < 0 or not is_storable(record.topic, record.queue_id):
        return None, f"the record says it is message {record.queue_offset} of {record.topic!r}/{record.queue_id}"
    return record, ""


def torn_reason(view: _View, at: int, record: Record, *, lost_sectors: bool) -> str:
    """Why the sound ``record``, at byte ``at`` of a file, is a torn copy; "" if it is whole.

    ``lost_sectors``: any sector may be missing, as after a power loss, and not only the end of the written bytes.
    """
    properties = record.properties
    if properties.find(b"\0") < 0:
        return ""
    end = at + record.size
    if properties[-1] == 0 and not any(view[end : end + BLANK_BYTES]):
        return "the properties end in zeros, and nothing follows"
    if not lost_sectors or _is_sealed(properties):
        return ""
    first = (end - len(properties)) // SECTOR_BYTES * SECTOR_BYTES
    for sector in range(first, end, SECTOR_BYTES):
        if not any(view[sector : sector + SECTOR_BYTES]):
            return f"a sector of zeros in the properties, at byte {sector - at} of the record"
    return ""


def may_lack_sectors(view: _View, at: int, end: int) -> bool:
    """Whether a power loss that came before the bytes from ``at`` to ``end`` were synced explains that they are wrong.

    Then some sector has zeros from some byte on: it was written before these bytes were there, or never. Otherwise
    the disk has changed the bytes.
    """
    while at < end:
        stop = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
        part = view[at:stop]
        if len(part) - len(part.rstrip(b"\0")) >= min(len(part), _TORN_ZEROS):
            return True
        at = stop
    return False


def past_torn(view: _View, at: int) -> int:
    """Where torn bytes at ``at``, which are no sound record, may end although they contain whole records.

    This is the end of a batch that was being written, else ``at``.
    """
    head = view[at : at + BLANK_BYTES]
    if len(head) < BLANK_BYTES:
        return at
    size, magic = SIZE_MAGIC.unpack(head)
    return at + int(size) if magic == UNFINISHED_MAGIC else at


def sealed(properties: bytes) -> bytes:
    """``properties``, which end in ``\\x02``, and a property with their CRC, which a torn copy would not match."""
    return b"%s%s%08X\x02" % (properties, _SEAL, crc32(properties))


def _is_sealed(properties: bytes) -> bool:
    at = properties.rfind(b"\x02" + _SEAL) + 1
    value = properties[at + len(_SEAL) :][:8]
    return at > 0 and value == b"%08X" % crc32(properties[:at])
