"""Sends with the trace on, and the same sends without, in turn. One broker, a NameServer, this client.

The trace has its own system topic on the same broker, or goes to a file; all of it is stored before the clock stops.

    python -m bench.delivery_trace [--messages 200000] [--rounds 5] [--json]
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory

import trio

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import TOPIC, make_topic
from skylark import JsonLinesSink, Producer
from skylark.mqcommon.message.message import Message
from skylark.sdk.traces.sink import TraceSink

BODY = b"x" * 128
TASKS = 2_000


async def awaited(at: Cluster, count: int, *, trace: bool | TraceSink) -> float:
    """Calls of ``await producer.send(...)`` a second, by many tasks at once, until the block has ended."""
    left = count

    async def work(producer: Producer) -> None:
        nonlocal left
        while left:
            left -= 1
            await producer.send(Message(TOPIC, BODY))

    async with Producer(at.nameserver, trace=trace) as producer:
        await producer.send(Message(TOPIC, BODY))
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(work, producer)
    # The end of the block sends the rest of the trace.
    elapsed = time.perf_counter() - started
    if producer.traces_dropped:
        raise SystemExit(f"{producer.traces_dropped} trace records were dropped")
    return count / elapsed


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """All figures; the limit is the same without a trace."""
    with cluster(options=("--trace-topic-enable", "true")) as at:
        trio.run(make_topic, at)
        traced = partial(trio.run, partial(awaited, at, messages, trace=True))
        plain = partial(trio.run, partial(awaited, at, messages, trace=False))
        yield row("awaited sends with trace, 128 B", "messages/s", *in_turn(rounds, traced, plain), messages)
        with TemporaryDirectory() as folder:
            sink = JsonLinesSink(f"{folder}/traces.jsonl")
            to_file = partial(trio.run, partial(awaited, at, messages, trace=sink))
            yield row("awaited sends with trace to a file", "messages/s", *in_turn(rounds, to_file, plain), messages)
            sink.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(rows(args.messages, args.rounds), args.json)


if __name__ == "__main__":
    main()
