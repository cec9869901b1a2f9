"""A SYNC_MASTER and real slaves: what an acknowledgement means, and what a send is told when slaves are not well."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from skylark.broker.replication.link import LinkToSlave
from skylark.broker.replication.session import MasterSide, Peer
from skylark.broker.replication.slave import HaClient
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.message.message import decode_messages
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import GET_BROKER_HA_STATUS, GET_BROKER_RUNTIME_INFO, HARuntimeInfo
from skylark.remoting.protocol.requests.sends import NOT_SAFE_HERE, ONLY_IF_SAFE
from tests.broker.replication.sets import SLAVE, Running, broker
from tests.broker.running import pull_request, send_request
from tests.support.waiting import until

Options = dict[str, Any]
SYNC: Options = {"broker_role": "SYNC_MASTER"}


async def code_of_a_send(master: Running, body: bytes = b"hello") -> int:
    return (await master.client.invoke(master.addr, send_request("T", body), 10_000)).code


async def status(at: Running) -> HARuntimeInfo:
    answer = await at.client.invoke(at.addr, Command(GET_BROKER_HA_STATUS.code))
    return decode_body(HARuntimeInfo, answer.body, answer.codec)


async def in_sync(master: Running, slaves: int = 1) -> None:
    """Wait until ``slaves`` slaves follow."""

    async def so_many() -> bool:
        return (await status(master)).in_sync_slave_nums == slaves

    await until(so_many, f"{slaves} slaves in sync")


@asynccontextmanager
async def silent_slave(master: Running) -> AsyncIterator[None]:
    """A slave that has nothing, takes nothing, and stays connected."""
    async with await trio.open_tcp_stream(*split_address(master.broker.ha_addr)) as stream:
        await stream.send_all(bytes(8))
        await in_sync(master)
        yield


async def test_what_is_acknowledged_is_on_the_slave(options: Options) -> None:
    async with broker(**options, **SYNC) as master, broker(**options, **SLAVE) as slave:
        await in_sync(master)
        for number in range(50):
            body = b"message %d " % number * 20
            assert await code_of_a_send(master, body) == ResponseCode.SUCCESS
            assert body in slave.log()


async def test_with_sync_flush_on_both_it_is_on_both_disks(options: Options) -> None:
    flush: Options = {"flush_disk_type": "SYNC_FLUSH"}
    async with broker(**options, **SYNC, **flush) as master, broker(**options, **SLAVE, **flush) as slave:
        await in_sync(master)
        for number in range(20):
            body = b"message %d " % number * 20
            assert await code_of_a_send(master, body) == ResponseCode.SUCCESS
            for one in (master, slave):
                left = one.fs.crash(Random(number))
                names = left.listdir("/store/commitlog")
                assert body in b"".join(left.read(f"/store/commitlog/{name}") for name in names)


async def test_without_a_slave_a_message_is_stored_on_the_master_alone(options: Options) -> None:
    async with broker(**options, **SYNC) as master:
        assert await code_of_a_send(master) == ResponseCode.SLAVE_NOT_AVAILABLE
        assert await master.bodies("T") == [b"hello"]


async def test_a_send_that_another_broker_could_store_is_not_stored_without_a_slave(options: Options) -> None:
    async with broker(**options, **SYNC) as master:
        asked = send_request("T", b"hello", **{ONLY_IF_SAFE: True})
        answer = await master.client.invoke(master.addr, asked, 10_000)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, NOT_SAFE_HERE)
        async with broker(**options, **SLAVE):
            await in_sync(master)
            asked = send_request("T", b"safe", **{ONLY_IF_SAFE: True})
            assert (await master.client.invoke(master.addr, asked, 10_000)).code == ResponseCode.SUCCESS
        assert await master.bodies("T") == [b"safe"]


@pytest.mark.parametrize("was_away", [False, True])
async def test_a_slave_that_stops_takes_leave_of_its_master(
    options: Options, monkeypatch: pytest.MonkeyPatch, was_away: bool
) -> None:
    found: list[tuple[int, int]] = []
    peers: list[Peer] = []
    leave, init = HaClient.leave, MasterSide.__init__

    def noted(side: MasterSide, link: LinkToSlave, acks: AckLedger, peer: Peer) -> None:
        init(side, link, acks, peer)
        peers.append(peer)

    async def left(slave: HaClient) -> None:
        assert slave._session is not None
        session, _ = slave._session
        await leave(slave)
        # It is still connected, and has all that was stored; sends do not count on it any more.
        assert slave.following and session.link.may_leave
        found.append(((await status(master)).in_sync_slave_nums, await code_of_a_send(master)))

    monkeypatch.setattr(HaClient, "leave", left)
    monkeypatch.setattr(MasterSide, "__init__", noted)
    async with broker(**options, **SYNC) as master:
        async with broker(**options, **SLAVE):
            await in_sync(master)
            if was_away:
                peers[-1].close("the test closes it")
                await in_sync(master, 0)
                await in_sync(master)
        assert found == [(0, ResponseCode.SLAVE_NOT_AVAILABLE)]


async def test_a_slave_that_is_killed_and_comes_back(options: Options) -> None:
    async with broker(**options, **SYNC) as master:
        async with broker(**options, **SLAVE) as slave:
            await in_sync(master)
            assert await code_of_a_send(master, b"first") == ResponseCode.SUCCESS
            disk = slave.kill()
        await in_sync(master, 0)
        assert await code_of_a_send(master, b"second") == ResponseCode.SLAVE_NOT_AVAILABLE
        async with broker(disk, **options, **SLAVE) as slave:
            await in_sync(master)
            assert await code_of_a_send(master, b"third") == ResponseCode.SUCCESS
            assert await slave.has("T", 3) == [b"first", b"second", b"third"]


async def test_a_silent_slave_costs_the_slave_timeout_and_no_memory(options: Options) -> None:
    async with broker(**options, **SYNC, slave_timeout=100) as master, silent_slave(master):
        codes: list[int] = []

        async def send() -> None:
            codes.append(await code_of_a_send(master))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(send)
        assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 20
        answer = await master.client.invoke(master.addr, Command(GET_BROKER_RUNTIME_INFO.code))
        table = decode_body(KVTable, answer.body, answer.codec).table
        assert (table["sendsThatWait"], table["flushSlaveTimeoutTimes"]) == ("0", "20")
        ((name, behind),) = [(key, value) for key, value in table.items() if key.startswith("slaveAckDiff_")]
        assert name.startswith("slaveAckDiff_127.0.0.1:") and behind == table["commitLogMaxOffset"]
        assert len(decode_messages((await master.client.invoke(master.addr, pull_request("T", 0))).body)) == 20


async def test_two_copies_needed_and_one_slave(options: Options) -> None:
    copies: Options = {"in_sync_replicas": 3, "min_in_sync_replicas": 2, "total_replicas": 3}
    async with broker(**options, **SYNC, **copies) as master:
        answer = await master.client.invoke(master.addr, send_request("T", b"hello"))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        async with broker(**options, **SLAVE) as first:
            await in_sync(master)
            assert await code_of_a_send(master, b"one") == ResponseCode.SLAVE_NOT_AVAILABLE
            async with broker(**options, broker_role="SLAVE", broker_id=2) as second:
                await in_sync(master, 2)
                assert await code_of_a_send(master, b"two") == ResponseCode.SUCCESS
                assert b"two" in first.log() and b"two" in second.log()


async def test_a_master_that_stops_answers_what_waits(options: Options) -> None:
    async with broker(**options, **SYNC, slave_timeout=500) as master, silent_slave(master):
        codes: list[int] = []

        async def send() -> None:
            codes.append(await code_of_a_send(master))

        async def stored() -> bool:
            return await master.bodies("T") == [b"hello"]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await until(stored, "the message in the log")
            master.broker.stop()
        assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


async def test_how_both_ends_see_it(options: Options) -> None:
    async with broker(**options, **SYNC) as master, broker(**options, **SLAVE) as slave:
        await in_sync(master)
        assert await code_of_a_send(master) == ResponseCode.SUCCESS
        theirs, ours = await status(slave), await status(master)
        (row,) = ours.ha_connection_info
        end = ours.master_commit_log_max_offset
        assert ours.master and (row.slave_ack_offset, row.diff, row.in_sync) == (end, 0, True)
        assert row.transfer_from_where == end
        client = theirs.ha_client_runtime_info
        assert not theirs.master and client.max_offset == end
        assert client.master_addr == master.broker.ha_addr
        assert client.last_read_timestamp > 0 and client.last_write_timestamp > 0


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_a_master_that_waits_for_nobody(options: Options, role: str) -> None:
    async with broker(**options, broker_role=role, in_sync_replicas=1) as master, silent_slave(master):
        assert await code_of_a_send(master) == ResponseCode.SUCCESS
