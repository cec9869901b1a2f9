"""What several brokers of one conf file carry: sends to 1, 2, ... instances, up to the cores there are.

    python -m bench.instances [--json] [--rounds 5] [--n 100000] [--most N]

Each round starts one `broker` with each number of instances in turn, and sends --n messages of 128 B to every instance,
each in a request of its own, 256 in flight. The load is made by one process for each instance, which sends frames that
were encoded before and only counts the answers, so the load takes as little of the brokers' cores as possible on one
machine: the other rows have the processor time of both. The limit is one instance in the same run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from bench.harness import BROKER, Row, row, show, turns
from bench.traffic import QUEUES, TOPIC, pipeline, send_frames
from scripts.daemons import HOST, POLL_S, broker_daemon, free_port, serving
from skylark import Admin
from skylark.broker.instances import STRIDE
from skylark.remoting.protocol.requests.topics import TopicConfig

BODY = bytes(128)
WINDOW = 256
OPTIONS = ("--mapped-file-size-commit-log", str(1 << 28), "--max-index-num", "1000000")


def load(addr: str, broker: str, count: int) -> None:
    """One process of the load. Prints a line when it is ready, waits for one, sends, and prints its times."""
    frames = send_frames(count, BODY, broker)
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu_s = time.monotonic(), time.process_time()
    trio.run(pipeline, addr, frames, WINDOW, b"queueOffset")
    print(began, time.monotonic(), time.process_time() - cpu_s, flush=True)


def cpu_of(pids: list[int]) -> float:
    """Processor time of these processes so far, and of their children that have ended, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    listed = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(text) for text in " ".join(listed).split()]


async def make_topics(addrs: list[str]) -> None:
    async with Admin() as admin:
        for addr in addrs:
            await admin.create_topic(addr, TopicConfig(TOPIC, QUEUES, QUEUES))


class Measured(NamedTuple):
    """Messages a second of all instances, and processor time a message of the brokers and of the load."""

    rate: float
    brokers_us: float
    load_us: float


def measure(instances: int, count: int) -> Measured:
    with tempfile.TemporaryDirectory() as home:
        port = free_port()
        daemon = broker_daemon(Path(home), BROKER, "", port, *OPTIONS, "--broker-instances", str(instances))
        names = [BROKER] if instances == 1 else [f"{BROKER}-{number}" for number in range(instances)]
        addrs = [f"{HOST}:{port + STRIDE * number}" for number in range(instances)]
        with serving(daemon):
            while instances > 1 and b" brokers serve" not in daemon.logged:
                time.sleep(POLL_S)
            trio.run(make_topics, addrs)
            brokers = children(daemon.pid) if instances > 1 else [daemon.pid]
            loads = [
                subprocess.Popen(
                    [sys.executable, "-m", "bench.instances", "--load", addr, name, "--n", str(count)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for addr, name in zip(addrs, names, strict=True)
            ]
            pipes = [(each.stdin, each.stdout) for each in loads]
            for _, out in pipes:
                assert out is not None
                out.readline()
            used = cpu_of(brokers)
            for into, _ in pipes:
                assert into is not None
                into.write("go\n")
                into.flush()
            times = [[float(text) for text in out.readline().split()] for _, out in pipes if out is not None]
            used = cpu_of(brokers) - used
            for each in loads:
                each.wait()
    span = max(end for _, end, _ in times) - min(began for began, _, _ in times)
    messages = count * instances
    return Measured(messages / span, used / messages * 1e6, sum(cpu for _, _, cpu in times) / messages * 1e6)


def main(rounds: int, count: int, most: int) -> Iterator[Row]:
    numbers = range(1, most + 1)
    found = turns(rounds, *[partial(measure, number, count) for number in numbers])
    one = found[0]
    for number, several in zip(numbers, found, strict=True):
        what = f"{number} instance{'s' if number > 1 else ''}"
        yield row(f"{what}, 128 B sends", "msgs/s", [each.rate for each in several], [each.rate for each in one], count)
        yield row(
            f"{what}, a broker's processor time a message",
            "us",
            [each.brokers_us for each in several],
            [each.brokers_us for each in one],
            count,
            smaller_is_better=True,
        )
        yield row(
            f"{what}, the load's",
            "us",
            [each.load_us for each in several],
            [each.load_us for each in one],
            count,
            smaller_is_better=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--most", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--load", nargs=2, metavar=("ADDR", "BROKER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        addr, name = arguments.load
        load(addr, name, arguments.n)
    else:
        show(main(arguments.rounds, arguments.n, arguments.most), arguments.json)
