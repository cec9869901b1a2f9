"""Producers that compress, and consumers that read what they sent, against a broker of ours in this process."""

import random
import threading
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skylark import ConsumeFrom, Producer, PullConsumer, PushConsumer, aio, blocking
from skylark.mqcommon.arguments import INT_MAX
from skylark.mqcommon.errors import InvalidArgument, SendFailed
from skylark.mqcommon.message.compression import COMPRESSIONS, decompressed
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.sdk.producer import packing
from skylark.sdk.producer.packing import COMPRESSION_LEVEL, THREAD_BYTES, PackedMessage, Packing
from tests.support.clock import passing_time
from tests.support.in_process import Servers
from tests.support.waiting import DEADLINE_S

TOPIC = "one"
PACKAGES = {"zlib": "zlib", "lz4": "lz4.frame", "zstd": "zstandard"}


async def stored(cluster: Servers) -> list[MessageExt]:
    async with PullConsumer(cluster.nameserver) as consumer:
        (mq,) = await consumer.message_queues(TOPIC)
        end = await consumer.max_offset(mq)
        async with consumer.stream(mq, 0, end) as batches:
            return [message async for batch in batches for message in batch]


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
async def test_large_bodies_are_compressed_and_read_by_all_consumers(cluster: Servers, name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    bodies = [b"small", b"x" * 4_096, b"y" * 4_097, b"z" * (THREAD_BYTES + 1)]
    async with Producer(cluster.nameserver, compression=name) as producer:
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(producer.send, Message(TOPIC, body, tags="t", properties={"a": "b"}))
        await producer.send_oneway(Message(TOPIC, b"o" * 5_000))
        got: list[bytes] = []
        enough = trio.Event()

        async def handle(message: MessageExt) -> None:
            got.append(message.body)
            if len(got) == 5:
                enough.set()

        async with PushConsumer(cluster.nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle,
                                consume_from=ConsumeFrom.FIRST_OFFSET):  # fmt: skip
            with trio.fail_after(DEADLINE_S):
                await enough.wait()
    assert sorted(got) == sorted([*bodies, b"o" * 5_000])
    messages = {len(message.body): message for message in await stored(cluster)}
    flags = {size: message.sys_flag for size, message in messages.items()}
    packed = COMPRESSIONS[name]
    assert flags == {5: 0, 4_096: 0, 4_097: packed, 5_000: packed, THREAD_BYTES + 1: packed}
    assert messages[4_097].store_size < 500
    assert (messages[4_097].tags, messages[4_097].properties["a"]) == ("t", "b")

    def blocking_side() -> list[bytes]:
        with blocking.PullConsumer(cluster.nameserver) as consumer:
            (mq,) = consumer.message_queues(TOPIC)
            return sorted(message.body for message in consumer.pull(mq, 0).messages)

    assert await trio.to_thread.run_sync(blocking_side) == sorted(got)


async def test_what_does_not_get_smaller_is_sent_as_it_is(cluster: Servers) -> None:
    body = random.Random(1).randbytes(10_000)
    async with Producer(cluster.nameserver, compression="zlib", compress_over_bytes=100) as producer:
        await producer.send(Message(TOPIC, body))
        await producer.send(Message(TOPIC, b"x" * 101))
    found = await stored(cluster)
    assert [(message.sys_flag, len(message.body)) for message in found] == [(0, 10_000), (0x301, 101)]


async def test_a_selector_sees_the_message_as_it_was_given(cluster: Servers) -> None:
    async with Producer(cluster.nameserver, compression="zlib") as producer:
        message, seen = Message(TOPIC, b"x" * 5_000), []
        await producer.send(message, selector=lambda queues, given: (seen.append(given), queues[0])[1])
        assert seen == [message]


@pytest.mark.parametrize("cls", [Producer, blocking.Producer, aio.Producer])
def test_mistakes_are_raised_where_they_are_made(cls: type) -> None:
    with pytest.raises(InvalidArgument, match="compression must be one of"):
        cls("127.0.0.1:1", compression="gzip")
    with pytest.raises(TypeError, match="compression must be"):
        cls("127.0.0.1:1", compression=5)
    with pytest.raises(InvalidArgument, match="compress_over_bytes"):
        cls("127.0.0.1:1", compression="zlib", compress_over_bytes=-1)


OVER = 100
LARGE = THREAD_BYTES + 1


class Gates:
    """Compression in threads that waits until the test opens the gate of the body's first byte."""

    def __init__(self) -> None:
        self.gates: dict[int, threading.Event] = {}
        self.levels: list[int] = []

    def __call__(self, body: bytes, sys_flag: int, level: int) -> bytes:
        self.levels.append(level)
        if len(body) > THREAD_BYTES:
            self.gate(body[0]).wait(DEADLINE_S)
        return body[:1]

    def gate(self, number: int) -> threading.Event:
        return self.gates.setdefault(number, threading.Event())


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    made = Gates()
    # More threads than processors, so that each body of a test is in one.
    monkeypatch.setattr("skylark.sdk.runtime.os.cpu_count", lambda: 8)
    monkeypatch.setattr(packing, "compressed", made)
    yield made
    for number in range(20):
        made.gate(number).set()


def packing_of(told: Callable[[int], None] = lambda _: None, level: int = COMPRESSION_LEVEL) -> Packing:
    return Packing("zlib", OVER, level, INT_MAX, told)


def message(number: int, size: int) -> Message:
    return Message("t", bytes([number]) * size)


class Run:
    """Messages on their way, and in which order they went."""

    def __init__(self, nursery: trio.Nursery, told: Callable[[int], None] = lambda _: None) -> None:
        self.packing = packing_of(told)
        self.nursery = nursery
        self.passed: list[int] = []

    async def start(self, number: int, size: int = LARGE, *, is_ordered: bool = True) -> trio.CancelScope:
        scope = trio.CancelScope()

        async def pack() -> None:
            with scope:
                packed, _ = await self.packing.packed(message(number, size), 10.0, is_ordered=is_ordered)
                self.passed.append(packed.body[0])

        self.nursery.start_soon(pack)
        await trio.testing.wait_all_tasks_blocked()
        return scope

    async def until(self, count: int) -> None:
        while len(self.passed) < count:  # noqa: ASYNC110  what is waited for happens in threads
            await trio.sleep(0.001)


async def test_what_names_its_queue_keeps_its_order_and_others_do_not_wait(gates: Gates) -> None:
    told: list[int] = []
    async with trio.open_nursery() as nursery:
        run = Run(nursery, told.append)
        await run.start(1)
        await run.start(2)
        await run.start(3, 5)
        await run.start(4, 5, is_ordered=False)
        assert run.passed == [4]
        assert told[-1] == -1  # so the producer asks for every message, however small
        gates.gate(2).set()
        await trio.testing.wait_all_tasks_blocked()
        assert run.passed == [4]
        gates.gate(1).set()
        await run.until(4)
    assert run.passed == [4, 1, 2, 3]
    assert (told[0], told[-1]) == (OVER, OVER)


async def test_one_that_is_cancelled_lets_nobody_pass_those_before_it(gates: Gates) -> None:
    async with trio.open_nursery() as nursery:
        run = Run(nursery)
        await run.start(1)
        second = await run.start(2)
        await run.start(3, 5)
        second.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert run.passed == []
        gates.gate(1).set()
        await run.until(2)
        first = await run.start(5)
        await run.start(6, 5)
        first.cancel()
        await run.until(3)
    assert run.passed == [1, 3, 6]


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_its_time_ends_while_it_is_compressed(
    gates: Gates, is_ordered: bool, mock_clock: trio.testing.MockClock
) -> None:
    told: list[int] = []
    async with passing_time(mock_clock):
        with pytest.raises(SendFailed, match="message for t was not sent: its body was not compressed in time"):
            await packing_of(told.append).packed(message(1, LARGE), 0.5, is_ordered=is_ordered)
    assert told[-1] == OVER


async def test_the_time_that_it_took_is_gone(gates: Gates, mock_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def open_later() -> None:
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(2)
            gates.gate(1).set()

        packed, left_s = await packing_of().packed(message(1, LARGE), 5.0, is_ordered=False)
    assert (packed.body, left_s) == (b"\x01", pytest.approx(3.0, abs=0.01))


async def test_the_level_and_the_length_are_kept(gates: Gates) -> None:
    packed, _ = await packing_of(level=9).packed(message(1, 200), 1.0, is_ordered=False)
    assert isinstance(packed, PackedMessage)
    assert (packed.plain_bytes, gates.levels) == (200, [9])


def test_levels_that_do_not_exist_are_refused() -> None:
    for level in (0, 10):
        with pytest.raises(InvalidArgument, match="compression_level"):
            packing_of(level=level)


@given(
    bodies=st.lists(
        st.builds(lambda seed, times: seed * times, st.binary(min_size=1, max_size=99), st.integers(1, 2_000)),
        max_size=8,
    )
)
def test_messages_of_any_size_keep_their_order_and_bodies(bodies: list[bytes]) -> None:
    got: list[bytes] = []

    async def main() -> None:
        packing = packing_of()

        async def one(body: bytes) -> None:
            packed, _ = await packing.packed(Message("t", body), 60.0, is_ordered=True)
            sys_flag = packed.sys_flag if isinstance(packed, PackedMessage) else 0
            assert sys_flag == 0 or len(packed.body) < len(body)
            got.append(decompressed(packed.body, sys_flag) if sys_flag else packed.body)

        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(one, body)
                await trio.testing.wait_all_tasks_blocked(0)

    trio.run(main)
    assert got == bodies
