"""A slave that acted gives the master what groups committed meanwhile, before it copies the master's offsets."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from skylark.broker.replication import offset_hand_over as hand_over_module
from skylark.broker.replication.members import Members
from skylark.broker.replication.offset_hand_over import OffsetHandOver
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.desk import Desk
from tests.broker.meta.support import MetadataDir
from tests.broker.store.support import put
from tests.support.waiting import DEADLINE_S, until


@dataclass
class Pair:
    """A master that serves 15 and 43, and the slave's side of it."""

    master: Desk
    addr: str
    slave: MetadataDir
    members: Members
    hand_over: OffsetHandOver
    refused: list[str] = field(default_factory=list)
    #: Called once when the master is asked to commit.
    meanwhile: list[Callable[[], None]] = field(default_factory=list)

    def acts(self) -> None:
        self.members.reported("n", {1: "s:1"})

    def yields(self, addr: str = "") -> None:
        self.members.reported("n", {0: addr or self.addr, 1: "s:1"})


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(hand_over_module, "RETRY_S", 0.01)
    master, slave, members = Desk(), MetadataDir(), Members(1)
    hand_over = OffsetHandOver(members, slave.offsets)
    members.on_change.append(hand_over.changed)
    made = Pair(master, "", slave, members, hand_over)

    def update(channel: Channel, request: Command) -> Command:
        while made.meanwhile:
            made.meanwhile.pop()()
        if (request.ext or {}).get("topic") in made.refused:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "gone")
        answer: Command = master.handlers[UPDATE_CONSUMER_OFFSET.code](channel, request)
        return answer

    server = Server({**master.all_handlers, UPDATE_CONSUMER_OFFSET.code: update})
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            made.addr = await nursery.start(server.serve, "127.0.0.1", 0)
            nursery.start_soon(hand_over.run)
            yield made
            nursery.cancel_scope.cancel()


def has_topics(desk: Desk, *names: str) -> None:
    """Add topics, with 20 messages in the queues that the tests use: a master takes no offset past an end."""
    for name in names:
        desk.meta.topics.put(TopicConfig(name))
        for queue_id in (0, 3):
            for _ in range(20):
                put(desk.store, name, queue_id, b"x")


async def test_offsets_that_are_further_reach_the_master_and_none_goes_back(made: Pair) -> None:
    has_topics(made.master, "T", "U")
    made.master.meta.offsets.commit("g", "T", 0, 5)
    made.master.meta.offsets.commit("g", "T", 1, 50)
    made.acts()
    for topic, queue_id, offset in (("T", 0, 7), ("T", 1, 40), ("U", 3, 1)):
        made.slave.offsets.commit("g", topic, queue_id, offset)
    made.yields()
    await made.hand_over.master_is_online()
    assert made.master.meta.offsets.table() == {"T@g": {0: 7, 1: 50}, "U@g": {3: 1}}


async def test_a_slave_that_did_not_act_hands_nothing_over(made: Pair) -> None:
    has_topics(made.master, "T")
    made.slave.offsets.commit("g", "T", 0, 7)
    made.yields()
    await made.hand_over.master_is_online()
    assert made.master.meta.offsets.table() == {}


async def test_nothing_is_copied_while_the_slave_acts_or_owes(made: Pair) -> None:
    async with trio.open_nursery() as nursery:
        has_topics(made.master, "T")
        copied = []

        async def copy() -> None:
            await made.hand_over.master_is_online()
            copied.append(made.master.meta.offsets.table())

        nursery.start_soon(copy)
        made.acts()
        made.slave.offsets.commit("g", "T", 0, 7)
        made.yields("127.0.0.1:1")  # there it is not
        await until(lambda: made.hand_over._failing, "a failure")
        assert copied == []
        made.yields()
        await until(lambda: bool(copied), "the copy")
        assert copied == [{"T@g": {0: 7}}]


async def test_an_offset_that_the_master_refuses_does_not_hold_the_rest_up(made: Pair) -> None:
    has_topics(made.master, "T")
    made.refused.append("Gone")
    made.acts()
    made.slave.offsets.commit("g", "Gone", 0, 7)
    made.slave.offsets.commit("g", "T", 0, 7)
    made.yields()
    await made.hand_over.master_is_online()
    assert made.master.meta.offsets.table() == {"T@g": {0: 7}}


async def test_a_slave_that_acts_again_meanwhile_hands_over_again(made: Pair) -> None:
    has_topics(made.master, "T", "U")

    def again() -> None:
        made.acts()
        made.slave.offsets.commit("g", "T", 0, 8)
        made.yields()

    made.meanwhile.append(again)
    made.acts()
    made.slave.offsets.commit("g", "T", 0, 7)
    made.slave.offsets.commit("g", "U", 0, 1)
    made.yields()
    await made.hand_over.master_is_online()
    assert made.master.meta.offsets.table() == {"T@g": {0: 8}, "U@g": {0: 1}}


async def test_flapping_loses_no_commit(made: Pair) -> None:
    has_topics(made.master, "T")
    for offset in range(1, 20):
        made.acts()
        made.slave.offsets.commit("g", "T", 0, offset)
        made.yields()
        if offset % 3 == 0:
            await trio.testing.wait_all_tasks_blocked()
    await made.hand_over.master_is_online()
    assert made.master.meta.offsets.query("g", "T", 0) == 19
