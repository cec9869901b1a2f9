"""Replies to requests of users: a broker pushes them to the client that asked (326)."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class ReplyMessageRequestHeader(Header):
    """326: the fields of the reply, which is the body. Hosts are texts, with a slash in front from Java brokers."""

    producer_group: str = required(read_text)
    topic: str = required(read_text)
    default_topic: str = required(read_text)
    default_topic_queue_nums: int = required(read_int)
    queue_id: int = required(read_int)
    sys_flag: int = required(read_int)
    born_timestamp: int = required(read_long)
    flag: int = required(read_int)
    born_host: str = required(read_text)
    store_host: str = required(read_text)
    store_timestamp: int = required(read_long)
    properties: str | None = optional(read_text)
    reconsume_times: int | None = optional(read_int)
    unit_mode: bool | None = optional(read_flag)
