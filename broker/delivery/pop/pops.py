"""Pops (200050), peeks (200052), and questions whether there is something to pop (200054 to 200056).

A pop's check points are written before it is answered. So a message that a consumer has seen is either acknowledged in
time or comes back, whatever happens to the consumer or the broker. A pop that finds nothing is held (long polling).
Only the master answers: a slave cannot write check points. Codes and texts are RocketMQ's.
"""

from collections.abc import Callable

import trio

from broker.cold_reads import ColdReads
from broker.delivery.filters import Filters, check_property_filter
from broker.delivery.pop.asked import Checks, check_invisible
from broker.delivery.pop.copies import Copies
from broker.delivery.pop.found import Ask, Finder, Found, Haul, with_handles
from broker.delivery.pop.held import HeldPop, HeldPops
from broker.delivery.pop.log import ReviveLog
from broker.delivery.pop.records import Ack, Checkpoint, Key
from broker.observe.stats import BrokerStats
from broker.options import BrokerOptions
from broker.part import Part
from broker.store.filter import ALL, Filter
from mqcommon.clock import Clock
from mqcommon.errors import RequestRefused
from mqcommon.message.columns import record_starts
from mqcommon.message.record import decode_record
from mqcommon.polling import poll_until
from remoting.net.channel import Channel
from remoting.net.server import Handler, failure
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import CBOR, Command
from remoting.protocol.pop_info import (
    NORMAL,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    message_key,
    offset_info,
    pop_retry_topic,
    retry_flag,
)
from remoting.protocol.requests.clients import TAG
from remoting.protocol.requests.pops import (
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

SKYLARK_MAX_BYTES = 4 * 1024 * 1024
STOP_TIMEOUT_S = 2.0
REVIVE_QUEUE = 0
# One request of so many reads the retry topics first, so that a busy topic does not keep its messages from coming back.
RETRY_FIRST = 5


class PopHandlers(Part):
    """See the module."""

    tick_interval_ms = 100

    def __init__(
        self,
        log: ReviveLog,
        finder: Finder,
        held: HeldPops,
        copies: Copies,
        checks: Checks,
        filters: Filters,
        cold: ColdReads,
        stats: BrokerStats,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._log = log
        self._finder = finder
        self._held = held
        self._copies = copies
        self._checks = checks
        self._cold = cold
        self._stats = stats
        self._options = options
        self._clock = clock
        self._filters = filters
        self._requests = 0

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
        """Forget its held requests."""
        self._held.drop(channel)

    def tick(self) -> None:
        """Answer held requests at their deadlines."""
        self._held.expire(trio.current_time())

    # --- requests

    def pop(self, channel: Channel, request: Command) -> Command | None:
        """200050."""
        header = POP_MESSAGE.header(request)
        if not 1 <= header.max_msg_nums <= MAX_POP_COUNT:
            text = f"the broker[{self._options.broker_ip1}] pop message's num is {header.max_msg_nums}"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{text}, it must be 1 to {MAX_POP_COUNT}")
        if header.init_mode not in (INIT_MIN, INIT_MAX):
            text = f"initMode is {INIT_MIN} for the start or {INIT_MAX} for the end, not {header.init_mode}"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
        check_invisible(header.invisible_time)
        self._checks.reader(header.consumer_group, header.topic, header.queue_id)
        self._log.check_ready()
        ask = self._ask(request, header)
        held_for_ms = header.poll_time

        def once(last: bool) -> Command | None:
            return self._taken(request, header, ask) or (self._nothing(request, header) if last else None)

        def attempt(_waited_for_disk: bool) -> Command | None:
            response = once(held_for_ms <= 0)
            if response is None and not self._hold(channel, request, ask, held_for_ms, once):
                return self._nothing(request, header, ResponseCode.POLLING_FULL)
            return response

        return self._cold.handle(channel, request, attempt)

    def peek(self, channel: Channel, request: Command) -> Command:
        """200052."""
        header = PEEK_MESSAGE.header(request)
        self._checks.reader(header.consumer_group, header.topic, header.queue_id)
        self._log.check_ready()
        count = max(1, min(header.max_msg_nums, MAX_POP_COUNT))
        group, topic = header.consumer_group, header.topic
        ask = Ask(group, topic, header.queue_id, self._topics(group, topic), count, self._max_bytes(request), ALL, 0)
        haul = self._finder.peek(ask)
        pop_ms = self._clock.now_ms()
        if not haul.found:
            nothing = PopMessageResponseHeader(pop_ms, 0, REVIVE_QUEUE, haul.rest)
            return PEEK_MESSAGE.answer(request, nothing, code=ResponseCode.PULL_NOT_FOUND, remark="NO_MESSAGE")
        return self._answer(request, ask, haul.found, pop_ms, 0, haul.rest)

    def notify(self, channel: Channel, request: Command) -> Command | None:
        """200054."""
        header = NOTIFICATION.header(request)
        group, topic = header.consumer_group, header.topic
        self._checks.reader(group, topic, header.queue_id)
        self._log.check_ready()
        is_ordered = bool(header.order)
        topics = (topic,) if is_ordered else self._topics(group, topic)
        ask = Ask(group, topic, header.queue_id, topics, 1, 1, ALL, INIT_MIN, is_ordered, header.attempt_id)

        def once(last: bool) -> Command | None:
            has_message = self._finder.has_messages(ask, self._clock.now_ms())
            if not has_message and not last:
                return None
            return NOTIFICATION.answer(request, NotificationResponseHeader(has_message, False))

        response = once(header.poll_time <= 0)
        if response is None and not self._hold(channel, request, ask, header.poll_time, once):
            return NOTIFICATION.answer(request, NotificationResponseHeader(False, True))
        return response

    def polling_info(self, channel: Channel, request: Command) -> Command:
        """200055."""
        header = POLLING_INFO.header(request)
        self._checks.reader(header.consumer_group, header.topic, header.queue_id)
        waiting = self._held.waiting((header.topic, header.consumer_group), header.queue_id)
        return POLLING_INFO.answer(request, PollingInfoResponseHeader(waiting))

    def roll_back(self, channel: Channel, request: Command) -> Command:
        """200056 has RocketMQ write its database of popped messages to the log: here it is there already."""
        return POP_ROLLBACK.answer(request, None)

    # --- what is asked

    def _ask(self, request: Command, header: PopMessageRequestHeader) -> Ask:
        group, topic, is_ordered = header.consumer_group, header.topic, bool(header.order)
        topics = (topic,) if is_ordered else self._topics(group, topic)
        return Ask(
            group, topic, header.queue_id, topics, header.max_msg_nums, self._max_bytes(request),
            self._filter(header), header.init_mode, is_ordered, header.attempt_id,
        )  # fmt: skip

    def _topics(self, group: str, topic: str) -> tuple[str, ...]:
        """The topic and its retry topics, in the order in which this request reads them."""
        topics = _all_topics(group, topic)
        self._requests += 1
        return topics if self._requests % RETRY_FIRST else (*topics[1:], topic)

    def _filter(self, header: PopMessageRequestHeader) -> Filter:
        if header.exp_type not in (None, "", TAG):
            check_property_filter(self._options, header.exp_type)
        return self._filters.of_type(header.exp or "", header.exp_type)

    def _max_bytes(self, request: Command) -> int:
        is_skylark = request.codec == CBOR
        return SKYLARK_MAX_BYTES if is_skylark else self._options.max_transfer_bytes_on_message_in_memory

    # --- long polling

    def _hold(
        self, channel: Channel, request: Command, ask: Ask, wait_ms: int, once: Callable[[bool], Command | None]
    ) -> bool:
        def retry(last: bool) -> bool:
            # This runs in the turn of somebody else: an error here must not reach that connection.
            try:
                response = once(last)
            except Exception as error:
                response = failure(request, error)
            if response is not None:
                channel.reply(request, response)
            return response is not None

        self._finder.listen(ask)
        now = trio.current_time()
        wanted = ask.queue_id, ask.wanted, ask.is_ordered
        topics = _all_topics(ask.group, ask.topic)
        return self._held.hold(
            HeldPop(channel, (ask.topic, ask.group), topics, now + wait_ms / 1000, wanted, retry), now
        )

    # --- popping

    def _taken(self, request: Command, header: PopMessageRequestHeader, ask: Ask) -> Command | None:
        """The answer with messages, which are hidden now; None when there are none."""
        self._log.check_ready()
        if self._log.is_full:
            text = "[REJECTREQUEST]too many popped messages are not acknowledged; acknowledge some, or try again later"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, text)
        now_ms = self._clock.now_ms()
        haul = self._finder.look(ask, now_ms)
        if ask.is_ordered:
            haul.found = [found for found in map(self._without_dead, haul.found) if found.offsets]
        if not haul.found:
            return self._nothing(request, header) if haul.unseen else None
        pop_ms = self._free_time(haul, now_ms)
        hidden = self._hide(ask, haul, pop_ms, header.invisible_time)
        return self._answer(request, ask, hidden, pop_ms, header.invisible_time, haul.rest)

    def _free_time(self, haul: Haul, now_ms: int) -> int:
        """A time for the handles: with the offset it is the identity of a check point."""
        inflight, pop_ms = self._log.inflight, now_ms
        while any([inflight.of(Key(found.queue, found.offsets[0], pop_ms)) for found in haul.found]):
            pop_ms += 1
        return pop_ms

    def _hide(self, ask: Ask, haul: Haul, pop_ms: int, invisible_ms: int) -> list[Found]:
        """Write the check points; returns what is hidden. RequestRefused when nothing can be."""
        hidden: list[Found] = []
        for found in haul.found:
            key = Key(found.queue, found.offsets[0], pop_ms)
            checkpoint = Checkpoint(
                key, invisible_ms, found.offsets, found.position,
                is_ordered=ask.is_ordered, counts=found.counts if ask.is_ordered else (),
            )  # fmt: skip
            try:
                self._log.write(checkpoint)
            except RequestRefused:
                if not hidden:
                    raise
                break
            hidden.append(found)
            if ask.is_ordered:
                self._finder.attempts[found.queue] = ask.attempt_id or ""
        return hidden

    def _without_dead(self, found: Found) -> Found:
        """Messages in order without those that were delivered too often, which become dead letters."""
        most = self._copies.most_deliveries(found.queue.group)
        if found.position is not None or max(found.counts, default=0) <= most:
            self._give_up_missing(found)
            return found
        data, starts = found.records, list(record_starts(found.records))
        kept = [place for place, count in enumerate(found.counts) if count <= most]
        ends = [*starts[1:], len(data)]
        dead = [offset for place, offset in enumerate(found.offsets) if place not in kept]
        for place in range(len(starts)):
            if place not in kept:
                self._copies.bury(decode_record(data, starts[place]), found.queue)
        lease = self._log.inflight.ordered[found.queue]
        self._log.write(Ack(lease.checkpoint.key, dead))
        return Found(
            found.queue, b"".join([data[starts[place] : ends[place]] for place in kept]),
            [found.offsets[place] for place in kept], None, tuple(found.counts[place] for place in kept),
        )  # fmt: skip

    def _give_up_missing(self, found: Found) -> None:
        """Messages in order that are not in the log any more must not block their queue."""
        lease = self._log.inflight.ordered.get(found.queue)
        if found.position is None and not found.offsets and lease is not None:
            self._log.write(Ack(lease.checkpoint.key, lease.left))

    # --- answers

    def _nothing(
        self, request: Command, header: PopMessageRequestHeader, code: int = ResponseCode.POLLING_TIMEOUT
    ) -> Command:
        self._stats.miss()
        revive_queue = ORDER_REVIVE_QUEUE if header.order else REVIVE_QUEUE
        fields = PopMessageResponseHeader(self._clock.now_ms(), header.invisible_time, revive_queue, 0)
        remark = "the broker holds too many requests" if code == ResponseCode.POLLING_FULL else "NO_MESSAGE_IN_QUEUE"
        return POP_MESSAGE.answer(request, fields, code=code, remark=remark)

    def _answer(
        self, request: Command, ask: Ask, taken: list[Found], pop_ms: int, invisible_ms: int, rest: int
    ) -> Command:
        revive_queue = ORDER_REVIVE_QUEUE if ask.is_ordered else REVIVE_QUEUE
        starts, offsets, counts, bodies = [], [], [], []
        for found in taken:
            queue_id, flag = found.queue.queue_id, retry_flag(found.queue.topic)
            starts.append((flag, queue_id, found.offsets[0]))
            offsets.append((flag, queue_id, ",".join(map(str, found.offsets))))
            if ask.is_ordered:
                counts += _counts(found)
            body = found.records
            if flag != NORMAL:
                name = self._log.broker_name
                body = with_handles(found, ask.topic, pop_ms, invisible_ms, revive_queue, name)
            bodies.append(body)
            self._stats.get(ask.group, found.queue.topic, len(found.offsets), len(body))
        fields = PopMessageResponseHeader(
            pop_ms, invisible_ms, revive_queue, rest, offset_info(starts), offset_info(offsets),
            offset_info(counts) if counts else None,
        )  # fmt: skip
        return POP_MESSAGE.answer(
            request, fields, remark="FOUND", body=bodies[0] if len(bodies) == 1 else b"".join(bodies)
        )


def _all_topics(group: str, topic: str) -> tuple[str, ...]:
    """The topic and its retry topics."""
    return topic, pop_retry_topic(topic, group, RETRY_V1), pop_retry_topic(topic, group, RETRY_V2)


def _counts(found: Found) -> list[tuple[str, int | str, object]]:
    """How often messages were delivered before: by message, and for older clients the least of the queue."""
    queue_id, flag = found.queue.queue_id, retry_flag(found.queue.topic)
    of_messages: list[tuple[str, int | str, object]] = [
        (flag, message_key(queue_id, offset), count)
        for offset, count in zip(found.offsets, found.counts, strict=True)
        if count
    ]
    return [*of_messages, (flag, queue_id, min(found.counts))]
