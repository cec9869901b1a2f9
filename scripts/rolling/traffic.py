"""Sends without end from many tasks, a group of consumers, and what became of each message."""

from collections import Counter
from dataclasses import dataclass, field

import trio

from scripts.controller_set import until
from skylark import Message, MessageExt, Producer, PullConsumer, SendFailed
from skylark.mqcommon.message.queue import MessageQueue

# Every second sender's messages have a sharding key.
KEYED_EVERY = 2

# Name of the broker, queue, offset.
Place = tuple[str, int, int]


@dataclass
class Figures:
    """What was sent, and what became of it."""

    #: By the place that the acknowledgement named.
    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    failures: list[SendFailed] = field(default_factory=list)
    #: Acknowledgements that named a place which another one had named before.
    same_place: int = 0
    #: How long each send took, acknowledged or not.
    waits_s: list[float] = field(default_factory=list)
    #: Acknowledged messages that are not at their places, or that the group of consumers did not get.
    lost: int = 0
    #: Messages that are stored more than once.
    doubled: int = 0

    @property
    def ended(self) -> int:
        return len(self.waits_s)

    @property
    def longest_s(self) -> float:
        return max(self.waits_s, default=0.0)

    @property
    def p99_s(self) -> float:
        """The wait that 99 % of all sends did not exceed."""
        return sorted(self.waits_s)[len(self.waits_s) * 99 // 100] if self.waits_s else 0.0

    def problems(self) -> str:
        """What must not be, in a line; "" when all is well."""
        found = {
            "sends failed": len(self.failures),
            "acknowledged messages are lost": self.lost,
            "places were given to two messages": self.same_place,
            "messages are stored more than once": self.doubled,
        }
        texts = [f"{count:,} {what}" for what, count in found.items() if count]
        texts += [f"{count:,} times: {text}" for text, count in Counter(map(str, self.failures)).most_common(3)]
        return "; ".join(texts)


class Traffic:
    """Senders of one topic, and the handler of a group that reads it."""

    def __init__(self, producer: Producer, topic: str, pause_s: float) -> None:
        self.figures = Figures()
        self.is_over = False
        self._producer = producer
        self._topic = topic
        self._pause_s = pause_s
        self._next = 0
        self._consumed: set[bytes] = set()
        #: All messages of the topic, by their places; known after `check`.
        self.stored: dict[Place, bytes] = {}

    async def send(self, sender: int) -> None:
        """One sender, until ``is_over``."""
        key = f"key-{sender}" if sender % KEYED_EVERY else None
        figures = self.figures
        while not self.is_over:
            body = b"message %d" % self._next
            self._next += 1
            began = trio.current_time()
            try:
                result = await self._producer.send(Message(self._topic, body, sharding_key=key))
            except SendFailed as error:
                figures.failures.append(error)
            else:
                place = _place(result.queue, result.queue_offset)
                figures.same_place += place in figures.acknowledged
                figures.acknowledged[place] = body
            figures.waits_s.append(trio.current_time() - began)
            await trio.sleep(self._pause_s)

    async def consume(self, message: MessageExt) -> None:
        """The handler of the group."""
        self._consumed.add(message.body)

    async def more(self, count: int) -> None:
        """Return when ``count`` more sends have ended."""
        goal = self.figures.ended + count
        await until(lambda: self.figures.ended >= goal, f"{count:,} more sends")

    async def until_consumed(self) -> None:
        """Return when the group has got all messages that are acknowledged. DaemonFailed when that takes too long."""
        wanted = set(self.figures.acknowledged.values())
        await until(lambda: wanted <= self._consumed, "the group gets all acknowledged messages")

    async def check(self, nameserver: str) -> None:
        """Read the topic, and count in ``figures`` what is lost and what is doubled. `stored` has all messages then."""
        found = self.stored
        async with PullConsumer(nameserver) as consumer:
            for queue in await consumer.message_queues(self._topic):
                async for message in consumer.messages(queue, 0, await consumer.max_offset(queue)):
                    found[_place(queue, message.queue_offset)] = message.body
        figures = self.figures
        figures.lost = sum(found.get(place) != body for place, body in figures.acknowledged.items())
        figures.doubled = len(found) - len(set(found.values()))


def _place(queue: MessageQueue, offset: int) -> Place:
    return queue.broker_name, queue.queue_id, offset
