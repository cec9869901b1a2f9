"""The layout of the commit-log record: one table, from which all structs and offsets are made.

 size 4 | magic 4 | bodyCRC 4 | queueId 4 | flag 4 | queueOffset 8 | physicalOffset 8 | sysFlag 4 | bornTimestamp 8
 bornHost 8/20 | storeTimestamp 8 | storeHost 8/20 | reconsumeTimes 4 | preparedTransactionOffset 8
 bodyLength 4 | body | topicLength 1 (V1) / 2 (V2) | topic | propertiesLength 2 | properties

Big-endian. A host is an ip and a port: 8 bytes, or 20 when sysFlag says IPv6. V2 is for topics longer than 127 bytes.
When the next record does not fit into a file, the file ends in a filler: remaining size 4 | BLANK_MAGIC 4.
Neighbours: record.py (encode and decode), columns.py (many records at once).
"""

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from skylark.mqcommon.message.flags import BORN_HOST_V6, HOSTS_V6, STORE_HOST_V6

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BLANK_MAGIC: Final = 0xCBD43194
# Skylark's own: a batch begins with its size and this magic until all of its bytes are written.
UNFINISHED_MAGIC: Final = 0xDAA320FF
MAX_TOPIC_V1 = 127
MAX_PROPERTIES = 32_767
# RocketMQ keeps 31 bits of a CRC32.
CRC_MASK: Final = 0x7FFFFFFF

_HOST = ""
# The head: the name and the struct code of each field before the body.
HEAD_FIELDS: Final = (
    ("size", "I"),
    ("magic", "I"),
    ("body_crc", "I"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_timestamp", "q"),
    ("born_host", _HOST),
    ("store_timestamp", "q"),
    ("store_host", _HOST),
    ("reconsume_times", "i"),
    ("prepared_transaction_offset", "q"),
    ("body_length", "i"),
)
_HOST_V4, _HOST_V6 = 8, 20
# After the body.
TOPIC_LENGTH_V1 = struct.Struct(">B")
TOPIC_LENGTH_V2 = struct.Struct(">h")
PROPERTIES_LENGTH = struct.Struct(">h")


class Raw(NamedTuple):
    """A field, or the fields ``first`` to ``last``, as one value: the stored bytes."""

    first: str
    last: str = ""


class Head:
    """The head of a record with hosts of these sizes: where each field is, and structs of the fields."""

    def __init__(self, born_host: int, store_host: int) -> None:
        hosts = {"born_host": born_host, "store_host": store_host}
        codes = {name: code or f"{hosts[name]}s" for name, code in HEAD_FIELDS}
        self.codes: Mapping[str, str] = MappingProxyType(codes)
        self.host_bytes = born_host, store_host
        starts, ends, at = {}, {}, 0
        for name, code in codes.items():
            starts[name] = at
            ends[name] = at = at + struct.calcsize(f">{code}")
        self.starts: Mapping[str, int] = MappingProxyType(starts)
        self.ends: Mapping[str, int] = MappingProxyType(ends)
        self.size = at
        self.all = self.reader(*codes)

    def reader(self, *fields: str | Raw) -> struct.Struct:
        """A struct of ``fields``, in the order of the record. It skips the bytes before and between them."""
        return struct.Struct(self._format(fields)[0])

    def format(self, *fields: str | Raw) -> str:
        """The format of a struct of ``fields`` that continues with the body."""
        format_, end = self._format(fields)
        return f"{format_}{self.size - end}x"

    def part(self, fields: Raw) -> struct.Struct:
        """A struct of the bytes of ``fields`` alone."""
        span = self.span(fields)
        return struct.Struct(
            ">" + "".join(code for name, code in self.codes.items() if span.start <= self.starts[name] < span.stop)
        )

    def _format(self, fields: Iterable[str | Raw]) -> tuple[str, int]:
        parts, at = [">"], 0
        for field in fields:
            span = self.span(field)
            if span.start != at:
                parts.append(f"{span.start - at}x")
            parts.append(self.codes[field] if isinstance(field, str) else f"{span.stop - span.start}s")
            at = span.stop
        return "".join(parts), at

    def span(self, field: str | Raw) -> slice:
        """Where the bytes of the field, or of the fields, are."""
        first, last = (field, "") if isinstance(field, str) else field
        return slice(self.starts[first], self.ends[last or first])

    def places(self, *fields: str) -> tuple[int, ...]:
        """The offset of each byte of ``fields``."""
        return tuple(at for name in fields for at in range(self.starts[name], self.ends[name]))


# By the two bits of sysFlag that tell whether the hosts are IPv4 or IPv6.
HEADS: Mapping[int, Head] = MappingProxyType(
    {
        0: Head(_HOST_V4, _HOST_V4),
        BORN_HOST_V6: Head(_HOST_V6, _HOST_V4),
        STORE_HOST_V6: Head(_HOST_V4, _HOST_V6),
        HOSTS_V6: Head(_HOST_V6, _HOST_V6),
    }
)
HEAD_V4: Final[Head] = HEADS[0]

SIZE_MAGIC = HEAD_V4.reader("size", "magic")
BLANK_BYTES: Final = SIZE_MAGIC.size
# The size of a V1 record's lengths after its body, without the bytes of its topic and properties.
TAIL_BYTES_V1: Final = TOPIC_LENGTH_V1.size + PROPERTIES_LENGTH.size
MIN_RECORD: Final = HEAD_V4.size + TAIL_BYTES_V1
# The size of a record without its hosts, body, topic (with its length) and properties.
FIXED_BYTES: Final = HEAD_V4.size - sum(HEAD_V4.host_bytes) + PROPERTIES_LENGTH.size
# The largest size of a record without the bytes of its body, topic and properties.
MAX_OVERHEAD_BYTES: Final = HEADS[HOSTS_V6].size + TOPIC_LENGTH_V2.size + PROPERTIES_LENGTH.size
# The store timestamp of a record, by the same bits as `HEADS`.
STORE_TIME: Mapping[int, struct.Struct] = MappingProxyType(
    {bits: head.reader("store_timestamp") for bits, head in HEADS.items()}
)
