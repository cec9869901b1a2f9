"""What a pull brings."""

from dataclasses import dataclass
from enum import Enum

from mqcommon.message.message import MessageExt


class PullStatus(Enum):
    """How a pull ended; RocketMQ's names."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages in queue order, and where to pull next.

    ``next_offset`` is right for every status: after the messages, after those that did not match, or the nearest
    offset that exists when the one asked for does not. ``min_offset`` and ``max_offset`` are the queue's bounds as the
    broker with id ``broker_id`` has them: 0 is the master, and a slave may be behind.
    """

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0


@dataclass(frozen=True, slots=True)
class PullBytes:
    """As `PullResult`, with stored records one after another instead of message objects.

    With a tag expression the broker compares hashes of tags only, so records of other tags may be among them.
    """

    status: PullStatus
    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0
