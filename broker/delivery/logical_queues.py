"""Requests for logical queues of RocketMQ's static topics, by the broker that leads them.

A request that names a logical queue is translated into a request for a queue of this broker, before a part handles it,
and its answer is translated back. For a stretch on another broker, the other broker is asked: this concerns pulls and
offsets of consumers that have not passed the last move. A request with ``lo=false`` names a queue of this broker,
whatever its topic is.
Differences to RocketMQ's brokers: a search by time finds the stretch that has the time; a commit in a pull is
translated, too; and a reader at the end of a stretch is not held there.
A group's offset is committed on the broker that has the stretch, as in RocketMQ. If a group goes back from a newer
stretch, its offset in the newer stretch is set to the start of that stretch, which counts as no offset.
The broker's handlers are wrapped when it gets its first static topic (wiring.py): brokers without one pay nothing.
Neighbours: remoting/protocol/logical_queues.py, meta/static_topics.py, registration/peers.py.
"""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import trio

from skylark.broker.cold_reads import from_disk
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.meta.metadata import Metadata
from skylark.broker.part import Part
from skylark.broker.registration.peers import Peers
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.reader import read_queue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.flags import TRANSACTION_PREPARED
from skylark.mqcommon.names import LATE_GROUP, LATE_TOPIC_PREFIX, MASTER_ID
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, RunInTask
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import BNAME_FIELD, Command
from skylark.remoting.protocol.logical_queues import LogicalQueue, led_by, own_end, to_logical, to_own
from skylark.remoting.protocol.request import AH, H, Request
from skylark.remoting.protocol.requests.offsets import (
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylark.remoting.protocol.requests.pulls import (
    LITE_PULL_MESSAGE,
    PULL_COMMIT_OFFSET,
    PULL_MESSAGE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
)
from skylark.remoting.protocol.requests.sends import (
    DEFERRED_BATCHES,
    LONG,
    SEND_BATCH_MESSAGE,
    SEND_MESSAGE,
    SEND_MESSAGE_V2,
    SHORT,
    SendFields,
)
from skylark.remoting.protocol.requests.shrinking import STORE_MOVED, StoreMovedRequestHeader
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem as Stretch
from skylark.remoting.protocol.requests.topics import TopicQueueMappingDetail
from skylark.remoting.protocol.scalars import read_int, read_long

logger = logging.getLogger(__name__)

#: The field of a request which says that the request names a queue of the broker.
LOGICAL_FIELD = "lo"
# How long a reader waits at the end of the readable messages while the next stretch is not decided.
MOVING_S = 1.0
# The most groups and queues whose first commit on the leading broker is remembered.
MAX_SEEN_ON_LEADER = 100_000
# The interval of two checks: for stretches whose messages have all expired, and for messages after a stretch's end.
CLEAN_S = 600.0
LATE_S = 1.0
# The most late messages that are sent at a time.
LATE_MESSAGES = 100
LATE_BYTES = 256 * 1024
# Where a stored record has its offset in the queue.
_QUEUE_OFFSET = slice(20, 28)

Translate = Callable[[Handler, Channel, Command, TopicQueueMappingDetail], Command | None]


class LogicalQueues(Part):
    """Translates requests for logical queues, and maintains the stretches that this broker leads."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        metadata: Metadata,
        clients: Clients,
        peers: Peers,
        role: RoleMachine,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = metadata.topics
        self._static = metadata.topics.static
        self._offsets = metadata.consumer_offsets
        self._clients = clients
        self._peers = peers
        self._role = role
        # Groups, topics and logical queues with a commit in the leading stretch that this broker has seen.
        self._seen_on_leader: set[tuple[str, str, int]] = set()
        # Queues with late messages that cannot be sent now; this was logged.
        self._late: set[tuple[str, int]] = set()
        # By request code: the function that translates the request, and the field with its topic.
        self._translations: Mapping[int, tuple[Translate, str]] = {
            SEND_MESSAGE.code: (partial(self._send, LONG), LONG.topic),
            SEND_MESSAGE_V2.code: (partial(self._send, SHORT), SHORT.topic),
            SEND_BATCH_MESSAGE.code: (partial(self._send, SHORT), SHORT.topic),
            PULL_MESSAGE.code: (self._pull, "topic"),
            LITE_PULL_MESSAGE.code: (self._pull, "topic"),
            QUERY_CONSUMER_OFFSET.code: (self._query, "topic"),
            UPDATE_CONSUMER_OFFSET.code: (self._commit, "topic"),
            SEARCH_OFFSET_BY_TIMESTAMP.code: (self._search, "topic"),
            GET_MAX_OFFSET.code: (self._get_max, "topic"),
            GET_MIN_OFFSET.code: (self._get_min, "topic"),
            GET_EARLIEST_MSG_STORETIME.code: (self._get_earliest_time, "topic"),
        }

    def translating(self, code: int, handler: Handler) -> Handler:
        """``handler`` of requests with ``code``, wrapped so that it also takes requests for logical queues."""
        found = self._translations.get(code)
        return handler if found is None else partial(self._serve, *found, handler)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward late messages, and drop stretches whose messages have all expired, until cancelled."""
        task_status.started()
        clean_at = trio.current_time() + CLEAN_S
        while True:
            await trio.sleep(LATE_S)
            if not self._role.now.is_master:
                continue
            for topic in self._static.names():
                await self._send_late(topic)
                if trio.current_time() >= clean_at:
                    await self._clean(topic)
            if trio.current_time() >= clean_at:
                clean_at = trio.current_time() + CLEAN_S

    def _serve(
        self, translate: Translate, topic_field: str, handler: Handler, channel: Channel, request: Command
    ) -> Command | None:
        ext = request.ext
        topic = None if ext is None else ext.get(topic_field)
        detail = self._static.get(topic) if type(topic) is str else None
        if ext is None or detail is None or ext.get(LOGICAL_FIELD) in (False, "false"):
            return handler(channel, request)
        return translate(handler, channel, request, detail)

    # --- sends

    def _send(
        self, names: SendFields, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        ext = request.ext or {}
        try:
            queue_id, sys_flag = read_int(ext.get(names.queue_id)), read_int(ext.get(names.sys_flag))
        except ValueError:
            return handler(channel, request)  # the handler refuses it
        led = led_by(detail)
        if queue_id < 0 and led:
            queue_id = random.choice(list(led))  # the client leaves the choice of the queue to the broker
        # While the queue is being moved to this broker, its first logical offset here is undecided: the old broker may
        # still store messages. This broker stores messages all the same, and producers get RocketMQ's negative offset.
        leader = _led(detail, queue_id).leader

        def back(answer: Command) -> Command:
            fields = answer.ext
            if fields is not None and "queueOffset" in fields:
                fields["queueId"] = queue_id
                if sys_flag & TRANSACTION_PREPARED:
                    return answer  # the end of the transaction names the offset of the half message
                # While the queue is being moved, the logical offset of the stored message is not decided.
                fields["queueOffset"] = (
                    to_logical(leader, fields["queueOffset"]) if leader.logic_offset >= 0 else leader.logic_offset
                )
            return answer

        own = {**ext, names.queue_id: leader.queue_id}
        # The answer to a batch with deferred messages would have offsets in its body, which are not translated. Without
        # this field the client sends deferred messages one by one.
        own.pop(DEFERRED_BATCHES, None)
        return handler(channel, _OfOwnQueue(request, own, back))

    # --- pulls

    def _pull(
        self, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        header = PULL_MESSAGE.header(request)
        queue = _led(detail, header.queue_id)
        at = queue.at(header.queue_offset)
        if at is None:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "the queue is being moved; try again later")
        reading = _Reading(queue, at, to_own(at, header.queue_offset), self._role.now.follows)
        if reading.is_over:
            return reading.next(request.respond(ResponseCode.PULL_RETRY_IMMEDIATELY, None, {}))
        own = self._own_pull(reading, header)
        if at.bname != detail.bname:
            raise RunInTask(partial(self._pull_from_peer, reading, header, own))
        ext = {**(request.ext or {}), **own.to_ext()}
        return handler(channel, _OfOwnQueue(request, ext, reading.back))

    def _own_pull(self, reading: "_Reading", header: PullMessageRequestHeader) -> PullMessageRequestHeader:
        """The header of a pull from the queue of the stretch."""
        at, queue, flags = reading.at, reading.queue, header.sys_flag
        commit = header.commit_offset
        if flags & PULL_COMMIT_OFFSET and commit >= 0:
            if queue.at(commit) is at and at is queue.leader:
                commit = to_own(at, commit)
            else:
                flags &= ~PULL_COMMIT_OFFSET  # the consumer also commits with separate requests
        if at is not queue.leader:
            flags &= ~PULL_SUSPEND  # no more messages come into this stretch
        left = at.end_offset - reading.offset if at.end_offset >= 0 else header.max_msg_nums
        return replace(
            header,
            queue_id=at.queue_id,
            queue_offset=reading.offset,
            commit_offset=commit,
            sys_flag=flags,
            max_msg_nums=min(header.max_msg_nums, left),
        )

    async def _pull_from_peer(
        self,
        reading: "_Reading",
        header: PullMessageRequestHeader,
        own: PullMessageRequestHeader,
        channel: Channel,
        request: Command,
    ) -> Command:
        """The answer of the broker that has the stretch."""
        own.sys_flag &= ~PULL_COMMIT_OFFSET
        subscription = self._clients.subscription(header.consumer_group, header.topic)
        if not own.sys_flag & PULL_SUBSCRIPTION and subscription is not None:
            # The consumer's heartbeats may not have reached the other broker yet.
            own.sys_flag |= PULL_SUBSCRIPTION
            own.subscription, own.expression_type = subscription.sub_string, subscription.expression_type
            own.sub_version = subscription.sub_version
        place = await self._peer(reading.at.bname)
        with _refused_when_away(reading.at.bname, self._peers):
            answer = await place.invoke(PULL_MESSAGE.command(own), None, 0)
        fields = {name: _number(value) for name, value in (answer.ext or {}).items() if name in _Reading.FIELDS}
        response = reading.back(request.respond(answer.code, answer.remark, fields, answer.body))
        if response.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PULL_SUSPEND:
            # The next stretch is not decided yet. Without a pause the reader would ask again at once.
            await trio.sleep(min(MOVING_S, header.suspend_timeout_millis / 1000))
        return response

    # --- offsets

    def _query(
        self, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        """14: the newest stretch in which the group has an offset."""
        header = QUERY_CONSUMER_OFFSET.header(request)
        queue = _led(detail, header.queue_id)
        if len(queue.stretches) == 1:
            return self._at_own(queue.leader, handler, channel, request)

        async def query(channel: Channel, request: Command) -> Command:
            # An offset at the start of a stretch counts as no offset, except in the first stretch: a group that went
            # back to an older stretch has such offsets in the newer stretches.
            for stretch in reversed(queue.decided):
                place = await self._place(detail, stretch)
                offset = await place.committed(header.consumer_group)
                is_first = stretch is queue.decided[0]
                if offset > stretch.start_offset or (offset == stretch.start_offset and is_first):
                    return QUERY_CONSUMER_OFFSET.answer(request, OffsetResponseHeader(to_logical(stretch, offset)))
            text = "Not found, maybe this group consumer boot first"
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, text)

        raise RunInTask(query)

    def _commit(
        self, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        """15: commit on the broker that has the stretch of the offset."""
        header = UPDATE_CONSUMER_OFFSET.header(request)
        queue = _led(detail, header.queue_id)
        at = queue.at(header.commit_offset)
        if at is None or header.commit_offset < 0:
            return handler(channel, request)  # the handler ignores a negative offset
        # A commit in an older stretch means that the group has gone back: `_query` must no longer find its offset in
        # the newest stretch. At the group's first commit in the newest stretch, its offsets in older stretches are set
        # to their ends: otherwise `_query` could find them after a reset.
        own = max(at.start_offset, to_own(at, header.commit_offset))
        if at is not queue.leader:
            self._group_went_back(detail, queue, header)
        elif len(queue.decided) > 1 and self._is_first_commit_on_leader(header):
            self._remember_commit_on_leader(header)
            raise RunInTask(partial(self._end_older, detail, queue, handler, header, own))
        if at.bname == detail.bname:
            ext = {**(request.ext or {}), "queueId": at.queue_id, "commitOffset": own}
            return handler(channel, _OfOwnQueue(request, ext, _unchanged))

        async def commit(channel: Channel, request: Command) -> Command:
            await (await self._place(detail, at)).commit(header.consumer_group, own)
            return request.respond(ext={})

        raise RunInTask(commit)

    def _is_first_commit_on_leader(self, header: UpdateConsumerOffsetRequestHeader) -> bool:
        """Whether this broker has not yet seen a commit of this group in the leading stretch."""
        return (header.consumer_group, header.topic, header.queue_id) not in self._seen_on_leader

    def _remember_commit_on_leader(self, header: UpdateConsumerOffsetRequestHeader) -> None:
        if len(self._seen_on_leader) >= MAX_SEEN_ON_LEADER:
            self._seen_on_leader.clear()
        self._seen_on_leader.add((header.consumer_group, header.topic, header.queue_id))

    async def _end_older(
        self,
        detail: TopicQueueMappingDetail,
        queue: LogicalQueue,
        handler: Handler,
        header: UpdateConsumerOffsetRequestHeader,
        own: int,
        channel: Channel,
        request: Command,
    ) -> Command | None:
        """Commit, and set the group's offsets in older stretches to their ends: the group has read these stretches.

        The group's last commits in older stretches may be a little lower. They would look like a lag, and after a
        restart of the group they would count until the group has read a message of the leading stretch.
        """
        group = header.consumer_group
        for stretch in queue.decided[:-1]:
            try:
                place = await self._place(detail, stretch)
                offset, end = await place.committed(group), own_end(stretch, await place.end())
                if 0 <= offset < end:
                    await place.commit(group, end)
            except RequestRefused as refused:
                self._seen_on_leader.discard((group, header.topic, header.queue_id))
                logger.info("offset of group %s in %s not set to its end: %s", group, stretch, refused.remark)
        ext = {**(request.ext or {}), "queueId": queue.leader.queue_id, "commitOffset": own}
        return handler(channel, _OfOwnQueue(request, ext, _unchanged))

    def _group_went_back(
        self, detail: TopicQueueMappingDetail, queue: LogicalQueue, header: UpdateConsumerOffsetRequestHeader
    ) -> None:
        leader = queue.leader
        if header.forward_only or leader.logic_offset < 0 or not self._role.now.takes_commits:
            return
        group, topic = header.consumer_group, header.topic
        self._seen_on_leader.discard((group, topic, header.queue_id))
        if self._offsets.query(group, topic, leader.queue_id) > leader.start_offset:
            self._offsets.commit(group, topic, leader.queue_id, leader.start_offset)

    def _get_max(
        self, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        """30: the end of the last stretch whose logical offset is known."""
        header = GET_MAX_OFFSET.header(request)
        queue = _led(detail, header.queue_id)
        last = _known(queue)[-1]
        if last is queue.leader:
            return self._at_own(last, handler, channel, request)

        async def get_max(channel: Channel, request: Command) -> Command:
            place = await self._place(detail, last)
            return GET_MAX_OFFSET.answer(request, OffsetResponseHeader(to_logical(last, await place.end())))

        raise RunInTask(get_max)

    def _get_min(
        self, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        """31: the start of the first stretch."""
        queue = _led(detail, GET_MIN_OFFSET.header(request).queue_id)
        first = _known(queue)[0]
        if first is queue.leader:
            return self._at_own(first, handler, channel, request)

        async def get_min(channel: Channel, request: Command) -> Command:
            place = await self._place(detail, first)
            return GET_MIN_OFFSET.answer(request, OffsetResponseHeader(to_logical(first, await place.start())))

        raise RunInTask(get_min)

    def _get_earliest_time(
        self, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        """32: the earliest store time of the first stretch that has messages."""
        queue = _led(detail, GET_EARLIEST_MSG_STORETIME.header(request).queue_id)
        known = _known(queue)
        if known[0] is queue.leader:
            return self._at_own(known[0], handler, channel, request)

        async def get_time(channel: Channel, request: Command) -> Command:
            time_ms = -1
            for stretch in known:
                time_ms = await (await self._place(detail, stretch)).first_time()
                if time_ms >= 0:
                    break
            return GET_EARLIEST_MSG_STORETIME.answer(request, TimestampResponseHeader(time_ms))

        raise RunInTask(get_time)

    def _search(
        self, handler: Handler, channel: Channel, request: Command, detail: TopicQueueMappingDetail
    ) -> Command | None:
        """29: search by time in the last stretch that begins at or before the time."""
        header = SEARCH_OFFSET_BY_TIMESTAMP.header(request)
        queue = _led(detail, header.queue_id)
        known = _known(queue)
        if known[0] is queue.leader:
            return self._at_own(known[0], handler, channel, request)

        async def search(channel: Channel, request: Command) -> Command:
            # Store times rise from stretch to stretch. So the last stretch that begins at or before the time has the
            # message, or all messages of later stretches are newer.
            found = known[0]
            for stretch in reversed(known[1:]):
                if 0 <= await (await self._place(detail, stretch)).first_time() <= header.timestamp:
                    found = stretch
                    break
            place = await self._place(detail, found)
            boundary = (header.boundary_type or "LOWER").upper()
            offset, after = await place.search(header.timestamp, boundary), queue.after(found)
            if after is not None and boundary != "UPPER" and offset >= own_end(found, await place.end()):
                logical = after.logic_offset  # all messages of this stretch are older than the time
            else:
                logical = to_logical(found, offset)
            return SEARCH_OFFSET_BY_TIMESTAMP.answer(request, OffsetResponseHeader(logical))

        raise RunInTask(search)

    def _at_own(self, stretch: Stretch, handler: Handler, channel: Channel, request: Command) -> Command | None:
        """The answer of ``handler`` about ``stretch``, which is on this broker."""

        def back(answer: Command) -> Command:
            fields = answer.ext
            if fields is not None and answer.code == ResponseCode.SUCCESS and "offset" in fields:
                fields["offset"] = to_logical(stretch, fields["offset"])
            return answer

        return handler(channel, _OfOwnQueue(request, {**(request.ext or {}), "queueId": stretch.queue_id}, back))

    # --- other brokers

    async def _place(self, detail: TopicQueueMappingDetail, stretch: Stretch) -> "_Place":
        """The queue of a stretch, on this broker or on another one."""
        if stretch.bname == detail.bname:
            return _OwnPlace(self._store, self._offsets, detail.topic, stretch.queue_id)
        return _PeerPlace(await self._peer(stretch.bname), self._peers, detail.topic, stretch.queue_id)

    async def _peer(self, broker_name: str) -> "_Peer":
        return _Peer(await self._peers.at(broker_name), broker_name)

    async def _send_late(self, topic: str) -> None:
        """Send late messages, which came into this broker's queues after the ends of their stretches, to the leaders.

        Delayed messages and committed transactions are late in this sense: they come into the queue that was chosen
        when they were sent.
        """
        detail = self._static.get(topic)
        for stretches in [] if detail is None else detail.hosted_queues.values():
            for stretch in stretches[:-1]:
                if stretch.bname == self._broker_name and stretch.end_offset >= 0:
                    try:
                        while await self._sent_some(topic, stretch, stretches[-1]):
                            pass
                    except RequestRefused as error:
                        self._note_late(topic, stretch, error.remark)
                    else:
                        self._late.discard((topic, stretch.queue_id))

    async def _sent_some(self, topic: str, stretch: Stretch, leader: Stretch) -> bool:
        store, note = self._store, (LATE_GROUP, f"{LATE_TOPIC_PREFIX}{topic}", stretch.queue_id)
        begin = max(stretch.end_offset, self._offsets.query(*note))
        if begin >= store.max_offset(topic, stretch.queue_id):
            return False
        queue = store.queues.find(topic, stretch.queue_id)
        found = await from_disk(
            lambda: read_queue(store.log, queue, begin, LATE_MESSAGES, LATE_BYTES, confirmed=store.confirmed)
        )
        # Send the messages before the progress is recorded: after a crash in between they are sent again, and none is
        # lost.
        if found.records:
            peer = await self._peer(leader.bname)
            with _refused_when_away(leader.bname, self._peers):
                await call(peer, STORE_MOVED, StoreMovedRequestHeader(topic, leader.queue_id), found.records)
        self._offsets.commit(*note, found.next_offset)
        return found.next_offset > begin

    def _note_late(self, topic: str, stretch: Stretch, reason: str) -> None:
        if (topic, stretch.queue_id) not in self._late:
            self._late.add((topic, stretch.queue_id))
            logger.warning(
                "messages of topic %s came into queue %d here after it had moved, and wait for its new broker: %s",
                topic,
                stretch.queue_id,
                reason,
            )

    async def _clean(self, topic: str) -> None:
        """In the queues that this broker leads, drop the oldest stretches that have no message any more."""
        detail = self._static.get(topic)
        if detail is None:
            return
        for queue_id in led_by(detail):
            decided = LogicalQueue(queue_id, detail.hosted_queues[queue_id]).decided
            if len(decided) < 2:
                continue
            try:
                place = await self._place(detail, decided[0])
                is_empty = await place.start() >= own_end(decided[0], await place.end())
            except RequestRefused as error:
                logger.info("the oldest part of logical queue %d of %s is not looked at: %s", queue_id, topic, error)
                continue
            if is_empty:
                self._drop_first(topic, queue_id, decided[0])

    def _drop_first(self, topic: str, queue_id: int, stretch: Stretch) -> None:
        # Look the topic up again: an administrator may have changed it while the other broker was asked.
        detail, config = self._static.get(topic), self._topics.get(topic)
        if detail is None or config is None or detail.hosted_queues.get(queue_id, [None])[0] != stretch:
            return
        kept = {**detail.hosted_queues, queue_id: detail.hosted_queues[queue_id][1:]}
        try:
            self._topics.put_static(config, replace(detail, hosted_queues=kept))
        except StoreError as error:
            logger.warning("logical queue %d of %s keeps its oldest part: %s", queue_id, topic, error)
            return
        logger.info(
            "logical queue %d of %s has no message in queue %d of broker %s any more, and forgets it",
            queue_id,
            topic,
            stretch.queue_id,
            stretch.bname,
        )


class _OfOwnQueue(Command):
    """A request for a queue of this broker, in place of one for a logical queue; its answers are translated back."""

    __slots__ = ("_back",)

    def __init__(self, request: Command, ext: dict[str, Any], back: Callable[[Command], Command]) -> None:
        super().__init__(
            request.code,
            ext,
            request.body,
            request.flag,
            request.opaque,
            None,
            request.codec,
            request.language,
            request.version,
        )
        self._back = back

    def respond(
        self, code: int = 0, remark: str | None = None, ext: dict[str, Any] | None = None, body: bytes = b""
    ) -> Command:
        return self._back(super().respond(code, remark, ext, body))


def _unchanged(answer: Command) -> Command:
    return answer


@lazy_dataclass(frozen=True, slots=True)
class _Reading:
    """A pull from the stretch ``at`` of a logical queue, and the translation of its answer.

    ``offset``: the requested offset, as this broker's own queue counts.
    """

    queue: LogicalQueue
    at: Stretch
    offset: int
    #: Whether this broker is a slave, which may lag: messages that it lacks may still come.
    follows: bool

    FIELDS = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")

    @property
    def is_over(self) -> bool:
        """Whether the stretch ends before the offset, and another stretch follows."""
        return 0 <= self.at.end_offset <= self.offset and self.queue.after(self.at) is not None

    def back(self, answer: Command) -> Command:
        """``answer``, which is about the queue of the stretch, for the reader of the logical queue."""
        fields = answer.ext
        if fields is None or "nextBeginOffset" not in fields:
            return answer
        begin, low, high = (fields[name] for name in ("nextBeginOffset", "minOffset", "maxOffset"))
        # The stretch may have been ended after this pull began to read. The reader must get nothing past its end: in
        # the next stretch these offsets have other messages.
        end = own_end(self.at, high)
        is_reset = answer.remark == "OFFSET_RESET"
        if begin > end and end < high:
            answer.body, begin = _cut(answer.body, end), end
        if answer.code != ResponseCode.SUCCESS and not is_reset:
            # Nothing was found. On a master this means that the stretch is read to its end; a slave may only lag.
            if max(self.offset, low) >= end and self.queue.after(self.at) is not None:
                return self._wait(answer) if self.follows else self.next(answer)
            # The messages have expired. The client would take this answer for an offset out of range, and start from
            # the beginning.
            if self.offset < low and self.at is not self.queue.decided[0]:
                answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
        last = self.queue.decided[-1]
        fields |= {
            "nextBeginOffset": to_logical(self.at, begin),
            "minOffset": to_logical(self.at, low),
            "maxOffset": max(to_logical(self.at, end), last.logic_offset),
            "offsetDelta": self.at.logic_offset - self.at.start_offset,
        }
        if self.at is not self.queue.leader:
            # The suggested id is of the set that has the stretch.
            fields["suggestWhichBrokerId"] = MASTER_ID
        return answer

    def next(self, answer: Command) -> Command:
        """``answer``, changed so that it sends the reader to the next stretch."""
        after = self.queue.after(self.at)
        assert after is not None
        begin = after.logic_offset
        answer.code, answer.body = ResponseCode.PULL_RETRY_IMMEDIATELY, b""
        answer.ext = {
            "suggestWhichBrokerId": MASTER_ID,
            "nextBeginOffset": begin,
            "minOffset": begin,
            "maxOffset": max(begin, self.queue.decided[-1].logic_offset),
            "offsetDelta": begin - after.start_offset,
        }
        return answer

    def _wait(self, answer: Command) -> Command:
        """``answer``, changed so that it sends the reader to the master, which knows whether the stretch ends here."""
        begin = to_logical(self.at, self.offset)
        answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
        answer.ext = {
            "suggestWhichBrokerId": MASTER_ID,
            "nextBeginOffset": begin,
            "minOffset": begin,
            "maxOffset": begin,
            "offsetDelta": self.at.logic_offset - self.at.start_offset,
        }
        return answer


def _cut(records: bytes, end: int) -> bytes:
    """The ``records`` whose offsets in their queue are before ``end``."""
    at = 0
    while at < len(records):
        if int.from_bytes(records[at:][_QUEUE_OFFSET]) >= end:
            break
        at += int.from_bytes(records[at : at + 4])
    return records[:at]


class _Place(Protocol):
    """The queue of a stretch."""

    async def start(self) -> int: ...

    async def end(self) -> int: ...

    async def first_time(self) -> int:
        """When the oldest message was stored (ms); -1 if there is none."""

    async def search(self, timestamp: int, boundary: str) -> int: ...

    async def committed(self, group: str) -> int:
        """The group's offset; -1 if it has none."""

    async def commit(self, group: str, offset: int) -> None: ...


class _OwnPlace(NamedTuple):
    store: MessageStore
    offsets: ConsumerOffsets
    topic: str
    queue_id: int

    async def start(self) -> int:
        return await from_disk(lambda: self.store.min_offset(self.topic, self.queue_id))

    async def end(self) -> int:
        return await from_disk(lambda: self.store.visible_end(self.topic, self.queue_id))

    async def first_time(self) -> int:
        return await from_disk(lambda: self.store.first_store_time(self.topic, self.queue_id))

    async def search(self, timestamp: int, boundary: str) -> int:
        return await from_disk(lambda: self.store.offset_by_time(self.topic, self.queue_id, timestamp, boundary))

    async def committed(self, group: str) -> int:
        return self.offsets.query(group, self.topic, self.queue_id)

    async def commit(self, group: str, offset: int) -> None:
        self.offsets.commit(group, self.topic, self.queue_id, offset)


@lazy_dataclass(frozen=True, slots=True)
class _Peer:
    """Sends requests to another broker that name its own queues."""

    remote: Remote
    broker_name: str

    @property
    def addr(self) -> str:
        return self.remote.addr

    async def invoke(self, command: Command, body: Body | bytes | None, wait_ms: float) -> Command:
        command.ext = {**(command.ext or {}), BNAME_FIELD: self.broker_name, LOGICAL_FIELD: "false"}
        return await self.remote.invoke(command, body, wait_ms)


class _PeerPlace(NamedTuple):
    peer: _Peer
    peers: Peers
    topic: str
    queue_id: int

    async def start(self) -> int:
        return (await self._ask(GET_MIN_OFFSET, QueueRequestHeader(self.topic, self.queue_id))).offset

    async def end(self) -> int:
        return (await self._ask(GET_MAX_OFFSET, GetMaxOffsetRequestHeader(self.topic, self.queue_id))).offset

    async def first_time(self) -> int:
        header = QueueRequestHeader(self.topic, self.queue_id)
        return (await self._ask(GET_EARLIEST_MSG_STORETIME, header)).timestamp

    async def search(self, timestamp: int, boundary: str) -> int:
        header = SearchOffsetRequestHeader(self.topic, self.queue_id, timestamp, boundary)
        return (await self._ask(SEARCH_OFFSET_BY_TIMESTAMP, header)).offset

    async def committed(self, group: str) -> int:
        header = QueryConsumerOffsetRequestHeader(group, self.topic, self.queue_id, set_zero_if_not_found=False)
        try:
            return (await self._ask(QUERY_CONSUMER_OFFSET, header)).offset
        except RequestRefused as refused:
            if refused.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return -1

    async def commit(self, group: str, offset: int) -> None:
        with _refused_when_away(self.peer.broker_name, self.peers):
            header = UpdateConsumerOffsetRequestHeader(group, self.topic, self.queue_id, offset)
            await call(self.peer, UPDATE_CONSUMER_OFFSET, header)

    async def _ask(self, what: Request[H, None, AH, None], header: H) -> AH:
        with _refused_when_away(self.peer.broker_name, self.peers):
            answer = await call(self.peer, what, header)
            if answer.code != ResponseCode.SUCCESS:
                raise RequestRefused(answer.code, answer.command.remark or "")
            return answer.header()


def _led(detail: TopicQueueMappingDetail, queue_id: int) -> LogicalQueue:
    """A logical queue that this broker leads; RequestRefused, with RocketMQ's text, when it leads no such queue."""
    stretches = detail.hosted_queues.get(queue_id)
    if not stretches or stretches[-1].bname != detail.bname:
        text = f"{detail.topic}-{queue_id} does not exit in request process of current broker {detail.bname}"
        raise RequestRefused(ResponseCode.NOT_LEADER_FOR_QUEUE, text)
    return LogicalQueue(queue_id, stretches)


def _known(queue: LogicalQueue) -> Sequence[Stretch]:
    """The stretches whose logical offsets are known; RequestRefused when there are none."""
    if not queue.decided:
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, "the queue is being moved; try again later")
    return queue.decided


def _number(value: Any) -> int:
    try:
        return read_long(value)
    except ValueError as error:
        raise ProtocolError(f"the other broker's answer cannot be read: {error}") from None


@contextmanager
def _refused_when_away(broker_name: str, peers: Peers) -> Iterator[None]:
    """Refuse a request when another broker does not answer, so that the client tries again."""
    try:
        yield
    except BrokerError as error:
        if error.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            peers.forget()  # another broker has its address now
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"broker {broker_name}: {error}") from None
        raise RequestRefused(error.code, f"broker {broker_name}: {error.remark}") from None
    except (RemotingError, ProtocolError) as error:
        peers.forget()
        raise RequestRefused(
            ResponseCode.SYSTEM_BUSY, f"broker {broker_name}, which has it, is away: {error}"
        ) from None
