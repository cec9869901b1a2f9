"""Noting never waits; what was noted is sent in large messages, within bounds."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from skylark.mqcommon.errors import SendFailed
from skylark.mqcommon.message.message import MAX_PROPERTIES_BYTES, Message
from skylark.sdk.client import ClientHandle
from skylark.sdk.traces.entries import ConsumedMessage, Consuming
from skylark.sdk.traces.records import decode_records
from skylark.sdk.traces.traces import AT_ONCE, BODY_BYTES, CLOSE_TIMEOUT_S, LINGER_S, MAX_WAITING_BYTES, Traces


@dataclass
class Broker:
    """Takes trace messages: at once, never, or with an error."""

    act: Callable[[], Any] | None = None
    messages: list[Message] = field(default_factory=list)
    opened: int = 0

    async def __aenter__(self) -> "Broker":
        self.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.opened -= 1

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        if self.act is not None:
            await self.act()
        self.messages.append(message)

    @property
    def ids(self) -> list[str]:
        return [record.msg_id for message in self.messages for record in decode_records(message.body.decode())]


@asynccontextmanager
async def traced(broker: Broker) -> AsyncIterator[Traces]:
    async with trio.open_nursery() as nursery:
        traces = Traces(cast(Any, broker), "trace", "g")

        class Handle:
            pass

        handle = Handle()
        handle.nursery = nursery  # type: ignore[attr-defined]
        await traces.open(cast(ClientHandle, handle))
        yield traces
        await traces.close()
        nursery.cancel_scope.cancel()


def entry(*ids: str, keys: str = "") -> Consuming:
    return Consuming([ConsumedMessage(each, keys, 0, "r") for each in ids], "g", "R", 1)


async def test_what_comes_within_a_moment_is_one_message(autojump_clock: MockClock) -> None:
    broker = Broker()
    async with traced(broker) as traces:
        traces.note(entry("M1", keys="k1"))
        traces.note(entry("M2", "M3"))
        await trio.sleep(LINGER_S * 2)
        (message,) = broker.messages
        assert (message.topic, message.keys) == ("trace", "M1 k1 M2 M3")
        traces.note(entry("M4"))
        await trio.sleep(LINGER_S * 2)
        assert broker.ids == ["M1", "M2", "M3", "M4"]
        traces.note(entry("M5"))
        started = trio.current_time()
    # The end waits for nothing.
    assert trio.current_time() == started
    assert broker.ids == ["M1", "M2", "M3", "M4", "M5"]
    assert (broker.opened, traces.dropped) == (0, 0)


async def test_messages_are_large_and_within_bounds(autojump_clock: MockClock) -> None:
    broker = Broker()
    ids = [f"{number:032d}" for number in range(5_000)]
    long = "k" * 30_000
    async with traced(broker) as traces:
        traces.note(entry(*ids[:4_990]))
        traces.note(entry(*ids[4_990:], keys=long))
    assert sorted(broker.ids) == ids
    for message in broker.messages:
        assert len(message.body) < BODY_BYTES + 32_000
        assert len(message.keys or "") < MAX_PROPERTIES_BYTES
    assert len(broker.messages) < 25


async def test_a_broker_that_does_not_answer_costs_bounded_memory(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(trio.sleep_forever)
    async with traced(broker) as traces:
        long = "k" * 1_000_000
        for number in range(100):
            traces.note(entry(f"M{number}", keys=long))
            await trio.lowlevel.checkpoint()
        assert 100 - traces.dropped <= MAX_WAITING_BYTES // 1_000_000 + AT_ONCE
        before = traces.dropped
        started = trio.current_time()
    assert trio.current_time() - started == CLOSE_TIMEOUT_S
    assert 0 < before < traces.dropped
    texts = [record.getMessage() for record in caplog.records]
    assert sum("32 MiB wait" in text for text in texts) == 1
    assert sum("the time at the end was over" in text for text in texts) == 1


async def test_a_failed_send_is_counted_and_said_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise SendFailed("no broker")

    broker = Broker(fail)
    async with traced(broker) as traces:
        traces.note(entry("M1", "M2"))
        await trio.sleep(LINGER_S * 2)
        traces.note(entry("M3"))
        await trio.sleep(LINGER_S * 2)
        assert traces.dropped == 3
        broker.act = None
        traces.note(entry("M4"))
    assert broker.ids == ["M4"]
    assert ["no broker" in record.getMessage() for record in caplog.records] == [True]
