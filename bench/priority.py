"""Milliseconds from the send of an urgent message to its handler, while a backlog of the least urgent waits.

Two tasks of one process receive in batches of 32, as fast as they can, and acknowledge; the same process sends urgent
messages, 100 a second. The broker has its own process. The limit is an ordinary pop: the same messages, without
priorities, in a topic without a backlog.

    python -m bench.priority [--messages 1000000] [--urgent 500] [--json]
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import trio

from bench.harness import Cluster, Row, cluster, row, show
from bench.traffic import make_topic
from skylark import Client, ConsumeFrom, Message, Producer, ReceivedMessage, SimpleConsumer

BODY = b"x" * 128
PRIORITIES = 10
TASKS = 2
BATCH = 32
PAUSE_S = 0.01
# Sends that are not counted: the first ones open connections.
WARM_UP = 50
URGENT = "urgent"


@dataclass
class Handled:
    """What the handler saw."""

    others: int = 0
    delays_ms: list[float] = field(default_factory=list)

    def handle(self, message: ReceivedMessage, now: float) -> None:
        """Note the message."""
        sent = message.headers.get(URGENT)
        if sent is None:
            self.others += 1
        else:
            self.delays_ms.append((now - float(sent)) * 1000)


async def make(at: Cluster, topic: str, backlog: int) -> None:
    """Make the topic, with priorities if there is to be a backlog, and store the backlog."""
    kind = "PRIORITY" if backlog else "NORMAL"
    await make_topic(at, topic, PRIORITIES, **{"+message.type": kind})
    async with Producer(at.nameserver) as producer:
        for _ in range(0, backlog, 1_000):
            for ticket in [producer.send_nowait(Message(topic, BODY, priority=0)) for _ in range(1_000)]:
                await ticket


async def delays(nameserver: str, topic: str, urgent: int, priority: int | None) -> Handled:
    """Receive what waits, and send ``urgent`` messages of this priority meanwhile."""
    handled = Handled()

    async def work(consumer: SimpleConsumer) -> None:
        while len(handled.delays_ms) < urgent + WARM_UP:
            found = await consumer.receive(BATCH, wait_ms=1_000)
            now = time.perf_counter()
            for message in found:
                handled.handle(message, now)
            await consumer.ack(found)

    async with (
        Client(nameserver) as client,
        Producer(client) as producer,
        SimpleConsumer(
            client, group="workers", subscriptions={topic: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        for _ in range(TASKS):
            nursery.start_soon(work, consumer)
        began = trio.current_time()
        for number in range(urgent + WARM_UP):
            await trio.sleep_until(began + number * PAUSE_S)
            sent = {URGENT: repr(time.perf_counter())}
            await producer.send(Message(topic, BODY, properties=sent, priority=priority))
    del handled.delays_ms[:WARM_UP]
    return handled


def measure(backlog: int, urgent: int) -> Iterator[Row]:
    """The median and the 99 % of the delays."""
    found: list[list[float]] = []
    with cluster() as made:
        for topic, waiting in (("priorities", backlog), ("ordinary", 0)):
            trio.run(make, made, topic, waiting)
            handled = trio.run(delays, made.nameserver, topic, urgent, PRIORITIES - 1 if waiting else None)
            if waiting and handled.others >= waiting:
                raise SystemExit(f"the backlog of {waiting:,} was consumed before the end: give --messages more")
            found.append(sorted(handled.delays_ms))
    ours, limit = found
    for name, share in (("median", 0.5), ("99 %", 0.99)):
        place = int(urgent * share)
        yield row(
            f"urgent message behind {backlog:,}, send to handler, {name}; limit: an ordinary pop",
            "ms",
            [ours[place]],
            [limit[place]],
            urgent,
            smaller_is_better=True,
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--urgent", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(measure(args.messages, args.urgent), args.json)


if __name__ == "__main__":
    main()
