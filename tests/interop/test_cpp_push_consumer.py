"""The official C++ push consumer with our broker: filter, group membership, long polling, offsets that last."""

from pathlib import Path

import pytest

from skylark import Admin, Message, Producer, PullConsumer
from skylark.mqcommon.errors import BrokerError
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.interop import cpp
from tests.support.daemons import Cluster, in_threads, make_topic
from tests.support.waiting import until

TOPIC = "pushed"
GROUP = "cpp-pushers"
CONFIG = TopicConfig(TOPIC, 4, 4)


async def send(cluster: Cluster, bodies: list[str], tags: str) -> dict[int, int]:
    """Store these; the end of what each queue has of them."""
    ends: dict[int, int] = {}
    async with Producer(cluster.nameserver) as producer:
        queues = await producer.queues(TOPIC)
        for number, body in enumerate(bodies):
            message = Message(TOPIC, body.encode(), tags=tags)
            result = await producer.send(message, queue=queues[number % len(queues)])
            ends[result.queue.queue_id] = result.queue_offset + 1
    return ends


async def until_committed(cluster: Cluster, ends: dict[int, int]) -> None:
    """The group's offsets are behind the last message that it consumed, and not behind the end of the queue."""
    async with PullConsumer(cluster.nameserver, group=GROUP, heartbeat=False) as consumer:
        queues = await consumer.message_queues(TOPIC)

        async def committed() -> bool:
            offsets = {queue.queue_id: await consumer.committed_offset(queue) or 0 for queue in queues}
            return all(offsets[queue_id] >= end for queue_id, end in ends.items())

        await until(committed, f"the C++ consumer commits {ends}")
        for queue in queues:
            assert (await consumer.committed_offset(queue) or 0) <= await consumer.max_offset(queue)


async def test_a_filter_and_offsets_that_the_next_consumer_of_the_group_goes_on_from(tmp_path: Path) -> None:
    wanted = [f"a{number:03}" for number in range(100)]
    later = [f"b{number:03}" for number in range(20)]
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        await send(cluster, ["not asked for"] * 40, "TagB")
        ends = await send(cluster, wanted, "TagA")
        async with cpp.pushing(cluster, GROUP, TOPIC, expression="TagA || TagC") as consumer:
            await until(lambda: consumer.bodies == wanted, "the C++ consumer gets what it asked for, each once")
            await until_committed(cluster, ends)
        assert consumer.bodies == wanted
        await send(cluster, later, "TagC")
        async with cpp.pushing(cluster, GROUP, TOPIC, expression="TagA || TagC") as consumer:
            await until(lambda: consumer.bodies == later, "the next consumer gets what is new, and nothing twice")


async def test_messages_that_come_while_it_waits_and_its_place_in_the_group(tmp_path: Path) -> None:
    bodies = [f"{number:03}" for number in range(40)]
    async with in_threads(tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        await make_topic(cluster, CONFIG)

        async def is_member() -> bool:
            try:
                connection = await admin.consumer_connection(GROUP)
            except BrokerError:
                return False
            (client,) = connection.connection_set
            subscription = connection.subscription_table[TOPIC]
            assert (client.language, subscription.sub_string) == ("CPP", "TagA")
            return True

        async with cpp.pushing(cluster, GROUP, TOPIC, expression="TagA") as consumer:
            await until(is_member, "the broker lists the C++ consumer")
            await send(cluster, bodies, "TagA")
            await until(lambda: consumer.bodies == bodies, "the C++ consumer gets what is sent while it waits")

        async def has_left() -> bool:
            return not await is_member()

        await until(has_left, "the broker forgets a consumer that unregistered")


async def test_a_callback_that_fails_three_times_gets_each_message_in_the_end(tmp_path: Path) -> None:
    bodies = [f"{number:03}" for number in range(102)]
    async with in_threads(tmp_path, options={"messageDelayLevel": "1s"}) as cluster:
        await make_topic(cluster, CONFIG)
        ends = await send(cluster, bodies, "TagA")
        async with cpp.pushing(cluster, GROUP, TOPIC, failures=3) as consumer:

            def consumed() -> list[str]:
                return sorted(message["body"] for message in consumer.messages if message["reconsume_times"] == 3)

            def given_back() -> list[str]:
                lost = cpp.never_given_back(cluster)
                return sorted(set(bodies) - {message["body"] for message in consumer.messages if message["id"] in lost})

            await until(lambda: consumed() == given_back(), "the C++ consumer gets what it failed on three times")
            await until_committed(cluster, ends)
        assert consumed() == given_back(), "nothing twice"
        assert {message["reconsume_times"] for message in consumer.messages} == {0, 1, 2, 3}
        assert {message["topic"] for message in consumer.messages} == {TOPIC}


async def test_an_orderly_consumer_gets_each_queue_in_its_order(tmp_path: Path) -> None:
    bodies = [f"{number:03}" for number in range(102)]
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        ends = await send(cluster, bodies, "TagA")
        async with cpp.pushing(cluster, GROUP, TOPIC, orderly=True) as consumer:
            await until(lambda: consumer.bodies == bodies, "the orderly C++ consumer gets each message once")
            await until_committed(cluster, ends)
        for queue_id in range(CONFIG.write_queue_nums):
            offsets = [message["queue_offset"] for message in consumer.messages if message["queue_id"] == queue_id]
            assert offsets == list(range(len(offsets)))


# Without the broker the client sleeps for ten seconds in each reset.
@pytest.mark.parametrize("by_broker", ["true", pytest.param("false", marks=pytest.mark.nightly)])
async def test_a_reset_reaches_a_running_consumer(tmp_path: Path, by_broker: str) -> None:
    bodies = [f"{number:03}" for number in range(20)]
    options = {"useServerSideResetOffset": by_broker}
    async with in_threads(tmp_path, options=options) as cluster, Admin(cluster.nameserver) as admin:
        await make_topic(cluster, CONFIG)
        ends = await send(cluster, bodies, "TagA")
        async with cpp.pushing(cluster, GROUP, TOPIC, expression="TagA") as consumer:
            await until(lambda: consumer.bodies == bodies, "the C++ consumer gets the messages")
            await until_committed(cluster, ends)
            await admin.reset_offsets(GROUP, TOPIC, 0)
            await until(lambda: sorted(consumer.bodies) == sorted(bodies * 2), "it gets all of them again")
            # It ends a reset some seconds later, and its shutdown must not come in between.
            await until_committed(cluster, ends)


async def test_bodies_that_our_producer_compresses(tmp_path: Path) -> None:
    bodies = ["a" * 10_000, "b" * 100_000]
    async with in_threads(tmp_path) as cluster, Producer(cluster.nameserver, compression="zlib") as producer:
        await make_topic(cluster, CONFIG)
        for body in bodies:
            await producer.send(Message(TOPIC, body.encode()))
        async with cpp.pushing(cluster, GROUP, TOPIC) as consumer:
            await until(lambda: consumer.bodies == bodies, "the C++ consumer gets the whole bodies")
