"""Skylark beside Redis Streams, which Python users take for a light queue: both on loopback, in turns in one run.

    python -m bench.peers [--n 40000] [--rounds 5] [--json]

The limit of each row is Redis (redis-server with its defaults, no disk flush per message) and redis-py with hiredis: a
pipeline where messages are sent in bulk, its asyncio client where tasks wait. Redis keeps its messages in memory; a
Skylark broker writes each one to its commit log. Needs Debian's redis-server and the extra bench.
"""

import argparse
import asyncio
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import redis
import redis.asyncio
import trio

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import QUEUES, TOPIC, awaited, make_topic, nowait, one_by_one, pull, run, send_many
from mqcommon.message.message import Message, MessageExt
from scripts.daemons import HOST, free_port
from sdk import Producer, PushConsumer, aio

BODY = b"x" * 128
STREAM = "bench"
PIPELINE = 1_000
TASKS = 1_000
READ = 1_000
LATENCY_TOPIC = "latency"
LATENCY_MESSAGES = 500
LATENCY_PAUSE_S = 0.01
START_TIMEOUT_S = 10
# The address of one side, and the number of messages → a figure.
Times = list[float]


@contextmanager
def redis_server() -> Iterator[int]:
    """The port of a Redis of its own, without snapshots."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise SystemExit("no redis-server found: apt-get install redis-server (Debian, Ubuntu)")
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [binary, "--port", str(port), "--bind", HOST, "--save", "", "--dir", home], stdout=subprocess.DEVNULL
        )
        try:
            with redis.Redis(HOST, port) as client:
                deadline = time.monotonic() + START_TIMEOUT_S
                while True:
                    try:
                        client.ping()
                        break
                    except redis.ConnectionError:
                        if time.monotonic() > deadline:
                            raise SystemExit("redis-server does not answer") from None
                        time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait()


def redis_one_by_one(port: int, count: int) -> float:
    """The median of an XADD with nothing else in flight, in ms."""
    times = []
    with redis.Redis(HOST, port) as client:
        client.delete(STREAM)
        for _ in range(count):
            started = time.perf_counter()
            client.xadd(STREAM, {"b": BODY})
            times.append(time.perf_counter() - started)
    return median(times) * 1000


def redis_one_by_one_in_asyncio(port: int, count: int) -> float:
    """As `redis_one_by_one`, by the asyncio client."""

    async def main() -> float:
        times = []
        async with redis.asyncio.Redis(host=HOST, port=port) as client:
            await client.delete(STREAM)
            for _ in range(count):
                started = time.perf_counter()
                await client.xadd(STREAM, {"b": BODY})
                times.append(time.perf_counter() - started)
        return median(times) * 1000

    return asyncio.run(main())


def redis_pipelined(port: int, count: int) -> float:
    """Messages a second by pipelines of `PIPELINE` XADDs, each awaited."""
    with redis.Redis(HOST, port) as client:
        client.delete(STREAM)
        started = time.perf_counter()
        for _ in range(count // PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for _ in range(PIPELINE):
                pipeline.xadd(STREAM, {"b": BODY})
            pipeline.execute()
        return count / (time.perf_counter() - started)


def redis_read(port: int, count: int) -> float:
    """Messages a second by XREAD, from the start of a stream of ``count`` messages."""
    redis_pipelined(port, count)
    with redis.Redis(HOST, port) as client:
        started, seen = time.perf_counter(), 0
        last: Any = "0"
        while seen < count:
            ((_, entries),) = client.xread({STREAM: last}, count=READ)
            seen += len(entries)
            last = entries[-1][0]
        return seen / (time.perf_counter() - started)


def redis_latency(port: int) -> Times:
    """Times in ms from before an XADD until a blocked XREAD has its entry, in one asyncio program."""

    async def main() -> Times:
        took: Times = []
        async with (
            redis.asyncio.Redis(host=HOST, port=port) as producer,
            redis.asyncio.Redis(host=HOST, port=port) as consumer,
        ):
            await producer.delete(STREAM)

            async def read() -> None:
                last: Any = "0"
                while len(took) < LATENCY_MESSAGES:
                    for _, entries in await consumer.xread({STREAM: last}, count=READ, block=1000):
                        now = time.perf_counter()
                        took.extend((now - float(fields[b"b"])) * 1000 for _, fields in entries)
                        last = entries[-1][0]

            reader = asyncio.create_task(read())
            for _ in range(LATENCY_MESSAGES):
                await producer.xadd(STREAM, {"b": b"%.9f" % time.perf_counter()})
                await asyncio.sleep(LATENCY_PAUSE_S)
            await reader
        return took

    return asyncio.run(main())


async def awaited_in_asyncio(at: Cluster, count: int, tasks: int) -> float:
    """Calls of ``await producer.send(...)`` a second, by ``tasks`` asyncio tasks at once."""
    left = count

    async def work(producer: aio.Producer) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send(Message(TOPIC, BODY))

    async with aio.Producer(at.nameserver) as producer:
        await producer.send(Message(TOPIC, BODY))
        started = time.perf_counter()
        await asyncio.gather(*(work(producer) for _ in range(tasks)))
        return count / (time.perf_counter() - started)


async def latency(at: Cluster) -> Times:
    """Times in ms from before a send until its handler runs, in one trio program."""
    took: Times = []
    began = time.perf_counter()
    is_warm, is_done = trio.Event(), trio.Event()

    async def handle(message: MessageExt) -> None:
        is_timed, sent_at = message.tags == "timed", float(message.body)
        if sent_at < began:  # a new group reads the messages of earlier rounds, too
            return
        is_warm.set()
        if is_timed:
            took.append((time.perf_counter() - sent_at) * 1000)
        if len(took) == LATENCY_MESSAGES:
            is_done.set()

    def message(tags: str) -> Message:
        return Message(LATENCY_TOPIC, b"%.9f" % time.perf_counter(), tags=tags)

    async with (
        Producer(at.nameserver) as producer,
        PushConsumer(
            at.nameserver, group=f"latency{time.time_ns()}", subscriptions={LATENCY_TOPIC: "*"}, handler=handle
        ),
    ):
        with trio.fail_after(START_TIMEOUT_S):
            for _ in range(QUEUES):  # so that the consumer holds a pull at each queue before a message is timed
                is_warm = trio.Event()
                await producer.send(message("warm"))
                await is_warm.wait()
        for _ in range(LATENCY_MESSAGES):
            await producer.send(message("timed"))
            await trio.sleep(LATENCY_PAUSE_S)
        with trio.fail_after(START_TIMEOUT_S):
            await is_done.wait()
    return took


def percentile(times: Times, share: float) -> float:
    return sorted(times)[math.ceil(share * len(times)) - 1]


def sides(rounds: int, *measures: Callable[[], Any]) -> list[list[Any]]:
    """Figures of each side, taken in turns; a first round of each warms up and does not count."""
    found: list[list[Any]] = [[] for _ in measures]
    for number in range(rounds + 1):
        for figures, measure in zip(found, measures, strict=True):
            figure = measure()
            if number:
                figures.append(figure)
    return found


def rows(n: int, rounds: int) -> Iterator[Row]:
    with redis_server() as port, cluster() as at:
        for topic in (TOPIC, LATENCY_TOPIC):
            trio.run(make_topic, at, topic, QUEUES)

        def of(what: Callable[..., Awaitable[float]], *args: object, **named: object) -> Callable[[], float]:
            return lambda: run(what, at, *args, **named)

        ours, theirs = sides(rounds, lambda: trio.run(latency, at), partial(redis_latency, port))
        for name, share in (("median", 0.5), ("99 %", 0.99)):
            yield row(
                f"send to handler, 100 messages/s, {name}", "ms",
                [percentile(each, share) for each in ours], [percentile(each, share) for each in theirs],
                LATENCY_MESSAGES, smaller_is_better=True,
            )  # fmt: skip
        ours, in_asyncio, blocking = sides(
            rounds,
            of(one_by_one, BODY, 2_000),
            partial(redis_one_by_one_in_asyncio, port, 2_000),
            partial(redis_one_by_one, port, 2_000),
        )
        for client, theirs in (("asyncio", in_asyncio), ("blocking", blocking)):
            yield row(
                f"send, one in flight, median; Redis: {client} client",
                "ms",
                ours,
                theirs,
                2_000,
                smaller_is_better=True,
            )
        pipelined = partial(redis_pipelined, port, 2 * n)
        figures = sides(
            rounds,
            of(awaited, BODY, 2 * n, TASKS, batching=True),
            lambda: asyncio.run(awaited_in_asyncio(at, n, TASKS)),
            lambda: asyncio.run(awaited_in_asyncio(at, n, 64)),
            of(nowait, BODY, 4 * n),
            of(send_many, TOPIC, BODY, 6 * n),
            pipelined,
        )
        for name, ours in zip(
            (
                f"awaited sends, trio, {TASKS:,} tasks", f"awaited sends, asyncio, {TASKS:,} tasks",
                "awaited sends, asyncio, 64 tasks", "send_nowait, trio", "send_many",
            ),
            figures, strict=False,
        ):  # fmt: skip
            yield row(name, "msg/s", ours, figures[-1], n)
        ours, theirs = in_turn(rounds, of(pull, TOPIC, 4 * n), partial(redis_read, port, 4 * n))
        yield row("message objects, read from the start", "msg/s", ours, theirs, 4 * n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=40_000, help="messages of the sends; others take multiples")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.n, arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
