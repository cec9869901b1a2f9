"""What a master fetches from its slaves before it registers, and what it does when it cannot."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.identity import identity_of, resolved
from skylark.broker.registration import pre_online as pre_online_module
from skylark.broker.registration.namesrv_list import NameServerList
from skylark.broker.registration.pre_online import PreOnline
from skylark.broker.replication.members import Members
from skylark.broker.tasks.persist import Persister
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.offsets import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    ConsumerOffsetTable,
    DelayOffsetTable,
)
from skylark.remoting.protocol.requests.registrations import GET_BROKER_MEMBER_GROUP
from skylark.remoting.protocol.requests.replication import EXCHANGE_BROKER_HA_INFO
from skylark.remoting.protocol.requests.routes import BrokerMemberGroup, MemberGroupAnswer
from tests.broker.meta.support import MetadataDir, options
from tests.sdk.fakes import Fake, serving
from tests.support.waiting import DEADLINE_S, until


class Slave(Fake):
    """A slave that acts as the master, and has offsets."""

    def __init__(self, offsets: dict[str, dict[int, int]] | None = None) -> None:
        super().__init__()
        self.offsets = ConsumerOffsetTable(offsets or {}, {}, DataVersion(0, 1, 1))
        self.on(EXCHANGE_BROKER_HA_INFO.code, lambda request: request.respond())
        self.on(GET_ALL_CONSUMER_OFFSET.code, lambda request: self.offsets)
        self.on(GET_ALL_DELAY_OFFSET.code, lambda request: DelayOffsetTable({1: 5, 2: 1}))


@dataclass
class Master:
    meta: MetadataDir
    members: Members
    namesrv: Fake
    living: dict[int, str]
    acks: AckLedger


@asynccontextmanager
async def master(living: dict[int, str], **changes: Any) -> AsyncIterator[Master]:
    """A master that is about to register; ``living`` is the NameServer's answer, and may be changed."""
    namesrv = Fake()
    namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: MemberGroupAnswer(BrokerMemberGroup(living)))
    async with serving(namesrv), open_client() as client, trio.open_nursery() as nursery:
        meta = MetadataDir(resolved(options(namesrv_addr=namesrv.addr, enable_slave_acting_master=True, **changes)))
        members = Members(0)
        persister = Persister(meta.metadata, meta.options)
        meta.journal.on_append = persister.appended
        acks = AckLedger(meta.options.ha_max_gap_not_in_sync)
        durability = Durability(LogWaits(), acks, meta.options, double_write=meta.options.is_sync_master)
        pre_online = PreOnline(
            identity_of(meta.options, 10911),
            meta.options,
            NameServerList(meta.options),
            meta.metadata,
            persister,
            members,
            acks,
            durability,
            lambda topic, queue_id: 100,
        )
        with trio.fail_after(DEADLINE_S):
            nursery.start_soon(persister.run)
            nursery.start_soon(pre_online.prepare, client)
            yield Master(meta, members, namesrv, living, acks)
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pre_online_module, "RETRY_S", 0.01)


async def online(made: Master) -> None:
    await until(lambda: made.members.is_lowest, "online")


async def test_the_further_offset_counts_of_all_slaves_and_its_own() -> None:
    first, second = Slave({"T@g": {0: 7, 1: 3}}), Slave({"T@g": {0: 6}, "U@g": {2: 9}})
    async with serving(first), serving(second):
        living: dict[int, str] = {}
        async with master({}) as made:  # without slaves at once
            await online(made)
        living |= {1: first.addr, 2: second.addr}
        async with master(living) as made:
            made.meta.offsets.commit("g", "T", 1, 4)
            made.meta.metadata.delay_offsets.put(DelayOffsetTable({1: 4, 2: 2}, DataVersion(0, 1, 7)))
            await online(made)
            assert made.meta.offsets.table() == {"T@g": {0: 7, 1: 4}, "U@g": {2: 9}}
            assert not made.meta.offsets.dirty
            assert made.meta.metadata.delay_offsets.table.offset_table == {1: 5, 2: 2}
        for slave in (first, second):
            (told,) = slave.asked(EXCHANGE_BROKER_HA_INFO.code)
            ext = told.ext or {}
            assert (ext["masterAddress"], ext["masterHaAddress"]) == ("127.0.0.1:10911", "127.0.0.1:10912")


async def test_slaves_without_acting_masters_are_not_asked() -> None:
    slave = Slave({"T@g": {0: 7}})
    slave.on(EXCHANGE_BROKER_HA_INFO.code, lambda request: request.respond(3, "not supported"))
    async with serving(slave), master({1: slave.addr}) as made:
        await online(made)
        assert made.meta.offsets.table() == {}


async def test_a_slave_that_never_delayed_a_message_has_no_such_offsets() -> None:
    slave = Slave({"T@g": {0: 7}})
    slave.on(GET_ALL_DELAY_OFFSET.code, lambda request: request.respond(1, "No delay offset in this broker"))
    async with serving(slave), master({1: slave.addr}) as made:
        await online(made)
        assert made.meta.offsets.table() == {"T@g": {0: 7}}


async def test_a_master_waits_until_a_living_slave_gives_its_offsets(caplog: pytest.LogCaptureFixture) -> None:
    slave = Slave({"T@g": {0: 7}})
    slave.on(GET_ALL_CONSUMER_OFFSET.code, lambda request: request.respond(1, "not now"))
    async with serving(slave), master({1: slave.addr}) as made:
        await slave.wait_asked(GET_ALL_CONSUMER_OFFSET.code, 3)
        assert not made.members.is_lowest
        slave.on(GET_ALL_CONSUMER_OFFSET.code, lambda request: slave.offsets)
        await online(made)
        assert made.meta.offsets.table() == {"T@g": {0: 7}}
    assert caplog.text.count(f"slave {slave.addr} did not give its offsets") == 1


async def test_a_sync_master_waits_until_the_slave_copies_its_log() -> None:
    slave = Slave({"T@g": {0: 7}})
    async with serving(slave), master({1: slave.addr}, broker_role="SYNC_MASTER") as made:
        await slave.wait_asked(EXCHANGE_BROKER_HA_INFO.code)
        made.acks.connected("127.0.0.1:40001", trio.current_time())
        made.acks.connected("10.0.0.9:40001", trio.current_time())
        made.acks.acked("10.0.0.9:40001", 0)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert slave.asked(GET_ALL_CONSUMER_OFFSET.code) == []
        made.acks.acked("127.0.0.1:40001", 0)
        await online(made)
        assert made.meta.offsets.table() == {"T@g": {0: 7}}


async def test_a_sync_master_does_not_wait_long_for_a_slave_that_cannot_copy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pre_online_module, "COPYING_S", 0.02)
    slave = Slave({"T@g": {0: 7}})
    async with serving(slave), master({1: slave.addr}, broker_role="SYNC_MASTER") as made:
        await online(made)
        assert made.meta.offsets.table() == {"T@g": {0: 7}}
    assert "the slave at 127.0.0.1 does not copy the log" in caplog.text


async def test_a_master_does_not_wait_for_a_slave_that_nameservers_dropped() -> None:
    async with master({1: "127.0.0.1:1"}) as made:
        await made.namesrv.wait_asked(GET_BROKER_MEMBER_GROUP.code, 3)
        assert not made.members.is_lowest
        made.living.clear()
        await online(made)


async def test_a_master_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pre_online_module, "LIMIT_S", 0.7)
    late = Slave({"T@g": {0: 7}})
    late.on(GET_ALL_CONSUMER_OFFSET.code, lambda request: request.respond(1, "not now"))
    async with serving(late), master({1: "127.0.0.1:1", 2: late.addr}) as made:
        await late.wait_asked(GET_ALL_CONSUMER_OFFSET.code, 2)
        late.on(GET_ALL_CONSUMER_OFFSET.code, lambda request: late.offsets)
        await online(made)
        assert made.meta.offsets.table() == {"T@g": {0: 7}}
    assert "online without the offsets of 127.0.0.1:1: consumers" in caplog.text


async def test_a_master_waits_for_a_nameserver(caplog: pytest.LogCaptureFixture) -> None:
    slave = Slave({"T@g": {0: 7}})
    async with serving(slave), master({1: slave.addr}) as made:
        answer = made.namesrv._answers[GET_BROKER_MEMBER_GROUP.code]
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: request.respond(1, "not now"))
        await made.namesrv.wait_asked(GET_BROKER_MEMBER_GROUP.code, 3)
        assert not made.members.is_lowest
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, answer)
        await online(made)
    assert caplog.text.count("no NameServer says which slaves are alive") == 1


async def test_a_nameserver_of_version_4_names_nobody() -> None:
    async with master({1: "127.0.0.1:1"}, total_replicas=3) as made:
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: request.respond(3, "not supported"))
        await online(made)


@pytest.mark.parametrize("changes", [{"skip_pre_online": True}, {"total_replicas": 1, "in_sync_replicas": 1}])
async def test_options_switch_the_fetching_off(changes: dict[str, Any]) -> None:
    async with master({1: "127.0.0.1:1"}, **changes) as made:
        await online(made)
        assert made.namesrv.requests == []
