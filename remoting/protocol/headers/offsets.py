"""Offsets of groups (14, 15, 314) and of queues (29 - 32)."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class QueryConsumerOffsetRequestHeader(Header):
    """14: asks for a group's offset in a queue."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    set_zero_if_not_found: bool | None = optional(read_flag)


@dataclass(slots=True)
class UpdateConsumerOffsetRequestHeader(Header):
    """15: commits a group's offset. Clients do send -1, which must not be stored.

    ``forward_only``, from Skylark's clients to Skylark's brokers: a lower offset than the present one is not stored.
    """

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    commit_offset: int = required(read_long)
    forward_only: bool | None = optional(read_flag)


@dataclass(slots=True)
class GetAllConsumerOffsetRequestHeader(Header):
    """43. A Skylark slave tells its Skylark master which version of the offsets it has."""

    known_run: int | None = optional(read_long)
    known_changes: int | None = optional(read_long)


@dataclass(slots=True)
class GetAllConsumerOffsetResponseHeader(Header):
    """The answer to 43: the version of these offsets, and whether they are only those that changed."""

    run: int | None = optional(read_long)
    changes: int | None = optional(read_long)
    is_part: bool = optional(read_flag, False)


@dataclass(slots=True)
class SearchOffsetRequestHeader(Header):
    """29: the offset for a time. ``boundary_type`` is LOWER or UPPER."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    timestamp: int = required(read_long)
    boundary_type: str | None = optional(read_text)


@dataclass(slots=True)
class GetMaxOffsetRequestHeader(Header):
    """30: the offset that the next message gets."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    committed: bool | None = optional(read_flag)


@dataclass(slots=True)
class QueueRequestHeader(Header):
    """31 and 32: the first offset of a queue, or its message's store time."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)


@dataclass(slots=True)
class OffsetResponseHeader(Header):
    """The answer to 14, 29, 30, 31."""

    offset: int = required(read_long)


@dataclass(slots=True)
class TimestampResponseHeader(Header):
    """The answer to 32; -1 for an empty queue."""

    timestamp: int = required(read_long)


@dataclass(slots=True)
class GetAllDelayOffsetResponseHeader(Header):
    """The answer to 45, from a Skylark master: where its log ends. RocketMQ's says nothing."""

    log_end: int | None = optional(read_long)


@dataclass(slots=True)
class CloneGroupOffsetRequestHeader(Header):
    """314. Without a topic: all. ``offline``: also topics that connected consumers no longer subscribe to."""

    src_group: str = required(read_text)
    dest_group: str = required(read_text)
    topic: str | None = optional(read_text)
    offline: bool = optional(read_flag, False)


@dataclass(slots=True)
class QueryCorrectionOffsetHeader(Header):
    """308. ``filter_groups``: groups that are left out, separated by commas."""

    topic: str = required(read_text)
    compare_group: str = required(read_text)
    filter_groups: str | None = optional(read_text)
