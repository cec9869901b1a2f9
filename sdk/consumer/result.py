"""Results of pulls."""

from dataclasses import dataclass
from enum import Enum

from mqcommon.message.message import MessageExt


class PullStatus(Enum):
    """How a pull ended, with RocketMQ's names."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages in queue order, and the offset to pull at next.

    ``next_offset`` is valid for every status: it follows the messages, or those that did not match; when the asked
    offset does not exist, it is the nearest one that does. ``min_offset`` and ``max_offset`` are the queue's bounds on
    the broker with id ``broker_id``: 0 is the master, and a slave may be behind.
    """

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0


@dataclass(frozen=True, slots=True)
class PullBytes:
    """Like `PullResult`, with stored records back to back instead of message objects.

    The broker compares only hashes of tags, so with a tag expression there may be records with other tags.
    """

    status: PullStatus
    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0
