"""Requests to brokers for receiving."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import trio

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import BrokerError, ConnectionLost, RemotingError, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqproxy.deliveries import Delivery, PoppedRun, Receipt, ReceiptRun, deliveries_of
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.call import call
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.header import Header
from skylark.remoting.protocol.pop_info import (
    PopHandle,
    read_topic,
)
from skylark.remoting.protocol.request import Answer, Request
from skylark.remoting.protocol.requests import pops
from skylark.remoting.protocol.requests.pops import (
    ANY_QUEUE,
    INIT_MAX,
    AckMessageRequestHeader,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from skylark.sdk.broker_api import send_back
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.consumer.decompression import keep_contents, need_decompression
from skylark.sdk.consumer.popped import Lease
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.retry import Outcome, outcome_of

# Offsets that are acknowledged together are the bits of a number, which must not become long for a few messages.
_MAX_BATCHED_OFFSETS = 1_024


class Pop(NamedTuple):
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

    async def pop(self, wanted: Pop) -> Sequence[Delivery]:
        """Messages for the group; none when the broker has none in time. Their bodies are decompressed."""

        async def ask(at: Endpoint) -> Sequence[Delivery]:
            header = self._pop_header(wanted)
            found = _popped(wanted, await call(at, pops.POP_MESSAGE, header, wait_ms=wanted.wait_ms))
            await keep_bodies(found)
            return found

        return await self._client.ask_master(MessageQueue(wanted.topic, wanted.broker_name, 0), ask)

    def pop_at_once(
        self, wanted: Pop, ended: Callable[[Sequence[Delivery] | Exception], None], again: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Begin a pop without waiting; None, and nothing is sent, when only `pop` can do it.

        One of the functions is called once, perhaps at once: ``ended`` with the messages, whose bodies may be
        compressed, or with the error; or ``again`` when `pop` must be tried. The function that is returned withdraws
        the request: none of the functions is called after that.
        """

        def answered(result: Command | SkylarkError) -> None:
            found: Sequence[Delivery] | Exception
            if isinstance(result, SkylarkError):
                found = result
            else:
                try:
                    found = _popped(wanted, Answer(pops.POP_MESSAGE, result))
                except Exception as error:
                    found = error
            ended(found)

        header = self._pop_header(wanted)
        return self._submit(
            wanted.topic, wanted.broker_name, pops.POP_MESSAGE, header, None, answered, again, wait_ms=wanted.wait_ms
        )

    async def ack(
        self, group: str, topic: str, receipts: Sequence[Receipt], *, together: bool = True
    ) -> list[SkylarkError | None]:
        """Acknowledge messages; returns the error of each, None where there is none.

        ``together``: whether messages of one broker go in one request. If the broker refuses that request, each of the
        messages has a request of its own.
        """
        errors: list[SkylarkError | None] = [None] * len(receipts)
        # Broker → the numbers of its receipts, which go in one request.
        of_brokers: dict[str, list[int]] = {}
        alone: list[list[int]] = []
        for number, receipt in enumerate(receipts):
            if together and _is_batched(receipt):
                of_brokers.setdefault(receipt.pop.broker_name, []).append(number)
            else:
                alone.append([number])

        async def ack_at(numbers: Sequence[int]) -> None:
            error: SkylarkError | None = None
            try:
                await self._ack(group, topic, [receipts[number] for number in numbers])
            except SkylarkError as failure:
                error = failure
            if len(numbers) > 1 and _may_be_one_messages(error):
                # One message that the broker refuses must not keep the others from being acknowledged.
                await _for_each([[number] for number in numbers], ack_at)
                return
            for number in numbers:
                errors[number] = error

        await _for_each([*of_brokers.values(), *alone], ack_at)
        return errors

    def ack_at_once(
        self,
        group: str,
        topic: str,
        receipts: Sequence[Receipt],
        ended: Callable[[SkylarkError | None], None],
        again: Callable[[bool], None],
    ) -> bool:
        """Acknowledge messages without waiting; False, and nothing is sent, when only `ack` can do it.

        One of the functions is called once, perhaps at once: ``ended`` with the error of all messages, if any, or
        ``again`` when `ack` must be tried, with its argument ``together``.
        """
        broker_name, bits = receipts[0].pop.broker_name, _bits_of(receipts)
        for pop, each in bits.items():
            if each.bit_length() > _MAX_BATCHED_OFFSETS or pop.broker_name != broker_name:
                return False

        def answered(result: Command | SkylarkError) -> None:
            error = result if isinstance(result, SkylarkError) else None
            if len(receipts) > 1 and _may_be_one_messages(error):
                again(False)
            else:
                ended(error)

        what = _ack_request(group, topic, receipts, bits)
        return self._submit(topic, broker_name, *what, answered, partial(again, True)) is not None

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
        return Receipt.of(renewed, receipt.physical_offset)

    async def to_dead_letters(self, group: str, topic: str, message_id: str, receipt: Receipt) -> None:
        """Make the message a dead letter of the group, then acknowledge it.

        When the second step fails, the message is delivered again: it is never lost, and may be a dead letter twice.
        """
        await self._client.ask_master(
            _queue_of(topic, receipt.pop),
            partial(
                send_back,
                group=group,
                message_physical_offset=receipt.physical_offset,
                message_id=message_id,
                topic=read_topic(topic, group, receipt.pop.retry),
                delay_level=-1,
                max_reconsume_times=0,
            ),
        )
        await self._ack(group, topic, [receipt])

    def _pop_header(self, wanted: Pop) -> PopMessageRequestHeader:
        return PopMessageRequestHeader(
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

    def _submit(
        self,
        topic: str,
        broker_name: str,
        what: Request[Any, Any, Any, Any],
        header: Header | None,
        body: Body | None,
        answered: Callable[[Command | SkylarkError], None],
        again: Callable[[], None],
        *,
        wait_ms: int = 0,
    ) -> Callable[[], None] | None:
        """Send a request to a broker's master without waiting; None when that takes time.

        ``answered`` is called with an answer that the request accepts, or with the error; or ``again``, when the
        connection was lost, or another broker is the master now. The function that is returned withdraws the request.
        """
        master = self._client.known_master(MessageQueue(topic, broker_name, 0))

        def ended(result: Command | RemotingError) -> None:
            if isinstance(result, Command):
                code = result.code
                if code == ResponseCode.SUCCESS or code in what.accepts:
                    answered(result)
                elif code != ResponseCode.NOT_LEADER_FOR_QUEUE:
                    answered(BrokerError(code, result.remark, "" if master is None else master.addr))
                else:
                    again()
            elif isinstance(result, ConnectionLost):
                again()
            else:
                answered(result)

        return None if master is None else master.submit(what.command(header), body, wait_ms, ended)

    async def _ack(self, group: str, topic: str, receipts: Sequence[Receipt]) -> None:
        """Acknowledge messages of one broker."""
        what, header, body = _ack_request(group, topic, receipts, _bits_of(receipts))
        await self._client.ask_master(_queue_of(topic, receipts[0].pop), lambda at: call(at, what, header, body))


def _ack_request(
    group: str, topic: str, receipts: Sequence[Receipt], bits: Mapping[PopHandle, int]
) -> tuple[Request[Any, Any, Any, Any], Header | None, Body | None]:
    """The request that acknowledges messages of one broker, its header and its body. ``bits``: from `_bits_of`."""
    pop = receipts[0].pop
    if len(receipts) == 1:
        (receipt,) = receipts
        read, handle = read_topic(topic, group, pop.retry), f"{receipt.pop_text} {receipt.offset}"
        return pops.ACK_MESSAGE, AckMessageRequestHeader(group, read, pop.queue_id, handle, receipt.offset), None
    acks = [Lease.of(pop, topic, group).acks(each) for pop, each in bits.items()]
    return pops.BATCH_ACK_MESSAGE, None, BatchAckMessageRequestBody(acks, pop.broker_name)


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


def _is_batched(receipt: Receipt) -> bool:
    """Whether the message may be acknowledged together with others of its pop."""
    return receipt.offset - receipt.pop.start_offset < _MAX_BATCHED_OFFSETS


def _bits_of(receipts: Sequence[Receipt]) -> dict[PopHandle, int]:
    """For each pop, the bits of its messages, as acknowledgements carry them."""
    if isinstance(receipts, ReceiptRun):
        return {receipts.pop: receipts.bits}
    found: dict[PopHandle, int] = {}
    pop, bits = receipts[0].pop, 0
    for _, own, offset, _ in receipts:
        # Receipts of one pop share its handle, and mostly follow one another.
        if own is not pop:
            found[pop] = found.get(pop, 0) | bits
            pop, bits = own, 0
        bits |= 1 << offset - own.start_offset
    found[pop] = found.get(pop, 0) | bits
    return found


async def keep_bodies(found: Sequence[Delivery]) -> None:
    """Decompress the bodies of popped messages: large ones in threads, not later where they are read."""
    await keep_contents([delivery.message for delivery in found])


def are_packed(found: Sequence[Delivery]) -> bool:
    """Whether `keep_bodies` has bodies to decompress."""
    return not isinstance(found, PoppedRun) and need_decompression([delivery.message for delivery in found])


def _popped(wanted: Pop, answer: Answer[PopMessageResponseHeader, bytes]) -> Sequence[Delivery]:
    """The messages in the answer to a pop. Refused when the broker holds too many pops."""
    if answer.code == ResponseCode.POLLING_FULL:
        raise Refused(wire.TOO_MANY_REQUESTS, "polling full")
    data = answer.body()
    if not data:
        return []
    return deliveries_of(
        data, answer.header(), wanted.topic, wanted.group, wanted.broker_name, is_ordered=wanted.is_ordered
    )
