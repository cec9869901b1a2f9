"""Handlers in trio: what becomes of messages when one takes too long."""

from typing import Any, cast

import trio
import trio.testing

from sdk.consumer.failures import Counters, Failures, HandlerErrors
from sdk.consumer.problems import Problems
from sdk.consumer.ready import Ready
from sdk.consumer.window import Window
from sdk.consumer.workers import Workers
from tests.sdk.consumer.test_elsewhere import FakeFailures, FakeMessage, settings_of
from tests.sdk.fakes import queue


async def test_a_handler_that_outlives_its_cancellation_takes_no_other_message_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As one does that waits for a thread: the next message must get a call that is not cancelled."""
    handled: list[int] = []

    async def handle(message: FakeMessage) -> None:
        await trio.lowlevel.checkpoint()
        if message.queue_offset == 0:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
        handled.append(message.queue_offset)

    ready, failures, window = Ready(), FakeFailures(), Window(queue(0), 0)
    workers = Workers(
        settings_of(handle, concurrency=1, consume_timeout_ms=1_000.0), ready, cast(Failures, failures), Counters(),
        HandlerErrors(Problems()),
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run)
        await trio.testing.wait_all_tasks_blocked()
        messages: list[Any] = [FakeMessage(number) for number in range(3)]
        ready.put(window.add(messages, 3, 1))
        await trio.sleep(10)
        workers.stop()
    assert failures.seen == [(0, 1, 0)]
    assert handled == [0, 1, 2]
