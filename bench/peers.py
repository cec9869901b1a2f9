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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import redis
import redis.asyncio
import trio

from bench.harness import Cluster, Row, cluster, echo_server, in_turn, row, show, turns
from bench.traffic import QUEUES, TOPIC, awaited, make_topic, nowait, one_by_one, pull, run, send_many
from scripts.daemons import HOST, free_port
from skylark import Producer, PushConsumer, aio
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.message.message import Message, MessageExt

BODY = b"x" * 128
STREAM = "bench"
PIPELINE = 1_000
TASKS = 1_000
READ = 1_000
LATENCY_TOPIC = "latency"
LATENCY_MESSAGES = 500
ONE_BY_ONE = 2_000
LATENCY_PAUSE_S = 0.01
START_TIMEOUT_S = 10
# In ms, one for each message.
Times = list[float]


@contextmanager
def redis_server() -> Iterator[int]:
    """The port of a Redis of its own, without snapshots."""
    with redis_process() as (port, _):
        yield port


@contextmanager
def redis_process() -> Iterator[tuple[int, int]]:
    """As `redis_server`, with its process id."""
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
            yield port, process.pid
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


async def bare_events(count: int, tasks: int) -> float:
    """Waits for an event of its own a second, by ``tasks`` trio tasks at once: no send of a trio task costs less."""
    left = count
    waiting: list[trio.Event] = []

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            event = trio.Event()
            waiting.append(event)
            await event.wait()

    async with trio.open_nursery() as nursery:
        started = time.perf_counter()
        for _ in range(tasks):
            nursery.start_soon(work)
        while left > 0 or waiting:
            events = waiting.copy()
            waiting.clear()
            for event in events:
                event.set()
            await trio.lowlevel.checkpoint()
        return count / (time.perf_counter() - started)


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


async def echo_latency(addr: str) -> Times:
    """Times in ms from before a write until its echo is read, in bare trio: the cost of waking both processes."""
    took: Times = []
    frame = len(BODY).to_bytes(4, "big") + BODY
    async with await trio.open_tcp_stream(*split_address(addr)) as stream:
        for _ in range(LATENCY_MESSAGES):
            started = time.perf_counter()
            await stream.send_all(frame)
            await stream.receive_some()
            took.append((time.perf_counter() - started) * 1000)
            await trio.sleep(LATENCY_PAUSE_S)
    return took


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


def latency_rows(at: Cluster, port: int, rounds: int) -> Iterator[Row]:
    with echo_server() as echo:
        ours, theirs, echoed = turns(
            rounds,
            partial(trio.run, latency, at),
            partial(redis_latency, port),
            partial(trio.run, echo_latency, echo),
        )
    sides: tuple[tuple[str, list[Times], float], ...] = (
        ("median", theirs, 0.5),
        ("99 %", theirs, 0.99),
        ("median; limit: an echo in bare trio", echoed, 0.5),
    )
    for name, limit, share in sides:
        yield row(
            f"send to handler, 100 messages/s, {name}",
            "ms",
            [percentile(each, share) for each in ours],
            [percentile(each, share) for each in limit],
            LATENCY_MESSAGES,
            smaller_is_better=True,
        )
    sent, in_asyncio, blocking = turns(
        rounds,
        partial(run, one_by_one, at, BODY, ONE_BY_ONE),
        partial(redis_one_by_one_in_asyncio, port, ONE_BY_ONE),
        partial(redis_one_by_one, port, ONE_BY_ONE),
    )
    for client, of_redis in (("asyncio", in_asyncio), ("blocking", blocking)):
        name = f"send, one in flight, median; Redis: {client} client"
        yield row(name, "ms", sent, of_redis, ONE_BY_ONE, smaller_is_better=True)


def rate_rows(at: Cluster, port: int, n: int, rounds: int) -> Iterator[Row]:
    sends: tuple[tuple[str, int, Callable[[], float]], ...] = (
        (f"awaited sends, trio, {TASKS:,} tasks", 2 * n, lambda: run(awaited, at, BODY, 2 * n, TASKS, batching=True)),
        (f"awaited sends, asyncio, {TASKS:,} tasks", n, lambda: asyncio.run(awaited_in_asyncio(at, n, TASKS))),
        ("awaited sends, asyncio, 64 tasks", n, lambda: asyncio.run(awaited_in_asyncio(at, n, 64))),
        ("send_nowait, trio", 4 * n, partial(run, nowait, at, BODY, 4 * n)),
        ("send_many", 6 * n, partial(run, send_many, at, TOPIC, BODY, 6 * n)),
    )
    *ours, events, theirs = turns(
        rounds,
        *[measure for _, _, measure in sends],
        partial(trio.run, bare_events, 4 * n, TASKS),
        partial(redis_pipelined, port, 2 * n),
    )
    for (name, count, _), figures in zip(sends, ours, strict=True):
        yield row(name, "msg/s", figures, theirs, count)
    yield row(f"{sends[0][0]}; limit: a bare event for each", "msg/s", ours[0], events, 2 * n)
    read = in_turn(rounds, partial(run, pull, at, TOPIC, 4 * n), partial(redis_read, port, 4 * n))
    yield row("message objects, read from the start", "msg/s", *read, 4 * n)


def rows(n: int, rounds: int) -> Iterator[Row]:
    with redis_server() as port, cluster() as at:
        for topic in (TOPIC, LATENCY_TOPIC):
            trio.run(make_topic, at, topic, QUEUES)
        yield from latency_rows(at, port, rounds)
        yield from rate_rows(at, port, n, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=40_000, help="messages of the sends; others take multiples")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.n, arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
