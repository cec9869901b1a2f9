"""consumerStatus and producer: what connected clients are doing."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mqcommon.message.queue import MessageQueue
from sdk.admin.command import command
from sdk.admin.params import broker_addr, option
from sdk.admin.render import Table, visible
from sdk.admin.session import Session
from sdk.admin.versions import version_name

if TYPE_CHECKING:
    from remoting.protocol.bodies.running_info import ConsumerRunningInfo

FAMILY = "Connections"
_CONSUMERS = Table(
    (("#Index", "index"), ("#ClientId", "clientId"), ("#Version", "versionDesc"), ("#Queues", "queueCount")),
    "%-10d  %-40s  %-20s  %d",
)
_QUEUE = (("#Topic", "topic"), ("#Broker Name", "brokerName"), ("#QID", "queueId"))
_OFFSETS = Table((*_QUEUE, ("#Consumer Offset", "commitOffset")), "%-64s  %-32s  %-4d  %-20d")
_DETAILS = Table((*_QUEUE, ("#ProcessQueueInfo", "text")), "%-64s  %-32s  %-4d  %s")
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


def info_json(info: "ConsumerRunningInfo") -> dict[str, Any]:
    """The status of one consumer as plain data, in a fixed order."""
    return {
        "properties": dict(sorted(info.properties.items())),
        "subscriptions": [
            {"topic": one.topic, "subExpression": one.sub_string, "expressionType": one.expression_type}
            for one in sorted(info.subscription_set, key=lambda one: one.topic)
        ],
        "queues": [
            {"topic": mq.topic, "brokerName": mq.broker_name, "queueId": mq.queue_id, **state.to_wire()}
            for mq, state in sorted(info.mq_table.items(), key=lambda item: item[0])
        ],
        "rates": [{"topic": topic, **rates.to_wire()} for topic, rates in sorted(info.status_table.items())],
        "userConsumerInfo": dict(sorted(info.user_consumer_info.items())),
        "jstack": info.jstack,
    }


def info_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """RocketMQ's ``ConsumerRunningInfo.formatString``."""
    yield "#Consumer Properties#"
    yield from _pairs(info["properties"])
    yield "#Consumer Subscription#"
    for number, one in enumerate(info["subscriptions"]):
        yield f"{number:03d} Topic: {one['topic']:<40} ClassFilter: {'false':<8} SubExpression: {one['subExpression']}"
    yield from ("", "", "#Consumer Offset#")
    yield from _OFFSETS.lines(info["queues"])
    yield from ("", "", "#Consumer MQ Detail#")
    skipped = ("topic", "brokerName", "queueId")
    for row in info["queues"]:
        text = ", ".join(f"{name}={value}" for name, value in row.items() if name not in skipped)
        yield _DETAILS.row({**row, "text": text})
    yield from ("", "", "#Consumer RT&TPS#")
    yield from _RATES.lines(info["rates"])
    if info["userConsumerInfo"]:
        yield from ("", "", "#User Consume Info#")
        yield from _pairs(info["userConsumerInfo"])
    if info["jstack"]:
        yield from ("", "", "#Consumer jstack#", info["jstack"])


def _pairs(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name:<40}: {visible(value)}"


def problems(infos: "Mapping[str, ConsumerRunningInfo]") -> list[str]:
    """What is wrong in a group: members that subscribe to different things, queues with several owners. Pure."""
    found = []
    subscriptions = {
        client: sorted((one.topic, one.sub_string) for one in info.subscription_set) for client, info in infos.items()
    }
    if len({repr(one) for one in subscriptions.values()}) > 1:
        found.append("WARN: Different subscription in the same group of consumer!!!")
    owners: dict[MessageQueue, str] = {}
    for client, info in infos.items():
        for mq, state in info.mq_table.items():
            if state.droped:
                continue
            if mq in owners:
                found.append(f"Rebalance Failed: queue {mq.queue_id} of {mq.topic} on {mq.broker_name} has two"
                             f" owners, {owners[mq]} and {client}")  # fmt: skip
            owners[mq] = client
    return found


@command(
    "consumerStatus",
    option("g", "consumerGroup", "consumer group name", required=True),
    option("i", "clientId", "The consumer's client id: show all about it", default=None),
    broker_addr("broker address: list only clients connected to it", default=None),
    option("s", "jstack", "Run jstack command in the consumer progress", type=bool, is_flag=True),
)
async def consumer_status(
    session: Session, consumer_group: str, client_id: str | None, broker_addr: str | None, jstack: bool
) -> dict[str, Any]:
    """Show what the running consumers of a group are doing; with -i all about one of them."""
    if client_id is not None:
        info = info_json(await session.admin.consumer_running_info(consumer_group, client_id, jstack=jstack))
        _say_all(session, info_lines(info))
        return {"consumerGroup": consumer_group, "consumers": [{"clientId": client_id, **info}], "problems": []}
    found = await session.admin.consumer_connection(consumer_group, broker_addr)
    versions = {one.client_id: version_name(one.version) for one in found.connection_set}
    answers = await session.each(
        sorted(versions), lambda name: session.admin.consumer_running_info(consumer_group, name, jstack=jstack)
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
    _say_all(session, _CONSUMERS.lines(rows))
    wrong = problems(answers.values) if found.message_model == "CLUSTERING" else []
    if rows:
        session.say()
        _say_all(session, wrong or ["Same subscription in the same group of consumer", "", "Rebalance OK"])
    return {"consumerGroup": consumer_group, "consumers": rows, "problems": wrong}


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


COMMANDS = (consumer_status, producer)
