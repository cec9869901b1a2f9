"""Values from producers to handlers, against a broker of ours: in trio, asyncio and threads."""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import trio

from skylark import (
    Admin,
    ConsumeFrom,
    InvalidArgument,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryPolicy,
    UnreadableValue,
    aio,
    blocking,
    read_value,
)
from skylark.mqcommon.message.message import Message, MessageExt
from tests.sdk.fakes import until
from tests.support.in_process import Servers, until_known
from tests.support.waiting import DEADLINE_S

FIRST = ConsumeFrom.FIRST_OFFSET


@dataclass
class Order:
    number: int
    what: str


TEA, CAKE = Order(1, "tea"), Order(2, "cake")


async def reasons(cluster: Servers) -> list[tuple[bytes, str]]:
    """The bodies of the dead letters of group g, and why."""
    async with Admin(cluster.nameserver) as admin:
        await until_known(admin, "%DLQ%g")
        return [(letter.message.body, letter.failure.reason) for letter in await admin.dead_letters("g")]


async def send_some(cluster: Servers) -> None:
    """Two orders, and between them a body that is none."""
    async with Producer(cluster.nameserver, value=Order, value_format="cbor") as producer:
        await producer.send_value("one", TEA, headers={"shop": "north"}, keys="k")
        await producer.send(Message("one", b"nonsense"))
        await producer.send_value("one", CAKE)


@pytest.mark.parametrize("way", ["concurrent", "orderly"])
async def test_a_handler_gets_values_and_what_is_none_does_not_stop_its_queue(cluster: Servers, way: str) -> None:
    got: list[Order] = []
    headers: list[dict[str, str]] = []

    async def handle(order: Order, message: MessageExt) -> None:
        got.append(order)
        headers.append(dict(message.headers))

    await send_some(cluster)
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_from=FIRST,
        orderly=way == "orderly", suspend_ms=3_600_000,
    ) as consumer:  # fmt: skip
        await until(lambda: consumer.consumed == 2 and consumer.failed == 1 and consumer.cached == 0)
    assert sorted(got, key=lambda order: order.number) == [TEA, CAKE]
    assert {"shop": "north"} in headers and {} in headers
    ((body, reason),) = await reasons(cluster)
    assert body == b"nonsense" and "UnreadableValue: the body is no Order: " in reason


async def test_in_asyncio(cluster: Servers) -> None:
    async def main() -> list[Order]:
        got: list[Order] = []
        enough = asyncio.Event()

        async def handle(order: Order) -> None:
            got.append(order)
            if len(got) == 2:
                enough.set()

        async with aio.Producer(cluster.nameserver, value=Order) as producer:
            await producer.send_value("one", TEA)
            await producer.send(Message("one", b"nonsense"))
            ticket = producer.send_nowait(producer.message("one", CAKE, headers={"shop": "north"}))
            await ticket
            with pytest.raises(TypeError, match="value must be a Order"):
                await producer.send_value("one", "tea")
        async with aio.PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_from=FIRST
        ):
            await enough.wait()
        # It is closed: what its handler failed on is at the broker.
        return got

    got = await trio.to_thread.run_sync(partial(asyncio.run, main()))
    assert sorted(got, key=lambda order: order.number) == [TEA, CAKE]
    assert [body for body, _ in await reasons(cluster)] == [b"nonsense"]


async def test_in_threads(cluster: Servers) -> None:
    def work() -> list[Order]:
        got: list[Order] = []
        enough = Event()

        def handle(order: Order, message: MessageExt) -> None:
            got.append(order)
            if len(got) == 2:
                enough.set()

        with blocking.Producer(cluster.nameserver, value=Order) as producer:
            producer.send_value("one", TEA)
            producer.send(Message("one", b"nonsense"))
            producer.send_many("one", [producer.message("one", CAKE)])
            with pytest.raises(TypeError, match="value must be a Order"):
                producer.send_value("one", "tea")
        with blocking.PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_from=FIRST
        ):
            assert enough.wait(DEADLINE_S)
        # It is closed: what its handler failed on is at the broker.
        return got

    got = await trio.to_thread.run_sync(work)
    assert sorted(got, key=lambda order: order.number) == [TEA, CAKE]
    assert [body for body, _ in await reasons(cluster)] == [b"nonsense"]

    async def wrong(order: Order) -> None: ...

    with pytest.raises(TypeError, match="plain functions"):
        blocking.PushConsumer(cluster.nameserver, group="g", subscriptions={}, handler=wrong)  # type: ignore[arg-type]


async def test_a_policy_may_try_again_what_cannot_be_read(cluster: Servers) -> None:
    """As while a new version of all consumers is rolled out."""

    async def handle(order: Order) -> None: ...

    await send_some(cluster)
    policy = RetryPolicy(attempts=2, delays_ms=[1], retry_on=UnreadableValue)
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_from=FIRST, retry=policy
    ) as consumer:
        await until(lambda: consumer.consumed == 2 and consumer.failed == 2 and consumer.cached == 0)
    assert len(await reasons(cluster)) == 1


async def test_a_broadcast_drops_what_it_cannot_read_and_says_so(
    cluster: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(order: Order) -> None: ...

    await send_some(cluster)
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_from=FIRST, broadcast=True,
        local_offsets_dir=str(tmp_path),
    ) as consumer:  # fmt: skip
        await until(lambda: consumer.consumed == 2 and consumer.dropped == 1)
    assert "dropped message" in caplog.text and "the body is no Order" in caplog.text


async def test_values_are_read_of_messages_that_are_pulled(cluster: Servers) -> None:
    await send_some(cluster)
    async with PullConsumer(cluster.nameserver) as consumer:
        (mq,) = await consumer.message_queues("one")
        first, second, third = (await consumer.pull(mq, 0)).messages
    assert [read_value(first, Order), read_value(third, Order)] == [TEA, CAKE]
    with pytest.raises(UnreadableValue):
        read_value(second, Order)


async def test_a_producer_without_a_type_has_no_values(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        with pytest.raises(InvalidArgument, match=r"Producer\(\.\.\., value=Order\)"):
            await producer.send_value("one", TEA)
    with pytest.raises(TypeError, match="are not supported"):
        Producer(cluster.nameserver, value=complex)
    with pytest.raises(InvalidArgument, match="value_format must be json or cbor"):
        blocking.Producer(cluster.nameserver, value=Order, value_format="xml")
