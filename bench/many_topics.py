"""Many topics get their first message: by sends that create them, and by Admin before the sends.

    python -m bench.many_topics [--json] [--topics N] [--at-once N]

The limit is the same number of sends by the same producer to topics whose routes it knows already.
"""

import argparse
import time
from collections.abc import Awaitable, Callable, Iterator

import trio

from bench.harness import Cluster, Row, cluster, row, show
from skylark import Admin, Producer
from skylark.mqcommon.message.message import Message
from skylark.remoting.protocol.requests.topics import TopicConfig

BODY = b"first"
# A long timeout, because brokers have very many topics to register.
SEND_TIMEOUT_MS = 60_000


async def timed(names: list[str], at_once: int, work: Callable[[str], Awaitable[object]]) -> float:
    """Seconds for the work on all ``names``, ``at_once`` of them at a time."""
    left = iter(names)

    async def worker() -> None:
        for name in left:
            await work(name)

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(worker)
    return time.perf_counter() - started


async def measure(at: Cluster, topics: int, at_once: int) -> tuple[float, float, float]:
    """Seconds: first sends that create their topics, first sends to topics of Admin, sends to topics in use."""
    created = [f"created-{number}" for number in range(topics)]
    made = [f"made-{number}" for number in range(topics)]
    async with (
        Producer(at.nameserver, send_timeout_ms=SEND_TIMEOUT_MS) as producer,
        Admin(at.nameserver) as admin,
    ):

        async def send(name: str) -> None:
            await producer.send(Message(name, BODY))

        async def make(name: str) -> None:
            await admin.create_topic(at.broker, TopicConfig(name, 4, 4))
            await send(name)

        by_send = await timed(created, at_once, send)
        by_admin = await timed(made, at_once, make)
        return by_send, by_admin, await timed(created, at_once, send)


def rows(topics: int, at_once: int) -> Iterator[Row]:
    with cluster() as at:
        by_send, by_admin, known = trio.run(measure, at, topics, at_once)
    for name, figure in (("created by the send", by_send), ("created by Admin before", by_admin)):
        yield row(f"{topics:,} first sends, topics {name}", "s", [figure], [known], topics, smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many topics get their first message")
    parser.add_argument("--topics", type=int, default=10_000, help="topics of each kind")
    parser.add_argument("--at-once", type=int, default=64, help="sends at a time")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.topics, arguments.at_once), arguments.json)


if __name__ == "__main__":
    main()
