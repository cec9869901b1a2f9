"""Messages that come back: once each, whatever is wrong with others, with slaves, or with a topic."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.delivery.pop import finder
from skylark.broker.delivery.pop.finder import QueueMessages, with_handles
from skylark.broker.delivery.pop.log import QUEUE_ID
from skylark.broker.delivery.pop.records import Key, PopCheckpoint, Queue
from skylark.broker.store.reader import GetResult, read_queue
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.layout import MAX_PROPERTIES
from skylark.mqcommon.message.record import decode_record, encode_record, topic_field
from skylark.mqcommon.names import PERM_READ, PERM_READ_WRITE, REVIVE_GROUP
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.delivery.pop.harness import OPTIONS, Pops
from tests.broker.meta.support import options
from tests.broker.store.support import HOST

RETRY, DEAD, SLAVE = "%RETRY%g_T", "%DLQ%g", "slave:1"
GUARDED = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "min_in_sync_replicas": 2}


def with_slave() -> Pops:
    return Pops(options(**GUARDED))


def slave_comes(pops: Pops) -> None:
    pops.ledger.connected(SLAVE, 0.0, "slave")
    pops.ledger.acked(SLAVE, pops.store.log.end)


async def test_messages_come_back_once_while_too_few_slaves_are_in_sync(autojump_clock: MockClock) -> None:
    pops = with_slave()
    async with pops.running("stop", Random(1)):
        slave_comes(pops)
        for body in (b"a", b"b"):
            pops.send(body, 0)
        assert len(pops.pop(32, 1_000)) == 2
        pops.ledger.disconnected(SLAVE)
        await trio.sleep(5)
        assert pops.bodies(RETRY) == [b"a", b"b"]
        assert pops.pop(32, 1_000) == [], "no check point is stored now"
        slave_comes(pops)
        assert [message.body for message in pops.pop(32, 60_000)] == [b"a", b"b"]


async def test_order_one_dead_letter_of_a_message_while_too_few_slaves_are_in_sync(autojump_clock: MockClock) -> None:
    pops = with_slave()
    async with pops.running("stop", Random(1)):
        slave_comes(pops)
        pops.meta.groups.put(SubscriptionGroupConfig("g", retry_max_times=0))
        pops.send(b"a", 0)
        assert len(pops.pop(32, 100, is_ordered=True)) == 1
        pops.ledger.disconnected(SLAVE)
        for _ in range(3):
            await trio.sleep(1)
            assert pops.pop(32, 100, is_ordered=True) == []
        assert pops.bodies(DEAD) == [b"a"]


# --- properties that leave little room

#: The properties that the broker adds to each message: MSG_REGION, CLUSTER and TRACE_ON.
OWN_BYTES = 62
MOST = MAX_PROPERTIES - OWN_BYTES


def with_properties(size: int) -> bytes:
    properties = b"UNIQ_KEY\x01K\x02user\x01\x02"
    return properties[:-1] + b"a" * (size - len(properties)) + b"\x02"


def with_large_files() -> Pops:
    return Pops(store_options=replace(OPTIONS, commitlog_segment_bytes=1 << 17))


async def test_a_message_without_room_for_a_handle_is_a_dead_letter_and_keeps_no_other(
    autojump_clock: MockClock,
) -> None:
    pops = with_large_files()
    async with pops.running("stop", Random(1)):
        pops.send(b"large", 0, with_properties(MOST))
        pops.send(b"small", 0)
        assert len(pops.pop(32, 1_000)) == 2
        await trio.sleep(2)
        assert pops.bodies(DEAD) == [b"large"]
        assert [message.body for message in pops.pop(32, 60_000)] == [b"small"]
        assert len(pops.log.inflight) == 1


async def test_a_handle_takes_the_room_of_the_brokers_own_properties(autojump_clock: MockClock) -> None:
    pops = with_large_files()
    async with pops.running("stop", Random(1)):
        pops.send(b"large", 0, with_properties(MOST - OWN_BYTES))
        assert len(pops.pop(32, 1_000)) == 1
        await trio.sleep(2)
        (back,) = pops.pop(32, 60_000)
        assert back.properties["user"] == "a" * (MOST - OWN_BYTES - 17)
        assert pops.ack(back)
        assert len(pops.log.inflight) == 0


@pytest.mark.parametrize("size", [MOST, MOST - 20])
async def test_order_a_message_without_room_for_more_properties_becomes_a_dead_letter(
    size: int, autojump_clock: MockClock
) -> None:
    pops = with_large_files()
    async with pops.running("stop", Random(1)):
        pops.meta.groups.put(SubscriptionGroupConfig("g", retry_max_times=0))
        pops.send(b"large", 0, with_properties(size))
        pops.send(b"small", 0)
        assert len(pops.pop(1, 100, is_ordered=True)) == 1
        await trio.sleep(1)
        pops.pop(32, 60_000, is_ordered=True)
        assert pops.bodies(DEAD) == [b"large"]
        assert [message.body for message in pops.pop(32, 60_000, is_ordered=True)] == [b"small"]


# --- damaged messages


async def test_what_the_bucket_has_after_a_damaged_message_does_not_come_back_in_its_place(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        for body in (b"damaged", b"next"):
            pops.send(body, 0)
        first, second = pops.pop(2, 1_000)
        assert pops.ack(second)
        # As `OlderReads.read` goes on after a message that is damaged in the bucket.
        read = pops.store.get
        monkeypatch.setattr(
            pops.store, "get", lambda topic, queue_id, offset, *others: read(topic, queue_id, max(offset, 1), *others)
        )
        await trio.sleep(3)
        assert not pops.is_hidden(first) and len(pops.log.inflight) == 0
        assert pops.bodies(RETRY) == []


async def test_order_a_popped_message_that_the_bucket_has_no_more_holds_up_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        for body in (b"damaged", b"next"):
            pops.send(body, 0)
        assert len(pops.pop(2, 1_000, is_ordered=True)) == 2
        await trio.sleep(2)
        monkeypatch.setattr(
            finder, "read_queue", lambda log, queue, offset, *others: read_queue(log, queue, max(offset, 1), *others)
        )
        assert [message.body for message in pops.pop(32, 1_000, is_ordered=True)] == [b"next"]


async def test_order_a_damaged_message_that_cannot_become_a_dead_letter_is_given_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        pops.meta.groups.put(SubscriptionGroupConfig("g", retry_max_times=0))
        for body in (b"a", b"damaged", b"c"):
            pops.send(body, 0)
        assert len(pops.pop(3, 1_000, is_ordered=True)) == 3
        await trio.sleep(2)

        def damaged(*query: Any) -> GetResult:
            result = read_queue(*query)
            return replace(result, records=result.records.replace(b"damaged", b"dAmaged"))

        monkeypatch.setattr(finder, "read_queue", damaged)
        assert pops.pop(32, 60_000, is_ordered=True) == []
        assert pops.bodies(DEAD) == [b"a", b"c"] and len(pops.log.inflight) == 0
        assert "message 1 of T queue 0 is damaged and given up" in caplog.text


def test_a_damaged_message_that_comes_again_costs_no_other_its_handle() -> None:
    """As a message of the bucket, which was uploaded as it is."""
    magic, topic = topic_field(RETRY)
    whole = [
        encode_record(magic, topic, 0, offset, 0, b"%d" % offset, b"", 0, 0, 0, HOST, 0, HOST, 1, 0)
        for offset in range(3)
    ]
    records = b"".join([whole[0], whole[1].replace(b"1", b"2"), whole[2]])
    found = QueueMessages(Queue("g", RETRY, 0), records, range(3), 3)
    shown = with_handles(found, "T", 1, 1, 0, "broker-a")
    assert [decode_record(shown, at).body for at in record_starts(shown)] == [b"0", b"2"]


# --- topics that take no messages


async def test_a_group_whose_retry_topic_takes_no_messages_delays_no_other(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        pops.meta.topics.put(TopicConfig(RETRY, 1, 1, PERM_READ))
        for number in range(20):
            pops.send(b"%d" % number, 0)
            assert len(pops.pop(1, 1_000)) == 1
        pops.send(b"of h", 1)
        key = Key(Queue("h", "T", 1), 0, pops.clock.now_ms())
        pops.log.write(PopCheckpoint(key, 1_000, range(1), 1))
        await trio.sleep(1.2)
        assert pops.bodies("%RETRY%h_T") == [b"of h"]
        assert pops.bodies(RETRY) == []
        pops.meta.topics.put(TopicConfig(RETRY, 1, 1, PERM_READ_WRITE))
        await trio.sleep(1.2)
        assert sorted(pops.bodies(RETRY), key=int) == [b"%d" % number for number in range(20)]


async def test_a_dead_letter_that_cannot_be_stored_keeps_no_other_message_of_its_check_point(
    autojump_clock: MockClock,
) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        pops.meta.topics.put(TopicConfig(DEAD, 1, 1, PERM_READ))
        pops.writer.put("T", 0, b"dead", b"", 0, 0, 1, HOST, 16)
        pops.send(b"alive", 0)
        assert len(pops.pop(32, 1_000)) == 2
        await trio.sleep(5)
        assert pops.bodies(RETRY) == [b"alive"]
        assert len(pops.log.inflight) == 1
        pops.meta.topics.put(TopicConfig(DEAD, 1, 1, PERM_READ_WRITE))
        await trio.sleep(2)
        assert pops.bodies(DEAD) == [b"dead"]


# --- deleted topics


@pytest.mark.parametrize("ending", ["", "stop", "kill"])
@pytest.mark.parametrize("is_ordered", [False, True])
async def test_what_was_popped_of_a_deleted_topic_does_not_come_back_from_the_next_one(
    is_ordered: bool, ending: str, autojump_clock: MockClock
) -> None:
    pops, new = Pops(), [b"new", b"newer"]

    async def next_topic() -> None:
        for body in new:
            pops.send(body, 0)
        popped = pops.pop(32, 60_000, is_ordered=is_ordered)
        assert [message.body for message in popped] == new
        assert all([pops.ack(message) for message in popped])
        await trio.sleep(5)
        assert pops.bodies(RETRY) == []
        assert pops.pop(32, 60_000, is_ordered=is_ordered) == []
        assert len(pops.log.inflight) == 0

    async with pops.running(ending, Random(1)):
        for body in (b"a", b"b", b"c"):
            pops.send(body, 0)
        assert len(pops.pop(32, 3_000, is_ordered=is_ordered)) == 3
        await trio.sleep(1)
        await pops.delete_topic("T")
        if not ending:
            await next_topic()
            return
    async with pops.running("stop", Random(1)):
        await next_topic()


@pytest.mark.parametrize("ending", ["", "stop", "kill"])
async def test_what_a_deleted_group_has_popped_does_not_come_back_to_the_next_one(
    ending: str, autojump_clock: MockClock
) -> None:
    pops = Pops()

    async def next_group() -> None:
        pops.send(b"new", 1)
        assert [message.body for message in pops.pop(32, 4_000, queue_id=1)] == [b"new"]
        await trio.sleep(5)
        assert pops.bodies(RETRY) == [b"new"]

    async with pops.running(ending, Random(1)):
        for body in (b"acknowledged", b"a", b"b"):
            pops.send(body, 0)
        first, *_ = pops.pop(32, 3_000)
        pops.ack(first)
        assert len(pops.log.inflight) == 1
        await pops.delete_group()
        assert len(pops.log.inflight) == 0
        if not ending:
            await next_group()
            return
    async with pops.running("stop", Random(1)):
        await next_group()


async def test_a_group_is_not_ended_by_a_broker_that_may_not_write(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        pops.send(b"a", 0)
        pops.pop(32, 3_000)
        pops.take_role(False)
        with pytest.raises(RequestRefused):
            await pops.delete_group()


# --- a slave that lagged becomes the master


async def test_a_saved_start_past_the_end_of_the_revive_log_forgets_no_check_point(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        pops.send(b"before", 0)
        assert len(pops.pop(32, 30_000)) == 1
        pops.meta.offsets.commit(REVIVE_GROUP, pops.log.topic, QUEUE_ID, 50)
    async with pops.running("kill", Random(1)):
        pops.send(b"after", 0)
        assert [message.body for message in pops.pop(32, 30_000)] == [b"after"]
        await trio.sleep(10)
        await pops.persist()
    async with pops.running("stop", Random(1)):
        await trio.sleep(30)
        assert pops.bodies(RETRY) == [b"before", b"after"]
        # The offset goes on when nothing is popped any more.
        await trio.sleep(10)
        assert pops.meta.offsets.query(REVIVE_GROUP, pops.log.topic, QUEUE_ID) == pops.log.end


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 3_600_000])
@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_clock_that_is_set_shows_no_message_sooner_or_later(
    set_by_ms: int, is_ordered: bool, autojump_clock: MockClock
) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        pops.send(b"a", 0)
        assert len(pops.pop(32, 5_000, is_ordered=is_ordered)) == 1
        await trio.sleep(2)
        pops.clock.set_by_ms += set_by_ms
        await trio.sleep(2.8)
        assert pops.pop(32, 5_000, is_ordered=is_ordered) == []
        await trio.sleep(0.5)
        assert [message.body for message in pops.pop(32, 5_000, is_ordered=is_ordered)] == [b"a"]
        await trio.sleep(4.7)
        assert pops.pop(32, 5_000, is_ordered=is_ordered) == []
        await trio.sleep(0.5)
        assert [message.body for message in pops.pop(32, 5_000, is_ordered=is_ordered)] == [b"a"]


async def test_what_was_popped_while_the_clock_was_ahead_comes_back_after_a_restart(autojump_clock: MockClock) -> None:
    pops = Pops()
    pops.clock.set_by_ms = 86_400_000
    async with pops.running("stop", Random(1)):
        pops.send(b"a", 0)
        assert len(pops.pop(32, 5_000)) == 1
    pops.clock.set_by_ms = 0
    async with pops.running("stop", Random(1)):
        await trio.sleep(4.8)
        assert pops.pop(32, 5_000) == []
        await trio.sleep(0.5)
        assert [message.body for message in pops.pop(32, 5_000)] == [b"a"]
