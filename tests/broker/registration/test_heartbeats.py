"""What a broker with acting masters tells NameServers each second, and asks them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.identity import identity_of, resolved
from skylark.broker.registration import heartbeats
from skylark.broker.registration.heartbeats import Heartbeats
from skylark.broker.registration.namesrv_list import NameServerList
from skylark.broker.registration.outer_api import OuterApi
from skylark.broker.registration.registrar import Registrar
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.members import Members
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.registrations import (
    BROKER_HEARTBEAT,
    GET_BROKER_MEMBER_GROUP,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
)
from skylark.remoting.protocol.requests.routes import BrokerMemberGroup, MemberGroupAnswer
from tests.broker.meta.support import MetadataDir, options
from tests.sdk.fakes import Fake, serving
from tests.support.waiting import DEADLINE_S, until

OFTEN = {"broker_heartbeat_interval": 10, "sync_broker_member_group_period": 10}
NEVER = {"broker_heartbeat_interval": 1_000_000, "sync_broker_member_group_period": 1_000_000}


@dataclass
class Slave:
    members: Members
    heartbeats: Heartbeats
    namesrv: Fake
    registered: bool = True
    forgotten: list[str] = field(default_factory=list)
    ended: bool = False


def told(*ids: int) -> MemberGroupAnswer:
    return MemberGroupAnswer(BrokerMemberGroup({broker_id: f"b:{broker_id}" for broker_id in ids}))


@asynccontextmanager
async def slave(**changes: Any) -> AsyncIterator[Slave]:
    """Slave 1, and a NameServer that takes its heartbeats."""
    slave_options = resolved(options(broker_id=1, broker_role="SLAVE", **changes))
    identity = identity_of(slave_options, 10921)
    members = Members(1)
    namesrv = Fake()
    namesrv.on(BROKER_HEARTBEAT.code, lambda request: request.respond())
    async with serving(namesrv), open_client() as client, trio.open_nursery() as nursery:
        made = Slave(members, Heartbeats(slave_options, members, lambda: True), namesrv)

        async def keep() -> None:
            await made.heartbeats.keep(
                OuterApi(client, namesrv.addr, identity, slave_options, 1_000),
                lambda: made.registered,
                lambda: made.forgotten.append(namesrv.addr),
            )

        with trio.fail_after(DEADLINE_S):
            nursery.start_soon(keep)
            yield made
            nursery.cancel_scope.cancel()


async def test_a_broker_sends_light_heartbeats() -> None:
    async with slave(**OFTEN) as made:
        first, *_ = await made.namesrv.wait_asked(BROKER_HEARTBEAT.code, 3)
        ext = first.ext or {}
        assert [ext[name] for name in ("clusterName", "brokerName", "brokerAddr", "brokerId")] == [
            "DefaultCluster", "broker-a", "127.0.0.1:10921", "1",
        ]  # fmt: skip
        assert made.forgotten == []


async def test_the_living_members_decide_whether_a_slave_acts() -> None:
    async with slave(**OFTEN) as made:
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: told(1, 2))
        await until(lambda: made.members.is_acting, "acts")
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: told(0, 1))
        await until(lambda: not made.members.is_acting, "yields")
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: request.respond(1, "broken"))
        asked = len(made.namesrv.asked(GET_BROKER_MEMBER_GROUP.code))
        await made.namesrv.wait_asked(GET_BROKER_MEMBER_GROUP.code, asked + 2)
        assert not made.members.is_acting


async def test_a_notice_makes_a_slave_ask_at_once() -> None:
    async with slave(**NEVER) as made:
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: told(1))
        await trio.testing.wait_all_tasks_blocked()
        made.heartbeats.ask_soon()
        await until(lambda: made.members.is_acting, "acts")


async def test_notices_that_come_while_it_asks_are_heard_once_more_and_not_each() -> None:
    async with slave(**NEVER) as made:
        left = [10]

        def answer(request: Command) -> MemberGroupAnswer:
            if left[0]:  # whoever answers notices that something changed, and a flood of notices comes
                for _ in range(left[0]):
                    made.heartbeats.ask_soon()
                left[0] = 0
                return told(0, 1)
            return told(1)

        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, answer)
        await trio.testing.wait_all_tasks_blocked()
        made.heartbeats.ask_soon()
        await until(lambda: made.members.is_acting, "acts")
        await trio.testing.wait_all_tasks_blocked(0.03)
        assert len(made.namesrv.asked(GET_BROKER_MEMBER_GROUP.code)) == 2


async def test_where_it_is_not_registered_it_is_silent_and_nobody_has_a_say() -> None:
    async with slave(**OFTEN) as made:
        made.namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request: told(1))
        await until(lambda: made.members.is_acting, "acts")
        made.registered = False
        await until(lambda: not made.members._views, "no say")
        assert made.members.is_acting  # but nothing else is known either
        before = len(made.namesrv.requests)
        made.registered = True
        await until(lambda: len(made.namesrv.requests) > before, "goes on")


async def test_a_nameserver_that_does_not_know_it_is_told_anew() -> None:
    async with slave(**OFTEN) as made:
        made.namesrv.on(BROKER_HEARTBEAT.code, lambda request: request.respond(1, "not registered"))
        await until(lambda: bool(made.forgotten), "forgotten")


async def test_a_heartbeat_without_an_answer_is_followed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "TIMEOUT_MS", 10)
    async with slave(**OFTEN) as made:
        made.namesrv.on(BROKER_HEARTBEAT.code, lambda request: None)
        await made.namesrv.wait_asked(BROKER_HEARTBEAT.code, 3)
        assert made.forgotten == []


async def test_an_old_nameserver_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with slave(**OFTEN) as made:
        made.namesrv.on(BROKER_HEARTBEAT.code, lambda request: request.respond(3, "not supported"))
        await until(lambda: "does not support acting masters" in caplog.text, "the warning")
        await made.namesrv.wait_asked(
            GET_BROKER_MEMBER_GROUP.code, 3 + len(made.namesrv.asked(GET_BROKER_MEMBER_GROUP.code))
        )
        assert len(made.namesrv.asked(BROKER_HEARTBEAT.code)) == 1
        assert caplog.text.count("does not support acting masters") == 1
        assert made.forgotten == []


async def test_a_nameserver_that_is_taken_from_the_list_has_no_say() -> None:
    stays, goes = Fake(), Fake()
    for namesrv, alive in ((stays, (1,)), (goes, (0, 1))):
        for code in (REGISTER_BROKER.code, BROKER_HEARTBEAT.code, UNREGISTER_BROKER.code):
            namesrv.on(code, lambda request: request.respond())
        namesrv.on(GET_BROKER_MEMBER_GROUP.code, lambda request, alive=alive: told(*alive))
    async with serving(stays), serving(goes):
        meta = MetadataDir(resolved(options(broker_id=1, broker_role="SLAVE", namesrv_addr=goes.addr, **OFTEN)))
        found, members = NameServerList(meta.options), Members(1)
        registrar = Registrar(
            identity_of(meta.options, 10921), meta.topics, meta.options, KnownMaster(),
            Heartbeats(meta.options, members, lambda: True), namesrvs=found,
        )  # fmt: skip
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(registrar.run)
                await until(lambda: members.master_addr is not None, "the master is known")
                found.addrs = (stays.addr,)
                registrar.list_changed()
                await until(lambda: members.is_acting, "acts")
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("acting", [True, False])
async def test_with_acting_masters_a_broker_sends_heartbeats_and_registers_anew_where_they_are_not_known(
    acting: bool,
) -> None:
    namesrv = Fake()
    namesrv.on(REGISTER_BROKER.code, lambda request: request.respond())
    namesrv.on(BROKER_HEARTBEAT.code, lambda request: request.respond(1, "not registered"))
    async with serving(namesrv):
        meta = MetadataDir(resolved(options(enable_slave_acting_master=acting, namesrv_addr=namesrv.addr, **OFTEN)))
        beats = Heartbeats(meta.options, Members(0), lambda: False) if acting else None
        identity = identity_of(meta.options, 10911)
        registrar = Registrar(identity, meta.topics, meta.options, KnownMaster(), beats)
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(registrar.run)
                first, *_ = await namesrv.wait_asked(REGISTER_BROKER.code, 2 if acting else 1)
                nursery.cancel_scope.cancel()
    ext = first.ext or {}
    assert (ext["enableActingMaster"], ext.get("heartbeatTimeoutMillis")) == (
        ("true", "10000") if acting else ("false", None)
    )
    assert namesrv.asked(GET_BROKER_MEMBER_GROUP.code) == []  # a master need not know
