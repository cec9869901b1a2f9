"""Records that hold whole batches, as brokers store them in queues of type BatchCQ."""

from collections.abc import Sequence

from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.compression import COMPRESSIONS, compressed
from skylark.mqcommon.message.flags import BORN_HOST_V6, STORE_HOST_V6, WRAPPED
from skylark.mqcommon.message.record import encode_record, topic_field

BORN_HOST = bytes([127, 0, 0, 1, 0, 0, 42, 153])
STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
STORED_MS = 1_700_000_000_001
# (flag, body, encoded properties)
Row = tuple[int, bytes, bytes]


def inner_batch(
    rows: Sequence[Row],
    first_offset: int = 0,
    *,
    topic: str = "t",
    queue_id: int = 0,
    physical: int = 0,
    compression: str | None = None,
    count: int | None = None,
    born_host: bytes = BORN_HOST,
    store_host: bytes = STORE_HOST,
    stored_ms: int = STORED_MS,
) -> bytes:
    """The record of a batch, in which the first message has ``first_offset``. ``count``: what it says it has."""
    body, sys_flag = encode_batch(rows), WRAPPED
    if compression is not None:
        sys_flag |= COMPRESSIONS[compression]
        body = compressed(body, sys_flag)
    sys_flag |= BORN_HOST_V6 if len(born_host) == 20 else 0
    sys_flag |= STORE_HOST_V6 if len(store_host) == 20 else 0
    said = len(rows) if count is None else count
    properties = b"CLUSTER\x01c\x02INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (said, first_offset)
    return encode_record(
        *topic_field(topic), queue_id, first_offset, physical, body, properties, 0, sys_flag, STORED_MS - 1, born_host,
        stored_ms, store_host, 0, 0,
    )  # fmt: skip


def rows_of(count: int, first: int = 0, *, tag: str = "") -> list[Row]:
    """Messages whose bodies are their numbers."""
    tags = f"TAGS\x01{tag}\x02".encode() if tag else b""
    return [(number, b"%d" % number, tags + b"UNIQ_KEY\x01K%d\x02" % number) for number in range(first, first + count)]
