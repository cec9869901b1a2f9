from random import Random

import pytest
import trio
from trio.testing import MockClock

from mqcommon.backoff import Backoff
from mqcommon.errors import BrokerError, ConnectFailed, SkylarkError
from sdk.retry import until_answered

BACKOFF = Backoff(0.05, 0.5, Random(0))


class Server:
    """Fails until ``up_at`` (trio's time)."""

    def __init__(self, error: SkylarkError, up_at: float) -> None:
        self.error = error
        self.up_at = up_at
        self.asked: list[float] = []

    async def ask(self) -> str:
        self.asked.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self.up_at:
            raise self.error
        return "answer"


@pytest.mark.parametrize("code", [2, 14])
async def test_a_busy_server_is_asked_until_it_answers(autojump_clock: MockClock, code: int) -> None:
    server = Server(BrokerError(code, "busy"), trio.current_time() + 2)
    assert await until_answered(server.ask, 3_000, BACKOFF) == "answer"
    assert 5 < len(server.asked) < 20


async def test_the_last_try_is_at_the_deadline(autojump_clock: MockClock) -> None:
    server = Server(ConnectFailed("a:1", "refused"), trio.current_time() + 60)
    started = trio.current_time()
    with pytest.raises(ConnectFailed):
        await until_answered(server.ask, 3_000, BACKOFF)
    assert server.asked[-1] == pytest.approx(started + 3)
    assert len(server.asked) < 20


async def test_an_answer_is_not_asked_for_again(autojump_clock: MockClock) -> None:
    server = Server(BrokerError(17, "no such topic"), trio.current_time() + 1)
    with pytest.raises(BrokerError, match="no such topic"):
        await until_answered(server.ask, 3_000, BACKOFF)
    assert len(server.asked) == 1
