"""How a proxy acknowledges the messages of one call, and which receipts it takes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from skylark.mqcommon.errors import BrokerError
from skylark.mqproxy.brokers import Brokers, Receipt
from skylark.mqproxy.statuses import Refused
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.pops import ACK_MESSAGE, BATCH_ACK_MESSAGE, BatchAckMessageRequestBody
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving

ONE, MANY = ACK_MESSAGE.code, BATCH_ACK_MESSAGE.code
NOW_MS = 1_700_000_000_000


def receipt(offset: int, start: int = 0, broker: str = "broker-a", pop_ms: int = NOW_MS) -> Receipt:
    return Receipt.parse(f"{start} {pop_ms} 60000 0 0 {broker} 0 {offset} 7", NOW_MS)


def taking(name: str = "broker-a") -> FakeBroker:
    broker = FakeBroker(name)
    broker.own_codes = (ONE, MANY)
    broker.on(ONE, lambda request: {})
    broker.on(MANY, lambda request: {})
    return broker


@asynccontextmanager
async def brokers_of(*brokers: FakeBroker) -> AsyncIterator[Brokers]:
    async with AsyncExitStack() as stack:
        namesrv = FakeNamesrv()
        await stack.enter_async_context(serving(namesrv))
        for broker in brokers:
            await stack.enter_async_context(serving(broker))
        namesrv.add("orders", *brokers)
        yield await stack.enter_async_context(Brokers(namesrv.addr))


def acknowledged(broker: FakeBroker) -> list[list[tuple[int, int]]]:
    """(start offset, bits) of each pop, in each request for many messages."""
    bodies = [decode_body(BatchAckMessageRequestBody, each.body, each.codec) for each in broker.asked(MANY)]
    return [[(ack.start_offset, ack.bits) for ack in body.acks] for body in bodies]


async def test_messages_of_one_broker_are_acknowledged_with_one_request() -> None:
    first, second = taking(), taking("broker-b")
    async with brokers_of(first, second) as brokers:
        receipts = [receipt(0), receipt(2), receipt(1, broker="broker-b"), receipt(7, start=5, pop_ms=NOW_MS + 1)]
        assert await brokers.ack("group", "orders", receipts) == [None] * 4
    assert acknowledged(first) == [[(0, 0b101), (5, 0b100)]]
    assert (len(first.asked(ONE)), len(second.asked(ONE)), second.asked(MANY)) == (0, 1, [])


async def test_a_message_far_behind_the_first_of_its_pop_is_acknowledged_by_itself() -> None:
    broker = taking()
    async with brokers_of(broker) as brokers:
        receipts = [receipt(offset) for offset in (0, 1_023, 1_024, 65_535)]
        assert await brokers.ack("group", "orders", receipts) == [None] * 4
    assert acknowledged(broker) == [[(0, 1 | 1 << 1_023)]]
    assert sorted(map(_offset, broker.asked(ONE))) == [1_024, 65_535]


async def test_a_message_that_the_broker_refuses_keeps_no_other_from_being_acknowledged() -> None:
    broker = taking()
    broker.on(MANY, lambda request: request.respond(1, "one of them is wrong"))
    broker.on(ONE, lambda request: request.respond(1, "no such offset") if _offset(request) == 2 else request.respond())
    async with brokers_of(broker) as brokers:
        errors = await brokers.ack("group", "orders", [receipt(offset) for offset in (1, 2, 3)])
    assert [type(error) for error in errors] == [type(None), BrokerError, type(None)]
    assert sorted(map(_offset, broker.asked(ONE))) == [1, 2, 3]


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_BUSY])
async def test_an_error_that_is_no_messages_own_is_not_asked_for_again(code: ResponseCode) -> None:
    broker = taking()
    broker.on(MANY, lambda request: request.respond(code, "not you, or not now"))
    async with brokers_of(broker) as brokers:
        errors = await brokers.ack("group", "orders", [receipt(offset) for offset in (1, 2, 3)])
    assert [error.code for error in errors if isinstance(error, BrokerError)] == [code] * 3
    assert (len(broker.asked(MANY)), broker.asked(ONE)) == (1, [])


@pytest.mark.parametrize("offset", [4, 5 + 65_536])
def test_an_offset_that_no_pop_can_have_is_refused(offset: int) -> None:
    with pytest.raises(Refused, match="an offset that its pop cannot have"):
        receipt(offset, start=5)


def _offset(request: Command) -> int:
    return int((request.ext or {})["offset"])
