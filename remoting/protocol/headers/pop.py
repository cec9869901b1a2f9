"""Pop consumption: 200050 to 200056. Acknowledgements name the topic that was read, which may be a retry topic."""

from dataclasses import dataclass
from typing import Final

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text

#: ``queue_id`` of a request for all queues of a topic.
ANY_QUEUE: Final = -1
#: ``init_mode``: where a group begins in a queue that it has no offset of.
INIT_MIN: Final = 0
INIT_MAX: Final = 1
#: The most messages of one request.
MAX_POP_COUNT: Final = 32


@dataclass(slots=True)
class PopMessageRequestHeader(Header):
    """200050. Times in ms: ``poll_time`` is how long the broker may hold the request that was sent at ``born_time``."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    max_msg_nums: int = required(read_int)
    invisible_time: int = required(read_long)
    poll_time: int = required(read_long)
    born_time: int = required(read_long)
    init_mode: int = required(read_int)
    exp_type: str | None = optional(read_text)
    exp: str | None = optional(read_text)
    order: bool | None = optional(read_flag)
    attempt_id: str | None = optional(read_text)


@dataclass(slots=True)
class PopMessageResponseHeader(Header):
    """200050 and 200052. The texts are those of remoting/protocol/pop_info.py."""

    pop_time: int = required(read_long)
    invisible_time: int = required(read_long)
    revive_qid: int = required(read_int)
    rest_num: int = required(read_long)
    start_offset_info: str | None = optional(read_text)
    msg_offset_info: str | None = optional(read_text)
    order_count_info: str | None = optional(read_text)


@dataclass(slots=True)
class AckMessageRequestHeader(Header):
    """200051: one message is consumed. ``extra_info`` is its handle."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    extra_info: str = required(read_text)
    offset: int = required(read_long)


@dataclass(slots=True)
class PeekMessageRequestHeader(Header):
    """200052: messages as a pop would return them, which stay visible."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    max_msg_nums: int = required(read_int)
    consumer_group: str = required(read_text)


@dataclass(slots=True)
class ChangeInvisibleTimeRequestHeader(Header):
    """200053: the message becomes visible ``invisible_time`` ms from now."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    extra_info: str = required(read_text)
    offset: int = required(read_long)
    invisible_time: int = required(read_long)


@dataclass(slots=True)
class ChangeInvisibleTimeResponseHeader(Header):
    """The parts of the message's new handle, which begins at the offset of the message."""

    pop_time: int = required(read_long)
    invisible_time: int = required(read_long)
    revive_qid: int = required(read_int)


@dataclass(slots=True)
class NotificationRequestHeader(Header):
    """200054: asks whether there is a message to pop, and waits for one."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    poll_time: int = required(read_long)
    born_time: int = required(read_long)
    order: bool | None = optional(read_flag)
    attempt_id: str | None = optional(read_text)


@dataclass(slots=True)
class NotificationResponseHeader(Header):
    """``polling_full``: too many requests wait already."""

    has_msg: bool = required(read_flag)
    polling_full: bool | None = optional(read_flag)


@dataclass(slots=True)
class PollingInfoRequestHeader(Header):
    """200055."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)


@dataclass(slots=True)
class PollingInfoResponseHeader(Header):
    """How many requests of the group wait for the queue."""

    polling_num: int = required(read_int)
