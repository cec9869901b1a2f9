"""Pulls: 11, and 361 which is the same for lite pull consumers.

The body of an answer is the stored bytes. The broker filters tags by their hash, and clients compare the tags
themselves; SQL92 filters are evaluated here only.
A pull that finds nothing is held (long polling) if the client asked for that; a pull that needs the disk waits for a
thread. Each answer suggests which broker of the set to ask next: with ``slaveReadEnable`` a slave, for messages that
are too old to be in this broker's memory. A slave that has no message for a reader sends the reader back to the living
master. It does not correct the reader's offset, since the slave may only lag.
"""

from functools import partial

import trio

from skylark.broker.cold_reads import ColdReads
from skylark.broker.delivery.filters import Filters, check_property_filter
from skylark.broker.delivery.held_pulls import HeldPull, HeldPulls
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.offset_resets import OffsetResets
from skylark.broker.meta.pull_positions import record_pull
from skylark.broker.meta.table import refused_when_not_stored
from skylark.broker.meta.topics import FAQ, no_such_topic
from skylark.broker.observe.stats import GET_FROM_DISK, BrokerStats
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.filter import Filter
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.reader import GetResult, GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID, PERM_READ
from skylark.mqcommon.polling import poll_until
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, failure
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.clients import TAG
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.pulls import (
    LITE_PULL_MESSAGE,
    PULL_COMMIT_OFFSET,
    PULL_MESSAGE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PULL_UNWRAPS,
    PullMessageRequestHeader,
)

# RocketMQ's limits suit clients that ask for 32 messages; a Skylark client gets as many as it asks for, up to these.
SKYLARK_MAX_COUNT = 16_384
SKYLARK_MAX_BYTES = 4 * 1024 * 1024
STOP_TIMEOUT_S = 2.0
# This many answers to held pulls are sent in the turn in which their messages came, before the senders are answered.
# Each answer is a write to another connection, while the senders wait; further answers are sent later, by the writers
# of their connections.
SENT_AT_ONCE = 8
# V5_0_0, the first version of RocketMQ's client that takes inner batches apart.
JAVA_5_0_0 = 413

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


@lazy_dataclass(frozen=True, slots=True)
class PullWaits:
    """The places where a pull waits that cannot be answered at once: for messages, or for the disk."""

    messages: HeldPulls
    disk: ColdReads


@lazy_dataclass(frozen=True, slots=True)
class Consumers:
    """The knowledge about consumers: heartbeats, filters, and the offsets that administrators have set for them."""

    clients: Clients
    filters: Filters
    resets: OffsetResets


class PullHandlers(Part):
    """Answers pulls. A held pull is answered when its queue gets a message (`after_turn`), or at its deadline."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        consumers: Consumers,
        waits: PullWaits,
        advice: "ReadAdvice",
        stats: BrokerStats,
        options: BrokerOptions,
    ) -> None:
        self._store = store
        self._topics = metadata.topics
        self._groups = metadata.groups
        self._offsets = metadata.consumer_offsets
        self._clients = consumers.clients
        self._filters = consumers.filters
        self._resets = consumers.resets
        self._held = waits.messages
        self._cold = waits.disk
        self._advice = advice
        self._role = advice.role
        self._stats = stats
        self._options = options
        # One object for all held pulls.
        self._retry_held = self._retry
        # How many answers to held pulls may still leave in this turn.
        self._sent_at_once = 0

    def handlers(self) -> dict[int, Handler]:
        return {PULL_MESSAGE.code: self.pull, LITE_PULL_MESSAGE.code: self.pull}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer held pulls at their deadlines, until cancelled."""
        task_status.started()
        await self._held.run()

    async def stop(self) -> None:
        """Answer all held pulls; returns when all are answered, or after a timeout."""
        self._held.release()
        await poll_until(lambda: not self._held, STOP_TIMEOUT_S)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the held pulls of the channel."""
        self._held.drop(channel)

    def after_turn(self) -> None:
        """Answer held pulls for which messages have come."""
        store = self._store
        if store.arrived:
            arrived = list(store.arrived)
            store.arrived.clear()
            self._sent_at_once = SENT_AT_ONCE
            try:
                self._held.arrived(arrived)
            finally:
                self._sent_at_once = 0

    def pull(self, channel: Channel, request: Command) -> Command | None:
        """11 and 361: read messages, or hold the pull."""
        header = PULL_MESSAGE.header(request)
        topic, queue_id, offset = header.topic, header.queue_id, header.queue_offset
        group = self._check(header.consumer_group, topic, queue_id, channel)
        wanted = self._filter(header)
        max_count, max_bytes = self._limits(request, header.max_msg_nums, header.max_msg_bytes or 0)
        # An offset that an administrator has set overrides the consumer's, and is sent to the consumer once. Until then
        # the consumer's own commits must not overwrite it.
        moved = self._resets.pop(channel, group.group_name, topic, queue_id) if self._resets.pending else None
        if moved is not None:
            if moved != offset:
                return self._moved(request, topic, queue_id, moved)
        elif header.sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0 and self._takes_commit(header):
            self._offsets.commit(group.group_name, topic, queue_id, header.commit_offset)
        suspend_ms = header.suspend_timeout_millis if header.sys_flag & PULL_SUSPEND else 0
        pull = HeldPull(
            channel,
            request,
            group,
            (topic, queue_id),
            offset,
            wanted,
            max_count,
            max_bytes,
            _unwraps(request, header.sys_flag),
            suspend_ms,
            self._retry_held,
        )
        attempt = partial(self._answer_or_hold, pull)
        return self._cold.handle(channel, request, attempt, partial(attempt, waited_for_disk=True))

    def _takes_commit(self, header: PullMessageRequestHeader) -> bool:
        """Whether the commit in a pull is stored here; as with 15, an offset past the end of the queue is not."""
        role = self._role.now
        if not role.is_master:
            return role.takes_commits
        return header.commit_offset <= self._store.max_offset(header.topic, header.queue_id)

    def _answer_or_hold(self, pull: HeldPull, waited_for_disk: bool = False) -> Command | None:
        """The answer to ``pull``; None if it waits for messages. Called again after each wait for the disk."""
        request, (topic, queue_id), group = pull.request, pull.queue, pull.group.group_name
        count, size = pull.max_count, pull.max_bytes
        if waited_for_disk and request.codec != CBOR:
            # Skylark's clients get all messages that they asked for: these are in memory now.
            count = min(count, self._options.max_transfer_count_on_message_in_disk)
            size = min(size, self._options.max_transfer_bytes_on_message_in_disk)
        queue = self._store.queues.find(topic, queue_id)
        result = read_queue(
            self._store.log, queue, pull.offset, count, size, pull.wanted, self._store.confirmed, unwraps=pull.unwraps
        )
        code, suggested = self._advice.judge(result, queue, pull)
        # `code` is a slave's judgement, too: if the living master has more messages, the consumer is sent to the master
        # and not held here.
        if code == ResponseCode.PULL_NOT_FOUND and pull.suspend_ms > 0:
            options = self._options
            wait_ms = pull.suspend_ms if options.long_polling_enable else options.short_polling_time_mills
            pull.deadline = trio.current_time() + wait_ms / 1000
            # The answer does not need body and fields, and a subscription may be long.
            request.body, request.ext = b"", None
            if self._held.hold(pull, queue):
                return None
        if waited_for_disk and result.count:
            self._stats.count(GET_FROM_DISK, group, topic, result.count, len(result.records))
        return self._answer(pull, code, suggested, result)

    def _check(self, group: str, topic: str, queue_id: int, channel: Channel) -> SubscriptionGroupConfig:
        if not self._options.broker_permission & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "the broker pulling message is forbidden")
        with refused_when_not_stored():
            config = self._groups.get_or_create(group)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist, {FAQ.strip()}"
            )
        if not config.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        if not config.consume_broadcast_enable and self._broadcasts(group):
            text = f"the consumer group[{group}] can not consume by broadcast way"
            raise RequestRefused(ResponseCode.NO_PERMISSION, text)
        topic_config = self._topics.get(topic)
        if topic_config is None:
            raise no_such_topic(topic)
        if not topic_config.perm & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < topic_config.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{topic_config.read_queue_nums}] consumer:[{channel.remote}]",
            )
        return config

    def _broadcasts(self, group: str) -> bool:
        members = self._clients.consumer_group(group)
        return members is not None and members.message_model == "BROADCASTING"

    def _moved(self, request: Command, topic: str, queue_id: int, offset: int) -> Command:
        """The answer that moves a consumer to an offset that an administrator has set."""
        fields = {
            "suggestWhichBrokerId": MASTER_ID,
            "nextBeginOffset": offset,
            "maxOffset": self._store.visible_end(topic, queue_id),
            "minOffset": self._store.shown_min_offset(topic, queue_id),
        }
        if (created_ms := self._topics.created_ms(topic)) is not None:
            fields["topicCreatedMs"] = created_ms
        return request.respond(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fields)

    def _filter(self, header: PullMessageRequestHeader) -> Filter:
        """The consumer's filter: from the request, else from the group's heartbeats."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            if header.expression_type not in (None, "", TAG):
                return self._by_properties(header.subscription or "", header.expression_type)
            return self._filters.of(header.subscription or "")
        subscription = self._clients.subscription(header.consumer_group, header.topic)
        if subscription is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.sub_version < header.sub_version:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if not subscription.is_tag:
            try:
                return self._by_properties(subscription.sub_string, subscription.expression_type)
            except RequestRefused as refused:
                if refused.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                    raise
                text = f"The broker's consumer filter data is not exist!Your expression may be wrong! {refused.remark}"
                raise RequestRefused(ResponseCode.FILTER_DATA_NOT_EXIST, text) from None
        return self._filters.of(subscription.sub_string)

    def _by_properties(self, expression: str, expression_type: str) -> Filter:
        check_property_filter(self._options, expression_type)
        return self._filters.of_type(expression, expression_type)

    def _limits(self, request: Command, max_count: int, max_bytes: int) -> tuple[int, int]:
        if request.codec == CBOR:
            return min(max_count, SKYLARK_MAX_COUNT), min(max_bytes or SKYLARK_MAX_BYTES, SKYLARK_MAX_BYTES)
        options = self._options
        bytes_limit = options.max_transfer_bytes_on_message_in_memory
        count_limit = options.max_transfer_count_on_message_in_memory
        return min(max_count, count_limit), min(max_bytes or bytes_limit, bytes_limit)

    def _retry(self, pull: HeldPull, last: bool) -> bool:
        # This runs in the turn of the message's sender: an error here must not reach the sender's connection.
        try:
            return self._again(pull, last)
        except Exception as error:
            pull.channel.reply(pull.request, failure(pull.request, error))
            return True

    def _again(self, pull: HeldPull, last: bool) -> bool:
        queue = self._store.queues.find(*pull.queue)
        result = read_queue(
            self._store.log,
            queue,
            pull.offset,
            pull.max_count,
            pull.max_bytes,
            pull.wanted,
            self._store.confirmed,
            unwraps=pull.unwraps,
        )
        if not last and result.status is GetStatus.NO_MATCHED_MESSAGE and result.next_offset >= result.max_offset:
            # No message up to here is for this consumer: these messages need not be checked again.
            pull.offset = result.next_offset
            return False
        code, suggested = self._advice.judge(result, queue, pull)
        if not last and code == ResponseCode.PULL_NOT_FOUND:
            return False
        answer, is_at_once = self._answer(pull, code, suggested, result), self._sent_at_once > 0
        pull.channel.reply(pull.request, answer, wake=not is_at_once)
        if is_at_once:
            self._sent_at_once -= 1
            pull.channel.flush_now()
        return True

    def _answer(self, pull: HeldPull, code: int, suggested: int, result: GetResult) -> Command:
        group, (topic, queue_id) = pull.group.group_name, pull.queue
        record_pull(pull.channel, group, topic, queue_id, result.next_offset)
        if result.count:
            self._stats.get(group, topic, result.count, len(result.records))
        else:
            self._stats.miss()
        fields = {
            "suggestWhichBrokerId": suggested,
            "nextBeginOffset": result.next_offset,
            "maxOffset": result.max_offset,
            "minOffset": (
                result.min_offset if self._store.log.older is None else self._store.shown_min_offset(topic, queue_id)
            ),
        }
        # The stamp shows a reader whether the topic was deleted and made again since its last pull.
        if (created_ms := self._topics.created_ms(topic)) is not None:
            fields["topicCreatedMs"] = created_ms
        return pull.request.respond(code, result.status.value, fields, result.records)


class ReadAdvice:
    """The code of a pull's answer, and which broker of the set the reader should ask next.

    Messages more than ``in_memory_bytes`` before the log's end count as on disk. ``known_master``: whether a slave's
    master is alive.
    """

    def __init__(
        self,
        store: MessageStore,
        options: BrokerOptions,
        role: RoleMachine,
        known_master: KnownMaster,
        in_memory_bytes: int,
    ) -> None:
        self._store = store
        self._options = options
        self.role = role
        self._known_master = known_master
        self._in_memory_bytes = in_memory_bytes

    def judge(self, result: GetResult, queue: ConsumeQueue | None, pull: HeldPull) -> tuple[int, int]:
        """(the code of the answer, the id of the broker to ask next); a slave leaves ``next_offset`` as it was."""
        options, offset, group = self._options, pull.offset, pull.group
        code, suggested, is_slow = _code(result, offset), MASTER_ID, False
        if options.slave_read_enable:
            is_slow = self._is_on_disk(result, queue)
            suggested = group.which_broker_when_consume_slowly if is_slow else group.broker_id
        # The rest is for a slave: it may lag behind its master, so an offset that is wrong here may be right there.
        if not self.role.now.follows:
            return code, suggested
        if code == ResponseCode.PULL_OFFSET_MOVED and not options.offset_check_in_slave:
            result.next_offset = offset
            code = ResponseCode.PULL_NOT_FOUND
        if self._known_master.is_reachable and not is_slow and suggested != self.role.now.broker_id:
            suggested = MASTER_ID
            if code == ResponseCode.PULL_NOT_FOUND:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, suggested

    def _is_on_disk(self, result: GetResult, queue: ConsumeQueue | None) -> bool:
        """Whether the messages read are too old to be still in memory."""
        log = self._store.log
        if queue is None or log.end - log.start <= self._in_memory_bytes:
            return False
        if not result.min_offset < result.next_offset:
            return False
        if result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
            return False
        if result.next_offset <= queue.min_offset:
            return True  # in the bucket
        physical, _, _ = queue.entry(result.next_offset - 1)
        return log.end - physical > self._in_memory_bytes


def _unwraps(request: Command, sys_flag: int) -> bool:
    """Whether the client takes inner batches apart. Other clients get a record for each message of a batch."""
    if sys_flag & PULL_UNWRAPS:
        return True
    return request.language == "JAVA" and request.version >= JAVA_5_0_0


def _code(result: GetResult, offset: int) -> int:
    if result.status is GetStatus.NO_MESSAGE_IN_QUEUE:
        # A consumer at the end of the (empty) queue waits; at any other offset it is sent to the queue's end.
        return ResponseCode.PULL_NOT_FOUND if offset == result.next_offset else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[result.status]
