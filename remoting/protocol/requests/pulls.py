"""Pulls: 11, and 361 of lite pull consumers. The body of the answer is stored messages, one after another.

Their answers are the hot path: broker/delivery/pull_handlers.py writes the fields itself, without a header object.
"""

from collections.abc import Mapping
from typing import Any, Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import SUB, Need, Right, need_group, need_topic, text_of
from skylark.remoting.protocol.scalars import read_int, read_long, read_text

#: Bits of ``sys_flag``.
PULL_COMMIT_OFFSET: Final = 0x1  # commit_offset is valid
PULL_SUSPEND: Final = 0x2  # hold the request until there is a message
PULL_SUBSCRIPTION: Final = 0x4  # subscription is in the request
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10
PULL_UNWRAPS: Final = 0x100  # the client takes inner batches apart; Skylark's own bit


@lazy_dataclass(slots=True)
class PullMessageRequestHeader(Header):
    """11 and 361: asks for messages of a queue."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    queue_offset: int = required(read_long)
    max_msg_nums: int = required(read_int)
    sys_flag: int = required(read_int)
    commit_offset: int = required(read_long)
    suspend_timeout_millis: int = required(read_long)
    sub_version: int = required(read_long)
    subscription: str | None = optional(read_text)
    expression_type: str | None = optional(read_text)
    max_msg_bytes: int | None = optional(read_int)
    request_source: int | None = optional(read_int)
    proxy_froward_client_id: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class PullMessageResponseHeader(Header):
    """The offset to read from next. Some servers do not suggest a broker.

    ``topic_created_ms``, Skylark's own: the creation stamp of the topic, see `TopicConfig`.
    """

    next_begin_offset: int = required(read_long)
    min_offset: int = required(read_long)
    max_offset: int = required(read_long)
    suggest_which_broker_id: int = optional(read_long, 0)
    offset_delta: int | None = optional(read_long)
    topic_sys_flag: int | None = optional(read_int)
    group_sys_flag: int | None = optional(read_int)
    forbidden_type: int | None = optional(read_int)
    topic_created_ms: int | None = optional(read_long)


# There are no messages; the fields say from which offset to go on.
_NO_MESSAGES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


def _pull_needs(ext: Mapping[str, Any] | None) -> list[Need]:
    """Sub of the group and of the topic. As messages are read, `need_topic` gets no group for a retry topic."""
    topic = text_of(ext, "topic")
    found = [need_group(text_of(ext, "consumerGroup"), SUB)]
    return [*found, need_topic(topic, SUB)] if topic else found


PULL_MESSAGE = Request(
    11,
    PullMessageRequestHeader,
    NOTHING,
    PullMessageResponseHeader,
    bytes,
    accepts=_NO_MESSAGES,
    right=Right(_pull_needs),
)
LITE_PULL_MESSAGE = Request(
    361,
    PullMessageRequestHeader,
    NOTHING,
    PullMessageResponseHeader,
    bytes,
    accepts=_NO_MESSAGES,
    right=Right(_pull_needs),
)
