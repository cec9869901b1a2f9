"""Stores the copies of messages that were not acknowledged in time: in the group's retry topic, or as dead letters."""

import logging

from broker.delivery.pop.records import Queue
from broker.delivery.redelivery import given_back, made_dlq_topic, writable
from broker.meta.groups import Groups
from broker.meta.topics import Topics
from broker.options import BrokerOptions
from broker.writing.refusals import no_space
from broker.writing.stored_properties import Incoming
from broker.writing.writer import Writer
from mqcommon.errors import DiskFull
from mqcommon.message.properties import find_property, replace_properties
from mqcommon.message.record import Record
from mqcommon.names import PERM_READ_WRITE, RETRY_PREFIX, dlq_topic
from remoting.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic
from remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)


_FIRST_POP, _HANDLE = b"1ST_POP_TIME", b"POP_CK"


def retry_topic_of(topic: str, group: str, v2: bool) -> str:
    """The topic for messages of ``topic`` that come back; those of a retry topic come back there."""
    return topic if topic.startswith(RETRY_PREFIX) else pop_retry_topic(topic, group, RETRY_V2 if v2 else RETRY_V1)


def retry_copy(record: Record, topic: str, pop_ms: int) -> Incoming:
    """``record`` for the retry topic. ``pop_ms``: when it was popped this time."""
    properties = record.properties
    first = find_property(properties, _FIRST_POP) or b"%d" % pop_ms
    values = {_FIRST_POP: first, _HANDLE: None}
    message = Incoming.of(record, topic, 0, replace_properties(properties, values))
    message.reconsume_times += 1
    return message


def dead_letter(record: Record, origin: str, topic: str) -> Incoming:
    """``record``, which was sent to ``origin``, for the dead letter topic ``topic``."""
    return given_back(record._replace(topic=origin), topic, 0, None)


class RevivedCopies:
    """See the module. Its methods raise RequestRefused while no message can be stored."""

    def __init__(self, writer: Writer, topics: Topics, groups: Groups, options: BrokerOptions) -> None:
        self._writer = writer
        self._topics = topics
        self._groups = groups
        self._options = options

    def most_deliveries(self, group: str) -> int:
        """How often a message is delivered again to the group before it becomes a dead letter."""
        config = self._groups.get(group)
        return 16 if config is None else config.retry_max_times

    def make_topic(self, record: Record, queue: Queue) -> bool:
        """Make the topic in which `redeliver` stores the copy of this message; returns whether it was missing."""
        is_dead = self._is_dead(record, queue.group)
        name = dlq_topic(queue.group) if is_dead else self._retry_name(queue)
        if self._topics.get(name) is not None:
            return False
        if is_dead:
            made_dlq_topic(self._topics, queue.group)
        else:
            self._retry_topic(name)
        return True

    def redeliver(self, record: Record, queue: Queue, pop_ms: int) -> None:
        """Store the copy of a message that was popped from ``queue`` at ``pop_ms``."""
        # The copy is popped and counted like any other message, so a message that always fails ends here.
        if self._is_dead(record, queue.group):
            self.make_dead_letter(record, queue)
            return
        config = self._retry_topic(self._retry_name(queue))
        self._writer.put_again(retry_copy(record, config.topic_name, pop_ms))

    def make_dead_letter(self, record: Record, queue: Queue) -> None:
        """Store a dead letter of the group."""
        group, topic, _ = queue
        config = made_dlq_topic(self._topics, group)
        origin = _origin(topic, group)
        self._writer.put_again(dead_letter(record, origin, config.topic_name))
        logger.warning("message %d of %s queue %d became a dead letter of group %s, which popped it too often",
                       record.queue_offset, topic, queue.queue_id, group)  # fmt: skip

    def _is_dead(self, record: Record, group: str) -> bool:
        return record.reconsume_times >= self.most_deliveries(group)

    def _retry_name(self, queue: Queue) -> str:
        return retry_topic_of(queue.topic, queue.group, self._options.enable_retry_topic_v2)

    def _retry_topic(self, name: str) -> TopicConfig:
        config = self._topics.get(name)
        if config is None:
            try:
                self._topics.put(TopicConfig(name, 1, 1, PERM_READ_WRITE))
            except DiskFull as error:
                raise no_space(error) from None
            config = self._topics.get(name)
        return writable(config, name)


def _origin(topic: str, group: str) -> str:
    """The topic that the messages of ``topic``, which may be a retry topic of the group, were sent to."""
    return topic.removeprefix(f"{RETRY_PREFIX}{group}")[1:] if topic.startswith(RETRY_PREFIX) else topic
