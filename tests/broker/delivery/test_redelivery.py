"""36 and sends to retry topics, over the network: what is stored where, and who is refused with which code."""

import threading
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.redelivery import next_level
from skylark.broker.store.queue.delay_levels import DEFAULT, DelayLevels
from skylark.mqcommon.message.compression import COMPRESSIONS, compressed
from skylark.mqcommon.message.failure import FailureNote
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.call import call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.groups import (
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from skylark.remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG
from skylark.sdk import broker_api
from skylark.sdk.endpoint import Endpoint
from tests.broker.running import pull_request, running, send_request
from tests.broker.test_cold_reads import LOG, SMALL_FILES, fill
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

RETRY, DEAD, LEVELS = "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX"
READER = "TOOLS_CONSUMER"  # a group that every broker has
LZ4 = COMPRESSIONS["lz4"]
SOON = {"message_delay_level": "0s"}
LATER = {"message_delay_level": "1h 2h 3h 4h 5h 6h"}


async def sent(client: RemotingClient, addr: str, topic: str = "t", **ext: Any) -> MessageExt:
    """A message that a consumer of topic ``t`` has got."""
    answer = await client.invoke(addr, send_request(topic, b"body", properties="TAGS\x01a\x02KEYS\x01k\x02", **ext))
    assert answer.code == 0, answer
    (message,) = await stored(client, addr, topic)
    return message


async def stored(client: RemotingClient, addr: str, topic: str, queue_id: int = 0) -> list[MessageExt]:
    """The messages of the queue; none when there is no such topic."""
    answer = await client.invoke(addr, pull_request(topic, 0, queue_id=queue_id, consumerGroup=READER))
    return decode_messages(answer.body) if answer.code == 0 else []


async def arrived(client: RemotingClient, addr: str, topic: str, count: int = 1) -> list[MessageExt]:
    found: list[MessageExt] = []

    async def enough() -> bool:
        found[:] = await stored(client, addr, topic)
        return len(found) >= count

    await until(enough, f"{count} messages in {topic}")
    return found


async def give_back(at: Endpoint, message: MessageExt, level: int = 0, most: int = 16) -> None:
    await broker_api.send_back(at, "g", message.physical_offset, message.msg_id, message.topic, level, most)


async def set_group(client: RemotingClient, addr: str, config: SubscriptionGroupConfig) -> None:
    request = Command(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, None)
    answer = await client.invoke(addr, request, body=config)
    assert answer.code == 0, answer


async def test_it_comes_again_in_the_retry_topic_until_it_is_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    async with running(**SOON) as (client, addr):
        at = Endpoint(client, addr)
        first = message = await sent(client, addr)
        for times in (1, 2):
            await give_back(at, message, most=2)
            message = (await arrived(client, addr, RETRY, times))[-1]
            assert (message.body, message.tags, message.keys) == (b"body", "a", "k")
            assert message.reconsume_times == times
            assert message.properties["RETRY_TOPIC"] == "t"
            assert message.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
            assert "DELAY" not in message.properties
        assert await stored(client, addr, DEAD) == []
        await give_back(at, message, most=2)
        (dead,) = await stored(client, addr, DEAD)
        assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"body", 3, "t")
        assert dead.properties["DLQ_ORIGIN_TOPIC"] == "t"
        assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == first.offset_msg_id
        assert len(await stored(client, addr, RETRY)) == 2
        assert f"message {message.msg_id} of t became a dead letter of group g: given back 3 times" in caplog.text


async def test_a_message_whose_properties_leave_no_room_becomes_a_dead_letter_at_once() -> None:
    async with running(**LATER, mapped_file_size_commit_log=1 << 20) as (client, addr):
        properties = "UNIQ_KEY\x01K\x02user\x01" + "a" * 32_680 + "\x02"
        answer = await client.invoke(addr, send_request("t", b"body", properties=properties))
        assert answer.code == 0, answer
        (message,) = await stored(client, addr, "t")
        await give_back(Endpoint(client, addr), message)
        (dead,) = await stored(client, addr, DEAD)
        assert (dead.body, dead.reconsume_times, dead.properties["user"]) == (b"body", 1, "a" * 32_680)


async def test_the_last_note_of_a_failure_is_kept_with_the_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    async with running(**SOON) as (client, addr):
        at = Endpoint(client, addr)
        message = await sent(client, addr)
        place = ("g", message.physical_offset, message.msg_id, "t", 0, 1)
        await broker_api.send_back(at, *place, FailureNote("KeyError: 'a'", "me", 5))
        (again,) = await arrived(client, addr, RETRY)
        assert FailureNote.of(again.properties) == FailureNote("KeyError: 'a'", "me", 5)
        place = ("g", again.physical_offset, again.msg_id, "t", 0, 1)
        await broker_api.send_back(at, *place, FailureNote("one\nTAGS\x01b\x02", "you", 6))
        (dead,) = await stored(client, addr, DEAD)
        assert FailureNote.of(dead.properties) == FailureNote("one TAGS b", "you", 6)
        assert (dead.tags, dead.keys) == ("a", "k")
        assert "given back 2 times; one TAGS b" in caplog.text


async def test_a_message_without_room_for_a_note_is_taken_back_without_it() -> None:
    async with running(**SOON) as (client, addr):
        await client.invoke(addr, send_request("t", b"body", properties=f"large\x01{'x' * 30_500}\x02"))
        (message,) = await stored(client, addr, "t")
        note = FailureNote("y" * 1_000, "me", 5)
        place = ("g", message.physical_offset, message.msg_id, "t", -1, 1)
        await broker_api.send_back(Endpoint(client, addr), *place, note)
        (dead,) = await stored(client, addr, DEAD)
        assert len(dead.properties["large"]) == 30_500 and FailureNote.of(dead.properties) is None


async def test_a_compressed_body_waits_and_dies_as_it_is() -> None:
    """The body keeps its flag, and is not compressed again."""
    body = compressed(b"body" * 5_000, LZ4)
    async with running(**SOON) as (client, addr):
        at = Endpoint(client, addr)
        await client.invoke(addr, send_request("t", body, f=LZ4, properties="DELAY\x011\x02"))
        (message,) = await arrived(client, addr, "t")
        await give_back(at, message, most=1)
        (again,) = await arrived(client, addr, RETRY)
        await give_back(at, again, most=1)
        (dead,) = await stored(client, addr, DEAD)
        found = [message, again, dead]
        assert [(one.record.body, one.sys_flag, one.body) for one in found] == [(body, LZ4, b"body" * 5_000)] * 3


@pytest.mark.parametrize(
    ("level", "policy", "queue"),
    [
        (0, None, 2),
        (1, None, 0),
        (99, None, 5),
        (0, GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([5 * 3_600_000])), 4),
    ],
)
async def test_the_level_in_which_it_waits(level: int, policy: GroupRetryPolicy | None, queue: int) -> None:
    async with running(**LATER) as (client, addr):
        config = SubscriptionGroupConfig("g")
        if policy is not None:
            config.group_retry_policy = policy
        await set_group(client, addr, config)
        await give_back(Endpoint(client, addr), await sent(client, addr), level)
        (waiting,) = await stored(client, addr, LEVELS, queue)
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["DELAY"]) == (RETRY, str(queue + 1))


async def test_dead_at_once() -> None:
    async with running(**LATER) as (client, addr):
        at = Endpoint(client, addr)
        message = await sent(client, addr)
        await give_back(at, message, level=-1)
        await give_back(at, message, most=0)
        await set_group(client, addr, SubscriptionGroupConfig("g", retry_max_times=0))
        await give_back(at, message, most=-1)
        assert [dead.reconsume_times for dead in await stored(client, addr, DEAD)] == [1, 1, 1]


async def test_a_group_without_retry_queues_wants_no_second_delivery() -> None:
    async with running(**SOON) as (client, addr):
        await set_group(client, addr, SubscriptionGroupConfig("g", retry_queue_nums=0))
        await give_back(Endpoint(client, addr), await sent(client, addr))
        assert await stored(client, addr, LEVELS) == []


async def test_the_topics_are_made_as_the_group_says() -> None:
    async with running(**LATER) as (client, addr):
        await set_group(client, addr, SubscriptionGroupConfig("g", retry_queue_nums=3))
        at = Endpoint(client, addr)
        message = await sent(client, addr)
        await give_back(at, message)
        await give_back(at, message, level=-1)
        topics = (await call(at, GET_ALL_TOPIC_CONFIG.bare)).body().topic_config_table
        assert (topics[RETRY].read_queue_nums, topics[RETRY].perm) == (3, 6)
        assert (topics[DEAD].read_queue_nums, topics[DEAD].perm) == (1, 6)


@pytest.mark.parametrize(
    ("ext", "options", "code", "text"),
    [
        ({"delayLevel": None}, {}, ResponseCode.SYSTEM_ERROR, "the custom field <delayLevel> is null"),
        ({"offset": "x"}, {}, ResponseCode.SYSTEM_ERROR, "<offset> is not an integer"),
        ({"offset": 1_000_000}, {}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, 1000000"),
        ({"offset": 1}, {}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, 1"),
        ({"offset": -1}, {}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, -1"),
        ({"bname": "broker-b"}, {}, ResponseCode.NOT_LEADER_FOR_QUEUE, "the request is for broker broker-b"),
        (
            {}, {"auto_create_subscription_group": False}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "subscription group not exist, g",
        ),
        ({}, {"broker_permission": 4}, ResponseCode.NO_PERMISSION, "sending message is forbidden"),
        ({"group": "x" * 250}, {}, ResponseCode.SYSTEM_ERROR, "not exist"),
    ],
)  # fmt: skip
async def test_refusals(ext: dict[str, Any], options: dict[str, Any], code: int, text: str) -> None:
    async with running(**options) as (client, addr):
        message = await sent(client, addr)
        fields = {"offset": message.physical_offset, "group": "g", "delayLevel": 0, **ext}
        request = Command(CONSUMER_SEND_MSG_BACK.code, {k: v for k, v in fields.items() if v is not None})
        answer = await client.invoke(addr, request)
        assert (answer.code, text in (answer.remark or "")) == (code, True), answer


async def test_a_slave_refuses_it() -> None:
    async with running(broker_role="SLAVE", broker_id=1) as (client, addr):
        request = Command(CONSUMER_SEND_MSG_BACK.code, {"offset": 0, "group": "g", "delayLevel": 0})
        assert (await client.invoke(addr, request)).code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"flush_disk_type": "SYNC_FLUSH"}, 0, ""),
        ({"broker_role": "SYNC_MASTER", "total_replicas": 2}, ResponseCode.SYSTEM_ERROR, "not safely in time: code 11"),
    ],
    ids=["the disk is in time", "no slave is in sync"],
)
async def test_it_is_answered_when_the_copy_is_safe(options: dict[str, Any], code: int, text: str) -> None:
    async with running(**options, **LATER) as (client, addr):
        # What the producer said of its own wait does not matter.
        await client.invoke(addr, send_request("t", b"body", properties="WAIT\x01false\x02"))
        (message,) = await stored(client, addr, "t")
        fields = {"offset": message.physical_offset, "group": "g", "delayLevel": 0}
        with trio.fail_after(DEADLINE_S):
            answer = await client.invoke(addr, Command(CONSUMER_SEND_MSG_BACK.code, fields), 50_000)
        assert (answer.code, text in (answer.remark or "")) == (code, True), answer


@pytest.mark.parametrize(
    ("reconsumed", "most", "ordered", "dead"),
    [
        (3, 3, False, False),
        (4, 3, False, True),
        (17, None, False, True),
        (0, None, False, False),
        (0, None, True, True),
    ],
)
async def test_sends_to_the_retry_topic(reconsumed: int, most: int | None, ordered: bool, dead: bool) -> None:
    async with running(**SOON) as (client, addr):
        if ordered:
            await broker_api.lock_queues(Endpoint(client, addr), "g", "a", [MessageQueue("t", "broker-a", 0)])
        properties = "TAGS\x01a\x02RETRY_TOPIC\x01t\x02DELAY\x013\x02"
        request = send_request(RETRY, b"body", properties=properties, j=reconsumed, l=most)
        answer = await client.invoke(addr, request)
        assert answer.code == 0, answer
        (message,) = await arrived(client, addr, DEAD if dead else RETRY)
        assert (message.reconsume_times, message.tags, "DELAY" in message.properties) == (reconsumed, "a", False)


async def test_a_send_to_the_retry_topic_of_an_unknown_group_is_refused() -> None:
    async with running(auto_create_subscription_group=False) as (client, addr):
        answer = await client.invoke(addr, send_request(RETRY, b"", j=1))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        answer = await client.invoke(addr, send_request(RETRY, b"", l="x"))
        assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


async def test_a_message_that_is_on_disk_only_is_read_in_a_thread_and_given_back_once() -> None:
    fs = MemoryFiles()
    fill(fs, [b"%d" % number for number in range(12)])
    readers: set[int] = set()
    fs.cold.before_read = lambda path: readers.add(threading.get_ident())
    async with running(fs, **SMALL_FILES, **LATER) as (client, addr):
        fs.cold.mark(LOG)
        request = Command(CONSUMER_SEND_MSG_BACK.code, {"offset": 0, "group": "g", "delayLevel": 1})
        assert (await client.invoke(addr, request)).code == 0
        (waiting,) = await stored(client, addr, LEVELS)
        assert waiting.body == b"0"
    assert readers and threading.get_ident() not in readers


# --- the level of the next delivery


NONE = GroupRetryPolicy()


def test_rocketmqs_default_is_level_three_and_up() -> None:
    assert [next_level(0, times, 16, NONE, DEFAULT) for times in range(18)] == [*range(3, 19), None, None]


@given(st.integers(-3, 30), st.integers(0, 40), st.integers(0, 20), st.integers(1, 25))
def test_a_level_is_always_one_of_the_levels(wanted: int, times: int, most: int, levels: int) -> None:
    found = next_level(wanted, times, most, NONE, DelayLevels(tuple(range(levels))))
    assert (found is None) == (wanted < 0 or times >= most)
    if found is not None:
        assert found == min(wanted or 3 + times, levels)


@given(st.integers(0, 20))
def test_a_message_that_always_fails_ends_as_a_dead_letter(most: int) -> None:
    times = 0
    while next_level(0, times, most, NONE, DEFAULT) is not None:
        times += 1
    assert times == most


@pytest.mark.parametrize(
    ("policy", "levels"),
    [
        (GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(5_000, 60_000, 2)), [2, 3, 4, 5, 5, 5]),
        (GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(1, 2**63 - 1, 2**62)), [1, 18, 18, 18, 18, 18]),
        (GroupRetryPolicy("EXPONENTIAL"), [3, 4, 5, 6, 7, 8]),
        # as in Java the third entry is the first that counts
        (
            GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([9, 9, 1_000, 9_000, 8_000_000])),
            [1, 3, *[18] * 4],
        ),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([10_000])), [3] * 6),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([])), [3, 4, 5, 6, 7, 8]),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([-5])), [1] * 6),
    ],
)
def test_a_group_may_have_a_policy_of_its_own(policy: GroupRetryPolicy, levels: list[int]) -> None:
    assert [next_level(0, times, 16, policy, DEFAULT) for times in range(6)] == levels
    assert next_level(7, 0, 16, policy, DEFAULT) == 7, "what the consumer says comes first"
