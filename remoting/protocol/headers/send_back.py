"""36: a consumer gives back a message that it could not handle."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class ConsumerSendMsgBackRequestHeader(Header):
    """``offset`` is the message's physical one. ``delay_level``: 0 lets the broker choose, below 0 is a dead letter."""

    offset: int = required(read_long)
    group: str = required(read_text)
    delay_level: int = required(read_int)
    origin_msg_id: str | None = optional(read_text)
    origin_topic: str | None = optional(read_text)
    unit_mode: bool | None = optional(read_flag)
    max_reconsume_times: int | None = optional(read_int)
