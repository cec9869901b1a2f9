"""Simple consumers and brokers are killed with -9 at random, again and again.

Every acknowledged send is delivered; messages that a consumer forgets come again, and a message whose
acknowledgement was answered in time does not.
"""

from pathlib import Path
from random import Random

import pytest
import trio

from skylark import Message, Producer, SendFailed
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.chaos.popper import INVISIBLE_MS, Line, is_forgotten, parse
from tests.e2e.chaos.programs import Programs
from tests.support.daemons import SMALL, Cluster, make_topic, running, start
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC, GROUP = "pops", "poppers"
CONSUMERS = 2
SENDS_A_ROUND = 100
END_TIMEOUT_S = 120


class Poppers(Programs):
    """The consumers, and what they have got."""

    def lines(self) -> list[Line]:
        return [line for data in self.written() for line in parse(data)]

    def delivered(self) -> set[str]:
        """Messages that came; a forgotten message counts only if it came again."""
        found = [line for line in self.lines() if line.kind != "done"]
        return {line.body for line in found if line.kind == "again" or not is_forgotten(line.body)}


async def send(producer: Producer, numbers: range, acked: set[str]) -> None:
    """Send all ``numbers`` at once; messages that a killed broker may have stored do not count."""

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
        poppers.kill(random.choice(poppers.running))
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


@pytest.mark.fault("clients", "simple consumers and brokers are killed", "single")
@pytest.mark.parametrize("rounds", [6, pytest.param(500, marks=pytest.mark.nightly)])
async def test_popped_messages_come_back_when_nobody_acknowledges(tmp_path: Path, seed: int, rounds: int) -> None:
    random, acked = Random(seed), set[str]()
    # A send that may have been stored is not repeated: a second copy would be taken for a second delivery.
    async with running(tmp_path, brokers=2, options=SMALL) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        poppers = Poppers(tmp_path, "popper", cluster.nameserver, TOPIC, GROUP)
        try:
            for _ in range(CONSUMERS):
                poppers.start()
            async with Producer(cluster.nameserver, retries=0) as producer:
                for number in range(rounds):
                    await send(producer, range(number * SENDS_A_ROUND, (number + 1) * SENDS_A_ROUND), acked)
                    await act(cluster, poppers, random)
            try:
                await until(lambda: acked <= poppers.delivered(), "all messages are delivered", END_TIMEOUT_S)
            finally:
                report(rounds, acknowledged=len(acked), lost=len(acked - poppers.delivered()))
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
