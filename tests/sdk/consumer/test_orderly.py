"""Orderly handlers of batches: each message is tried as often as it may be, whatever the others beside it did."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.failures import KEPT_S, Counters, HandlerErrors, Returns
from skylark.sdk.consumer.orderly import Orderly
from skylark.sdk.consumer.outcome import BatchHandler, ConsumeResult
from skylark.sdk.consumer.problems import Problems
from skylark.sdk.consumer.process_queue import FlowControl
from skylark.sdk.consumer.rates import Rates
from skylark.sdk.consumer.retry_policy import RetryPolicy
from skylark.sdk.position import Position
from tests.sdk.consumer.test_workers import settings_of
from tests.sdk.fakes import queue, record

MOST_TIMES = 2


class FakeReturns:
    """Notes the offsets of dead letters; those in ``refused`` are refused once."""

    def __init__(self) -> None:
        self.dead: list[int] = []
        self.refused: set[int] = set()

    async def send_back(self, mq: MessageQueue, message: MessageExt, delay_level: int, reason: str) -> bool:
        await trio.lowlevel.checkpoint()
        if message.queue_offset in self.refused:
            self.refused.remove(message.queue_offset)
            return False
        self.dead.append(message.queue_offset)
        return True


async def handle_all(handler: BatchHandler, failures: Sequence[int], returns: FakeReturns) -> Counters:
    """Let ``handler`` have messages that have failed so often, in batches of three, until none is left."""
    retry = RetryPolicy(attempts=MOST_TIMES + 1)
    settings = settings_of(None, batch_handler=handler, batch_size=3, orderly=True, suspend_ms=1_000.0, retry=retry)
    flow, counters = FlowControl(settings, SystemClock(), Rates()), Counters()
    orderly = Orderly(settings, flow, cast(Returns, returns), counters, HandlerErrors(Problems()), SystemClock())
    mine = flow.own(queue(), "*", Position(0))
    mine.locked_until = trio.current_time() + 1_000
    messages = decode_messages(b"".join(record("t", 0, offset, b"x") for offset in range(len(failures))))
    for message, times in zip(messages, failures, strict=True):
        for _ in range(times):
            message.count_failure()
    batch = mine.window.add(messages, len(messages), 1)
    flow.added(batch)
    orderly.put(batch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(orderly.serve, mine)
        while batch.left:  # noqa: ASYNC110  nobody tells of it
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert not mine.batches and mine.window.offset == len(failures)
    return counters


async def test_messages_of_a_failed_batch_are_tried_again_or_are_dead_letters_each_by_its_own_failures(
    autojump_clock: trio.testing.MockClock,
) -> None:
    got: list[tuple[float, list[int]]] = []
    returns, began = FakeReturns(), trio.current_time()

    def handle(messages: list[MessageExt]) -> ConsumeResult | None:
        got.append((trio.current_time() - began, [message.queue_offset for message in messages]))
        return ConsumeResult.LATER if len(got) == 1 else None

    counters = await handle_all(handle, [MOST_TIMES, 0, MOST_TIMES, 0, 0], returns)
    assert got == [(0, [0, 1, 2]), (1, [1, 3]), (1, [4])]
    assert returns.dead == [0, 2] and (counters.failed, counters.consumed) == (3, 3)


async def test_a_message_beside_a_dead_letter_that_was_refused_has_all_its_tries(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries: dict[int, int] = {}
    dead_after: list[tuple[int, int]] = []

    class Noting(FakeReturns):
        async def send_back(self, mq: MessageQueue, message: MessageExt, *others: Any) -> bool:
            is_taken = await super().send_back(mq, message, *others)
            if is_taken:
                dead_after.append((message.queue_offset, tries[message.queue_offset]))
            return is_taken

    def handle(messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            tries[message.queue_offset] = tries.get(message.queue_offset, 0) + 1
        return ConsumeResult.LATER

    returns, began = Noting(), trio.current_time()
    returns.refused = {1}
    await handle_all(handle, [0] * 4, returns)
    assert dead_after == [(0, 3), (1, 4), (2, 4), (3, 3)]
    assert trio.current_time() - began > KEPT_S


async def test_a_handler_that_holds_up_its_queue_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(messages: list[MessageExt]) -> None:
        await trio.sleep(500)

    settings = settings_of(None, batch_handler=handle, batch_size=3, orderly=True, consume_timeout_ms=900_000.0)
    flow = FlowControl(settings, SystemClock(), Rates())
    returns, errors = cast(Returns, FakeReturns()), HandlerErrors(Problems())
    orderly = Orderly(settings, flow, returns, Counters(), errors, SystemClock())
    mine = flow.own(queue(), "*", Position(0))
    mine.locked_until = trio.current_time() + 1_000
    batch = mine.window.add(decode_messages(record("t", 0, 0, b"x")), 1, 1)
    flow.added(batch)
    orderly.put(batch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(orderly.serve, mine)
        nursery.start_soon(orderly.watch)
        await trio.sleep(440)
        assert caplog.messages == []
        await trio.sleep(200)
        nursery.cancel_scope.cancel()
    (line,) = caplog.messages
    assert "handle still works on message" in line and mine.window.offset == 1
