"""The official C++ client, which cannot take batches apart, with a topic that stores whole batches (BatchCQ)."""

from pathlib import Path

import trio

from skylark import Message, Producer
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.interop import cpp
from tests.support.daemons import in_threads, make_topic
from tests.support.waiting import until

TOPIC = "in-batches"
CONFIG = TopicConfig(TOPIC, 2, 2, attributes={"queue.type": "BatchCQ"})
FIELDS = ("body", "tags", "keys", "id", "queue_id", "queue_offset", "physical_offset")


async def test_it_pulls_what_was_sent_in_batches(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        async with Producer(cluster.nameserver) as producer, trio.open_nursery() as nursery:
            for number in range(1_000):
                message = Message(TOPIC, b"%04d" % number, tags=f"T{number % 5}", keys=f"k{number}")
                nursery.start_soon(producer.send, message)
        async with Producer(cluster.nameserver) as producer:
            await producer.send_many(TOPIC, [b"%04d" % number for number in range(1_000, 4_000)])
            await producer.send(Message(TOPIC, b"4000"))
        ours = [
            (message.body.decode(), message.tags or "", message.keys or "", message.msg_id, message.queue_id,
             message.queue_offset, message.physical_offset)
            for message in await cpp.stored(cluster, TOPIC)
        ]  # fmt: skip
        theirs = [tuple(message[name] for name in FIELDS) for message in await cpp.pull(cluster, TOPIC)]
    assert theirs == ours
    assert sorted(body for body, *_ in theirs) == [f"{number:04}" for number in range(4_001)]


async def test_it_is_pushed_what_it_subscribed_to(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        async with Producer(cluster.nameserver) as producer, trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(producer.send, Message(TOPIC, b"%03d" % number, tags=f"T{number % 3}"))
        wanted = [f"{number:03}" for number in range(300) if number % 3]
        async with cpp.pushing(cluster, "cpp-batches", TOPIC, expression="T1 || T2") as consumer:
            await until(lambda: sorted(consumer.bodies) == wanted, "the C++ consumer gets what it asked for, each once")
            got = sorted(consumer.bodies)
        assert got == wanted
