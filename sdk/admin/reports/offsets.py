"""Offsets of groups: the result of a reset, the preview of a reset, and the positions that members report."""

from collections.abc import Mapping
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.admin.client import END_OF_QUEUE, Admin, rollback_of
from skylark.sdk.admin.reports.report import named


@lazy_dataclass(frozen=True, slots=True)
class QueueOffset:
    """The offset at which a group goes on in a queue."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@lazy_dataclass(frozen=True, slots=True)
class MemberOffset:
    """The offset that a member reports for one of its queues."""

    client_id: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int


@lazy_dataclass(frozen=True, slots=True)
class QueueRollback:
    """The result of `roll_back_offsets` for a queue."""

    topic: str
    broker_name: str
    queue_id: int
    #: One after the queue's last message.
    broker_offset: int
    #: The group's former offset.
    consumer_offset: int
    #: The offset of the time, and the offset that the group got.
    timestamp_offset: int
    rollback_offset: int


@lazy_dataclass(frozen=True, slots=True)
class ClonedOffsets:
    """``target`` has the offsets of ``source`` in a topic."""

    source: str = field(metadata=named("srcGroup"))
    target: str = field(metadata=named("destGroup"))
    topic: str


@lazy_dataclass(frozen=True, slots=True)
class QueueReset:
    """The effect of a reset on a queue."""

    topic: str
    broker_name: str
    queue_id: int
    from_offset: int = field(metadata=named("from"))
    to_offset: int = field(metadata=named("to"))
    #: Messages that would be consumed again, and messages that would never be consumed.
    again: int
    skipped: int


async def reset_offsets(
    admin: Admin, group: str, topic: str, timestamp_ms: int, *, force: bool = True
) -> list[QueueOffset]:
    """Let ``group`` go on at a time, as `Admin.reset_offsets` does; the offset of each queue."""
    return _offsets(await admin.reset_offsets(group, topic, timestamp_ms, force=force))


async def reset_queue(
    admin: Admin,
    broker_addr: str,
    group: str,
    topic: str,
    queue_id: int,
    timestamp_ms: int,
    offset: int | None = None,
    *,
    force: bool = True,
) -> list[QueueOffset]:
    """Let ``group`` go on at a time or an offset of one queue, as `Admin.reset_queue` does."""
    return _offsets(await admin.reset_queue(broker_addr, group, topic, queue_id, timestamp_ms, offset, force=force))


async def roll_back_offsets(
    admin: Admin, group: str, topic: str, timestamp_ms: int, *, force: bool = True
) -> list[QueueRollback]:
    """Set the offsets of ``group`` without telling its members, as `Admin.roll_back_offsets` does."""
    return [
        QueueRollback(
            one.queue.topic,
            one.queue.broker_name,
            one.queue.queue_id,
            one.broker_offset,
            one.consumer_offset,
            one.timestamp_offset,
            one.rollback_offset,
        )
        for one in await admin.roll_back_offsets(group, topic, timestamp_ms, force=force)
    ]


async def reset_preview(admin: Admin, group: str, topic: str, timestamp_ms: int) -> list[QueueReset]:
    """The effect of `reset_offsets` with ``force``; nothing is changed."""
    stats = await admin.consume_stats(group, topic)
    found: list[QueueReset] = []
    for queue, progress in sorted(stats.offset_table.items(), key=lambda item: item[0]):
        # The rule by which brokers move offsets, so that the preview is exact.
        by_time = progress.broker_offset
        if timestamp_ms != END_OF_QUEUE:
            by_time = await admin.search_offset(queue, timestamp_ms)
        to = rollback_of(queue, progress, by_time, force=True).rollback_offset
        at = progress.consumer_offset
        found.append(
            QueueReset(topic, queue.broker_name, queue.queue_id, at, to, again=max(at - to, 0), skipped=max(to - at, 0))
        )
    return found


async def member_offsets(admin: Admin, group: str, topic: str, client_id: str | None = None) -> list[MemberOffset]:
    """The offsets that each member of ``group`` reports; members that do not answer are left out."""
    found = await admin.consumer_status(group, topic, client_id)
    return [
        MemberOffset(name, one.topic, one.broker_name, one.queue_id, one.offset)
        for name, offsets in sorted(found.items())
        for one in _offsets(offsets)
    ]


def _offsets(offsets: Mapping[MessageQueue, int]) -> list[QueueOffset]:
    return [QueueOffset(mq.topic, mq.broker_name, mq.queue_id, offset) for mq, offset in sorted(offsets.items())]
