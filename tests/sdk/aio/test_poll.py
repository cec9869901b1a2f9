"""`PullConsumer.poll` from asyncio: what a cancelled call does not return is returned by the next."""

import asyncio

from sdk import ConsumeFrom, Message, aio
from sdk.testing import Cluster, cluster_fixture

cluster = cluster_fixture(scope="module")

COUNT = 300


def test_a_cancelled_poll_loses_nothing(cluster: Cluster) -> None:
    async def use() -> None:
        await asyncio.to_thread(cluster.create_topic, "polled", 2)
        async with (
            aio.Producer(cluster.nameserver) as producer,
            aio.PullConsumer(cluster.nameserver, group="g", consume_from=ConsumeFrom.FIRST_OFFSET) as consumer,
        ):
            queues = await consumer.message_queues("polled")
            consumer.assign(queues)
            sending = asyncio.create_task(send_some(producer))
            found: list[int] = []
            while len(found) < COUNT:
                polling = asyncio.create_task(consumer.poll(timeout_ms=1_000, max_count=1))
                # Cancelled at another step of the call each time.
                for _ in range(len(found) % 7):
                    await asyncio.sleep(0)
                polling.cancel()
                try:
                    found += [int(message.body) for message in await polling]
                except asyncio.CancelledError:
                    found += [int(message.body) for message in await consumer.poll(timeout_ms=5_000, max_count=1)]
            await sending
            assert sorted(found) == list(range(COUNT))
            assert sum(consumer.position(mq) or 0 for mq in consumer.assignment()) == COUNT
            await consumer.commit()
            assert sum([await consumer.committed_offset(mq) or 0 for mq in queues]) == COUNT

    asyncio.run(use())


async def send_some(producer: aio.Producer) -> None:
    for number in range(COUNT):
        await producer.send(Message("polled", b"%d" % number))
