"""The worst sends while a consumer reads a log that is not in memory, beside the same sends while nobody reads.

    python -m bench.cold_read [--json] [--mib 4096] [--rounds N]

A log of ``--mib`` MiB is written through a broker. Then, each round: the broker stops, its files are dropped from the
page cache, it starts again; sends without a reader are measured, then sends while another process pulls the log from
its start as fast as it can. "ours" is with the reader, "limit" without; the limit of the reader's rate is a plain
read of the same files, also uncached. The kernel counts the bytes that the broker read from disk, and its page faults
that waited for the disk.
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import trio

from bench.harness import BROKER, Cluster, Row, cluster_at, row, show
from bench.traffic import TOPIC, make_topic
from skylark import Producer, PullConsumer
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue

# The topic of the messages that are sent while the log is read.
SENDS = "sends"
BODY_BYTES = 1024
RECORD_BYTES = BODY_BYTES + 155
SENT_BODY = bytes(128)
QUIET_S = 5.0
RATE = 1_000
READ_BYTES = 1024 * 1024
MIB = 1024 * 1024
BROKER_OPTIONS = ("--mapped-file-size-commit-log", str(1024 * MIB), "--max-index-num", "5000000")

Sends = Callable[[Producer, list[float], trio.Event], Awaitable[None]]


@dataclass(frozen=True)
class Reading:
    """MB/s, MB given, MB of that from disk, and the broker's page faults that waited for the disk."""

    rate: float
    given: float
    from_disk: float
    faults: int


# --- the reader, a process of its own


async def read_queue(consumer: PullConsumer, mq: MessageQueue, end: int) -> int:
    got, offset = 0, await consumer.min_offset(mq)
    while offset < end:
        pulled = await consumer.pull_bytes(mq, offset, max_count=32_768, max_bytes=READ_BYTES)
        got, offset = got + len(pulled.data), pulled.next_offset
    return got


async def read_all(nameserver: str) -> None:
    """Read all queues at once; prints bytes and seconds."""
    total = 0

    async def work(mq: MessageQueue, end: int) -> None:
        nonlocal total
        total += await read_queue(consumer, mq, end)

    async with PullConsumer(nameserver, heartbeat=False) as consumer:
        ends = {mq: await consumer.max_offset(mq) for mq in await consumer.message_queues(TOPIC)}
        print("ready", flush=True)
        sys.stdin.readline()
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for mq, end in ends.items():
                nursery.start_soon(work, mq, end)
        print(total, time.perf_counter() - started, flush=True)


# --- the sends


async def one_by_one(producer: Producer, times: list[float], over: trio.Event) -> None:
    while not over.is_set():
        started = time.perf_counter()
        await producer.send(Message(SENDS, SENT_BODY))
        times.append((time.perf_counter() - started) * 1000)


async def at_a_rate(producer: Producer, times: list[float], over: trio.Event) -> None:
    """Times count from when a send was due, so a stall shows in all sends that were due in it."""

    async def send(due: float) -> None:
        await producer.send(Message(SENDS, SENT_BODY))
        times.append((trio.current_time() - due) * 1000)

    async with trio.open_nursery() as nursery:
        due = trio.current_time()
        while not over.is_set():
            nursery.start_soon(send, due)
            due += 1 / RATE
            await trio.sleep_until(due)


def with_reader(at: Cluster, sends: Sends) -> tuple[list[float], list[float], Reading]:
    """Times of the sends without and with the reader, which is a process of its own."""
    command = [sys.executable, "-m", "bench.cold_read", "--reader", at.nameserver]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        return trio.run(quiet_and_cold, at, sends, reader)


async def quiet_and_cold(
    at: Cluster, sends: Sends, reader: subprocess.Popen[str]
) -> tuple[list[float], list[float], Reading]:
    quiet: list[float] = []
    cold: list[float] = []
    assert reader.stdout is not None and reader.stdin is not None
    async with Producer(at.nameserver) as producer:
        await trio.to_thread.run_sync(reader.stdout.readline)
        with trio.move_on_after(0.5):  # warms up
            await sends(producer, [], trio.Event())
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sends, producer, quiet, over)
            await trio.sleep(QUIET_S)
            over.set()
        disk, faults = read_bytes(at.broker_pid), major_faults(at.broker_pid)
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sends, producer, cold, over)
            reader.stdin.write("go\n")
            reader.stdin.flush()
            total, seconds = (await trio.to_thread.run_sync(reader.stdout.readline)).split()
            over.set()
    disk, faults = read_bytes(at.broker_pid) - disk, major_faults(at.broker_pid) - faults
    return quiet, cold, Reading(int(total) / float(seconds) / 1e6, int(total) / 1e6, disk / 1e6, faults)


def read_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def major_faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9])


# --- the log, and how it gets cold


async def fill(at: Cluster, mib: int) -> None:
    await make_topic(at)
    body = os.urandom(BODY_BYTES)
    async with Producer(at.nameserver) as producer:
        for _ in range(mib // 64):
            await producer.send_many(TOPIC, [body] * (64 * MIB // RECORD_BYTES))


def drop(home: str) -> float:
    """Drop the store's files from the page cache, which works while no process maps them; MB/s of a cold read."""
    paths = [path for path in Path(home, BROKER).rglob("*") if path.is_file() and path.stat().st_size]
    done = seconds = 0.0
    for path in paths:
        fd = os.open(path, os.O_RDWR)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if path.parent.name == "commitlog" and not done:
                started = time.perf_counter()
                while data := os.pread(fd, READ_BYTES, int(done)):
                    done += len(data)
                seconds = time.perf_counter() - started
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return done / seconds / 1e6


def share(times: list[float], of: float) -> float:
    return sorted(times)[min(int(len(times) * of), len(times) - 1)]


def rows(mib: int, rounds: int) -> Iterator[Row]:
    gc.disable()  # ours: the times are the broker's
    with tempfile.TemporaryDirectory() as home:
        with cluster_at(home, BROKER_OPTIONS) as at:
            trio.run(fill, at, mib)
        readings: list[Reading] = []
        plain: list[float] = []
        for name, sends in (("one in flight", one_by_one), (f"{RATE:,} a second", at_a_rate)):
            measured = []
            for _ in range(rounds):
                plain.append(drop(home))
                with cluster_at(home, BROKER_OPTIONS) as at:
                    quiet, cold, reading = with_reader(at, sends)
                measured.append((quiet, cold))
                readings.append(reading)
            for of, label in ((0.5, "median"), (0.99, "99 %"), (0.999, "99.9 %"), (1, "worst")):
                limit = [share(quiet, of) for quiet, _ in measured]
                ours = [share(cold, of) for _, cold in measured]
                count = int(median(len(cold) for _, cold in measured))
                yield row(f"send 128 B, {name}, {label}", "ms", ours, limit, count, smaller_is_better=True)
        yield row("the reader", "MB/s", [reading.rate for reading in readings], plain, mib)
        from_disk, given = [reading.from_disk for reading in readings], [reading.given for reading in readings]
        yield row("read from disk by the broker, of what it gave", "MB", from_disk, given, mib)
        faults, pages = [float(reading.faults) for reading in readings], [size * 1e6 / 4096 for size in given]
        yield row("page faults that waited for the disk, of pages given", "pages", faults, pages, mib)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=4096, help="size of the log that is read")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        trio.run(read_all, arguments.reader)
    else:
        show(rows(arguments.mib, arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
