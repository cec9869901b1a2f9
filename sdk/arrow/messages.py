"""Record batches of message objects, for handlers of both kinds in one consumer."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from mqcommon.message.message import MessageExt, records_of
from mqcommon.message.record import Record, encode_record, topic_field
from sdk.arrow.columns import patched
from sdk.arrow.decode import RecordColumns, decode
from sdk.arrow.records import Records


class _OfMessages(RecordColumns):
    """Compressed bodies are decompressed by their messages, which may have done that before."""

    def __init__(self, messages: Sequence[MessageExt], records: Records, broker_name: str) -> None:
        super().__init__(records, broker_name)
        self._messages = messages

    def _unpacked(self, row: int, body: bytes) -> bytes:
        return self._messages[row].body


def _encoded(record: Record) -> bytes:
    """The record as it would be stored by itself."""
    return encode_record(
        *topic_field(record.topic), record.queue_id, record.queue_offset, record.physical_offset, record.body,
        record.properties, record.flag, record.sys_flag, record.born_timestamp, record.born_host,
        record.store_timestamp, record.store_host, record.reconsume_times, record.prepared_transaction_offset,
    )  # fmt: skip


def record_batch(messages: Sequence[MessageExt], schema: pa.Schema) -> pa.RecordBatch:
    """A row for each of ``messages``, which are of one queue. Raises `TooMuchContent`."""
    data, starts, changed = records_of(messages)
    if any([messages[row].is_inner for row in changed]):
        # Their records are of whole batches.
        plain = [_encoded(message.record) for message in messages]
        data, starts, changed = b"".join(plain), [0, *accumulate(map(len, plain[:-1]))], []
    records = Records(data, np.array(starts, dtype=np.int64))
    batch = decode(records, messages[0].broker_name, schema, partial(_OfMessages, messages))
    if not changed:
        return batch
    now: dict[str, list[Any]] = {
        "topic": [messages[row].topic for row in changed],
        "reconsumeTimes": [messages[row].reconsume_times for row in changed],
    }
    arrays = [
        patched(array, np.array(changed, dtype=np.int64), now[name]) if name in now else array
        for name, array in zip(schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
