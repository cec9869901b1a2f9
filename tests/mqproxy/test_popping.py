"""One pop that was begun without waiting: its result at once, later, by a task, or never."""

import logging
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from skylark.mqcommon.errors import RequestTimeout, SkylarkError
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqproxy.brokers import Brokers, Pop
from skylark.mqproxy.deliveries import Delivery, InOrder, Receipt
from skylark.mqproxy.popping import Popping
from skylark.remoting.protocol.pop_info import PopHandle
from skylark.sdk.consumer.popped import Lease, ReceivedMessage

WANTED = Pop("group", "orders", "broker-a", 32, 20_000, 5_000, "*", "TAG", False, None)
LEASE = Lease("orders", "group", "broker-a", 0, 0, 1_700_000_000_000, 60_000, 0, "0")
# Smaller bodies are expanded when they are read.
LARGE = random.Random(1).randbytes(5_000)
HOST = encode_host("127.0.0.1", 10911)

Ended = Callable[[Sequence[Delivery] | Exception], None]


def delivery(offset: int, tag: str = "tea", *, is_compressed: bool = False) -> Delivery:
    magic, topic = topic_field("orders")
    body, flags = (zlib.compress(LARGE), COMPRESSED) if is_compressed else (b"tea", 0)
    properties = encode_properties({"TAGS": tag}).encode()
    data = encode_record(magic, topic, 0, offset, 0, body, properties, 0, flags, 0, HOST, 0, HOST, 0, 0)
    handle = PopHandle(0, 1_700_000_000_000, 60_000, 0, "0", "broker-a", 0, offset)
    return Delivery(ReceivedMessage(data, 0, "broker-a", LEASE, ""), Receipt.of(handle, 0), 1, 60_000)


class Near:
    """Brokers whose pops are answered when the test says so; ``waits``: only `pop` can ask them."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.ended: Ended = lambda result: None
        self.again: Callable[[], None] = lambda: None
        self.acknowledged: list[int] = []
        self.withdrawn = 0

    def pop_at_once(self, wanted: Pop, ended: Ended, again: Callable[[], None]) -> Callable[[], None] | None:
        self.ended, self.again = ended, again
        return None if self.waits else self.withdraw

    def withdraw(self) -> None:
        self.withdrawn += 1

    async def pop(self, wanted: Pop) -> Sequence[Delivery]:
        await trio.lowlevel.checkpoint()
        return [delivery(1), delivery(2, "milk")]

    async def ack(self, group: str, topic: str, receipts: Sequence[Receipt]) -> None:
        self.acknowledged += [receipt.offset for receipt in receipts]


@asynccontextmanager
async def popping(
    near: Near,
    tags: Sequence[str] = ("tea",),
    *,
    is_open: bool = True,
    when_found: Callable[[Sequence[Delivery]], None] | None = None,
) -> AsyncIterator[Popping]:
    """A pop that was begun; ``is_open``: whether its session takes tasks."""
    async with trio.open_nursery() as nursery:

        def start(work: Callable[[], Awaitable[None]]) -> bool:
            if is_open:
                nursery.start_soon(work)
            return is_open

        begun = Popping(start, cast(Brokers, cast(Any, near)), WANTED, tags)
        begun.begin(when_found)
        yield begun
        nursery.cancel_scope.cancel()


async def test_what_comes_at_once_is_there_and_is_told_before_tasks_run() -> None:
    near = Near()
    told: list[Sequence[Delivery]] = []
    async with popping(near, when_found=told.append) as begun:
        assert begun.found is None
        near.ended([delivery(1)])
        assert begun.found is not None and [each.receipt.offset for each in begun.found] == [1]
        assert told == [begun.found] == [await begun.result()]


async def test_messages_with_another_tag_are_acknowledged_and_left_out() -> None:
    near = Near()
    async with popping(near) as begun:
        near.ended([delivery(1), delivery(2, "milk"), delivery(3)])
        assert [each.receipt.offset for each in await begun.result()] == [1, 3]
    assert near.acknowledged == [2]


@pytest.mark.parametrize("tags", [(), ("tea",)])
async def test_a_damaged_message_that_its_order_gives_up_is_acknowledged(tags: Sequence[str]) -> None:
    near, damaged = Near(), delivery(2).receipt
    async with popping(near, tags) as begun:
        near.ended(InOrder([delivery(1), delivery(3, "milk")], [damaged]))
        assert [each.receipt.offset for each in await begun.result()] == ([1] if tags else [1, 3])
    assert near.acknowledged == ([2, 3] if tags else [2])


async def test_large_compressed_bodies_are_expanded_before_the_result_is_there() -> None:
    near = Near()
    async with popping(near, ()) as begun:
        near.ended([delivery(1, is_compressed=True)])
        (found,) = await begun.result()
        assert found.message.has_content and found.message.body == LARGE


@pytest.mark.parametrize("waits", [True, False])
async def test_a_pop_that_cannot_be_sent_at_once_or_is_to_be_asked_again_is_a_task(waits: bool) -> None:
    near = Near(waits=waits)
    async with popping(near) as begun:
        if not waits:
            near.again()
        assert [each.receipt.offset for each in await begun.result()] == [1]
    assert near.acknowledged == [2]


async def test_a_pop_that_was_given_up_takes_no_answer() -> None:
    near = Near()
    told: list[Sequence[Delivery]] = []
    async with popping(near, when_found=told.append) as begun:
        begun.cancel()
        assert near.withdrawn == 1
        near.ended([delivery(1)])
        near.again()
        with pytest.raises(SkylarkError, match="given up"):
            await begun.result()
        assert begun.has_failed and begun.found is None and not told


async def test_a_pop_that_has_ended_withdraws_nothing() -> None:
    near = Near()
    async with popping(near) as begun:
        near.ended([delivery(1)])
        begun.cancel()
        assert len(await begun.result()) == 1
    assert not near.withdrawn


async def test_an_error_while_messages_are_told_of_is_logged_and_costs_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(found: Sequence[Delivery]) -> None:
        raise ZeroDivisionError

    near = Near()
    async with popping(near, when_found=fail) as begun:
        near.ended([delivery(1)])
        assert len(await begun.result()) == 1
    (record,) = caplog.records
    assert "could not be answered in the turn" in record.message and record.exc_info


async def test_a_pop_whose_session_has_ended_fails() -> None:
    async with popping(Near(waits=True), is_open=False) as begun:
        with pytest.raises(SkylarkError, match="given up"):
            await begun.result()


async def test_only_a_strange_error_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for error in (RequestTimeout("broker-a", 200_050, 1.0), ZeroDivisionError()):
        near = Near()
        async with popping(near) as begun:
            near.ended(error)
            with pytest.raises(type(error)):
                await begun.result()
    (record,) = caplog.records
    assert "a pop that nobody waits for failed" in record.message
