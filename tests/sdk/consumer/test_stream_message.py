"""Messages of a stream that their caller keeps: they are delivered again after consume_timeout_ms."""

from typing import Any, cast

import pytest
import trio
import trio.testing

from skylark.mqcommon.message.message import decode_messages
from skylark.sdk.consumer.failures import Counters, Failures
from skylark.sdk.consumer.stream_message import CHECKS_PER_TIMEOUT, HandedOut, StreamMessage
from skylark.sdk.consumer.window import Batch, Window
from tests.sdk.consumer.test_workers import FakeFailures, settings_of
from tests.sdk.fakes import queue, record

TIMEOUT_S = 100.0
CHECK_S = TIMEOUT_S / CHECKS_PER_TIMEOUT


class Bench:
    """A stream of one queue."""

    def __init__(self) -> None:
        self.failures = FakeFailures()
        self.counters = Counters()
        settings = settings_of(None, consume_timeout_ms=TIMEOUT_S * 1000)
        self.handed_out = HandedOut(settings, cast(Failures, self.failures), self.counters)
        self.window = Window(queue(0), 0)

    def batch(self, count: int) -> Batch:
        records = b"".join(record("t", 0, offset, b"x") for offset in range(count))
        return self.window.add(decode_messages(records), count, 1)

    def taken(self, batch: Batch, number: int, *, given: bool = True) -> StreamMessage:
        message = StreamMessage(batch, number, self.handed_out)
        if given:
            message.give()
        return message


async def test_a_message_that_is_kept_too_long_is_delivered_again(
    autojump_clock: trio.testing.MockClock, nursery: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    await nursery.start(bench.handed_out.watch)
    batch = bench.batch(6)
    await trio.sleep(0.9 * CHECK_S)
    kept, acked, refused, waiting = (bench.taken(batch, number, given=number < 3) for number in range(4))
    await acked.ack()
    await refused.nack(3)
    await trio.sleep(TIMEOUT_S)
    assert bench.failures.seen == [(2, 3, 3)], "not before the timeout"
    bench.taken(batch, 4)
    await trio.sleep(2 * CHECK_S)
    assert bench.failures.seen == [(2, 3, 3), (0, 1, 0)]
    assert f"message {kept.msg_id} of {kept.queue}: neither acknowledged" in caplog.text

    await kept.ack()
    await kept.nack()
    assert bench.counters.consumed == 1 and len(bench.failures.seen) == 2, "the timeout came first"
    await trio.sleep(TIMEOUT_S)
    assert bench.failures.seen[2:] == [(4, 5, 0)]
    assert list(bench.handed_out.messages) == [waiting], "its time begins when the caller gets it"
    waiting.give()
    await trio.sleep(TIMEOUT_S + 2 * CHECK_S)
    assert bench.failures.seen[3:] == [(3, 4, 0)] and not bench.handed_out.messages


async def test_many_are_sent_back_once_each_and_logged_once(
    autojump_clock: trio.testing.MockClock, nursery: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    await nursery.start(bench.handed_out.watch)
    batch = bench.batch(100)
    for number in range(100):
        bench.taken(batch, number)
    await trio.sleep(3 * TIMEOUT_S)
    assert sorted(bench.failures.seen) == [(number, number + 1, 0) for number in range(100)]
    assert [line for line in caplog.messages if "and 99 more" in line] == caplog.messages


async def test_messages_of_a_queue_that_is_anothers_are_forgotten(
    autojump_clock: trio.testing.MockClock, nursery: Any
) -> None:
    bench = Bench()
    await nursery.start(bench.handed_out.watch)
    message = bench.taken(bench.batch(1), 0)
    bench.window.is_closed = True
    await trio.sleep(2 * CHECK_S)
    assert not bench.handed_out.messages
    await message.ack()
    await trio.sleep(2 * TIMEOUT_S)
    assert bench.failures.seen == [] and bench.counters.consumed == 1


async def test_a_message_whose_refusal_was_cancelled_is_its_callers_again(
    autojump_clock: trio.testing.MockClock, nursery: Any
) -> None:
    bench = Bench()
    await nursery.start(bench.handed_out.watch)
    batch = bench.batch(3)
    refused, acked, kept = (bench.taken(batch, number) for number in range(3))
    bench.failures.answers = trio.Event()
    for message in (refused, acked, kept):
        with trio.move_on_after(1):
            await message.nack()
    bench.failures.answers.set()
    await refused.nack(3)
    await acked.ack()
    assert bench.failures.seen == [(0, 1, 3)] and bench.counters.consumed == 1
    await trio.sleep(TIMEOUT_S + 2 * CHECK_S)
    assert bench.failures.seen == [(0, 1, 3), (2, 3, 0)] and not bench.handed_out.messages


class LeasedBatch(Batch):
    """Popped messages, as far as a stream knows."""

    is_leased = True

    def __init__(self, plain: Batch) -> None:
        super().__init__(plain.window, plain.messages, plain.next_offset, plain.size_bytes)
        self.left_to_others: list[int] = []

    def leave(self, start: int, end: int) -> None:
        self.left_to_others += range(start, end)


async def test_popped_messages_of_a_queue_that_was_given_up_are_left_unless_their_caller_has_them(
    autojump_clock: trio.testing.MockClock, nursery: Any
) -> None:
    bench = Bench()
    await nursery.start(bench.handed_out.watch)
    batch = LeasedBatch(bench.batch(2))
    kept, waiting = (bench.taken(batch, number, given=number == 0) for number in range(2))
    bench.window.is_closed = True
    await trio.sleep(2 * CHECK_S)
    assert list(bench.handed_out.messages) == [kept] and not waiting.is_ours
    assert batch.left_to_others == [1]
    await trio.sleep(TIMEOUT_S)
    assert bench.failures.seen == [(0, 1, 0)] and not bench.handed_out.messages
