"""Pulls: 11, and 361 of lite pull consumers. The body of the answer is stored messages, one after another.

Their answers are the hot path: broker/handlers/pull.py writes the fields itself, without a header object.
"""

from dataclasses import dataclass
from typing import Final

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.header import Header, optional, required
from remoting.protocol.request import NOTHING, Request
from remoting.protocol.scalars import read_int, read_long, read_text

#: Bits of ``sys_flag``.
PULL_COMMIT_OFFSET: Final = 0x1  # commit_offset is valid
PULL_SUSPEND: Final = 0x2  # hold the request until there is a message
PULL_SUBSCRIPTION: Final = 0x4  # subscription is in the request
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10
PULL_UNWRAPS: Final = 0x100  # the client takes inner batches apart; only Skylark's says so, RocketMQ has no such bit


@dataclass(slots=True)
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


@dataclass(slots=True)
class PullMessageResponseHeader(Header):
    """The offset to go on from. Some servers do not suggest a broker."""

    next_begin_offset: int = required(read_long)
    min_offset: int = required(read_long)
    max_offset: int = required(read_long)
    suggest_which_broker_id: int = optional(read_long, 0)
    offset_delta: int | None = optional(read_long)
    topic_sys_flag: int | None = optional(read_int)
    group_sys_flag: int | None = optional(read_int)
    forbidden_type: int | None = optional(read_int)


# There are no messages; the fields say from which offset to go on.
_NO_MESSAGES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)

PULL_MESSAGE = Request(
    RequestCode.PULL_MESSAGE, PullMessageRequestHeader, NOTHING, PullMessageResponseHeader, bytes,
    accepts=_NO_MESSAGES,
)  # fmt: skip
LITE_PULL_MESSAGE = Request(
    RequestCode.LITE_PULL_MESSAGE, PullMessageRequestHeader, NOTHING, PullMessageResponseHeader, bytes,
    accepts=_NO_MESSAGES,
)  # fmt: skip
