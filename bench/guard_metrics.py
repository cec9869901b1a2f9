"""Sends with metrics on and off, and a scrape of 1,000 topics and 100 groups.

    python -m bench.guard_metrics [--count 100000] [--rounds 5] [--json]

Code 310 with a JSON header, 1,000 in flight. The bars: at most 3 % fewer sends with metrics on; the scrape under 1 s, and
the event loop blocked for less than 20 ms meanwhile. Each group has read each topic: 100,000 lags, of four metrics. The
loop is watched by a task beside the scrape, in the broker's process, which here is this one.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial

import trio

from bench.guard_auth import frames
from bench.harness import Row, cluster, in_turn, row, show
from bench.send_pull import make_topic, pipeline
from broker.broker import Broker
from broker.options import BrokerOptions
from mqcommon.addresses import split_address
from remoting.net.client import open_client
from remoting.protocol.bodies import encode_body
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command

ON = ("--metrics-exporter-type", "PROM", "--metrics-prom-exporter-port", "0")
TOPICS, GROUPS = 1_000, 100


def sends(count: int, rounds: int) -> Iterator[Row]:
    """For small messages, and for those of 1 KiB."""
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
            bind_address="127.0.0.1", broker_ip1="127.0.0.1", listen_port=0, fast_listen_port=0, broker_name="bench",
            store_path_root_dir=home, mapped_file_size_commit_log=64 * 1024 * 1024,
            metrics_exporter_type="PROM", metrics_prom_exporter_port=port,
        )  # fmt: skip
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
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
            }  # fmt: skip
            await client.invoke(addr, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
            sent = {
                "a": "bench", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0,
                "i": "", "j": 0, "k": False, "m": False, "n": "bench",
            }  # fmt: skip
            answer = await client.invoke(addr, Command(RequestCode.SEND_MESSAGE_V2, sent, b"x" * 100))
            assert answer.code == 0, answer.remark
            for group in range(GROUPS):
                commit = {"consumerGroup": f"group-{group:03}", "topic": topic, "queueId": 0, "commitOffset": 0}
                await client.oneway(addr, Command(RequestCode.UPDATE_CONSUMER_OFFSET, commit))


async def scrape(address: str) -> tuple[float, float, int]:
    """Seconds, longest block of the loop (ms), bytes. The page is read by a thread, as Prometheus is another process."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            start = time.perf_counter()
            await trio.sleep(0)
            longest = max(longest, time.perf_counter() - start)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        start = time.perf_counter()
        size = await trio.to_thread.run_sync(_read, address)
        seconds = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return seconds, longest * 1_000, size
