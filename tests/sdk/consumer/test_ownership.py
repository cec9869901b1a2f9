"""Taking queues whose brokers do not answer, and what is committed of those that are left."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import BrokerError, RemotingError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk import broker_api
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.ownership import QueueOwnership
from skylark.sdk.consumer.problems import Problems
from skylark.sdk.consumer.process_queue import FlowControl, Ready
from skylark.sdk.consumer.rates import Rates
from skylark.sdk.position import Position
from tests.sdk.consumer.test_workers import settings_of

TIMEOUT_S = 3.0


class FakeOffsets:
    """Offsets, which cannot be read for queues of broker ``dead``."""

    def __init__(self) -> None:
        self.saved: dict[MessageQueue, Position] = {}
        self.resets: dict[MessageQueue, Position] = {}

    async def read(self, mq: MessageQueue, *, zero_if_new: bool) -> Position | None:
        if mq.broker_name == "dead":
            await trio.sleep(TIMEOUT_S)
            raise RemotingError("no answer")
        return Position(7)

    async def save(self, positions: Mapping[MessageQueue, Position], *, is_reset: bool = False) -> None:
        self.saved.update(positions)
        if is_reset:
            self.resets.update(positions)
        await trio.lowlevel.checkpoint()

    def forget(self, mq: MessageQueue) -> None: ...


async def test_the_offset_of_a_queue_whose_lock_is_lost_is_not_committed_at_the_end() -> None:
    """A handler still runs; another member has the queue, and may have committed a higher offset."""
    settings, offsets = settings_of(lambda _: None, orderly=True), FakeOffsets()
    flow = FlowControl(settings, SystemClock(), Rates())
    ownership = QueueOwnership(
        PushContext(cast(Any, None), settings, Problems()), cast(Any, None), offsets, flow, Ready(), [], lambda: None
    )
    lost, kept = MessageQueue("t", "live", 0), MessageQueue("t", "live", 1)
    async with trio.open_nursery() as nursery:
        await nursery.start(ownership.run)
        for mq in (lost, kept):
            ownership.owned[mq] = flow.own(mq, "*", Position(5))
        async with ownership.owned[lost].working:
            ownership._lost(ownership.owned[lost])
            await trio.testing.wait_all_tasks_blocked()
            await ownership.commit_unfinished()
            nursery.cancel_scope.cancel()
    assert offsets.saved == {kept: Position(5)}


async def test_a_broker_that_does_not_answer_delays_no_other_queue(autojump_clock: trio.testing.MockClock) -> None:
    """And the next change waits for about one timeout, not for one of each queue."""
    settings = settings_of(lambda _: None)
    ownership = QueueOwnership(
        PushContext(cast(Any, SimpleNamespace()), settings, Problems()), cast(Any, None), FakeOffsets(),
        FlowControl(settings, SystemClock(), Rates()), Ready(), [], lambda: None,
    )  # fmt: skip
    wanted = {MessageQueue("t", name, number): "*" for name in ("dead", "live") for number in range(400)}
    async with trio.open_nursery() as nursery:
        await nursery.start(ownership.run)
        begun = trio.current_time()
        nursery.start_soon(ownership.change, wanted, False)
        with trio.move_on_after(TIMEOUT_S / 2):
            await trio.sleep_forever()
        assert {mq.broker_name for mq in ownership.owned} == {"live"} and len(ownership.owned) == 400
        await ownership.change(wanted, False)
        assert trio.current_time() - begun <= 4 * TIMEOUT_S
        nursery.cancel_scope.cancel()


async def test_the_reset_of_a_queue_whose_handler_still_runs_is_not_undone_at_the_end() -> None:
    settings, offsets = settings_of(lambda _: None, orderly=True), FakeOffsets()
    flow = FlowControl(settings, SystemClock(), Rates())
    ownership = QueueOwnership(
        PushContext(cast(Any, None), settings, Problems()), cast(Any, None), offsets, flow, Ready(), [], lambda: None
    )
    reset, other = MessageQueue("t", "live", 0), MessageQueue("t", "live", 1)
    async with trio.open_nursery() as nursery:
        await nursery.start(ownership.run)
        for mq in (reset, other):
            ownership.owned[mq] = flow.own(mq, "*", Position(5))
        async with ownership.owned[reset].working:
            ownership.reset({reset: 0})
            await trio.testing.wait_all_tasks_blocked()
            await ownership.commit_unfinished()
            nursery.cancel_scope.cancel()
    assert offsets.saved == {reset: Position(0), other: Position(5)} and offsets.resets == {reset: Position(0)}


class LockingBroker:
    """What the broker does with locks, and the parts of an orderly consumer that use it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(broker_api, "lock_queues", self.lock_queues)
        monkeypatch.setattr(broker_api, "unlock_queues", self.unlock_queues)
        self.locked: list[MessageQueue] = []
        self.offsets = FakeOffsets()
        settings = settings_of(lambda _: None, orderly=True)
        client = SimpleNamespace(instance=SimpleNamespace(client_id="c", routes={}))
        self.flow = FlowControl(settings, SystemClock(), Rates())
        self.ownership = QueueOwnership(
            PushContext(cast(Any, client), settings, Problems()), cast(Any, self), self.offsets, self.flow, Ready(), [],
            lambda: None,
        )  # fmt: skip

    async def ask_master(self, mq: MessageQueue, ask: Any) -> Any:
        return await ask(None)

    async def lock_queues(self, at: Any, group: str, client_id: str, mqs: list[MessageQueue]) -> list[MessageQueue]:
        self.locked = list(dict.fromkeys([*self.locked, *mqs]))
        await trio.sleep(0.1)
        return mqs

    async def unlock_queues(self, at: Any, group: str, client_id: str, mqs: list[MessageQueue]) -> None:
        await trio.sleep(0.01)
        self.locked = [mq for mq in self.locked if mq not in mqs]


async def test_a_close_waits_for_handlers_of_queues_that_were_being_given_up(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    broker, mq = LockingBroker(monkeypatch), MessageQueue("t", "live", 0)
    ownership = broker.ownership
    async with trio.open_nursery() as nursery:
        await nursery.start(ownership.run)
        await ownership.change({mq: "*"}, False)
        broker.offsets.saved.clear()
        async with trio.open_nursery() as closing, ownership.owned[mq].working:
            await ownership.change({}, False)
            closing.start_soon(ownership.give_up_all)
            await trio.sleep(50)
            assert broker.locked == [mq] and not broker.offsets.saved
        assert broker.offsets.saved == {mq: Position(7)} and not broker.locked
        nursery.cancel_scope.cancel()


async def frozen(*args: Any) -> None:
    await trio.sleep_forever()


async def test_a_close_does_not_wait_long_for_a_broker_that_was_asked_before_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    broker, mq = LockingBroker(monkeypatch), MessageQueue("t", "live", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.ownership.run)
        await broker.ownership.change({mq: "*"}, False)
        monkeypatch.setattr(broker_api, "unlock_queues", frozen)
        await broker.ownership.change({}, False)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        await broker.ownership.give_up_all()
        assert trio.current_time() - begun <= 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after_s", [0.05, 0.15])
async def test_a_close_while_a_queue_is_taken_leaves_no_lock(
    after_s: float, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Before the answer to the lock, and while the offset is read."""
    broker, mq = LockingBroker(monkeypatch), MessageQueue("t", "dead", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.ownership.run)
        with trio.move_on_after(after_s):
            await broker.ownership.change({mq: "*"}, False)
        assert not broker.locked and not broker.ownership.owned
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "is_unlocked"), [(BrokerError(1, "no such topic"), True), (RemotingError("no answer"), False)]
)
async def test_a_queue_whose_offset_a_broker_refuses_is_unlocked_again(
    error: Exception, is_unlocked: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Without an answer the lock stays: the unlock could arrive after the next lock."""

    async def read(mq: MessageQueue, *, zero_if_new: bool) -> Position | None:
        raise error

    broker, mq = LockingBroker(monkeypatch), MessageQueue("t", "live", 0)
    monkeypatch.setattr(broker.offsets, "read", read)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.ownership.run)
        assert not await broker.ownership.change({mq: "*"}, False)
        assert (not broker.locked) == is_unlocked
        nursery.cancel_scope.cancel()
