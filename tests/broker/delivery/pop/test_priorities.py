"""Topics of type PRIORITY on the wire: urgent messages are popped first, and keep their priority in retries."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.message.properties import PRIORITY, encode_properties
from skylark.remoting.net.call import call
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from skylark.remoting.protocol.requests.groups import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.pops import PEEK_MESSAGE, PeekMessageRequestHeader
from skylark.remoting.protocol.requests.topics import (
    GET_TOPIC_CONFIG,
    UPDATE_AND_CREATE_TOPIC,
    CreateTopicRequestHeader,
    GetTopicConfigRequestHeader,
)
from tests.broker.delivery.pop.support import WAIT_MS, Popper, bodies
from tests.broker.running import running
from tests.support.waiting import until

QUEUES = 8
RETRIES = "%RETRY%g_T"


@asynccontextmanager
async def popping(kind: str = "PRIORITY", queues: int = QUEUES, **options: Any) -> AsyncIterator[Popper]:
    """A consumer of topic T, which is of this type."""
    async with running(**options) as (client, addr):
        popper = Popper(client, addr)
        await set_topic(popper, kind, queues)
        yield popper


async def set_topic(popper: Popper, kind: str, queues: int = QUEUES, topic: str = "T") -> None:
    attributes = f"+message.type={kind}" if kind else ""
    header = CreateTopicRequestHeader(topic, "TBW102", queues, queues, 6, "SINGLE_TAG", False, attributes=attributes)
    await call(popper.at, UPDATE_AND_CREATE_TOPIC, header)


async def send(popper: Popper, *priorities: int | str, **more: str) -> None:
    """A message for each priority, which is its body, too."""
    for priority in priorities:
        properties = encode_properties({PRIORITY: str(priority), **more})
        await popper.send(str(priority).encode(), properties=properties)


async def set_group(popper: Popper, **attributes: str) -> None:
    config = SubscriptionGroupConfig("g", attributes={f"+{name}": value for name, value in attributes.items()})
    await call(popper.at, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)


async def change(popper: Popper, **options: str) -> None:
    text = "".join(f"{key}={value}\n" for key, value in options.items())
    await call(popper.at, UPDATE_BROKER_CONFIG, None, text.encode())


async def popped_one_by_one(popper: Popper, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        found += bodies(await popper.pop(max_msg_nums=1))
    return found


async def test_the_highest_is_popped_first_in_one_pop_and_in_many() -> None:
    async with popping() as popper:
        await send(popper, *range(QUEUES))
        assert bodies(await popper.pop()) == [b"7", b"6", b"5", b"4", b"3", b"2", b"1", b"0"]
        await send(popper, 3, 0, 7, 3)
        assert await popped_one_by_one(popper, 4) == [b"7", b"3", b"3", b"0"]


async def test_an_urgent_message_overtakes_those_that_wait() -> None:
    async with popping() as popper:
        await send(popper, *[0] * 20)
        assert await popped_one_by_one(popper, 1) == [b"0"]
        await send(popper, 7)
        assert await popped_one_by_one(popper, 2) == [b"7", b"0"]


@pytest.mark.parametrize(("priority", "queue_id"), [("0", 0), ("7", 7), ("8", 7), ("4294967296", 7), ("9" * 40, 7)])
async def test_the_priority_chooses_the_queue_whatever_the_topics_type(priority: str, queue_id: int) -> None:
    async with popping("NORMAL") as popper:
        await send(popper, priority)
        (found,) = await popper.pop()
        assert (found.message.queue_id, found.message.properties[PRIORITY]) == (queue_id, priority)


@pytest.mark.parametrize("other", ["DELAY", "TIMER_DELAY_MS", "__SHARDINGKEY"])
async def test_a_message_of_another_type_loses_its_priority(other: str) -> None:
    async with popping() as popper:
        await send(popper, 7, **{other: "1"})
        (found,) = await popper.pop(poll_time=WAIT_MS)
        assert found.message.queue_id == 0
        assert PRIORITY not in found.message.properties


async def test_a_text_that_is_no_number_is_kept_and_asks_for_nothing() -> None:
    async with popping() as popper:
        await send(popper, "-1", "high")
        assert [one.message.queue_id for one in await popper.pop()] == [0, 0]


async def test_the_lowest_first_when_the_option_says_so() -> None:
    async with popping() as popper:
        await change(popper, priorityOrderAsc="false")
        await send(popper, *range(QUEUES))
        assert await popped_one_by_one(popper, QUEUES) == [b"%d" % number for number in range(QUEUES)]


async def test_a_group_with_factor_0_reads_all_queues_alike() -> None:
    async with popping() as popper:
        await set_group(popper, **{"priority.factor": "0"})
        await send(popper, *range(QUEUES))
        found = await popped_one_by_one(popper, QUEUES)
        assert sorted(found) == [b"%d" % number for number in range(QUEUES)]
        assert found != sorted(found, reverse=True)


async def test_other_topics_and_pops_of_one_queue_are_as_ever() -> None:
    async with popping("NORMAL") as popper:
        await send(popper, *range(QUEUES))
        assert bodies(await popper.pop(queue_id=3)) == [b"3"]
        found = await popped_one_by_one(popper, QUEUES - 1)
        assert found != sorted(found, reverse=True)


async def test_what_comes_back_keeps_its_priority() -> None:
    async with popping() as popper:
        await send(popper, 0, 5, 7)
        first = await popper.pop()
        for one in first:
            await popper.hide(one, 0)
        config = (await call(popper.at, GET_TOPIC_CONFIG, GetTopicConfigRequestHeader("T"))).body()
        assert config.write_queue_nums == QUEUES
        await until_back(popper, 3)
        # In each priority what comes back follows what is new.
        await send(popper, 5, 6)
        again = await popped_one_by_one_with_queues(popper, 5)
        assert again == [(b"7", 7, 1), (b"6", 6, 0), (b"5", 5, 0), (b"5", 5, 1), (b"0", 0, 1)]


async def until_back(popper: Popper, count: int) -> None:
    """Wait until so many messages are visible again, without popping them."""
    header = PeekMessageRequestHeader(topic="T", queue_id=-1, max_msg_nums=32, consumer_group="g")

    async def are_back() -> bool:
        answer = await call(popper.at, PEEK_MESSAGE, header)
        return answer.code == 0 and len(decode_messages(answer.body())) == count

    await until(are_back, "messages that come back")


async def popped_one_by_one_with_queues(popper: Popper, count: int) -> list[tuple[bytes, int, int]]:
    found = []
    for _ in range(count):
        (one,) = await popper.pop(max_msg_nums=1)
        assert one.message.properties[PRIORITY] == one.body.decode()
        found.append((one.body, one.message.queue_id, one.message.reconsume_times))
        await popper.ack(one)
    return found


@pytest.mark.parametrize(("percent", "order"), [("0", [b"1", b"0"]), ("100", [b"0", b"1"])])
async def test_retries_come_last_or_first_as_the_option_says(percent: str, order: list[bytes]) -> None:
    async with popping() as popper:
        await change(popper, popFromRetryProbabilityForPriority=percent)
        await send(popper, 0)
        (first,) = await popper.pop()
        await popper.hide(first, 0)
        await until_back(popper, 1)
        await send(popper, 1)
        assert await popped_one_by_one(popper, 2) == order


@pytest.mark.parametrize(("separate", "queue_id"), [(False, 0), (True, 3)])
async def test_other_topics_keep_their_queues_only_when_the_option_says_so(separate: bool, queue_id: int) -> None:
    async with popping("NORMAL", use_separate_retry_queue=separate) as popper:
        await popper.send(b"a", queue_id=3)
        await popper.pop(invisible_time=0)
        (back,) = await popper.pop(poll_time=WAIT_MS)
        assert (back.message.queue_id, back.message.reconsume_times) == (queue_id, 1)
        await popper.ack(back)


async def test_a_retry_topic_grows_when_its_topic_gets_priorities() -> None:
    async with popping("NORMAL") as popper:
        for kind, queue_id in (("NORMAL", 0), ("PRIORITY", 7)):
            await set_topic(popper, kind)
            await send(popper, 7)
            await popper.pop(invisible_time=0)
            (back,) = await popper.pop(poll_time=WAIT_MS)
            assert (back.message.queue_id, back.message.reconsume_times) == (queue_id, 1)
            await popper.ack(back)
        retries = (await call(popper.at, GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(RETRIES))).body()
        assert (retries.read_queue_nums, retries.write_queue_nums) == (QUEUES, QUEUES)
