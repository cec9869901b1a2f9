"""The records of a stretch of a class object: where each begins, and what its head says (pure)."""

from collections.abc import Iterator
from typing import NamedTuple

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.flags import HOSTS_V6, WRAPPED
from skylark.mqcommon.message.inner import inner_count
from skylark.mqcommon.message.layout import HEAD_V4, STORE_TIME
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.tier.bucket import DamagedObject

_HEAD = HEAD_V4.reader("size", "queue_offset", "physical_offset", "sys_flag")


class StoredRecord(NamedTuple):
    """One record. ``at`` and ``size``: its place in the stretch.

    ``messages``: how many messages of the queue it is, from ``queue_offset`` on; more than 1 for an inner batch.
    """

    at: int
    size: int
    queue_offset: int
    messages: int
    physical_offset: int
    store_ms: int


def stored_records(data: bytes) -> Iterator[StoredRecord]:
    """The records of ``data``, which consists of whole records. Raises DamagedObject for other bytes."""
    try:
        for at in record_starts(data):
            size, queue_offset, physical_offset, sys_flag = _HEAD.unpack_from(data, at)
            messages = 1
            if sys_flag & WRAPPED == WRAPPED:
                messages = inner_count(decode_record(data, at, check_crc=False))
            (store_ms,) = STORE_TIME[sys_flag & HOSTS_V6].unpack_from(data, at)
            yield StoredRecord(at, size, queue_offset, messages, physical_offset, store_ms)
    except ProtocolError as error:
        raise DamagedObject(f"a stretch of records cannot be read: {error}") from None


def records_between(data: bytes, first_offset: int, end_offset: int) -> Iterator[tuple[StoredRecord, bytes]]:
    """The records of one queue in ``data`` with messages from ``first_offset`` up to, without, ``end_offset``."""
    for record in stored_records(data):
        if record.queue_offset >= end_offset:
            return
        if record.queue_offset + record.messages > first_offset:
            yield record, data[record.at : record.at + record.size]
