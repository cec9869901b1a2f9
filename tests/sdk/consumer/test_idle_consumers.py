"""Consumers that cannot do anything: they end at once, or nobody takes their messages."""

from typing import Any

import pytest
import trio
import trio.testing

from skylark import PushConsumer
from skylark.sdk.consumer.rates import SAMPLE_S


def consumer(**others: Any) -> PushConsumer:
    return PushConsumer("127.0.0.1:1", group="g", subscriptions={"t": "*"}, start_timeout_ms=None, **others)


def handle(_: object) -> None:
    raise AssertionError("there are no messages")


async def test_a_consumer_whose_block_is_empty_says_that_it_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with consumer(handler=handle):
        pass
    (line,) = caplog.messages
    assert line.startswith("the consumer of group g ends 0.0 s after its start, and no message has come: messages are ")


async def test_a_block_that_raises_needs_no_other_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        async with consumer(handler=handle):
            raise ZeroDivisionError
    assert caplog.messages == []


async def test_a_consumer_without_a_handler_and_a_reader_says_so_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer():
        await trio.sleep(SAMPLE_S * 2.5)
        unread = [line for line in caplog.messages if "nobody takes the messages of group g" in line]
        assert len(unread) == 1
    assert [line for line in caplog.messages if "group g ends" in line] == []


async def test_a_stream_that_is_iterated_over_is_not_warned_of(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer() as reading:
        with trio.move_on_after(SAMPLE_S * 1.5):
            await anext(reading)
    assert "nobody takes" not in caplog.text and "group g ends" not in caplog.text
