"""How long mqadmin takes to show all groups, and all topics with their groups, of one broker.

    python -m bench.progress [--json] [--topics 200] [--groups 2000]

Each group is connected, reads one topic, and has committed an offset there. The figures are seconds of a whole command,
its start included; the limit is mqadmin's start with a request that is answered at once.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import trio

from bench.harness import Cluster, Row, cluster, row, show
from skylark import Admin, Client, Message, Producer, PullConsumer
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig

READY_S = 120
COMMANDS = ("consumerProgress", "statsAll")
CHEAP = "clusterList"
# A heartbeat names at most 1,000 groups.
GROUPS_OF_CLIENT = 100


async def fill(
    at: Cluster, topics: int, groups: int, measured: trio.Event, *, task_status: trio.TaskStatus[None]
) -> None:
    """Make topics and groups, whose members stay connected until ``measured``."""
    names = [f"t-{number:05}" for number in range(topics)]
    async with Admin(at.nameserver, timeout_ms=60_000) as admin:
        await admin.create_topics(at.broker, [TopicConfig(name, 1, 1) for name in names])
        await admin.create_groups(at.broker, [SubscriptionGroupConfig(f"g-{number:05}") for number in range(groups)])
        with trio.fail_after(READY_S):
            while not set(names) <= set(await admin.topic_list()):
                await trio.lowlevel.checkpoint()
    async with Producer(at.nameserver) as producer:
        for name in names:
            await producer.send(Message(name, b"x"))
    async with AsyncExitStack() as members:
        for number in range(groups):
            if number % GROUPS_OF_CLIENT == 0:
                client = await members.enter_async_context(Client(at.nameserver))
            member = PullConsumer(client, group=f"g-{number:05}", start_timeout_ms=None)
            await members.enter_async_context(member)
            (queue,) = await member.message_queues(names[number % topics])
            await member.pull(queue, 0)
            await member.commit_offset(queue, 1)
        async with Admin(at.nameserver) as admin:
            with trio.fail_after(READY_S):
                while sum(name.startswith("%RETRY%g-") for name in await admin.topic_list()) < groups:
                    await trio.lowlevel.checkpoint()
        task_status.started()
        await measured.wait()


def seconds_of(at: Cluster, command: str) -> tuple[float, int]:
    """How long a command took, and how many lines it printed."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "skylark.mqadmin", command, "-n", at.nameserver],
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - began, done.stdout.count("\n")


async def measure(at: Cluster, topics: int, groups: int) -> dict[str, float]:
    found: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        measured = trio.Event()
        await nursery.start(fill, at, topics, groups, measured)
        for command in (CHEAP, *COMMANDS):
            found[command], lines = await trio.to_thread.run_sync(seconds_of, at, command)
            if command != CHEAP and lines < groups:
                raise RuntimeError(f"{command} printed {lines} lines for {groups} groups")
        measured.set()
    return found


def rows(topics: int, groups: int) -> Iterator[Row]:
    with cluster() as at:
        found = trio.run(measure, at, topics, groups)
    for command in COMMANDS:
        name = f"mqadmin {command}, {groups:,} groups, {topics:,} topics"
        yield row(name, "s", [found[command]], [found[CHEAP]], groups, smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Commands that show all groups")
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.topics, arguments.groups), arguments.json)


if __name__ == "__main__":
    main()
