"""Commands that send a message, and print the messages of topics and queues."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.message_text import print_line
from skylark.mqadmin.params import BrokerName, Charset, broker_name, option, time_option, topic_option
from skylark.mqadmin.render import Table, java_value, queue_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.ids import parse_offset_msg_id
from skylark.mqcommon.names import TOOLS_GROUP, TRACE_TOPIC
from skylark.mqcommon.visible import visible
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.message_report import MessageReport, message_report
from skylark.sdk.admin.reports.reading import (
    ReadQueue,
    chosen_queues,
    oldest_messages,
    read_queue,
    span_of,
    status_name,
    which_queues,
)
from skylark.sdk.admin.reports.report import named

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import Message, MessageExt
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.sdk.consumer.reader import PullResult
    from skylark.sdk.producer.producer import Producer
    from skylark.sdk.producer.result import SendResult

_PRODUCER_GROUP = "TOOLS_PRODUCER"
_SENT = Table(
    (("#Broker Name", "broker_name"), ("#QID", "queue_id"), ("#Send Result", "status"), ("#MsgId", "msg_id")),
    "%-32s  %-4s  %-20s    %s",
)


@lazy_dataclass(frozen=True, slots=True)
class SentMessage:
    """Where a message was stored."""

    broker_name: str
    queue_id: int
    queue_offset: int
    #: The status, such as SEND_OK.
    status: str = field(metadata=named("sendStatus"))
    msg_id: str
    offset_msg_id: str


def _sent_lines(sent: SentMessage) -> Iterator[str]:
    return _SENT.lines([sent])


@command(
    "sendMessage",
    topic_option("Topic name"),
    option("p", "body", "UTF-8 string format of the message body", type=click.STRING, required=True),
    option("k", "key", "Message keys", default=None),
    option("c", "tags", "Message tags", default=None),
    option("b", "broker", "Send message to target broker", type=BrokerName(), metavar="NAME|HOST:PORT", default=None),
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
) -> SentMessage:
    """Send one message; with -m true also send its trace to RMQ_SYS_TRACE_TOPIC."""
    from skylark.mqcommon.message.message import Message

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
    queue = result.queue
    return SentMessage(
        queue.broker_name, queue.queue_id, result.queue_offset, result.status.name, result.msg_id, result.offset_msg_id
    )


async def _send_trace(
    session: Session, producer: "Producer", message: "Message", result: "SendResult", start: float, end: float
) -> None:
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


@lazy_dataclass(frozen=True, slots=True)
class ConsumedMessages:
    """The messages that were read, and the queues that they were read from."""

    topic: str
    #: Empty when the messages were printed as they were read.
    messages: "tuple[MessageReport, ...]"
    queues: "tuple[ReadQueue, ...]"


@command(
    "consumeMessage",
    topic_option("Topic name"),
    broker_name("Broker name", default=None),
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
) -> ConsumedMessages:
    """Print messages of a topic, or of one of its queues, oldest first. Commits no offsets."""
    if queue_id is not None and broker_name is None:
        raise click.UsageError("-i/--queueId needs -b/--brokerName: give the broker of the queue.")
    if offset is not None and queue_id is None:
        raise click.UsageError("-o/--offset needs -i/--queueId: give the queue of the offset.")
    if broker_name is None:
        await session.check_whole([topic])
    async with session.consumer(consumer_group or TOOLS_GROUP) as consumer:
        found = await oldest_messages(
            consumer,
            topic,
            broker_name=broker_name,
            queue_id=queue_id,
            offset=offset,
            begin_ms=begin_timestamp,
            end_ms=end_timestamp,
            most=message_number,
            callbacks=_Consumed(session),
            on_progress=session.progress,
        )
    shown = tuple(message_report(message) for message in found.messages) if session.json else ()
    return ConsumedMessages(topic, shown, found.queues)


class _Consumed:
    """Prints messages as they are read."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def cut(self, queue: "MessageQueue", count: int) -> None:
        # The oldest messages are shown, as by RocketMQ's tool, although RocketMQ's text reads otherwise.
        self._session.say(f"The older {count} message of the {queue.queue_id} queue will be provided")

    def pulled(self, messages: "list[MessageExt]") -> None:
        if messages:
            self._session.say("Consume ok")
        for message in messages:
            self._session.say(print_line(message))

    def ended(self, queue: "MessageQueue", read: ReadQueue) -> None:
        self._session.say(f"{queue_text(queue)} print msg finished. status={read.status}, offset={read.offset}")


def trace_of_send(message: "Message", result: "SendResult", group: str, sent_ms: int, cost_ms: int) -> "Message":
    """The trace message for ``message``, sent at ``sent_ms``, with the keys by which queryMsgTraceById finds it."""
    from skylark.mqcommon.message.message import Message
    from skylark.sdk.traces.entries import DEFAULT_REGION
    from skylark.sdk.traces.records import FIELD_END, NORMAL_MESSAGE, PUB, RECORD_END

    host, port, _ = parse_offset_msg_id(result.offset_msg_id)
    fields = (
        PUB,
        sent_ms,
        DEFAULT_REGION,
        group,
        message.topic,
        result.msg_id,
        message.tags,
        message.keys,
        f"{host}:{port}",
        len(message.body),
        cost_ms,
        NORMAL_MESSAGE,
        result.offset_msg_id,
        True,
    )
    text = FIELD_END.join(java_value(field) for field in fields) + RECORD_END
    return Message(TRACE_TOPIC, text.encode(), keys=[result.msg_id, *(message.keys or "").split()])


DEFAULT_LIMIT = 1000
_LINE = "-" * 56


def _charset() -> click.Option:
    return option("c", "charsetName", "CharsetName(eg: UTF-8,GBK)", type=Charset(), metavar="CHARSET", default="utf-8")


def _expression() -> click.Option:
    return option("s", "subExpression", "Subscribe Expression(eg: TagA || TagB)", default="*")


def _limit() -> click.Option:
    help = "how many messages to print at most; 0 prints all"
    return option("", "limit", help, type=click.IntRange(min=0), default=DEFAULT_LIMIT, show_default=True)


class _Printer:
    """Prints messages up to the limit (0: all), or collects them for JSON."""

    def __init__(self, session: Session, limit: int, charset: str, *, with_body: bool) -> None:
        self._session = session
        self._limit = limit
        self._charset = charset
        self._with_body = with_body
        self._printed = 0
        self.messages: list[MessageReport] = []
        self.limited = False

    @property
    def left(self) -> int | None:
        """How many more may be printed; None when there is no limit."""
        return self._limit - self._printed if self._limit else None

    def show(self, messages: "list[MessageExt]") -> None:
        """Print the messages, up to the limit."""
        chosen = messages[: self.left]
        for message in chosen:
            if self._session.json:
                self.messages.append(message_report(message, charset=self._charset, with_body=self._with_body))
            else:
                self._session.say(print_line(message, charset=self._charset, with_body=self._with_body))
        self._printed += len(chosen)
        self.limited |= len(chosen) < len(messages)

    def end(self) -> None:
        """If the limit was reached, print how to see the rest."""
        if self.limited:
            self._session.warn(
                f"stopped after {self._printed} messages: --limit N prints more, --limit 0 all; -b and -e choose a time"
            )


@lazy_dataclass(frozen=True, slots=True)
class PrintedPart:
    """A queue whose messages were printed: its offsets, and the status of the last pull, which ended at ``offset``."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    status: str
    offset: int


@lazy_dataclass(frozen=True, slots=True)
class PrintedTopic:
    """The printed messages of a topic; with JSON output they are in ``messages``."""

    topic: str
    queues: tuple[PrintedPart, ...]
    is_limited: bool = field(metadata=named("limited"))
    messages: "tuple[MessageReport, ...]"


@lazy_dataclass(frozen=True, slots=True)
class PrintedQueue:
    """As `PrintedTopic`, for one queue; ``tags``: the number of messages with each tag, if they were counted."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    offset: int
    is_limited: bool = field(metadata=named("limited"))
    messages: "tuple[MessageReport, ...]"
    tags: Mapping[str, int]


@command(
    "printMsg",
    topic_option(),
    _charset(),
    _expression(),
    time_option("b", "beginTimestamp", "Begin timestamp", default=None),
    time_option("e", "endTimestamp", "End timestamp", default=None),
    option("d", "printBody", "print body", type=bool, default=True, show_default=True),
    _limit(),
)
async def print_msg(
    session: Session,
    topic: str,
    charset_name: str,
    sub_expression: str,
    begin_timestamp: int | None,
    end_timestamp: int | None,
    print_body: bool,
    limit: int,
) -> PrintedTopic:
    """Print the messages of a topic, queue by queue, oldest first. Commits no offsets."""
    printer = _Printer(session, limit, charset_name, with_body=print_body)
    await session.check_whole([topic])
    read: list[PrintedPart] = []
    async with session.consumer() as consumer:
        for queue in await chosen_queues(consumer, topic):
            start, end = await span_of(consumer, queue, begin_timestamp, end_timestamp)
            # The limit was reached at the end of the previous queue, and this queue has messages: print the hint.
            if printer.left == 0 and start < end:
                printer.limited = True
                break
            session.say(f"minOffset={start}, maxOffset={end}, {queue_text(queue)}")

            def print_pull(result: "PullResult", found: "list[MessageExt]", queue: "MessageQueue" = queue) -> None:
                printer.show(found)
                name = status_name(result)
                if name == "NO_MATCHED_MSG":
                    session.say(f"{queue_text(queue)} no matched msg. status={name}, offset={result.next_offset}")
                elif name != "FOUND":
                    session.say(f"{queue_text(queue)} print msg finished. status={name}, offset={result.next_offset}")

            status, at = await read_queue(
                consumer,
                queue,
                start,
                end,
                print_pull,
                expression=sub_expression,
                most=printer.left,
                on_progress=session.progress,
            )
            printer.limited |= printer.left == 0 and at < end
            session.say(_LINE)
            read.append(PrintedPart(queue.broker_name, queue.queue_id, start, end, status, at))
    printer.end()
    return PrintedTopic(topic, tuple(read), printer.limited, tuple(printer.messages))


@command(
    "printMsgByQueue",
    topic_option(),
    option("a", "brokerName", "broker name", required=True),
    option("i", "queueId", "queue id", type=click.IntRange(min=0), required=True),
    _charset(),
    _expression(),
    time_option("b", "beginTimestamp", "Begin timestamp", default=None),
    time_option("e", "endTimestamp", "End timestamp", default=None),
    option("p", "printMsg", "print msg", type=bool, default=False, show_default=True),
    option("d", "printBody", "print body", type=bool, default=False, show_default=True),
    option("f", "calculate", "calculate by tag", type=bool, default=False, show_default=True),
    _limit(),
)
async def print_msg_by_queue(
    session: Session,
    topic: str,
    broker_name: str,
    queue_id: int,
    charset_name: str,
    sub_expression: str,
    begin_timestamp: int | None,
    end_timestamp: int | None,
    print_msg: bool,
    print_body: bool,
    calculate: bool,
    limit: int,
) -> PrintedQueue:
    """Print the messages of one queue (-p true), or count them by tag (-f true). Commits no offsets.

    The limit applies to printing; counting goes on to the end of the queue.
    """
    if not print_msg and not calculate:
        raise click.UsageError("Nothing to do: give -p true to print the messages, -f true to count them by tag.")
    printer = _Printer(session, limit, charset_name, with_body=print_body)
    tags: Counter[str] = Counter()
    async with session.consumer() as consumer:
        [queue] = await chosen_queues(consumer, topic, broker_name, queue_id)
        start, end = await span_of(consumer, queue, begin_timestamp, end_timestamp)

        def print_or_count(result: "PullResult", found: "list[MessageExt]") -> None:
            if print_msg:
                printer.show(found)
            if calculate:
                tags.update(message.tags for message in found if message.tags and message.tags.strip())

        # Counting tags reads the whole queue. Otherwise reading ends with the last message to print.
        most = None if calculate else printer.left
        _, at = await read_queue(
            consumer,
            queue,
            start,
            end,
            print_or_count,
            expression=sub_expression,
            most=most,
            on_progress=session.progress,
        )
        printer.limited |= most is not None and at < end
    printer.end()
    for tag, count in tags.most_common():
        session.say(f"Tag: {visible(tag):<30} Count: {count}")
    return PrintedQueue(
        topic,
        queue.broker_name,
        queue.queue_id,
        start,
        end,
        at,
        is_limited=printer.limited,
        messages=tuple(printer.messages),
        tags=dict(tags),
    )


FAMILIES = {
    "Messages": (
        send_message,
        consume_message,
        print_msg,
        print_msg_by_queue,
    ),
}
