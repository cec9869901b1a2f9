"""Roles that change while the brokers run, under load: connections stay, nothing acknowledged is lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.registration import registrar as registrar_module
from skylark.broker.replication import replication as part_module
from skylark.broker.replication import slave as slave_module
from skylark.broker.replication.replication import Replication
from skylark.broker.replication.role import RoleKind, RoleMachine
from skylark.mqcommon.errors import DiskFull, StoreCorrupt, StoreError
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.running import send_request
from tests.support.waiting import until

NOT_ACKNOWLEDGED = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(slave_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(slave_module, "MAX_PAUSE_S", 0.05)


@dataclass
class Load:
    """Sends to all members at once, each over one connection, and what was acknowledged."""

    members: list[Running]
    acknowledged: list[bytes] = field(default_factory=list)
    refused: int = 0

    async def send_to(self, member: Running) -> None:
        number = 0
        while True:
            number += 1
            body = f"{member.addr} {number}".encode()
            answer = await member.client.invoke(member.addr, send_request("T", body), 10_000)
            if answer.code == ResponseCode.SUCCESS:
                self.acknowledged.append(body)
            else:
                assert answer.code in NOT_ACKNOWLEDGED, answer
                self.refused += 1

    async def goes_on(self) -> None:
        count = len(self.acknowledged)
        await until(lambda: len(self.acknowledged) >= count + 20, "sends are acknowledged")


async def acknowledged(member: Running, topic: str = "T") -> bool:
    answer = await member.client.invoke(member.addr, send_request(topic, b"x"), 10_000)
    return answer.code == ResponseCode.SUCCESS


@asynccontextmanager
async def pair(**options: object) -> AsyncIterator[tuple[Running, Running]]:
    async with namesrv() as addr:
        common = {"namesrv_addr": addr, **options}
        # Double write: as long as sends are acknowledged, the slave follows.
        async with broker(**common, broker_role="SYNC_MASTER") as one, broker(**common, **SLAVE) as two:
            await until(partial(acknowledged, one), "the slave follows")
            yield one, two


async def switch(old: Running, new: Running, broker_id: int = 2) -> None:
    """``new`` becomes the master when it has all that ``old`` has, which is a slave with ``broker_id`` then."""
    old.broker.role.demoted(broker_id)
    await until(lambda: new.log_end == old.log_end, "the slave has all")
    new.broker.role.promoted()
    await until(lambda: new.broker.role.now.kind is RoleKind.MASTER, "it took over")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_the_roles_change_under_load_and_nothing_acknowledged_is_lost(flush: str) -> None:
    async with pair(flush_disk_type=flush) as (one, two), trio.open_nursery() as nursery:
        connections = [await each.client.channel(each.addr, 1_000) for each in (one, two)]
        load = Load([one, two])
        for member in load.members:
            nursery.start_soon(load.send_to, member)
        old, new = one, two
        for broker_id in (2, 1, 2, 1):
            await load.goes_on()
            await switch(old, new, broker_id)
            old, new = new, old
        await load.goes_on()
        nursery.cancel_scope.cancel()
        assert load.refused
        assert [channel.closed_reason for channel in connections] == [None, None]
    for member in (one, two):
        assert one.log() == two.log(), "the logs are the same, byte for byte"
        stored = member.log()
        assert [body for body in load.acknowledged if body not in stored] == []


async def test_what_a_demoted_master_refuses_and_a_promoted_slave_does() -> None:
    async with pair() as (one, two):
        create = Command(UPDATE_AND_CREATE_TOPIC.code, {
            "topic": "New", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        })  # fmt: skip
        assert (await two.client.invoke(two.addr, create)).code == ResponseCode.SYSTEM_ERROR
        await switch(one, two)
        assert (await one.client.invoke(one.addr, create)).code == ResponseCode.SYSTEM_ERROR
        assert (await two.client.invoke(two.addr, create)).code == ResponseCode.SUCCESS
        await until(partial(acknowledged, two, "New"), "the demoted master follows")
        await one.has("New", 1)  # the topic came with the metadata, the message with the log


async def test_who_waits_for_slaves_is_answered_when_the_master_is_demoted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(slave_timeout=3_000_000) as (one, _), trio.open_nursery() as nursery:
        monkeypatch.setattr("skylark.broker.replication.link.SlaveLink.report", lambda *args: None)
        monkeypatch.setattr(part_module, "DRAIN_TIMEOUT_S", 0.05)
        codes: list[int] = []

        async def send() -> None:
            codes.append((await one.client.invoke(one.addr, send_request("T", b"waits"), 60_000)).code)

        nursery.start_soon(send)
        await until(lambda: b"waits" in one.log(), "it is stored")
        assert codes == []
        one.broker.role.demoted(2)
        await until(lambda: bool(codes), "it is answered")
        assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


class Endless:
    """Copies tables, or serves the log, until cancelled."""

    was_opened = False

    async def run(self) -> None:
        await trio.sleep_forever()

    serve = run

    async def open(self) -> None:
        self.was_opened = True


async def elected() -> bool:
    return True


class Unfinished(Endless):
    """Copies a log that cannot be finished."""

    def __init__(self, error: StoreError) -> None:
        self.error = error
        self.ends = 0

    async def finish(self) -> None:
        self.ends += 1
        raise self.error


@pytest.mark.parametrize("error", [StoreCorrupt("/store/commitlog/0", 7, "rot"), DiskFull("no room")])
async def test_a_slave_whose_log_cannot_be_finished_does_not_lead(error: StoreError) -> None:
    role, slave = RoleMachine(1), Unfinished(error)
    others: Any = Endless()
    part = Replication(role, others, lambda: slave, others, elected)
    role.observe(part.role_changed)
    with pytest.raises(ExceptionGroup) as raised:
        async with trio.open_nursery() as nursery:
            await nursery.start(part.run)
            await trio.testing.wait_all_tasks_blocked()
            # It follows on if nothing is to be appended to its log.
            role.numbered(2)
            await trio.testing.wait_all_tasks_blocked()
            assert slave.ends == 1
            role.promoted()
    assert raised.value.exceptions == (error,)
    assert (role.now.kind, others.was_opened) == (RoleKind.TAKING_OVER, False)


class Finished(Endless):
    """Copies a log that can be finished."""

    async def finish(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_slave_that_is_not_elected_any_more_when_it_is_ready_follows_again() -> None:
    role, roles, answers = RoleMachine(3), [], [True, False]
    others: Any = Endless()

    async def is_elected() -> bool:
        return answers.pop()

    part = Replication(role, others, Finished, others, is_elected)
    role.observe(part.role_changed)
    role.observe(lambda before, now: roles.append((now.kind, now.broker_id)))
    async with trio.open_nursery() as nursery:
        await nursery.start(part.run)
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            assert not others.was_opened
            role.promoted()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    took_over = [(RoleKind.TAKING_OVER, 3), (RoleKind.MASTER, 0)]
    assert roles == [(RoleKind.TAKING_OVER, 3), (RoleKind.SLAVE, 3), *took_over]
    assert others.was_opened
