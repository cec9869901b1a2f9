"""Sends of messages that are delivered later, beside the same sends of plain messages: adaptive batches, 128 bytes.

    python -m bench.timed_sends [--messages 40000] [--rounds 5] [--json]

The messages have one delay, one delay level, or each a time of its own; none is due while the bench runs.
"""

import argparse
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import trio

from bench.harness import Cluster, Row, cluster, row, show, turns
from bench.traffic import TOPIC, make_topic
from skylark import Message, Producer, SendResult

BODY = b"x" * 128
TASKS = (1_000, 64)
DELAY = timedelta(hours=1)
LEVEL = 18
SOON = datetime.now(UTC) + DELAY

Send = Callable[[Producer, int], Awaitable[SendResult]]


async def plain(producer: Producer, number: int) -> SendResult:
    """The limit."""
    return await producer.send(Message(TOPIC, BODY))


async def delayed(producer: Producer, number: int) -> SendResult:
    """All have one delay."""
    return await producer.send(Message(TOPIC, BODY), delay=DELAY)


async def leveled(producer: Producer, number: int) -> SendResult:
    """All have one delay level."""
    return await producer.send(Message(TOPIC, BODY, delay_level=LEVEL))


async def timed(producer: Producer, number: int) -> SendResult:
    """Each has a time of its own."""
    return await producer.send(Message(TOPIC, BODY), deliver_at=SOON + timedelta(milliseconds=number))


async def rate(at: Cluster, send: Send, messages: int, tasks: int) -> float:
    """Messages a second of ``tasks`` at once."""
    numbers = iter(range(messages))

    async def work() -> None:
        for number in numbers:
            await send(producer, number)

    async with Producer(at.nameserver, send_timeout_ms=20_000) as producer:
        await send(producer, 0)
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(work)
        return messages / (time.perf_counter() - started)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """All figures; the limit is plain messages."""
    with cluster() as at:
        trio.run(make_topic, at)
        for tasks in TASKS:
            sides = [partial(trio.run, rate, at, send, messages, tasks) for send in (delayed, leveled, timed, plain)]
            *found, limit = turns(rounds, *sides)
            for name, ours in zip(("with a delay", "with a delay level", "each with a time"), found, strict=True):
                yield row(f"awaited sends {name}, {tasks} tasks; limit: plain", "msg/s", ours, limit, messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(rows(args.messages, args.rounds), args.json)


if __name__ == "__main__":
    main()
