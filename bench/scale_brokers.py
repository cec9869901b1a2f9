"""What k brokers carry: the processor time of a message in each of 1, 2, ... brokers that share a topic.

    python -m bench.scale_brokers [--json] [--brokers N] [--rounds N]

Brokers, NameServer and the Producer are processes of their own on this machine. The producer shares the cores with the
brokers, so messages a second show the capacity of this machine, not of the brokers. The brokers' processor time shows
theirs: with a core for each and the load elsewhere, k brokers carry k times as much as one broker, as long as a message
costs them no more than it costs a single broker. The last row of each number of brokers is this cost, and its limit is
the cost with one broker. Each broker has as many sends in flight, whatever their number: batches, and with them the
cost of a message, depend on that.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import trio

from bench.harness import Row, row, show
from bench.scale import cpu_ns
from scripts.daemons import Daemon, broker_daemon, namesrv_daemon, serving
from skylark import Admin, Producer
from skylark.mqcommon.errors import RouteNotFound
from skylark.mqcommon.message.message import Message
from skylark.remoting.protocol.requests.topics import TopicConfig

TOPIC, QUEUES, BODY = "scale", 8, b"x" * 128
SENDERS, MESSAGES = 1_000, 200_000
WARM_UP = 20_000


async def _send(producer: Producer, count: int, senders: int) -> float:
    """Seconds for ``count`` awaited sends, ``senders`` at a time."""
    left = iter(range(count))

    async def sender() -> None:
        for _ in left:
            await producer.send(Message(TOPIC, BODY))

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(senders):
            nursery.start_soon(sender)
    return time.perf_counter() - started


async def _until_known(admin: Admin, brokers: int) -> None:
    with trio.fail_after(30):
        while True:
            with suppress(RouteNotFound):
                if len((await admin.topic_route(TOPIC)).broker_datas) == brokers:
                    return
            await trio.sleep(0.05)


async def _measure(namesrv: str, brokers: list[Daemon], rounds: int) -> tuple[list[float], list[float]]:
    """Messages a second, and the processor time of a message in the brokers, in microseconds."""
    speeds, costs, senders = [], [], SENDERS * len(brokers)
    async with Admin(namesrv) as admin, Producer(namesrv, send_timeout_ms=30_000) as producer:
        for broker in brokers:
            await admin.create_topic(broker.addr, TopicConfig(TOPIC, QUEUES, QUEUES))
        await _until_known(admin, len(brokers))
        await _send(producer, WARM_UP, senders)
        for _ in range(rounds):
            before = sum(cpu_ns(broker.pid) for broker in brokers)
            seconds = await _send(producer, MESSAGES, senders)
            speeds.append(MESSAGES / seconds)
            costs.append((sum(cpu_ns(broker.pid) for broker in brokers) - before) / MESSAGES / 1000)
    return speeds, costs


def rows(most: int, rounds: int) -> Iterator[Row]:
    first: tuple[list[float], list[float]] | None = None
    for count in range(1, most + 1):
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            home = Path(directory)
            namesrv = namesrv_daemon(home)
            brokers = [broker_daemon(home, f"broker-{number}", namesrv.addr) for number in range(count)]
            stack.enter_context(serving(namesrv, *brokers))
            speeds, costs = trio.run(_measure, namesrv.addr, brokers, rounds)
        first = first or (speeds, costs)
        what = f"{count} broker{'s' if count > 1 else ''}, 128 B, {SENDERS * count:,} awaiting"
        yield row(f"{what}: sends; limit: one broker", "msg/s", speeds, first[0], MESSAGES)
        yield row(f"{what}: CPU of a message", "us", costs, first[1], MESSAGES, smaller_is_better=True)
        carried = [1e6 / cost * count for cost in costs]
        alone = [1e6 / cost for cost in first[1]]
        yield row(f"{what}: what their cores carry", "msg/s", carried, alone, MESSAGES)


def main() -> None:
    parser = argparse.ArgumentParser(description="What k brokers carry")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--brokers", type=int, default=os.cpu_count() or 1, help="the most brokers")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    show(rows(arguments.brokers, arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
