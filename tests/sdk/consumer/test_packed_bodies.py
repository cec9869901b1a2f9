"""Compressed bodies on every way to a consumer: they come whole, not in the loop, and a bad one hurts no other."""

import random
import threading
from collections.abc import Callable

import pytest
import trio

from skylark import (
    Admin,
    ConsumeFrom,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    aio,
    blocking,
)
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message import compression
from skylark.mqcommon.message import message as message_module
from skylark.mqcommon.message.compression import COMPRESSIONS, compressed, decompressed
from skylark.mqcommon.message.flags import COMPRESSED, COMPRESSION_MASK, TRANSACTION_COMMIT
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.sdk.consumer.decompression import INLINE_BYTES
from skylark.sdk.producer import packing
from skylark.sdk.testing import Cluster
from tests.sdk.fakes import until
from tests.support.in_process import Servers, until_known
from tests.support.waiting import DEADLINE_S

BITS = COMPRESSED | COMPRESSION_MASK
TOPIC = "one"


@pytest.fixture
def in_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of large bodies that were decompressed in the event loop of the test."""
    found: list[int] = []

    def noted(body: bytes, sys_flag: int, most: int | None = None) -> bytes:
        content = decompressed(body, sys_flag, most)
        if threading.current_thread() is threading.main_thread() and len(content) > INLINE_BYTES:
            found.append(len(content))
        return content

    monkeypatch.setattr(message_module, "decompressed", noted)
    return found


def bodies_of(seed: int) -> list[bytes]:
    """Half noise, half not, of sizes around those that matter."""
    chosen = random.Random(seed)
    sizes = [0, 1, 4_096, 4_097, 40_000, 70_000, 300_000, *(chosen.randrange(200_000) for _ in range(4))]
    return [chosen.randbytes(size // 2) + bytes([chosen.randrange(256)]) * (size - size // 2) for size in sizes]


async def pulled(nameserver: str, topic: str = TOPIC) -> list[MessageExt]:
    async with PullConsumer(nameserver) as consumer:
        (mq,) = await consumer.message_queues(topic)
        found: list[MessageExt] = []
        while more := (await consumer.pull(mq, len(found))).messages:
            found += more
        return found


async def pushed(nameserver: str, count: int, **options: object) -> list[bytes]:
    got: list[bytes] = []
    enough = trio.Event()

    def take(messages: list[MessageExt]) -> None:
        got.extend([message.body for message in messages])
        if len(got) >= count:
            enough.set()

    handler: dict[str, Callable[..., None]] = {"handler": lambda message: take([message])}
    if "batch_size" in options:
        handler = {"batch_handler": take}
    async with PushConsumer(
        nameserver, subscriptions={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET, **handler, **options
    ):
        await enough.wait()
    return got


async def test_every_way_gives_the_body_back(cluster: Servers, in_loop: list[int]) -> None:
    bodies, at = bodies_of(1), cluster.nameserver
    async with Producer(at, compression="zlib", compression_level=1) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body))
    stored = await pulled(at)
    assert [message.body for message in stored] == bodies
    flags = {message.sys_flag & BITS for message in stored}
    assert flags == {0, COMPRESSIONS["zlib"]}
    async with PullConsumer(at) as consumer:
        (mq,) = await consumer.message_queues(TOPIC)
        async with consumer.stream(mq, 0, len(bodies)) as batches:
            assert [message.body async for batch in batches for message in batch] == bodies
        consumer.assign([mq])
        consumer.seek(mq, 0)
        polled: list[bytes] = []
        while len(polled) < len(bodies):
            polled += [message.body for message in await consumer.poll()]
        assert polled == bodies
    assert await pushed(at, len(bodies), group="single", concurrency=1) == bodies
    assert await pushed(at, len(bodies), group="batch", concurrency=1, batch_size=4) == bodies
    assert await pushed(at, len(bodies), group="orderly", orderly=True) == bodies
    async with PushConsumer(
        at, group="stream", subscriptions={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as stream:
        iterated: list[bytes] = []
        async for message in stream:
            iterated.append(message.body)
            await message.ack()
            if len(iterated) == len(bodies):
                break
        assert iterated == bodies
    assert in_loop == []


async def test_other_threads_and_loops_get_them(cluster: Servers) -> None:
    bodies, at = bodies_of(4), cluster.nameserver
    async with Producer(at, compression="zlib") as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body))

    def in_threads() -> list[bytes]:
        got: list[bytes] = []
        enough = threading.Event()

        def handle(message: MessageExt) -> None:
            got.append(message.body)
            if len(got) == len(bodies):
                enough.set()

        with blocking.PushConsumer(
            at, group="threads", subscriptions={TOPIC: "*"}, handler=handle, concurrency=1,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ):  # fmt: skip
            assert enough.wait(DEADLINE_S)
        return got

    async def in_asyncio() -> tuple[list[bytes], list[bytes]]:
        import asyncio

        got: list[bytes] = []
        kept: list[bool] = []
        enough = asyncio.Event()

        async def handle(message: MessageExt) -> None:
            kept.append(message.has_content or not message.is_compressed)
            got.append(message.body)
            if len(got) == len(bodies):
                enough.set()

        subscribed = {"subscriptions": {TOPIC: "*"}, "consume_from": ConsumeFrom.FIRST_OFFSET}
        async with aio.PushConsumer(at, group="asyncio", handler=handle, concurrency=1, **subscribed):
            await asyncio.wait_for(enough.wait(), 20)
        assert all(kept)  # so the asyncio loop did not decompress them
        iterated: list[bytes] = []
        async with aio.PushConsumer(at, group="iterated", **subscribed) as stream:
            async for message in stream:
                iterated.append(message.body)
                await message.ack()
                if len(iterated) == len(bodies):
                    break
        return got, iterated

    def asyncio_thread() -> tuple[list[bytes], list[bytes]]:
        import asyncio

        return asyncio.run(in_asyncio())

    assert await trio.to_thread.run_sync(in_threads) == bodies
    assert await trio.to_thread.run_sync(asyncio_thread) == (bodies, bodies)


async def test_a_bad_body_is_the_failure_of_its_message_only(cluster: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is no zlib at all, the other holds more than a body may."""
    monkeypatch.setattr(compression, "MAX_CONTENT_BYTES", 1 << 20)
    flag = COMPRESSIONS["zlib"]
    good = [b"first" * 2_000, b"last" * 2_000]

    def broken(body: bytes, sys_flag: int, level: int) -> bytes:
        if body.startswith(b"junk"):
            return b"\xff" * 3_000
        return compressed(bytes(2 << 20) if body.startswith(b"bomb") else body, sys_flag, level)

    async with Producer(cluster.nameserver, compression="zlib") as producer:
        await producer.send(Message(TOPIC, good[0]))
        monkeypatch.setattr(packing, "compressed", broken)
        await producer.send(Message(TOPIC, b"junk" * 2_000))
        # Longer than what is sent instead of it.
        await producer.send(Message(TOPIC, b"bomb" * 50_000))
        monkeypatch.setattr(packing, "compressed", compressed)
        await producer.send(Message(TOPIC, good[1]))
    got: list[bytes] = []
    errors: list[str] = []

    def handle(message: MessageExt) -> None:
        try:
            got.append(message.body)
        except ProtocolError as error:
            errors.append(str(error))
            raise

    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle, max_reconsume_times=0,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        await until(lambda: (consumer.consumed, consumer.failed, consumer.cached) == (2, 2, 0))
    assert sorted(got) == sorted(good)
    assert sorted(errors) == [
        "the compressed body is cut short, or holds more than 1048576 bytes",
        "the compressed body is damaged: Error -3 while decompressing data: incorrect header check",
    ]
    # They are dead letters as they were stored, for whoever looks for the mistake.
    async with Admin(cluster.nameserver) as admin:
        await until_known(admin, "%DLQ%g")
    dead = await pulled(cluster.nameserver, "%DLQ%g")
    assert {message.sys_flag & BITS for message in dead} == {flag}
    assert b"\xff" * 3_000 in [message.record.body for message in dead]


async def test_what_comes_again_is_still_compressed(cluster: Servers) -> None:
    flag, body = COMPRESSIONS["zlib"], b"again" * 20_000
    seen: list[tuple[bytes, int, int, int]] = []

    def handle(message: MessageExt) -> None:
        seen.append((message.body, message.sys_flag, len(message.record.body), message.reconsume_times))
        if message.reconsume_times < 1:
            raise ZeroDivisionError

    async with (
        Producer(cluster.nameserver, compression="zlib") as producer,
        PushConsumer(cluster.nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle) as consumer,
    ):
        await producer.send(Message(TOPIC, body))
        await until(lambda: consumer.consumed == 1)
    stored = len(compressed(body, flag))
    assert seen == [(body, flag, stored, 0), (body, flag, stored, 1)]


async def test_transactions_and_pops() -> None:
    flag, bodies = COMPRESSIONS["zlib"], [random.Random(1).randbytes(9_000) * 9, b"plain"]
    with Cluster() as cluster:
        cluster.create_topic("orders", queues=1)
        async with TransactionProducer(
            cluster.nameserver, group="p", compression="zlib", compress_over_bytes=100
        ) as producer:
            for body in bodies:
                async with producer.transaction(Message("orders", body)):
                    pass
        async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
            found: dict[bytes, int] = {}
            while len(found) < 2:
                messages = await consumer.receive(wait_ms=20_000)
                assert all(message.has_content == message.is_compressed for message in messages)
                found.update({message.body: message.sys_flag for message in messages})
                await consumer.ack(messages)
    assert found == {bodies[0]: flag | TRANSACTION_COMMIT, bodies[1]: TRANSACTION_COMMIT}
