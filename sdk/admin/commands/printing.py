"""printMsg and printMsgByQueue: print the messages of a topic or a queue, one line each, or count them by tag."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from sdk.admin.command import command
from sdk.admin.message_text import message_json, print_line
from sdk.admin.params import Charset, option, time_option, topic_option
from sdk.admin.reading import chosen_queues, queue_json, queue_text, read_queue, span_of, status_name
from sdk.admin.render import visible
from sdk.admin.session import Session

if TYPE_CHECKING:
    from mqcommon.message.message import MessageExt
    from mqcommon.message.queue import MessageQueue
    from sdk.consumer.reader import PullResult

FAMILY = "Messages"
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
        self.documents: list[dict[str, Any]] = []
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
                self.documents.append(message_json(message, charset=self._charset, with_body=self._with_body))
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
) -> dict[str, Any]:
    """Print the messages of a topic, queue by queue, oldest first. Commits no offsets."""
    printer = _Printer(session, limit, charset_name, with_body=print_body)
    read: list[dict[str, Any]] = []
    async with session.consumer() as consumer:
        for queue in await chosen_queues(consumer, topic):
            start, end = await span_of(consumer, queue, begin_timestamp, end_timestamp)
            if printer.left == 0 and start < end:
                printer.limited = True
                break
            session.say(f"minOffset={start}, maxOffset={end}, {queue_text(queue)}")

            def take(result: "PullResult", found: "list[MessageExt]", queue: "MessageQueue" = queue) -> None:
                printer.show(found)
                name = status_name(result)
                if name == "NO_MATCHED_MSG":
                    session.say(f"{queue_text(queue)} no matched msg. status={name}, offset={result.next_offset}")
                elif name != "FOUND":
                    session.say(f"{queue_text(queue)} print msg finished. status={name}, offset={result.next_offset}")

            status, at = await read_queue(
                session, consumer, queue, start, end, take, expression=sub_expression, most=printer.left
            )
            printer.limited |= printer.left == 0 and at < end
            session.say(_LINE)
            read.append(queue_json(queue, minOffset=start, maxOffset=end, status=status, offset=at))
    printer.end()
    return {"topic": topic, "queues": read, "limited": printer.limited, "messages": printer.documents}


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
) -> dict[str, Any]:
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

        def take(result: "PullResult", found: "list[MessageExt]") -> None:
            if print_msg:
                printer.show(found)
            if calculate:
                tags.update(message.tags for message in found if message.tags and message.tags.strip())

        most = None if calculate else printer.left
        _, at = await read_queue(session, consumer, queue, start, end, take, expression=sub_expression, most=most)
        printer.limited |= most is not None and at < end
    printer.end()
    for tag, count in tags.most_common():
        session.say(f"Tag: {visible(tag):<30} Count: {count}")
    place = queue_json(queue, minOffset=start, maxOffset=end, offset=at)
    return {"topic": topic, **place, "limited": printer.limited, "messages": printer.documents, "tags": dict(tags)}


COMMANDS = (print_msg, print_msg_by_queue)
