"""What brokers ask of consumers: a fake broker asks, on the client's own connection."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body
from skylark.remoting.protocol.requests.clients import ConsumeMessageDirectlyResult, ConsumerData, ConsumerRunningInfo
from skylark.remoting.protocol.requests.offsets import GetConsumerStatusBody, ResetOffsetBody, ResetOffsetBodyForC
from skylark.sdk.broker_requests import MAX_DIRECT
from skylark.sdk.client import ClientInstance
from skylark.sdk.consumer.pull import PullConsumer
from tests.sdk.fakes import FakeBroker, FakeNamesrv, queue, record, serving

RESET = {"group": "g", "topic": "t", "timestamp": "-1", "isForce": "true"}
STATUS = {"group": "g", "topic": "t"}
MESSAGE = record("t", 0, 4, b"one")
DIRECT = {"consumerGroup": "g", "clientId": "x", "brokerName": "broker-a"}


class Asked:
    """A consumer that notes what it is asked, and whose handler can be held."""

    def __init__(self) -> None:
        self.reset: dict[MessageQueue, int] = {}
        self.bodies: list[bytes] = []
        self.gate = trio.Event()
        self.gate.set()
        self.error: Exception | None = None

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(group_name="g")

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo()

    def members_changed(self) -> None:
        pass

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        assert topic == "t"
        self.reset = dict(offsets)

    def queue_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return {queue(0): 3} if topic == "t" else {}

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        self.bodies.append(message.body)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return ConsumeMessageDirectlyResult(consume_result="CR_LATER", remark=message.broker_name)


@asynccontextmanager
async def asked() -> AsyncIterator[tuple[FakeBroker, Asked]]:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
        namesrv.add("t", broker)
        async with ClientInstance(namesrv.addr) as client:
            consumer = Asked()
            client.membership.join_consumer("g", consumer)
            await client.route("t")
            await broker.wait_asked(34)
            yield broker, consumer


async def ask(broker: FakeBroker, code: int, ext: Mapping[str, str], body: bytes = b"") -> Command:
    return await broker.channels[0].invoke(Command(code, dict(ext), body), 5_000)


@pytest.mark.parametrize("body", [ResetOffsetBody({queue(1): 7}), ResetOffsetBodyForC([(queue(1), 7)])])
async def test_offsets_are_reset(body: ResetOffsetBody | ResetOffsetBodyForC) -> None:
    async with asked() as (broker, consumer):
        answer = await ask(broker, 220, RESET, encode_body(body, Dialect.FASTJSON))
        assert answer.code == 0
        assert consumer.reset == {queue(1): 7}


async def test_a_reset_that_cannot_be_read() -> None:
    async with asked() as (broker, consumer):
        for body in (
            b"",
            b"[]",
            b'{"offsetTable":[{"topic":"t","brokerName":"b","queueId":0}]}',
            b'{"offsetTable":[1]}',
        ):
            assert (await ask(broker, 220, RESET, body)).code == 1
        assert (await ask(broker, 220, RESET | {"group": "other"}, b'{"offsetTable":{}}')).code == 1
        assert consumer.reset == {}


async def test_offsets_are_told() -> None:
    async with asked() as (broker, _):
        answer = await ask(broker, 221, STATUS)
        assert decode_body(GetConsumerStatusBody, answer.body, answer.codec).message_queue_table == {queue(0): 3}
        other = await ask(broker, 221, STATUS | {"group": "other"})
        assert (other.code, other.remark) == (1, "The Consumer Group <other> not exist in this consumer")


async def test_a_message_is_consumed_directly() -> None:
    async with asked() as (broker, consumer):
        answer = await ask(broker, 309, DIRECT, MESSAGE)
        result = decode_body(ConsumeMessageDirectlyResult, answer.body, answer.codec)
        assert (result.consume_result, result.remark) == ("CR_LATER", "broker-a")
        assert consumer.bodies == [b"one"]
        for body in (b"", b"garbage", MESSAGE + MESSAGE):
            assert (await ask(broker, 309, DIRECT, body)).code == 1
        assert (await ask(broker, 309, DIRECT | {"consumerGroup": "other"}, MESSAGE)).code == 1


async def test_a_handler_that_raises_is_an_answer() -> None:
    async with asked() as (broker, consumer):
        consumer.error = ZeroDivisionError("by zero")
        answer = await ask(broker, 309, DIRECT, MESSAGE)
        assert answer.code == 1 and "by zero" in (answer.remark or "")
        consumer.error = RequestRefused(2, "not now")
        assert (await ask(broker, 309, DIRECT, MESSAGE)).remark == "not now"


async def test_direct_messages_are_bounded() -> None:
    async with asked() as (broker, consumer):
        consumer.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_DIRECT):
                nursery.start_soon(ask, broker, 309, DIRECT, MESSAGE)
            # Frames of one connection are handled in their order, so this one comes last.
            await wait_all_tasks_blocked()
            assert (await ask(broker, 309, DIRECT, MESSAGE)).code == 2
            consumer.gate.set()
        assert (await ask(broker, 309, DIRECT, MESSAGE)).code == 0


async def test_a_pull_consumer_answers_what_it_can() -> None:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
        namesrv.add("t", broker)
        broker.on(15, lambda request: request.respond())
        async with PullConsumer(namesrv.addr, group="g") as consumer:
            await consumer.pull(queue(), 0)
            await consumer.commit_offset(queue(), 5)
            answer = await ask(broker, 221, STATUS)
            assert decode_body(GetConsumerStatusBody, answer.body, answer.codec).message_queue_table == {queue(): 5}
            assert "chooses its own" in ((await ask(broker, 220, RESET, b'{"offsetTable":{}}')).remark or "")
            assert "no handler" in ((await ask(broker, 309, DIRECT, MESSAGE)).remark or "")
