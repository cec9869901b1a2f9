"""Where messages went in the store."""

from typing import NamedTuple


class PutResult(NamedTuple):
    """Where a message went. ``end`` must be flushed or replicated before the put is durable."""

    physical_offset: int
    queue_offset: int
    end: int
    store_timestamp: int


class BatchPutResult(NamedTuple):
    """Where the messages of a batch went; queue offsets count up from ``queue_offset``."""

    physical_offsets: list[int]
    queue_offset: int
    end: int
    store_timestamp: int
