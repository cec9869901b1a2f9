"""Where a slave connects to, and whether it says hello there."""

from typing import Any

import pytest
import trio

from broker.options import BrokerOptions
from broker.replication.find_master import GUESSES, LOG_S, MasterFinder
from broker.replication.known_master import KnownMaster, MasterAddress
from broker.replication.session_interfaces import MasterTarget
from remoting.net.channel import Channel
from remoting.net.server import Server
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.dialect import dumps
from remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
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
        channel.attachments.clear()  # as one that knows of no offers
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
