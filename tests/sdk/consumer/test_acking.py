"""Acknowledgements of many tasks share requests, and each task hears what became of its own."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqcommon.errors import BrokerError, SkylarkError
from sdk.consumer import simple
from sdk.consumer.popped import Lease
from sdk.consumer.simple import AT_ONCE, AckLane, Bits

LEASES = [Lease("T", "g", "b", queue_id, 0, 1, 2, 0, "0") for queue_id in range(50)]


class Broker:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.requests: list[Bits] = []
        self.error: SkylarkError | None = None
        self._gate = trio.Event()

    async def send(self, bits: Bits) -> None:
        self.requests.append(dict(bits))
        await self._gate.wait()
        if self.error is not None:
            raise self.error

    def answer(self) -> None:
        self._gate.set()
        self._gate = trio.Event()


async def test_what_gathers_goes_with_the_next_request() -> None:
    broker, done = Broker(), list[int]()
    lane = AckLane(broker.send)
    async with trio.open_nursery() as nursery:

        async def ack(number: int) -> None:
            await lane.ack({LEASES[number // 2]: 1 << number % 2}, nursery)
            done.append(number)

        for number in range(40):
            nursery.start_soon(ack, number)
        await wait_all_tasks_blocked()
        assert len(broker.requests) == AT_ONCE
        broker.answer()
        await wait_all_tasks_blocked()
        assert len(done) == AT_ONCE
        assert len(broker.requests) == AT_ONCE + 1, "all others in one request"
        broker.answer()
    assert sorted(done) == list(range(40))
    acked: Bits = {}
    for request in broker.requests:
        for lease, bits in request.items():
            acked[lease] = acked.get(lease, 0) | bits
    assert acked == {LEASES[number]: 3 for number in range(20)}


async def test_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple, "MAX_ENTRIES", 10)
    broker = Broker()
    lane = AckLane(broker.send)
    async with trio.open_nursery() as nursery:
        for lease in LEASES:
            nursery.start_soon(lane.ack, {lease: 1}, nursery)
        while sum(map(len, broker.requests)) < len(LEASES):
            await wait_all_tasks_blocked()
            broker.answer()
        await wait_all_tasks_blocked()
        broker.answer()
    assert max(map(len, broker.requests)) == 10


async def test_an_error_is_raised_in_each_task_concerned() -> None:
    broker, failed = Broker(), list[SkylarkError]()
    broker.error = BrokerError(2, "busy", "b")
    lane = AckLane(broker.send)
    async with trio.open_nursery() as nursery:

        async def ack(lease: Lease) -> None:
            with pytest.raises(BrokerError) as caught:
                await lane.ack({lease: 1}, nursery)
            failed.append(caught.value)

        for lease in LEASES[:10]:
            nursery.start_soon(ack, lease)
        for _ in range(2):
            await wait_all_tasks_blocked()
            broker.answer()
    assert failed == [broker.error] * 10


async def test_who_waits_when_the_client_closes_is_told() -> None:
    broker, told = Broker(), list[str]()
    lane = AckLane(broker.send)
    async with trio.open_nursery() as users:
        async with trio.open_nursery() as client:

            async def ack(lease: Lease) -> None:
                try:
                    await lane.ack({lease: 1}, client)
                except SkylarkError as error:
                    told.append(str(error))

            for lease in LEASES[: AT_ONCE + 2]:
                users.start_soon(ack, lease)
            await wait_all_tasks_blocked()
            client.cancel_scope.cancel()
        broker.answer()
    assert told == ["the client was closed"] * 2
