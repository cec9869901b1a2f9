"""A broker whose Controller says what RocketMQ's Controller said to brokers of its own, recorded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import OFFER_FIELD, Command
from skylark.remoting.protocol.requests.controller import (
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_REGISTER_BROKER,
)
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT
from tests.broker.replication.autoswitch.test_member import Cluster, Member
from tests.remoting.protocol.recorded_controller import Row, recorded_session
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

FIRST_ADDR = "127.0.0.1:44011"
# Connections of the recording: the first broker's; the second one's, and that after its restart; notices to the second.
OF_FIRST, OF_SECOND, NOTICES = {2}, {5, 8}, 11
# Moments of it: the first broker is being elected, and leads.
ELECTION_S, FIRST_LEADS_S = 17.0, 20.0
# The second one follows, leads, has a slave in sync, and follows again.
SECOND_FOLLOWS_S, SECOND_LEADS_S, IN_SYNC_S, FIRST_AGAIN_S = 28.0, 90.0, 119.0, 160.0


class JavaController:
    """Answers a request as one of its code was answered last before ``at_s`` of the recording.

    RocketMQ's brokers ask who leads (1004) only later, so until then the answer to the registration tells it.
    """

    def __init__(self, conns: set[int], at_s: float) -> None:
        self._answers = [row for row in recorded_session("controller") if row.conn in conns and not row.is_request]
        self.at_s = at_s
        #: What was asked, without heartbeats.
        self.asked: list[Command] = []
        self.addrs: dict[str, str] = {}
        codes = {row.request_code for row in self._answers} | {BROKER_HEARTBEAT.code}
        self.server = Server({code: self._answer for code in codes}, greeting={OFFER_FIELD: "no"})

    def _said(self, *codes: int) -> Command:
        rows = [row for code in codes for row in self._answers if row.request_code == code and row.at_s <= self.at_s]
        return rows[-1].command

    def _answer(self, channel: Channel, request: Command) -> Command:
        if request.code == BROKER_HEARTBEAT.code:
            # RocketMQ's brokers want no answer: none is recorded.
            return Command(0, None, b"", 1, request.opaque, "Heart beat success", language="JAVA")
        if request.code == CONTROLLER_GET_REPLICA_INFO.code:
            said = self._said(CONTROLLER_REGISTER_BROKER.code, request.code)
        else:
            said = self._said(request.code)
        ext = dict(said.ext or {})
        if request.code == CONTROLLER_GET_METADATA_INFO.code:
            ext["controllerLeaderAddress"] = self.addrs["n0"]
        else:
            self.asked.append(request)
        if request.code == CONTROLLER_ELECT_MASTER.code:
            self.at_s = FIRST_LEADS_S
        return Command(said.code, ext, said.body, said.flag, request.opaque, said.remark, language="JAVA")


@asynccontextmanager
async def recorded(conns: set[int], at_s: float) -> AsyncIterator[tuple[JavaController, Cluster]]:
    """Brokers can be started; the Controller answers them from these connections."""
    controller = JavaController(conns, at_s)
    async with trio.open_nursery() as nursery:
        controller.addrs["n0"] = await nursery.start(controller.server.serve, "127.0.0.1", 0)
        as_controllers: Any = controller
        yield controller, Cluster(nursery, as_controllers)
        nursery.cancel_scope.cancel()


async def send_notice(broker: Member, row: Row) -> None:
    async with open_client() as client:
        await client.oneway(broker.addr, Command(row.command.code, row.command.ext, row.command.body))


async def test_the_first_broker_of_a_set_gets_an_id_and_is_elected() -> None:
    async with recorded(OF_FIRST, ELECTION_S) as (controller, brokers):
        files = MemoryFiles()
        first = await brokers.start(files)
        await until(lambda: first.leads and first.elected.is_leased, "it leads")
        assert files.read("/store/brokerIdentity") == b"DefaultCluster#broker-a#1"
        assert (first.epochs.last, first.elected.set_size) == (1, 1)
        codes = list(dict.fromkeys(request.code for request in controller.asked))
        assert codes == [
            CONTROLLER_GET_NEXT_BROKER_ID.code, CONTROLLER_APPLY_BROKER_ID.code,
            CONTROLLER_REGISTER_BROKER.code, CONTROLLER_GET_REPLICA_INFO.code,
            CONTROLLER_ELECT_MASTER.code,
        ]  # fmt: skip


async def test_the_second_one_follows_leads_when_it_is_told_and_follows_again() -> None:
    to_lead, to_follow = (row for row in recorded_session("to-broker") if row.conn == NOTICES)
    async with recorded(OF_SECOND, SECOND_FOLLOWS_S) as (controller, brokers):
        second = await brokers.start()
        await until(lambda: second.follows == FIRST_ADDR, "it follows the first one")
        controller.at_s = SECOND_LEADS_S
        await send_notice(second, to_lead)
        await until(lambda: second.leads and second.elected.is_leased, "it leads")
        assert (second.epochs.last, second.elected.set_size) == (2, 1)
        controller.at_s = IN_SYNC_S
        second.part.leading.acked(1, second.log.end, False)
        await until(lambda: second.elected.set_size == 2, "the first one is in sync again")
        asked = [request for request in controller.asked if request.code == CONTROLLER_ALTER_SYNC_STATE_SET.code]
        assert asked[0].body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":5}'
        assert {asked[0].ext[key] for key in ("masterBrokerId", "masterEpoch")} == {"2"}  # type: ignore[index]
        controller.at_s = FIRST_AGAIN_S
        await send_notice(second, to_follow)
        await until(lambda: second.follows == FIRST_ADDR, "it follows the first one again")
        assert not second.elected.is_leased
