"""Commands that find messages by id, key, unique key and queue offset, and show how one was consumed.

RocketMQ's message tracks, one for each group that reads the topic, say which groups have consumed a message. Where
clients trace, the records in the trace topic say more.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.message_text import detail_lines, save_body
from skylark.mqadmin.params import Charset, broker_name, option, route_cluster, time_option, topic_option
from skylark.mqadmin.reading import chosen_queues
from skylark.mqadmin.render import Row, Table, java_object, seconds_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, SkylarkError, UserError
from skylark.mqcommon.message.ids import parse_unique_key
from skylark.mqcommon.names import TRACE_TOPIC
from skylark.mqcommon.visible import visible
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.message_json import body_error, message_json

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt
    from skylark.remoting.protocol.requests.clients import ConsumerConnection
    from skylark.sdk.traces.records import Step

_NOT_ONLINE = 206


async def message_tracks(session: Session, message: "MessageExt") -> list[dict[str, Any]]:
    """One row per group; empty when no group reads the topic."""
    groups = await session.admin.groups_of_topic(message.topic)
    return [await _track(session, message, group) for group in groups]


def track_line(track: Mapping[str, Any]) -> str:
    """RocketMQ's ``MessageTrack.toString``."""
    return java_object("MessageTrack", track)


async def _track(session: Session, message: "MessageExt", group: str) -> dict[str, Any]:
    kind, reason = "UNKNOWN", None
    try:
        consumers = await session.admin.consumer_connection(group)
        # RocketMQ's rules. Offsets of pull consumers are their own affair: they say nothing about a message.
        if consumers.consume_type == "CONSUME_ACTIVELY":
            kind = "PULL"
        elif not await _is_consumed(session, message, group):
            kind = "NOT_CONSUME_YET"
        else:
            kind = "CONSUMED_BUT_FILTERED" if _is_filtered(consumers, message) else "CONSUMED"
    except BrokerError as error:
        kind = "NOT_ONLINE" if error.code == _NOT_ONLINE else kind
        reason = f"CODE:{error.code} DESC:{error.remark}"
    except SkylarkError as error:
        reason = explain(error)
    return {"consumerGroup": group, "trackType": kind, "exceptionDesc": reason}


async def _is_consumed(session: Session, message: "MessageExt", group: str) -> bool:
    # A message that was found by its offset id has no name of a broker, only the address that stored it.
    name = message.broker_name or await _broker_name(session, message.store_host)
    stats = await session.admin.consume_stats(group, message.topic)
    place = (message.topic, name, message.queue_id)
    return any(
        queue == place and offsets.consumer_offset > message.queue_offset
        for queue, offsets in stats.offset_table.items()
    )


async def _broker_name(session: Session, addr: str) -> str:
    info = await session.admin.cluster_info()
    found = (name for name, broker in info.broker_addr_table.items() if addr in broker.broker_addrs.values())
    return next(found, "")


def _is_filtered(consumers: "ConsumerConnection", message: "MessageExt") -> bool:
    subscription = consumers.subscription_table.get(message.topic)
    if subscription is None:
        return False
    wanted = set(subscription.tags_set or ())
    return bool(wanted) and "*" not in wanted and message.tags not in wanted


LONG_MAX = 2**63 - 1
# How many messages of one batch are shown.
MAX_SHOWN = 32


def _body_format() -> click.Option:
    return option(
        "f", "bodyFormat", "print message body by the specified format", type=Charset(), metavar="CHARSET", default=None
    )


async def _show(
    session: Session, message: "MessageExt", *, charset: str | None = None, with_id: bool = True, index: int = 0
) -> dict[str, Any]:
    """Print a message's block and its tracks. Returns both for JSON."""
    path = ""
    if not session.json:
        try:
            path = str(save_body(message, session.bodies_folder, index))
        except OSError as error:
            session.warn(f"the body is not saved: {error}")
        for line in detail_lines(message, path, with_id=with_id, charset=charset):
            session.say(line)
    if (reason := body_error(message)) is not None:
        session.warn(f"the body is shown as it is stored: {reason}")
    # The message is shown by now: that nobody can say who consumed it must not take it away.
    try:
        tracks = await message_tracks(session, message)
    except SkylarkError as error:
        session.fail(error, "who consumed it")
        return {**message_json(message), "tracks": []}
    session.say()
    session.say()
    for line in [track_line(track) for track in tracks] or ["WARN: No Consumer"]:
        session.say(line)
    return {**message_json(message), "tracks": tracks}


def _consumer_options() -> tuple[click.Option, click.Option]:
    return (
        option("g", "consumerGroup", "consumer group name; only used with -d", default=None),
        option("d", "clientId", "client id of a consumer; with -g the message is sent to it instead", default=None),
    )


async def _consume_directly(
    session: Session, message: "MessageExt", consumer_group: str, client_id: str
) -> dict[str, Any]:
    """Send the message to a push consumer, and print the result."""
    info = await session.admin.consumer_running_info(consumer_group, client_id)
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        raise UserError(
            f"client {client_id} of group {consumer_group} is not a push consumer: messages cannot be sent to it"
        )
    result = await session.admin.consume_message_directly(consumer_group, client_id, message)
    members = {
        "order": result.order,
        "autoCommit": result.auto_commit,
        "consumeResult": result.consume_result,
        "remark": None if result.remark is None else visible(result.remark),
        "spentTimeMills": result.spent_time_mills,
    }
    session.say(java_object("ConsumeMessageDirectlyResult", members))
    return {"msgId": message.msg_id, "offsetMsgId": message.offset_msg_id, **members}


@command(
    "queryMsgById",
    option("i", "msgId", "Message Id; several are separated by commas", required=True),
    option("t", "topic", "topic name: the id may also be a unique key", default=None),
    *_consumer_options(),
    _body_format(),
)
async def query_msg_by_id(
    session: Session,
    msg_id: str,
    topic: str | None,
    consumer_group: str | None,
    client_id: str | None,
    body_format: str | None,
) -> list[dict[str, Any]]:
    """Show the message with an offset message id, or send it to a consumer (-g, -d).

    With -t the id may also be a producer's unique key. The messages of a batch that is stored as one share an offset
    message id: the first 32 are shown, and with -t and its unique key only one.
    """
    shown = []
    for one in [part.strip() for part in msg_id.split(",") if part.strip()]:
        try:
            found = await _find_by_id(session, one, topic)
            if consumer_group is not None and client_id is not None:
                shown.append(await _consume_directly(session, found[0], consumer_group, client_id))
                continue
            if len(found) > 1:
                session.warn(
                    f"{one} is the id of {len(found)} messages, which are stored as one batch;"
                    " give -t and a unique key as -i to see one of them"
                )
            for index, message in enumerate(found[:MAX_SHOWN]):
                shown.append(await _show(session, message, charset=body_format, index=index))
        except SkylarkError as error:
            session.fail(error, f"message {one}")
    return shown


async def _find_by_id(session: Session, msg_id: str, topic: str | None) -> list["MessageExt"]:
    # Both kinds of ids have 32 hexadecimal digits when addresses are IPv4. A unique key is looked for first: read as an
    # offset id it would name some address and offset.
    if topic is not None:
        found = await session.admin.query_by_unique_key(topic, msg_id)
        if found:
            return found[:1]
    return await session.messages_with_id(msg_id)


_BY_KEY = Table((("#Message ID", "msgId"), ("#QID", "queueId"), ("#Offset", "queueOffset")), "%-50s %4d %40d")


def _key_lines(rows: Sequence[Row]) -> Iterator[str]:
    return _BY_KEY.lines(rows)


@command(
    "queryMsgByKey",
    topic_option("Topic name"),
    option("k", "msgKey", "Message Key", required=True),
    time_option("b", "beginTimestamp", "Begin timestamp", default=0),
    time_option("e", "endTimestamp", "End timestamp", default=LONG_MAX),
    option(
        "m",
        "maxNum",
        "The maximum number of messages returned by the query",
        type=click.IntRange(min=1),
        default=64,
        show_default=True,
    ),
    route_cluster(),
    show=_key_lines,
)
async def query_msg_by_key(
    session: Session,
    topic: str,
    msg_key: str,
    begin_timestamp: int,
    end_timestamp: int,
    max_num: int,
    cluster: str | None,
) -> list[dict[str, Any]]:
    """List the messages with a key."""
    found = await session.admin.query_message_by_key(topic, msg_key, max_num, begin_timestamp, end_timestamp, cluster)
    if not found:
        session.fail(UserError(f"no message of topic {topic} has key {msg_key}; check key and time range"))
    if cluster is None:
        await session.check_whole([topic])
    return [message_json(message) for message in found]


@command(
    "queryMsgByUniqueKey",
    option("i", "msgId", "Message Id", required=True),
    topic_option("The topic of msg"),
    *_consumer_options(),
    option("a", "showAll", "Print all message, the limit is 32", type=bool, is_flag=True),
)
async def query_msg_by_unique_key(
    session: Session, msg_id: str, topic: str, consumer_group: str | None, client_id: str | None, show_all: bool
) -> list[dict[str, Any]]:
    """Show the message with a producer's unique key, or send it to a consumer (-g, -d).

    There may be several copies of it if its send was retried.
    """
    found = await session.admin.query_by_unique_key(topic, msg_id)
    if not found:
        session.fail(UserError(f"no message of topic {topic} has the unique key {msg_id}; check both"))
        await session.check_whole([topic])
    wanted = found if show_all else found[:1]
    if consumer_group is not None and client_id is not None:
        return [await _consume_directly(session, message, consumer_group, client_id) for message in wanted]
    return [await _show(session, message, with_id=False, index=index) for index, message in enumerate(wanted)]


@command(
    "queryMsgByOffset",
    topic_option(),
    broker_name("Broker Name", required=True),
    option("i", "queueId", "Queue Id", type=click.IntRange(min=0), required=True),
    option("o", "offset", "Queue Offset", type=click.IntRange(min=0), required=True),
    _body_format(),
)
async def query_msg_by_offset(
    session: Session, topic: str, broker_name: str, queue_id: int, offset: int, body_format: str | None
) -> list[dict[str, Any]]:
    """Show the message at an offset of a queue."""
    async with session.consumer() as consumer:
        (queue,) = await chosen_queues(consumer, topic, broker_name, queue_id)
        result = await consumer.pull(queue, offset, max_count=1)
    # A pull at an offset that is not there, or that a batch holds, gives other messages.
    found = [message for message in result.messages if message.queue_offset == offset]
    if not found:
        raise UserError(
            f"queue {queue_id} of {topic} on {broker_name} has no message at offset {offset}; "
            f"it has {result.min_offset} to {result.max_offset - 1}"
            if result.max_offset > result.min_offset
            else f"queue {queue_id} of {topic} on {broker_name} is empty"
        )
    return [await _show(session, found[0], charset=body_format)]


@command("DecodeMessageId", option("i", "messageId", "unique message ID", required=True), asks_servers=False)
async def decode_message_id(session: Session, message_id: str) -> dict[str, Any]:
    """Show which client made a unique key, and when: its address, and the time in this machine's time zone.

    A key has no month, so a key that is older than a month gets a wrong one.
    """
    try:
        key = parse_unique_key(message_id, round(time.time() * 1000))
    except ValueError as error:
        raise UserError(f"{error}; queryMsgById shows the message of an offset message id") from None
    date = datetime.fromtimestamp(key.made_at_ms // 1000).strftime("%Y-%m-%d#%H:%M:%S")
    date += f":{key.made_at_ms % 1000:03d}"
    session.say(f"ip={key.ip}")
    session.say(f"date={date}")
    return {"messageId": message_id, "ip": key.ip, "pid": key.pid, "date": date, "timestamp": key.made_at_ms}


_FORMAT = "%-10s %-20s %-20s %-20s %-10s %-10s"
_COLUMNS = {"SendTime": "ProducerGroup", "ConsumerTime": "ConsumerGroup"}


def _table(time: str) -> Table:
    columns = (
        ("#Type", "type"),
        (f"#{_COLUMNS[time]}", "group"),
        ("#ClientHost", "clientHost"),
        (f"#{time}", "time"),
        ("#CostTimes", "cost"),
        ("#Status", "status"),
    )
    return Table(columns, _FORMAT)


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    """RocketMQ's tables: one for what producers did, and one for each group that consumed."""
    shown = [
        {
            "type": row["type"],
            "group": visible(row["group"]),
            "clientHost": visible(row["clientHost"]),
            "time": seconds_text(row["timestamp"]),
            "cost": "-" if row["costTime"] is None else f"{row['costTime']}ms",
            "status": visible(row["status"]),
        }
        for row in rows
    ]
    sent = [row for row in shown if row["type"] != "Sub"]
    if sent:
        yield from _table("SendTime").lines(sent)
        yield ""
    for group in dict.fromkeys(row["group"] for row in shown if row["type"] == "Sub"):
        yield from _table("ConsumerTime").lines(row for row in shown if row["type"] == "Sub" and row["group"] == group)
        yield ""


@command(
    "queryMsgTraceById",
    option("i", "msgId", "Message Id", required=True),
    option("t", "traceTopic", "The name value of message trace topic", default=TRACE_TOPIC, show_default=True),
    time_option("b", "beginTimestamp", "Begin timestamp", default=0),
    time_option("e", "endTimestamp", "End timestamp", default=LONG_MAX),
    option(
        "num",
        "maxNum",
        "The maximum number of trace messages returned by the query",
        type=click.IntRange(min=1),
        default=64,
        show_default=True,
    ),
    show=_lines,
)
async def query_msg_trace_by_id(
    session: Session, msg_id: str, trace_topic: str, begin_timestamp: int, end_timestamp: int, max_num: int
) -> list[dict[str, Any]]:
    """Show who sent and who consumed a message, when, how long it took and how it ended.

    The message id is the producer's unique key. Clients write the trace when it is on: Skylark's with trace=True.
    """
    from skylark.sdk.traces.records import decode_records, timeline

    found = await session.admin.query_message_by_key(trace_topic, msg_id, max_num, begin_timestamp, end_timestamp)
    records = [
        (record, message.born_host.rpartition(":")[0])
        for message in found
        for record in decode_records(message.body.decode("utf-8", "replace"))
    ]
    steps = timeline(msg_id, records)
    if not steps:
        session.fail(
            UserError(f"topic {trace_topic} has no trace of {msg_id}; check the id and -t, and that clients trace")
        )
    return [_row(step) for step in steps]


def _row(step: "Step") -> dict[str, Any]:
    record = step.record
    details = {
        "regionId": record.region,
        "topic": record.topic,
        "tags": record.tags,
        "keys": record.keys,
        "storeHost": record.store_host,
        "offSetMsgId": record.offset_msg_id,
        "bodyLength": record.body_length,
        "msgType": record.message_type,
        "requestId": record.request_id,
        "retryTimes": record.retry_times,
        "contextCode": record.context_code,
        "transactionId": record.transaction_id,
        "transactionState": record.transaction_state,
        "fromTransactionCheck": record.from_check,
    }
    return {
        "type": step.kind,
        "msgId": record.msg_id,
        "group": step.group,
        "clientHost": step.client_host,
        "timestamp": step.timestamp_ms,
        "costTime": step.cost_ms,
        "status": step.status,
        **{name: value for name, value in details.items() if value is not None},
    }


FAMILIES = {
    "Message queries": (
        query_msg_by_id,
        query_msg_by_key,
        query_msg_by_unique_key,
        query_msg_by_offset,
        decode_message_id,
    ),
    "Message traces": (query_msg_trace_by_id,),
}
