"""kill -9 of a broker at random points under load, again and again on one store; after each restart all is there.

A failure prints its seed; TEST_SEED repeats it, as far as the moments of other processes can be repeated.
"""

import sys
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.daemons import POLL_S, Daemon
from skylark import Admin, Producer, PullConsumer
from skylark.mqcommon.errors import RemotingError, RouteNotFound
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import Load, bodies, check_acknowledged, check_order, stored
from tests.e2e.metadata import SHARES, MetadataModel, OffsetsModel
from tests.support.daemons import SMALL, Cluster, make_topic, running, until_route
from tests.support.rounds import report
from tests.support.waiting import until

QUEUES = 4
SENDERS = 20
TOPIC = "kill"


class Rounds:
    """One store through all its deaths."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._metadata = MetadataModel(random)
        self._offset = OffsetsModel()
        self._queue = MessageQueue(TOPIC, self.broker.name, 0)
        # By queue: what was read after earlier rounds.
        self.read: dict[MessageQueue, list[bytes]] = {}
        self.acked = 0

    @property
    def broker(self) -> Daemon:
        return self._cluster.brokers[0]

    async def until_killed(self, number: int, kill_after: int) -> Load:
        """Load of all kinds until ``kill_after`` sends are acknowledged; returns the load."""
        nameserver = self._cluster.nameserver
        self._metadata.stopping = False
        # A send that gets no answer is not tried again: one acknowledgement, one message.
        async with (
            Producer(nameserver, retries=0) as producer,
            PullConsumer(nameserver) as consumer,
            Admin(nameserver) as admin,
            trio.open_nursery() as nursery,
        ):
            load = Load(producer, TOPIC, f"round-{number}")
            for sender in range(SENDERS):
                nursery.start_soon(load.send, sender)
            nursery.start_soon(load.send_bulk, SENDERS)
            for names in SHARES:
                nursery.start_soon(self._metadata.change, admin, self.broker.addr, names)
            nursery.start_soon(self._commit, consumer, load)
            await until(lambda: len(load.acked) >= kill_after, f"{kill_after} sends are acknowledged")
            load.stopping = self._metadata.stopping = True
            self.broker.kill()
        self.acked += len(load.acked)
        return load

    async def _commit(self, consumer: PullConsumer, load: Load) -> None:
        while not load.stopping:
            try:
                # A master refuses offsets past the end.
                if self._offset.last < await consumer.max_offset(self._queue):
                    self._offset.last += 1
                    await consumer.commit_offset(self._queue, self._offset.last)
            except (RemotingError, RouteNotFound):
                return

    async def restart(self, *, twice: bool) -> None:
        """Start the broker; ``twice``: it is killed once more while it recovers, and started again."""
        broker = self.broker
        broker.start()
        if twice:
            for _ in range(self._random.randrange(60)):
                if broker.ready():
                    break
                await trio.sleep(POLL_S)
            broker.kill()
            broker.start()
        await until(broker.ready, "the broker has recovered")
        await until_route(self._cluster, TOPIC, [broker.name])

    async def check(self, load: Load) -> None:
        """Check the messages that this round added, and the metadata."""
        async with PullConsumer(self._cluster.nameserver) as consumer:
            for queue in await consumer.message_queues(TOPIC):
                known = self.read.setdefault(queue, [])
                known += await bodies(consumer, queue, len(known))
            self._offset.check(await consumer.committed_offset(self._queue))
        check_acknowledged(load.acked, self.read)
        async with Admin(self._cluster.nameserver) as admin:
            await self._metadata.check(admin, self.broker.addr)


@pytest.mark.fault("kills", "the broker is killed at any moment, also while it recovers", "single")
@pytest.mark.parametrize(
    ("queue_type", "count", "most_acked"),
    [
        ("SimpleCQ", 4, 500),
        ("BatchCQ", 2, 500),
        pytest.param("SimpleCQ", 50, 4_000, marks=pytest.mark.nightly),
        pytest.param("BatchCQ", 16, 4_000, marks=pytest.mark.nightly),
    ],
)
async def test_what_was_acknowledged_survives_kill_9_at_any_moment(
    tmp_path: Path, seed: int, queue_type: str, count: int, most_acked: int
) -> None:
    options = (*SMALL, "--flush-consumer-offset-interval", "10")
    async with running(tmp_path, options=options) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, QUEUES, QUEUES, attributes={"queue.type": queue_type}))
        random = Random(seed)
        rounds = Rounds(cluster, random)
        for number in range(count):
            load = await rounds.until_killed(number, random.randrange(most_acked))
            # Whatever the seed, some recoveries are broken off.
            await rounds.restart(twice=number % 4 == 1)
            await rounds.check(load)
        found = await stored(cluster.nameserver, TOPIC)
        assert found == rounds.read
        assert check_order(found) == 0, "something is stored twice"
        report(count)
        sys.stdout.write(f"{count} rounds, {rounds.acked} acknowledged messages, all there\n")
