"""A master and its slaves, as a consumer meets them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from skylark.sdk.consumer.pull import PullConsumer
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving
from tests.support.waiting import DEADLINE_S


@dataclass
class BrokerSet:
    """Broker-a: ``brokers[0]`` is the master."""

    namesrv: FakeNamesrv
    brokers: list[FakeBroker]
    consumer: PullConsumer
    nursery: trio.Nursery
    _running: dict[int, trio.CancelScope] = field(default_factory=dict)

    @property
    def master(self) -> FakeBroker:
        return self.brokers[0]

    @property
    def slave(self) -> FakeBroker:
        return self.brokers[1]

    @property
    def addrs(self) -> dict[int, str]:
        """The addresses in the NameServer's answer, which tests may change."""
        return self.namesrv.routes["t"].broker_datas[0].broker_addrs

    async def start(self, number: int) -> None:
        """Start a broker that was stopped, where it was."""
        started = trio.Event()
        self.nursery.start_soon(self._serve, self.brokers[number], started)
        await started.wait()

    async def _serve(self, broker: FakeBroker, started: trio.Event) -> None:
        async with serving(broker):
            started.set()
            await trio.sleep_forever()

    def put(self, *bodies: bytes) -> None:
        """Put messages at all brokers."""
        for broker in self.brokers:
            broker.put("t", 0, *bodies)


@asynccontextmanager
async def broker_set(slaves: int = 1, *, timeout_ms: int = 3_000) -> AsyncIterator[BrokerSet]:
    async with AsyncExitStack() as stack:
        namesrv = await stack.enter_async_context(serving(FakeNamesrv()))
        brokers = [await stack.enter_async_context(serving(FakeBroker())) for _ in range(1 + slaves)]
        assert isinstance(namesrv, FakeNamesrv)
        fakes = [broker for broker in brokers if isinstance(broker, FakeBroker)]
        namesrv.add("t", fakes[0])
        consumer = PullConsumer(namesrv.addr, group="g", heartbeat=False, timeout_ms=timeout_ms, start_timeout_ms=None)
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery, consumer:
                made = BrokerSet(namesrv, fakes, consumer, nursery)
                made.addrs.update({number: broker.addr for number, broker in enumerate(fakes)})
                yield made
                nursery.cancel_scope.cancel()
