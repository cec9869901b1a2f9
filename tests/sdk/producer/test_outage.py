"""Every way of sending, while brokers and NameServers are away and come back."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from skylark.mqcommon.errors import NoNameServer, RouteNotFound, SendFailed
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import HeartbeatData
from skylark.sdk import broker_api
from skylark.sdk.producer import Producer
from skylark.sdk.producer.wire import DEFAULT_TOPIC
from tests.sdk.fakes import FakeNamesrv, serving
from tests.sdk.producer.test_producer import StoringBroker, bodies
from tests.support.waiting import DEADLINE_S, until

Send = Callable[[Producer], Awaitable[object]]
PATIENT_MS = 20_000

WAYS: dict[str, Send] = {
    "plain": lambda producer: producer.send(Message("t", b"x")),
    "keyed": lambda producer: producer.send(Message("t", b"x", sharding_key="k")),
    "selector": lambda producer: producer.send(Message("t", b"x"), selector=lambda queues, message: queues[0]),
    "queue": lambda producer: producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0)),
    "many": lambda producer: producer.send_many("t", [b"x"]),
    "oneway": lambda producer: producer.send_oneway(Message("t", b"x")),
}
EACH_WAY = pytest.mark.parametrize("send", WAYS.values(), ids=WAYS)


async def until_stored(broker: StoringBroker) -> None:
    """One-way sends arrive after they have returned."""
    await until(lambda: bool(bodies(broker)), "the message is stored", 10)


@EACH_WAY
async def test_brokers_that_are_all_away_are_waited_for(send: Send) -> None:
    names, broker = FakeNamesrv(), StoringBroker("broker-a")
    async with serving(names), Producer(names.addr, send_timeout_ms=PATIENT_MS, retries=0) as producer:
        async with serving(broker):
            names.add("t", broker)
            await producer.queues("t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, producer)
            await until(lambda: broker.addr in producer.brokers.suspects.addrs, "it is found to be away", 10)
            async with serving(broker):
                await until_stored(broker)


@EACH_WAY
async def test_nameservers_that_are_down_at_the_start_are_waited_for(send: Send) -> None:
    names, broker = FakeNamesrv(), StoringBroker("broker-a")
    async with serving(names):
        pass  # it has an address now, and nobody listens there
    patient = Producer(names.addr, send_timeout_ms=PATIENT_MS, start_timeout_ms=None)
    async with serving(broker), patient as producer, trio.open_nursery() as nursery:
        nursery.start_soon(send, producer)
        await until(lambda: bool(producer._client.instance.remoting._errors), "no NameServer was there", 10)
        async with serving(names):
            await names.wait_asked(105, 2)  # it knows no broker yet, so nothing can be said of the topic
            names.add("t", broker)
            await until_stored(broker)


@EACH_WAY
async def test_without_nameservers_the_error_names_the_remedy(send: Send) -> None:
    names = FakeNamesrv()
    async with serving(names):
        pass
    async with Producer(names.addr, send_timeout_ms=200, start_timeout_ms=None) as producer:
        with pytest.raises(SendFailed, match="or give the right addresses") as caught:
            await send(producer)
        assert isinstance(caught.value.__cause__, NoNameServer)
        assert names.addr in str(caught.value)


@pytest.mark.parametrize("knows_brokers", [True, False])
async def test_a_new_topic_waits_only_for_the_brokers_that_register_again(
    monkeypatch: pytest.MonkeyPatch, knows_brokers: bool
) -> None:
    """It does not wait until every possible broker has registered with the restarted NameServer."""
    monkeypatch.setattr("skylark.sdk.client.REGISTERING_S", 10_000)
    names, broker = FakeNamesrv(), StoringBroker("broker-a")
    async with serving(broker):
        async with serving(names):
            names.add("known", broker)
        async with (
            Producer(names.addr, send_timeout_ms=PATIENT_MS, start_timeout_ms=None) as producer,
            trio.open_nursery() as nursery,
        ):
            if knows_brokers:
                async with serving(names):
                    await producer.queues("known")
            nursery.start_soon(producer.send, Message("new", b"x"))
            await until(lambda: producer._client.instance._settled_at > 0, "the NameServer is found to be down", 10)
            names.add(DEFAULT_TOPIC, broker)
            async with serving(names):
                await until_stored(broker)


async def test_a_topic_that_nobody_knows_is_told_at_once() -> None:
    names, broker = FakeNamesrv(), StoringBroker("broker-a")
    async with serving(names), serving(broker), Producer(names.addr, send_timeout_ms=PATIENT_MS) as producer:
        names.add("t", broker)
        with trio.fail_after(DEADLINE_S), pytest.raises(RouteNotFound, match="unheard"):
            await producer.send(Message("unheard", b"x"))


@EACH_WAY
async def test_nothing_is_sent_to_another_broker_at_an_old_address(
    send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    names, a, b = FakeNamesrv(), StoringBroker("broker-a"), StoringBroker("broker-b")
    b.announces = "broker-b"
    async with serving(names), Producer(names.addr, send_timeout_ms=PATIENT_MS) as producer:
        async with serving(a):
            names.add("t", a)
            await producer.queues("t")
        b.addr = a.addr
        async with serving(b):
            await broker_api.heartbeat(producer._client.at(b.addr), HeartbeatData())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, producer)
                await until(lambda: "broker-b listens at" in caplog.text, "the wrong broker is found out", 10)
                a.addr = ""
                async with serving(a):
                    names.routes["t"].broker_datas[0].broker_addrs[0] = a.addr
                    await until_stored(a)
            assert not b.asked(310) and not b.asked(320)


@EACH_WAY
async def test_a_broker_that_says_that_it_is_not_the_one_is_not_tried_again(send: Send) -> None:
    class Checking(StoringBroker):
        def answer(self, request):  # type: ignore[no-untyped-def]
            if (request.ext or {})["n"] != self.name:
                return request.respond(501, "not the broker that is meant")
            return super().answer(request)

    names, a, b = FakeNamesrv(), StoringBroker("broker-a"), Checking("broker-b")
    b.announces = "broker-b"
    async with serving(names), Producer(names.addr, send_timeout_ms=PATIENT_MS) as producer:
        async with serving(a):
            names.add("t", a)
            await producer.queues("t")
        b.addr, a.addr = a.addr, ""
        async with serving(b), serving(a), trio.open_nursery() as nursery:
            nursery.start_soon(send, producer)
            await b.wait_asked(310)
            names.routes["t"].broker_datas[0].broker_addrs[0] = a.addr
            if send is WAYS["oneway"]:
                return  # it has returned: nobody tells it that the message was refused
            await until_stored(a)
            assert not bodies(b) and len(b.asked(310)) == 1
