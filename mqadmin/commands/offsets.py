"""Commands that set the offsets of groups, and that ask consumers for their positions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import ResetTime, broker_addr, option, topic_option
from skylark.mqadmin.render import Table, time_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.sdk.admin.scope import is_known

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.offsets import ClonedOffsets, MemberOffset, QueueOffset, QueueRollback

END_OF_QUEUE = -1
_OFFSETS = Table(
    (("#brokerName", "broker_name"), ("#queueId", "queue_id"), ("#offset", "offset")), "%-40s  %-40d  %-40d"
)
_ROLLBACKS = Table(
    (
        ("#brokerName", "broker_name"),
        ("#queueId", "queue_id"),
        ("#brokerOffset", "broker_offset"),
        ("#consumerOffset", "consumer_offset"),
        ("#timestampOffset", "timestamp_offset"),
        ("#rollbackOffset", "rollback_offset"),
    ),
    "%-20s  %-20d  %-20d  %-20d  %-20d  %-20d",
)
_STATUS = Table(
    (("#clientId", "client_id"), ("#brokerName", "broker_name"), ("#queueId", "queue_id"), ("#offset", "offset")),
    "%-50s  %-15s  %-15d  %-20d",
)


def _group() -> click.Option:
    return option("g", "group", "set the consumer group", required=True)


def _force() -> click.Option:
    return option("f", "force", "also move forward; false: only back", type=bool, default=True, show_default=True)


def _time(*, required: bool = True) -> click.Option:
    text = "set the timestamp[now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS|-1: the end of the queues]"
    return option("s", "timestamp", text, type=ResetTime(), metavar="TIME", required=required, default=None)


def _offset_lines(rows: "list[QueueOffset]") -> Iterator[str]:
    return _OFFSETS.lines(rows)


@command(
    "resetOffsetByTime",
    _group(),
    topic_option("set the topic"),
    _time(required=False),
    _force(),
    option("c", "cplus", "reset c++ client offset: not needed, brokers know", type=bool, is_flag=True),
    broker_addr("with -q: the broker of the queue", default=None),
    option("q", "queue", "reset this queue only (brokers from 5.0 on)", type=click.IntRange(min=0), default=None),
    option("o", "offset", "with -q: the offset, instead of a time", type=click.IntRange(min=0), default=None),
    show=_offset_lines,
)
async def reset_offset_by_time(
    session: Session,
    group: str,
    topic: str,
    timestamp: int | None,
    force: bool,
    cplus: bool,
    broker_addr: str | None,
    queue: int | None,
    offset: int | None,
) -> "list[QueueOffset]":
    """Move a group to a time: back, to consume messages again, or forward, to skip messages. Running consumers follow.

    The offsets are set even when no consumer runs.
    """
    if (queue is None) != (broker_addr is None):
        raise click.UsageError("-q/--queue and -b/--brokerAddr belong together: give both, or none.")
    if offset is not None and queue is None:
        raise click.UsageError("-o/--offset needs -q/--queue and -b/--brokerAddr: an offset is for one queue.")
    if timestamp is None:
        if offset is None:
            raise click.UsageError("give a time with -s/--timestamp, or with -q and -b an offset with -o/--offset.")
        timestamp = END_OF_QUEUE
    from skylark.sdk.admin.reports.offsets import reset_offsets, reset_queue

    times = f"timestamp(string)[{_shown(timestamp)}], timestamp(long)[{timestamp}]"
    if broker_addr is not None and queue is not None:
        one = f"queueId[{queue}], broker[{broker_addr}], {times}"
        session.say(f"start reset consumer offset by specified, group[{group}], topic[{topic}], {one}")
        found = await reset_queue(session.admin, broker_addr, group, topic, queue, timestamp, offset, force=force)
        session.say(f"reset consumer offset to {found[0].offset if found else ''}")
        return found
    session.say(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}],"
        f" force[{'true' if force else 'false'}], {times}"
    )
    return await reset_offsets(session.admin, group, topic, timestamp, force=force)


@command("skipAccumulatedMessage", _group(), topic_option("set the topic"), _force(), show=_offset_lines)
async def skip_accumulated_message(session: Session, group: str, topic: str, force: bool) -> "list[QueueOffset]":
    """Skip the messages that a group has not consumed yet: the group goes on at the end of each queue."""
    from skylark.sdk.admin.reports.offsets import reset_offsets

    return await reset_offsets(session.admin, group, topic, END_OF_QUEUE, force=force)


def _rollback_lines(rows: "list[QueueRollback]") -> Iterator[str]:
    return _ROLLBACKS.lines(rows)


@command("resetOffsetByTimeOld", _group(), topic_option("set the topic"), _time(), _force(), show=_rollback_lines)
async def reset_offset_by_time_old(
    session: Session, group: str, topic: str, timestamp: int, force: bool
) -> "list[QueueRollback]":
    """Move a group to a time without telling its consumers: consumers of the group must not run.

    For brokers that cannot reset offsets themselves; use resetOffsetByTime for all others.
    """
    from skylark.sdk.admin.reports.offsets import roll_back_offsets

    session.say(
        f"rollback consumer offset by specified group[{group}], topic[{topic}],"
        f" force[{'true' if force else 'false'}], timestamp(string)[{_shown(timestamp)}], timestamp(long)[{timestamp}]"
    )
    brokers = (await session.admin.topic_route(topic)).broker_datas
    addrs = [broker.broker_addrs[min(broker.broker_addrs)] for broker in brokers if broker.broker_addrs]
    if not await is_known(addrs, lambda addr: session.admin.group_config(addr, group)):
        raise UserError(f"no broker of topic {topic} knows group {group}: check its name with mqadmin consumerProgress")
    return await roll_back_offsets(session.admin, group, topic, timestamp, force=force)


@command(
    "cloneGroupOffset",
    option("s", "srcGroup", "set source consumer group", required=True),
    option("d", "destGroup", "set destination consumer group", required=True),
    topic_option("set the topic"),
    option("o", "offline", "the source group no longer reads the topic", type=bool, is_flag=True),
)
async def clone_group_offset(
    session: Session, src_group: str, dest_group: str, topic: str, offline: bool
) -> "ClonedOffsets":
    """Copy the offsets of one group in a topic to another group, which goes on from there."""
    from skylark.sdk.admin.reports.offsets import ClonedOffsets

    if src_group == dest_group:
        raise click.UsageError("-s/--srcGroup and -d/--destGroup are the same group.")
    await session.admin.clone_group_offsets(src_group, dest_group, topic, offline=offline)
    session.say(f"clone group offset success. srcGroup[{src_group}], destGroup=[{dest_group}], topic[{topic}]")
    return ClonedOffsets(src_group, dest_group, topic)


def _status_lines(rows: "list[MemberOffset]") -> Iterator[str]:
    return _STATUS.lines(rows)


@command(
    "getConsumerStatus",
    _group(),
    topic_option("set the topic"),
    option("i", "originClientId", "ask this consumer only", default=None),
    show=_status_lines,
)
async def get_consumer_status(
    session: Session, group: str, topic: str, origin_client_id: str | None
) -> "list[MemberOffset]":
    """Ask the running consumers of a group how far they are in a topic."""
    from skylark.sdk.admin.reports.offsets import member_offsets

    session.say(
        f"get consumer status from client. group={group}, topic={topic}, originClientId={origin_client_id or ''}"
    )
    found = await member_offsets(session.admin, group, topic, origin_client_id)
    if not found:
        session.fail(UserError(f"no consumer of group {group} answered; see mqadmin consumerConnection -g {group}"))
    return found


def _shown(timestamp: int) -> str:
    return time_text(timestamp) or str(timestamp)


FAMILIES = {
    "Consumer offsets": (
        reset_offset_by_time,
        skip_accumulated_message,
        reset_offset_by_time_old,
        clone_group_offset,
        get_consumer_status,
    ),
}
