"""Pops (200050), peeks (200052), and questions whether there is something to pop (200054 to 200056).

A pop's check points are written before it is answered. So a message that a consumer has received is either acknowledged
in time or comes back, whatever happens to the consumer or the broker. A pop that finds nothing is held (long polling).
Only the master answers: a slave cannot write check points. Codes and texts are RocketMQ's.
"""

import logging
import random
from collections.abc import Callable
from functools import partial

import trio

from skylark.broker.cold_reads import ColdReads
from skylark.broker.delivery.pop.checks import PopChecks, check_invisible
from skylark.broker.delivery.pop.finder import Finder, PopQuery, QueueMessages, QueueOrder, with_handles
from skylark.broker.delivery.pop.held_pops import HeldPop
from skylark.broker.delivery.pop.records import Ack, Key, PopCheckpoint, Queue
from skylark.broker.delivery.pop.state import PopState
from skylark.broker.meta.groups import PRIORITY_FACTOR
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.filter import ALL
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.polling import poll_until
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.pop_info import (
    NORMAL,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    message_key,
    offset_info,
    pop_retry_topic,
    retry_flag,
)
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.pops import (
    ANY_QUEUE,
    INIT_MAX,
    INIT_MIN,
    MAX_POP_COUNT,
    NOTIFICATION,
    PEEK_MESSAGE,
    POLLING_INFO,
    POP_MESSAGE,
    POP_ROLLBACK,
    NotificationResponseHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)

logger = logging.getLogger(__name__)

SKYLARK_MAX_BYTES = 4 * 1024 * 1024
STOP_TIMEOUT_S = 2.0
REVIVE_QUEUE = 0


class PopHandlers(Part):
    """Handles pops, peeks and questions of pop consumers."""

    tick_interval_ms = 100

    def __init__(
        self,
        state: PopState,
        finder: Finder,
        checks: PopChecks,
        cold: ColdReads,
        stats: BrokerStats,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._log = state.log
        self._held = state.held
        self._copies = state.copies
        self._finder = finder
        self._checks = checks
        self._cold = cold
        self._stats = stats
        self._options = options
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            POP_MESSAGE.code: self.pop,
            PEEK_MESSAGE.code: self._cold.guarded(self.peek),
            NOTIFICATION.code: self.notify,
            POLLING_INFO.code: self.polling_info,
            POP_ROLLBACK.code: self.roll_back,
        }

    async def stop(self) -> None:
        """Answer all held requests."""
        self._held.release()
        await poll_until(lambda: not self._held, STOP_TIMEOUT_S)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the held requests of the channel."""
        self._held.drop(channel)

    def tick(self) -> None:
        """Answer held requests at their deadlines."""
        self._held.expire(trio.current_time())

    # --- requests

    def pop(self, channel: Channel, request: Command) -> Command | None:
        """200050: give a consumer messages and hide them from its group until the invisible time is over."""
        header = POP_MESSAGE.header(request)
        if not 1 <= header.max_msg_nums <= MAX_POP_COUNT:
            text = f"the broker[{self._options.broker_ip1}] pop message's num is {header.max_msg_nums}"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{text}, it must be 1 to {MAX_POP_COUNT}")
        if header.init_mode not in (INIT_MIN, INIT_MAX):
            text = f"initMode is {INIT_MIN} for the start or {INIT_MAX} for the end, not {header.init_mode}"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
        check_invisible(header.invisible_time)
        group = self._checks.reader(header.consumer_group, header.topic, header.queue_id)
        self._log.check_ready()
        query = self._query(request, header, group)
        pop = self._waiting(channel, request, query, header.poll_time, partial(self._try_pop, header, query))
        return self._cold.handle(channel, request, partial(pop.answer, pop))

    def _try_pop(self, header: PopMessageRequestHeader, query: PopQuery, pop: HeldPop) -> Command | None:
        """The answer, with messages that are hidden from now on, or without messages; None if ``pop`` waits."""
        self._log.check_ready()
        if self._log.is_full:
            text = "[REJECTREQUEST]too many popped messages are not acknowledged; acknowledge some, or try again later"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, text)
        # Up to here, and in `find`, all changes can be repeated: a read may raise NotResident, and the whole method
        # runs again when a thread has read the disk.
        now_ms = self._clock.now_ms()
        result = self._finder.find(query, now_ms)
        found = result.queues
        if query.is_ordered:
            found = [kept for kept in map(self._without_dead, found) if kept.offsets]
        if not found:
            if result.unseen or pop.is_last:
                return self._empty_answer(pop.request, header)
            if self._holds(pop, query):
                return None
            return self._empty_answer(pop.request, header, ResponseCode.POLLING_FULL)
        pop_ms = self._free_time(found, now_ms)
        # The check points are written before the answer is sent: a message that a consumer has received comes back
        # unless it is acknowledged. If a check point cannot be written, only the queues before it are in the answer; if
        # no check point can be written, nothing is popped.
        hidden: list[QueueMessages] = []
        for of_queue in found:
            key = Key(of_queue.queue, of_queue.offsets[0], pop_ms)
            checkpoint = PopCheckpoint(
                key,
                header.invisible_time,
                of_queue.offsets,
                of_queue.position,
                is_ordered=query.is_ordered,
                counts=of_queue.counts if query.is_ordered else (),
            )
            try:
                self._log.write(checkpoint)
            except RequestRefused:
                if not hidden:
                    raise
                break
            hidden.append(of_queue)
            if query.is_ordered:
                self._log.inflight.attempts[of_queue.queue] = query.attempt_id or ""
        return self._answer(pop.request, query, hidden, pop_ms, header.invisible_time, result.rest)

    def peek(self, channel: Channel, request: Command) -> Command:
        """200052: messages that a pop would return; none of them becomes invisible."""
        header = PEEK_MESSAGE.header(request)
        known = self._checks.reader(header.consumer_group, header.topic, header.queue_id)
        self._log.check_ready()
        count = max(1, min(header.max_msg_nums, MAX_POP_COUNT))
        group, topic = header.consumer_group, header.topic
        order = self._order(known, topic, header.queue_id)
        query = PopQuery(
            group,
            topic,
            header.queue_id,
            self._topics(group, topic, order),
            count,
            self._max_bytes(request),
            ALL,
            INIT_MIN,
            order=order,
        )
        result = self._finder.peek(query)
        pop_ms = self._clock.now_ms()
        if not result.queues:
            nothing = PopMessageResponseHeader(pop_ms, 0, REVIVE_QUEUE, result.rest)
            return PEEK_MESSAGE.answer(request, nothing, code=ResponseCode.PULL_NOT_FOUND, remark="NO_MESSAGE")
        return self._answer(request, query, result.queues, pop_ms, 0, result.rest)

    def notify(self, channel: Channel, request: Command) -> Command | None:
        """200054: whether there is a message for a group; the answer waits for one."""
        header = NOTIFICATION.header(request)
        group, topic = header.consumer_group, header.topic
        self._checks.reader(group, topic, header.queue_id)
        self._log.check_ready()
        is_ordered = bool(header.order)
        topics = (topic,) if is_ordered else self._topics(group, topic)
        query = PopQuery(group, topic, header.queue_id, topics, 1, 1, ALL, INIT_MIN, is_ordered, header.attempt_id)
        pop = self._waiting(channel, request, query, header.poll_time, partial(self._notification, query))
        return pop.answer(pop)

    def _notification(self, query: PopQuery, pop: HeldPop) -> Command | None:
        """The answer whether there are messages; None if ``pop`` waits for messages."""
        has_message, is_full = self._finder.has_messages(query, self._clock.now_ms()), False
        if not has_message and not pop.is_last:
            if self._holds(pop, query):
                return None
            is_full = True
        return NOTIFICATION.answer(pop.request, NotificationResponseHeader(has_message, is_full))

    def polling_info(self, channel: Channel, request: Command) -> Command:
        """200055: how many pops wait for messages of a queue."""
        header = POLLING_INFO.header(request)
        self._checks.reader(header.consumer_group, header.topic, header.queue_id)
        waiting = self._held.waiting((header.topic, header.consumer_group), header.queue_id)
        return POLLING_INFO.answer(request, PollingInfoResponseHeader(waiting))

    def roll_back(self, channel: Channel, request: Command) -> Command:
        """200056: in RocketMQ, write the database of popped messages to the log. No effect here: it is in the log."""
        return POP_ROLLBACK.answer(request, None)

    # --- queries

    def _query(self, request: Command, header: PopMessageRequestHeader, config: SubscriptionGroupConfig) -> PopQuery:
        group, topic, is_ordered = header.consumer_group, header.topic, bool(header.order)
        order = QueueOrder.ROTATING if is_ordered else self._order(config, topic, header.queue_id)
        topics = (topic,) if is_ordered else self._topics(group, topic, order)
        return PopQuery(
            group,
            topic,
            header.queue_id,
            topics,
            header.max_msg_nums,
            self._max_bytes(request),
            self._checks.filter(header),
            header.init_mode,
            is_ordered,
            header.attempt_id,
            order,
        )

    def _order(self, group: SubscriptionGroupConfig, topic: str, queue_id: int) -> QueueOrder:
        """In which order this request reads the queues."""
        if queue_id != ANY_QUEUE or not self._checks.has_priorities(topic):
            return QueueOrder.ROTATING
        factor = group.attributes.get(PRIORITY_FACTOR, "")
        if factor.isdigit() and not _happens(int(factor[:3])):
            return QueueOrder.ROTATING
        return QueueOrder.HIGHEST_FIRST if self._options.priority_order_asc else QueueOrder.LOWEST_FIRST

    def _topics(self, group: str, topic: str, order: QueueOrder = QueueOrder.ROTATING) -> tuple[str, ...]:
        """The topic and its retry topics, in the order in which this request reads them.

        Some requests read the retry topics first, so that messages of a busy topic can come back.
        """
        options, topics = self._options, _all_topics(group, topic)
        if order is QueueOrder.ROTATING:
            is_retry_first = _happens(options.pop_from_retry_probability)
        else:
            is_retry_first = _happens(options.pop_from_retry_probability_for_priority)
        return (*topics[1:], topic) if is_retry_first else topics

    def _max_bytes(self, request: Command) -> int:
        is_skylark = request.codec == CBOR
        return SKYLARK_MAX_BYTES if is_skylark else self._options.max_transfer_bytes_on_message_in_memory

    # --- long polling

    def _waiting(
        self,
        channel: Channel,
        request: Command,
        query: PopQuery,
        wait_ms: int,
        answer: Callable[[HeldPop], Command | None],
    ) -> HeldPop:
        """The object for a request that is tried, and held if it finds nothing and may wait."""
        return HeldPop(
            channel,
            request,
            (query.topic, query.group),
            (query.queue_id, query.wanted, query.is_ordered),
            wait_ms,
            answer,
            is_last=wait_ms <= 0,
        )

    def _holds(self, pop: HeldPop, query: PopQuery) -> bool:
        """Hold ``pop``, which found nothing, if it is not held yet; returns False when too many requests wait."""
        if pop.is_held:
            return True
        self._finder.listen(query)
        return self._held.hold(pop, _all_topics(query.group, query.topic), trio.current_time())

    # --- popping

    def _free_time(self, found: list[QueueMessages], now_ms: int) -> int:
        """A pop time for the handles that no open check point of these messages has: time and offset identify it."""
        inflight, pop_ms = self._log.inflight, now_ms
        while any([inflight.of(Key(of_queue.queue, of_queue.offsets[0], pop_ms)) for of_queue in found]):
            pop_ms += 1
        return pop_ms

    def _without_dead(self, found: QueueMessages) -> QueueMessages:
        """``found``, popped in order, without messages that were delivered too often, which become dead letters."""
        most = self._copies.most_deliveries(found.queue.group)
        # Messages that are popped for the first time cannot be dead letters; and usually no other message is.
        if found.position is not None or max(found.counts, default=0) <= most:
            self._give_up_missing(found)
            return found
        data, starts = found.records, list(record_starts(found.records))
        kept = [place for place, count in enumerate(found.counts) if count <= most]
        ends = [*starts[1:], len(data)]
        lease, dead = self._log.inflight.ordered[found.queue], list[int]()
        try:
            for place, offset in enumerate(found.offsets):
                if place not in kept:
                    self._make_dead_letter(data, starts[place], offset, found.queue)
                    dead.append(offset)
        finally:
            if dead:
                # If storing the next dead letter fails, the messages stored so far must not become dead letters again.
                self._log.write_own(Ack(lease.checkpoint.key, dead))
        return QueueMessages(
            found.queue,
            b"".join([data[starts[place] : ends[place]] for place in kept]),
            [found.offsets[place] for place in kept],
            None,
            tuple(found.counts[place] for place in kept),
        )

    def _make_dead_letter(self, data: bytes, at: int, offset: int, queue: Queue) -> None:
        try:
            record = decode_record(data, at)
        except ProtocolError as error:
            # An order that waits for it would never go on.
            logger.error("message %d of %s queue %d is damaged and given up: %s", offset, *queue[1:], error)
        else:
            self._copies.make_dead_letter(record, queue)

    def _give_up_missing(self, found: QueueMessages) -> None:
        """Acknowledge messages in order that are not in the log any more: they must not block their queue."""
        lease = self._log.inflight.ordered.get(found.queue)
        if found.position is None and not found.offsets and lease is not None:
            self._log.write(Ack(lease.checkpoint.key, lease.left))

    # --- answers

    def _empty_answer(
        self, request: Command, header: PopMessageRequestHeader, code: int = ResponseCode.POLLING_TIMEOUT
    ) -> Command:
        self._stats.miss()
        revive_queue = ORDER_REVIVE_QUEUE if header.order else REVIVE_QUEUE
        fields = PopMessageResponseHeader(self._clock.now_ms(), header.invisible_time, revive_queue, 0)
        remark = "the broker holds too many requests" if code == ResponseCode.POLLING_FULL else "NO_MESSAGE_IN_QUEUE"
        return POP_MESSAGE.answer(request, fields, code=code, remark=remark)

    def _answer(
        self, request: Command, query: PopQuery, taken: list[QueueMessages], pop_ms: int, invisible_ms: int, rest: int
    ) -> Command:
        # The client makes the handle of each message from its queue's first offset and its own offset; messages of
        # retry topics have their handles as a property.
        revive_queue = ORDER_REVIVE_QUEUE if query.is_ordered else REVIVE_QUEUE
        starts, offsets, counts, bodies = [], [], [], []
        for found in taken:
            queue_id, flag = found.queue.queue_id, retry_flag(found.queue.topic)
            starts.append((flag, queue_id, found.offsets[0]))
            offsets.append((flag, queue_id, ",".join(map(str, found.offsets))))
            if query.is_ordered:
                counts += _counts(found)
            body = found.records
            if flag != NORMAL:
                name = self._log.broker_name
                body = with_handles(found, query.topic, pop_ms, invisible_ms, revive_queue, name)
            bodies.append(body)
            self._stats.get(query.group, found.queue.topic, len(found.offsets), len(body))
        fields = PopMessageResponseHeader(
            pop_ms,
            invisible_ms,
            revive_queue,
            rest,
            offset_info(starts),
            offset_info(offsets),
            offset_info(counts) if counts else None,
        )
        return POP_MESSAGE.answer(
            request, fields, remark="FOUND", body=bodies[0] if len(bodies) == 1 else b"".join(bodies)
        )


def _happens(percent: int) -> bool:
    """True in ``percent`` of 100 calls, at random: with a counter, groups whose pops alternate could starve."""
    return percent > 0 and (percent >= 100 or random.random() * 100 < percent)


def _all_topics(group: str, topic: str) -> tuple[str, ...]:
    """The topic and its retry topics."""
    return topic, pop_retry_topic(topic, group, RETRY_V1), pop_retry_topic(topic, group, RETRY_V2)


def _counts(found: QueueMessages) -> list[tuple[str, int | str, object]]:
    """How often messages were delivered before: by message, and for older clients the minimum of the queue."""
    queue_id, flag = found.queue.queue_id, retry_flag(found.queue.topic)
    of_messages: list[tuple[str, int | str, object]] = [
        (flag, message_key(queue_id, offset), count)
        for offset, count in zip(found.offsets, found.counts, strict=True)
        if count
    ]
    return [*of_messages, (flag, queue_id, min(found.counts))]
