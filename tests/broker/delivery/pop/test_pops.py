"""Pops and acknowledgements on the wire: hidden, acknowledged, back again."""

import pytest
import trio

from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.names import REVIVE_TOPIC_PREFIX
from skylark.remoting.net.call import call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests import pops
from skylark.remoting.protocol.requests.groups import (
    DELETE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    DeleteSubscriptionGroupRequestHeader,
    SubscriptionGroupConfig,
)
from skylark.remoting.protocol.requests.offsets import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylark.remoting.protocol.requests.pops import (
    INIT_MAX,
    AckMessageRequestHeader,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
)
from skylark.remoting.protocol.requests.topics import (
    DELETE_TOPIC_IN_BROKER,
    GET_TOPIC_CONFIG,
    GetTopicConfigRequestHeader,
    TopicRequestHeader,
)
from tests.broker.delivery.pop.support import MINUTE_MS, SHORT_MS, WAIT_MS, Popper, bodies
from tests.broker.running import pull_request, running
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


async def test_a_message_is_popped_once_while_it_is_hidden() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b", b"c")
        first = await popper.pop(max_msg_nums=2)
        assert bodies(first) == [b"a", b"b"]
        assert popper.rest == 1
        assert bodies(await popper.pop()) == [b"c"]
        assert await popper.pop() == []
        other = Popper(client, addr, group="other")
        assert bodies(await other.pop()) == [b"a", b"b", b"c"]


async def test_the_records_of_a_pop_have_no_key_and_so_no_entry_of_the_index() -> None:
    async with running(broker_cluster_name="here") as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")
        await popper.ack_many(*await popper.pop())
        answer = await client.invoke(addr, pull_request(f"{REVIVE_TOPIC_PREFIX}here", 0))
        found = [message.properties for message in decode_messages(answer.body)]
        assert {"TAGS": "ck"} in found and {"TAGS": "bAck"} in found
        assert all([properties.keys() == {"TAGS"} for properties in found])


async def test_all_queues_of_a_topic_or_one() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        for queue_id in range(4):
            await popper.send(b"%d" % queue_id, queue_id=queue_id)
        assert bodies(await popper.pop(queue_id=2)) == [b"2"]
        assert sorted(bodies(await popper.pop())) == [b"0", b"1", b"3"]


async def test_what_is_not_acknowledged_comes_back_and_the_rest_does_not() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b", b"c", b"d")
        popped = await popper.pop()
        await popper.ack(popped[0])
        await popper.ack_many(popped[2])
        # Only now do they become visible soon, so that a slow machine cannot be late with the acknowledgements.
        await popper.hide(popped[1], SHORT_MS)
        await popper.hide(popped[3], SHORT_MS)
        back = await popper.pop(poll_time=WAIT_MS)
        while len(back) < 2:
            back += await popper.pop(poll_time=WAIT_MS)
        assert bodies(back) == [b"b", b"d"]
        assert {one.message.topic for one in back} == {"T"}
        assert [one.message.reconsume_times for one in back] == [1, 1]
        assert {one.handle.retry for one in back} == {"1"}
        assert all("1ST_POP_TIME" in one.message.properties for one in back)
        await popper.ack_many(*back)
        assert await popper.pop() == []


async def test_changed_time_and_the_new_handle() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b")
        first, second = await popper.pop()
        longer = await popper.hide(first, 2 * MINUTE_MS)
        with pytest.raises(BrokerError, match="not in flight with this handle") as caught:
            await popper.hide(first, MINUTE_MS)
        assert caught.value.code == ResponseCode.NO_MESSAGE
        await popper.hide(second, 0)
        assert bodies(await popper.pop(poll_time=WAIT_MS)) == [b"b"]
        await popper.ack(longer)
        with pytest.raises(BrokerError):
            await popper.hide(longer, MINUTE_MS)


async def test_dead_letters_after_as_many_deliveries_as_the_group_allows() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")
        config = SubscriptionGroupConfig("g", retry_max_times=1)
        await call(popper.at, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
        assert bodies(await popper.pop(invisible_time=0)) == [b"a"]
        assert bodies(await popper.pop(invisible_time=0, poll_time=WAIT_MS)) == [b"a"]
        dead = Popper(client, addr, group="undertaker", topic="%DLQ%g")

        async def found() -> bool:
            try:
                return bool(await dead.pop())
            except BrokerError as error:
                assert error.code == ResponseCode.TOPIC_NOT_EXIST
                return False

        await until(found, "a dead letter")
        assert await popper.pop() == []


@pytest.mark.parametrize("v2", [False, True])
async def test_retry_topics_by_either_name(v2: bool) -> None:
    async with running(enable_retry_topic_v2=v2) as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")
        await popper.pop(invisible_time=0)
        (back,) = await popper.pop(poll_time=WAIT_MS)
        assert back.handle.retry == ("2" if v2 else "1")
        await popper.ack(back)
        await popper.ack_many(back)


async def test_held_until_a_message_comes() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"first")
        await popper.pop()
        got: list[list[bytes]] = []

        async def wait() -> None:
            got.append(bodies(await popper.pop(poll_time=WAIT_MS)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await popper.until_held(2)
            await popper.send(b"a", queue_id=3)
            await popper.until_held(1)
            assert len(got) == 1
            await popper.send(b"b", queue_id=1)
        assert got == [[b"a"], [b"b"]]


async def test_a_pop_that_is_held_for_nothing_is_told_so() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")
        await popper.pop()
        answer = await call(popper.at, pops.POP_MESSAGE, popper.request(poll_time=50), wait_ms=50)
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        assert answer.header().rest_num == 0


async def test_too_many_held_pops_are_refused() -> None:
    async with running(pop_polling_size=1) as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")
        await popper.pop()
        async with trio.open_nursery() as nursery:

            async def held() -> None:
                assert bodies(await popper.pop(poll_time=WAIT_MS)) == [b"b"]

            nursery.start_soon(held)
            await popper.until_held(1)
            answer = await call(popper.at, pops.POP_MESSAGE, popper.request(poll_time=WAIT_MS), wait_ms=WAIT_MS)
            assert answer.code == ResponseCode.POLLING_FULL
            await popper.send(b"b")


async def test_a_notification_says_that_there_is_something_and_takes_nothing() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")

        async def has_message(wait_ms: int) -> bool:
            header = NotificationRequestHeader("g", "T", -1, wait_ms, 0)
            return (await call(popper.at, pops.NOTIFICATION, header, wait_ms=wait_ms)).header().has_msg

        assert await has_message(0)
        assert bodies(await popper.pop()) == [b"a"]
        assert not await has_message(0)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await popper.send(b"b")

            nursery.start_soon(send)
            assert await has_message(WAIT_MS)
        assert bodies(await popper.pop()) == [b"b"]


async def test_a_peek_takes_nothing() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b")
        for _ in range(2):
            answer = await call(popper.at, pops.PEEK_MESSAGE, PeekMessageRequestHeader("T", 0, 1, "g"))
            assert bodies(popper.read(answer.header(), answer.body())) == [b"a"]
        assert bodies(await popper.pop()) == [b"a", b"b"]
        answer = await call(popper.at, pops.PEEK_MESSAGE, PeekMessageRequestHeader("T", -1, 1, "g"))
        assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_tags() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        for number in range(6):
            await popper.send(b"%d" % number, properties=f"TAGS\x01{'ab'[number % 2]}\x02")
        popped = await popper.pop(exp="a", exp_type="TAG")
        assert bodies(popped) == [b"0", b"2", b"4"]
        assert [one.handle.start_offset for one in popped] == [0, 0, 0]
        await popper.ack(popped[0])
        await popper.ack_many(popped[2])
        assert bodies([await popper.hide(popped[1], 0)]) == [b"2"]
        assert bodies(await popper.pop(exp="a", exp_type="TAG", poll_time=WAIT_MS)) == [b"2"]
        assert await popper.pop() == [], "those that the filter left out are passed"
        with pytest.raises(BrokerError, match="SQL92"):
            await popper.pop(exp="x > 1", exp_type="SQL92")


async def test_the_beginning_of_a_new_group() -> None:
    async with running(access_message_in_memory_max_ratio=0) as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"old")
        assert await popper.pop(init_mode=INIT_MAX) == []
        await popper.send(b"new")
        assert bodies(await popper.pop(init_mode=INIT_MAX)) == [b"new"]
        assert bodies(await Popper(client, addr, group="other").pop()) == [b"old", b"new"]


async def test_order_a_queue_is_blocked_until_its_messages_are_acknowledged() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b", b"c")
        first = await popper.pop(max_msg_nums=2, order=True, attempt_id="one")
        assert bodies(first) == [b"a", b"b"]
        assert {one.handle.revive_queue_id for one in first} == {999}
        assert await popper.pop(order=True, attempt_id="two") == []
        again = await popper.pop(order=True, attempt_id="one")
        assert bodies(again) == [b"a", b"b"], "the same attempt, whose answer may have been lost"
        assert [one.count for one in again] == [1, 1]
        await popper.ack(again[0])
        assert await popper.pop(order=True) == []
        await popper.ack_many(again[1])
        assert bodies(await popper.pop(order=True)) == [b"c"]


async def test_order_a_held_pop_goes_on_when_the_queue_is_free_again() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b", b"c")
        first, second = await popper.pop(max_msg_nums=2, order=True)
        await popper.ack(first)
        await popper.hide(second, 0)
        (back,) = await popper.pop(order=True, poll_time=WAIT_MS)
        assert (back.body, back.count) == (b"b", 1), "what was acknowledged does not come back"
        async with trio.open_nursery() as nursery:

            async def next_one() -> None:
                assert bodies(await popper.pop(order=True, poll_time=WAIT_MS)) == [b"c"]

            nursery.start_soon(next_one)
            await popper.ack(back)


async def test_an_administrators_offset_counts() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b", b"c")
        await popper.ack_many(*await popper.pop())
        await call(popper.at, UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader("g", "T", 0, 1))
        assert bodies(await popper.pop()) == [b"b", b"c"]


BAD_POPS: list[tuple[dict[str, object], int, str]] = [
    ({"max_msg_nums": 33}, ResponseCode.SYSTEM_ERROR, "it must be 1 to 32"),
    ({"queue_id": 9}, ResponseCode.INVALID_PARAMETER, r"queueId\[9\] is illegal"),
    ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST, r"topic\[none\] not exist"),
    ({"topic": "%RETRY%g"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
    ({"invisible_time": -1}, ResponseCode.INVALID_PARAMETER, "invisibleTime is -1 ms"),
    ({"init_mode": 7}, ResponseCode.INVALID_PARAMETER, "initMode is 0 for the start"),
    ({"consumer_group": "g" * 250}, ResponseCode.INVALID_PARAMETER, "too long together for a retry topic"),
]


async def test_bad_pops_are_told_what_is_wrong() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")
        for changes, code, text in BAD_POPS:
            with pytest.raises(BrokerError, match=text) as caught:
                await popper.pop(**changes)
            assert caught.value.code == code
        assert bodies(await popper.pop()) == [b"a"]


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        ("", "1 parts, not 7 or 8"),
        ("x 1 1 0 0 broker-a 0 0", "its startOffset is 'x', not a number"),
        ("0 1 1 0 9 broker-a 0 0", "its retry flag is '9'"),
        ("0 " + "9" * 30 + " 1 0 0 broker-a 0 0", "its popTime is"),
    ],
)
async def test_a_bad_handle_is_told_what_is_wrong(handle: str, text: str) -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a")
        with pytest.raises(BrokerError, match=text) as caught:
            await call(popper.at, pops.ACK_MESSAGE, AckMessageRequestHeader("g", "T", 0, handle, 0))
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(BrokerError, match="not in queue offset range") as caught:
            await call(popper.at, pops.ACK_MESSAGE, AckMessageRequestHeader("g", "T", 0, handle, 7))
        assert caught.value.code == ResponseCode.NO_MESSAGE


async def test_state_survives_a_restart_and_a_kill() -> None:
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b", b"c", b"d")
        popped = await popper.pop(max_msg_nums=3, invisible_time=2_000)
        await popper.ack(popped[0])
        killed = fs.killed()
    for files in (fs, killed):
        async with running(files) as (client, addr):
            popper = Popper(client, addr)
            found: list[bytes] = []
            while len(found) < 3:
                found += bodies(await popper.pop(poll_time=WAIT_MS))
            assert sorted(found) == [b"b", b"c", b"d"]
            assert await popper.pop() == []


async def test_offsets_are_committed_for_the_progress_of_the_group() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b", b"c")
        await popper.pop(max_msg_nums=2)

        async def committed() -> bool:
            header = QueryConsumerOffsetRequestHeader("g", "T", 0, False)
            return (await call(popper.at, QUERY_CONSUMER_OFFSET, header)).header().offset == 2

        await until(committed, "the offset")


async def test_a_deleted_topic_takes_those_with_it_in_which_its_messages_come_back() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b")
        await popper.pop(max_msg_nums=1, invisible_time=0)
        (back,) = await popper.pop(poll_time=WAIT_MS, queue_id=3)
        assert back.body == b"a"
        await popper.pop(invisible_time=SHORT_MS)
        await call(popper.at, DELETE_TOPIC_IN_BROKER, TopicRequestHeader("T"))
        for topic in ("T", popper.retry_topic):
            with pytest.raises(BrokerError, match="No topic in this broker"):
                await call(popper.at, GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic))
        await popper.send(b"new")
        assert bodies(await popper.pop()) == [b"new"]


async def test_a_deleted_group_takes_with_it_what_would_come_back_to_it() -> None:
    async with running() as (client, addr):
        popper = Popper(client, addr)
        await popper.send(b"a", b"b")
        await popper.pop(max_msg_nums=1, invisible_time=0)
        assert bodies(await popper.pop(poll_time=WAIT_MS, queue_id=3)) == [b"a"]
        await popper.pop(invisible_time=SHORT_MS)
        await call(popper.at, DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader("g", True))
        with pytest.raises(BrokerError, match="No topic in this broker"):
            await call(popper.at, GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(popper.retry_topic))
        await popper.send(b"new")
        # The next group begins at the first message.
        assert bodies(await popper.pop(invisible_time=SHORT_MS)) == [b"a", b"b", b"new"]
        # What the old group had popped would come back before that.
        back: list[bytes] = []
        while len(back) < 3:
            back += bodies(await popper.pop(poll_time=WAIT_MS, queue_id=3))
        assert sorted(back) == [b"a", b"b", b"new"]


async def test_the_log_of_check_points_may_be_rolled_back() -> None:
    async with running() as (client, addr):
        await call(Popper(client, addr).at, pops.POP_ROLLBACK)
