"""Controllers on loopback: brokers get ids and a master, masters die, Controllers die."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.options.conf_file import update
from skylark.namesrv.controller.options import DEFAULT_SCAN_MS, ControllerDaemonOptions
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.call import call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    GET_CONTROLLER_CONFIG,
    UPDATE_CONTROLLER_CONFIG,
    ApplyBrokerIdRequestHeader,
    CleanBrokerDataRequestHeader,
    GetReplicaInfoRequestHeader,
)
from skylark.remoting.protocol.requests.raft import RAFT_MEMBERS, RaftMembersRequestHeader
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader
from tests.namesrv.controller.controllers import LONG_MS, NAME, StandIn, code_of, open_controllers, open_stand_in
from tests.support.waiting import until


async def pair(at: str, first: StandIn, second: StandIn) -> None:
    """A set of a master and a slave, both in the SyncStateSet."""
    await first.join(at)
    assert (await first.elect(at, 1)).master_epoch == 1
    await second.join(at)
    assert await first.alter(at, [1, 2], 1) == 2


async def test_a_master_that_was_killed_is_replaced_and_all_are_told() -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as second, open_stand_in() as third:
        at = await controllers.leader_addr()
        async with open_stand_in() as first:
            await pair(at, first, second)
            await third.join(at)
        await until(lambda: bool(second.notices and third.notices), "the notices")
        for broker in (second, third):
            header, in_sync = broker.notices[-1]
            assert (header.master_broker_id, header.master_address) == (2, second.addr)
            assert (header.master_epoch, header.sync_state_set_epoch) == (2, 3)
            assert (in_sync.sync_state_set, in_sync.sync_state_set_epoch) == ([2], 3)
        assert await third.register(at) == 2


ONE_PEER: dict[str, Any] = {"controller_d_leger_peers": "n0-127.0.0.1:9877", "controller_d_leger_self_id": "n0"}


async def test_a_controller_is_ready_while_its_group_has_a_leader() -> None:
    async with open_controllers("n0", "n1", "n2") as controllers:
        await controllers.leader_addr()
        for controller in controllers.running.values():
            await until(lambda: not controller.unready, "a leader")  # noqa: B023 - called at once
        left = controllers.running["n0"]
        for name in ("n1", "n2"):
            await controllers.stop(name)
        await until(lambda: left.unready == "the group has no leader", "the end of the majority")
        await left.stop()
        assert left.unready == "this Controller stops"


async def test_a_connection_that_closes_is_no_death_while_the_broker_listens() -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as first, open_stand_in() as second:
        at = await controllers.leader_addr()
        await pair(at, first, second)
        first.client.close_connection(at)
        await first.beat(at)
        assert await code_of(second.elect(at, 2)) == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        assert await second.master(at) == 1


async def test_a_silent_master_is_replaced() -> None:
    async with AsyncExitStack() as stack:
        controllers = await stack.enter_async_context(open_controllers("n0", broker_heartbeat_timeout=100))
        first = await stack.enter_async_context(open_stand_in())
        second = await stack.enter_async_context(open_stand_in())
        at = await controllers.leader_addr()
        await pair(at, first, second)
        await first.beat(at, timeout_ms=100)
        await until(lambda: bool(second.notices), "a notice")
        assert second.notices[-1][0].master_broker_id == 2
        # It was only slow: it is a slave now, and what it asks as the master is refused.
        assert await first.register(at) == 2
        assert await code_of(first.alter(at, [1], 2)) == ResponseCode.CONTROLLER_INVALID_MASTER


def test_the_time_between_scans_can_be_set_and_changed() -> None:
    options = ControllerDaemonOptions(**ONE_PEER, scan_not_active_broker_interval=5_000)
    assert options.scan_brokers_ms == 5_000
    changed = update(options, [("scanNotActiveBrokerInterval", "50")])
    assert changed.scan_brokers_ms == 50
    # In a NameServer the option is for its routes: the Controller in it goes on finding dead masters quickly.
    inside = NamesrvOptions(enable_controller_in_namesrv=True, **ONE_PEER, scan_not_active_broker_interval=5_000)
    assert inside.scan_brokers_ms == DEFAULT_SCAN_MS == ControllerDaemonOptions(**ONE_PEER).scan_brokers_ms


async def test_a_broker_that_is_not_electable_is_never_elected() -> None:
    async with open_controllers("n0", enable_elect_unclean_master=True) as controllers, open_stand_in() as second:
        at = await controllers.leader_addr()
        async with open_stand_in() as first:
            await pair(at, first, second)
            await second.beat(at, is_electable=False)
        await until(lambda: _is_lost(second, at), "no master")
        assert await code_of(second.elect(at, 2)) == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        await second.beat(at, is_electable=True)
        assert (await second.elect(at, 2)).master_epoch == 2


async def _is_lost(broker: StandIn, at: str) -> bool:
    return await broker.master(at) is None


@pytest.mark.parametrize("unclean", [False, True])
async def test_a_replica_that_may_lack_messages_leads_only_if_that_is_wanted(unclean: bool) -> None:
    async with open_controllers("n0", enable_elect_unclean_master=unclean, broker_heartbeat_timeout=100) as controllers:
        at = await controllers.leader_addr()
        async with open_stand_in() as second:
            async with open_stand_in() as first:
                await first.join(at)
                await first.elect(at, 1)
                await second.join(at)
            if unclean:
                await until(lambda: bool(second.notices), "a notice")
                view = controllers.running["n0"].view
                assert view is not None
                assert view.unclean_elections == 1
            else:
                await until(lambda: _is_lost(second, at), "no master")
                assert await code_of(second.elect(at, 2)) == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            assert await second.master(at) == (2 if unclean else None)


async def test_another_controller_goes_on_and_the_others_name_it() -> None:
    names = ("n0", "n1", "n2")
    more = {"controller_election_timeout": 1_000, "broker_heartbeat_timeout": LONG_MS}
    async with open_controllers(*names, **more) as controllers, AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_stand_in())
        second = await stack.enter_async_context(open_stand_in())
        await controllers.asked(first.join)
        await controllers.asked(lambda at: first.elect(at, 1))
        await controllers.asked(second.join)
        leader = await controllers.leader()
        addr = controllers.addrs[leader]
        other = next(controllers.addrs[each] for each in names if each != leader)
        told = (await call(first.at(other), CONTROLLER_GET_METADATA_INFO)).header()
        assert (told.controller_leader_address, told.is_leader) == (addr, False)
        with pytest.raises(BrokerError, match=f"ask {addr}") as refused:
            await first.master(other)
        assert refused.value.code == ResponseCode.CONTROLLER_NOT_LEADER
        await controllers.stop(leader)
        assert await controllers.asked(first.master) == 1
        # The new leader waits until all had time to be heard: the master is not replaced meanwhile.
        with pytest.raises(BrokerError, match="is still alive") as kept:
            await controllers.asked(lambda at: second.elect(at, 2))
        assert kept.value.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        await controllers.start(leader)
        assert await controllers.asked(second.register) == 1


async def test_a_leader_that_stops_has_handed_the_leadership_over() -> None:
    async with open_controllers("n0", "n1", "n2") as controllers:
        name = await controllers.leader()
        leader = controllers.running[name]
        await leader.stop()
        assert leader.view is not None and not leader.view.group.is_leader


async def test_administrators_see_and_change_it() -> None:
    async with AsyncExitStack() as stack:
        # A designated election waits until what another Controller told the old master is over.
        controllers = await stack.enter_async_context(open_controllers("n0", broker_heartbeat_timeout=100))
        first = await stack.enter_async_context(open_stand_in())
        second = await stack.enter_async_context(open_stand_in())
        at = await controllers.leader_addr()
        await pair(at, first, second)
        remote = first.at(at)
        answer = await call(remote, CONTROLLER_GET_SYNC_STATE_DATA, None, b'["broker-a","broker-x"]')
        (shown,) = answer.body().replicas_info_table.values()
        assert [(each.broker_id, each.alive) for each in shown.in_sync_replicas] == [(1, True), (2, True)]
        assert (shown.master_broker_id, shown.master_address, shown.sync_state_set_epoch) == (1, first.addr, 2)
        assert (await second.elect(at, 2, designate=True)).master_epoch == 2
        clean = CleanBrokerDataRequestHeader(NAME, broker_controller_ids_to_clean="1")
        assert await code_of(call(remote, CLEAN_BROKER_DATA, clean)) == 2009
        clean.is_clean_living_broker = True
        assert await code_of(call(remote, CLEAN_BROKER_DATA, clean)) == ResponseCode.SUCCESS
        assert await code_of(first.register(at)) == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        await call(remote, UPDATE_CONTROLLER_CONFIG, None, b"enableElectUncleanMaster=true\n")
        await call(remote, UPDATE_CONTROLLER_CONFIG, None, b"scanNotActiveBrokerInterval=50\n")
        config = (await call(remote, GET_CONTROLLER_CONFIG)).command.body
        assert b"scanNotActiveBrokerInterval=50" in config
        assert b"enableElectUncleanMaster=true" in config
        members = (await call(remote, RAFT_MEMBERS, RaftMembersRequestHeader("list"))).body()
        assert (members.leader, members.voters, members.learners) == ("n0", {"n0": at}, {})
        for action, node in (("remove", "n0"), ("transfer", "n7"), ("dance", "n0"), ("add", None)):
            assert await code_of(call(remote, RAFT_MEMBERS, RaftMembersRequestHeader(action, node))) != 0


CANNOT: list[tuple[Any, Any, bytes, int, str]] = [
    (
        CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader(NAME, broker_controller_ids_to_clean="1,2"), b"",
        ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, "according to the format 1;2;3, not 1,2",
    ),
    (
        CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader(NAME, "other"), b"",
        ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, "broker-a belongs to cluster DefaultCluster, not other",
    ),
    (CONTROLLER_GET_SYNC_STATE_DATA, None, b"[", ResponseCode.SYSTEM_ERROR, "the body cannot be read"),
    (CONTROLLER_GET_SYNC_STATE_DATA, None, b'{"a":"b"}', ResponseCode.SYSTEM_ERROR, "not an array of broker names"),
    (CONTROLLER_GET_SYNC_STATE_DATA, None, b"[1]", ResponseCode.SYSTEM_ERROR, "not an array of broker names"),
    (
        CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader("unknown"), b"",
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed",
    ),
    (
        BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader("DefaultCluster", "127.0.0.1:1", NAME), b"",
        ResponseCode.SYSTEM_ERROR, "needs the field brokerId",
    ),
    (
        CONTROLLER_APPLY_BROKER_ID, ApplyBrokerIdRequestHeader("DefaultCluster", "n" * 256, 1, "code"), b"",
        ResponseCode.CONTROLLER_BROKER_ID_INVALID, "names of brokers have 1 to 255 characters",
    ),
]  # fmt: skip


async def test_requests_that_cannot_be_carried_out_are_refused_with_the_reason() -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as broker:
        at = await controllers.leader_addr()
        await broker.join(at)
        for kind, header, body, code, text in CANNOT:
            with pytest.raises(BrokerError, match=text) as refused:
                await call(broker.at(at), kind, header, body)
            assert refused.value.code == code


async def test_only_brokers_that_have_an_id_are_heard() -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as broker:
        at = await controllers.leader_addr()
        broker.broker_id = 7  # it never asked for one
        need = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        assert await code_of(broker.beat(at)) == need
        assert await code_of(broker.register(at)) == need
        broker.broker_id = 0
        await broker.join(at)
        broker.addr = "nowhere"
        assert await code_of(broker.register(at)) == ResponseCode.INVALID_PARAMETER


async def test_a_living_broker_is_not_registered_at_another_address() -> None:
    """Two brokers with a copied identity: the younger one is refused, and its heartbeats do not count."""
    async with open_controllers("n0") as controllers, open_stand_in() as older, open_stand_in() as younger:
        at = await controllers.leader_addr()
        await older.join(at)
        younger.broker_id = older.broker_id
        with pytest.raises(BrokerError, match=f"alive at {older.addr}, so it cannot be at {younger.addr}") as refused:
            await younger.register(at)
        assert refused.value.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        assert await code_of(younger.beat(at)) == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        await older.register(at)


async def test_all_controllers_stop_and_remember() -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as first, open_stand_in() as second:
        await pair(await controllers.leader_addr(), first, second)
        await controllers.stop("n0")
        await controllers.start("n0")
        at = await controllers.leader_addr()
        assert await second.register(at) == 1
        assert await code_of(first.alter(at, [1], 1)) == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
