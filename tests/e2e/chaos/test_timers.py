"""kill -9 of a broker while messages wait for their time: each is delivered once, none early, none lost."""

import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import trio

from skylark import Message, Producer, PullConsumer, SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.daemons import SMALL, Cluster, make_topic, running, until_registered
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC, QUEUES = "timed", 4
ROUNDS, NIGHTLY_ROUNDS = 2, 100
SENDERS = 8


class Sends:
    """What was sent: body -> the earliest time of delivery (ms); and what was acknowledged or recalled."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.due_ms: dict[bytes, float] = {}
        self.acked: set[bytes] = set()
        self.recalled: set[bytes] = set()

    async def send(self, producer: Producer, number: int) -> None:
        """Send until the broker is killed."""
        while True:
            delay_s = self.random.choice((0.3, 1.2, 2.5))
            body = b"%d-%d" % (number, len(self.due_ms))
            self.due_ms[body] = time.time() * 1000 + delay_s * 1000
            try:
                result = await producer.send(Message(TOPIC, body), delay=timedelta(seconds=delay_s), timeout_ms=500)
                if delay_s > 2 and self.random.random() < 0.3:
                    await producer.recall(TOPIC, result.recall_handle)
                    self.recalled.add(body)
                self.acked.add(body)
            except SkylarkError:
                return


async def one_round(cluster: Cluster, sends: Sends) -> None:
    broker = cluster.brokers[0]
    async with Producer(cluster.nameserver, retries=0) as producer, trio.open_nursery() as nursery:
        for number in range(SENDERS):
            nursery.start_soon(sends.send, producer, number)
        count = len(sends.acked) + sends.random.randrange(100, 1_000)
        await until(lambda: len(sends.acked) >= count, "many are sent")
        broker.kill()
    broker.start()
    await until_registered(cluster, [broker.name])


async def test_timed_messages_survive_kills(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = NIGHTLY_ROUNDS if request.config.getoption("--nightly") else ROUNDS
    sends = Sends(Random(rounds))
    async with running(tmp_path, options=SMALL) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, QUEUES, QUEUES))
        for _ in range(rounds):
            await one_round(cluster, sends)
        wanted = sends.acked - sends.recalled
        found: dict[int, list[MessageExt]] = {}
        async with PullConsumer(cluster.nameserver) as consumer:

            async def all_are_there() -> bool:
                for number in range(QUEUES):
                    got = found.setdefault(number, [])
                    queue = MessageQueue(TOPIC, cluster.brokers[0].name, number)
                    while batch := (await consumer.pull(queue, len(got), max_count=1_000)).messages:
                        got += batch
                return wanted <= {message.body for messages in found.values() for message in messages}

            try:
                await until(all_are_there, "all messages are delivered")
            finally:
                delivered = {message.body for messages in found.values() for message in messages}
                report(rounds, acknowledged=len(wanted), lost=len(wanted - delivered))
    messages = [message for each in found.values() for message in each]
    counts = Counter(message.body for message in messages)
    assert [body for body, count in counts.items() if count > 1] == []
    assert [message.body for message in messages if message.store_timestamp < sends.due_ms[message.body] // 1] == []
    assert not sends.recalled & set(counts)
