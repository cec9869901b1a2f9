"""Finding messages: by key (12), by physical offset (33)."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class QueryMessageRequestHeader(Header):
    """12: messages with a key. With ``unique_key_query`` the key is a UNIQ_KEY."""

    topic: str = required(read_text)
    key: str = required(read_text)
    max_num: int = required(read_int)
    begin_timestamp: int = required(read_long)
    end_timestamp: int = required(read_long)
    unique_key_query: bool | None = optional(read_flag, wire="_UNIQUE_KEY_QUERY")


@dataclass(slots=True)
class QueryMessageResponseHeader(Header):
    """How far the index is."""

    index_last_update_timestamp: int = required(read_long)
    index_last_update_phyoffset: int = required(read_long)


@dataclass(slots=True)
class ViewMessageRequestHeader(Header):
    """33: the message at a physical offset."""

    offset: int = required(read_long)
    topic: str | None = optional(read_text)
