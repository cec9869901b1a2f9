"""Messages a second that the broker examines for a SQL92 filter with three comparisons.

One process pulls what is stored already: 128 bytes, one queue, of which one message in a thousand matches. The broker
has its own process. The second row counts the broker's CPU time only: the first row on a machine that does nothing
else. The limits are targets.

    python -m bench.delivery_sql [--messages 400000] [--rounds 5] [--json]
"""

import argparse
import sys
import time
from collections.abc import Iterator

import trio

from bench.harness import Cluster, Row, cluster, cpu_s, row, show
from bench.traffic import make_topic
from skylark import Producer, PullConsumer, Sql
from skylark.mqcommon.message.message import Message

TOPIC = "bench"
TARGET = 200_000.0
BODY = b"x" * 128
WANTED = Sql("amount > 5 AND shop = 'north' AND number < 1")


async def fill(at: Cluster, messages: int) -> None:
    """Store the messages. All of them pass the first two comparisons."""
    await make_topic(at, TOPIC, queues=1)
    async with Producer(at.nameserver) as producer:
        made = [
            Message(
                TOPIC,
                BODY,
                keys=f"key{number}",
                properties={
                    "amount": str(10 + number % 1_000),
                    "shop": "north",
                    "number": str(number % 1_000),
                },
            )
            for number in range(1_000)
        ]
        for _ in range(messages // len(made)):
            async with trio.open_nursery() as nursery:
                for message in made:
                    nursery.start_soon(producer.send, message)


async def examine(nameserver: str, pid: int) -> tuple[float, float]:
    """Messages a second, and a second of the broker's CPU time, while the whole queue is read."""
    async with PullConsumer(nameserver) as consumer:
        (mq,) = await consumer.message_queues(TOPIC)
        end = at = await consumer.max_offset(mq)
        found, at = 0, 0
        cpu, started = cpu_s(pid), time.perf_counter()
        while at < end:
            got = await consumer.pull(mq, at, max_count=10_000, expression=WANTED)
            found, at = found + len(got.messages), got.next_offset
        if found != end // 1_000:
            sys.exit(f"{found} messages matched instead of {end // 1_000}")
        return end / (time.perf_counter() - started), end / (cpu_s(pid) - cpu)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Both figures."""
    with cluster(options=("--enable-property-filter", "true")) as made:
        trio.run(fill, made, messages)
        found = [trio.run(examine, made.nameserver, made.broker_pid) for _ in range(rounds + 1)][1:]
    yield row("SQL92 filter, 3 comparisons", "msg/s", [wall for wall, _ in found], [TARGET], rounds)
    yield row("the same, by the broker's CPU time", "msg/s", [cpu for _, cpu in found], [TARGET], rounds)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    show(rows(options.messages, options.rounds), options.json)


if __name__ == "__main__":
    main()
