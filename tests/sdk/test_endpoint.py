"""Requests to one server: what is sent again when its connection is lost."""

from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from skylark.mqcommon.errors import ConnectionLost
from skylark.remoting.protocol.command import Command
from skylark.sdk.endpoint import Endpoint


class LosingClient:
    """Loses each connection after a time, without an answer."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self.timeouts_ms: list[float] = []

    def broker_name_at(self, addr: str) -> str:
        return ""

    async def invoke(self, addr: str, command: Command, timeout_ms: float, *, body: object) -> Command:
        self.timeouts_ms.append(timeout_ms)
        await trio.sleep(self.after_s)
        raise ConnectionLost(addr)


@pytest.mark.parametrize(("after_s", "timeouts_ms"), [(2, [3_000, 1_000]), (3, [3_000]), (4, [3_000])])
async def test_a_request_is_sent_again_only_while_there_is_time_left(
    after_s: float, timeouts_ms: list[float], autojump_clock: MockClock
) -> None:
    losing = LosingClient(after_s)
    with pytest.raises(ConnectionLost):
        await Endpoint(cast(Any, losing), "10.0.0.1:1", 3_000).invoke(Command(10), None, 0)
    assert losing.timeouts_ms == pytest.approx(timeouts_ms)
