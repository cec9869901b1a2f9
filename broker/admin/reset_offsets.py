"""Offsets of groups set by administrators: to a time or a number (222), or to the offsets of another group (314).

With ``useServerSideResetOffset`` this broker moves the group itself (meta/offset_resets.py). Without, as before 5.x,
it asks the group's clients with 220 to reset themselves, and sets the offsets only if no client is connected.
"""

import logging
from collections.abc import Mapping
from functools import partial

from skylark.broker.cold_reads import reading
from skylark.broker.meta.clients import Clients, Member
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.offset_resets import OffsetResets
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import FrameTooLarge, RequestRefused
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import check_group, check_topic, retry_topic
from skylark.remoting.net.answers import answer_steps
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.steps import StepHandler, Steps
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import Dialect, encode_body
from skylark.remoting.protocol.requests.clients import RESET_CONSUMER_CLIENT_OFFSET
from skylark.remoting.protocol.requests.offsets import (
    CLONE_GROUP_OFFSET,
    INVOKE_BROKER_TO_RESET_OFFSET,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    ResetOffsetRequestHeader,
)
from skylark.remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)

# V3_0_7_SNAPSHOT: older clients do not know the request.
OLDEST_RESET_VERSION = 28
# Queues in one step: each costs about 20 µs.
QUEUES = 100
# The timestamp that means the end of each queue.
END_OF_QUEUE = -1
# A timestamp at most this old means "now": a command reads its clock before it sends the request.
NOW_MS = 10_000


class ResetOffsetHandlers(Part):
    """Resets a group's offsets (222), and copies them from another group (314)."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        clients: Clients,
        resets: OffsetResets,
        options: BrokerOptions,
    ) -> None:
        self._store = store
        self._topics = metadata.topics
        self._groups = metadata.groups
        self._offsets = metadata.consumer_offsets
        self._clients = clients
        self._resets = resets
        self._options = options

    def step_handlers(self) -> dict[int, StepHandler]:
        return {
            INVOKE_BROKER_TO_RESET_OFFSET.code: self.reset,
            CLONE_GROUP_OFFSET.code: self.clone,
        }

    def reset(self, channel: Channel, request: Command) -> Steps[Command]:
        """222: reset a group's offsets. The answer lists all offsets, also the unchanged ones.

        An offset is unchanged where the group may not skip messages.
        """
        header = INVOKE_BROKER_TO_RESET_OFFSET.header(request)
        self._check_group(header.group)
        config = self._topic(header.topic)
        queue_ids = _queues(header, config)
        # Find all targets before the first offset is set: the search may wait for the disk, or be refused.
        targets: dict[int, int] = {}
        for number, queue_id in enumerate(queue_ids, 1):
            if number % QUEUES == 0:
                yield None
            targets[queue_id] = yield from self._target(header, queue_id)
        members = self._clients.consumer_group(header.group)
        if self._options.use_server_side_reset_offset or members is None:
            for number, (queue_id, offset) in enumerate(targets.items(), 1):
                if number % QUEUES == 0:
                    yield None
                self._resets.set(header.group, header.topic, queue_id, offset)
        else:
            self._send_reset(list(members.members.values()), header, targets)
        logger.info(
            "%s reset the offsets of group %s in %d queues of topic %s",
            channel.remote,
            header.group,
            len(targets),
            header.topic,
        )
        body = ResetOffsetBody(self._by_queue(header.topic, targets))
        return (yield from answer_steps(INVOKE_BROKER_TO_RESET_OFFSET, request, body, channel.max_frame_bytes))

    def clone(self, channel: Channel, request: Command) -> Steps[Command]:
        """314: copy the offsets of ``src_group`` in one topic, or in all its topics except its own retry topic."""
        header = CLONE_GROUP_OFFSET.header(request)
        source, target, topic = header.src_group, header.dest_group, (header.topic or "").strip()
        self._check_group(source)
        self._check_group(target)
        if source == target:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "srcGroup and destGroup are the same")
        if topic:
            self._topic(topic)
            wanted = [topic]
        else:
            consumed = yield from self._offsets.topics_of(source)
            wanted = [one for one in consumed if one != retry_topic(source) and self._topics.get(one) is not None]
        done = 0
        for one in wanted:
            # The group has members, but none of them reads this topic any more: its offsets there are outdated.
            if not header.offline and self._clients.has_left(source, one):
                continue
            for queue_id, offset in list(self._offsets.queues_of(source, one).items()):
                self._resets.set(target, one, queue_id, offset)
                done += 1
                if done % QUEUES == 0:
                    yield None
        if topic and not done:
            text = f"The consumer group <{source}> has no offsets in topic {topic} to clone"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        logger.info("%s cloned %d offsets of group %s for group %s", channel.remote, done, source, target)
        return request.respond()

    def _check_group(self, group: str) -> None:
        check_group(group)
        if self._groups.get(group) is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")

    def _topic(self, topic: str) -> TopicConfig:
        check_topic(topic)
        config = self._topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        return config

    def _target(self, header: ResetOffsetRequestHeader, queue_id: int) -> Steps[int]:
        """The offset for a queue. Raises RequestRefused when the requested offset is not in the queue."""
        topic = header.topic
        first = yield from reading(partial(self._store.min_offset, topic, queue_id))
        end = self._store.visible_end(topic, queue_id)
        if header.offset is not None and header.offset >= 0:
            target = header.offset
            if not first <= target <= end:
                text = f"Target offset {target} not in consume queue range [{first}-{end}]"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        elif header.timestamp == END_OF_QUEUE or self._is_now(header.timestamp):
            target = end
        else:
            by_time = partial(self._store.offset_by_time, topic, queue_id, header.timestamp)
            target = max((yield from reading(by_time)), 0)
        committed = self._offsets.query(header.group, topic, queue_id)
        return committed if not header.is_force and 0 <= committed < target else target

    def _is_now(self, timestamp_ms: int) -> bool:
        """Whether a time means "now" where a search by time would go back to older messages.

        While the clock is behind the store times, the messages that are stored now have times in the future.
        """
        return self._store.ahead_ms > 0 and timestamp_ms >= self._store.now_ms - NOW_MS

    def _send_reset(self, members: list[Member], header: ResetOffsetRequestHeader, targets: Mapping[int, int]) -> None:
        """Send 220 to each member."""
        # Check all members before anything is sent: if only some of them understood the request, the group would share
        # its queues with two sets of offsets.
        for member in members:
            if member.version < OLDEST_RESET_VERSION:
                text = f"the client {member.client_id} does not support this feature. version={member.version}"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        offsets = self._by_queue(header.topic, targets)
        for_c = encode_body(ResetOffsetBodyForC(list(offsets.items())), Dialect.FASTJSON)
        for_others = encode_body(ResetOffsetBody(offsets), Dialect.FASTJSON)
        for member in members:
            told = RESET_CONSUMER_CLIENT_OFFSET.oneway(
                ResetOffsetRequestHeader(header.group, header.topic, header.timestamp, header.is_force)
            )
            told.body = for_c if member.language == "CPP" else for_others
            try:
                member.channel.push(told)
            except FrameTooLarge as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"too many queues for one request: {error}") from None

    def _by_queue(self, topic: str, targets: Mapping[int, int]) -> dict[MessageQueue, int]:
        name = self._options.broker_name
        return {MessageQueue(topic, name, queue_id): offset for queue_id, offset in targets.items()}


def _queues(header: ResetOffsetRequestHeader, config: TopicConfig) -> range:
    """The queues to reset. Raises RequestRefused when the fields of the request contradict each other."""
    if header.timestamp < END_OF_QUEUE:
        text = f"timestamp {header.timestamp} is neither ms since 1970 nor -1, the end of the queues"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
    if header.queue_id is None or header.queue_id < 0:
        if header.offset is not None and header.offset >= 0:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "an offset is for one queue: queueId is missing")
        if not config.read_queue_nums:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        return range(config.read_queue_nums)
    if header.queue_id >= config.read_queue_nums:
        text = f"queueId[{header.queue_id}] is illegal, the topic has {config.read_queue_nums} queues to read"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
    return range(header.queue_id, header.queue_id + 1)
