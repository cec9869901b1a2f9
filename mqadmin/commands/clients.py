"""Commands about connected clients: who is connected, and what a client says that it is doing."""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_addr, option, topic_option
from skylark.mqadmin.render import Row, Table, java_object, version_name
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.clients import (
        Connection,
        ConsumerRunningInfo,
        PopProcessQueueInfo,
        ProcessQueueInfo,
    )

Rows = list[dict[str, Any]]
# A queue with messages in memory is stuck when its consumer has consumed none of them for so long; RocketMQ's.
STUCK_MS = 60_000
_CONSUMERS = Table(
    (("#Index", "index"), ("#ClientId", "clientId"), ("#Version", "versionDesc"), ("#Queues", "queueCount")),
    "%-10d  %-40s  %-20s  %d",
)
_QUEUE = (("#Topic", "topic"), ("#Broker Name", "brokerName"), ("#QID", "queueId"))
_OFFSETS = Table((*_QUEUE, ("#Consumer Offset", "commitOffset")), "%-64s  %-32s  %-4d  %-20d")
_DETAILS = Table((*_QUEUE, ("#ProcessQueueInfo", "text")), "%-64s  %-32s  %-4d  %s")
_QUEUE_KEYS = tuple(key for _, key in _QUEUE)
_RATES = Table(
    (
        ("#Topic", "topic"),
        ("#Pull RT", "pullRT"),
        ("#Pull TPS", "pullTPS"),
        ("#Consume RT", "consumeRT"),
        ("#ConsumeOK TPS", "consumeOKTPS"),
        ("#ConsumeFailed TPS", "consumeFailedTPS"),
        ("#ConsumeFailedMsgsInHour", "consumeFailedMsgs"),
    ),
    "%-64s  %14.2f %14.2f %14.2f %14.2f %18.2f %25d",
    "%-64s  %14s %14s %14s %14s %18s %25s",
)


def _jstack() -> click.Option:
    return option("s", "jstack", "Run jstack command in the consumer progress", type=bool, is_flag=True)


def info_json(info: "ConsumerRunningInfo") -> dict[str, Any]:
    """The status of one consumer as plain data, in a fixed order."""
    return {
        "properties": dict(sorted(info.properties.items())),
        "subscriptions": [
            {"topic": one.topic, "subExpression": one.sub_string, "expressionType": one.expression_type}
            for one in sorted(info.subscription_set, key=lambda one: one.topic)
        ],
        "queues": _queue_rows(info.mq_table),
        "popQueues": _queue_rows(info.mq_pop_table),
        "rates": [{"topic": topic, **rates.to_wire()} for topic, rates in sorted(info.status_table.items())],
        "userConsumerInfo": dict(sorted(info.user_consumer_info.items())),
        "jstack": info.jstack,
    }


def _queue_rows(table: "Mapping[MessageQueue, ProcessQueueInfo] | Mapping[MessageQueue, PopProcessQueueInfo]") -> Rows:
    return [
        {"topic": mq.topic, "brokerName": mq.broker_name, "queueId": mq.queue_id, **state.to_wire()}
        for mq, state in sorted(table.items(), key=lambda item: item[0])
    ]


def info_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """RocketMQ's ``ConsumerRunningInfo.formatString``."""
    yield "#Consumer Properties#"
    yield from _pairs(info["properties"])
    yield "#Consumer Subscription#"
    for number, one in enumerate(info["subscriptions"], 1):
        yield f"{number:03d} Topic: {one['topic']:<40} ClassFilter: {'false':<8} SubExpression: {one['subExpression']}"
    yield from ("", "", "#Consumer Offset#")
    yield from _OFFSETS.lines(info["queues"])
    yield from ("", "", "#Consumer MQ Detail#")
    yield from _details(info["queues"])
    if info["popQueues"]:
        yield from ("", "", "#Consumer Pop Detail#")
        yield from _details(info["popQueues"])
    yield from ("", "", "#Consumer RT&TPS#")
    yield from _RATES.lines(info["rates"])
    if info["userConsumerInfo"]:
        yield from ("", "", "#User Consume Info#")
        yield from _pairs(info["userConsumerInfo"])
    if info["jstack"]:
        yield from ("", "", "#Consumer jstack#", info["jstack"])


def _details(rows: Rows) -> Iterator[str]:
    yield _DETAILS.head()
    for row in rows:
        text = ", ".join(f"{name}={value}" for name, value in row.items() if name not in _QUEUE_KEYS)
        yield _DETAILS.row({**row, "text": text})


def _pairs(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name:<40}: {visible(value)}"


def problems(infos: "Mapping[str, ConsumerRunningInfo]", now_ms: int) -> list[str]:
    """What is wrong in a group: different subscriptions, queues with several owners, queues that do not go on. Pure."""
    found: list[str] = []
    subscriptions = {
        client: sorted((one.topic, one.sub_string) for one in info.subscription_set) for client, info in infos.items()
    }
    if len({repr(one) for one in subscriptions.values()}) > 1:
        found.append("WARN: Different subscription in the same group of consumer!!!")
    # A queue that a member is just giving up still stands in its table, marked as dropped.
    owners: dict[MessageQueue, str] = {}
    for client, info in infos.items():
        for mq, state in info.mq_table.items():
            if state.droped:
                continue
            if mq in owners:
                found.append(
                    f"Rebalance Failed: queue {mq.queue_id} of {mq.topic} on {mq.broker_name} has two"
                    f" owners, {owners[mq]} and {client}"
                )
            owners[mq] = client
    for client, info in infos.items():
        found += _stuck_queues(client, info, now_ms)
    return found


def _stuck_queues(client: str, info: "ConsumerRunningInfo", now_ms: int) -> Iterator[str]:
    """RocketMQ's ``analyzeProcessQueue``: queues of a push consumer that wait for a handler, or for their lock."""
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        return
    is_orderly = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    for mq, state in sorted(info.mq_table.items(), key=lambda item: item[0]):
        queue = java_object("MessageQueue", {"topic": mq.topic, "brokerName": mq.broker_name, "queueId": mq.queue_id})
        if is_orderly:
            if not state.locked:
                yield f"{client} {queue} can't lock for a while, {now_ms - state.last_lock_timestamp}ms"
            elif state.droped and state.try_unlock_times > 0:
                yield f"{client} {queue} unlock {state.try_unlock_times} times, still failed"
        # Messages wait, and no handler has ended for long: it blocks, or there are too few of them.
        elif state.cached_msg_count > 0 and now_ms - state.last_consume_timestamp > STUCK_MS:
            waits_ms = now_ms - state.last_consume_timestamp
            yield f"{client} {queue} can't consume for a while, maybe blocked, {waits_ms}ms"


@command(
    "consumerStatus",
    option("g", "consumerGroup", "consumer group name", required=True),
    option("i", "clientId", "The consumer's client id: show all about it", default=None),
    broker_addr("broker address: list only clients connected to it", default=None),
    _jstack(),
)
async def consumer_status(
    session: Session, consumer_group: str, client_id: str | None, broker_addr: str | None, jstack: bool
) -> dict[str, Any]:
    """Show what the running consumers of a group are doing; with -i all about one of them."""
    if client_id is not None:
        return await _one_consumer(session, consumer_group, client_id, jstack=jstack)
    rows, wrong = await _consumers(session, consumer_group, broker_addr, jstack=jstack)
    _say_all(session, _CONSUMERS.lines(rows))
    _say_problems(session, rows, wrong)
    return {"consumerGroup": consumer_group, "consumers": rows, "problems": wrong}


@command(
    "consumer",
    option("g", "consumerGroup", "consumer group name", required=True),
    option("i", "clientId", "The consumer's client id: show all about it", default=None),
    _jstack(),
)
async def consumer(session: Session, consumer_group: str, client_id: str | None, jstack: bool) -> dict[str, Any]:
    """Write what each running consumer of a group is doing to a file, and show what is wrong in the group.

    The files are below the working directory, as RocketMQ's tool has them: <time in ms>/<client id>. With --output json
    none is written. consumerStatus shows the same without files.
    """
    if client_id is not None:
        return await _one_consumer(session, consumer_group, client_id, jstack=jstack)
    rows, wrong = await _consumers(session, consumer_group, None, jstack=jstack)
    if not session.json:
        folder = Path(str(round(time.time() * 1000)))
        for row in rows:
            path = _write_status(folder, row)
            session.say(f"{row['index']:03d}  {row['clientId']:<40} {row['versionDesc']:<20} {path}")
    _say_problems(session, rows, wrong)
    return {"consumerGroup": consumer_group, "consumers": rows, "problems": wrong}


async def _one_consumer(session: Session, group: str, client_id: str, *, jstack: bool) -> dict[str, Any]:
    info = info_json(await session.admin.consumer_running_info(group, client_id, jstack=jstack))
    _say_all(session, info_lines(info))
    return {"consumerGroup": group, "consumers": [{"clientId": client_id, **info}], "problems": []}


async def _consumers(session: Session, group: str, broker_addr: str | None, *, jstack: bool) -> tuple[Rows, list[str]]:
    """A row for each consumer that answers, and what is wrong in the group. The other consumers are reported."""
    found = await session.admin.consumer_connection(group, broker_addr)
    versions = {one.client_id: version_name(one.version) for one in found.connection_set}
    answers = await session.each(
        sorted(versions), lambda name: session.admin.consumer_running_info(group, name, jstack=jstack)
    )
    for name, error in answers.errors.items():
        session.fail(error, f"consumer {name}")
    rows = [
        {
            "index": number,
            "clientId": name,
            "versionDesc": versions[name],
            "queueCount": len(info.mq_table),
            **info_json(info),
        }
        for number, (name, info) in enumerate(sorted(answers.values.items()), 1)
    ]
    # In a broadcasting group each member has all queues, so nothing that is shared can be wrong.
    is_shared = found.message_model == "CLUSTERING"
    return rows, problems(answers.values, round(time.time() * 1000)) if is_shared else []


def _write_status(folder: Path, row: Mapping[str, Any]) -> Path:
    """Write all about one consumer. The consumer chooses its id, so the id must not lead to another folder."""
    path = folder / (re.sub(r"[^0-9A-Za-z@._#:-]", "_", row["clientId"]).lstrip(".") or "_")
    try:
        # O_EXCL: a link that somebody has put there is not followed. The stacks of a consumer are not for everybody.
        folder.mkdir(exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{line}\n" for line in info_lines(row))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; go to a folder that is yours") from None
    return path


def _say_problems(session: Session, rows: Rows, wrong: list[str]) -> None:
    if rows:
        session.say()
        _say_all(session, wrong or ["Same subscription in the same group of consumer", "", "Rebalance OK"])


def _say_all(session: Session, lines: Iterable[str]) -> None:
    for line in lines:
        session.say(line)


@command("producer", broker_addr("broker address", required=True))
async def producer(session: Session, broker_addr: str) -> dict[str, Any]:
    """List the producers that are connected to a broker, by group."""
    found = await session.admin.all_producers(broker_addr)
    groups = {
        group: [one.to_wire() for one in sorted(infos, key=lambda one: (one.client_id, one.remote_ip))]
        for group, infos in sorted(found.data.items())
    }
    for group, rows in groups.items():
        for row in rows:
            session.say(
                f"producer group ({group}) instance : clientId={row['clientId']},remoteIP={row['remoteIP']},"
                f" language={row['language']}, version={row['version']},"
                f" lastUpdateTimestamp={row['lastUpdateTimestamp']}"
            )
    if not groups:
        session.say("no producer is connected")
    return groups


_CLIENTS = Table(
    (
        ("#ClientId", "clientId"),
        ("#ClientAddr", "clientAddr"),
        ("#Language", "language"),
        ("#Version", "versionDesc"),
    ),
    "%-36s %-22s %-10s %s",
)
_SUBSCRIPTIONS = Table((("#Topic", "topic"), ("#SubExpression", "subExpression")), "%-20s %s")


def _connections(connections: "Iterable[Connection]") -> list[dict[str, Any]]:
    return [
        {
            "clientId": one.client_id,
            "clientAddr": one.client_addr,
            "language": one.language,
            "version": one.version,
            "versionDesc": version_name(one.version),
        }
        for one in sorted(connections, key=lambda one: (one.client_id, one.client_addr))
    ]


def _producer_lines(result: Mapping[str, Any]) -> Iterator[str]:
    rows: Sequence[Row] = result["connections"]
    for number, row in enumerate(rows, 1):
        client = f"{row['clientId']:<32} {row['clientAddr']:<22} {row['language']:<8}"
        yield f"{number:04d}  {client} {row['versionDesc']}"


@command(
    "producerConnection",
    option("g", "producerGroup", "producer group name", required=True),
    topic_option(),
    show=_producer_lines,
)
async def producer_connection(session: Session, producer_group: str, topic: str) -> dict[str, Any]:
    """List the connected producers of a group."""
    found = await session.admin.producer_connection(producer_group, topic)
    return {"producerGroup": producer_group, "connections": _connections(found.connection_set)}


def _consumer_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield from _CLIENTS.lines(result["connections"])
    yield ""
    yield "Below is subscription:"
    yield from _SUBSCRIPTIONS.lines(result["subscriptions"])
    yield ""
    yield f"ConsumeType: {result['consumeType']}"
    yield f"MessageModel: {result['messageModel']}"
    yield f"ConsumeFromWhere: {result['consumeFromWhere']}"


@command(
    "consumerConnection",
    option("g", "consumerGroup", "consumer group name", required=True),
    broker_addr("broker address: list only clients connected to it", default=None),
    show=_consumer_lines,
)
async def consumer_connection(session: Session, consumer_group: str, broker_addr: str | None) -> dict[str, Any]:
    """List the connected consumers of a group, and what they subscribe to."""
    found = await session.admin.consumer_connection(consumer_group, broker_addr)
    subscriptions = [
        {"topic": one.topic, "subExpression": one.sub_string, "expressionType": one.expression_type}
        for _, one in sorted(found.subscription_table.items())
    ]
    return {
        "consumerGroup": consumer_group,
        "connections": _connections(found.connection_set),
        "subscriptions": subscriptions,
        "consumeType": found.consume_type,
        "messageModel": found.message_model,
        "consumeFromWhere": found.consume_from_where,
    }


FAMILIES = {
    "Connections": (
        producer_connection,
        consumer_connection,
        consumer_status,
        consumer,
        producer,
    ),
}
