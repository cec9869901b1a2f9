"""Consumers that cannot do anything: they end at once, or nobody takes their messages."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from skylark import PushConsumer, aio, blocking
from skylark.sdk.consumer.rates import SAMPLE_S

NOWHERE = "127.0.0.1:1"
WANTED: dict[str, Any] = {"group": "g", "subscriptions": {"t": "*"}, "start_timeout_ms": None}


def consumer(**others: Any) -> PushConsumer:
    return PushConsumer(NOWHERE, **WANTED, **others)


def ends(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("the consumer of group g ends ")]


def handle(_: object) -> None:
    raise AssertionError("there are no messages")


async def test_a_consumer_whose_block_is_empty_says_that_it_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with consumer(handler=handle):
        pass
    assert len(ends(caplog)) == 1


async def test_a_block_that_raises_needs_no_other_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        async with consumer(handler=handle):
            raise ZeroDivisionError
    assert ends(caplog) == []


def of_threads(raised: Exception | None) -> None:
    with blocking.PushConsumer(NOWHERE, handler=handle, **WANTED):
        if raised is not None:
            raise raised


def of_asyncio(raised: Exception | None) -> None:
    async def use() -> None:
        async with aio.PushConsumer(NOWHERE, handler=handle, **WANTED):
            if raised is not None:
                raise raised

    asyncio.run(use())


@pytest.mark.parametrize("use", [of_threads, of_asyncio])
def test_consumers_for_threads_and_for_asyncio_say_so_too(
    use: Callable[[Exception | None], None], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError):
        use(ZeroDivisionError())
    assert ends(caplog) == []
    use(None)
    assert len(ends(caplog)) == 1


def test_a_consumer_for_threads_without_a_block_does_not_say_so(caplog: pytest.LogCaptureFixture) -> None:
    consumer = blocking.PushConsumer(NOWHERE, handler=handle, **WANTED)
    consumer.open()
    consumer.close()
    assert ends(caplog) == []


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
