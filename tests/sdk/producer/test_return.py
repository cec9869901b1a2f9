"""A broker that went away and came back gets sends again without waiting for the next poll of the routes."""

import trio

from mqcommon.message.ids import encode_host, offset_msg_id
from mqcommon.message.message import Message
from remoting.protocol.command import Command
from sdk.producer.producer import Producer
from tests.sdk.fakes import Answer, FakeBroker, FakeNamesrv, serving


def taking_sends(name: str) -> FakeBroker:
    broker = FakeBroker(name)
    broker.on(310, storing(broker))
    return broker


def storing(broker: FakeBroker) -> Answer:
    def store(request: Command) -> Command:
        where = offset_msg_id(encode_host("127.0.0.1", int(broker.addr.rpartition(":")[2])), 0)
        return request.respond(ext={"msgId": where, "queueId": (request.ext or {})["e"], "queueOffset": 0})

    return store


async def send_until_stored_by(producer: Producer, broker_name: str) -> None:
    while (await producer.send(Message("t", b"x"))).queue.broker_name != broker_name:
        await trio.lowlevel.checkpoint()


async def test_a_broker_that_left_its_route_is_used_again_when_it_is_back() -> None:
    namesrv, a, b = FakeNamesrv(), taking_sends("broker-a"), taking_sends("broker-b")
    async with serving(namesrv), serving(a), Producer(namesrv.addr) as producer:
        async with serving(b):
            namesrv.add("t", a, b)
            await send_until_stored_by(producer, "broker-b")
            del namesrv.routes["t"]
            namesrv.add("t", a)
        for _ in range(10):
            assert (await producer.send(Message("t", b"x"))).queue.broker_name == "broker-a"
        assert list(producer.brokers.suspects.addrs) == [b.addr]
        async with serving(b):
            del namesrv.routes["t"]
            namesrv.add("t", a, b)
            with trio.fail_after(20):
                await send_until_stored_by(producer, "broker-b")
        assert producer.retried > 0


async def test_a_broker_that_left_in_good_order_is_used_again_when_it_is_back() -> None:
    namesrv, a, b = FakeNamesrv(), taking_sends("broker-a"), taking_sends("broker-b")
    async with serving(namesrv), serving(a), serving(b), Producer(namesrv.addr) as producer:
        namesrv.add("t", a, b)
        await send_until_stored_by(producer, "broker-b")
        del namesrv.routes["t"]
        namesrv.add("t", a)
        b.on(310, lambda request: request.respond(14, "stopping"))
        with trio.fail_after(20):
            while list(producer.brokers.suspects.addrs) != [b.addr]:
                assert (await producer.send(Message("t", b"x"))).queue.broker_name == "broker-a"
        b.on(310, storing(b))
        del namesrv.routes["t"]
        namesrv.add("t", a, b)
        with trio.fail_after(20):
            await send_until_stored_by(producer, "broker-b")


async def test_a_topic_that_got_fewer_queues_is_sent_to_with_its_new_route() -> None:
    namesrv, a = FakeNamesrv(), taking_sends("broker-a")
    stored = storing(a)

    def with_one_queue(request: Command) -> Command:
        if (queue_id := int((request.ext or {})["e"])) > 0:
            return request.respond(29, f"request queueId[{queue_id}] is illegal, TopicConfig Producer: 127.0.0.1")
        return stored(request)

    async with serving(namesrv), serving(a), Producer(namesrv.addr) as producer:
        namesrv.add("t", a, queues=8)
        await producer.send(Message("t", b"x"))
        a.on(310, with_one_queue)
        del namesrv.routes["t"]
        namesrv.add("t", a, queues=1)
        for _ in range(8):
            assert (await producer.send(Message("t", b"x"))).queue.queue_id == 0
