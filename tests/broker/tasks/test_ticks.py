"""Actions that one task calls at intervals."""

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.tasks.ticks import Ticks


async def test_actions_go_on_after_an_error(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    calls: dict[str, int] = {"often": 0, "also often": 0, "seldom": 0}

    def action(name: str) -> None:
        calls[name] += 1
        if name == "often" and calls[name] == 2:
            raise ValueError("once")

    async with trio.open_nursery() as nursery:
        ticks = Ticks(nursery)
        ticks.add(1_000, lambda: action("often"))
        ticks.add(5_000, lambda: action("seldom"))
        await trio.sleep(0.5)
        ticks.add(1_000, lambda: action("also often"))
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert calls == {"often": 10, "also often": 10, "seldom": 2}
    assert "is called again in 1000 ms" in caplog.text
