"""Messages that consumers could not handle: they are delivered again later, and finally become dead letters.

Request 36: the broker reads the message at its physical offset, and stores a copy for the group's retry topic (in a
delay level) or for its dead letter topic. The consumer is answered when the copy is safe, so it may commit the offset
of the message. Checks, codes and texts are RocketMQ's. A slave refuses the request (replication/set_requests.py).
Neighbours: writing/deferred.py and delayed_delivery.py (delay levels), pop/copies.py (popped messages that come back).
"""

import logging
import random
from collections.abc import Callable

import trio

from skylark.broker.meta.groups import Groups
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.topics import FAQ, Topics
from skylark.broker.observe.stats import DEAD_LETTER, SEND_BACK, BrokerStats
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part, TopicCheck
from skylark.broker.store.queue.delay_levels import DelayLevels
from skylark.broker.store.store import MessageStore, PutResult
from skylark.broker.writing.refusals import no_space
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.errors import DiskFull, ProtocolError, RequestRefused
from skylark.mqcommon.message.failure import FailureNote
from skylark.mqcommon.message.flags import TRANSACTION_MASK, WRAPPED
from skylark.mqcommon.message.ids import offset_msg_id
from skylark.mqcommon.message.inner import inner_records
from skylark.mqcommon.message.layout import MAX_PROPERTIES
from skylark.mqcommon.message.properties import POP_HANDLE, find_property, replace_properties
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import PERM_WRITE, RETRY_PREFIX, dlq_topic, retry_topic
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader
from skylark.remoting.protocol.requests.groups import GroupRetryPolicy, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig

_DELAY, _RETRY_TOPIC, _ORIGIN_ID = b"DELAY", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"
_DLQ_TOPIC, _DLQ_ID = b"DLQ_ORIGIN_TOPIC", b"DLQ_ORIGIN_MESSAGE_ID"
_UNIQUE_KEY = b"UNIQ_KEY"
# The most bytes of the properties that the broker adds on the way to the retry topic.
_OWN_PROPERTIES = 2_000


def given_back(
    record: Record, topic: str, queue_id: int, level: int | None, note: FailureNote | None = None
) -> Incoming:
    """The copy of ``record`` for the retry topic, delivered after ``level``; with None for the dead letter topic.

    The copy keeps body, keys, tags and user properties, so consumers filter it as before. RETRY_TOPIC names the topic
    to which the message was sent, ORIGIN_MESSAGE_ID the message that was consumed first; both stay the same at each
    further try.
    """
    properties = record.properties
    origin = find_property(properties, _RETRY_TOPIC) or record.topic.encode()
    first_id = find_property(properties, _ORIGIN_ID)
    if not first_id:
        first_id = offset_msg_id(record.store_host, record.physical_offset).encode()
    values: dict[bytes, bytes | None] = {_RETRY_TOPIC: origin, _ORIGIN_ID: first_id}
    if level is None:
        values |= {_DELAY: None, _DLQ_TOPIC: origin, _DLQ_ID: first_id}
    else:
        values[_DELAY] = b"%d" % level
    replaced = replace_properties(properties, values)
    if note is not None:
        noted = replace_properties(replaced, _encoded(note))
        # If there is no room for the note, leave the note out: a refused message would come back for ever.
        replaced = noted if len(noted) <= MAX_PROPERTIES - _OWN_PROPERTIES else replaced
    message = Incoming.of(record, topic, queue_id, replaced)
    message.sys_flag &= ~TRANSACTION_MASK
    message.reconsume_times += 1
    return message


def put_copy(writer: Writer, message: Incoming, record: Record) -> PutResult:
    """Store ``message``, the copy of ``record``; without the properties about its origin if they do not fit.

    RequestRefused when the message is too large without these properties, too.
    """
    try:
        return writer.put_again(message)
    except RequestRefused as error:
        if error.code != ResponseCode.MESSAGE_ILLEGAL:
            raise
    # Use the stored properties without the handle and the delay, which belong to one delivery.
    message.properties = replace_properties(record.properties, {POP_HANDLE.encode(): None, _DELAY: None})
    return writer.put_again(message, is_complete=True)


def _encoded(note: FailureNote) -> dict[bytes, bytes | None]:
    return {name.encode(): value.encode() for name, value in note.properties().items()}


def _note_of(header: ConsumerSendMsgBackRequestHeader) -> FailureNote | None:
    if not header.fail_reason:
        return None
    return FailureNote(header.fail_reason, header.fail_client or "", header.fail_time or 0)


def described(record: Record) -> str:
    """A text about ``record`` for the log: the message id that clients log, and the topic that it was sent to."""
    key = find_property(record.properties, _UNIQUE_KEY)
    message_id = key.decode(errors="replace") if key else offset_msg_id(record.store_host, record.physical_offset)
    origin = find_property(record.properties, _RETRY_TOPIC)
    return f"{message_id} of {origin.decode(errors='replace') if origin else record.topic}"


logger = logging.getLogger(__name__)


FIRST_LEVEL = 3
# Java's limit for the exponent, so that the delay stays a number of 64 bits.
_MAX_EXPONENT = 32


def next_level(
    delay_level: int, reconsume_times: int, max_times: int, policy: GroupRetryPolicy, levels: DelayLevels
) -> int | None:
    """The level in which the message waits; None for a dead letter.

    RocketMQ's rules: after ``max_times`` further deliveries, or with a negative delay level, it is a dead letter.
    A positive level is used as it is. With level 0 the broker chooses: 3 + the number of further deliveries so far,
    that is 10s, 30s, 1m, 2m ... 2h. A group with its own retry policy gets the shortest level that is not shorter than
    the policy's delay. (RocketMQ uses these policies only for clients of its proxy.)

    ``reconsume_times``: how many times the message was delivered again so far.
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
    """The delay of the group's own policy; None when the group has no policy."""
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
    # The offset 2 is Java's: there the list begins with two delays that only the proxy uses.
    return max(delays[min(max(reconsume_times, 0) + 2, len(delays) - 1)], 0)


class SendBack(Part):
    """Handles 36, with which consumers send messages back."""

    # The message may be old.
    reads_disk = (CONSUMER_SEND_MSG_BACK.code,)

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        metadata: Metadata,
        options: BrokerOptions,
        stats: BrokerStats,
        turned: Callable[[], None],
        may_consume: TopicCheck = lambda channel, request, topic: None,
    ) -> None:
        """``turned`` is called when a message was stored, which may happen outside of a turn."""
        self._store = store
        self._writer = writer
        self._durability = writer.durability
        self._topics = metadata.topics
        self._groups = metadata.groups
        self._options = options
        self._stats = stats
        self._levels = options.delay_levels
        self._deferral = writer.deferral
        self._turned = turned
        self._may_consume = may_consume

    def handlers(self) -> dict[int, Handler]:
        return {CONSUMER_SEND_MSG_BACK.code: self.give_back}

    def give_back(self, channel: Channel, request: Command) -> Command | None:
        """36: store a copy of a message. Reads before any change: it runs again if the message was only on disk."""
        header = CONSUMER_SEND_MSG_BACK.header(request)
        group = known_group(self._groups, header.group)
        if not self._topics.registered_perm & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._options.broker_ip1}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return request.respond()  # the group wants no second delivery
        # If the message is only on disk, the handler stops here and runs again, so nothing may be changed before.
        record = self._find(header.offset)
        if record.sys_flag & WRAPPED == WRAPPED:
            record = _in_batch(record, header.origin_msg_id)
        if self._topics.static.get(header.origin_topic or "") is not None:
            _check_meant(record, header.origin_msg_id, header.offset)
        # Without this check a consumer could have any message copied to its own group.
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
        note = _note_of(header)
        try:
            put = self._put(header, group, record, level, note)
        except RequestRefused as error:
            if level is None or error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # If this were refused, the message would be given back for ever.
            logger.warning(
                "message %s cannot be delivered again to group %s, its properties leave no room for the properties of"
                " a further delivery",
                described(record),
                header.group,
            )
            level = None
            put = self._put(header, group, record, level, note)
        self._stats.count(SEND_BACK, header.group, record.topic, 1, 0)
        if level is None:
            self._stats.count(DEAD_LETTER, header.group, record.topic, 1, 0)
            logger.warning(
                "message %s became a dead letter of group %s: given back %d times%s",
                described(record),
                header.group,
                record.reconsume_times + 1,
                "" if note is None else f"; {note.line}",
            )
        answer = self._durability.answer_when_safe(
            channel, request, request.respond(), put.end, trio.current_time(), _explain_if_unsafe
        )
        self._turned()
        return answer

    def _put(
        self,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        record: Record,
        level: int | None,
        note: FailureNote | None,
    ) -> PutResult:
        config = self._retry_topic(header, group) if level is not None else made_dlq_topic(self._topics, header.group)
        message = given_back(record, config.topic_name, random.randrange(max(config.write_queue_nums, 1)), level, note)
        # The checks of `Writer.put` are skipped: the message passed them when it was sent, perhaps with higher limits.
        if level is None:
            return put_copy(self._writer, message, record)
        self._deferral.to_level(message)
        return self._writer.put_again(message)

    def _retry_topic(self, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig) -> TopicConfig:
        name = retry_topic(header.group)
        unit_flag = 2 if header.unit_mode else 0
        try:
            config = self._topics.create_retry_topic(header.group, group.retry_queue_nums, unit_flag)
        except DiskFull as error:
            raise no_space(error) from None
        return writable(config, name)


def _explain_if_unsafe(response: Command) -> None:
    if response.code != ResponseCode.SUCCESS:
        # After this error the consumer sends the message to the retry topic, so that at least one copy is safe.
        response.remark = f"the message was stored, but not safely in time: code {response.code}"
        response.code = ResponseCode.SYSTEM_ERROR


def _check_meant(record: Record, message_id: str | None, offset: int) -> None:
    """RequestRefused when the record is another message than the client means.

    This happens with a static topic, whose message may be in another broker's log. Clients identify a message by its
    unique key. After the refusal they send the message to the retry topic themselves.
    """
    key = find_property(record.properties, b"UNIQ_KEY")
    if key and message_id and message_id != key.decode():
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


def _in_batch(batch: Record, msg_id: str | None) -> Record:
    """The message of an inner batch with this unique key: all its messages have the same place in the log."""
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


class RetrySends:
    """Sends to retry topics: clients use them when request 36 fails, and for dead letters of orderly consumers.

    RocketMQ's rule: with more deliveries than ``maxReconsumeTimes`` of the send, else of the group, the message goes to
    the dead letter topic. While a member of the group holds a queue lock, every such message goes there: an orderly
    consumer retries in place, and sends a message to the retry topic only to give it up. writing/send_handlers.py calls
    this.
    """

    def __init__(self, groups: Groups, topics: Topics, is_ordered: Callable[[str], bool], stats: BrokerStats) -> None:
        self._stats = stats
        self._groups = groups
        self._topics = topics
        self._is_ordered = is_ordered

    def dead_letter_topic(self, topic: str, reconsume_times: int, max_times: int | None) -> TopicConfig | None:
        """The topic for a message that is sent to the retry topic ``topic``; None when it may go there.

        RequestRefused when the group does not exist.
        """
        name = topic.removeprefix(RETRY_PREFIX)
        group = known_group(self._groups, name)
        most = group.retry_max_times if max_times is None or max_times < 0 else max_times
        ordered = self._is_ordered(name)
        if reconsume_times <= most and not ordered:
            return None
        logger.warning(
            "a message of group %s became a dead letter after %d deliveries%s",
            name,
            reconsume_times,
            " to an orderly consumer" if ordered else "",
        )
        config = made_dlq_topic(self._topics, name)
        self._stats.count(DEAD_LETTER, name, topic, 1, 0)
        return config
