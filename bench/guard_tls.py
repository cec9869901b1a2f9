"""What TLS costs: sends and pulls over it, and the same without, in turn, on the same ports.

    python -m bench.guard_tls [--messages 100000] [--rounds 5] [--json]

The certificate is of ECDSA; the broker makes it at its start (tls.test.mode.enable).
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import trio

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import TOPIC, make_topic
from skylark import Producer, PullConsumer, Tls
from skylark.mqcommon.message.message import Message

BODY = b"x" * 128
TASKS = 1_000
# One after another, to see what one connection can carry.
PULL = 1_000


async def awaited(at: Cluster, count: int, *, tls: Tls | None, batching: bool) -> float:
    """Calls of ``await producer.send(...)`` a second, 1,000 at once."""
    left = count

    async def work(producer: Producer) -> None:
        nonlocal left
        while left:
            left -= 1
            await producer.send(Message(TOPIC, BODY))

    async with Producer(at.nameserver, tls=tls, batching=batching) as producer:
        await producer.send(Message(TOPIC, BODY))
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(work, producer)
        return count / (time.perf_counter() - started)


async def pulled(at: Cluster, count: int, *, tls: Tls | None) -> float:
    """Messages a second that one consumer pulls from one queue after another."""
    async with PullConsumer(at.nameserver, tls=tls) as consumer:
        queues = await consumer.message_queues(TOPIC)
        found = 0
        started = time.perf_counter()
        while found < count:
            for queue in queues:
                offset = await consumer.min_offset(queue)
                while found < count:
                    result = await consumer.pull(queue, offset, max_count=PULL)
                    if not result.messages:
                        break
                    found += len(result.messages)
                    offset = result.next_offset
        return found / (time.perf_counter() - started)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """All figures; the limit is the same without TLS."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "tls.properties")
        file.write_text("tls.test.mode.enable=true\n")
        with cluster(of_both=("--tls-config-file", str(file))) as at:
            trio.run(make_topic, at)
            both = [Tls(verify=False), None]
            for name, batching in (("batched", True), ("one a request", False)):
                ours, plain = (
                    partial(trio.run, partial(awaited, at, messages, tls=tls, batching=batching)) for tls in both
                )
                yield row(f"awaited sends, TLS, 128 B, {name}", "messages/s", *in_turn(rounds, ours, plain), messages)
            ours, plain = (partial(trio.run, partial(pulled, at, messages, tls=tls)) for tls in both)
            yield row("pulls, TLS, 128 B", "messages/s", *in_turn(rounds, ours, plain), messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(rows(args.messages, args.rounds), args.json)


if __name__ == "__main__":
    main()
