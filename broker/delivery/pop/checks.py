"""Checks that the requests of pop consumers share. The order, the codes and the texts are RocketMQ's."""

from skylark.broker.delivery.filters import Filters, check_property_filter
from skylark.broker.delivery.pop.copies import retry_topic_of
from skylark.broker.delivery.pop.records import Key, Queue
from skylark.broker.meta.groups import Groups
from skylark.broker.meta.table import refused_when_not_stored
from skylark.broker.meta.topics import FAQ, Topics, no_such_topic
from skylark.broker.options import BrokerOptions
from skylark.broker.store.filter import Filter
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import PERM_READ, RETRY_TOPIC_MAX_LENGTH, check_topic, is_retry_topic
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.pop_info import PopHandle, parse_handle
from skylark.remoting.protocol.requests.clients import TAG
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.pops import ANY_QUEUE, PopMessageRequestHeader
from skylark.remoting.protocol.requests.topics import TopicConfig

#: The maximum is the longest delay of RocketMQ's timer; a longer time would keep old log files from being deleted.
MIN_INVISIBLE_MS, MAX_INVISIBLE_MS = 0, 3 * 24 * 3600 * 1000


class PopChecks:
    """Checks pop requests against the topics, groups and filters of one broker."""

    def __init__(self, topics: Topics, groups: Groups, filters: Filters, options: BrokerOptions) -> None:
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._options = options

    def reader(self, group: str, topic: str, queue_id: int) -> SubscriptionGroupConfig:
        """The group; RequestRefused unless it may pop from this queue."""
        if not self._options.broker_permission & PERM_READ:
            text = f"the broker[{self._options.broker_ip1}] pop message is forbidden"
            raise RequestRefused(ResponseCode.NO_PERMISSION, text)
        config = self.topic(topic)
        if not config.perm & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
        if not ANY_QUEUE <= queue_id < config.read_queue_nums:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, _illegal_queue(queue_id, config))
        if is_retry_topic(topic):
            text = f"the topic[{topic}] is read with the topic whose messages come back there: pop that one"
            raise RequestRefused(ResponseCode.NO_PERMISSION, text)
        # Refuse the pop now: when the message is to be delivered again, there is no request that could be refused.
        if len(retry_topic_of(topic, group, False)) > RETRY_TOPIC_MAX_LENGTH:
            text = f"the names of topic {topic} and group {group} are too long together for a retry topic"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
        # Find or create the group last, so that a refused request creates no group.
        known = self._groups.get(group)
        if known is None:
            with refused_when_not_stored():
                known = self._groups.get_or_create(group)
        if known is None:
            text = f"subscription group [{group}] does not exist, {FAQ.strip()}"
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        if not known.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return known

    def has_priorities(self, topic: str) -> bool:
        """Whether the topic's urgent messages are popped before others."""
        return self._topics.has_priorities(topic)

    def filter(self, header: PopMessageRequestHeader) -> Filter:
        """The filter of the request; RequestRefused when it cannot be used."""
        if header.exp_type not in (None, "", TAG):
            check_property_filter(self._options, header.exp_type)
        return self._filters.of_type(header.exp or "", header.exp_type)

    def topic(self, topic: str) -> TopicConfig:
        """The topic; RequestRefused when there is none."""
        check_topic(topic)
        config = self._topics.get(topic)
        if config is None:
            raise no_such_topic(topic)
        return config

    def queue(self, topic: str, queue_id: int) -> None:
        """RequestRefused unless messages of this queue can be acknowledged."""
        config = self.topic(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, _illegal_queue(queue_id, config))


def check_invisible(invisible_ms: int) -> None:
    """RequestRefused when a message cannot be hidden for this time."""
    if not MIN_INVISIBLE_MS <= invisible_ms <= MAX_INVISIBLE_MS:
        text = f"invisibleTime is {invisible_ms} ms, it must be {MIN_INVISIBLE_MS} to {MAX_INVISIBLE_MS}"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)


def handle_of(text: str) -> PopHandle:
    """The handle in ``text``; RequestRefused when ``text`` is not a handle."""
    try:
        return parse_handle(text)
    except ValueError as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"extraInfo is not a handle of a message: {error}") from None


def key_of(handle: PopHandle, group: str, topic: str, queue_id: int) -> Key:
    """The key of a message's check point. ``topic``: the topic of which it was popped, which may be a retry topic."""
    return Key(Queue(group, topic, queue_id), handle.start_offset, handle.pop_time)


def _illegal_queue(queue_id: int, config: TopicConfig) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] topicConfig.readQueueNums:"
        f"[{config.read_queue_nums}]"
    )
