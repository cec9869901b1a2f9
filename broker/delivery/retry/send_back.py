"""Request 36: a consumer gives back a message that it could not handle.

The broker reads the message at its physical offset, and stores a copy for the group's retry topic (in a delay level) or
for its dead letter topic. The consumer is answered when the copy is safe, so it may commit the offset of the message.
Checks, codes and texts are RocketMQ's. A slave refuses the request (replication/set_requests.py).
Neighbours: messages.py, resent.py; delivery/delay/ delivers from the levels.
"""

import logging
import random
from collections.abc import Callable

import trio

from broker.delivery.delay.waiting import to_level
from broker.delivery.retry.messages import given_back, named
from broker.meta.groups import Groups
from broker.meta.topics import FAQ, Topics
from broker.observe.stats import DEAD_LETTER, SEND_BACK, BrokerStats
from broker.options import BrokerOptions
from broker.part import Part, TopicCheck
from broker.store.queue.delay_levels import DelayLevels
from broker.store.store import MessageStore
from broker.writing.durability import Durability
from broker.writing.refusals import no_space
from broker.writing.writer import Writer
from mqcommon.errors import DiskFull, ProtocolError, RequestRefused
from mqcommon.message.flags import WRAPPED
from mqcommon.message.inner import inner_records
from mqcommon.message.properties import find_property
from mqcommon.message.record import Record, decode_record
from mqcommon.names import PERM_WRITE, dlq_topic, retry_topic
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader
from remoting.protocol.requests.groups import GroupRetryPolicy, SubscriptionGroupConfig
from remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)


FIRST_LEVEL = 3
# Java's limit for the exponent, so that the delay stays a number of 64 bits.
_MAX_EXPONENT = 32


def next_level(
    delay_level: int, reconsume_times: int, max_times: int, policy: GroupRetryPolicy, levels: DelayLevels
) -> int | None:
    """The level in which the message waits; None for a dead letter.

    RocketMQ's rules: after ``max_times`` further deliveries, or with a negative delay level, it is a dead letter.
    A positive level is taken as it is. With level 0 the broker chooses: 3 + the number of further deliveries so far,
    that is 10s, 30s, 1m, 2m ... 2h. A group with a retry policy of its own gets the shortest level that is not shorter
    than the policy's delay. (RocketMQ uses these policies for clients of its proxy only.)

    ``reconsume_times``: how many times it was delivered again so far.
    """
    if delay_level < 0 or reconsume_times >= max_times:
        return None
    if delay_level > 0:
        return min(delay_level, levels.highest)
    delay_ms = policy_delay_ms(policy, reconsume_times)
    if delay_ms is None:
        return min(FIRST_LEVEL + reconsume_times, levels.highest)
    return levels.level_of(delay_ms)


def policy_delay_ms(policy: GroupRetryPolicy, reconsume_times: int) -> int | None:
    """The delay that the group's own policy wants; None when it has none."""
    if policy.type == "EXPONENTIAL":
        exponential = policy.exponential_retry_policy
        if exponential is None:
            return None
        exponent = min(max(reconsume_times, 0), _MAX_EXPONENT)
        grown: int = exponential.initial * exponential.multiplier**exponent
        return max(min(exponential.max, grown), 0)
    if policy.customized_retry_policy is None or not policy.customized_retry_policy.next:
        return None
    delays = policy.customized_retry_policy.next
    # As in Java, where the list begins with two delays that only its proxy uses.
    return max(delays[min(max(reconsume_times, 0) + 2, len(delays) - 1)], 0)


class SendBack(Part):
    """See the module."""

    # The message may be old.
    reads_disk = (CONSUMER_SEND_MSG_BACK.code,)

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        durability: Durability,
        topics: Topics,
        groups: Groups,
        options: BrokerOptions,
        stats: BrokerStats,
        turned: Callable[[], None],
        may_consume: TopicCheck = lambda channel, request, topic: None,
    ) -> None:
        """``turned`` is called when a message was stored, as that may be outside of a turn."""
        self._store = store
        self._writer = writer
        self._durability = durability
        self._topics = topics
        self._groups = groups
        self._options = options
        self._stats = stats
        self._levels = options.delay_levels
        self._to_level = to_level(self._levels)
        self._turned = turned
        self._may_consume = may_consume

    def handlers(self) -> dict[int, Handler]:
        return {CONSUMER_SEND_MSG_BACK.code: self.give_back}

    def give_back(self, channel: Channel, request: Command) -> Command | None:
        """36. Reads before it changes anything, since it runs again when the message was on disk only."""
        header = CONSUMER_SEND_MSG_BACK.header(request)
        group = known_group(self._groups, header.group)
        if not self._options.broker_permission & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._options.broker_ip1}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return request.respond()  # the group wants no second delivery
        record = self._find(header.offset)
        if record.sys_flag & WRAPPED == WRAPPED:
            record = _in_batch(record, header.origin_msg_id)
        # Otherwise a consumer could have any message copied to its own group.
        self._may_consume(channel, request, record.topic)
        self._writer.admit(b"")
        return self._store_copy(channel, request, header, group, record)

    def _find(self, offset: int) -> Record:
        raw = self._store.record_at(offset)
        try:
            if raw is not None:
                return decode_record(raw)
        except ProtocolError as error:
            logger.error("message at offset %d was given back, and cannot be read: %s", offset, error)
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")

    def _store_copy(
        self,
        channel: Channel,
        request: Command,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        record: Record,
    ) -> Command | None:
        times = header.max_reconsume_times
        max_times = group.retry_max_times if times is None or times < 0 else times
        level = next_level(
            header.delay_level, record.reconsume_times, max_times, group.group_retry_policy, self._levels
        )
        config = self._retry_topic(header, group) if level is not None else made_dlq_topic(self._topics, header.group)
        message = given_back(record, config.topic_name, random.randrange(max(config.write_queue_nums, 1)), level)
        put = self._writer.put_again(self._to_level(message))
        self._stats.count(SEND_BACK, header.group, record.topic, 1, 0)
        if level is None:
            self._stats.count(DEAD_LETTER, header.group, record.topic, 1, 0)
            logger.warning(
                "message %s became a dead letter of group %s: given back %d times",
                named(record), header.group, record.reconsume_times + 1,
            )  # fmt: skip
        response = request.respond()
        if not self._durability.waits or request.is_oneway:
            self._turned()
            return response

        def done(code: int) -> None:
            if code != ResponseCode.SUCCESS:
                # The consumer sends the message to the retry topic then, so that one copy at least is safe.
                response.code = ResponseCode.SYSTEM_ERROR
                response.remark = f"the message was stored, but not safely in time: code {code}"
            channel.reply(request, response)

        self._durability.when_safe(put.end, trio.current_time(), done)
        self._turned()
        return None

    def _retry_topic(self, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig) -> TopicConfig:
        name = retry_topic(header.group)
        unit_flag = 2 if header.unit_mode else 0
        try:
            config = self._topics.create_retry_topic(header.group, group.retry_queue_nums, unit_flag)
        except DiskFull as error:
            raise no_space(error) from None
        return writable(config, name)


def _in_batch(batch: Record, msg_id: str | None) -> Record:
    """The message of an inner batch that has this unique key: all of them have the same place in the log."""
    key = (msg_id or "").encode()
    try:
        found = [each for each in inner_records(batch) if key and find_property(each.properties, b"UNIQ_KEY") == key]
    except ProtocolError as error:
        logger.error("a message of the batch at offset %d was given back: %s", batch.physical_offset, error)
        found = []
    if len(found) != 1:
        text = f"the record at {batch.physical_offset} holds a batch, without one message {msg_id}: send a copy of it"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
    return found[0]


def known_group(groups: Groups, name: str) -> SubscriptionGroupConfig:
    """The group, created where that is allowed; RequestRefused otherwise."""
    group = groups.get_or_create(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ.strip()}"
        )
    return group


def made_dlq_topic(topics: Topics, group: str) -> TopicConfig:
    """The dead letter topic of the group, created on first need; RequestRefused when that is not possible."""
    try:
        config = topics.create_dlq_topic(group)
    except DiskFull as error:
        raise no_space(error) from None
    return writable(config, dlq_topic(group))


def writable(config: TopicConfig | None, name: str) -> TopicConfig:
    """``config`` of the topic ``name``; RequestRefused when there is none, or it takes no messages."""
    if config is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
    if not config.perm & PERM_WRITE:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
    return config
