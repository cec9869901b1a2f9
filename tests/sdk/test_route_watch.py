"""Clients of ours learn of a change at once, whichever NameServer lives; nothing here waits for a poll of 30 s."""

import pytest

from skylark import Admin, Client, ConsumeFrom, Message, MessageExt, Producer, PushConsumer
from skylark.mqcommon.errors import RouteNotFound
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.client import ClientInstance
from skylark.sdk.testing import Cluster
from tests.support.waiting import until


async def test_a_topic_that_was_missing_and_one_that_grows_are_known_at_once() -> None:
    """Also after the NameServer that was watched has died."""
    with Cluster(brokers=2, nameservers=2) as cluster:
        addrs = [node.address for node in cluster.brokers]
        async with ClientInstance(cluster.nameserver) as client, Admin(cluster.nameserver) as admin:

            async def create(topic: str, addr: str, queues: int) -> None:
                await admin.create_topic(addr, TopicConfig(topic, queues, queues))

            def queues_of(topic: str) -> int:
                route = client.routes.get(topic)
                return 0 if route is None else len(route.readable)

            with pytest.raises(RouteNotFound):
                await client.route("later")
            await create("later", addrs[0], 1)
            await until(lambda: queues_of("later") == 1)
            await create("later", addrs[1], 3)
            await until(lambda: queues_of("later") == 4)
            cluster.nameservers[0].kill()
            await create("later", addrs[0], 5)
            await until(lambda: queues_of("later") == 8)
            cluster.nameservers[0].start()
            cluster.nameservers[1].kill()
            await create("later", addrs[0], 2)
            await until(lambda: queues_of("later") == 5)


async def test_a_consumer_reads_new_queues_and_a_producer_leaves_a_stopped_broker() -> None:
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("t", 1)
        found: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            found.append(message.body)

        async with (
            Client(cluster.nameserver) as client,
            PushConsumer(
                client, group="g", subscriptions={"t": "*"}, handler=handle, consume_from=ConsumeFrom.FIRST_OFFSET
            ) as consumer,
            Producer(client) as producer,
        ):
            await until(lambda: read_by(consumer) == 2)
            cluster.create_topic("t", 3)
            await until(lambda: read_by(consumer) == 6)
            await producer.send(Message("t", b"1"))
            cluster.brokers[0].stop()
            await until(lambda: client_writes(client) == {"broker-b"})
            await producer.send(Message("t", b"2"))
            await until(lambda: sorted(found) == [b"1", b"2"])


def read_by(consumer: PushConsumer) -> int:
    return len([queue for queue in consumer.queues if queue.topic == "t"])


def client_writes(client: Client) -> set[str]:
    """The brokers that a producer of the client chooses from."""
    route = client._instance.routes.get("t")
    return set() if route is None else {queue.broker_name for queue in route.writable}
