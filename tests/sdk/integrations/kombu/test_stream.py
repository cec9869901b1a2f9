"""Which queues a stream reads while brokers come and go."""

from random import Random
from typing import Any

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.integrations.kombu.stream import Stream

BOUND_AT_MS = 1_000
A, B, C = [MessageQueue("exchange-pidbox", name, 0) for name in ("broker-a", "broker-b", "broker-c")]


class Consumer:
    """A PullConsumer of a cluster in which the topic has the queues ``found`` now; each begins at 7 at that time."""

    def __init__(self, *assigned: MessageQueue) -> None:
        self.positions = dict.fromkeys(assigned, 100)
        self.found: list[MessageQueue] = []

    def assignment(self) -> list[MessageQueue]:
        return list(self.positions)

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        return self.found

    async def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        assert time_ms == BOUND_AT_MS
        return 7

    def assign(self, queues: list[MessageQueue], *, expression: str) -> None:
        self.positions = {queue: self.positions.get(queue, 0) for queue in queues}

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self.positions[queue] = offset


async def test_a_broker_that_was_away_is_not_read_from_the_binding_on_again() -> None:
    client: Any = None
    stream = Stream(client, "w1.pidbox", lambda work: work(), Backoff(0.1, 1.0, Random(1)), SystemClock())
    consumer: Any = Consumer(A, B)
    for found in ([A, C], [A, B, C]):
        consumer.found = found
        await stream._add_queues(consumer, "exchange-pidbox", "*", BOUND_AT_MS)
    assert consumer.positions == {A: 100, B: 100, C: 7}
