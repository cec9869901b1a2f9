"""An event loop that something blocks is logged: once for all consumers in it, and rarely."""

import asyncio
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from skylark import Client, PushConsumer, aio
from skylark.sdk.aio.handlers import AsyncioHandlers
from skylark.sdk.aio.loop_watch import WATCHES
from skylark.sdk.loop_blocks import BLOCKED_S, LOG_S, WATCH_S

NOWHERE = "127.0.0.1:1"
WANTED: dict[str, Any] = {"subscriptions": {"t": "*"}, "start_timeout_ms": None, "handler": lambda _: None}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if " ran nothing for " in line]


async def test_a_blocked_loop_of_trio_is_logged_once_for_all_consumers(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Client(NOWHERE) as client,
        PushConsumer(client, group="a", **WANTED),
        PushConsumer(client, group="b", **WANTED),
    ):
        await trio.sleep(WATCH_S)
        autojump_clock.jump(BLOCKED_S - WATCH_S / 2)
        await trio.sleep(WATCH_S * 2)
        assert lines(caplog) == []
        for blocked_s in (30, 40, LOG_S):
            autojump_clock.jump(blocked_s)
            await trio.sleep(WATCH_S * 2)
    first, _ = lines(caplog)
    assert first.startswith("the event loop of handlers ran nothing for ") and "by trio.to_thread.run_sync, or" in first


def test_a_blocked_loop_of_asyncio_is_logged_once_for_all_consumers(caplog: pytest.LogCaptureFixture) -> None:
    jumped_s = 0.0

    async def use() -> None:
        nonlocal jumped_s
        loop = asyncio.get_running_loop()
        loop.time = lambda: time.monotonic() + jumped_s  # type: ignore[method-assign]
        async with aio.PushConsumer(NOWHERE, group="a", **WANTED), aio.PushConsumer(NOWHERE, group="b", **WANTED):
            for blocked_s in (30, 40):
                jumped_s += blocked_s
                for _ in range(3):
                    await asyncio.sleep(0)
        # The watch ends with its last consumer.
        jumped_s += LOG_S
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(use())
    (line,) = lines(caplog)
    assert "call what blocks by asyncio.to_thread, or" in line.lower()


def test_handlers_that_are_closed_twice_are_one_user_of_the_watch() -> None:
    async def use() -> int:
        handlers = AsyncioHandlers(lambda _: None)
        handlers.bind()
        await handlers.close()
        await handlers.close()
        return WATCHES.of(asyncio.get_running_loop()).users

    assert asyncio.run(use()) == 0


def test_a_loop_that_does_not_run_is_not_taken_for_blocked(caplog: pytest.LogCaptureFixture) -> None:
    jumped_s = 0.0

    async def use(handlers: AsyncioHandlers) -> None:
        loop = asyncio.get_running_loop()
        loop.time = lambda: time.monotonic() + jumped_s  # type: ignore[method-assign]
        handlers.bind()

    async def look(handlers: AsyncioHandlers) -> None:
        handlers.look_at_loop()

    with asyncio.Runner() as runner:
        handlers = AsyncioHandlers(lambda _: None)
        runner.run(use(handlers))
        jumped_s = BLOCKED_S + LOG_S
        handlers.look_at_loop()
        assert lines(caplog) == []
        runner.run(look(handlers))
        assert len(lines(caplog)) == 1
        runner.run(handlers.close())
        jumped_s += BLOCKED_S + LOG_S
        runner.run(look(handlers))
        assert len(lines(caplog)) == 1, "closed: no handler waits for this loop"
