"""A topic with queue.type=BatchCQ on a broker of ours, through all consumers: each message once, at its offset."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark import Admin, ConsumeFrom, Producer, PullConsumer, PushConsumer, SimpleConsumer
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.admin.reports.reading import read_queue
from tests.sdk.consumer.push_cluster import push_cluster
from tests.sdk.fakes import until
from tests.support.in_process import Servers, until_known

COUNT = 60
FIRST = ConsumeFrom.FIRST_OFFSET
BODIES = [b"%d" % number for number in range(COUNT)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    """Topic ``b`` with one queue, in which batches of 25, 25 and 9 and a single message are."""
    async with push_cluster(tmp_path) as made:
        async with Admin(made.nameserver) as admin, Producer(made.nameserver) as producer:
            await admin.create_topic(made.broker, TopicConfig("b", 1, 1, attributes={"queue.type": "BatchCQ"}))
            await until_known(admin, "b")
            for low, high in ((0, 25), (25, 50), (50, 59)):
                tagged = [Message("b", body, tags=("odd", "even")[int(body) % 2 == 0]) for body in BODIES[low:high]]
                await producer.send_many("b", tagged)
            await producer.send(Message("b", BODIES[59], tags="odd"))
        yield made


async def the_queue(consumer: PullConsumer) -> MessageQueue:
    (mq,) = await consumer.message_queues("b")
    return mq


async def test_pulls_and_streams(cluster: Servers) -> None:
    pytest.importorskip("numpy")
    async with PullConsumer(cluster.nameserver, group="g", consume_from=FIRST) as consumer:
        mq = await the_queue(consumer)
        whole = [message async for message in consumer.messages(mq, 0, COUNT)]
        assert [message.body for message in whole] == BODIES
        assert [message.queue_offset for message in whole] == list(range(COUNT))
        assert [message.is_inner for message in whole] == [True] * 59 + [False]
        assert len({message.msg_id for message in whole}) == COUNT
        assert len({message.physical_offset for message in whole}) == 4
        for start in range(COUNT):
            part = await consumer.pull(mq, start)
            assert [message.queue_offset for message in part.messages] == list(range(start, part.next_offset))
        async with consumer.stream(mq, 3, 55, expression="even") as stream:
            found = [message.body for batch in [batch async for batch in stream] for message in batch]
            assert found == BODIES[4:55:2]
        consumer.assign([mq])
        polled: list[MessageExt] = []
        while len(polled) < COUNT:
            polled += await consumer.poll(max_count=7)
        assert [message.body for message in polled] == BODIES
        async with consumer.arrow(mq, 20, 58, columns=["queueOffset", "body"]) as tables:
            rows = [row for batch in [batch async for batch in tables] for row in batch.to_pylist()]
        assert rows == [{"queueOffset": at, "body": BODIES[at]} for at in range(20, 58)]


async def test_what_a_push_consumer_fails_on_comes_again_alone(cluster: Servers) -> None:
    times: Counter[bytes] = Counter()

    def handle(message: MessageExt) -> None:
        times[message.body] += 1
        if message.body in (b"30", b"59") and times[message.body] == 1:
            raise ZeroDivisionError

    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"b": "*"}, handler=handle, consume_from=FIRST,
        max_queue_messages=20,
    ):  # fmt: skip
        await until(lambda: sum(times.values()) == COUNT + 2)
    assert times == Counter([*BODIES, b"30", b"59"])
    async with PullConsumer(cluster.nameserver, group="g") as consumer:
        assert await consumer.committed_offset(await the_queue(consumer)) == COUNT


async def test_a_simple_consumer_acknowledges_each(cluster: Servers) -> None:
    async with SimpleConsumer(
        cluster.nameserver, group="g", subscriptions={"b": "*"}, consume_from=FIRST
    ) as consumer:  # fmt: skip
        found: list[bytes] = []
        while len(found) < COUNT:
            messages = await consumer.receive(wait_ms=10_000)
            found += [message.body for message in messages]
            await consumer.ack(messages)
        assert found == BODIES
        assert await consumer.receive(wait_ms=0) == []


async def test_administrators_see_messages(cluster: Servers) -> None:
    async with PullConsumer(cluster.nameserver, group="g") as consumer, Admin(cluster.nameserver) as admin:
        mq = await the_queue(consumer)
        assert await admin.max_offset(mq) == COUNT
        (message, *_) = (await consumer.pull(mq, 27)).messages
        seen = await admin.view_message(message.offset_msg_id)
        assert (seen.body, seen.queue_offset) == (BODIES[25], 25)
        together = await admin.view_messages(message.offset_msg_id)
        assert message.body in [each.body for each in together] and len(together) > 1
        assert [each.queue_offset for each in await admin.query_by_unique_key("b", message.msg_id)] == [27]
        taken: list[MessageExt] = []
        _, at = await read_queue(consumer, mq, 3, COUNT, lambda _, found: taken.extend(found), most=30)
        assert ([message.body for message in taken], at) == (BODIES[3:33], 33)
        assert await consumer.search_offset(mq, message.store_timestamp + 1_000_000) == COUNT
