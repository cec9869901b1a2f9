"""Which queues many sends at once use, and in how many requests: the lane alone, with answers that the test gives."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import MappingProxyType

import pytest
import trio
import trio.testing

from skylark.mqcommon.message.batch import decode_batch
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.channel import Answered
from skylark.remoting.protocol.command import Command
from skylark.sdk.producer import Producer
from skylark.sdk.producer.lane import SLOTS_PER_BROKER, Lane
from skylark.sdk.routes import TopicRoute


class Wire:
    """Instead of connections: keeps requests until the test answers them."""

    def __init__(self) -> None:
        self.open: list[tuple[str, Command, Answered]] = []
        self.sent: list[tuple[tuple[str, int], int]] = []
        self.answers_at_once = False

    def connected(self, addr: str) -> bool:
        return True

    def broker_name_at(self, addr: str) -> str:
        return ""

    def prepare(self, addr: str, command: Command) -> None:
        assert len([one for one in self.open if one[0] == addr]) < SLOTS_PER_BROKER

    def submit(self, addr: str, command: Command, timeout_ms: float, answered: Answered) -> None:
        assert command.ext is not None
        count = len(decode_batch(command.body)[0]) if command.ext["m"] else 1
        self.sent.append(((command.ext["n"], command.ext["e"]), count))
        self.open.append((addr, command, answered))

    def flush(self, addr: str) -> None:
        pass

    def answer(self, number: int) -> None:
        _, command, answered = self.open.pop(number)
        assert command.ext is not None
        count = len(decode_batch(command.body)[0]) if command.ext["m"] else 1
        ids = ",".join(["7F00000100002A9F0000000000000000"] * count)
        answered(command.respond(ext={"msgId": ids, "queueId": command.ext["e"], "queueOffset": 0}))


def route(brokers: int, queues: int) -> TopicRoute:
    names = [f"broker-{number}" for number in range(brokers)]
    at = {f"{name}:1": tuple(MessageQueue("t", name, number) for number in range(queues)) for name in names}
    every = tuple(queue for found in at.values() for queue in found)
    return TopicRoute("t", {name: {0: f"{name}:1"} for name in names}, every, every, MappingProxyType(at))


@asynccontextmanager
async def lane_of(monkeypatch: pytest.MonkeyPatch, brokers: int, queues: int, seed: int) -> AsyncIterator[tuple]:
    """A producer whose requests go to a `Wire`."""
    wire = Wire()
    async with Producer("127.0.0.1:1", start_timeout_ms=None) as producer:
        producer._random.seed(seed)
        producer._client.instance.routes.put(route(brokers, queues))
        with monkeypatch.context() as patch:
            patch.setattr(producer, "remoting", wire)
            yield producer, wire


async def send_at_once(producer: Producer, wire: Wire, count: int, random: Random) -> None:
    """``count`` sends at once, whose requests are answered in any order."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(producer.send, Message("t", b"x"))
        await answer_all(wire, count, random)


async def answer_all(wire: Wire, count: int, random: Random) -> None:
    before = sum(number for _, number in wire.sent)
    while sum(number for _, number in wire.sent) < before + count or wire.open:
        await trio.testing.wait_all_tasks_blocked()
        wire.answer(random.randrange(len(wire.open)))


@pytest.mark.parametrize("seed", range(5))
async def test_a_thousand_sends_at_once_use_all_queues_in_as_many_requests(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    async with lane_of(monkeypatch, 2, 4, seed) as (producer, wire):
        await send_at_once(producer, wire, 1_000, Random(seed))
        in_queue: Counter[tuple[str, int]] = Counter()
        for queue, count in wire.sent:
            in_queue[queue] += count
        assert sum(in_queue.values()) == 1_000
        assert len(wire.sent) == 8
        # A broker that answers earlier than the other may get one request more than its share, and repeats a queue.
        assert len(in_queue) >= 6 and max(in_queue.values()) <= 250


async def test_brokers_that_answer_in_turn_share_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    class InTurn(Random):
        def randrange(self, *args: int) -> int:
            return 0

    async with lane_of(monkeypatch, 2, 4, 1) as (producer, wire):
        await send_at_once(producer, wire, 1_000, InTurn())
        assert sorted(count for _, count in wire.sent) == [125] * 8
        assert len({queue for queue, _ in wire.sent}) == 8


@pytest.mark.parametrize(("count", "most"), [(1, 1), (60, 1), (200, 4), (1_000, 16)])
async def test_few_sends_are_not_cut_into_small_requests(
    monkeypatch: pytest.MonkeyPatch, count: int, most: int
) -> None:
    async with lane_of(monkeypatch, 2, 500, 3) as (producer, wire):
        await send_at_once(producer, wire, count, Random(1))
        assert len(wire.sent) <= most


async def test_what_gathers_while_requests_are_in_flight_still_travels_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks that send one message after another: requests do not become small, and each goes to the next queue."""
    async with lane_of(monkeypatch, 2, 4, 5) as (producer, wire):
        random = Random(5)

        async def work() -> None:
            for _ in range(10):
                await producer.send(Message("t", b"x"))

        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(work)
            await answer_all(wire, 10_000, random)
        assert len(wire.sent) < 100
        assert {queue for queue, _ in wire.sent} == {(f"broker-{n}", each) for n in range(2) for each in range(4)}


async def test_sends_one_after_another_go_round_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lane_of(monkeypatch, 2, 4, 6) as (producer, wire):
        for _ in range(24):
            await send_at_once(producer, wire, 1, Random(1))
        assert set(Counter(queue for queue, _ in wire.sent).values()) == {3}


@pytest.mark.parametrize(("count", "used"), [(20_000, 8), (2_000, 8), (1_000, 4), (100, 1)])
@pytest.mark.parametrize("seed", range(3))
async def test_send_many_uses_all_queues(monkeypatch: pytest.MonkeyPatch, count: int, used: int, seed: int) -> None:
    async with lane_of(monkeypatch, 2, 4, seed) as (producer, wire):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_many, "t", [b"x"] * count)
            await answer_all(wire, count, Random(seed))
        in_queue = Counter(queue for queue, _ in wire.sent)
        assert sum(number for _, number in wire.sent) == count
        # Brokers are in step as far as they answer alike.
        assert len(in_queue) >= used - 2 and len(wire.sent) <= max(-(-count // 1_000), used)


async def test_lanes_of_one_queue_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lane_of(monkeypatch, 2, 4, 7) as (producer, wire):
        queue = MessageQueue("t", "broker-1", 2)
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(lambda: producer.send(Message("t", b"x"), queue=queue))
            await answer_all(wire, 300, Random(1))
        assert {where for where, _ in wire.sent} == {("broker-1", 2)}
        assert isinstance(producer._open_lanes[queue], Lane)
