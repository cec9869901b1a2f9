"""Marks: how brokers remember which dead letters were sent again by choice.

A mark is a message in DLQ_RESENT_TOPIC at the broker that holds the dead letter; every Skylark broker has the topic. So
a mark is as safe as the dead letter, slaves have copies, and retention removes the mark after the dead letter. It names
the dead letter by the place in the broker's log (the offset message id), which no message of a deleted and
recreated topic gets. The tag is the group, so a broker gives only the marks of one group.
A mark is stored after the message was sent: a tool that is killed in between sends that message again, once.
Brokers of RocketMQ, and older brokers of Skylark, cannot know which letters were sent again.
Neighbours: dead_letters.py, which notes a resend without a choice as an offset, not as marks.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from skylark.mqcommon.errors import BrokerError, ProtocolError, RouteNotFound, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import TAGS
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import DLQ_RESENT_TOPIC
from skylark.remoting.protocol.body import INT, TEXT, Body, member
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.admin.tool_send import send_as_tool
from skylark.sdk.client import ClientHandle

if TYPE_CHECKING:
    from skylark.sdk.consumer.pull import PullConsumer

PULL_COUNT = 256
#: The most marks of one group that a tool holds in memory, some 150 MB.
MAX_MARKS = 1_000_000

logger = logging.getLogger(__name__)


@lazy_dataclass(frozen=True, slots=True)
class Mark(Body):
    """The dead letter of ``group`` with this offset message id was sent again for the ``times``-th time."""

    group: str = member(TEXT, "")
    offset_msg_id: str = member(TEXT, "")
    times: int = member(INT, 0)


class ResentMarks:
    """The marks of ``group``, read by ``reader`` and written through ``client``.

    ``is_strict``: a broker that does not let the caller read its marks is an error, not a broker that cannot know.
    """

    def __init__(self, client: ClientHandle, reader: "PullConsumer", group: str, *, is_strict: bool) -> None:
        self._client = client
        self._reader = reader
        self._group = group
        self._tag = group.replace("|", "_")  # two bars separate tags in expressions
        self._is_strict = is_strict
        self._queues: dict[str, MessageQueue] | None = None
        self._read_to: dict[str, int] = {}
        self._times: dict[str, int] = {}

    async def catch_up(self, broker_name: str) -> bool:
        """Read the broker's new marks since the last call; False when the broker has no marks."""
        if self._queues is None:
            self._queues = await self._find_queues()
        if (mq := self._queues.get(broker_name)) is None:
            return False
        try:
            await self._read(mq)
        except BrokerError as error:
            if self._is_strict or error.code != ResponseCode.NO_PERMISSION:
                raise
            logger.warning("which dead letters of group %s were sent again is not known: %s", self._group, error)
            del self._queues[broker_name]
            return False
        return True

    def times(self, letter: MessageExt) -> int:
        """How many times the dead letter was sent again, by the marks read so far."""
        return self._times.get(letter.offset_msg_id, 0)

    async def add(self, letter: MessageExt, times: int) -> None:
        """Mark the dead letter as sent again for the ``times``-th time; does nothing at a broker without marks."""
        mq = (self._queues or {}).get(letter.broker_name)
        if mq is None:
            return
        mark = Mark(self._group, letter.offset_msg_id, times)
        await send_as_tool(self._client, mq, orjson.dumps(mark.to_wire()), {TAGS: self._tag})
        self._remember(mark)

    async def _find_queues(self) -> dict[str, MessageQueue]:
        found: dict[str, MessageQueue] = {}
        with suppress(RouteNotFound):
            for mq in await self._reader.message_queues(DLQ_RESENT_TOPIC):
                found.setdefault(mq.broker_name, mq)  # the first queue, however many the topic has been given
        return found

    async def _read(self, mq: MessageQueue) -> None:
        at = self._read_to.get(mq.broker_name)
        if at is None:
            at = await self._reader.min_offset(mq)
        while True:
            result = await self._reader.pull(mq, at, max_count=PULL_COUNT, expression=self._tag)
            for message in result.messages:
                if (mark := _mark_in(message)) is not None and mark.group == self._group:
                    self._remember(mark)
            self._read_to[mq.broker_name] = max(at, result.next_offset)
            if result.next_offset <= at:
                return
            at = result.next_offset

    def _remember(self, mark: Mark) -> None:
        self._times[mark.offset_msg_id] = max(mark.times, self._times.get(mark.offset_msg_id, 0))
        if len(self._times) > MAX_MARKS:
            raise UserError(
                f"more than {MAX_MARKS} dead letters of group {self._group} were sent again by choice: resend the rest "
                "without a choice, or with --again"
            )


def _mark_in(message: MessageExt) -> Mark | None:
    """The mark in ``message``; None if it has none, as any permitted client may write to the topic."""
    try:
        return Mark.from_wire(orjson.loads(message.body))
    except (ProtocolError, orjson.JSONDecodeError):
        logger.warning("message %s of %s is no mark of a resend", message.offset_msg_id, DLQ_RESENT_TOPIC)
        return None
