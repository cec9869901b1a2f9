"""Suspects in virtual time: brokers that answer or not, in routes that change."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from skylark.mqcommon.errors import ConnectFailed
from skylark.remoting.protocol.command import Command
from skylark.sdk.client import ClientHandle
from skylark.sdk.suspects import DEPARTED_S, Suspects

A = "a:1"


class World:
    """A client whose brokers and routes a test sets; it records the probes and the fate of the suspects."""

    def __init__(self, nursery: trio.Nursery, pauses: list[float]) -> None:
        self.nursery = nursery
        self.instance = self.remoting = self
        self.alive = False
        self.code = 0
        self.listed = [A]
        self.probed_at: list[float] = []
        self.asked: list[bool] = []
        self.cleared: list[tuple[str, bool]] = []
        self.changed = trio.Event()
        self.start = trio.current_time()
        self.suspects = Suspects(
            cast(ClientHandle, self),
            in_routes=lambda: self.listed,
            pause_s=lambda probes: pauses[min(probes, len(pauses) - 1)],
            not_cleared=self._not_cleared,
            cleared=lambda addr, is_back: self.cleared.append((addr, is_back)),
        )

    async def invoke(self, addr: str, command: Command, timeout_ms: float) -> Command:
        self.probed_at.append(trio.current_time() - self.start)
        await trio.lowlevel.checkpoint()
        if not self.alive:
            raise ConnectFailed(addr, "refused")
        return command.respond(self.code)

    async def _not_cleared(self, addr: str, answered: bool) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append(answered)


@asynccontextmanager
async def world(*pauses: float) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery, list(pauses))
        nursery.cancel_scope.cancel()


async def until(at: World, when_s: float) -> None:
    await trio.sleep_until(at.start + when_s)


async def test_a_suspect_is_probed_until_it_answers(autojump_clock: MockClock) -> None:
    async with world(0, 1, 2) as at:
        assert at.suspects.add(A) and not at.suspects.add(A)
        assert A in at.suspects.addrs
        await until(at, 5.5)
        assert at.probed_at == [0, 1, 3, 5] and at.asked == [False] * 4
        at.alive = True
        await until(at, 7.5)
        assert at.cleared == [(A, True)] and not at.suspects.addrs
        await until(at, 20)
        assert len(at.probed_at) == 5


@pytest.mark.parametrize("first_pause_s", [0, 0.5])
async def test_one_that_fails_again_is_probed_from_the_start(autojump_clock: MockClock, first_pause_s: float) -> None:
    async with world(first_pause_s, 8) as at:
        at.alive = True
        for failures in range(1, 4):
            assert at.suspects.add(A)
            await until(at, failures)
            assert len(at.probed_at) == len(at.cleared) == failures


async def test_a_broker_that_is_stopping_does_not_count_as_answering(autojump_clock: MockClock) -> None:
    async with world(1) as at:
        at.alive, at.code = True, 1500
        at.suspects.add(A)
        await until(at, 1.5)
        assert at.asked == [False]
        at.code = 17
        await until(at, 2.5)
        assert at.cleared == [(A, True)]


async def test_one_that_answers_but_is_in_no_route_stays_suspect(autojump_clock: MockClock) -> None:
    async with world(1) as at:
        at.alive, at.listed = True, []
        at.suspects.add(A)
        await until(at, 2.5)
        assert at.asked == [True, True] and A in at.suspects.addrs
        at.listed = [A]
        await until(at, 3.5)
        assert at.cleared == [(A, True)]


@pytest.mark.parametrize("alive", [False, True])
async def test_one_that_was_in_no_route_for_long_is_forgotten(autojump_clock: MockClock, alive: bool) -> None:
    async with world(1) as at:
        at.suspects.add(A)
        await until(at, 50.5)
        at.alive, at.listed = alive, []
        await until(at, 50 + DEPARTED_S)
        assert A in at.suspects.addrs
        await until(at, 52 + DEPARTED_S)
        assert at.cleared == [(A, False)] and not at.suspects.addrs


async def test_one_that_is_known_to_answer_is_probed_no_more(autojump_clock: MockClock) -> None:
    async with world(1) as at:
        at.suspects.add(A)
        await until(at, 1.5)
        at.suspects.discard(A)
        at.suspects.discard("never:1")
        await until(at, 9)
        assert len(at.probed_at) == 1 and at.cleared == []


async def test_an_unexpected_error_does_not_end_the_probes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(1) as at:

        async def broken(*_: Any) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(at, "invoke", broken)
            at.suspects.add(A)
            await until(at, 1.5)
        at.alive = True
        await until(at, 2.5)
        assert at.cleared == [(A, True)] and "probing a broker" in caplog.text
