"""Commands about connected clients: who is connected, and what clients report about their work."""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_addr, option, topic_option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.visible import visible
from skylark.sdk.admin.reports.report import plain

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.members import (
        ConnectedProducer,
        ConsumerConnections,
        MemberQueue,
        MembersStatus,
        MemberStatus,
        PoppedQueue,
        ProducerConnections,
    )

_CONSUMERS = Table(
    (("#Index", "index"), ("#ClientId", "client_id"), ("#Version", "version_name"), ("#Queues", "queue_count")),
    "%-10d  %-40s  %-20s  %d",
)
_QUEUE = (("#Topic", "topic"), ("#Broker Name", "broker_name"), ("#QID", "queue_id"))
_OFFSETS = Table((*_QUEUE, ("#Consumer Offset", "commit_offset")), "%-64s  %-32s  %-4d  %-20d")
#: Members of the rows that have columns of their own.
_PLACE = ("topic", "brokerName", "queueId")


def _details_text(row: "MemberQueue | PoppedQueue") -> str:
    return ", ".join(f"{name}={value}" for name, value in plain(row).items() if name not in _PLACE)


_DETAILS = Table((*_QUEUE, ("#ProcessQueueInfo", _details_text)), "%-64s  %-32s  %-4d  %s")
_RATES = Table(
    (
        ("#Topic", "topic"),
        ("#Pull RT", "pull_ms"),
        ("#Pull TPS", "pulled_tps"),
        ("#Consume RT", "handler_ms"),
        ("#ConsumeOK TPS", "consumed_tps"),
        ("#ConsumeFailed TPS", "failed_tps"),
        ("#ConsumeFailedMsgsInHour", "failed_of_hour"),
    ),
    "%-64s  %14.2f %14.2f %14.2f %14.2f %18.2f %25d",
    "%-64s  %14s %14s %14s %14s %18s %25s",
)


def _jstack() -> click.Option:
    return option("s", "jstack", "Run jstack command in the consumer progress", type=bool, is_flag=True)


def info_lines(member: "MemberStatus") -> Iterator[str]:
    """RocketMQ's ``ConsumerRunningInfo.formatString``."""
    yield "#Consumer Properties#"
    yield from _pairs(member.properties)
    yield "#Consumer Subscription#"
    for number, one in enumerate(member.subscriptions, 1):
        yield f"{number:03d} Topic: {one.topic:<40} ClassFilter: {'false':<8} SubExpression: {one.expression}"
    yield from ("", "", "#Consumer Offset#")
    yield from _OFFSETS.lines(member.queues)
    yield from ("", "", "#Consumer MQ Detail#")
    yield from _DETAILS.lines(member.queues)
    if member.popped_queues:
        yield from ("", "", "#Consumer Pop Detail#")
        yield from _DETAILS.lines(member.popped_queues)
    yield from ("", "", "#Consumer RT&TPS#")
    yield from _RATES.lines(member.rates)
    if member.user_info:
        yield from ("", "", "#User Consume Info#")
        yield from _pairs(member.user_info)
    if member.jstack:
        yield from ("", "", "#Consumer jstack#", member.jstack)


def _pairs(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name:<40}: {visible(value)}"


@command(
    "consumerStatus",
    option("g", "consumerGroup", "consumer group name", required=True),
    option("i", "clientId", "The consumer's client id: show all about it", default=None),
    broker_addr("broker address: list only clients connected to it", default=None),
    _jstack(),
)
async def consumer_status(
    session: Session, consumer_group: str, client_id: str | None, broker_addr: str | None, jstack: bool
) -> "MembersStatus":
    """Show what the running consumers of a group are doing; with -i all details of one consumer."""
    if client_id is not None:
        return await _one_consumer(session, consumer_group, client_id, jstack=jstack)
    found = await _members(session, consumer_group, broker_addr, jstack=jstack)
    _say_all(session, _CONSUMERS.lines(found.members))
    _say_disagreements(session, found)
    return found


@command(
    "consumer",
    option("g", "consumerGroup", "consumer group name", required=True),
    option("i", "clientId", "The consumer's client id: show all about it", default=None),
    _jstack(),
)
async def consumer(session: Session, consumer_group: str, client_id: str | None, jstack: bool) -> "MembersStatus":
    """Write the state of each running consumer of a group to a file, and show problems in the group.

    The files are below the working directory, as RocketMQ's tool has them: <time in ms>/<client id>. With --output json
    no file is written. consumerStatus shows the same without files.
    """
    if client_id is not None:
        return await _one_consumer(session, consumer_group, client_id, jstack=jstack)
    found = await _members(session, consumer_group, None, jstack=jstack)
    if not session.json:
        folder = Path(str(round(time.time() * 1000)))
        for one in found.members:
            path = _write_status(folder, one)
            session.say(f"{one.index:03d}  {one.client_id:<40} {one.version_name:<20} {path}")
    _say_disagreements(session, found)
    return found


async def _one_consumer(session: Session, group: str, client_id: str, *, jstack: bool) -> "MembersStatus":
    from skylark.sdk.admin.reports.members import MembersStatus, member_status

    member = await member_status(session.admin, group, client_id, jstack=jstack)
    _say_all(session, info_lines(member))
    return MembersStatus(group, (member,))


async def _members(session: Session, group: str, broker_addr: str | None, *, jstack: bool) -> "MembersStatus":
    from skylark.sdk.admin.reports.members import members_status

    return await members_status(
        session.admin,
        group,
        broker_addr=broker_addr,
        jstack=jstack,
        on_problem=session.report_problem,
        on_progress=session.progress,
    )


def _write_status(folder: Path, member: "MemberStatus") -> Path:
    """Write the status of one consumer. The consumer chooses its id, so the id must not lead to another folder."""
    path = folder / (re.sub(r"[^0-9A-Za-z@._#:-]", "_", member.client_id).lstrip(".") or "_")
    try:
        # O_EXCL does not follow a link that somebody has put there. Only this user may read the stacks of a consumer.
        folder.mkdir(exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{line}\n" for line in info_lines(member))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; go to a folder that is yours") from None
    return path


def _say_disagreements(session: Session, found: "MembersStatus") -> None:
    if found.members:
        session.say()
        _say_all(
            session, found.disagreements or ["Same subscription in the same group of consumer", "", "Rebalance OK"]
        )


def _say_all(session: Session, lines: Iterable[str]) -> None:
    for line in lines:
        session.say(line)


@command("producer", broker_addr("broker address", required=True))
async def producer(session: Session, broker_addr: str) -> "dict[str, tuple[ConnectedProducer, ...]]":
    """List the producers that are connected to a broker, by group."""
    from skylark.sdk.admin.reports.members import producers_of_broker

    groups = await producers_of_broker(session.admin, broker_addr)
    for group, members in groups.items():
        for one in members:
            session.say(
                f"producer group ({group}) instance : clientId={one.client_id},remoteIP={one.remote_ip},"
                f" language={one.language}, version={one.version},"
                f" lastUpdateTimestamp={one.last_update_timestamp_ms}"
            )
    if not groups:
        session.say("no producer is connected")
    return groups


_CLIENTS = Table(
    (
        ("#ClientId", "client_id"),
        ("#ClientAddr", "client_addr"),
        ("#Language", "language"),
        ("#Version", "version_name"),
    ),
    "%-36s %-22s %-10s %s",
)
_SUBSCRIPTIONS = Table((("#Topic", "topic"), ("#SubExpression", "expression")), "%-20s %s")


def _producer_lines(found: "ProducerConnections") -> Iterator[str]:
    for number, one in enumerate(found.connections, 1):
        yield f"{number:04d}  {one.client_id:<32} {one.client_addr:<22} {one.language:<8} {one.version_name}"


@command(
    "producerConnection",
    option("g", "producerGroup", "producer group name", required=True),
    topic_option(),
    show=_producer_lines,
)
async def producer_connection(session: Session, producer_group: str, topic: str) -> "ProducerConnections":
    """List the connected producers of a group."""
    from skylark.sdk.admin.reports.members import producer_connections

    return await producer_connections(session.admin, producer_group, topic)


def _consumer_lines(found: "ConsumerConnections") -> Iterator[str]:
    yield from _CLIENTS.lines(found.connections)
    yield ""
    yield "Below is subscription:"
    yield from _SUBSCRIPTIONS.lines(found.subscriptions)
    yield ""
    yield f"ConsumeType: {found.consume_type}"
    yield f"MessageModel: {found.message_model}"
    yield f"ConsumeFromWhere: {found.consume_from_where}"


@command(
    "consumerConnection",
    option("g", "consumerGroup", "consumer group name", required=True),
    broker_addr("broker address: list only clients connected to it", default=None),
    show=_consumer_lines,
)
async def consumer_connection(session: Session, consumer_group: str, broker_addr: str | None) -> "ConsumerConnections":
    """List the connected consumers of a group, and what they subscribe to."""
    from skylark.sdk.admin.reports.members import consumer_connections

    return await consumer_connections(session.admin, consumer_group, broker_addr)


FAMILIES = {
    "Connections": (
        producer_connection,
        consumer_connection,
        consumer_status,
        consumer,
        producer,
    ),
}
