"""A set's copy of what is beside the log: topics, groups, offsets, users. The object `layout.metadata_name` (pure)."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.framed import framed, unframed

_MAGIC: Final = b"SKTD"
_VERSION: Final = 1


@lazy_dataclass(frozen=True, slots=True)
class MetadataCopy:
    """The files of a broker's metadata at one moment, ``made_ms``, when its log ended at ``log_end``.

    ``files``: contents by path within the store's directory, as ``config/metadata.journal.3``. ``mode``: plain,
    Controller or DLedger. The sizes are as in the store's options: bytes of a queue's file, slots and entries of an
    index file. ``empty_queues``: topic -> queue -> next offset, of queues that have had messages, and have none in the
    log: queues that were empty before the first upload are in no segment.
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
    empty_queues: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


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
        {topic: dict(queues) for topic, queues in copy.empty_queues.items()},
    ]
    return framed(_MAGIC, _VERSION, rows)


def decode_metadata(data: bytes) -> MetadataCopy:
    """The copy in the bytes of the object. Raises DamagedObject."""
    rows = unframed(_MAGIC, _VERSION, data, "a copy of metadata")
    try:
        return MetadataCopy(*rows)
    except TypeError as error:
        raise DamagedObject(f"a copy of metadata is not what this Skylark writes: {error}") from None
