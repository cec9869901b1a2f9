"""Consumers and brokers are killed at random, again and again.

Every acknowledged message is consumed at least once by each group; an orderly group gets each queue in order; a message
comes again only when that is explained by an offset that was not committed.
"""

import sys
import time
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.daemons import Daemon
from skylark import Message, Producer, PullConsumer, SendFailed
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.chaos.delivery import out_of_order, unexplained
from tests.e2e.chaos.group import Group
from tests.support.daemons import SMALL, Cluster, make_topic, running, start
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC = "chaos"
QUEUES = 4
MEMBERS = 2
OPTIONS = (
    *SMALL,
    *("--flush-consumer-offset-interval", "500"),
    # Levels of a second and more as RocketMQ's would make the test wait for minutes.
    *("--message-delay-level", "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s"),
)
SENDS_A_ROUND = 150
SEND_TIMEOUT_MS = 60_000
END_TIMEOUT_S = 180
# No round leaves more than this to consume, or the end would take as long as the test.
MOST_WAITING = 3_000


class Chaos:
    """A cluster, its groups, and what was acknowledged."""

    def __init__(self, cluster: Cluster, groups: list[Group], random: Random) -> None:
        self.cluster = cluster
        self.groups = groups
        self.acked: set[str] = set()
        self.failed: list[SendFailed] = []
        self.kills_ns: dict[str, list[int]] = {}
        self._random = random
        # All kinds, whatever the seed.
        self._kinds = cycle(("consumer", "broker", "consumer", "stop"))
        self._number = 0

    async def send(self, producer: Producer, count: int) -> None:
        """Send ``count`` messages at once; the broker that is down makes some of them wait or go elsewhere."""

        async def one(body: str) -> None:
            try:
                await producer.send(Message(TOPIC, body.encode()))
            except SendFailed as error:
                self.failed.append(error)
            else:
                self.acked.add(body)

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(one, f"message-{self._number}")
                self._number += 1

    async def act(self) -> None:
        """Kill or start something."""
        random = self._random
        down = [broker for broker in self.cluster.brokers if not broker.runs]
        if down:
            await self.start(down[0])
            return
        kind = next(self._kinds)
        if kind == "broker":
            self.kill(random.choice(self.cluster.brokers))
            return
        group = random.choice(self.groups)
        victim = random.choice(group.running)
        if kind == "consumer":
            group.kill(victim)
        else:
            await group.stop([victim])
        group.start()

    def kill(self, broker: Daemon) -> None:
        broker.kill()
        self.kills_ns.setdefault(broker.name, []).append(time.monotonic_ns())

    async def start(self, broker: Daemon) -> None:
        await start(broker)

    async def until_delivered(self, most_missing: int = 0) -> None:
        """Each group has got all that was acknowledged, but for ``most_missing`` messages."""
        for group in self.groups:

            def few_missing(group: Group = group) -> bool:
                assert not group.failures(), group.failures()
                return len(self.acked - group.bodies()) <= most_missing

            await until(few_missing, f"group {group.name} has all but {most_missing}", END_TIMEOUT_S)

    async def until_all_committed(self, reader: PullConsumer, group: Group, queues: list[MessageQueue]) -> None:
        """Wait until the group's committed offsets equal the ends of the queues."""

        async def at_the_end() -> bool:
            ends = {(mq.broker_name, mq.queue_id): await reader.max_offset(mq) for mq in queues}
            await group.look(reader, queues)
            newest = {look.queue: look.committed for look in group.looks}
            return newest == ends

        await until(at_the_end, f"group {group.name} has committed everything", END_TIMEOUT_S)


@pytest.mark.fault("clients", "groups of consumers and brokers are killed", "single")
@pytest.mark.parametrize("rounds", [10, pytest.param(600, marks=pytest.mark.nightly)])
async def test_nothing_is_lost_and_queues_stay_in_order(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running(tmp_path, brokers=2, options=OPTIONS))
        await make_topic(cluster, TopicConfig(TOPIC, QUEUES, QUEUES))
        groups = [
            Group(cluster.nameserver, TOPIC, "concurrent", tmp_path),
            Group(cluster.nameserver, TOPIC, "orderly", tmp_path),
        ]
        for group in groups:
            stack.callback(group.end)
            for _ in range(MEMBERS):
                group.start()
        readers = {
            group.name: await stack.enter_async_context(
                PullConsumer(cluster.nameserver, group=group.name, heartbeat=False)
            )
            for group in groups
        }
        producer = await stack.enter_async_context(Producer(cluster.nameserver, send_timeout_ms=SEND_TIMEOUT_MS))
        queues = await readers["orderly"].message_queues(TOPIC)
        assert len(queues) == 2 * QUEUES
        chaos = Chaos(cluster, groups, random)
        for _ in range(rounds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(chaos.send, producer, SENDS_A_ROUND)
                nursery.start_soon(chaos.act)
            up = {broker.name for broker in cluster.brokers if broker.runs}
            for group in groups:
                await group.look(readers[group.name], [mq for mq in queues if mq.broker_name in up])
            await chaos.until_delivered(MOST_WAITING)
        for broker in cluster.brokers:
            if not broker.runs:
                await chaos.start(broker)
        try:
            await chaos.until_delivered()
        finally:
            lost = {body for group in groups for body in chaos.acked - group.bodies()}
            kills = sum(map(len, chaos.kills_ns.values()))
            report(kills, acknowledged=len(chaos.acked), lost=len(lost))
        for group in groups:
            await chaos.until_all_committed(readers[group.name], group, queues)
            await group.stop()
            assert group.failures() == []
            assert unexplained(group.members, group.looks, chaos.kills_ns) == []
        assert out_of_order(groups[1].members, chaos.kills_ns) == []
        assert not chaos.failed
        sys.stdout.write(f"{len(chaos.acked)} acknowledged, {kills} brokers killed\n")
