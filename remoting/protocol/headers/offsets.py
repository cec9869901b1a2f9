"""Offsets of groups (14, 15) and of queues (29 - 32)."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class QueryConsumerOffsetRequestHeader(Header):
    """14: how far a group is."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    set_zero_if_not_found: bool | None = optional(read_flag)


@dataclass(slots=True)
class UpdateConsumerOffsetRequestHeader(Header):
    """15: a group has come so far. -1 does arrive, and is not to be stored."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    commit_offset: int = required(read_long)


@dataclass(slots=True)
class GetAllConsumerOffsetRequestHeader(Header):
    """43; a Skylark slave says which version of a Skylark master's offsets it has."""

    known_run: int | None = optional(read_long)
    known_changes: int | None = optional(read_long)


@dataclass(slots=True)
class GetAllConsumerOffsetResponseHeader(Header):
    """The answer to it: which version this is, and whether it is only what has changed."""

    run: int | None = optional(read_long)
    changes: int | None = optional(read_long)
    is_part: bool = optional(read_flag, False)


@dataclass(slots=True)
class SearchOffsetRequestHeader(Header):
    """29: the offset of a time. ``boundary_type`` is LOWER or UPPER."""

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
    """31 and 32: the first offset, or store time, of a queue."""

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
