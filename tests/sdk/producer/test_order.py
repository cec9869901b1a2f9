"""Messages with one sharding key: where they go, while queues come and brokers leave."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqcommon.errors import InvalidArgument, SendFailed
from mqcommon.message.message import Message
from sdk.producer import Producer
from sdk.producer.routing import queue_of_key
from tests.sdk.fakes import FakeNamesrv, serving
from tests.sdk.producer.test_producer import StoringBroker, bodies, two_brokers


def keyed(body: bytes, key: str = "order-1") -> Message:
    return Message("t", body, sharding_key=key)


async def test_each_way_to_send_takes_the_same_queue() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        for number in range(20):
            key = f"order-{number}"
            mq = queue_of_key(await producer.queues("t"), key)
            assert (await producer.send(keyed(b"waited %d" % number, key))).queue == mq
            await producer.send_oneway(keyed(b"oneway %d" % number, key))
            broker = {"broker-a": a, "broker-b": b}[mq.broker_name]
            with trio.fail_after(5):
                while (mq.queue_id, b"oneway %d" % number) not in broker.stored:
                    await trio.lowlevel.checkpoint()


async def test_batches_refuse_keys_since_they_go_to_all_queues() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        with pytest.raises(InvalidArgument, match=r"messages\[1\] has a sharding key"):
            await producer.send_many("t", [Message("t", b"x"), keyed(b"y")])
        with pytest.raises(InvalidArgument, match=r"messages\[1\] has a sharding key"):
            await producer.send_many("t", [b"x", keyed(b"y")])
        assert bodies(a, b) == []


async def test_more_queues_are_used_once_the_route_has_them() -> None:
    async with serving(FakeNamesrv()) as names, serving(StoringBroker("broker-a")) as broker:
        assert isinstance(names, FakeNamesrv) and isinstance(broker, StoringBroker)
        names.add("t", broker, queues=1)
        async with Producer(names.addr) as producer:
            assert {(await producer.send(keyed(b"%d" % n, f"k{n}"))).queue.queue_id for n in range(20)} == {0}
            names.routes.clear()
            names.add("t", broker, queues=4)
            await producer._client.instance.refresh("t")
            queues = await producer.queues("t")
            for n in range(20):
                assert (await producer.send(keyed(b"%d" % n, f"k{n}"))).queue == queue_of_key(queues, f"k{n}")


async def test_an_ordered_topic_keeps_its_queues_while_a_broker_is_away() -> None:
    """Its messages fail or wait; they never go to another queue."""
    a, b = StoringBroker("broker-a"), StoringBroker("broker-b")
    async with serving(FakeNamesrv()) as names, serving(a):
        assert isinstance(names, FakeNamesrv)
        async with serving(b), Producer(names.addr, send_timeout_ms=10_000) as producer:
            names.add("t", a, b)
            names.routes["t"].order_topic_conf = "broker-a:2;broker-b:2"
            queues = await producer.queues("t")
            key = next(key for key in map(str, range(99)) if queue_of_key(queues, key).broker_name == "broker-b")
            await producer.send(keyed(b"before", key))
            b.stop()
            left = names.routes["t"].broker_datas.pop()
            await producer._client.instance.refresh("t")
            assert await producer.queues("t") == queues
            with pytest.raises(SendFailed):
                await producer.send(keyed(b"fails", key), timeout_ms=100)
            stored = trio.Event()

            async def wait() -> None:
                await producer.send(keyed(b"waits", key))
                stored.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                async with serving(b):
                    names.routes["t"].broker_datas.append(left)
                    await stored.wait()
        assert bodies(a) == [] and bodies(b) == [b"before", b"waits"]
