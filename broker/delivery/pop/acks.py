"""Acknowledgements (200051, 200151), and changes of the time at which a message becomes visible (200053).

An acknowledgement is answered when its record is as safe as an acknowledged send: see writing/durability.py. From then
on the message does not come back. An acknowledgement that comes too late, or again, is answered with success, as in
RocketMQ: the message was acknowledged, or its copy is on its way. A change of the visible time is refused when the
message is no longer in flight under its handle.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import trio

from skylark.broker.delivery.pop.checks import PopChecks, check_invisible, handle_of, key_of
from skylark.broker.delivery.pop.inflight import PopLease
from skylark.broker.delivery.pop.records import Ack, Key, PopCheckpoint, Queue
from skylark.broker.delivery.pop.state import PopState
from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.durability import Durability
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import check_group
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.pop_info import NORMAL, ORDER_REVIVE_QUEUE, RETRY_V1, RETRY_V2, read_topic
from skylark.remoting.protocol.requests.pops import (
    ACK_MESSAGE,
    BATCH_ACK_MESSAGE,
    CHANGE_MESSAGE_INVISIBLETIME,
    BatchAck,
    ChangeInvisibleTimeResponseHeader,
)

# Some 3,000 check points.
LIMITS = BodyLimits(max_bytes=1 << 20, max_entries=40_000)
#: The most bits of an entry. A check point spans fewer offsets, even with the messages that a filter left out.
MAX_BITS = 65_536
# A search in C passes 65,536 bits in some 25 us.
_ones = re.compile("1").finditer
_RETRIES = (NORMAL, RETRY_V1, RETRY_V2)


class AckHandlers(Part):
    """Handles acknowledgements (200051, 200151) and changes of the invisible time (200053)."""

    def __init__(
        self,
        state: PopState,
        checks: PopChecks,
        store: MessageStore,
        durability: Durability,
        clock: Clock,
    ) -> None:
        self._log = state.log
        self._held = state.held
        self._checks = checks
        self._store = store
        self._durability = durability
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            ACK_MESSAGE.code: self.ack,
            BATCH_ACK_MESSAGE.code: self.ack_many,
            CHANGE_MESSAGE_INVISIBLETIME.code: self.change_time,
        }

    def ack(self, channel: Channel, request: Command) -> Command | None:
        """200051: acknowledge one popped message."""
        header = ACK_MESSAGE.header(request)
        check_group(header.consumer_group)
        self._check_offset(header.topic, header.queue_id, header.offset)
        key = key_of(handle_of(header.extra_info), header.consumer_group, header.topic, header.queue_id)
        self._log.check_ready()
        return self._answer_when_safe(channel, request, self._write(key, [header.offset]))

    def ack_many(self, channel: Channel, request: Command) -> Command | None:
        """200151: acknowledge several messages; all entries are checked before the first is applied."""
        body = BATCH_ACK_MESSAGE.body(request, LIMITS)
        entries = [(self._key(entry), _offsets(entry)) for entry in body.acks]
        self._log.check_ready()
        end = 0
        for key, offsets in entries:
            end = max(end, self._write(key, offsets))
        return self._answer_when_safe(channel, request, end)

    def change_time(self, channel: Channel, request: Command) -> Command | None:
        """200053: the message gets a check point, and so a handle, of its own; popped in order, it keeps its handle."""
        header = CHANGE_MESSAGE_INVISIBLETIME.header(request)
        check_group(header.consumer_group)
        check_invisible(header.invisible_time)
        self._check_offset(header.topic, header.queue_id, header.offset)
        handle = handle_of(header.extra_info)
        key = key_of(handle, header.consumer_group, header.topic, header.queue_id)
        self._log.check_ready()
        lease = self._log.inflight.of(key)
        if lease is None or not self._log.inflight.hidden(key, [header.offset]):
            raise RequestRefused(
                ResponseCode.NO_MESSAGE,
                f"message {header.offset} of {header.topic} queue {header.queue_id} is not in flight with this handle:"
                " it was acknowledged, or its invisible time is over",
            )
        now_ms = self._clock.now_ms()
        # A queue that is popped in order has one check point, in which the message gets a time of its own. Any other
        # message moves from its check point to a new one, which `replaces` the old one in one record: at no time is the
        # message in neither or in both.
        if lease.checkpoint.is_ordered:
            record = _visible_at(lease, header.offset, now_ms + header.invisible_time)
            pop_ms, revive_queue = key.pop_ms, ORDER_REVIVE_QUEUE
        else:
            pop_ms, revive_queue = now_ms, handle.revive_queue_id
            # Offset and time identify the new check point, so the pair must be unused.
            while self._log.inflight.of(Key(key.queue, header.offset, pop_ms)) is not None:
                pop_ms += 1
            own = Key(key.queue, header.offset, pop_ms)
            record = PopCheckpoint(own, header.invisible_time, range(header.offset, header.offset + 1), replaces=key)
        put = self._log.write(record)
        fields = ChangeInvisibleTimeResponseHeader(pop_ms, header.invisible_time, revive_queue)
        answer = CHANGE_MESSAGE_INVISIBLETIME.answer(request, fields)
        return self._answer_when_safe(channel, request, put.end, answer)

    def _check_offset(self, topic: str, queue_id: int, offset: int) -> None:
        self._checks.queue(topic, queue_id)
        # A message that was read from the bucket may be before all that the store has.
        low = 0 if self._store.log.older is not None else self._store.min_offset(topic, queue_id)
        high = self._store.max_offset(topic, queue_id)
        if not low <= offset < high:
            text = f"request offset[{offset}] not in queue offset range[{low}, {high}], topic:{topic} queue:{queue_id}"
            raise RequestRefused(ResponseCode.NO_MESSAGE, text)

    def _key(self, entry: BatchAck) -> Key:
        check_group(entry.consumer_group)
        if entry.retry not in _RETRIES:
            text = f"r is {entry.retry[:20]!r} for topic {entry.topic}, it must be 0, 1 or 2"
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, text)
        topic = read_topic(entry.topic, entry.consumer_group, entry.retry)
        return Key(Queue(entry.consumer_group, topic, entry.queue_id), entry.start_offset, entry.pop_time)

    def _write(self, key: Key, offsets: Sequence[int]) -> int:
        """Acknowledge the messages that are in flight; returns the end of the record, 0 if no record is needed."""
        lease, hidden = self._log.inflight.of(key), self._log.inflight.hidden(key, offsets)
        if lease is None or not hidden:
            return 0
        put = self._log.write(Ack(key, hidden))
        # All messages in flight are acknowledged: the queue may be popped again.
        if lease.checkpoint.is_ordered and not lease.unacked:
            group, topic, _ = key.queue
            self._held.wake((topic, group))
        return put.end

    def _answer_when_safe(
        self, channel: Channel, request: Command, end: int, answer: Command | None = None
    ) -> Command | None:
        """``answer``, if the log is safe up to ``end`` already, which is 0 if no record was written."""
        answer = answer or request.respond()
        if not end or not self._durability.waits:
            return answer
        return self._durability.answer_when_safe(channel, request, answer, end, trio.current_time(), _explain_if_unsafe)


def _explain_if_unsafe(answer: Command) -> None:
    if answer.code != ResponseCode.SUCCESS:
        answer.remark = "it was stored, but not safely in time: acknowledge the messages again"


def _offsets(entry: BatchAck) -> Sequence[int]:
    """The offsets of the messages that ``entry`` acknowledges."""
    if entry.bits.bit_length() > MAX_BITS:
        text = f"b has {entry.bits.bit_length()} bits for topic {entry.topic}, at most {MAX_BITS} are taken"
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, text)
    skipped = max((entry.bits & -entry.bits).bit_length() - 1, 0)
    first, run = entry.start_offset + skipped, entry.bits >> skipped
    # Mostly neighbours are acknowledged together.
    if not run & run + 1:
        return range(first, first + run.bit_length())
    # Reading a string takes time in proportion to its length. Shifts of a large number would take its square.
    return [entry.start_offset + found.start() for found in _ones(f"{entry.bits:b}"[::-1])]


def _visible_at(lease: PopLease, offset: int, due_ms: int) -> PopCheckpoint:
    """The check point of an ordered pop, with a new visible time ``due_ms`` for the message at ``offset``."""
    again = lease.renewed()
    times = dict(again.visible_ms)
    if lease.moved_ms:
        # The other messages keep their times, adjusted to the present clock.
        times = {other: times.get(other, again.due_ms) + lease.moved_ms for other in lease.left}
    return replace(again, visible_ms={**times, offset: due_ms})
