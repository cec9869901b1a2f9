"""What a receive call has taken from the broker, and its client does not get."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skylark.mqcommon.errors import RequestTimeout
from skylark.mqproxy import polls as module
from skylark.mqproxy.brokers import Brokers, Delivery, Pop, Receipt
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.polls import Poll, Polls
from skylark.mqproxy.renewals import RenewalCounts, Renewals
from tests.support.clock import ManualClock

WANTED = Pop("group", "topic", "broker-a", 32, 20_000, 5_000, "*", "TAG", False, None)


class Answering:
    """Brokers whose pop ends when `answer` is called; notes what is given back and what is acknowledged."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.was_cancelled = False
        self.given_back: list[tuple[int, int]] = []
        self.acknowledged: list[int] = []
        self._answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()

    def answer(self, answer: list[Delivery] | Exception) -> None:
        if isinstance(answer, Exception):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)

    async def pop(self, wanted: Pop) -> list[Delivery]:
        self.asked.set()
        try:
            return await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    async def ack(self, group: str, topic: str, receipts: Sequence[Receipt]) -> None:
        self.acknowledged += [receipt.offset for receipt in receipts]

    async def change_invisible_time(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
        self.given_back.append((receipt.offset, invisible_ms))
        return receipt


class World:
    """The polls of a session, whose brokers are `Answering`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.brokers = Answering()
        brokers = cast(Brokers, self.brokers)
        self.renewals = Renewals(brokers, ProxyOptions(), self.clock, lambda client: True, RenewalCounts())
        self.polls = Polls(brokers, self.renewals, Clients(ProxyOptions()))

    def delivery(self, offset: int, tag: str = "tea") -> Delivery:
        now_ms = self.clock.now_ms()
        receipt = Receipt.parse(f"{offset} {now_ms} 60000 0 0 broker-a 0 {offset} 7", now_ms)
        return Delivery(cast(Any, SimpleNamespace(tags=tag)), receipt, 1, 60_000)

    def begin(self, tags: Sequence[str] = ()) -> Poll:
        return self.polls.begin("client", WANTED, tags, is_renewed=True)

    async def cancelled_call(self, tags: Sequence[str] = ()) -> asyncio.Task[list[Delivery]]:
        """The pop of a call that its client cancels while the broker holds it."""
        self.brokers.asked.clear()
        with self.begin(tags) as poll:
            waiting = asyncio.ensure_future(poll.deliveries())
            await self.brokers.asked.wait()
            waiting.cancel()
            await asyncio.wait({waiting})
        assert poll.popping is not None
        return poll.popping


def test_what_a_pop_brings_after_its_call_was_cancelled_is_given_back() -> None:
    async def main() -> None:
        world = World()
        popping = await world.cancelled_call(["tea"])
        world.brokers.answer([world.delivery(1), world.delivery(2, "milk"), world.delivery(3)])
        await popping
        await world.polls.close()
        # The other tag has the same hash: nobody of the group wants it.
        assert (world.brokers.acknowledged, world.brokers.was_cancelled) == ([2], False)
        assert world.brokers.given_back == [(1, module.BACK_AFTER_MS), (3, module.BACK_AFTER_MS)]

    asyncio.run(main())


def test_an_answer_that_comes_together_with_the_cancellation_is_given_back() -> None:
    async def main() -> None:
        world = World()
        with world.begin() as poll:
            waiting = asyncio.ensure_future(poll.deliveries())
            await world.brokers.asked.wait()
            world.brokers.answer([world.delivery(1)])
            assert poll.popping is not None
            await poll.popping
            waiting.cancel()
            await asyncio.wait({waiting})
        await world.polls.close()
        assert world.brokers.given_back == [(1, module.BACK_AFTER_MS)]

    asyncio.run(main())


def test_messages_that_are_not_written_are_given_back_and_none_is_renewed() -> None:
    async def main() -> None:
        world = World()
        world.brokers.answer([world.delivery(offset) for offset in range(4)])
        with pytest.raises(ConnectionError), world.begin() as poll:
            # The last one cannot be read: it would come again and again.
            poll.hand_out((await poll.deliveries())[:3])
            poll.sending()
            poll.sent()
            poll.sending()
            assert len(world.renewals) == 2
            raise ConnectionError
        await world.polls.close()
        assert world.brokers.given_back == [(1, module.BACK_AFTER_MS), (2, module.BACK_AFTER_MS)]
        assert len(world.renewals) == 0

    asyncio.run(main())


def test_messages_of_an_answer_that_its_client_got_are_renewed() -> None:
    async def main() -> None:
        world = World()
        world.brokers.answer([world.delivery(offset) for offset in range(2)])
        with world.begin() as poll:
            deliveries = await poll.deliveries()
            poll.hand_out(deliveries)
            for _ in deliveries:
                poll.sending()
                poll.sent()
            poll.complete()
        await world.polls.close()
        assert (world.brokers.given_back, len(world.renewals)) == ([], 2)

    asyncio.run(main())


def test_a_pop_that_fails_gives_nothing_back() -> None:
    async def main() -> None:
        world = World()
        popping = await world.cancelled_call()
        world.brokers.answer(RequestTimeout("broker-a", 200_050, 1.0))
        await asyncio.wait({popping})
        await world.polls.close()
        with pytest.raises(RequestTimeout), world.begin() as poll:
            await poll.deliveries()
        assert world.brokers.given_back == []

    asyncio.run(main())


def test_pops_that_wait_end_with_their_session() -> None:
    async def main() -> None:
        world = World()
        await world.cancelled_call()
        await world.polls.close()
        assert world.brokers.was_cancelled

    asyncio.run(main())


def test_there_is_a_limit_of_pops_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ABANDONED", 1)

    async def main() -> None:
        world = World()
        first = await world.cancelled_call()
        second = await world.cancelled_call()
        await asyncio.wait({second})
        assert (first.done(), second.cancelled()) == (False, True)

    asyncio.run(main())
