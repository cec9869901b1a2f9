"""Sends without end from many tasks, and a record of what was acknowledged."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from skylark import Message, Producer, PullConsumer, SendFailed
from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.message.queue import MessageQueue
from tests.support.rounds import report
from tests.support.waiting import until

BODY_BYTES = 100
# Messages of a bulk send: one batch.
BULK = 200

# Queue, offset in it, body.
Acked = tuple[MessageQueue, int, bytes]


class Load:
    """Senders that each send one message after the other, with a pause; bodies tell the sender and the number."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        name: str = "load",
        keyed: bool = False,
        pause_s: float = 0,
        body_bytes: int = BODY_BYTES,
    ) -> None:
        self.producer = producer
        self.acked: list[Acked] = []
        self.by_broker: Counter[str] = Counter()
        self.failures: list[SendFailed] = []
        self.worst_s = 0.0
        #: The longest time in which no send was acknowledged, between two that were.
        self.longest_pause_s = 0.0
        self._last_acked_at: float | None = None
        # By sender.
        self.ended: Counter[int] = Counter()
        self.stopping = False
        self._topic = topic
        self._name = name
        self._keyed = keyed
        self._pause_s = pause_s
        self._body_bytes = body_bytes

    async def send(self, sender: int) -> None:
        """One sender, until told to stop."""
        number = 0
        while not self.stopping:
            body = f"{self._name}/{sender}/{number}".encode().ljust(self._body_bytes)
            key = f"key-{sender}" if self._keyed and sender % 2 else None
            number += 1
            started = trio.current_time()
            try:
                result = await self.producer.send(Message(self._topic, body, sharding_key=key))
            except SendFailed as error:
                self.failures.append(error)
                continue
            finally:
                self.ended[sender] += 1
            now = trio.current_time()
            self.worst_s = max(self.worst_s, now - started)
            self.longest_pause_s = max(self.longest_pause_s, now - (self._last_acked_at or now))
            self._last_acked_at = now
            self.acked.append((result.queue, result.queue_offset, body))
            self.by_broker[result.queue.broker_name] += 1
            if self._pause_s:
                await trio.sleep(self._pause_s)

    async def send_bulk(self, sender: int) -> None:
        """As `send`, with `Producer.send_many`: batches of messages of one size, which a broker stores by columns."""
        number = 0
        while not self.stopping:
            texts = [
                f"{self._name}/{sender}/{each}".encode().ljust(BODY_BYTES) for each in range(number, number + BULK)
            ]
            number += BULK
            try:
                results = await self.producer.send_many(self._topic, texts)
            except SendFailed as error:
                self.failures.append(error)
                continue
            self.acked += [
                (result.queue, result.queue_offset, body) for result, body in zip(results, texts, strict=True)
            ]

    async def more(self, count: int) -> None:
        """Wait until ``count`` more sends have ended."""
        wanted = len(self.acked) + len(self.failures) + count
        await until(lambda: len(self.acked) + len(self.failures) >= wanted, f"{count} more sends have ended")

    async def more_from(self, broker_name: str, count: int = 1) -> None:
        """Wait until the broker has acknowledged ``count`` more sends."""
        wanted = self.by_broker[broker_name] + count
        await until(lambda: self.by_broker[broker_name] >= wanted, f"{broker_name} acknowledges {count} more sends")

    async def more_or_silence(self, count: int, silent_s: float) -> None:
        """Wait until ``count`` more sends are acknowledged, or none was for this time."""
        wanted = len(self.acked) + count
        await until(
            lambda: len(self.acked) >= wanted or trio.current_time() - (self._last_acked_at or 0) >= silent_s,
            f"{count} more sends are acknowledged, or none",
        )

    async def more_from_each_sender(self) -> None:
        """Wait until every sender has ended the send that is under way now."""
        before = self.ended.copy()
        await until(lambda: all(self.ended[sender] > before[sender] for sender in before), "each sender goes on")

    def say_worst(self) -> None:
        """Print the worst send, for a reader of pytest -s; bench/failover.py measures it."""
        sys.stdout.write(f"\nworst send: {self.worst_s * 1000:.0f} ms\n")


@asynccontextmanager
async def under_load(
    nameserver: str, topic: str, senders: int = 20, timeout_ms: int = 3_000, keyed: bool = False, pause_s: float = 0.01
) -> AsyncIterator[Load]:
    """Senders run while the block does; at its end the sends under way are waited for.

    With ``keyed`` every other sender's messages have a sharding key.
    """
    async with Producer(nameserver, send_timeout_ms=timeout_ms) as producer:
        load = Load(producer, topic, keyed=keyed, pause_s=pause_s)
        async with trio.open_nursery() as nursery:
            for sender in range(senders):
                nursery.start_soon(load.send, sender)
            try:
                yield load
            finally:
                load.stopping = True


async def stored(nameserver: str, topic: str) -> dict[MessageQueue, list[bytes]]:
    """The bodies of every queue, which has to begin at 0 and have no gap."""
    found = {}
    async with PullConsumer(nameserver) as consumer:
        for queue in await consumer.message_queues(topic):
            found[queue] = await bodies(consumer, queue, 0)
    return found


async def bodies(consumer: PullConsumer, queue: MessageQueue, start: int) -> list[bytes]:
    """The bodies of one queue from ``start`` on."""
    found: list[bytes] = []
    async with consumer.stream(queue, start, await consumer.max_offset(queue)) as batches:
        async for batch in batches:
            for message in batch:
                assert message.queue_offset == start + len(found), f"a gap in {queue} at {start + len(found)}"
                found.append(message.body)
    return found


async def whole(consumer: PullConsumer, queue: MessageQueue) -> tuple[int, list[bytes]]:
    """Where the queue begins, and its messages. It is read again when the cleaner has removed a file meanwhile."""
    while True:
        start = await consumer.min_offset(queue)
        try:
            return start, await bodies(consumer, queue, start)
        except AssertionError:
            if await consumer.min_offset(queue) == start:
                raise


async def follow(consumer: PullConsumer, queue: MessageQueue, read: list[bytes]) -> None:
    """Reads one queue for ever."""
    while True:
        try:
            async with consumer.stream(queue, len(read)) as batches:
                async for batch in batches:
                    for message in batch:
                        assert message.queue_offset == len(read), f"a gap in {queue} at {len(read)}"
                        read.append(message.body)
        except RemotingError:
            continue


def check_acknowledged(
    acked: Sequence[Acked], found: dict[MessageQueue, list[bytes]], *, counted_before: int = 0
) -> None:
    """Every acknowledged message is where its acknowledgement said, and no place was given to two.

    All count in the table of rounds, but ``counted_before`` of them that an earlier check has counted.
    """
    assert len({(queue, offset) for queue, offset, _ in acked}) == len(acked)
    lost = [(queue, offset) for queue, offset, body in acked if found[queue][offset : offset + 1] != [body]]
    report(acknowledged=len(acked) - counted_before, lost=len(lost))
    assert lost == []


def check_order(found: dict[MessageQueue, list[bytes]]) -> int:
    """In each queue a sender's messages stand in the order in which it sent them; how many are there twice.

    A send that is tried again may be stored twice, as the first try may have lost only its answer.
    """
    for queue, stored_bodies in found.items():
        last: dict[bytes, int] = {}
        for body in stored_bodies:
            sender, _, number = body.rpartition(b"/")
            assert last.get(sender, -1) <= int(number), f"{queue}: {body!r} after {last[sender]}"
            last[sender] = int(number)
    all_bodies = [body for queue in found.values() for body in queue]
    return len(all_bodies) - len(set(all_bodies))
