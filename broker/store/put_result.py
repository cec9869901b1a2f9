"""What a put returns: where the messages are in the store."""

from typing import NamedTuple


class PutResult(NamedTuple):
    """Where a message is. The put is durable when the log is flushed or replicated up to ``end``."""

    physical_offset: int
    queue_offset: int
    end: int
    store_timestamp: int
    #: With this a producer can recall a timed message.
    recall_handle: str = ""


class BatchPutResult(NamedTuple):
    """Where the messages of a batch are; queue offsets count up from ``queue_offset``."""

    physical_offsets: list[int]
    queue_offset: int
    end: int
    store_timestamp: int
