"""A static topic is grown and moved between brokers under load, while brokers, NameServers and commands are killed.

Every acknowledged message is consumed, the messages of a key come in their order, and keys stay in their queues.
"""

from collections import defaultdict
from pathlib import Path
from random import Random

import pytest
import trio

from skylark import ConsumeFrom, Message, MessageExt, Producer, PullConsumer, PushConsumer, SendFailed
from tests.e2e.test_shrinking import run_to_its_end
from tests.support.daemons import SMALL, running
from tests.support.rounds import report
from tests.support.waiting import until
from tests.support.warm_daemons import warm

TOPIC = "static"
OPTIONS = (*SMALL, "--flush-consumer-offset-interval", "500")
KEYS = [f"key-{number}" for number in range(12)]
END_TIMEOUT_S = 120


class Load:
    """One producer that numbers the messages of each key, and a group that reads in order."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self.acked: dict[str, int] = defaultdict(int)
        self.failed: list[SendFailed] = []
        # By key: the highest number, and the numbers that came before a lower one was consumed.
        self.consumed: dict[str, int] = defaultdict(int)
        self.gaps: list[str] = []
        self.queue_of: dict[str, set[int]] = defaultdict(set)
        self.producing = trio.CancelScope()

    async def produce(self) -> None:
        with self.producing:
            async with Producer(self._nameserver, group="p") as producer:
                while True:
                    for key in KEYS:
                        number = self.acked[key] + 1
                        message = Message(TOPIC, b"%d" % number, keys=key, sharding_key=key)
                        try:
                            await producer.send(message, timeout_ms=60_000)
                        except SendFailed as error:
                            self.failed.append(error)
                        else:
                            self.acked[key] = number
                    await trio.sleep(0.01)

    async def consume(self) -> None:
        async def handle(message: MessageExt) -> None:
            key = message.keys
            number, known = int(message.body), self.consumed[key]
            self.queue_of[key].add(message.queue_id)
            if number > known + 1:
                self.gaps.append(f"{key}: {number} after {known}")
            self.consumed[key] = max(number, known)  # a lower one was consumed before

        async with PushConsumer(
            self._nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle, orderly=True,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ):  # fmt: skip
            await trio.sleep_forever()

    def is_consumed(self) -> bool:
        # The last send of a key may have been stored, and not acknowledged any more.
        return all(self.consumed[key] >= number for key, number in self.acked.items())

    async def goes_on(self, messages: int) -> None:
        wanted = sum(self.acked.values()) + messages
        await until(lambda: sum(self.acked.values()) >= wanted, f"{messages} more messages are stored", END_TIMEOUT_S)


@pytest.mark.parametrize("rounds", [1, pytest.param(60, marks=pytest.mark.nightly)])
async def test_keys_stay_while_queues_move(tmp_path: Path, rounds: int, seed: int) -> None:
    random = Random(seed)
    async with running(tmp_path, 3, OPTIONS) as cluster:
        names = [broker.name for broker in cluster.brokers]
        words = ("updateStaticTopic", "-t", TOPIC, "-qn", "6", "-b", names[0], "-n", cluster.nameserver)
        await trio.run_process([warm("mqadmin"), *words])
        load = Load(cluster.nameserver)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.consume)
            nursery.start_soon(load.produce)
            await load.goes_on(50)
            for _ in range(rounds):
                targets = random.sample(names, random.randrange(1, 4))
                words = ("remappingStaticTopic", "-t", TOPIC, "-b", ",".join(targets))
                found = await run_to_its_end(words, cluster, load, random)
                assert {row["brokerName"] for row in found["queues"]} == set(targets)
                await load.goes_on(50)
            load.producing.cancel()
            try:
                await until(load.is_consumed, "all is consumed", END_TIMEOUT_S)
            finally:
                lost = sum(max(number - load.consumed[key], 0) for key, number in load.acked.items())
                report(acknowledged=sum(load.acked.values()), lost=lost)
            nursery.cancel_scope.cancel()
        # A group that begins now reads all of it from the brokers where it is, in the order of each key.
        await _read_all(cluster.nameserver, load.acked)
    assert load.failed == []
    assert load.gaps == []
    assert all(len(queues) == 1 for queues in load.queue_of.values()), load.queue_of


async def _read_all(nameserver: str, acked: dict[str, int]) -> None:
    seen: dict[str, int] = defaultdict(int)
    async with PullConsumer(nameserver, group="late") as consumer:
        for queue in await consumer.message_queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    assert offset <= message.queue_offset < end
                    assert message.queue_id == queue.queue_id
                    key = message.keys
                    number = int(message.body)
                    assert number <= seen[key] + 1, f"{key}: {number} after {seen[key]}"
                    seen[key] = max(number, seen[key])
                offset = max(result.next_offset, offset)
    assert all(seen[key] >= number for key, number in acked.items())
