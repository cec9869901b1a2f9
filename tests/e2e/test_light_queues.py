"""kill -9 of a broker while messages come to light queues: what was acknowledged is in each of its queues, in place."""

from pathlib import Path

import pytest
import trio

from skylark import LightMessage, MessageExt, MessageQueue, Producer, PullConsumer, SkylarkError
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.test_soak import verify
from tests.support.daemons import SMALL, Cluster, make_topic, running, start, until_route
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC = "orders"
NAMES = ("%LMQ%a", "%LMQ%b", "%LMQ%c")
SENDERS = 20
ENOUGH = 400


async def acknowledged_until_killed(cluster: Cluster, number: int) -> set[bytes]:
    """The bodies of the messages of one life of the broker."""
    acked: set[bytes] = set()

    async def send(producer: Producer, sender: int) -> None:
        count = 0
        while True:
            count += 1
            names = [name for at, name in enumerate(NAMES) if (sender + count) % 7 + 1 & 1 << at]
            body = f"{number}/{sender}/{count}:{','.join(names)}".encode()
            try:
                await producer.send(LightMessage(TOPIC, body, light_queues=names))
            except SkylarkError:
                return  # the broker is dead; whether it has this one is not known
            acked.add(body)

    producer = Producer(cluster.nameserver, retries=0, send_timeout_ms=2_000)
    async with producer, trio.open_nursery() as nursery:
        for sender in range(SENDERS):
            nursery.start_soon(send, producer, sender)
        await until(lambda: len(acked) >= ENOUGH, f"{ENOUGH} sends are acknowledged")
        cluster.brokers[0].kill()
    return acked


async def all_of(consumer: PullConsumer, queue: MessageQueue) -> list[MessageExt]:
    start, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    return [message async for message in consumer.messages(queue, start, end)]


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.nightly)])
async def test_what_was_acknowledged_is_in_each_of_its_queues(tmp_path: Path, rounds: int) -> None:
    options = (*SMALL, "--enable-lmq", "true", "--enable-multi-dispatch", "true")
    acked: set[bytes] = set()
    async with running(tmp_path, options=options) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        (broker,) = cluster.brokers
        for number in range(rounds):
            new = await acknowledged_until_killed(cluster, number)
            acked |= new
            report(acknowledged=len(new))
            await start(broker)
            await until_route(cluster, TOPIC, [broker.name])
            async with PullConsumer(cluster.nameserver) as consumer:
                for name in NAMES:
                    (queue,) = await consumer.message_queues(name)
                    found = await all_of(consumer, queue)
                    assert [message.queue_offset for message in found] == list(range(len(found)))
                    bodies = [message.body for message in found]
                    assert len(set(bodies)) == len(bodies)
                    missing = {body for body in acked if name.encode() in body} - set(bodies)
                    report(lost=len(missing))
                    assert not missing
                    assert all(name.encode() in body for body in bodies)
        broker.terminate()
        broker.wait_stopped()
        await verify(tmp_path / broker.name)
