"""How much hostile peers slow down honest clients: sends beside hostile peers, and the same sends alone, in turn.

    python -m bench.guard_limits [--messages 100000] [--rounds 3] [--idle 5000] [--slow 200] [--flood 500] [--json]

The hostile peers are a process of their own (bench/hostile.py), the broker has its defaults. On two cores three
processes share them. The last row has the broker's memory: with hostile peers, and before they ever came.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import TOPIC, make_topic
from skylark import Producer
from skylark.mqcommon.message.message import Message

BODY = b"x" * 128
TASKS = 1_000
MIB = 1024 * 1024


@contextmanager
def hostile(addr: str, idle: int, slow: int, flood: int) -> Iterator[None]:
    """Hostile peers of ``addr`` within the block; prints to stderr what they sent and how many were closed."""
    command = [sys.executable, "-m", "bench.hostile", addr, str(idle), str(slow), str(flood)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    try:
        assert process.stdout.readline() == "ready\n"
        started = time.perf_counter()
        yield
        process.stdin.close()
        bad_frames, closed = map(int, process.stdout.readline().split())
        a_second = bad_frames / (time.perf_counter() - started)
        print(f"  {a_second:,.0f} bad frames a second; {closed} idle or slow peers closed", file=sys.stderr)
    finally:
        process.kill()
        process.wait()


async def sends(at: Cluster, count: int, *, batching: bool) -> float:
    """Honest sends a second, by many tasks at once."""
    left = count

    async def work(producer: Producer) -> None:
        nonlocal left
        while left:
            left -= 1
            await producer.send(Message(TOPIC, BODY))

    async with Producer(at.nameserver, batching=batching) as producer:
        await producer.send(Message(TOPIC, BODY))
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(work, producer)
        return count / (time.perf_counter() - started)


def resident(pid: int) -> float:
    """Anonymous memory of a process in MiB: without the pages of its store's files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no RssAnon of {pid}")


def rows(messages: int, rounds: int, idle: int, slow: int, flood: int) -> Iterator[Row]:
    """All figures; the limit is the same without hostile peers."""
    with cluster() as at:
        trio.run(make_topic, at)
        held: list[float] = []

        def beside(idle: int, slow: int, flood: int, *, batching: bool) -> float:
            with hostile(at.broker, idle, slow, flood):
                figure = trio.run(partial(sends, at, messages, batching=batching))
                held.append(resident(at.broker_pid))
            return figure

        trio.run(partial(sends, at, messages, batching=True))
        before = resident(at.broker_pid)
        for name, peers in (
            (f"{idle} idle", (idle, 0, 0)),
            (f"{slow} slow", (0, slow, 0)),
            (f"{flood} bad frames/s", (0, 0, flood)),
            ("all of them", (idle, slow, flood)),
        ):
            for kind, batching in (("batched", True), ("one a request", False)):
                ours = partial(beside, *peers, batching=batching)
                alone = partial(trio.run, partial(sends, at, messages, batching=batching))
                yield row(f"sends beside {name}, {kind}", "messages/s", *in_turn(rounds, ours, alone), messages)
        yield row("broker's memory", "MiB", [max(held)], [before], len(held), smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=5_000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--flood", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    show(rows(args.messages, args.rounds, args.idle, args.slow, args.flood), args.json)


if __name__ == "__main__":
    main()
