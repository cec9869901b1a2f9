"""Producers of transactions and their broker are killed at random, again and again.

Each transaction whose message was stored commits or rolls back as its producer wants, a rolled back message is never
seen, and a committed one is seen once.
"""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from skylark import MessageQueue, PullConsumer, TransactionProducer
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.chaos.programs import Programs
from tests.e2e.chaos.transactions import check, commits
from tests.support.daemons import SMALL, make_topic, running, start
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC, GROUP = "orders", "payments"
OPTIONS = (
    *SMALL,
    *("--transaction-time-out", "500", "--transaction-check-interval", "300", "--transaction-check-max", "100000"),
    *("--flush-consumer-offset-interval", "200"),
)
PRODUCERS = 2
END_TIMEOUT_S = 120


class Producers(Programs):
    """The processes, and what they say is stored."""

    def stored(self) -> list[bytes]:
        return [line for data in self.written() for line in data.rpartition(b"\n")[0].split(b"\n") if line]

    async def more(self, count: int) -> None:
        """Wait until ``count`` more messages of transactions are stored."""
        wanted = len(self.stored()) + count
        await until(lambda: len(self.stored()) >= wanted, f"{count} more messages are stored")


class Seen:
    """The messages that consumers see, read once."""

    def __init__(self) -> None:
        self._next: dict[MessageQueue, int] = {}
        self.bodies: Counter[bytes] = Counter()

    async def read(self, consumer: PullConsumer) -> None:
        for queue in await consumer.message_queues(TOPIC):
            while messages := (await consumer.pull(queue, self._next.get(queue, 0))).messages:
                self.bodies.update(message.body for message in messages)
                self._next[queue] = messages[-1].queue_offset + 1
        assert [body for body in self.bodies if not commits(body)] == []
        assert [body for body, times in self.bodies.items() if times > 1] == []


@pytest.mark.fault("clients", "producers of transactions and brokers are killed", "single")
@pytest.mark.parametrize("kills", [4, pytest.param(400, marks=pytest.mark.nightly)])
async def test_transactions_end_as_their_producers_want(tmp_path: Path, seed: int, kills: int) -> None:
    random = Random(seed)
    async with running(tmp_path, options=OPTIONS) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        (broker,) = cluster.brokers
        producers = Producers(tmp_path, "transactions", cluster.nameserver, TOPIC, GROUP)
        try:
            for _ in range(PRODUCERS):
                producers.start()
            for number in range(kills):
                await producers.more(random.randrange(40, 200))
                # Both kinds, whatever the seed.
                if number % 2 == 0:
                    producers.kill(random.choice(producers.running))
                    producers.start()
                else:
                    broker.kill()
                    await start(broker)
        finally:
            producers.end()
        wanted = {body for body in producers.stored() if commits(body)}
        assert len(wanted) > 50
        async with (
            TransactionProducer(cluster.nameserver, group=GROUP, checker=check, topics=[TOPIC]),
            PullConsumer(cluster.nameserver, group="reader", heartbeat=False) as consumer,
        ):
            seen = Seen()

            async def all_ended() -> bool:
                await seen.read(consumer)
                return wanted <= seen.bodies.keys()

            try:
                await until(all_ended, "all that was to commit is seen", END_TIMEOUT_S)
            finally:
                report(kills, acknowledged=len(wanted), lost=len(wanted - seen.bodies.keys()))
        assert len(producers.stored()) > len(wanted), "some were to roll back"
