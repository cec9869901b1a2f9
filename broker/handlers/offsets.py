"""Offsets of groups (14, 15; 43 all of them), of queues (29 - 32) and of delay levels (45)."""

from broker.handlers.pages import Cursor, answer_whole_or_page
from broker.meta.consumer_offsets import ConsumerOffsets
from broker.meta.delay_offsets import DelayOffsets
from broker.meta.groups import Groups
from broker.meta.topics import Topics
from broker.part import Part
from broker.request_bodies import answer_with
from broker.store.store import MessageStore
from mqcommon.errors import RequestRefused
from mqcommon.names import MAX_QUEUE_NUMS
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.net.steps import StepHandler, Steps
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.offsets import ConsumerOffsetTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import CBOR, Command
from remoting.protocol.headers.offsets import (
    GetAllConsumerOffsetRequestHeader,
    GetAllConsumerOffsetResponseHeader,
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

# Offsets that go to a slave at once: some milliseconds for both sides.
PAGE_OFFSETS = 5_000


class OffsetHandlers(Part):
    """Messages that are more than ``in_memory_bytes`` before the log's end count as on disk."""

    reads_disk = (
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    )

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delay_offsets: DelayOffsets,
        in_memory_bytes: int,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay_offsets = delay_offsets
        self._in_memory_bytes = in_memory_bytes
        self._cursor = Cursor()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.get_max,
            RequestCode.GET_MIN_OFFSET: self.get_min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.get_earliest_time,
            RequestCode.GET_ALL_DELAY_OFFSET: self.get_all_delay,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all}

    def query(self, channel: Channel, request: Command) -> Command:
        """14: a new group starts at 0 while the whole queue is at hand; else it is told that there is no offset."""
        header = QueryConsumerOffsetRequestHeader.from_ext(request.ext)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                raise _not_found("Not found, do not set to zero, maybe this group boot first")
            if not self._all_in_memory(header.topic, header.queue_id):
                raise _not_found("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
            offset = 0
        return request.respond(ext=OffsetResponseHeader(offset).to_ext())

    def update(self, channel: Channel, request: Command) -> Command:
        """15: usually oneway."""
        header = UpdateConsumerOffsetRequestHeader.from_ext(request.ext)
        group, topic = header.consumer_group, header.topic
        if self._groups.get_or_create(group) is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if self._topics.get(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if not 0 <= header.queue_id < MAX_QUEUE_NUMS:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"QueueId {header.queue_id} is illegal")
        self._offsets.commit(group, topic, header.queue_id, header.commit_offset)
        return request.respond(ext={})

    def search(self, channel: Channel, request: Command) -> Command:
        """29."""
        header = SearchOffsetRequestHeader.from_ext(request.ext)
        boundary = (header.boundary_type or "LOWER").upper()
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
        return request.respond(ext=OffsetResponseHeader(offset).to_ext())

    def get_max(self, channel: Channel, request: Command) -> Command:
        """30."""
        header = GetMaxOffsetRequestHeader.from_ext(request.ext)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return request.respond(ext=OffsetResponseHeader(offset).to_ext())

    def get_min(self, channel: Channel, request: Command) -> Command:
        """31."""
        header = QueueRequestHeader.from_ext(request.ext)
        offset = self._store.min_offset(header.topic, header.queue_id)
        return request.respond(ext=OffsetResponseHeader(offset).to_ext())

    def get_earliest_time(self, channel: Channel, request: Command) -> Command:
        """32."""
        header = QueueRequestHeader.from_ext(request.ext)
        timestamp = self._store.first_store_time(header.topic, header.queue_id)
        return request.respond(ext=TimestampResponseHeader(timestamp).to_ext())

    def get_all(self, channel: Channel, request: Command) -> Steps[Command]:
        """43: what consumerOffset.json holds; to a Skylark slave what has changed since it last asked, if it can be."""
        header, offsets = GetAllConsumerOffsetRequestHeader.from_ext(request.ext), self._offsets
        part = None
        if header.known_run is not None and header.known_changes is not None:
            part = offsets.changed_since(DataVersion(0, header.known_run, header.known_changes), PAGE_OFFSETS)
        # As of now: what changes while the answer is made is told once more.
        version = offsets.live_version
        if part is not None:
            answer = answer_with(request, ConsumerOffsetTable(part, {}, offsets.data_version))
        else:
            answer = yield from answer_whole_or_page(
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
            told = GetAllConsumerOffsetResponseHeader(version.timestamp, version.counter, part is not None)
            answer.ext = {**(answer.ext or {}), **told.to_ext()}
        return answer

    def get_all_delay(self, channel: Channel, request: Command) -> Command:
        """45: what delayOffset.json holds."""
        return answer_with(request, self._delay_offsets.table)

    def _all_in_memory(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queues.find(topic, queue_id)
        if queue is None or queue.next_offset == 0:
            return True
        if queue.min_offset > 0:
            return False
        physical_offset, _, _ = queue.entry(0)
        return self._store.log.end - physical_offset <= self._in_memory_bytes


def _not_found(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.QUERY_NOT_FOUND, text)
