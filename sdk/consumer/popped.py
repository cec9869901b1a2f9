"""Popped messages, each with the handle that identifies it at its broker; and the requests about popped messages.

The messages of one check point share a `Lease`, so that a batch has little cost per message, and their acknowledgements
are bits of one number.
Brokers of RocketMQ hand out an inner batch (mqcommon/message/inner.py) as one message: it is hidden, acknowledged and
delivered again as a whole. So it is acknowledged when the last of its messages is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.columns import whole_records
from skylark.mqcommon.message.inner import may_hold_batches, unwrapped
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import POP_HANDLE
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.call import call
from skylark.remoting.protocol.pop_info import NORMAL, PopHandle, parse_handle, parse_offset_info, read_topic
from skylark.remoting.protocol.requests import pops
from skylark.remoting.protocol.requests.clients import TAG
from skylark.remoting.protocol.requests.pops import (
    ANY_QUEUE,
    BatchAck,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from skylark.sdk.consumer.damaged import SHOWN_AGAIN, log_left_out
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.namespaces import unwrap

#: The most offsets between the first and the last message of one pop, of which filters may have skipped some.
MAX_OFFSETS = 65_536


class Lease(NamedTuple):
    """The common part of the handles of one check point's messages. ``topic`` and ``group`` are names of servers."""

    topic: str
    group: str
    broker_name: str
    queue_id: int
    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry: str

    @classmethod
    def of(cls, handle: PopHandle, topic: str, group: str) -> "Lease":
        """The common part of the handle of one message."""
        return cls(
            topic,
            group,
            handle.broker_name,
            handle.queue_id,
            handle.start_offset,
            handle.pop_time,
            handle.invisible_time,
            handle.revive_queue_id,
            handle.retry,
        )

    @property
    def read_topic(self) -> str:
        """The topic that the messages were read from: ``topic``, or one of its retry topics."""
        return read_topic(self.topic, self.group, self.retry)

    def handle(self, offset: int | None = None) -> PopHandle:
        """The handle of one message; without ``offset`` what the handles of all its messages share."""
        return PopHandle(
            self.start_offset,
            self.pop_time,
            self.invisible_time,
            self.revive_queue_id,
            self.retry,
            self.broker_name,
            self.queue_id,
            offset,
        )

    def acks(self, bits: int) -> BatchAck:
        """The acknowledgement of the messages at ``start_offset`` + the places of these bits."""
        return BatchAck(
            bits,
            self.group,
            self.invisible_time,
            self.pop_time,
            self.queue_id,
            self.retry,
            self.revive_queue_id,
            self.start_offset,
            self.topic,
        )

    def renewed(self, offset: int, answer: ChangeInvisibleTimeResponseHeader) -> "Lease":
        """The lease of one message whose invisible time was changed."""
        return self._replace(
            start_offset=offset,
            pop_time=answer.pop_time,
            invisible_time=answer.invisible_time,
            revive_queue_id=answer.revive_qid,
        )


class ReceivedMessage(MessageExt):
    """A message hidden from the group's other consumers until it is acknowledged, or its invisible time is over."""

    # ``whole``: the inner batch that contains the message, if any.
    __slots__ = ("_namespace", "lease", "whole")

    def __init__(self, data: bytes, at: int, broker_name: str, lease: Lease, namespace: str) -> None:
        # A call by way of super() takes twice the time.
        MessageExt.__init__(self, data, at, broker_name)
        self.lease = lease
        self.whole: Whole | None = None
        self._namespace = namespace

    @property
    def topic(self) -> str:
        return unwrap(self._namespace, self.record.topic)

    @property
    def receipt_handle(self) -> str:
        """The handle as RocketMQ's clients write it. A change of the invisible time changes the handle."""
        return str(self.lease.handle(self.leased_offset))

    @property
    def leased_offset(self) -> int:
        """The offset in the message's handle. For a message of an inner batch it is the batch's offset."""
        return self.queue_offset if self.whole is None else self.whole.messages[0].queue_offset

    def renew(self, lease: Lease) -> None:
        """Set the message's new lease. All messages of an inner batch get the new lease."""
        for message in (self,) if self.whole is None else self.whole.messages:
            message.lease = lease

    @property
    def delivery_attempt(self) -> int:
        """1 at the first delivery, 2 when the message was delivered again once."""
        return self.reconsume_times + 1


class Whole:
    """The ``messages`` of one inner batch. ``_left`` are the offsets of messages that are not acknowledged."""

    __slots__ = ("_left", "messages")

    def __init__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.messages = messages
        self._left = {message.queue_offset for message in messages}

    def finish(self, offset: int) -> bool:
        """Acknowledge one message. Returns whether all messages are acknowledged now, also when called again."""
        self._left.discard(offset)
        return not self._left


class DamagedMessage(NamedTuple):
    """A message of a pop that cannot be read, for ``reason``: the message at ``offset`` of the lease's queue."""

    lease: Lease
    offset: int
    reason: str

    def log(self, what_next: str = SHOWN_AGAIN) -> None:
        """Log, once, that the message is left out. ``what_next``: what happens to it."""
        lease = self.lease
        log_left_out(
            MessageQueue(lease.read_topic, lease.broker_name, lease.queue_id), self.offset, self.reason, what_next
        )


def received(
    data: bytes,
    header: PopMessageResponseHeader,
    topic: str,
    group: str,
    broker_name: str,
    namespace: str,
    on_damaged: Callable[[DamagedMessage], None] = DamagedMessage.log,
) -> list[ReceivedMessage]:
    """The messages of a pop that can be read; ``on_damaged`` is called with each of the others.

    What follows a record whose end is not known cannot be read, either; it is not acknowledged, so it comes again.
    ProtocolError when the broker's answer cannot be read at all.
    """
    first = Lease(topic, group, broker_name, 0, 0, header.pop_time, header.invisible_time, header.revive_qid, NORMAL)
    try:
        leases = {
            (retry, queue_id): first._replace(queue_id=int(queue_id), start_offset=int(start), retry=retry)
            for (retry, queue_id), start in parse_offset_info(header.start_offset_info or "").items()
        }
    except ValueError as error:
        raise ProtocolError(f"the answer to a pop cannot be read: {error!r}") from None
    # In the usual answer all messages are from one queue and share its lease: no message needs to be parsed for it.
    only = next(iter(leases.values())) if len(leases) == 1 else None

    def make(at: int) -> ReceivedMessage:
        message = ReceivedMessage(data, at, broker_name, only or first, namespace)
        if only is None or only.retry != NORMAL:
            message.lease = _lease_of(message, leases)
        return message

    starts, cut = whole_records(data)
    damage: dict[int, str] = {}
    try:
        found = _each(data, starts, make)
    except ProtocolError:
        sound = []
        for row, at in enumerate(starts):
            try:
                _each(data, [at], make)
            except ProtocolError as error:
                damage[row] = str(error)
            else:
                sound.append(at)
        found = _each(data, sound, make)
    if cut is not None and cut.row - 1 not in damage:
        # After a damaged record it is not certain that another one was to begin there.
        damage[cut.row] = cut.reason
    if damage:
        places = _places(header, leases)
        for row, reason in sorted(damage.items()):
            lease = only or first
            lease, offset = places[row] if row < len(places) else (lease, lease.start_offset + row)
            on_damaged(DamagedMessage(lease, offset, reason))
    return found


def _lease_of(message: ReceivedMessage, leases: Mapping[tuple[str, str], Lease]) -> Lease:
    # A message that comes again is in the retry topic, and names the queue that it was popped from in its handle.
    own, any_lease = _own_handle(message), message.lease
    if own is not None:
        return Lease.of(own, any_lease.topic, any_lease.group)
    lease = leases.get((NORMAL, str(message.queue_id)))
    if lease is None:
        raise ProtocolError(f"it is in queue {message.queue_id}, which was not popped")
    return lease


def _places(header: PopMessageResponseHeader, leases: Mapping[tuple[str, str], Lease]) -> list[tuple[Lease, int]]:
    """The lease and the offset of each record, in the order of the records; none if the broker does not say."""
    try:
        places = [
            (leases[queue], int(offset))
            for queue, offsets in parse_offset_info(header.msg_offset_info or "").items()
            for offset in offsets.split(",")
        ]
    except (ValueError, KeyError):
        return []
    return places if all([0 <= offset - lease.start_offset < MAX_OFFSETS for lease, offset in places]) else []


def _own_handle(message: MessageExt) -> PopHandle | None:
    """The handle that the broker wrote into the message; None if it wrote none."""
    text = message.properties.get(POP_HANDLE)
    if not text:
        return None
    # Brokers of RocketMQ keep the property of a sender in messages of a batch. Such a text must not cost the other
    # messages of the pop, neither here nor where acknowledgements become bits of a number.
    try:
        handle = parse_handle(text)
    except ValueError:
        return None
    return handle if 0 <= message.queue_offset - handle.start_offset < MAX_OFFSETS else None


def _each(data: bytes, starts: Sequence[int], make: Callable[[int], ReceivedMessage]) -> list[ReceivedMessage]:
    """The messages of the records at ``starts``, created by ``make``. Messages of inner batches know their batch.

    ProtocolError when a record is damaged.
    """
    if not may_hold_batches(data, starts):
        found = [make(at) for at in starts]
    else:
        found = unwrapped(data, starts, make)
        batches: dict[int, list[ReceivedMessage]] = {}
        for message in found:
            if message.is_inner:
                batches.setdefault(message.physical_offset, []).append(message)
        for messages in batches.values():
            whole = Whole(messages)
            for message in messages:
                message.whole = whole
    for message in found:
        _ = message.record
    return found


def bits_by_lease(messages: Iterable[ReceivedMessage]) -> dict[Lease, int]:
    """For each lease, the bits of its messages that are among ``messages``, as acknowledgements carry them.

    A message of an inner batch counts only with the last message of the batch.
    """
    found: dict[Lease, int] = {}
    lease, bits = None, 0
    for message in messages:
        offset = message.queue_offset
        if message.whole is not None:
            # The broker knows only the inner batch: it is acknowledged with the last of its messages, by its first
            # offset.
            if not message.whole.finish(offset):
                continue
            offset = message.leased_offset
        own = message.lease
        # Messages of one pop share the lease object and follow one another: one dict lookup per run of messages.
        if own is not lease:
            if lease is not None:
                found[lease] = bits
            lease, bits = own, found.get(own, 0)
        bits |= 1 << (offset - own.start_offset)
    if lease is not None:
        found[lease] = bits
    return found


async def pop(
    at: Endpoint,
    group: str,
    topic: str,
    *,
    queue_id: int = ANY_QUEUE,
    most: int,
    invisible_ms: int,
    wait_ms: int,
    now_ms: int,
    init_mode: int,
    expression: str,
    kind: str = TAG,
    namespace: str,
) -> list[ReceivedMessage]:
    """Messages of a queue of ``topic``, by default of any queue; empty if the broker has none within ``wait_ms``.

    At most ``most`` messages, hidden for ``invisible_ms``. ``init_mode``: where a new group begins, INIT_MIN or
    INIT_MAX. ``kind``: the type of ``expression``. ``namespace`` is removed from the messages' topics.
    """
    header = PopMessageRequestHeader(
        group, topic, queue_id, most, invisible_ms, wait_ms, now_ms, init_mode, kind, expression
    )
    answer = await call(at, pops.POP_MESSAGE, header, wait_ms=wait_ms)
    data = answer.body()
    return received(data, answer.header(), topic, group, at.broker_name, namespace) if data else []


async def has_message(at: Endpoint, group: str, topic: str, *, wait_ms: int, now_ms: int) -> bool:
    """Whether there is a message to pop; the broker waits up to ``wait_ms`` for a message."""
    header = NotificationRequestHeader(group, topic, ANY_QUEUE, wait_ms, now_ms)
    return (await call(at, pops.NOTIFICATION, header, wait_ms=wait_ms)).header().has_msg


async def acknowledge(at: Endpoint, bits: Mapping[Lease, int]) -> None:
    """Acknowledge messages of this broker."""
    body = BatchAckMessageRequestBody([lease.acks(one) for lease, one in bits.items()], at.broker_name)
    await call(at, pops.BATCH_ACK_MESSAGE, None, body)


async def change_invisible_time(at: Endpoint, lease: Lease, offset: int, invisible_ms: int) -> Lease:
    """Show a message again ``invisible_ms`` from now; returns the message's new lease."""
    header = ChangeInvisibleTimeRequestHeader(
        lease.group, lease.read_topic, lease.queue_id, str(lease.handle(offset)), offset, invisible_ms
    )
    answer = await call(at, pops.CHANGE_MESSAGE_INVISIBLETIME, header)
    return lease.renewed(offset, answer.header())
