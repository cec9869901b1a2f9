"""Where a consumer begins in a queue, and what a new group does not get: messages stored before it began."""

import logging
from typing import Protocol

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk import broker_api
from skylark.sdk.consumer.offsets import OffsetStore
from skylark.sdk.consumer.outcome import ConsumeFrom, check_timestamp
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.position import Position

logger = logging.getLogger(__name__)


class StartChoice(Protocol):
    """The settings that say where a consumer begins; `PushSettings` has them."""

    @property
    def consume_from(self) -> ConsumeFrom: ...

    @property
    def consume_timestamp_ms(self) -> int | None: ...

    @property
    def broadcast(self) -> bool: ...

    @property
    def retry_topic(self) -> str: ...


@lazy_dataclass(frozen=True, slots=True)
class PullStart:
    """The `StartChoice` of a pull consumer, which does not read its group's retry topic by itself."""

    consume_from: ConsumeFrom
    consume_timestamp_ms: int | None
    broadcast: bool = False
    retry_topic: str = ""

    def __post_init__(self) -> None:
        check_timestamp(self.consume_from, self.consume_timestamp_ms)


class FirstOffsets:
    """Where a consumer of ``group`` begins in each of its queues, by its ``choice`` and the offsets in ``offsets``."""

    def __init__(self, group: str, choice: StartChoice, offsets: OffsetStore, replicas: Replicas) -> None:
        self._group = group
        self._choice = choice
        self._offsets = offsets
        self._replicas = replicas
        # Topic → how many messages the group does not get, in the queues so far; None: the topic was logged.
        self._passed: dict[str, int | None] = {}

    async def of(self, mq: MessageQueue) -> Position:
        """The offset of the first message to consume, as RocketMQ's clients choose it but for one difference.

        For a queue without a committed offset whose first message is still in memory, RocketMQ's clients ask in a way
        that gives 0, for FIRST_OFFSET and TIMESTAMP, too; so their TIMESTAMP reads everything. Here only LAST_OFFSET
        asks in that way. Raises SkylarkError when a broker does not answer.
        """
        choice, replicas = self._choice, self._replicas
        is_retry = mq.topic == choice.retry_topic
        is_last = choice.consume_from is ConsumeFrom.LAST_OFFSET
        # A kept or committed offset wins over ``consume_from``, which is for new groups only.
        committed = await self._offsets.read(mq, zero_if_new=is_last and not choice.broadcast)
        if committed is not None:
            return committed
        if is_retry or choice.consume_from is ConsumeFrom.FIRST_OFFSET:
            return await replicas.ask(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))
        if is_last:
            end = await replicas.ask(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))
            if end.offset and not choice.broadcast:
                await self._count_passed(mq, end.offset)
            return end
        timestamp_ms = choice.consume_timestamp_ms
        assert timestamp_ms is not None
        return await replicas.ask(mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms))

    def log_passed(self) -> None:
        """Log, once for a topic, that the new group begins after messages, and how it gets these messages."""
        for topic, count in self._passed.items():
            if not count:
                continue
            self._passed[topic] = None
            logger.warning(
                "group %s has no offset of topic %s yet and begins at its end: it does not get the messages before that"
                " (%d or more); to get them: mqadmin resetOffsetByTime -g %s -t %s -s 0; the next new group gets all "
                "messages with consume_from=ConsumeFrom.FIRST_OFFSET",
                self._group,
                topic,
                count,
                self._group,
                topic,
            )

    async def _count_passed(self, mq: MessageQueue, end: int) -> None:
        try:
            start = await self._replicas.ask(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))
        except SkylarkError as error:
            # Only a log line needs it: the queue is consumed without it.
            logger.info("no first offset of %s: %s", mq, error)
            return
        count = self._passed.setdefault(mq.topic, 0)
        if count is not None:
            self._passed[mq.topic] = count + end - start.offset
