"""The cost of the console: time until a page begins, memory, and the broker's cost of 50 people who look at it.

    python -m bench.console [--json] [--rounds N] [--topics 10000] [--groups 2000] [--people 50] [--seconds 10]

One broker has all topics and groups, and a tenth of the groups lag. The first two rows are medians of the time from a
request until the first byte of the page, with no other window open; their limit is 0.3 s. Then --people windows are
open, each of which loads the overview again after each round of the console. The third row is the part of a core that
the broker works for that and for the console while nobody sends; its limit is 3 %. The fourth is how many messages the
broker takes for a second of its own processor time meanwhile; its limit is the same without console and windows, in
turns. On two cores the sender gets less of them while others work, and sends smaller batches, of which each message
costs more: this is in the fourth row, and not in the third. The last row is the console's resident memory at the end;
its limit is 150 MB.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import httpx
import trio

from bench.harness import Row, cpu_s, row, show, turns
from scripts.daemons import Daemon, broker_daemon, namesrv_daemon, reserve, serving
from skylark import Admin, Message, Producer, PullConsumer
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig

FIRST_BYTE_LIMIT_S = 0.3
CORE_LIMIT_PERCENT = 3.0
MEMORY_LIMIT_MB = 150.0
# After sends the broker still builds its index.
SETTLE_S = 6
SENDERS = 64
LAGGING = "t-00000"
PAGES = {"overview": "/", "list of topics": "/topics"}
BROKER_OPTIONS = ("--mapped-file-size-commit-log", str(256 * 1024 * 1024), "--max-index-num", "1000000")


def console_daemon(home: Path, nameserver: str) -> Daemon:
    port = reserve()
    command = [sys.executable, "-m", "skylark.mqconsole", "-n", nameserver, "--listen-port", str(port.number)]
    return Daemon("mqconsole", command, port.number, home / "mqconsole.log", port)


async def fill(nameserver: str, broker: str, topics: int, groups: int) -> None:
    """Make topics and groups, and let a tenth of the groups lag by a message or more."""
    async with Admin(nameserver, timeout_ms=60_000) as admin:
        await admin.create_topics(broker, [TopicConfig(f"t-{number:05}", 4, 4) for number in range(topics)])
        names = [f"g-{number:05}" for number in range(groups)]
        await admin.create_groups(broker, [SubscriptionGroupConfig(name) for name in names])
        with trio.fail_after(120):
            while LAGGING not in await admin.topic_list():
                await trio.lowlevel.checkpoint()
    async with Producer(nameserver) as producer:
        for _ in range(64):
            await producer.send(Message(LAGGING, b"x" * 128))
    for name in names[::10]:
        async with PullConsumer(nameserver, group=name, heartbeat=False) as consumer:
            for queue in await consumer.message_queues(LAGGING):
                await consumer.commit_offset(queue, 0)


async def first_bytes(address: str, path: str, count: int) -> list[float]:
    """Seconds until the first byte of the page, one request after another."""
    found = []
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        for _ in range(count + 1):
            began = perf_counter()
            async with client.stream("GET", path) as answer:
                answer.raise_for_status()
                async for _chunk in answer.aiter_raw():
                    found.append(perf_counter() - began)
                    break
    return found[1:]


async def watch_overview(client: httpx.AsyncClient) -> None:
    """One window: the overview, and again after each round of the console."""
    (await client.get("/")).raise_for_status()
    async with client.stream("GET", "/events") as events:
        async for line in events.aiter_lines():
            if line.startswith("data"):
                (await client.get("/")).raise_for_status()


async def open_windows(address: str, people: int) -> None:
    """Open ``people`` windows; runs in a process of its own."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client, trio.open_nursery() as nursery:
        for _ in range(people):
            nursery.start_soon(watch_overview, client)


@contextmanager
def people_looking(address: str, people: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.console", "--look", address, "--people", str(people)]
    process = subprocess.Popen(command)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit("those who look have ended")
    finally:
        process.kill()
        process.wait()


async def sends_a_processor_second(nameserver: str, pid: int, seconds: float) -> float:
    """Messages for a second of the broker's processor time."""
    sent = 0

    async def send(producer: Producer) -> None:
        nonlocal sent
        while True:
            await producer.send(Message(LAGGING, b"x" * 128))
            sent += 1

    async with Producer(nameserver, send_timeout_ms=30_000) as producer, trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(send, producer)
        # The windows are open by then, too.
        await trio.sleep(2)
        before, busy = sent, cpu_s(pid)
        await trio.sleep(seconds)
        found = (sent - before) / (cpu_s(pid) - busy)
        nursery.cancel_scope.cancel()
    return found


def measure(rounds: int, topics: int, groups: int, people: int, seconds: float) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as home:
        namesrv = namesrv_daemon(Path(home))
        broker = broker_daemon(Path(home), "bench", namesrv.addr, 0, *BROKER_OPTIONS)
        console = console_daemon(Path(home), namesrv.addr)
        address = f"http://{console.addr}"
        with serving(namesrv, broker):
            trio.run(fill, namesrv.addr, broker.addr, topics, groups)
            with serving(console):
                for name, path in PAGES.items():
                    found = trio.run(first_bytes, address, path, 10 * rounds)
                    yield row(
                        f"first byte of the {name}, {topics:,} topics",
                        "s",
                        found,
                        [FIRST_BYTE_LIMIT_S],
                        len(found),
                        smaller_is_better=True,
                    )
            memory: list[float] = []

            def sends() -> float:
                return trio.run(sends_a_processor_second, namesrv.addr, broker.pid, seconds)

            def percent_of_a_core() -> float:
                trio.run(trio.sleep, SETTLE_S)
                busy = cpu_s(broker.pid)
                trio.run(trio.sleep, 2 * seconds)
                return (cpu_s(broker.pid) - busy) / (2 * seconds) * 100

            idle: list[float] = []
            cost: list[float] = []

            def looked_at() -> float:
                idle.append(percent_of_a_core())
                with serving(console), people_looking(address, people):
                    cost.append(percent_of_a_core() - idle[-1])
                    found = sends()
                    memory.append(console.rss_bytes() / 1e6)
                return found

            ours, limit = turns(rounds, looked_at, sends)
            name = f"part of a core of the broker, {people} look"
            yield row(name, "%", cost, [CORE_LIMIT_PERCENT], len(cost), smaller_is_better=True)
            name = f"sends for a processor second of the broker, {people} look"
            yield row(name, "msg/s", ours, limit, int(seconds))
            yield row("memory of the console", "MB", memory, [MEMORY_LIMIT_MB], len(memory), smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--people", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--look", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.look:
        trio.run(open_windows, given.look, given.people)
        return
    show(measure(given.rounds, given.topics, given.groups, given.people, given.seconds), given.json)


if __name__ == "__main__":
    main()
