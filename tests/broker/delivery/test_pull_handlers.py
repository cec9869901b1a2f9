"""Which broker of its set a reader is sent to, and what a slave answers that has nothing for it."""

import gc
import weakref
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.cold_reads import ColdReads
from skylark.broker.delivery.filters import Filters
from skylark.broker.delivery.held_pulls import HeldPulls
from skylark.broker.delivery.pull_handlers import SENT_AT_ONCE, Consumers, PullHandlers, PullWaits, ReadAdvice
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.offset_resets import OffsetResets
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.role import RoleMachine
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.message import decode_messages
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import MetadataDir, options
from tests.broker.running import pull_request
from tests.broker.store.support import open_store, put
from tests.support.caller import Caller

FOUND, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
RETRY, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
MASTER = MasterAddress("127.0.0.1:10911", "127.0.0.1:10912")


class Desk:
    """A broker's pulls; messages count as in memory while 300 bytes (three messages) from the log's end."""

    def __init__(self, messages: int = 10, **changes: Any) -> None:
        self.meta = MetadataDir(options(**changes))
        self.store = open_store(self.meta.fs, self.meta.clock)
        self.held = HeldPulls()
        self.known = KnownMaster()
        self.known.on_return.append(self.held.release)
        self.meta.metadata.topics.put(TopicConfig("T", 1, 1))
        self.caller = Caller()
        self.clients = Clients()
        self.resets = OffsetResets(self.meta.offsets, self.clients, self.held.release_group)
        self.handlers = PullHandlers(
            self.store, self.meta.metadata, Consumers(self.clients, Filters(), self.resets),
            PullWaits(self.held, ColdReads()),
            ReadAdvice(self.store, self.meta.options, RoleMachine(self.meta.options.broker_id), self.known, 300),
            BrokerStats(self.meta.clock), self.meta.options,
        )  # fmt: skip
        for _ in range(messages):
            put(self.store, "T", 0, b"x")

    def master_lives(self, *, is_known: bool = True) -> None:
        self.known.reported("ns", MASTER if is_known else None)

    def group(self, **changes: Any) -> None:
        self.meta.groups.put(SubscriptionGroupConfig("group", **changes))

    def pull(self, offset: int, count: int = 1, *, wait_ms: int = 0, **ext: Any) -> Command | None:
        request = pull_request("T", offset, wait_ms=wait_ms, maxMsgNums=count, **ext)
        return self.handlers.pull(self.caller.channel, request)

    def put(self, properties: bytes = b"") -> None:
        """A message comes, and the pulls that wait for it are looked at."""
        put(self.store, "T", 0, b"y", properties)
        self.held.arrived(list(self.store.arrived))

    def told(self, offset: int, count: int = 1) -> tuple[int, int, int]:
        """(code, where to go on, which broker to ask)."""
        answer = self.pull(offset, count)
        assert answer is not None
        return _told(answer)


def _told(answer: Command) -> tuple[int, int, int]:
    assert answer.ext is not None
    return answer.code, int(answer.ext["nextBeginOffset"]), int(answer.ext["suggestWhichBrokerId"])


async def test_readers_of_old_messages_are_sent_to_the_slave_where_that_is_allowed() -> None:
    desk, by_default = Desk(slave_read_enable=True), Desk()
    assert desk.told(0) == (FOUND, 1, 1)
    assert desk.told(0, count=10) == (FOUND, 10, 0)  # how far it got counts
    assert desk.told(9) == (FOUND, 10, 0)
    assert desk.told(10) == (NOT_FOUND, 10, 0)
    for each in (desk, by_default):
        each.group(which_broker_when_consume_slowly=3, broker_id=2)
    assert [desk.told(0), desk.told(9)] == [(FOUND, 1, 3), (FOUND, 10, 2)]
    assert [by_default.told(0), by_default.told(9)] == [(FOUND, 1, 0), (FOUND, 10, 0)]
    assert Desk(messages=2, slave_read_enable=True).told(0) == (FOUND, 1, 0), "all are in memory"


SLAVE: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1}


@pytest.mark.parametrize("slave_read_enable", [False, True])
async def test_a_slave_serves_what_it_has(slave_read_enable: bool) -> None:
    desk = Desk(slave_read_enable=slave_read_enable, **SLAVE)
    is_old = 1 if slave_read_enable else 0
    assert desk.told(0) == (FOUND, 1, is_old)  # nobody else is there
    desk.master_lives()
    assert desk.told(0) == (FOUND, 1, is_old)
    assert desk.told(9) == (FOUND, 10, 0)


async def test_at_its_end_a_slave_sends_readers_back_to_a_master_that_lives() -> None:
    desk = Desk(**SLAVE)
    assert desk.pull(10, wait_ms=15_000) is None  # held
    assert desk.told(10) == (NOT_FOUND, 10, 0)
    desk.master_lives()
    assert desk.told(10) == (RETRY, 10, 0)
    answer = desk.pull(10, wait_ms=15_000)
    assert answer is not None
    assert _told(answer) == (RETRY, 10, 0)


async def test_who_waits_at_a_slave_goes_back_at_once_when_the_master_returns() -> None:
    desk = Desk(**SLAVE)
    desk.master_lives()
    desk.master_lives(is_known=False)
    assert desk.pull(10, wait_ms=15_000) is None
    assert desk.caller.received() == []
    desk.master_lives()
    assert [_told(answer) for answer in desk.caller.received()] == [(RETRY, 10, 0)]
    assert len(desk.held) == 0


async def test_a_group_that_reads_from_this_slave_stays() -> None:
    desk = Desk(slave_read_enable=True, **SLAVE)
    # As copied from the master: a slave makes no groups.
    for _ in desk.meta.groups.mirror({"group": SubscriptionGroupConfig("group", broker_id=1)}, {}, _version(desk)):
        pass
    desk.master_lives()
    assert desk.told(9) == (FOUND, 10, 1)
    assert desk.pull(10, wait_ms=15_000) is None


def _version(desk: Desk) -> Any:
    return desk.meta.groups.data_version.next(1)


@pytest.mark.parametrize("offset", [11, 99])
async def test_a_slave_that_is_behind_corrects_nobody(offset: int) -> None:
    desk = Desk(**SLAVE)
    assert desk.told(offset) == (NOT_FOUND, offset, 0)
    assert desk.pull(offset, wait_ms=15_000) is None  # it may come
    desk.put()
    desk.master_lives()
    assert [_told(answer) for answer in desk.caller.received()] == [(RETRY, offset, 0)]
    assert desk.told(offset + 2) == (RETRY, offset + 2, 0)
    assert Desk(messages=0, **SLAVE).told(offset) == (NOT_FOUND, offset, 0)


async def test_a_slave_that_lacks_the_oldest_messages_corrects_nobody() -> None:
    desk = Desk(**SLAVE)
    queue = desk.store.queues.find("T", 0)
    assert queue is not None
    queue.min_offset = 4
    assert desk.told(2) == (NOT_FOUND, 2, 0)
    desk.master_lives()
    assert desk.told(2) == (RETRY, 2, 0)


async def test_a_held_pull_of_some_tags_is_not_moved_past_what_the_slave_lacks() -> None:
    desk = Desk(**SLAVE)
    queue = desk.store.queues.find("T", 0)
    assert queue is not None
    queue.min_offset = 4
    assert desk.pull(2, wait_ms=15_000, subscription="a") is None
    desk.put(b"TAGS\x01a\x02")
    assert desk.caller.received() == [], "messages 2 and 3 may be of this tag"
    desk.master_lives()
    assert [_told(answer) for answer in desk.caller.received()] == [(RETRY, 2, 0)]


async def test_a_pull_that_waits_for_a_queue_of_a_slave_gets_where_that_begins() -> None:
    desk = Desk(messages=0, **SLAVE)
    assert desk.pull(20, wait_ms=15_000, subscription="a") is None
    assert desk.pull(19, wait_ms=15_000, subscription="a") is None
    desk.store.queues.get("T", 0).move_to(20)
    desk.put(b"TAGS\x01a\x02")
    assert [_told(answer) for answer in desk.caller.received()] == [(FOUND, 21, 0)]


async def test_who_waits_while_the_topic_is_deleted_and_made_again_is_told_where_its_queue_ends() -> None:
    desk = Desk()
    assert desk.pull(10, wait_ms=15_000) is None
    desk.store.delete_topic("T")
    assert desk.pull(0, wait_ms=15_000, subscription="a") is None
    assert list(desk.store.queues) == []
    desk.put(b"TAGS\x01a\x02")
    assert [_told(answer) for answer in desk.caller.received()] == [(MOVED, 1, 0), (FOUND, 1, 0)]


async def test_who_waits_for_a_topic_that_stays_deleted_is_told_in_the_end() -> None:
    desk = Desk()
    assert desk.pull(10, wait_ms=15_000) is None
    desk.store.delete_topic("T")
    desk.held.release()
    assert [_told(answer) for answer in desk.caller.received()] == [(MOVED, 0, 0)]


async def test_a_slave_corrects_offsets_when_it_is_told_to() -> None:
    desk = Desk(offset_check_in_slave=True, **SLAVE)
    assert desk.told(99) == (MOVED, 10, 0)
    assert Desk().told(99) == (MOVED, 10, 0)


async def test_an_offset_that_comes_with_a_pull_is_the_masters() -> None:
    master, slave = Desk(), Desk(**SLAVE)
    for desk in (master, slave):
        desk.pull(3, sysFlag=5, commitOffset=3)
    assert master.meta.offsets.query("group", "T", 0) == 3
    assert slave.meta.offsets.query("group", "T", 0) == -1


async def test_a_held_pull_is_few_objects_and_all_are_gone_with_its_peer() -> None:
    desk = Desk()
    desk.pull(10, wait_ms=15_000)  # makes the group and its like
    desk.caller = peer = Caller()
    gone = weakref.ref(peer.channel)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(1000):
            assert desk.pull(10, wait_ms=15_000) is None
        # The pull and its request. A closure would add a dozen cells.
        assert len(gc.get_objects()) - before < 2_100
        desk.caller = Caller()
        desk.held.drop(peer.channel)
        del peer
        assert gone() is None
        assert len(gc.get_objects()) - before < 100
    finally:
        gc.enable()


# --- offsets that an administrator has set


def member(desk: Desk, **changes: Any) -> None:
    data = ConsumerData("group", **changes)
    desk.clients.join_consumer_group(desk.caller.channel, HeartbeatData("c"), data, "JAVA", 479, 0)


async def test_a_reset_reaches_the_next_pull_only() -> None:
    desk = Desk()
    desk.group()
    member(desk)
    desk.resets.set("group", "T", 0, 3)
    moved = desk.pull(8, sysFlag=5, commitOffset=8)
    assert moved is not None
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert moved.ext is not None and (moved.ext["nextBeginOffset"], moved.ext["maxOffset"]) == (3, 10)
    assert desk.meta.offsets.query("group", "T", 0) == 3
    assert desk.told(3)[:2] == (ResponseCode.SUCCESS, 4)
    desk.resets.set("group", "T", 0, 5)
    there = desk.pull(5, sysFlag=5, commitOffset=9)
    assert there is not None and there.code == ResponseCode.SUCCESS
    assert desk.meta.offsets.query("group", "T", 0) == 5
    assert not desk.resets.pending


async def test_a_held_pull_hears_of_a_reset_at_once() -> None:
    desk = Desk()
    desk.group()
    member(desk)
    assert desk.pull(10, wait_ms=10_000) is None
    desk.resets.set("other", "T", 0, 3)
    desk.held.expire(trio.current_time())
    assert desk.caller.received() == []
    desk.resets.set("group", "T", 0, 3)
    desk.held.expire(trio.current_time())
    [answer] = desk.caller.received()
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert desk.told(10)[:2] == (ResponseCode.PULL_OFFSET_MOVED, 3)


async def test_a_group_that_may_not_broadcast() -> None:
    desk = Desk()
    desk.group(consume_broadcast_enable=False)
    assert desk.told(0)[0] == ResponseCode.SUCCESS
    member(desk, message_model="BROADCASTING")
    with pytest.raises(RequestRefused, match="can not consume by broadcast way"):
        desk.pull(0)
    desk.group()
    assert desk.told(0)[0] == ResponseCode.SUCCESS


def subscribed(desk: Desk, expression: str, kind: str = "SQL92") -> None:
    """A member of the group says in its heartbeat what it reads."""
    data = ConsumerData("group", subscription_data_set=[SubscriptionData("T", expression, kind, sub_version=1)])
    desk.clients.join_consumer_group(
        desk.caller.channel, HeartbeatData("me", consumer_data_set=[data]), data, "JAVA", 1, 0
    )


async def test_the_condition_of_a_heartbeat_chooses_messages_by_their_properties() -> None:
    desk = Desk(messages=0, enable_property_filter=True)
    for value in (b"1", b"7", b"x", b"9"):
        put(desk.store, "T", 0, b"body", b"a\x01" + value + b"\x02")
    subscribed(desk, "a > 5")
    answer = desk.pull(0, 32, sysFlag=0, subVersion=1)
    assert answer is not None and answer.ext is not None
    assert (answer.code, len(decode_messages(answer.body)), answer.ext["nextBeginOffset"]) == (FOUND, 2, 4)


@pytest.mark.parametrize(
    ("expression", "enabled", "version", "code", "text"),
    [
        ("a >", True, 1, 27, "Your expression may be wrong! SQL92 expression, character 4"),
        ("a > 5", False, 1, 1, "does not support consumer to filter message by SQL92"),
        ("a > 5", True, 2, 25, "not latest"),
    ],
)
async def test_conditions_that_cannot_be_used_are_refused_with_rocketmqs_codes(
    expression: str, enabled: bool, version: int, code: int, text: str
) -> None:
    desk = Desk(enable_property_filter=enabled)
    subscribed(desk, expression)
    with pytest.raises(RequestRefused, match=text) as caught:
        desk.pull(0, sysFlag=0, subVersion=version)
    assert caught.value.code == code


async def test_a_held_pull_with_a_condition_that_falls_behind_is_answered() -> None:
    desk = Desk(messages=0, enable_property_filter=True)
    sql = " OR ".join(["a > 5"] * 256)  # 32 messages in one read
    assert desk.pull(0, wait_ms=15_000, subscription=sql, expressionType="SQL92") is None
    for _ in range(100):
        put(desk.store, "T", 0, b"y", b"a\x011\x02")
    desk.put()
    (answer,) = desk.caller.received()
    assert _told(answer) == (RETRY, 32, 0)


async def test_answers_to_held_pulls_leave_in_the_turn_of_their_message_but_not_too_many() -> None:
    desk, callers = Desk(), [Caller() for _ in range(SENT_AT_ONCE + 2)]
    async with trio.open_nursery() as nursery:
        for caller in callers:
            nursery.start_soon(caller.channel.run, lambda channel, request: None)
            assert desk.handlers.pull(caller.channel, pull_request("T", 10, wait_ms=15_000)) is None
        await trio.testing.wait_all_tasks_blocked()
        put(desk.store, "T", 0, b"y")
        desk.handlers.after_turn()
        assert [len(caller.transport.take()) > 0 for caller in callers] == [True] * SENT_AT_ONCE + [False] * 2
        await trio.testing.wait_all_tasks_blocked()
        assert [len(caller.transport.take()) > 0 for caller in callers] == [False] * SENT_AT_ONCE + [True] * 2
        nursery.cancel_scope.cancel()
