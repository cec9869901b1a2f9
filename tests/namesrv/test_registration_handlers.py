"""Registrations that wait, with those that do not: order, bounds, and what readers see."""

from pathlib import Path
from typing import Any

import pytest
import trio

from skylark.mqcommon.errors import RequestRefused
from skylark.namesrv import registration_handlers
from skylark.namesrv.registration_handlers import Registrations
from skylark.namesrv.state import State
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.steps import Stepper
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests import registrations
from skylark.remoting.protocol.requests.registrations import (
    REGISTER_BROKER,
    STEP_TOPICS,
    UNREGISTER_BROKER,
    RegisterBrokerBody,
    encode_compressed,
)
from skylark.remoting.protocol.requests.topics import TopicConfigTable
from tests.namesrv.peer import Peer, Served, serve
from tests.namesrv.registrations import all_topics, configs_of, live_addrs, version
from tests.support.caller import Caller
from tests.support.clock import ManualClock
from tests.support.waiting import until

LARGE = tuple(f"large-{number}" for number in range(4 * STEP_TOPICS))


class Desk:
    def __init__(self, state: State) -> None:
        self.state = state
        self.changes = 0
        self.registrations = Registrations(state, Stepper(), self._changed)
        self.caller = Caller()

    @property
    def answered(self) -> list[tuple[int, int]]:
        return [(answer.opaque, answer.code) for answer in self.caller.received()]

    def _changed(self) -> None:
        self.changes += 1

    def handle(self, request: Command, channel: Channel | None = None) -> Command | None:
        return self.registrations.handle(channel or self.caller.channel, request)

    async def work(self) -> None:
        """Process requests until none waits."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.registrations.run)
            await until(lambda: not self.registrations._waiting, "nothing waits")
            nursery.cancel_scope.cancel()

    def topics(self) -> set[str]:
        return all_topics(self.state.routes)


@pytest.fixture
def desk(served: Served) -> Desk:
    return Desk(served.namesrv.state)


def request(
    opaque: int, *topics: str, addr: str = "a:1", name: str = "broker-a", counter: int = 0, compressed: bool = False
) -> Command:
    body = RegisterBrokerBody(TopicConfigTable(version(counter), configs_of(*topics)))
    ext: dict[str, Any] = {
        "brokerName": name, "brokerAddr": addr, "clusterName": "c", "haServerAddr": "", "brokerId": 0,
        "compressed": compressed,
    }  # fmt: skip
    data = encode_compressed(body, 479) if compressed else encode_body(body)
    return Command(REGISTER_BROKER.code, ext, data, opaque=opaque, version=479)


def good_bye(opaque: int, addr: str = "a:1") -> Command:
    ext = {"brokerName": "broker-a", "brokerAddr": addr, "clusterName": "c", "brokerId": 0}
    return Command(UNREGISTER_BROKER.code, ext, opaque=opaque)


async def test_a_small_one_is_answered_at_once_also_while_a_large_one_of_another_broker_waits(desk: Desk) -> None:
    assert desk.handle(request(1, *LARGE)) is None
    answer = desk.handle(request(2, "t1", "t2", addr="b:1", name="broker-b"))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert desk.topics() == {"t1", "t2"}
    await desk.work()
    assert desk.answered == [(1, 0)]
    assert desk.topics() == {"t1", "t2", *LARGE}
    assert desk.changes == 1


async def test_many_small_ones_that_arrive_together_wait_so_that_queries_are_answered_between(desk: Desk) -> None:
    small = [f"t{number}" for number in range(200)]
    size = len(request(0, *small).body)
    count = registration_handlers.AT_ONCE_BYTES // size + 3
    found = [desk.handle(request(n, *small, addr=f"a:{n}", name=f"broker-{n}")) for n in range(count)]
    assert [answer is None for answer in found] == [False] * (count - 3) + [True] * 3
    await desk.work()
    assert desk.answered == [(n, 0) for n in range(count - 3, count)]
    assert len(live_addrs(desk.state.routes)) == count
    clock = desk.state.clock
    assert isinstance(clock, ManualClock)
    clock.advance(registration_handlers.AT_ONCE_MS)
    assert desk.handle(request(1, *small)) is not None


@pytest.mark.parametrize("compressed", [False, True])
async def test_requests_of_one_broker_are_processed_in_their_order(desk: Desk, compressed: bool) -> None:
    assert desk.handle(request(1, *LARGE, compressed=compressed)) is None
    assert desk.handle(good_bye(2)) is None
    assert desk.handle(request(3, "t1", "t2", counter=2)) is None
    await desk.work()
    assert desk.answered == [(1, 0), (2, 0), (3, 0)]
    assert desk.topics() == {"t1", "t2"}
    assert desk.handle(good_bye(4)) is not None  # nothing waits any more
    assert desk.topics() == set()


async def test_readers_see_all_of_a_large_registration_or_nothing(desk: Desk) -> None:
    steps = registration_handlers._steps(desk.state, desk.caller.channel, request(1, *LARGE))
    count = 0
    for _ in steps:
        count += 1
        assert desk.topics() == set()
    assert desk.topics() == set(LARGE)
    assert count >= 2 * len(LARGE) // STEP_TOPICS


async def test_requests_of_a_closed_connection_are_dropped(desk: Desk) -> None:
    gone = Caller()
    assert desk.handle(request(1, *LARGE), gone.channel) is None
    assert desk.handle(request(2, *LARGE, addr="b:1", name="broker-b")) is None
    gone.channel.close("reset")
    await desk.work()
    assert desk.answered == [(2, 0)]
    assert live_addrs(desk.state.routes) == ["b:1"]


async def test_a_refused_registration_holds_up_no_other(desk: Desk) -> None:
    bad = request(1, *LARGE)
    bad.body = b"{" * len(bad.body)
    assert desk.handle(bad) is None
    assert desk.handle(request(2, *LARGE)) is None
    await desk.work()
    assert desk.answered == [(1, ResponseCode.SYSTEM_ERROR), (2, 0)]


async def test_waiting_registrations_are_bounded(desk: Desk) -> None:
    large = request(1, *LARGE)
    desk.caller.channel._budget.most = 2 * len(large.body) - 1
    assert desk.handle(large) is None
    with pytest.raises(RequestRefused) as refused:
        desk.handle(request(2, *LARGE))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    await desk.work()
    assert desk.handle(request(3, *LARGE)) is None
    await desk.work()
    assert desk.answered == [(1, 0), (3, 0)]


@pytest.mark.parametrize("compressed", [True, False])
async def test_more_topics_than_the_table_takes_at_once_are_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    monkeypatch.setattr(registrations, "MAX_TOPICS", len(LARGE) - 1)
    assert desk.handle(request(1, *LARGE, compressed=compressed)) is None
    await desk.work()
    assert desk.answered == [(1, ResponseCode.SYSTEM_ERROR)]
    assert desk.topics() == set()


async def test_a_large_registration_over_a_connection(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path)
    peer: Peer = await served.peer()
    assert (await peer.register("127.0.0.1:10911", *LARGE)).code == 0
    assert await peer.topics() == sorted(LARGE)
    await peer.stream.aclose()


async def test_brokers_that_take_the_place_of_others_are_counted(
    peer: Peer, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for addr in ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"):
        await peer.register(addr)
    assert served.namesrv.state.displacements == 2
    assert "broker displaced 127.0.0.1:2, which had the same name and id" in caplog.text
    assert "displacements=2" in caplog.text
