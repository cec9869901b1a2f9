"""370: a producer takes back a timed message."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_text


@dataclass(slots=True)
class RecallMessageRequestHeader(Header):
    """``recall_handle`` is that of the answer to the send."""

    topic: str = required(read_text)
    recall_handle: str = required(read_text)
    producer_group: str | None = optional(read_text)


@dataclass(slots=True)
class RecallMessageResponseHeader(Header):
    """``msg_id``: the unique key of the message that was recalled."""

    msg_id: str = required(read_text)
