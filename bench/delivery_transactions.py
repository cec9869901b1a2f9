"""Transactions through real processes: a half and its commit each, many in flight. The limit is unbatched sends."""

import argparse
import time
from functools import partial

import trio

from bench.harness import Cluster, cluster, in_turn, row, show
from bench.traffic import TOPIC, make_topic
from skylark import Message, Producer, TransactionProducer


async def transactions(at: Cluster, count: int, in_flight: int, size: int) -> float:
    """Transactions a second."""
    message = Message(TOPIC, bytes(size))
    left = iter(range(count))

    async def work(producer: TransactionProducer) -> None:
        for _ in left:
            async with producer.transaction(message):
                pass

    async with TransactionProducer(at.nameserver, group="bench", send_timeout_ms=30_000) as producer:
        async with producer.transaction(message):
            pass
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(work, producer)
        return count / (time.perf_counter() - started)


async def sends(at: Cluster, count: int, in_flight: int, size: int) -> float:
    """Plain sends a second, a request each."""
    message = Message(TOPIC, bytes(size))
    left = iter(range(count))

    async def work(producer: Producer) -> None:
        for _ in left:
            await producer.send(message)

    async with Producer(at.nameserver, group="plain", batching=False, send_timeout_ms=30_000) as producer:
        await producer.send(message)
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(work, producer)
        return count / (time.perf_counter() - started)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--in-flight", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with cluster() as at:
        trio.run(make_topic, at)
        load = arguments.count, arguments.in_flight, arguments.size
        found = in_turn(
            arguments.rounds,
            partial(trio.run, transactions, at, *load),
            partial(trio.run, sends, at, *load),
        )
        name = f"transactions, {arguments.in_flight} in flight; limit: unbatched sends"
        show(iter([row(name, "per s", *found, arguments.count)]), arguments.json)


if __name__ == "__main__":
    main()
