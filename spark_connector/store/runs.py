"""Many sound records of the log at once, for the scan of its end: a hundred thousand a second would be slow otherwise.

`run_at` is stricter than valid_record.py: of bytes that need more than its checks (a light queue, an inner batch, a NUL
among the properties, damage) it takes nothing, and the caller reads these records one by one.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.store.log.valid_record import is_storable
from broker.store.queue.rebuild import is_queued
from mqcommon.arrow.columns import gather, is_text
from mqcommon.arrow.decode import check_bodies
from mqcommon.arrow.records import Ints, Mask, Records, physical_offsets
from mqcommon.message.columns import MIN_RUN, DamagedRecord
from mqcommon.message.flags import INNER_BATCH, TRANSACTION_MASK
from mqcommon.message.layout import BLANK_BYTES, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC
from mqcommon.message.light import MARK

# How much of the log is looked at together.
RUN_BYTES = 4 * 1024 * 1024
_MAGICS = MAGIC_V1, MAGIC_V2


class Run(NamedTuple):
    """Records that follow one another; ``topic_numbers`` are places in ``topics``."""

    bytes: int
    topics: list[str]
    topic_numbers: Ints
    queue_ids: Ints
    offsets: Ints
    physical: Ints
    sizes: Ints
    is_queued: Mask


def run_at(data: bytes, physical: int) -> Run | None:
    """The whole records with which ``data`` begins, which is at ``physical`` in the log; None if they are too few."""
    starts, end = _starts(data)
    if len(starts) < MIN_RUN or data.find(MARK, 0, end) >= 0:
        return None
    try:
        records = Records(memoryview(data)[:end], np.array(starts, dtype=np.int64))
        check_bodies(records)
    except DamagedRecord:
        return None
    places = records.starts + physical
    offsets, queue_ids = records.column("queue_offset"), records.column("queue_id")
    names = gather(records.data, records.topic_at, records.topic_lengths, pa.string())
    properties = gather(records.data, records.properties_at, records.properties_lengths, pa.binary())
    if (
        (physical_offsets(records.heads) != places).any()
        or (records.sys_flags & INNER_BATCH).any()
        or (offsets < 0).any()
        or not is_text(names)
        or _holds_nul(properties)
    ):
        return None
    coded = pc.dictionary_encode(names)
    topics: list[str] = coded.dictionary.to_pylist()
    lowest = int(queue_ids.min())
    if not all(is_storable(topic, lowest) for topic in topics):
        return None
    kinds = records.sys_flags & TRANSACTION_MASK
    queued = np.isin(kinds, [kind for kind in range(TRANSACTION_MASK + 1) if is_queued(kind)])
    numbers = coded.indices.to_numpy().astype(np.int64)
    return Run(
        end,
        topics,
        numbers,
        queue_ids.astype(np.int64),
        offsets,
        places,
        records.heads["size"].astype(np.int64),
        queued,
    )


def _starts(data: bytes) -> tuple[list[int], int]:
    """(where the whole records begin, where the last one ends)."""
    starts, at, last = [], 0, len(data) - BLANK_BYTES
    unpack = SIZE_MAGIC.unpack_from
    while at <= last:
        size, magic = unpack(data, at)
        if magic not in _MAGICS or size < MIN_RECORD or at + size > len(data):
            break
        starts.append(at)
        at += size
    return starts, at


def _holds_nul(values: pa.Array) -> bool:
    if not len(values):
        return False
    bounds = np.frombuffer(values.buffers()[1], np.int32)
    held = np.frombuffer(values.buffers()[2], np.uint8) if values.buffers()[2] else np.zeros(0, np.uint8)
    return bool((held[bounds[values.offset] : bounds[values.offset + len(values)]] == 0).any())
