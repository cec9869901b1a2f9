"""How a proxy acknowledges the messages of one call, and which receipts it takes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from skylark.mqcommon.errors import BrokerError, ProtocolError
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqproxy.brokers import Brokers, Pop
from skylark.mqproxy.deliveries import Receipt
from skylark.mqproxy.statuses import Refused
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.pops import (
    ACK_MESSAGE,
    BATCH_ACK_MESSAGE,
    POP_MESSAGE,
    BatchAckMessageRequestBody,
)
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving

ONE, MANY, POP = ACK_MESSAGE.code, BATCH_ACK_MESSAGE.code, POP_MESSAGE.code
WANTED = Pop("group", "orders", "broker-a", 16, 60_000, 0, "*", "TAG", False, None)
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


async def test_messages_that_a_broker_has_refused_together_are_acknowledged_one_by_one() -> None:
    broker = taking()
    async with brokers_of(broker) as brokers:
        assert await brokers.ack("group", "orders", RECEIPTS, together=False) == [None] * 3
    assert (sorted(map(_offset, broker.asked(ONE))), broker.asked(MANY)) == ([1, 2, 3], [])


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_BUSY])
async def test_an_error_that_is_no_messages_own_is_not_asked_for_again(code: ResponseCode) -> None:
    broker = taking()
    broker.on(MANY, lambda request: request.respond(code, "not you, or not now"))
    async with brokers_of(broker) as brokers:
        errors = await brokers.ack("group", "orders", [receipt(offset) for offset in (1, 2, 3)])
    assert [error.code for error in errors if isinstance(error, BrokerError)] == [code] * 3
    assert (len(broker.asked(MANY)), broker.asked(ONE)) == (1, [])


async def test_the_master_of_a_queue_is_the_master_in_the_present_route() -> None:
    broker, queue = taking(), MessageQueue("orders", "broker-a", 0)
    async with brokers_of(broker) as brokers:
        await brokers.ack("group", "orders", RECEIPTS)
        client, routes = brokers._client, brokers._client.instance.routes
        (first, again), route = [client.known_master(queue) for _ in range(2)], routes.get("orders")
        assert first is again is not None and first.addr == broker.addr and route is not None
        for masters, addr in (({"broker-a": {0: "127.0.0.1:1"}}, "127.0.0.1:1"), ({}, "")):
            routes.put(replace(route, brokers=masters))
            master = client.known_master(queue)
            assert ("" if master is None else master.addr) == addr


class Outcome:
    """How a request has ended that was sent at once: ``results`` of `ended`, and how often to ask ``again``.

    ``together``: whether the messages may be acknowledged with one request then.
    """

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.again = 0
        self.together = True
        self.has_ended = trio.Event()

    def ended(self, result: object) -> None:
        self.results.append(result)
        self.has_ended.set()

    def ask_again(self, together: bool = True) -> None:
        self.again += 1
        self.together = together
        self.has_ended.set()


RECEIPTS = [receipt(offset) for offset in (1, 2, 3)]


async def acknowledged_at_once(broker: FakeBroker, receipts: Sequence[Receipt] = RECEIPTS) -> Outcome:
    """Acknowledge over an open connection, without waiting."""
    found = Outcome()
    async with brokers_of(broker) as brokers:
        assert not brokers.ack_at_once("group", "orders", receipts, found.ended, found.ask_again), "not connected"
        await brokers.ack("group", "orders", [receipt(9)])
        assert brokers.ack_at_once("group", "orders", receipts, found.ended, found.ask_again)
        await found.has_ended.wait()
    return found


async def test_messages_of_one_broker_are_acknowledged_without_waiting() -> None:
    broker = taking()
    found = await acknowledged_at_once(broker)
    assert (found.results, found.again) == ([None], 0)
    assert acknowledged(broker) == [[(0, 0b1110)]]
    found = await acknowledged_at_once(broker := taking(), [receipt(4)])
    assert (found.results, list(map(_offset, broker.asked(ONE)))) == ([None], [9, 4])


@pytest.mark.parametrize(
    "receipts", [[receipt(1), receipt(1, broker="broker-b")], [receipt(1), receipt(1_024)]], ids=["two", "far"]
)
async def test_messages_that_need_several_requests_are_not_acknowledged_at_once(receipts: list[Receipt]) -> None:
    found = Outcome()
    async with brokers_of(taking()) as brokers:
        await brokers.ack("group", "orders", [receipt(9)])
        assert not brokers.ack_at_once("group", "orders", receipts, found.ended, found.ask_again)


@pytest.mark.parametrize(
    ("code", "again", "together"),
    [
        (1, 1, False),
        (ResponseCode.NOT_LEADER_FOR_QUEUE, 1, True),
        (ResponseCode.NO_PERMISSION, 0, True),
        (ResponseCode.SYSTEM_BUSY, 0, True),
    ],
)
async def test_a_refused_acknowledgement_is_an_error_or_asked_for_again(code: int, again: int, together: bool) -> None:
    broker = taking()
    broker.on(MANY, lambda request: request.respond(code, "refused"))
    found = await acknowledged_at_once(broker)
    assert (found.again, found.together) == (again, together)
    assert [error.code for error in found.results] == ([] if again else [code])


async def test_what_a_lost_connection_was_asked_is_asked_for_again() -> None:
    broker = taking()
    broker.on(MANY, lambda request: broker.close_connections())
    assert (await acknowledged_at_once(broker)).again == 1


async def popped_at_once(broker: FakeBroker) -> Outcome:
    """Pop over an open connection, without waiting."""
    found = Outcome()
    async with brokers_of(broker) as brokers:
        await brokers.ack("group", "orders", [receipt(9)])
        assert brokers.pop_at_once(WANTED, found.ended, found.ask_again)
        await found.has_ended.wait()
    return found


async def test_a_pop_without_waiting_brings_what_a_pop_brings() -> None:
    magic, topic = topic_field("orders")
    host = encode_host("127.0.0.1", 10911)
    record = encode_record(magic, topic, 3, 7, 70, b"tea", b"", 0, 0, NOW_MS, host, NOW_MS, host, 1, 0)
    fields = {"popTime": NOW_MS, "invisibleTime": 60_000, "reviveQid": 0, "restNum": 0, "startOffsetInfo": "0 3 5"}
    broker = taking()
    broker.own_codes = (*broker.own_codes, POP)
    broker.on(POP, lambda request: request.respond(ext=dict(fields), body=record))
    ((delivery,),) = (await popped_at_once(broker)).results
    assert (delivery.message.body, delivery.attempt, delivery.invisible_ms) == (b"tea", 2, 60_000)
    assert str(delivery.receipt) == f"5 {NOW_MS} 60000 0 0 broker-a 3 7 70"
    async with brokers_of(broker) as brokers:
        assert [str(each.receipt) for each in await brokers.pop(WANTED)] == [str(delivery.receipt)]


async def test_a_pop_that_is_withdrawn_leaves_nothing_behind() -> None:
    found, broker = Outcome(), taking()
    broker.own_codes = (*broker.own_codes, POP)
    broker.on(POP, lambda request: None)
    async with brokers_of(broker) as brokers:
        await brokers.ack("group", "orders", [receipt(9)])
        withdraw = brokers.pop_at_once(WANTED, found.ended, found.ask_again)
        assert withdraw is not None
        (asked,) = await broker.wait_asked(POP)
        channel = brokers._client.instance.remoting._peers[broker.addr].open_channel
        assert channel is not None and not channel.idle
        withdraw()
        assert channel.idle
        broker.channels[-1].reply(asked, asked.respond(ResponseCode.POLLING_FULL))
        # Answers come in the order of the broker's replies.
        await brokers.ack("group", "orders", [receipt(9)])
    assert (found.results, found.again) == ([], 0)


@pytest.mark.parametrize(
    ("code", "error"), [(ResponseCode.POLLING_FULL, Refused), (ResponseCode.SYSTEM_ERROR, BrokerError)]
)
async def test_a_pop_without_waiting_ends_with_the_error_of_the_broker(code: int, error: type[Exception]) -> None:
    broker = taking()
    broker.own_codes = (*broker.own_codes, POP)
    broker.on(POP, lambda request: request.respond(code, "not now"))
    assert [type(each) for each in (await popped_at_once(broker)).results] == [error]


async def test_an_answer_to_a_pop_that_cannot_be_read_is_an_error() -> None:
    broker = taking()
    broker.own_codes = (*broker.own_codes, POP)
    broker.on(POP, lambda request: request.respond(body=b"no record"))
    assert [type(each) for each in (await popped_at_once(broker)).results] == [ProtocolError]


async def test_an_error_of_the_function_that_takes_a_pop_is_logged_and_not_its_second_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found, broker = Outcome(), taking()
    broker.own_codes = (*broker.own_codes, POP)
    broker.on(POP, lambda request: request.respond())

    def ended(result: object) -> None:
        found.ended(result)
        raise ZeroDivisionError

    async with brokers_of(broker) as brokers:
        await brokers.ack("group", "orders", [receipt(9)])
        assert brokers.pop_at_once(WANTED, ended, found.ask_again)
        await found.has_ended.wait()
    assert found.results == [[]]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("offset", [4, 5 + 65_536])
def test_an_offset_that_no_pop_can_have_is_refused(offset: int) -> None:
    with pytest.raises(Refused, match="an offset that its pop cannot have"):
        receipt(offset, start=5)


def _offset(request: Command) -> int:
    return int((request.ext or {})["offset"])
