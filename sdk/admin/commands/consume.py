"""sendMessage and consumeMessage: send one message, and print messages."""

import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import SkylarkError, UserError
from sdk.admin.command import command
from sdk.admin.failures import explain
from sdk.admin.message_text import message_json, print_line
from sdk.admin.params import option, time_option, topic_option
from sdk.admin.reading import Take, chosen_queues, queue_json, queue_text, read_queue, span_of, which_queues
from sdk.admin.render import Row, Table
from sdk.admin.session import TOOLS_GROUP, Session

if TYPE_CHECKING:
    from mqcommon.message.message import Message, MessageExt
    from mqcommon.message.queue import MessageQueue
    from sdk.consumer.reader import PullResult
    from sdk.producer.producer import Producer
    from sdk.producer.result import SendResult

FAMILY = "Messages"
_PRODUCER_GROUP = "TOOLS_PRODUCER"
_SENT = Table(
    (("#Broker Name", "brokerName"), ("#QID", "queueId"), ("#Send Result", "sendStatus"), ("#MsgId", "msgId")),
    "%-32s  %-4s  %-20s    %s",
)


def _sent_lines(row: Row) -> Iterator[str]:
    return _SENT.lines([row])


@command(
    "sendMessage",
    topic_option("Topic name"),
    option("p", "body", "UTF-8 string format of the message body", type=click.STRING, required=True),
    option("k", "key", "Message keys", default=None),
    option("c", "tags", "Message tags", default=None),
    option("b", "broker", "Send message to target broker", default=None),
    option("i", "qid", "Send message to target queue", type=click.IntRange(min=0), default=None),
    option("m", "msgTraceEnable", "Message Trace Enable", type=bool, default=False, show_default=True),
    show=_sent_lines,
)
async def send_message(
    session: Session,
    topic: str,
    body: str,
    key: str | None,
    tags: str | None,
    broker: str | None,
    qid: int | None,
    msg_trace_enable: bool,
) -> dict[str, Any]:
    """Send one message; with -m true also send its trace to RMQ_SYS_TRACE_TOPIC."""
    from mqcommon.message.message import Message

    if qid is not None and broker is None:
        raise click.UsageError("-i/--qid needs -b/--broker: give the broker of the queue.")
    selector = None if broker is None else lambda queues, message: _choose(queues, broker, qid)
    async with session.producer(_PRODUCER_GROUP) as producer:
        start = time.time()
        try:
            message = Message(topic, body.encode(), tags=tags, keys=key)
            result = await producer.send(message, selector=selector)
        except ValueError as error:
            raise UserError(str(error)) from None
        if msg_trace_enable:
            await _send_trace(session, producer, message, result, start, time.time())
    return {
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
        "sendStatus": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
    }


async def _send_trace(
    session: Session, producer: "Producer", message: "Message", result: "SendResult", start: float, end: float
) -> None:
    from sdk.admin.trace import trace_of_send

    cost_ms = round((end - start) * 1000)
    try:
        await producer.send(trace_of_send(message, result, _PRODUCER_GROUP, int(start * 1000), cost_ms))
    except SkylarkError as error:
        # The message itself is stored, so this is not an error.
        session.warn(f"the trace of the message is not stored: {explain(error)}")


def _choose(queues: Sequence["MessageQueue"], broker: str, qid: int | None) -> "MessageQueue":
    """The queue that -b and -i choose; without -i, any queue of the broker."""
    own = [queue for queue in queues if queue.broker_name == broker and qid in (None, queue.queue_id)]
    if not own:
        raise UserError(f"the topic has no such writable queue: {which_queues(queues, broker)}")
    return random.choice(own)


@command(
    "consumeMessage",
    topic_option("Topic name"),
    option("b", "brokerName", "Broker name", default=None),
    option("i", "queueId", "Queue Id", type=click.IntRange(min=0), default=None),
    option("o", "offset", "Queue offset", type=click.IntRange(min=0), default=None),
    option("g", "consumerGroup", "Consumer group name", default=None),
    time_option("s", "beginTimestamp", "Begin timestamp", default=None),
    time_option("e", "endTimestamp", "End timestamp", default=None),
    option(
        "c",
        "MessageNumber",
        "Number of message to be consumed",
        type=click.IntRange(min=1),
        default=128,
        show_default=True,
    ),
)
async def consume_message(
    session: Session,
    topic: str,
    broker_name: str | None,
    queue_id: int | None,
    offset: int | None,
    consumer_group: str | None,
    begin_timestamp: int | None,
    end_timestamp: int | None,
    message_number: int,
) -> dict[str, Any]:
    """Print messages of a topic, or of one of its queues, oldest first. Commits no offsets."""
    if queue_id is not None and broker_name is None:
        raise click.UsageError("-i/--queueId needs -b/--brokerName: give the broker of the queue.")
    if offset is not None and queue_id is None:
        raise click.UsageError("-o/--offset needs -i/--queueId: give the queue of the offset.")
    left = message_number
    messages: list[MessageExt] = []
    ends: list[dict[str, Any]] = []
    async with session.consumer(consumer_group or TOOLS_GROUP) as consumer:
        for queue in await chosen_queues(consumer, topic, broker_name, queue_id):
            if left <= 0:
                break
            first, end = await span_of(consumer, queue, begin_timestamp, end_timestamp)
            start = max(first, offset or 0)
            if end - start > left:
                session.say(f"The older {left} message of the {queue.queue_id} queue will be provided")
                end = start + left
            status, at = await read_queue(session, consumer, queue, start, end, _printer(session, messages))
            session.say(f"{queue_text(queue)} print msg finished. status={status}, offset={at}")
            ends.append(queue_json(queue, status=status, offset=at))
            left = message_number - len(messages)
    shown = [message_json(message) for message in messages] if session.json else []
    return {"topic": topic, "messages": shown, "queues": ends}


def _printer(session: Session, messages: "list[MessageExt]") -> Take:
    """Returns a function that prints messages and appends them to ``messages``."""

    def take(result: "PullResult", found: "list[MessageExt]") -> None:
        if found:
            session.say("Consume ok")
        for message in found:
            session.say(print_line(message))
        messages.extend(found)

    return take


COMMANDS = (send_message, consume_message)
