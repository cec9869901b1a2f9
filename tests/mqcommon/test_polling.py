"""Waiting for a condition by looking at it."""

import trio
from trio.testing import MockClock

from skylark.mqcommon.polling import poll_until


async def test_a_condition_that_holds_takes_no_time(autojump_clock: MockClock) -> None:
    assert await poll_until(lambda: True, 1)
    assert trio.current_time() == 0


async def test_polling_goes_on_until_the_condition_holds(autojump_clock: MockClock) -> None:
    looks: list[int] = []
    assert await poll_until(lambda: looks.append(1) or len(looks) == 4, 10, 0.5)
    assert trio.current_time() == 1.5


async def test_polling_gives_up_at_the_timeout(autojump_clock: MockClock) -> None:
    assert not await poll_until(lambda: False, 2, 0.5)
    assert trio.current_time() == 2
