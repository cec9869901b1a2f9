"""Commands that find messages by id, key, unique key and queue offset, and show who consumed a message.

RocketMQ's message tracks, one for each group that reads the topic, say which groups have consumed a message. Where
clients trace, the records in the trace topic say more.
"""

import time
from collections.abc import Iterator
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.message_text import detail_lines, save_body
from skylark.mqadmin.params import Charset, broker_name, option, route_cluster, time_option, topic_option
from skylark.mqadmin.render import Table, java_object, seconds_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.arguments import LONG_MAX
from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.ids import parse_unique_key
from skylark.mqcommon.names import TRACE_TOPIC
from skylark.mqcommon.visible import visible
from skylark.sdk.admin.reports.message_report import body_error, message_report
from skylark.sdk.admin.reports.report import named, plain

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt
    from skylark.sdk.admin.reports.message_report import MessageReport
    from skylark.sdk.admin.reports.messages import DirectResult, MessageTrack, TraceStep, TrackedMessage

# The most messages of one batch that are shown.
MAX_SHOWN = 32


def track_line(track: "MessageTrack") -> str:
    """RocketMQ's ``MessageTrack.toString``."""
    return java_object("MessageTrack", plain(track))


def _body_format() -> click.Option:
    return option(
        "f", "bodyFormat", "print message body by the specified format", type=Charset(), metavar="CHARSET", default=None
    )


async def _show(
    session: Session, message: "MessageExt", *, charset: str | None = None, with_id: bool = True, index: int = 0
) -> "TrackedMessage":
    """Print a message's block and its tracks. Returns both for JSON."""
    from skylark.sdk.admin.reports.messages import TrackedMessage, message_tracks

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
    # The message is already printed. A failure to find out who consumed it is reported, and does not take the message
    # away.
    try:
        tracks = await message_tracks(session.admin, message)
    except SkylarkError as error:
        session.fail(error, "who consumed it")
        return TrackedMessage(message_report(message), ())
    session.say()
    session.say()
    for line in [track_line(track) for track in tracks] or ["WARN: No Consumer"]:
        session.say(line)
    return TrackedMessage(message_report(message), tracks)


def _consumer_options() -> tuple[click.Option, click.Option]:
    return (
        option("g", "consumerGroup", "consumer group name; only used with -d", default=None),
        option("d", "clientId", "client id of a consumer; with -g the message is sent to it instead", default=None),
    )


async def _consume_directly(
    session: Session, message: "MessageExt", consumer_group: str, client_id: str
) -> "DirectResult":
    """Send the message to a push consumer, and print the result."""
    from skylark.sdk.admin.reports.messages import consume_directly

    result = await consume_directly(session.admin, message, consumer_group, client_id)
    members = {name: value for name, value in plain(result).items() if name not in ("msgId", "offsetMsgId")}
    session.say(java_object("ConsumeMessageDirectlyResult", members))
    return result


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
) -> "list[TrackedMessage | DirectResult]":
    """Show the message with an offset message id, or send the message to a consumer (-g, -d).

    With -t the id may also be a producer's unique key. The messages of a batch that is stored as one share an offset
    message id: the first 32 are shown; with -t and a unique key only the message with this key.
    """
    from skylark.sdk.admin.reports.messages import messages_by_id

    shown: list[TrackedMessage | DirectResult] = []
    for one in [part.strip() for part in msg_id.split(",") if part.strip()]:
        try:
            found = await messages_by_id(session.admin, one, topic)
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


_BY_KEY = Table((("#Message ID", "msg_id"), ("#QID", "queue_id"), ("#Offset", "queue_offset")), "%-50s %4d %40d")


def _key_lines(rows: "list[MessageReport]") -> Iterator[str]:
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
) -> "list[MessageReport]":
    """List the messages with a key."""
    from skylark.sdk.admin.reports.messages import messages_by_key

    found = await messages_by_key(
        session.admin,
        topic,
        msg_key,
        most=max_num,
        begin_ms=begin_timestamp,
        end_ms=end_timestamp,
        cluster=cluster,
        on_problem=session.report_problem,
    )
    return [message_report(message) for message in found]


@command(
    "queryMsgByUniqueKey",
    option("i", "msgId", "Message Id", required=True),
    topic_option("The topic of msg"),
    *_consumer_options(),
    option("a", "showAll", "Print all message, the limit is 32", type=bool, is_flag=True),
)
async def query_msg_by_unique_key(
    session: Session, msg_id: str, topic: str, consumer_group: str | None, client_id: str | None, show_all: bool
) -> "list[TrackedMessage] | list[DirectResult]":
    """Show the message with a producer's unique key, or send the message to a consumer (-g, -d).

    There may be several copies of the message if its send was retried.
    """
    from skylark.sdk.admin.reports.messages import messages_by_unique_key

    found = await messages_by_unique_key(session.admin, topic, msg_id, on_problem=session.report_problem)
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
) -> "list[TrackedMessage]":
    """Show the message at an offset of a queue."""
    from skylark.sdk.admin.reports.reading import message_at

    async with session.consumer() as consumer:
        message = await message_at(consumer, topic, broker_name, queue_id, offset)
    return [await _show(session, message, charset=body_format)]


@lazy_dataclass(frozen=True, slots=True)
class KeyOrigin:
    """Which client made a unique key, and when."""

    message_id: str
    ip: str
    pid: int
    date: str
    made_at_ms: int = field(metadata=named("timestamp"))


@command("DecodeMessageId", option("i", "messageId", "unique message ID", required=True), asks_servers=False)
async def decode_message_id(session: Session, message_id: str) -> "KeyOrigin":
    """Show which client made a unique key, and when: its address, and the time in this machine's time zone.

    A key does not contain the month, so the time of a key that is older than a month is wrong.
    """
    try:
        key = parse_unique_key(message_id, round(time.time() * 1000))
    except ValueError as error:
        raise UserError(f"{error}; queryMsgById shows the message of an offset message id") from None
    date = datetime.fromtimestamp(key.made_at_ms // 1000).strftime("%Y-%m-%d#%H:%M:%S")
    date += f":{key.made_at_ms % 1000:03d}"
    session.say(f"ip={key.ip}")
    session.say(f"date={date}")
    return KeyOrigin(message_id, key.ip, key.pid, date, key.made_at_ms)


_FORMAT = "%-10s %-20s %-20s %-20s %-10s %-10s"
_COLUMNS = {"SendTime": "ProducerGroup", "ConsumerTime": "ConsumerGroup"}


def _table(time: str) -> Table:
    columns = (
        ("#Type", "kind"),
        (f"#{_COLUMNS[time]}", lambda step: visible(step.group)),
        ("#ClientHost", lambda step: visible(step.client_host)),
        (f"#{time}", lambda step: seconds_text(step.timestamp_ms)),
        ("#CostTimes", lambda step: "-" if step.cost_ms is None else f"{step.cost_ms}ms"),
        ("#Status", lambda step: visible(step.status)),
    )
    return Table(columns, _FORMAT)


def _lines(steps: "list[TraceStep]") -> Iterator[str]:
    """RocketMQ's tables: one table for producers, and one table for each group that consumed the message."""
    sent = [step for step in steps if step.kind != "Sub"]
    if sent:
        yield from _table("SendTime").lines(sent)
        yield ""
    for group in dict.fromkeys(step.group for step in steps if step.kind == "Sub"):
        yield from _table("ConsumerTime").lines(step for step in steps if step.kind == "Sub" and step.group == group)
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
) -> "list[TraceStep]":
    """Show who sent and who consumed a message, when, how long each step took and how it ended.

    The message id is the producer's unique key. Clients write the trace when it is on: Skylark's with trace=True.
    """
    from skylark.sdk.admin.reports.messages import message_trace

    return await message_trace(
        session.admin,
        msg_id,
        trace_topic=trace_topic,
        begin_ms=begin_timestamp,
        end_ms=end_timestamp,
        most=max_num,
        on_problem=session.report_problem,
    )


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
