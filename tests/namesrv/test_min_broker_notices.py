"""Whom a NameServer tells that the lowest member of a broker set changed, and what."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from skylark.namesrv import min_broker_notices as notices_module
from skylark.namesrv.routes import MinBrokerChange, RouteTable, change_of
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from tests.namesrv.peer import Peer, serve
from tests.namesrv.registrations import registration
from tests.support.caller import Caller
from tests.support.waiting import DEADLINE_S

MASTER, FIRST, SECOND = "127.0.0.1:10911", "127.0.0.1:20911", "127.0.0.1:30911"


@pytest.mark.parametrize(
    ("before", "addrs", "change"),
    [
        ((0, MASTER), {2: SECOND, 1: FIRST}, (1, FIRST, MASTER, None)),
        ((1, FIRST), {0: MASTER, 1: FIRST, 2: SECOND}, (0, MASTER, None, "ha")),
        ((2, SECOND), {1: FIRST, 2: SECOND}, (1, FIRST, None, None)),
        ((0, MASTER), {0: MASTER, 5: SECOND}, None),
    ],
    ids=["the master goes", "the master comes", "a lower slave comes", "another member comes"],
)
def test_a_new_lowest_member_is_told_to_all_slaves(
    before: tuple[int, str], addrs: dict[int, str], change: tuple[Any, ...] | None
) -> None:
    expected = None if change is None else MinBrokerChange("a", *change, (FIRST, SECOND))
    assert change_of("a", before, addrs, "ha") == expected


@pytest.mark.parametrize(("before", "now"), [(1, 0), (0, 2), (3, 1)])
def test_the_only_member_that_takes_another_id_is_a_change(before: int, now: int) -> None:
    table: RouteTable[object] = RouteTable()
    table.register(registration(addr=FIRST, broker_id=before, acting_master=True), "m", 0)
    assert table.min_broker_changes() == []
    table.register(registration(addr=FIRST, broker_id=now, acting_master=True), "m", 0)
    (change,) = table.min_broker_changes()
    assert (change.min_broker_id, change.min_broker_addr, change.offline_broker_addr) == (now, FIRST, None)
    assert change.slaves == (() if now == 0 else (FIRST,))
    assert table.min_broker_changes() == []


@asynccontextmanager
async def slave() -> AsyncIterator[tuple[str, trio.MemoryReceiveChannel[dict[str, Any]]]]:
    """The address of a slave that gets notices, and the notices."""
    send, heard = trio.open_memory_channel[dict[str, Any]](10)

    def notified(channel: Channel, request: Command) -> None:
        assert request.is_oneway
        send.send_nowait(dict(request.ext or {}))

    server = Server({NOTIFY_MIN_BROKER_ID_CHANGE.code: notified})
    async with trio.open_nursery() as nursery:
        yield await nursery.start(server.serve, "127.0.0.1", 0), heard
        nursery.cancel_scope.cancel()


async def next_notice(heard: trio.MemoryReceiveChannel[dict[str, Any]]) -> tuple[str | None, ...]:
    with trio.fail_after(DEADLINE_S):
        ext = await heard.receive()
    keys = ("brokerName", "minBrokerId", "minBrokerAddr", "offlineBrokerAddr", "haBrokerAddr")
    return tuple(ext.get(key) for key in keys)


async def test_slaves_hear_that_the_master_goes_and_comes(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, notify_min_broker_id_changed=True)
    async with slave() as (addr, heard), slave() as (other, heard_by_other):
        master, peer = await served.peer(), await served.peer()
        await master.register(enableActingMaster=True)
        await peer.register(addr, broker_id=1, enableActingMaster=True)
        await peer.register(other, broker_id=2, enableActingMaster=True)
        await master.stream.aclose()
        for each in (heard, heard_by_other):
            assert await next_notice(each) == ("broker-a", "1", addr, MASTER, None)
        await peer.register(enableActingMaster=True)
        for each in (heard, heard_by_other):
            assert await next_notice(each) == ("broker-a", "0", MASTER, None, "127.0.0.1:10912")
        await peer.stream.aclose()


async def test_a_silent_master_is_told_as_offline(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, notify_min_broker_id_changed=True)
    async with slave() as (addr, heard):
        master, peer = await served.peer(), await served.peer()
        await master.register(enableActingMaster=True, heartbeatTimeoutMillis=10_000)
        await peer.register(addr, broker_id=1, enableActingMaster=True)
        served.clock.advance(10_001)
        served.namesrv.forget_silent_brokers(served.clock.monotonic_ms())
        assert await next_notice(heard) == ("broker-a", "1", addr, MASTER, None)
        await closed(master, peer)


async def test_slaves_that_cannot_be_reached_delay_nobody_for_long(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, notify_min_broker_id_changed=True)
    async with slave() as (addr, heard):
        master, peer = await served.peer(), await served.peer()
        await master.register(enableActingMaster=True)
        await peer.register("127.0.0.1:1", broker_id=1, enableActingMaster=True)
        await peer.register(addr, broker_id=2, enableActingMaster=True)
        await master.stream.aclose()
        assert await next_notice(heard) == ("broker-a", "1", "127.0.0.1:1", MASTER, None)
        await closed(peer)


async def test_nothing_is_told_unless_the_option_says_so(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path)
    async with slave() as (addr, heard):
        master, peer = await served.peer(), await served.peer()
        await master.register(enableActingMaster=True)
        await peer.register(addr, broker_id=1, enableActingMaster=True)
        await master.stream.aclose()
        await peer.register(addr, broker_id=1, enableActingMaster=True)
        await trio.testing.wait_all_tasks_blocked()
        assert heard.statistics().current_buffer_used == 0
        await closed(peer)


async def test_changes_of_one_set_are_told_as_one_and_what_waits_is_bounded(
    nursery: trio.Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices_module, "MAX_WAITING", 2)
    served = await serve(nursery, tmp_path, notify_min_broker_id_changed=True)
    routes, notices = served.namesrv.state.routes, served.namesrv._notices
    channel = Caller().channel
    for name in "abc":
        routes.register(registration(name=name, addr=f"{name}-s:1", broker_id=1, acting_master=True), channel, 0)
    notices.queue_changes()
    for name in "aaaabbc":  # in one go: the task that tells does not run meanwhile
        routes.register(registration(name=name, addr=f"{name}-m:1", acting_master=True), channel, 0)
        notices.queue_changes()
        routes.unregister("DefaultCluster", name, f"{name}-m:1")
        notices.queue_changes()
    assert [(change.broker_name, change.min_broker_addr) for change in notices._waiting.values()] == [
        ("a", "a-s:1"),
        ("b", "b-s:1"),
    ]
    assert caplog.text.count("2 notices wait") == 2


async def closed(*peers: Peer) -> None:
    for peer in peers:
        await peer.stream.aclose()
