"""Finding messages: by key (12), by physical offset (33), by their position in a queue (321)."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class QueryMessageRequestHeader(Header):
    """12: messages with a key. With ``unique_key_query``, or index type U (5.x), the key is a UNIQ_KEY."""

    topic: str = required(read_text)
    key: str = required(read_text)
    max_num: int = required(read_int)
    begin_timestamp: int = required(read_long)
    end_timestamp: int = required(read_long)
    unique_key_query: bool | None = optional(read_flag, wire="_UNIQUE_KEY_QUERY")
    index_type: str | None = optional(read_text)


@dataclass(slots=True)
class QueryMessageResponseHeader(Header):
    """The answer to 12: how far the index is."""

    index_last_update_timestamp: int = required(read_long)
    index_last_update_phyoffset: int = required(read_long)


@dataclass(slots=True)
class ViewMessageRequestHeader(Header):
    """33: the message at a physical offset.

    ``takes_batches`` is not RocketMQ's: the answer may be an inner batch. Others get its first message.
    """

    offset: int = required(read_long)
    topic: str | None = optional(read_text)
    takes_batches: bool | None = optional(read_flag)


@dataclass(slots=True)
class QueryConsumeQueueRequestHeader(Header):
    """321: ``count`` entries of a queue from ``index`` on; with a group, also whether its filter accepts each."""

    topic: str = required(read_text)
    queue_id: int = optional(read_int, 0)
    index: int = optional(read_long, 0)
    count: int = optional(read_int, 0)
    consumer_group: str | None = optional(read_text)
