"""A slave acts while its master is away, and yields: a NameServer, brokers and a client; memory for disks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from skylark.broker.registration import pre_online as pre_online_module
from skylark.broker.registration import registrar as registrar_module
from skylark.broker.replication import offset_hand_over as hand_over_module
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.offsets import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from skylark.remoting.protocol.requests.replication import EXCHANGE_BROKER_HA_INFO
from skylark.remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC, TopicRouteData
from tests.broker.replication.sets import SLAVE, Running, broker
from tests.broker.running import pull_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

ACTING: dict[str, Any] = {
    "enable_slave_acting_master": True,
    "broker_heartbeat_interval": 20,
    "sync_broker_member_group_period": 20,
}
SECOND: dict[str, Any] = {**SLAVE, "broker_id": 2}
COMMIT_OFFSET = 1  # of a pull's sysFlag


@dataclass
class Cluster:
    namesrv: Namesrv
    addr: str
    client: RemotingClient

    @property
    def options(self) -> dict[str, Any]:
        return {**ACTING, "namesrv_addr": self.addr}

    async def route(self, topic: str) -> tuple[dict[int, str], int]:
        """The members that clients see, and the topic's permissions."""
        request = Command(GET_ROUTEINFO_BY_TOPIC.code, {"topic": topic})
        answer = await self.client.invoke(self.addr, request)
        if answer.code != ResponseCode.SUCCESS:
            return {}, 0
        route = decode_body(TopicRouteData, answer.body, answer.codec)
        return route.broker_datas[0].broker_addrs, route.queue_datas[0].perm

    async def shows(self, topic: str, addrs: dict[int, str], perm: int) -> None:
        async def shown() -> bool:
            return await self.route(topic) == (addrs, perm)

        await until(shown, f"{topic} at {addrs}, perm {perm}")

    async def commit(self, addr: str, offset: int) -> None:
        ext = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
        answer = await self.client.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, ext))
        assert answer.code == ResponseCode.SUCCESS

    async def committed(self, addr: str) -> int:
        ext = {"consumerGroup": "g", "topic": "T", "queueId": 0, "setZeroIfNotFound": False}
        answer = await self.client.invoke(addr, Command(QUERY_CONSUMER_OFFSET.code, ext))
        return int((answer.ext or {}).get("offset", -1))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(hand_over_module, "RETRY_S", 0.02)
    monkeypatch.setattr(pre_online_module, "RETRY_S", 0.02)


@asynccontextmanager
async def cluster(**options: Any) -> AsyncIterator[Cluster]:
    options = {"support_acting_master": True, "notify_min_broker_id_changed": True, **options}
    namesrv = Namesrv(NamesrvOptions(bind_address="127.0.0.1", listen_port=0, **options), fs=MemoryFiles())
    async with trio.open_nursery() as nursery, open_client() as client:
        yield Cluster(namesrv, await nursery.start(namesrv.run), client)
        nursery.cancel_scope.cancel()


async def acts(one: Running, acting: bool = True) -> None:
    """Wait until brokerStatus says that the broker acts as the master, or does not."""

    async def told() -> bool:
        answer = await one.client.invoke(one.addr, Command(GET_BROKER_RUNTIME_INFO.code))
        table = decode_body(KVTable, answer.body, answer.codec).table
        return table["brokerActive"] == str(acting).lower()

    await until(told, f"{one.addr} acts: {acting}")


async def test_the_slave_acts_and_yields_and_the_master_has_what_was_committed() -> None:
    async with cluster() as here, broker(**here.options, **SLAVE) as slave:
        async with broker(**here.options) as master:
            for number in range(10):
                await master.send("T", b"%d" % number)
            await here.commit(master.addr, 3)
            assert len(await slave.has("T", 10)) == 10
            await here.shows("T", {0: master.addr, 1: slave.addr}, 6)
            await acts(slave, False)
            disk = master.kill()
        await acts(slave)
        await here.shows("T", {0: slave.addr}, 4)

        pull = pull_request("T", 3, sysFlag=COMMIT_OFFSET | 4, commitOffset=5, subscription="*", consumerGroup="g")
        answer = await here.client.invoke(slave.addr, pull)
        assert answer.code == ResponseCode.SUCCESS
        assert (answer.ext or {})["suggestWhichBrokerId"] in (0, "0")
        assert await here.committed(slave.addr) == 5
        await here.commit(slave.addr, 8)

        async with broker(disk, **here.options) as master:
            await here.shows("T", {0: master.addr, 1: slave.addr}, 6)
            assert await here.committed(master.addr) == 8
            await acts(master)
            await acts(slave, False)
            await master.send("T", b"10")
            assert len(await slave.has("T", 11)) == 11
            await here.commit(master.addr, 11)

            async def copied() -> bool:
                return await here.committed(slave.addr) == 11

            await until(copied, "the slave copies offsets again")


async def test_a_sync_master_finds_its_slave_when_it_is_back() -> None:
    async with cluster() as here, broker(**here.options, **SLAVE) as slave:
        disk = MemoryFiles()
        for turn in range(3):
            async with broker(disk, **here.options, broker_role="SYNC_MASTER") as master:
                await here.shows("TBW102", {0: master.addr, 1: slave.addr}, 7)
                await master.send("T", b"%d" % turn)  # which fails when no slave is there
                disk = master.kill()
            await acts(slave)


async def test_of_two_slaves_the_lowest_acts_and_then_the_next_and_their_offsets_reach_the_master() -> None:
    async with cluster() as here, broker(**here.options, **SECOND) as second:
        async with broker(**here.options, **SLAVE) as first:
            async with broker(**here.options) as master:
                for _ in range(7):
                    await master.send("T", b"0")
                await first.has("T", 7)
                await second.has("T", 7)
                disk = master.kill()
            await acts(first)
            await acts(second, False)
            await here.shows("T", {0: first.addr, 2: second.addr}, 4)
            left = first.kill()
        await acts(second)
        await here.shows("T", {0: second.addr}, 4)
        await here.commit(second.addr, 7)
        async with broker(left, **here.options, **SLAVE) as first:
            await acts(first)
            await acts(second, False)
            await here.shows("T", {0: first.addr, 2: second.addr}, 4)
            async with broker(disk, **here.options) as master:
                await here.shows("T", {0: master.addr, 1: first.addr, 2: second.addr}, 6)
                assert await here.committed(master.addr) == 7


async def test_a_master_that_flaps_gets_every_commit() -> None:
    async with cluster() as here, broker(**here.options, **SLAVE) as slave:
        disk = MemoryFiles()
        for turn in range(1, 5):
            async with broker(disk, **here.options) as master:
                await here.shows("TBW102", {0: master.addr, 1: slave.addr}, 7)
                for _ in range(3):
                    await master.send("T", b"%d" % turn)
                await slave.has("T", 3 * turn)
                assert await here.committed(master.addr) == (3 * (turn - 1) or -1)
                disk = master.kill()
            await acts(slave)
            await here.commit(slave.addr, 3 * turn)
        assert await here.committed(slave.addr) == 12


async def test_what_happens_is_noticed_at_once_however_seldom_the_slave_asks() -> None:
    seldom = {"sync_broker_member_group_period": 1_000_000}
    async with cluster() as here, broker(**{**here.options, **seldom}, **SLAVE) as slave:
        await acts(slave)
        for _ in range(2):
            async with broker(**here.options) as master:
                await acts(slave, False)
                master.kill()
            await acts(slave)


@pytest.mark.parametrize("slave", [{}, SLAVE])
async def test_members_answer_each_other_only_with_acting_masters(slave: dict[str, Any]) -> None:
    for options, code in ((ACTING, ResponseCode.SUCCESS), ({}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)):
        async with broker(**options, **slave) as one:
            for request in (NOTIFY_MIN_BROKER_ID_CHANGE.code, EXCHANGE_BROKER_HA_INFO.code):
                answer = await one.client.invoke(one.addr, Command(request, {}))
                assert answer.code == code


async def test_a_frozen_master_is_found_out_by_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of a frozen master stays open, but a living master sends a heartbeat each second."""
    monkeypatch.setattr(registrar_module.Registrar, "_connection_lost", lambda self, addr: None)
    async with cluster(scan_not_active_broker_interval=20) as here, broker(**here.options, **SLAVE) as slave:
        options = {**here.options, "broker_not_active_timeout_millis": 400}
        async with broker(**{**options, "broker_heartbeat_interval": 100_000}) as master:
            await here.shows("TBW102", {0: master.addr, 1: slave.addr}, 7)
            await acts(slave)


async def test_a_master_without_nameservers_or_slaves_is_online_at_once() -> None:
    async with broker(**ACTING) as master:
        await acts(master)
    async with cluster() as here, broker(**here.options, total_replicas=1, in_sync_replicas=1) as master:
        await here.shows("TBW102", {0: master.addr}, 7)
        await acts(master)


async def test_without_acting_masters_a_slave_never_acts() -> None:
    plain = {"enable_slave_acting_master": False}
    async with cluster() as here, broker(**{**here.options, **plain}, **SLAVE) as slave:
        async with broker(**{**here.options, **plain}) as master:
            await master.send("T", b"0")
            await slave.has("T", 1)
            await acts(master)
            master.kill()
        await here.shows("T", {1: slave.addr}, 6)
        await acts(slave, False)
