"""Offsets of groups (14, 15; 43 all of them), of queues (29 - 32) and of delay levels (45)."""

from collections.abc import Callable

from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.offset_resets import OffsetResets
from skylark.broker.meta.table_pages import Cursor, answer_whole_or_page
from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import MAX_QUEUE_NUMS
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.net.steps import StepHandler, Steps
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, OFFER_FIELD, Command
from skylark.remoting.protocol.requests.offsets import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetTable,
    GetAllConsumerOffsetResponseHeader,
    GetAllDelayOffsetResponseHeader,
    OffsetResponseHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

# Offsets in a page for a slave: it costs both sides some milliseconds.
PAGE_OFFSETS = 5_000


class OffsetHandlers(Part):
    """Handles requests for offsets. Messages more than ``in_memory_bytes`` before the log's end count as on disk."""

    reads_disk = (
        QUERY_CONSUMER_OFFSET.code,
        SEARCH_OFFSET_BY_TIMESTAMP.code,
        GET_MIN_OFFSET.code,
        GET_EARLIEST_MSG_STORETIME.code,
    )

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        resets: OffsetResets,
        is_master: Callable[[], bool],
        in_memory_bytes: int,
    ) -> None:
        self._store = store
        self._topics = metadata.topics
        self._groups = metadata.groups
        self._offsets = metadata.consumer_offsets
        self._delay_offsets = metadata.delay_offsets
        self._resets = resets
        self._is_master = is_master
        self._in_memory_bytes = in_memory_bytes
        self._cursor = Cursor()

    def handlers(self) -> dict[int, Handler]:
        return {
            QUERY_CONSUMER_OFFSET.code: self.query,
            UPDATE_CONSUMER_OFFSET.code: self.update,
            SEARCH_OFFSET_BY_TIMESTAMP.code: self.search,
            GET_MAX_OFFSET.code: self.get_max,
            GET_MIN_OFFSET.code: self.get_min,
            GET_EARLIEST_MSG_STORETIME.code: self.get_earliest_time,
            GET_ALL_DELAY_OFFSET.code: self.get_all_delay,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {GET_ALL_CONSUMER_OFFSET.code: self.get_all}

    def query(self, channel: Channel, request: Command) -> Command:
        """14: a group's offset. If it has none: 0 if the queue still has all its messages, else "not found"."""
        header = QUERY_CONSUMER_OFFSET.header(request)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                raise _not_found("Not found, do not set to zero, maybe this group boot first")
            if not self.all_in_memory(header.topic, header.queue_id):
                raise _not_found("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
            offset = 0
        return QUERY_CONSUMER_OFFSET.answer(request, self._of_topic(header.topic, offset))

    def update(self, channel: Channel, request: Command) -> Command:
        """15: commit an offset; usually oneway. An offset past the end of the queue is refused.

        Such an offset belongs to an earlier topic or broker of the same name: a group that started again at it would
        skip the first messages of the new queue.
        """
        header = UPDATE_CONSUMER_OFFSET.header(request)
        group, topic = header.consumer_group, header.topic
        # A Skylark consumer may commit before its first heartbeat, so its group is made. For other clients RocketMQ's
        # rule holds: RocketMQ's mqadmin clones offsets by commits, which must not make a group of a mistyped name.
        is_ours = request.codec == CBOR or OFFER_FIELD in (request.ext or {})
        known = self._groups.get_or_create(group) if is_ours else self._groups.get(group)
        if known is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if self._topics.get(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if not 0 <= header.queue_id < MAX_QUEUE_NUMS:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"QueueId {header.queue_id} is illegal")
        # The consumer does not know the new offset yet: its commit would undo the reset.
        if self._resets.pending and self._resets.covers(group, topic, header.queue_id):
            return request.respond(remark="Offset has been previously reset", ext={})
        created_ms = self._topics.created_ms(topic)
        if header.topic_created_ms is not None and created_ms not in (None, header.topic_created_ms):
            text = f"offset {header.commit_offset} is of a topic {topic} that was deleted: the present one is another"
            raise RequestRefused(ResponseCode.PULL_OFFSET_MOVED, text)
        # A slave that acts for its master accepts any offset: its log may lag, so it cannot check the offset.
        if self._is_master() and header.commit_offset > (end := self._store.max_offset(topic, header.queue_id)):
            text = f"offset {header.commit_offset} is past the end of queue {header.queue_id} of topic {topic}, {end}"
            raise RequestRefused(ResponseCode.PULL_OFFSET_MOVED, text)
        if not (header.forward_only and self._goes_back(header)):
            self._offsets.commit(group, topic, header.queue_id, header.commit_offset)
        return request.respond(ext={})

    def _goes_back(self, header: UpdateConsumerOffsetRequestHeader) -> bool:
        """Whether the group has a higher offset already; an offset that the queue does not have is not compared."""
        present = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        return header.commit_offset < present <= self._store.max_offset(header.topic, header.queue_id)

    def search(self, channel: Channel, request: Command) -> Command:
        """29: the offset of a queue at a time."""
        header = SEARCH_OFFSET_BY_TIMESTAMP.header(request)
        boundary = (header.boundary_type or "LOWER").upper()
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
        return SEARCH_OFFSET_BY_TIMESTAMP.answer(request, self._of_topic(header.topic, offset))

    def get_max(self, channel: Channel, request: Command) -> Command:
        """30: the end of a queue; with ``committed=false`` the end includes messages that are not confirmed yet."""
        header = GET_MAX_OFFSET.header(request)
        end = self._store.max_offset if header.committed is False else self._store.visible_end
        offset = end(header.topic, header.queue_id)
        return GET_MAX_OFFSET.answer(request, self._of_topic(header.topic, offset))

    def get_min(self, channel: Channel, request: Command) -> Command:
        """31: the first offset of a queue whose message is still stored, here or in the bucket."""
        header = GET_MIN_OFFSET.header(request)
        offset = self._store.min_offset(header.topic, header.queue_id)
        return GET_MIN_OFFSET.answer(request, self._of_topic(header.topic, offset))

    def _of_topic(self, topic: str, offset: int) -> OffsetResponseHeader:
        return OffsetResponseHeader(offset, self._topics.created_ms(topic))

    def get_earliest_time(self, channel: Channel, request: Command) -> Command:
        """32: when the oldest message of a queue was stored; -1 if the queue has no message."""
        header = GET_EARLIEST_MSG_STORETIME.header(request)
        timestamp = self._store.first_store_time(header.topic, header.queue_id)
        return GET_EARLIEST_MSG_STORETIME.answer(request, TimestampResponseHeader(timestamp))

    def get_all(self, channel: Channel, request: Command) -> Steps[Command]:
        """43: all consumer offsets; for a Skylark slave only the changes since its last question, if still known."""
        header, offsets = GET_ALL_CONSUMER_OFFSET.header(request), self._offsets
        part = None
        if header.known_run is not None and header.known_changes is not None:
            part = offsets.changed_since(DataVersion(0, header.known_run, header.known_changes), PAGE_OFFSETS)
        # The answer has the version from before it was made: offsets that change meanwhile are sent again next time.
        version = offsets.live_version
        if part is not None:
            answer = answer_with(GET_ALL_CONSUMER_OFFSET, request, ConsumerOffsetTable(part, {}, offsets.data_version))
        else:
            answer = yield from answer_whole_or_page(
                GET_ALL_CONSUMER_OFFSET,
                channel,
                request,
                offsets.table(),
                self._cursor,
                offsets.removals,
                lambda rows: ConsumerOffsetTable(dict(rows), {}, offsets.data_version),
                values=PAGE_OFFSETS,
                values_of=len,
            )
        if request.codec == CBOR:
            response = GetAllConsumerOffsetResponseHeader(version.timestamp, version.counter, part is not None)
            answer.ext = {**(answer.ext or {}), **response.to_ext()}
        return answer

    def get_all_delay(self, channel: Channel, request: Command) -> Command:
        """45: all delay offsets. The log has the copies of all messages before these offsets."""
        answer = answer_with(GET_ALL_DELAY_OFFSET, request, self._delay_offsets.table)
        if request.codec == CBOR:
            answer.ext = {**(answer.ext or {}), **GetAllDelayOffsetResponseHeader(self._store.log.end).to_ext()}
        return answer

    def all_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still has all messages that it ever had, and they count as being in memory."""
        queue = self._store.queues.find(topic, queue_id)
        if queue is None or queue.next_offset == 0:
            return True
        if queue.min_offset > 0:
            return False
        # The first message is the oldest: when it counts as being in memory, all others do.
        physical_offset, _, _ = queue.entry(0)
        return self._store.log.end - physical_offset <= self._in_memory_bytes


def _not_found(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.QUERY_NOT_FOUND, text)
