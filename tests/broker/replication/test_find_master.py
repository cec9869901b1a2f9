"""Where a slave connects to, and whether it says hello there."""

from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.find_master import GUESSES, LOG_S, MasterFinder, SwitchFinder
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.session import MasterTarget
from skylark.mqcommon.addresses import format_address, split_address
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import dumps
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.replication import EXCHANGE_BROKER_HA_INFO
from tests.broker.replication.sets import broker


def finder(known: KnownMaster, **options: Any) -> MasterFinder:
    made_of = BrokerOptions(broker_role="SLAVE", broker_id=1, **options)
    made = MasterFinder(known, made_of, has_secret=bool(made_of.ha_shared_secret))
    known.on_change.append(made.changed)
    return made


async def test_a_skylark_master_is_told_by_its_answer() -> None:
    async with broker() as master:
        known = KnownMaster()
        known.reported("namesrv", MasterAddress(master.addr, master.broker.ha_addr))
        assert await finder(known).find() == MasterTarget(master.broker.ha_addr, hello=True)
        await master.send("T", b"one")
        assert await finder(known).find() == MasterTarget(master.broker.ha_addr, hello=True, begin=0)


async def test_a_rocketmq_master_gets_no_hello(nursery: trio.Nursery) -> None:
    def runtime(channel: Channel, request: Command) -> Command:
        channel.attachments.clear()  # as a broker that does not know offers of CBOR
        offsets = {"commitLogMinOffset": "1073741824", "commitLogMaxOffset": "1073741900"}
        return request.respond(ResponseCode.SUCCESS, body=dumps({"table": offsets}))

    server = Server({GET_BROKER_RUNTIME_INFO.code: runtime})
    addr = await nursery.start(server.serve, "127.0.0.1", 0)
    known = KnownMaster()
    known.reported("namesrv", MasterAddress(addr, "127.0.0.1:10912"))
    assert await finder(known).find() == MasterTarget("127.0.0.1:10912", hello=False, begin=1073741824)


async def test_with_a_secret_nobody_is_asked() -> None:
    found = await finder(KnownMaster(), ha_master_address="127.0.0.1:2", ha_shared_secret="x").find()
    assert found == MasterTarget("127.0.0.1:2", hello=True)


async def test_where_only_the_ha_address_is_known_the_other_is_guessed_a_few_times() -> None:
    wanted = finder(KnownMaster(), ha_master_address="127.0.0.1:2")
    for _ in range(GUESSES - 1):
        with pytest.raises(OSError, match=r"127.0.0.1:1 did not say whether it is a Skylark broker"):
            await wanted.find()
    assert await wanted.find() == MasterTarget("127.0.0.1:2", hello=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "neither namesrvAddr nor haMasterAddress is set"),
        (
            {"namesrv_addr": "10.0.0.5:9876", "broker_name": "b"},
            "no NameServer of 10.0.0.5:9876 that answers knows a broker of brokerName=b with brokerId=0",
        ),
    ],
)
async def test_a_master_that_is_not_found_is_logged_each_minute(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, options: dict[str, Any], reason: str
) -> None:
    with trio.move_on_after(3.5 * LOG_S):
        await finder(KnownMaster(), **options).find()
    assert [reason in line for line in caplog.messages] == [True] * 4


async def test_an_unknown_master_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    known = KnownMaster()
    wanted = finder(known, ha_shared_secret="x")
    found: list[MasterTarget] = []

    async def find() -> None:
        found.append(await wanted.find())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(find)
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        known.reported("namesrv", MasterAddress("10.0.0.1:10911", "10.0.0.1:10912"))
    assert found == [MasterTarget("10.0.0.1:10912", hello=True)]


def switch_finder(known: KnownMaster) -> SwitchFinder:
    return SwitchFinder(known, open_client, frozenset(), must_prove=False)


def known_at(addr: str) -> KnownMaster:
    known = KnownMaster()
    known.address = MasterAddress(addr, "")
    return known


async def test_the_master_says_where_it_is() -> None:
    async with broker(enable_slave_acting_master=True) as master:
        assert await switch_finder(known_at(master.addr)).find() == MasterTarget(master.broker.ha_addr, hello=True)


async def test_a_master_that_does_not_say_where_its_ha_port_is_has_it_beside_its_own(nursery: trio.Nursery) -> None:
    def refuse(channel: Channel, request: Command) -> Command:
        return request.respond(ResponseCode.SYSTEM_ERROR, "no")

    server = Server({EXCHANGE_BROKER_HA_INFO.code: refuse})
    addr = await nursery.start(server.serve, "127.0.0.1", 0)
    host, port = split_address(addr)
    assert await switch_finder(known_at(addr)).find() == MasterTarget(format_address(host, port + 1), hello=True)


async def test_a_master_that_is_away_is_tried_again_later() -> None:
    with pytest.raises(OSError, match=r"127.0.0.1:1 did not say where its HA port is"):
        await switch_finder(known_at("127.0.0.1:1")).find()


async def test_the_master_that_the_controllers_name_is_waited_for() -> None:
    known = KnownMaster()
    wanted = switch_finder(known)
    async with broker(enable_slave_acting_master=True) as master, trio.open_nursery() as nursery:
        found: list[MasterTarget] = []

        async def find() -> None:
            found.append(await wanted.find())

        nursery.start_soon(find)
        await trio.testing.wait_all_tasks_blocked()
        # The Controllers lost the master, and know none yet.
        wanted.changed()
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        known.address = MasterAddress(master.addr, "")
        wanted.changed()
    assert found == [MasterTarget(master.broker.ha_addr, hello=True)]
