"""Answers to heartbeats: they name the master, and no master is told that it leads while another is being elected."""

import pytest
import trio

from skylark.namesrv.controller import leases
from skylark.remoting.net.call import call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import MasterHeader
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader
from tests.namesrv.controller.controllers import CLUSTER, NAME, StandIn, code_of, open_controllers, open_stand_in

TIMEOUT_MS = 1_000


async def beat(broker: StandIn, at: str, timeout_ms: int = TIMEOUT_MS) -> MasterHeader:
    header = BrokerHeartbeatRequestHeader(
        CLUSTER, broker.addr, NAME, broker.broker_id, heartbeat_timeout_mills=timeout_ms
    )
    return (await call(broker.at(at), BROKER_HEARTBEAT, header)).header()


async def test_a_heartbeat_is_answered_with_the_master() -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as first, open_stand_in() as second:
        at = await controllers.leader_addr()
        await first.join(at)
        await first.elect(at, 1)
        await second.join(at)
        for broker in (first, second):
            assert await beat(broker, at) == MasterHeader(1, first.addr, 1, 1)


async def test_a_timeout_longer_than_a_new_leaders_patience_gives_no_lease() -> None:
    async with open_controllers("n0", broker_heartbeat_timeout=TIMEOUT_MS) as controllers, open_stand_in() as first:
        at = await controllers.leader_addr()
        await first.join(at)
        await first.elect(at, 1)
        assert (await beat(first, at)).master_broker_id == 1
        assert await beat(first, at, TIMEOUT_MS + 1) == MasterHeader()


async def test_a_designated_master_is_elected_when_the_old_one_may_not_take_itself_for_it_any_more() -> None:
    options = {"broker_heartbeat_timeout": TIMEOUT_MS}
    async with open_controllers("n0", **options) as controllers, open_stand_in() as first, open_stand_in() as second:
        at = await controllers.leader_addr()
        await first.join(at, timeout_ms=TIMEOUT_MS)
        await first.elect(at, 1)
        await second.join(at)
        await first.alter(at, [1, 2], 1)
        await beat(first, at)
        elected: list[MasterHeader] = []

        async def designate() -> None:
            elected.append(await second.elect(at, 2, designate=True))

        refusals = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(designate)
            while not elected:
                refusals += await code_of(beat(first, at)) == ResponseCode.SYSTEM_BUSY
        assert refusals
        assert (elected[0].master_broker_id, elected[0].master_epoch) == (2, 2)
        assert (await beat(first, at)).master_broker_id == 2


async def test_more_heartbeats_than_can_wait_are_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as first:
        at = await controllers.leader_addr()
        await first.join(at)
        with monkeypatch.context() as patch:
            patch.setattr(leases, "MAX_WAITING", 0)
            assert await code_of(beat(first, at)) == ResponseCode.SYSTEM_BUSY
        assert await code_of(beat(first, at)) == ResponseCode.SUCCESS
