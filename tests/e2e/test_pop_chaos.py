"""Simple consumers and brokers are killed with -9 at random, again and again.

Every acknowledged send is delivered, those that a consumer forgets come again, and one whose acknowledgement was
answered in time does not.
"""

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
import trio

from remoting.protocol.requests.topics import TopicConfig
from scripts.daemons import ROOT
from sdk import Message, Producer, SendFailed
from tests.e2e.chaos.popper import INVISIBLE_MS, Line, is_forgotten, parse
from tests.support.daemons import SMALL, Cluster, make_topic, running, start
from tests.support.waiting import until

TOPIC, GROUP = "pops", "poppers"
CONSUMERS = 2
SENDS_A_ROUND = 100
END_TIMEOUT_S = 120


class Poppers:
    """The consumers, and what they have got."""

    def __init__(self, nameserver: str, home: Path) -> None:
        self._nameserver = nameserver
        self._home = home
        self._paths: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        path = self._home / f"popper-{len(self._paths)}"
        path.touch()
        self._paths.append(path)
        command = [sys.executable, "-m", "tests.e2e.chaos.popper", self._nameserver, TOPIC, GROUP, str(path)]
        with path.with_suffix(".log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log))

    def kill(self, random: Random) -> None:
        """kill -9 of one that runs."""
        process = random.choice([process for process in self._processes if process.poll() is None])
        process.kill()
        process.wait()

    def failures(self) -> list[str]:
        """What consumers logged that ended by themselves."""
        return [
            path.with_suffix(".log").read_text("utf-8", errors="replace")[-3000:]
            for path, process in zip(self._paths, self._processes, strict=True)
            if process.poll() not in (None, -9)
        ]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def lines(self) -> list[Line]:
        return [line for path in self._paths for line in parse(path.read_bytes())]

    def delivered(self) -> set[str]:
        """Messages that came, and those that are forgotten only if they came again."""
        found = [line for line in self.lines() if line.kind != "done"]
        return {line.body for line in found if line.kind == "again" or not is_forgotten(line.body)}


async def send(producer: Producer, numbers: range, acked: set[str]) -> None:
    """Send so many at once; what a broker that is killed may have stored does not count."""

    async def one(body: str) -> None:
        try:
            await producer.send(Message(TOPIC, body.encode()))
        except SendFailed:
            return
        acked.add(body)

    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(one, f"m{number}")


async def act(cluster: Cluster, poppers: Poppers, random: Random) -> None:
    """Kill something, and start it again."""
    if random.random() < 0.5:
        poppers.kill(random)
        poppers.start()
        return
    broker = random.choice(cluster.brokers)
    broker.kill()
    await start(broker)


def came_again(lines: list[Line]) -> list[str]:
    """Messages that were acknowledged in time, and were popped after that."""
    done = {
        line.body: line.at_ns
        for line in lines
        if line.kind == "done" and line.at_ns < line.asked_ns + INVISIBLE_MS * 1_000_000
    }
    return [
        f"{line} after {done[line.body]}"
        for line in lines
        if line.kind != "done" and line.body in done and line.asked_ns > done[line.body]
    ]


@pytest.mark.parametrize(
    "seconds", [4, pytest.param(300, marks=pytest.mark.nightly)], ids=["4 seconds", "five minutes"]
)
async def test_popped_messages_come_back_when_nobody_acknowledges(tmp_path: Path, seed: int, seconds: int) -> None:
    random, acked, number = Random(seed), set[str](), 0
    # A send that may have been stored is not repeated: a second copy would be taken for a second delivery.
    async with running(tmp_path, brokers=2, options=SMALL) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        poppers = Poppers(cluster.nameserver, tmp_path)
        try:
            for _ in range(CONSUMERS):
                poppers.start()
            async with Producer(cluster.nameserver, retries=0) as producer:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    await send(producer, range(number, number + SENDS_A_ROUND), acked)
                    number += SENDS_A_ROUND
                    await act(cluster, poppers, random)
            await until(lambda: acked <= poppers.delivered(), "all messages are delivered", END_TIMEOUT_S)
        finally:
            poppers.end()
        assert poppers.failures() == []
        assert len(acked) > SENDS_A_ROUND
        lines = poppers.lines()
    assert came_again(lines) == []


def test_a_message_that_came_again_is_found() -> None:
    second = 1_000_000_000
    got, done = Line("got", 0, 1, "m"), Line("done", 0, second, "m")
    assert came_again([got, done]) == []
    assert came_again([got, done, Line("got", second - 1, second + 5, "m")]) == []
    assert len(came_again([got, done, Line("got", second + 1, second + 5, "m")])) == 1
    assert came_again([got, done._replace(at_ns=3 * second), Line("got", 4 * second, 4 * second, "m")]) == []
