"""Where a slave finds the HA port of the master that the Controllers name."""

import pytest
import trio
import trio.testing

from broker.replication.find_master import SwitchFinder
from broker.replication.known_master import KnownMaster, MasterAddress
from broker.replication.session_interfaces import MasterTarget
from mqcommon.addresses import format_address, split_address
from remoting.net.channel import Channel
from remoting.net.client import open_client
from remoting.net.server import Server
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.replication import EXCHANGE_BROKER_HA_INFO
from tests.broker.replication.sets import broker


def finder(known: KnownMaster) -> SwitchFinder:
    return SwitchFinder(known, open_client, frozenset(), must_prove=False)


def known_at(addr: str) -> KnownMaster:
    known = KnownMaster()
    known.address = MasterAddress(addr, "")
    return known


async def test_the_master_says_where_it_is() -> None:
    async with broker(enable_slave_acting_master=True) as master:
        assert await finder(known_at(master.addr)).find() == MasterTarget(master.broker.ha_addr, hello=True)


async def test_one_that_does_not_say_has_it_where_rocketmq_puts_it(nursery: trio.Nursery) -> None:
    def refuse(channel: Channel, request: Command) -> Command:
        return request.respond(ResponseCode.SYSTEM_ERROR, "no")

    server = Server({EXCHANGE_BROKER_HA_INFO.code: refuse})
    addr = await nursery.start(server.serve, "127.0.0.1", 0)
    host, port = split_address(addr)
    assert await finder(known_at(addr)).find() == MasterTarget(format_address(host, port + 1), hello=True)


async def test_one_that_is_away_is_tried_again_later() -> None:
    with pytest.raises(OSError, match=r"127.0.0.1:1 did not say where its HA port is"):
        await finder(known_at("127.0.0.1:1")).find()


async def test_an_unknown_master_is_waited_for() -> None:
    known = KnownMaster()
    wanted = finder(known)
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
