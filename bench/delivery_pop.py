"""Messages a second that simple consumers receive and acknowledge in batches of 32.

One process with several tasks receives what is stored already: 128 bytes, four queues. The broker has its own process.
The limit is the target.

    python -m bench.delivery_pop [--messages 200000] [--rounds 3] [--json]
"""

import argparse
import time
from collections.abc import Iterator
from statistics import median

import trio

from bench.harness import Cluster, Row, cluster, row, show
from bench.traffic import make_topic
from skylark import Client, ConsumeFrom, Producer, SimpleConsumer

TOPIC = "pop"
BODY = b"x" * 128
QUEUES = 4
TASKS = 8
BATCH = 32
TARGET = 50_000.0


async def fill(at: Cluster, messages: int) -> None:
    """Store the messages."""
    await make_topic(at, TOPIC, QUEUES)
    async with Producer(at.nameserver) as producer:
        await producer.send_many(TOPIC, [BODY] * messages)


async def receive_all(nameserver: str, group: str, messages: int) -> float:
    """Messages a second of a new group."""
    left = messages

    async def work(consumer: SimpleConsumer) -> None:
        nonlocal left
        while left > 0:
            found = await consumer.receive(BATCH, wait_ms=0)
            left -= len(found)
            await consumer.ack(found)

    async with (
        Client(nameserver) as client,
        SimpleConsumer(
            client, group=group, subscriptions={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer,
    ):
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(work, consumer)
        return messages / (time.perf_counter() - began)


def measure(messages: int, rounds: int) -> Iterator[Row]:
    """The figure of pops."""
    with cluster() as made:
        trio.run(fill, made, messages)
        figures = [trio.run(receive_all, made.nameserver, f"group{number}", messages) for number in range(rounds + 1)]
    yield row("pop: received and acknowledged, batches of 32", "msg/s", [median(figures[1:])], [TARGET], rounds)


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(measure(args.messages, args.rounds), args.json)


if __name__ == "__main__":
    main()
