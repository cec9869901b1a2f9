"""Requests to brokers for receiving.

A message is named by its receipt handle, the text that RocketMQ's proxy gives to clients: a broker's pop handle, and
the offset of the message in the commit log. So any proxy can acknowledge a message that another proxy has handed out.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import trio

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.call import call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.pop_info import (
    NORMAL,
    PopHandle,
    message_key,
    parse_handle,
    parse_offset_info,
    read_topic,
)
from skylark.remoting.protocol.requests import pops
from skylark.remoting.protocol.requests.pops import (
    ANY_QUEUE,
    INIT_MAX,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from skylark.sdk.broker_api import send_back
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.consumer.decompression import keep_contents
from skylark.sdk.consumer.popped import Lease, ReceivedMessage, acknowledge, received
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.retry import Outcome, outcome_of

_LONG_MAX_DIGITS = 19
# The most offsets between the first and the last message of one pop, of which filters may have skipped some.
_MAX_OFFSETS = 65_536
# Offsets that are acknowledged together are the bits of a number, which must not become long for a few messages.
_MAX_BATCHED_OFFSETS = 1_024


@lazy_dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery of a message to a group."""

    handle: PopHandle
    physical_offset: int

    @property
    def offset(self) -> int:
        """The offset of the message in its queue."""
        assert self.handle.offset is not None
        return self.handle.offset

    @property
    def visible_at_ms(self) -> int:
        """When the message is shown again."""
        return self.handle.pop_time + self.handle.invisible_time

    def __str__(self) -> str:
        return f"{self.handle} {self.physical_offset}"

    @classmethod
    def parse(cls, text: str, now_ms: int) -> Self:
        """The receipt that a client sends. Refused when ``text`` is no receipt, or the receipt's time is over."""
        front, _, last = text.rpartition(" ")
        try:
            handle = parse_handle(front)
        except ValueError as error:
            raise Refused(wire.INVALID_RECEIPT_HANDLE, f"the receipt handle cannot be read: {error}") from None
        if handle.offset is None or not (last.isascii() and last.isdigit() and len(last) <= _LONG_MAX_DIGITS):
            raise Refused(wire.INVALID_RECEIPT_HANDLE, "the receipt handle has no offset")
        if not 0 <= handle.offset - handle.start_offset < _MAX_OFFSETS:
            raise Refused(wire.INVALID_RECEIPT_HANDLE, "the receipt handle has an offset that its pop cannot have")
        receipt = cls(handle, int(last))
        if receipt.visible_at_ms <= now_ms:
            raise Refused(wire.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        return receipt


@lazy_dataclass(frozen=True, slots=True)
class Pop:
    """The pop that a receive call asks for."""

    group: str
    topic: str
    broker_name: str
    most: int
    invisible_ms: int
    wait_ms: int
    expression: str
    kind: str
    is_ordered: bool
    attempt_id: str | None


@lazy_dataclass(frozen=True, slots=True)
class Delivery:
    """A message, its receipt, and how often it was delivered, this time included."""

    message: ReceivedMessage
    receipt: Receipt
    attempt: int
    invisible_ms: int


class Brokers:
    """Requests to brokers for receiving."""

    def __init__(self, nameserver: NameServerSource | Client | None = None) -> None:
        self._client = ClientHandle(nameserver)
        self._clock = SystemClock()

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def pop(self, wanted: Pop) -> list[Delivery]:
        """Messages for the group; none when the broker has none in time."""

        async def ask(at: Endpoint) -> list[Delivery]:
            header = PopMessageRequestHeader(
                wanted.group,
                wanted.topic,
                ANY_QUEUE,
                wanted.most,
                wanted.invisible_ms,
                wanted.wait_ms,
                self._clock.now_ms(),
                INIT_MAX,
                wanted.kind,
                wanted.expression,
                wanted.is_ordered or None,
                wanted.attempt_id,
            )
            answer = await call(at, pops.POP_MESSAGE, header, wait_ms=wanted.wait_ms)
            if answer.code == ResponseCode.POLLING_FULL:
                raise Refused(wire.TOO_MANY_REQUESTS, "polling full")
            data = answer.body()
            if not data:
                return []
            found = answer.header()
            # For ordered groups brokers count deliveries outside of the messages, which are not stored again.
            counts = parse_offset_info(found.order_count_info or "") if wanted.is_ordered else {}
            messages = received(data, found, wanted.topic, wanted.group, wanted.broker_name, "")
            # Large bodies are decompressed in threads, not later where they are read.
            await keep_contents(messages)
            return [_delivery(message, counts) for message in messages]

        return await self._client.ask_master(MessageQueue(wanted.topic, wanted.broker_name, 0), ask)

    async def ack(self, group: str, topic: str, receipts: Sequence[Receipt]) -> list[SkylarkError | None]:
        """Acknowledge messages; returns the error of each, None where there is none."""
        errors: list[SkylarkError | None] = [None] * len(receipts)
        # Broker → the numbers of its receipts, which go in one request.
        of_brokers: dict[str, list[int]] = {}
        alone: list[list[int]] = []
        for number, receipt in enumerate(receipts):
            if receipt.offset - receipt.handle.start_offset < _MAX_BATCHED_OFFSETS:
                of_brokers.setdefault(receipt.handle.broker_name, []).append(number)
            else:
                alone.append([number])

        async def ack_at(numbers: Sequence[int]) -> None:
            error = await self._ack_together(group, topic, [receipts[number] for number in numbers])
            if len(numbers) > 1 and _may_be_one_messages(error):
                # One message that the broker refuses must not keep the others from being acknowledged.
                await _for_each([[number] for number in numbers], ack_at)
                return
            for number in numbers:
                errors[number] = error

        await _for_each([*of_brokers.values(), *alone], ack_at)
        return errors

    async def change_invisible_time(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
        """Show a message again ``invisible_ms`` from now; returns its new receipt."""
        handle = receipt.handle
        header = ChangeInvisibleTimeRequestHeader(
            group, read_topic(topic, group, handle.retry), handle.queue_id, str(handle), receipt.offset, invisible_ms
        )
        answer = await self._client.ask_master(
            _queue_of(topic, handle), lambda at: call(at, pops.CHANGE_MESSAGE_INVISIBLETIME, header)
        )
        new = answer.header()
        renewed = handle._replace(
            start_offset=receipt.offset,
            pop_time=new.pop_time,
            invisible_time=new.invisible_time,
            revive_queue_id=new.revive_qid,
        )
        return Receipt(renewed, receipt.physical_offset)

    async def to_dead_letters(self, group: str, topic: str, message_id: str, receipt: Receipt) -> None:
        """Make the message a dead letter of the group, then acknowledge it.

        When the second step fails, the message is delivered again: it is never lost, and may be a dead letter twice.
        """
        await self._client.ask_master(
            _queue_of(topic, receipt.handle),
            partial(
                send_back,
                group=group,
                message_physical_offset=receipt.physical_offset,
                message_id=message_id,
                topic=read_topic(topic, group, receipt.handle.retry),
                delay_level=-1,
                max_reconsume_times=0,
            ),
        )
        await self._ack(group, topic, receipt)

    async def _ack_together(self, group: str, topic: str, receipts: Sequence[Receipt]) -> SkylarkError | None:
        """Acknowledge messages of one broker; returns the error."""
        try:
            if len(receipts) == 1:
                await self._ack(group, topic, receipts[0])
            else:
                bits: dict[Lease, int] = {}
                for receipt in receipts:
                    lease = Lease.of(receipt.handle, topic, group)
                    bits[lease] = bits.get(lease, 0) | 1 << receipt.offset - lease.start_offset
                queue = _queue_of(topic, receipts[0].handle)
                await self._client.ask_master(queue, partial(acknowledge, bits=bits))
        except SkylarkError as error:
            return error
        return None

    async def _ack(self, group: str, topic: str, receipt: Receipt) -> None:
        handle = receipt.handle
        header = AckMessageRequestHeader(
            group, read_topic(topic, group, handle.retry), handle.queue_id, str(handle), receipt.offset
        )
        await self._client.ask_master(_queue_of(topic, handle), lambda at: call(at, pops.ACK_MESSAGE, header))


async def _for_each(parts: Sequence[list[int]], work: Callable[[list[int]], Awaitable[None]]) -> None:
    """Do ``work`` for all parts at the same time."""
    if len(parts) == 1:
        await work(parts[0])
        return
    async with trio.open_nursery() as nursery:
        for part in parts:
            nursery.start_soon(work, part)


def _may_be_one_messages(error: SkylarkError | None) -> bool:
    """Whether a broker may have refused a request for several messages because of one of them."""
    if not isinstance(error, BrokerError) or error.code == ResponseCode.NO_PERMISSION:
        return False
    # A busy broker must not get more requests.
    return outcome_of(error) is not Outcome.NOTHING


def _queue_of(topic: str, handle: PopHandle) -> MessageQueue:
    return MessageQueue(topic, handle.broker_name, 0)


def _delivery(message: ReceivedMessage, counts: dict[tuple[str, str], str]) -> Delivery:
    lease, offset = message.lease, message.leased_offset
    attempt = message.delivery_attempt
    if counts:
        # Messages of ordered groups are not stored again, so the stored message does not have its count of deliveries.
        again = counts.get((NORMAL, message_key(lease.queue_id, offset))) or counts.get((NORMAL, str(lease.queue_id)))
        if again is not None and again.isascii() and again.isdigit():
            attempt = int(again) + 1
    return Delivery(message, Receipt(lease.handle(offset), message.physical_offset), attempt, lease.invisible_time)
