"""A set's copy of what is beside the log: topics, groups, offsets, users. The object `layout.metadata_name` (pure).

Bytes: magic 4 | crc of the rest 4 | CBOR [version, what `MetadataCopy` has]
"""

import struct
from collections.abc import Mapping
from typing import Final
from zlib import crc32

import cbor2

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import BucketError

_HEAD = struct.Struct(">II")
_MAGIC: Final = 0x534B4D43
_VERSION: Final = 1


class DamagedCopy(BucketError):
    """The bytes are no copy of metadata, or not those that were written, or a newer version wrote them."""


@lazy_dataclass(frozen=True, slots=True)
class MetadataCopy:
    """The files of a broker's metadata at one moment, ``made_ms``, when its log ended at ``log_end``.

    ``files``: contents by path within the store's directory, as ``config/metadata.journal.3``. ``mode``: plain,
    Controller or DLedger. The sizes are those of the store's options: bytes of a queue's file, slots and entries of an
    index file.
    """

    broker_name: str
    cluster_name: str
    mode: str
    version: str
    made_ms: int
    log_end: int
    consumequeue_segment_bytes: int
    batchqueue_segment_bytes: int
    index_slots: int
    index_capacity: int
    files: Mapping[str, bytes]


def encode_metadata(copy: MetadataCopy) -> bytes:
    """The bytes of the object."""
    rows = [
        copy.broker_name,
        copy.cluster_name,
        copy.mode,
        copy.version,
        copy.made_ms,
        copy.log_end,
        copy.consumequeue_segment_bytes,
        copy.batchqueue_segment_bytes,
        copy.index_slots,
        copy.index_capacity,
        dict(copy.files),
    ]
    data = cbor2.dumps([_VERSION, rows])
    return _HEAD.pack(_MAGIC, crc32(data)) + data


def decode_metadata(data: bytes) -> MetadataCopy:
    """The copy in the bytes of the object. Raises DamagedCopy."""
    if len(data) < _HEAD.size:
        raise DamagedCopy(f"a copy of metadata has {len(data)} bytes only")
    magic, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if magic != _MAGIC or crc32(body) != crc:
        raise DamagedCopy("a copy of metadata is damaged (CRC)")
    version, rows = cbor2.loads(body)
    if version != _VERSION:
        raise DamagedCopy(f"a copy of metadata has format {version}: use a newer Skylark")
    return MetadataCopy(*rows)
