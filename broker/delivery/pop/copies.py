"""Stores the copies of messages that were not acknowledged in time: in the group's retry topic, or as dead letters."""

import logging
from dataclasses import replace

from skylark.broker.delivery.pop.records import Queue
from skylark.broker.delivery.redelivery import given_back, made_dlq_topic, put_copy, writable
from skylark.broker.meta.groups import Groups
from skylark.broker.meta.topics import Topics
from skylark.broker.observe.stats import DEAD_LETTER, BrokerStats
from skylark.broker.options import BrokerOptions
from skylark.broker.writing.refusals import no_space
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.errors import DiskFull, RequestRefused
from skylark.mqcommon.message.layout import MAX_PROPERTIES
from skylark.mqcommon.message.properties import FIRST_POP_TIME, POP_HANDLE, find_property, replace_properties
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import PERM_READ_WRITE, RETRY_PREFIX, dlq_topic
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.pop_info import RETRY_V1, RETRY_V2, PopHandle, pop_retry_topic
from skylark.remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)

_FIRST_POP, _HANDLE = FIRST_POP_TIME.encode(), POP_HANDLE.encode()
# Properties that are dropped where the handle needs their room.
_SPARE: dict[bytes, bytes | None] = dict.fromkeys((_FIRST_POP, b"MSG_REGION", b"CLUSTER", b"TRACE_ON"))
# The longest numbers in a handle: an offset, a time until the year 2286, an invisible time, a queue.
_OFFSET, _TIME_MS, _INVISIBLE_MS, _QUEUE_ID = 10**18, 10**12, 10**9, 10**9
_TOO_OFTEN = "it was popped too often"


def retry_topic_of(topic: str, group: str, v2: bool) -> str:
    """The topic in which messages of ``topic`` come back; messages of a retry topic come back in that retry topic.

    ``v2``: RocketMQ's second form of its name (enableRetryTopicV2).
    """
    return topic if topic.startswith(RETRY_PREFIX) else pop_retry_topic(topic, group, RETRY_V2 if v2 else RETRY_V1)


def retry_copy(record: Record, topic: str, queue_id: int, pop_ms: int) -> Incoming:
    """The copy of ``record`` for a queue of the retry topic. ``pop_ms``: the time of the pop that has ended."""
    properties = record.properties
    first = find_property(properties, _FIRST_POP) or b"%d" % pop_ms
    values = {_FIRST_POP: first, _HANDLE: None}
    message = Incoming.of(record, topic, queue_id, replace_properties(properties, values))
    message.reconsume_times += 1
    return message


def with_handle(properties: bytes, handle: PopHandle) -> bytes | None:
    """The properties of a retry topic's message for its consumer, with the handle; None if there is no room for it."""
    own: dict[bytes, bytes | None] = {_HANDLE: str(handle).encode()}
    found = replace_properties(properties, own)
    if len(found) > MAX_PROPERTIES:
        found = replace_properties(properties, _SPARE | own)
    return found if len(found) <= MAX_PROPERTIES else None


def dead_letter(record: Record, origin: str, topic: str) -> Incoming:
    """``record``, which was sent to ``origin``, for the dead letter topic ``topic``."""
    return given_back(record._replace(topic=origin), topic, 0, None)


class RevivedCopies:
    """Stores the copies. Its methods raise RequestRefused while no message can be stored."""

    def __init__(
        self, writer: Writer, topics: Topics, groups: Groups, options: BrokerOptions, stats: BrokerStats
    ) -> None:
        self._writer = writer
        self._topics = topics
        self._groups = groups
        self._options = options
        self._stats = stats
        self._longest = PopHandle(
            _OFFSET, _TIME_MS, _INVISIBLE_MS, 0, RETRY_V1, options.broker_name, _QUEUE_ID, _OFFSET
        )
        # Properties up to this length have room for any handle.
        self._roomy = MAX_PROPERTIES - len(replace_properties(b"", {_HANDLE: str(self._longest).encode()}))

    def most_deliveries(self, group: str) -> int:
        """How often a message is delivered again to the group before it becomes a dead letter."""
        config = self._groups.get(group)
        return 16 if config is None else config.retry_max_times

    def make_topic(self, record: Record, queue: Queue) -> bool:
        """Make the topic and the queue in which `redeliver` stores the copy of this message, unless they are there.

        Returns whether one of them was made.
        """
        is_dead = bool(self._why_dead(record, queue.group))
        name = dlq_topic(queue.group) if is_dead else self._retry_name(queue)
        known = self._topics.get(name)
        try:
            if not is_dead:
                self._made_retry_topic(name, queue)
            elif known is None:
                self._topics.create_dlq_topic(queue.group)
        except DiskFull as error:
            raise no_space(error) from None
        return self._topics.get(name) is not known

    def redeliver(self, record: Record, queue: Queue, pop_ms: int) -> None:
        """Store the copy of a message that was popped from ``queue`` at ``pop_ms``."""
        # The copy is popped and counted like any other message. So a message that always fails becomes a dead letter.
        if why := self._why_dead(record, queue.group):
            self.make_dead_letter(record, queue, why)
            return
        config = self._retry_topic(queue)
        queue_id = queue.queue_id if queue.queue_id < config.write_queue_nums else 0
        self._put(retry_copy(record, config.topic_name, queue_id, pop_ms), record)

    def make_dead_letter(self, record: Record, queue: Queue, why: str = _TOO_OFTEN) -> None:
        """Store the message as a dead letter of the group. ``why``: the reason, for the log."""
        group, topic, _ = queue
        config = made_dlq_topic(self._topics, group)
        origin = _origin(topic, group)
        if self._put(dead_letter(record, origin, config.topic_name), record):
            self._stats.count(DEAD_LETTER, group, origin, 1, 0)
            logger.warning(
                "message %d of %s queue %d became a dead letter of group %s: %s",
                record.queue_offset,
                topic,
                queue.queue_id,
                group,
                why,
            )

    def _put(self, message: Incoming, record: Record) -> bool:
        """Store ``message``, the copy of ``record``; returns whether that is possible at all."""
        try:
            put_copy(self._writer, message, record)
        except RequestRefused as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # If it were tried for ever, it would keep other messages from coming back.
            logger.error(
                "message %d of %s queue %d does not come back to its group, it is too large for %s; it stays"
                " in its topic: %s",
                record.queue_offset,
                record.topic,
                record.queue_id,
                message.topic,
                error,
            )
            return False
        return True

    def _why_dead(self, record: Record, group: str) -> str:
        """Why the message becomes a dead letter; "" when it is delivered again."""
        if record.reconsume_times >= self.most_deliveries(group):
            return _TOO_OFTEN
        if len(record.properties) > self._roomy and with_handle(record.properties, self._longest) is None:
            return "its properties leave no room for the handle with which the group would acknowledge it"
        return ""

    def _retry_name(self, queue: Queue) -> str:
        return retry_topic_of(queue.topic, queue.group, self._options.enable_retry_topic_v2)

    def _retry_topic(self, queue: Queue) -> TopicConfig:
        name = self._retry_name(queue)
        try:
            config = self._made_retry_topic(name, queue)
        except DiskFull as error:
            raise no_space(error) from None
        return writable(config, name)

    def _made_retry_topic(self, name: str, queue: Queue) -> TopicConfig | None:
        """The retry topic for messages of ``queue``, with as many queues as they need."""
        known, topic = self._topics.get(name), queue.topic
        is_separate = self._options.use_separate_retry_queue or self._topics.has_priorities(topic)
        config = self._topics.get(topic) if is_separate and topic != name else None
        count = 1 if config is None else max(config.read_queue_nums, 1)
        # While a topic of this name is being deleted, the copies would be removed with it.
        is_too_small = known is not None and 1 < count > known.write_queue_nums
        if (known is None or is_too_small) and not self._topics.deletions.is_unfinished(name):
            made = known or TopicConfig(name, perm=PERM_READ_WRITE)
            self._topics.put(replace(made, read_queue_nums=count, write_queue_nums=count))
        return self._topics.get(name)


def _origin(topic: str, group: str) -> str:
    """The topic to which the messages of ``topic``, which may be a retry topic of the group, were sent."""
    return topic.removeprefix(f"{RETRY_PREFIX}{group}")[1:] if topic.startswith(RETRY_PREFIX) else topic
