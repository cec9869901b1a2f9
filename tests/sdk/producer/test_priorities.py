"""Messages with priorities, against a broker of ours in this process."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from skylark import ConsumeFrom, Message, MessageExt, Producer, PushConsumer, SimpleConsumer
from skylark.mqcommon.errors import InvalidArgument
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.admin.client import Admin
from tests.sdk.consumer.push_cluster import push_cluster
from tests.support.in_process import Servers, until_known
from tests.support.waiting import until

TOPIC, QUEUES = "urgent", 10
CONFIG = TopicConfig(TOPIC, QUEUES, QUEUES, attributes={"+message.type": "PRIORITY"})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    async with push_cluster(tmp_path, timer_precision_ms=100) as made, Admin(made.nameserver) as admin:
        await admin.create_topic(made.broker, CONFIG)
        await until_known(admin, TOPIC)
        yield made


async def test_ten_priorities_sent_in_batches_are_received_from_the_highest(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        tickets = [producer.send_nowait(Message(TOPIC, b"%d" % n, priority=n % QUEUES)) for n in range(200)]
        results = [await ticket for ticket in tickets]
        assert [result.queue.queue_id for result in results] == [n % QUEUES for n in range(200)]
    subscriptions = {TOPIC: "*"}
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions=subscriptions) as consumer:
        found: list[int] = []
        while len(found) < 200:
            messages = await consumer.receive(32, 1_000)
            assert [message.priority for message in messages] == [int(message.body) % QUEUES for message in messages]
            assert messages[0].headers == {}
            found += [message.priority or 0 for message in messages]
            await consumer.ack(messages)
    assert found == sorted(found, reverse=True)


async def test_a_message_that_fails_keeps_its_priority(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"a", priority=7))
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={TOPIC: "*"}) as consumer:
        (first,) = await consumer.receive(32, 5_000)
        await consumer.change_invisible_time(first, 0)
        (again,) = await consumer.receive(32, 5_000)
    assert (again.priority, again.queue_id, again.reconsume_times) == (7, 7, 1)


async def test_a_push_consumer_whose_group_pops_takes_the_urgent_messages_first(cluster: Servers) -> None:
    seen: list[int | None] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.priority)

    async with Admin(cluster.nameserver) as admin:
        await admin.set_consume_mode(cluster.broker, TOPIC, "g", "POP")
    async with Producer(cluster.nameserver) as producer:
        for priority in range(QUEUES):
            await producer.send(Message(TOPIC, priority=priority))
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle, concurrency=1,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ):  # fmt: skip
        await until(lambda: len(seen) == QUEUES, "all messages")
    assert seen == list(range(QUEUES))[::-1]


async def test_a_delayed_message_waits_and_is_urgent_then(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"timed", priority=9), delay=timedelta(milliseconds=300))
        await producer.send(Message(TOPIC, b"level", priority=8, delay_level=1))
        await producer.send(Message(TOPIC, b"plain", priority=99))
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={TOPIC: "*"}) as consumer:
        found: dict[bytes, tuple[int, int | None]] = {}
        while len(found) < 3:
            for message in await consumer.receive(32, 5_000):
                found[message.body] = message.queue_id, message.priority
    # As in RocketMQ, a message that waited has no priority any more, but the queue that the producer chose for it.
    assert found == {b"timed": (9, None), b"level": (8, None), b"plain": (9, 99)}


async def test_what_would_choose_the_queue_twice_is_refused(cluster: Servers) -> None:
    message = Message("one", b"a", priority=1)
    async with Producer(cluster.nameserver) as producer:
        (queue,) = await producer.queues("one")
        with pytest.raises(InvalidArgument, match="has a priority, which chooses its queue"):
            await producer.send(message, queue=queue)
        with pytest.raises(InvalidArgument, match="has a priority, which chooses its queue"):
            producer.send_nowait(message, selector=lambda queues, message: queues[0])
        with pytest.raises(
            InvalidArgument, match=r"messages\[1\] has a priority: send it with `send` or `send_nowait`"
        ):
            await producer.send_many("one", [b"a", message])
        assert (await producer.send(message)).queue.queue_id == 0
    async with Producer(cluster.nameserver, value=bytes) as values:
        assert values.message(TOPIC, b"a", priority=3).priority == 3
        assert (await values.send_value(TOPIC, b"a", priority=3)).queue.queue_id == 3


async def test_a_thousand_priorities_need_no_more_lanes_than_there_are_queues(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        for ticket in [producer.send_nowait(Message(TOPIC, priority=n)) for n in range(1_000)]:
            await ticket
        assert len(producer._lanes.open) == QUEUES
