"""Messages a second through a `PushConsumer`, and the time from a send to its handler.

One process consumes what is stored already: 128 bytes, four queues, no-op handlers. The broker has its own process. The
limit is a `PullConsumer` that streams the same queues, one after another, without groups, handlers or commits.
The limits of the last two figures are targets.

    python -m bench.consume [--messages 400000] [--rounds 5] [--json]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import trio
import trio.lowlevel

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import make_topic
from skylark import ConsumeFrom, Producer, PullConsumer, PushConsumer
from skylark.mqcommon.message.message import Message, MessageExt

TOPIC = "bench"
LATENCY_TOPIC = "latency"
KILLED_TOPIC = "killed"
KILLED_GROUP = "killed"
KILLED_QUEUES = 64
MEMBERS = 8
BODY = b"x" * 128
QUEUES = 4
LATENCY_MESSAGES = 300
LATENCY_PAUSE_S = 0.01


def handle_batch(messages: list[MessageExt]) -> None:
    """Do nothing with many messages."""


async def handle(message: MessageExt) -> None:
    """Do nothing with one message."""


class Bench:
    """Runs against one cluster; each consumer is a new group."""

    def __init__(self, at: Cluster, messages: int) -> None:
        self.nameserver = at.nameserver
        self._at = at
        self.messages = messages
        # How many messages earlier measurements of latency have stored.
        self._timed = 0
        self._groups = (f"group{number}" for number in count())

    async def fill(self) -> None:
        """Store the messages."""
        for topic, queues in ((TOPIC, QUEUES), (LATENCY_TOPIC, QUEUES), (KILLED_TOPIC, KILLED_QUEUES)):
            await make_topic(self._at, topic, queues)
        async with Producer(self.nameserver) as producer:
            await producer.send_many(TOPIC, [BODY] * self.messages)

    def consumer(self, topic: str, **named: Any) -> PushConsumer:
        """A consumer of a new group."""
        return PushConsumer(
            self.nameserver,
            group=next(self._groups),
            subscriptions={topic: "*"},
            consume_from=ConsumeFrom.FIRST_OFFSET,
            **named,
        )

    async def consume(self, **named: Any) -> float:
        """Messages a second, from the first one on."""
        async with self.consumer(TOPIC, **named) as consumer:
            while not consumer.consumed:
                await trio.lowlevel.checkpoint()
            began, first = time.perf_counter(), consumer.consumed
            while consumer.consumed < self.messages:  # noqa: ASYNC110  polled
                await trio.sleep(0.001)
            return (consumer.consumed - first) / (time.perf_counter() - began)

    async def stream(self) -> float:
        """Messages a second of a pull consumer."""
        async with PullConsumer(self.nameserver) as consumer:
            began, found = time.perf_counter(), 0
            for mq in await consumer.message_queues(TOPIC):
                async for batch in consumer.stream(mq, 0, await consumer.max_offset(mq)):
                    found += len(batch)
            return found / (time.perf_counter() - began)

    async def latency(self) -> float:
        """The median time in ms from before a send to the handler."""
        took: list[float] = []

        async def handle(message: MessageExt) -> None:
            took.append(time.perf_counter() - float(message.body))

        async with Producer(self.nameserver) as producer, self.consumer(LATENCY_TOPIC, handler=handle) as consumer:
            while len(consumer.queues) <= QUEUES or consumer.consumed < self._timed:  # noqa: ASYNC110  not timed
                await trio.sleep(0.01)
            took.clear()
            self._timed += LATENCY_MESSAGES
            for _ in range(LATENCY_MESSAGES):
                await producer.send(Message(LATENCY_TOPIC, b"%.9f" % time.perf_counter()))
                await trio.sleep(LATENCY_PAUSE_S)
            await trio.sleep(0.1)
        return median(took) * 1000


def victim(nameserver: str) -> None:
    """A member of the group that is killed; run in a process of its own."""

    async def consume() -> None:
        async with PushConsumer(
            nameserver, group=KILLED_GROUP, subscriptions={KILLED_TOPIC: "*"}, batch_handler=handle_batch
        ):
            await trio.sleep_forever()

    trio.run(consume)


async def rebalanced(nameserver: str) -> float:
    """Seconds from the kill of one of eight members until the others own all 64 queues."""
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                PushConsumer(
                    nameserver, group=KILLED_GROUP, subscriptions={KILLED_TOPIC: "*"}, batch_handler=handle_batch
                )
            )
            for _ in range(MEMBERS - 1)
        ]

        async def own(count: int) -> None:
            while sum(mq.topic == KILLED_TOPIC for each in members for mq in each.queues) != count:  # noqa: ASYNC110  polled
                await trio.sleep(0.002)

        await own(KILLED_QUEUES)
        process = subprocess.Popen([sys.executable, "-m", "bench.consume", "--victim", nameserver])  # noqa: ASYNC220  short
        await own(KILLED_QUEUES - KILLED_QUEUES // MEMBERS)
        process.kill()
        began = time.perf_counter()
        process.wait()
        await own(KILLED_QUEUES)
        return time.perf_counter() - began


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """All figures."""
    with cluster() as at:
        bench = Bench(at, messages)
        trio.run(bench.fill)
        stream = partial(trio.run, bench.stream)
        for name, named in (
            ("push consumer, batch handler of 1,024", {"batch_handler": handle_batch, "batch_size": 1024}),
            ("push consumer, handler of one message", {"handler": handle}),
        ):
            ours, limit = in_turn(rounds, partial(trio.run, partial(bench.consume, **named)), stream)
            yield row(f"{name}, 128 B", "messages/s", ours, limit, messages)
        took = [trio.run(bench.latency) for _ in range(rounds)]
        yield row("send to handler, 100 messages/s", "ms", took, [1.0], LATENCY_MESSAGES, smaller_is_better=True)
        took = [trio.run(rebalanced, at.nameserver) for _ in range(rounds)]
        yield row(
            f"{MEMBERS} members, {KILLED_QUEUES} queues: all owned after a kill",
            "s",
            took,
            [2.0],
            KILLED_QUEUES,
            smaller_is_better=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--victim", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.victim:
        victim(args.victim)
    show(rows(args.messages, args.rounds), args.json)


if __name__ == "__main__":
    main()
