"""Finds the messages for a pop in the queues of a topic and of its retry topics, and encodes them for the answer.

Messages of the topic are sent as the stored bytes. Messages of a retry topic are encoded again, with the topic that the
consumer knows and with their handle, as in RocketMQ: its clients would take a retry topic for an unknown topic.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import Enum, auto

from skylark.broker.delivery.pop.copies import with_handle
from skylark.broker.delivery.pop.inflight import PopLease
from skylark.broker.delivery.pop.log import ReviveLog
from skylark.broker.delivery.pop.positions import Positions
from skylark.broker.delivery.pop.records import Queue
from skylark.broker.delivery.unconfirmed import Unconfirmed
from skylark.broker.meta.topics import Topics
from skylark.broker.store.filter import Filter
from skylark.broker.store.older import OlderAway, OlderDamaged
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.reader import GetResult, GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.record import decode_record, encode_record, topic_field
from skylark.remoting.protocol.pop_info import PopHandle, retry_flag
from skylark.remoting.protocol.requests.pops import ANY_QUEUE

logger = logging.getLogger(__name__)

# The most reads of one queue for one request while the filter rejects all messages: each examines some 16,000 entries.
READS = 4


class QueueOrder(Enum):
    """In which order the queues are read.

    ROTATING: topic after topic, and each request begins with another queue. HIGHEST_FIRST: by numbers, the highest
    first, LOWEST_FIRST: the lowest first; then a queue is read only when the queues before it have no more messages.
    """

    ROTATING = auto()
    HIGHEST_FIRST = auto()
    LOWEST_FIRST = auto()


@lazy_dataclass(slots=True)
class PopQuery:
    """What a pop asks for.

    ``topics``: the topic and its retry topics, in the order in which they are read. ``init_mode``: where a group
    without an offset begins, INIT_MIN (the start of the queue) or INIT_MAX (its end, or its start if the queue still
    has all its messages, in memory); in a retry topic a group always begins at the start.
    """

    group: str
    topic: str
    queue_id: int
    topics: tuple[str, ...]
    max_count: int
    max_bytes: int
    wanted: Filter
    init_mode: int
    is_ordered: bool = False
    attempt_id: str | None = None
    order: QueueOrder = QueueOrder.ROTATING


@lazy_dataclass(slots=True)
class QueueMessages:
    """Messages of one queue. ``position`` is None when the group does not move: they were popped before."""

    queue: Queue
    records: bytes
    offsets: Sequence[int]
    position: int | None
    counts: tuple[int, ...] = ()


@lazy_dataclass(slots=True)
class PopResult:
    """The messages for a request. ``rest``: how many follow. ``unseen``: some queues were not searched yet."""

    queues: list[QueueMessages] = field(default_factory=list)
    count: int = 0
    size: int = 0
    rest: int = 0
    unseen: bool = False


class Finder:
    """Searches queues for pops; changes no state but positions past removed messages."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        log: ReviveLog,
        positions: Positions,
        unconfirmed: Unconfirmed | None = None,
    ) -> None:
        self._store = store
        self._unconfirmed = unconfirmed
        self._topics = topics
        self._log = log
        self._positions = positions
        # Each request begins with another queue.
        self._turn = 0

    def find(self, query: PopQuery, now_ms: int) -> PopResult:
        """The messages to pop now: the group's next messages or, in order, its unacknowledged messages again."""
        found, unread = PopResult(), None
        for queue, place in self._queues(query):
            if found.count >= query.max_count or found.size >= query.max_bytes:
                break
            # In order, no consumer gets a message of this queue while earlier messages are in flight. Only a request
            # with the id of the attempt that popped them gets them again: the answer to that attempt was lost.
            lease = self._log.inflight.ordered.get(place) if query.is_ordered else None
            try:
                if lease is not None:
                    if not self._is_blocked(query, lease, now_ms):
                        self._read_again(query, found, queue, lease)
                    continue
                offset = self._positions.next(place, query.init_mode)
                # A filter may reject all messages that one read examines. A few more reads are tried; after that the
                # consumer asks again.
                for _ in range(READS):
                    if offset == queue.next_offset:
                        break
                    count, size = query.max_count - found.count, query.max_bytes - found.size
                    result = read_queue(
                        self._store.log, queue, offset, count, size, query.wanted, self._store.confirmed
                    )
                    if result.status is GetStatus.FOUND:
                        _add(found, place, result, offset, result.next_offset)
                        break
                    if result.next_offset == offset:
                        break
                    if result.status is GetStatus.NO_MATCHED_MESSAGE:
                        self._positions.skipped(place, result.next_offset)
                    else:
                        # Messages were removed, or the queue was made again.
                        self._positions.move(place, result.next_offset)
                    offset = result.next_offset
                else:
                    found.unseen = True
            except (OlderAway, OlderDamaged) as error:
                unread = error  # the group goes on with its other queues
        self._turn += 1
        if unread is not None and not found.count:
            raise unread
        return found

    def has_messages(self, query: PopQuery, now_ms: int) -> bool:
        """Whether a pop would find a message; changes nothing."""
        for _, place in self._queues(query):
            lease = self._log.inflight.ordered.get(place) if query.is_ordered else None
            if lease is not None:
                if not self._is_blocked(query, lease, now_ms):
                    return True
            elif self._store.visible_end(*place[1:]) > self._positions.peek(place, query.init_mode):
                return True
        return False

    def listen(self, query: PopQuery) -> None:
        """Have the store report messages that come into these queues; it reports new queues anyway."""
        for queue, _ in self._queues(query):
            queue.is_awaited = True
            if self._unconfirmed is not None:
                self._unconfirmed.watch(queue)

    def peek(self, query: PopQuery) -> PopResult:
        """The messages that a pop would return; changes nothing."""
        found, unread = PopResult(), None
        for queue, place in self._queues(query):
            try:
                self._peek_in(query, found, queue, place)
            except (OlderAway, OlderDamaged) as error:
                unread = error
        if unread is not None and not found.count:
            raise unread
        return found

    def _peek_in(self, query: PopQuery, found: PopResult, queue: ConsumeQueue, place: Queue) -> None:
        offset = self._positions.peek(place, query.init_mode)
        count, size = query.max_count - found.count, query.max_bytes - found.size
        result = read_queue(self._store.log, queue, offset, count, size, query.wanted, self._store.confirmed)
        if result.status is GetStatus.OFFSET_TOO_SMALL:
            offset = result.next_offset
            result = read_queue(self._store.log, queue, offset, count, size, query.wanted, self._store.confirmed)
        if result.status is GetStatus.FOUND:
            _add(found, place, result, offset, None)

    def _queues(self, query: PopQuery) -> Iterator[tuple[ConsumeQueue, Queue]]:
        """The queues that have, or had, messages."""
        find = self._store.queues.find
        for topic, number in self._by_topic(query) if query.order is QueueOrder.ROTATING else self._by_number(query):
            queue = find(topic, number)
            if queue is not None:
                yield queue, Queue(query.group, topic, number)

    def _by_number(self, query: PopQuery) -> Iterator[tuple[str, int]]:
        counts = [(topic, config.read_queue_nums) for topic in query.topics if (config := self._topics.get(topic))]
        # Retries come before all other messages if their topics are named first. Otherwise the retries of each priority
        # come after the other messages of this priority.
        first = [pair for pair in counts if pair[0] != query.topic] if query.topics[0] != query.topic else []
        for stage in (first, [pair for pair in counts if pair not in first]):
            numbers = range(max([count for _, count in stage], default=0))
            for number in reversed(numbers) if query.order is QueueOrder.HIGHEST_FIRST else numbers:
                for topic, count in stage:
                    if number < count:
                        yield topic, number

    def _by_topic(self, query: PopQuery) -> Iterator[tuple[str, int]]:
        for topic in query.topics:
            config = self._topics.get(topic)
            if config is None:
                continue
            numbers: Sequence[int] = (query.queue_id,)
            if query.queue_id == ANY_QUEUE or topic != query.topic:
                count = config.read_queue_nums
                numbers = range(count)
                if count > 1:
                    first = self._turn % count
                    numbers = [*range(first, count), *range(first)]
            for number in numbers:
                yield topic, number

    def _is_blocked(self, query: PopQuery, lease: PopLease, now_ms: int) -> bool:
        attempt = self._log.inflight.attempts.get(lease.checkpoint.key.queue)
        return now_ms < lease.due_ms and not (query.attempt_id and query.attempt_id == attempt)

    def _read_again(self, query: PopQuery, found: PopResult, queue: ConsumeQueue, lease: PopLease) -> None:
        """Read messages that were popped in order and are not acknowledged. They are confirmed: consumers got them."""
        checkpoint, left = lease.checkpoint, lease.left
        counts = dict(zip(checkpoint.offsets, checkpoint.counts, strict=False))
        records, offsets = [], []
        for offset in left:
            result = read_queue(self._store.log, queue, offset, 1, query.max_bytes)
            # In place of a message that is damaged in the bucket a later message is read.
            if result.status is GetStatus.FOUND and result.next_offset == offset + 1:
                records.append(result.records)
                offsets.append(offset)
        times = tuple(counts.get(offset, 0) + 1 for offset in offsets)
        found.queues.append(QueueMessages(checkpoint.key.queue, b"".join(records), offsets, None, times))
        found.count += len(offsets)
        found.size += sum(map(len, records))


def _add(found: PopResult, place: Queue, result: GetResult, offset: int, position: int | None) -> None:
    data, offsets = result.records, _offsets_of(result, offset)
    found.queues.append(QueueMessages(place, data, offsets, position, (0,) * len(offsets)))
    found.count += len(offsets)
    found.size += len(data)
    found.rest += result.max_offset - result.next_offset


def _offsets_of(result: GetResult, offset: int) -> Sequence[int]:
    """The offsets of the messages, with gaps where the filter has rejected messages."""
    if result.next_offset - offset == result.count:
        return range(offset, result.next_offset)
    data = result.records
    return [MessageExt(data, at, "").queue_offset for at in record_starts(data)]


def with_handles(
    found: QueueMessages, topic: str, pop_ms: int, invisible_ms: int, revive_queue_id: int, broker: str
) -> bytes:
    """The messages ``found`` in a retry topic as records of ``topic``, each with its handle.

    ``pop_ms``, ``invisible_ms``, ``revive_queue_id`` and ``broker`` (its name) become parts of the handles. A message
    without room for the handle is left out, and so is a damaged message.
    """
    magic, tail = topic_field(topic)
    flag, parts = retry_flag(found.queue.topic), []
    for at in record_starts(found.records):
        try:
            old = decode_record(found.records, at)
        except ProtocolError as error:
            logger.error("a message of %s queue %d is damaged and not popped: %s", *found.queue[1:], error)
            continue
        handle = PopHandle(
            found.offsets[0], pop_ms, invisible_ms, revive_queue_id, flag, broker, old.queue_id, old.queue_offset
        )
        properties = with_handle(old.properties, handle)
        if properties is None:
            # The handle has no room, as may happen with a Java broker's message: no consumer could acknowledge it. It
            # becomes a dead letter when its invisible time is over.
            continue
        parts.append(
            encode_record(
                magic,
                tail,
                old.queue_id,
                old.queue_offset,
                old.physical_offset,
                old.body,
                properties,
                old.flag,
                old.sys_flag,
                old.born_timestamp,
                old.born_host,
                old.store_timestamp,
                old.store_host,
                old.reconsume_times,
                old.prepared_transaction_offset,
            )
        )
    return b"".join(parts)
