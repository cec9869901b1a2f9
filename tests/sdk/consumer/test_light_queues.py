"""Messages in light queues: sent once, read from each of them with its own offsets."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark import Admin, ConsumeFrom, LightMessage, Message, Producer, PullConsumer, PushConsumer
from skylark.mqcommon.errors import InvalidArgument, SendFailed
from tests.sdk.consumer.push_cluster import push_cluster
from tests.sdk.fakes import until
from tests.support.in_process import Servers

ON = {"enable_lmq": True, "enable_multi_dispatch": True, "max_lmq_consume_queue_num": 3}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    async with push_cluster(tmp_path, **ON) as made:
        yield made


async def test_each_light_queue_has_offsets_of_its_own(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message("t", b"zero"))
        await producer.send(LightMessage("t", b"one", light_queues=["a"], tags="tea", keys="k"))
        await producer.send(LightMessage("t", b"two", light_queues=["b", "%LMQ%a"], properties={"p": "v"}))
        await producer.send(LightMessage("t", b"three", light_queues=["a", "b"], delay_level=1))
    async with PullConsumer(
        cluster.nameserver, group="%LMQ%g", consume_from=ConsumeFrom.FIRST_OFFSET, namespace="any"
    ) as consumer:
        (a,), (b,) = [await consumer.message_queues(name) for name in ("%LMQ%a", "%LMQ%b")]
        assert (a.topic, a.queue_id) == ("%LMQ%a", 0)
        first, second = (await consumer.pull(a, 0)).messages[:2]
        assert [(m.body, m.queue_offset, m.queue_id, m.topic) for m in (first, second)] == [
            (b"one", 0, 0, "t"),
            (b"two", 1, 0, "t"),
        ]
        assert (first.tags, first.keys, second.properties["p"]) == ("tea", "k", "v")
        assert (await consumer.pull(a, 0, expression="tea")).messages[0].body == b"one"
        # It comes when it is due.
        (third,) = (await consumer.pull(b, 1, wait_ms=20_000)).messages
        assert (third.body, third.queue_offset) == (b"three", 1)
        assert (await consumer.min_offset(b), await consumer.max_offset(b)) == (0, 2)
        consumer.assign([a, b])
        found = [message.body for _ in range(2) for message in await consumer.poll()]
        assert sorted(found) == sorted([b"one", b"two", b"three", b"two", b"three"])
        await consumer.commit()
        assert (await consumer.committed_offset(a), await consumer.committed_offset(b)) == (3, 2)


async def test_a_push_consumer_of_a_light_queue(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        for number in range(5):
            await producer.send(LightMessage("t", b"%d" % number, light_queues=["a"]))
    got: list[bytes] = []
    for _ in range(2):
        async with PushConsumer(
            cluster.nameserver, group="%LMQ%g", subscriptions={"%LMQ%a": "*"}, consume_from=ConsumeFrom.FIRST_OFFSET,
            handler=lambda message: got.append(message.body),
        ) as consumer:  # fmt: skip
            await until(lambda: len(got) == 5 and (consumer.consumed in (0, 5)) and bool(consumer.queues))
    assert sorted(got) == [b"%d" % number for number in range(5)]


async def test_what_the_broker_refuses(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send(LightMessage("t", b"one", light_queues=["a", "b", "c"]))
        with pytest.raises(SendFailed, match="maxLmqConsumeQueueNum config num, which is 3"):
            await producer.send(LightMessage("t", b"one", light_queues=["d"]))
        await producer.send(LightMessage("t", b"one", light_queues=["c", "a"]))
        async with Admin(cluster.nameserver) as admin:
            await admin.delete_topic_in_broker(cluster.broker, "%LMQ%a")
        await producer.send(LightMessage("t", b"one", light_queues=["d"]))
        forged = Message("t", b"one")
        for value, words in (("b", "begin with %LMQ%"), ("%LMQ%a,%LMQ%a", "twice"), ("%LMQ%a/b", "illegal characters")):
            forged.properties = {"INNER_MULTI_DISPATCH": value}
            with pytest.raises(SendFailed, match=words):
                await producer.send(forged)
        with pytest.raises(InvalidArgument, match="is for light queues"):
            await producer.send_many("t", [LightMessage("t", b"one", light_queues=["a"])])


async def test_offsets_that_a_producer_writes_mean_nothing(cluster: Servers) -> None:
    forged = Message("t", b"one")
    forged.properties = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "700"}
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        await producer.send(forged)
        (queue,) = await consumer.message_queues("%LMQ%a")
        (message,) = (await consumer.pull(queue, 0)).messages
        assert (message.queue_offset, message.properties["INNER_MULTI_QUEUE_OFFSET"]) == (0, "0")


async def test_without_the_options_there_are_no_light_queues(tmp_path: Path) -> None:
    async with push_cluster(tmp_path) as cluster, Producer(cluster.nameserver) as producer:
        await producer.send(LightMessage("t", b"one", light_queues=["a"]))
        async with PullConsumer(cluster.nameserver, timeout_ms=500) as consumer:
            (queue,) = await consumer.message_queues("%LMQ%a")
            with pytest.raises(Exception, match="not exist"):
                await consumer.pull(queue, 0)


@pytest.mark.parametrize("names", ["a", [], ["a", "a"], ["a", "%LMQ%a"], [""], ["a/b"], [1], 5, ["x" * 130]], ids=repr)
def test_names_that_a_message_cannot_have(names: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        LightMessage("t", light_queues=names)  # type: ignore[arg-type]  # that is the point
