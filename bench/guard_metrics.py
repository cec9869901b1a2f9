"""Sends with metrics on and off, and a scrape of 1,000 topics and 100 groups.

    python -m bench.guard_metrics [--count 100000] [--rounds 5] [--json]

Code 310 with a JSON header, 1,000 in flight. The bars: at most 3 % fewer sends with metrics on; the scrape under 1 s,
and the event loop blocked for less than 20 ms meanwhile. Each group is behind in each topic, of one queue: 100,000
lags, of four metrics. The broker of the scrape is in this process, where a task watches its loop.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial

import trio

from bench.guard_auth import frames
from bench.harness import Row, cluster, in_turn, row, show
from bench.traffic import make_topic, pipeline
from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC

ON = ("--metrics-exporter-type", "PROM", "--metrics-prom-exporter-port", "0")
TOPICS, GROUPS = 1_000, 100


def sends(count: int, rounds: int) -> Iterator[Row]:
    """Sends a second, for small messages and for messages of 1 KiB."""
    with cluster(options=ON) as measured, cluster() as plain:
        for made in (measured, plain):
            trio.run(make_topic, made)
        for size in (100, 1_024):
            sent = frames(count, b"x" * size, None)
            ours, limit = in_turn(
                rounds,
                partial(trio.run, pipeline, measured.broker, sent, 1_000, b'"code":0'),
                partial(trio.run, pipeline, plain.broker, sent, 1_000, b'"code":0'),
            )
            yield row(f"sends of {size} bytes, metrics on / off", "msg/s", ours, limit, rounds)


async def scrapes(rounds: int, port: int) -> tuple[list[float], list[float], int]:
    """Seconds of each scrape, the longest block of the loop meanwhile (ms), and the size of the page."""
    with tempfile.TemporaryDirectory() as home:
        options = BrokerOptions(
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            listen_port=0,
            fast_listen_port=0,
            broker_name="bench",
            store_path_root_dir=home,
            mapped_file_size_commit_log=64 * 1024 * 1024,
            metrics_exporter_type="PROM",
            metrics_prom_exporter_port=port,
        )
        broker = Broker(options)
        async with trio.open_nursery() as nursery:
            addr = await nursery.start(broker.run)
            await fill(addr)
            times, blocks, size = [], [], 0
            for _ in range(rounds + 1):
                seconds, blocked_ms, size = await scrape(f"127.0.0.1:{port}")
                times.append(seconds)
                blocks.append(blocked_ms)
            broker.stop()
    return times[1:], blocks[1:], size


async def fill(addr: str) -> None:
    """A message in each topic, and an offset of each group."""
    async with open_client() as client:
        for number in range(TOPICS):
            topic = f"topic-{number:04}"
            fields = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
            }
            await client.invoke(addr, Command(UPDATE_AND_CREATE_TOPIC.code, fields))
            sent = {
                "a": "bench",
                "b": topic,
                "c": "TBW102",
                "d": 4,
                "e": 0,
                "f": 0,
                "g": 1_700_000_000_000,
                "h": 0,
                "i": "",
                "j": 0,
                "k": False,
                "m": False,
                "n": "bench",
            }
            answer = await client.invoke(addr, Command(SEND_MESSAGE_V2.code, sent, b"x" * 100))
            assert answer.code == 0, answer.remark
            for group in range(GROUPS):
                commit = {"consumerGroup": f"group-{group:03}", "topic": topic, "queueId": 0, "commitOffset": 0}
                await client.oneway(addr, Command(UPDATE_CONSUMER_OFFSET.code, commit))


async def scrape(address: str) -> tuple[float, float, int]:
    """Seconds, longest block of the loop (ms), bytes. Another process reads the page, as Prometheus would."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            start = time.perf_counter()
            await trio.lowlevel.checkpoint()
            longest = max(longest, time.perf_counter() - start)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        done = await trio.run_process([sys.executable, "-c", _READ, f"http://{address}/metrics"], capture_stdout=True)
        nursery.cancel_scope.cancel()
    seconds, size = done.stdout.split()
    return float(seconds), longest * 1_000, int(size)


# Reads a page and prints the seconds it took, and its size.
_READ = """
import sys, time, urllib.request
start = time.perf_counter()
with urllib.request.urlopen(sys.argv[1]) as page:
    size = sum(map(len, iter(lambda: page.read(1 << 20), b"")))
print(time.perf_counter() - start, size)
"""


def rows(count: int, rounds: int) -> Iterator[Row]:
    """All rows; the last ones have the bars as their limits."""
    times, blocks, size = trio.run(scrapes, rounds, 15_557)
    name = f"scrape of {TOPICS} topics x {GROUPS} groups, {size / 1e6:.0f} MB"
    yield row(name, "s", times, [1.0], rounds, smaller_is_better=True)
    yield row("longest block of the loop meanwhile", "ms", blocks, [20.0], rounds, smaller_is_better=True)
    yield from sends(count, rounds)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    show(rows(options.count, options.rounds), options.json)


if __name__ == "__main__":
    main()
