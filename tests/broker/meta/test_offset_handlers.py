"""14, 15, 29 - 32, 45."""

from typing import Any

import pytest

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, OFFER_CBOR, OFFER_FIELD
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import (
    GET_ALL_DELAY_OFFSET,
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    DelayOffsetTable,
)
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.desk import Desk
from tests.broker.meta.support import options
from tests.broker.store.support import put

QUERY, COMMIT = QUERY_CONSUMER_OFFSET.code, UPDATE_CONSUMER_OFFSET.code


def at(queue_id: Any = 0, topic: str = "T", **more: Any) -> dict[str, Any]:
    return {"consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "bname": "broker-a", "ReqT": "0", **more}


def desk_with_topic(messages: int = 0, **changes: Any) -> Desk:
    """Topic T has no creation stamp, as one of an older store, and messages in queue 0."""
    desk = Desk(options(**changes))
    desk.meta.topics.put_as_is(TopicConfig("T", 4, 4))
    for _ in range(messages):
        put(desk.store, "T", 0, b"x")
    desk.meta.groups.put(SubscriptionGroupConfig("g"))
    return desk


@pytest.mark.parametrize("how", [{"codec": CBOR}, {"ext": {OFFER_FIELD: OFFER_CBOR}}])
async def test_a_commit_of_a_client_of_ours_makes_the_group(how: dict[str, Any]) -> None:
    desk = Desk(options())
    desk.meta.topics.create_on_send("T", "TBW102", 4)
    asked = dict(how)
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 0, **asked.pop("ext", {})}
    assert (await desk.ask(COMMIT, ext, **asked)).code == 0
    assert desk.meta.groups.get("g") is not None


async def test_a_committed_offset_is_found() -> None:
    desk = desk_with_topic(messages=17)
    answer = await desk.ask(COMMIT, at(commitOffset="17"))
    assert (answer.code, answer.ext) == (0, {})
    assert (await desk.ask(QUERY, at())).ext == {"offset": 17}
    assert (await desk.ask(QUERY, {**at(), "queueId": 0}, codec=CBOR)).ext == {"offset": 17}
    assert desk.meta.groups.get("g") is not None


async def test_an_offset_of_minus_one_is_not_stored() -> None:
    desk = desk_with_topic()
    assert (await desk.ask(COMMIT, at(commitOffset="-1"))).code == 0
    assert desk.meta.offsets.table() == {}


async def test_a_late_commit_of_a_former_owner_does_not_set_the_group_back() -> None:
    desk = desk_with_topic(messages=20)
    await desk.ask(COMMIT, at(commitOffset="17", forwardOnly="true"))
    assert (await desk.ask(COMMIT, at(commitOffset="9", forwardOnly="true"))).code == 0
    assert (await desk.ask(QUERY, at())).ext == {"offset": 17}
    await desk.ask(COMMIT, at(commitOffset="18", forwardOnly="true"))
    assert (await desk.ask(QUERY, at())).ext == {"offset": 18}
    await desk.ask(COMMIT, at(commitOffset="3"))
    assert (await desk.ask(QUERY, at())).ext == {"offset": 3}


async def test_an_offset_that_the_queue_does_not_have_is_set_back() -> None:
    """An older version stored it for a topic that had the name before."""
    desk = desk_with_topic(messages=1)
    desk.meta.offsets.commit("g", "T", 0, 17)
    await desk.ask(COMMIT, at(commitOffset="1", forwardOnly="true"))
    assert (await desk.ask(QUERY, at())).ext == {"offset": 1}


async def test_a_master_refuses_an_offset_past_the_end_of_the_queue() -> None:
    desk = desk_with_topic(messages=2)
    answer = await desk.ask(COMMIT, at(commitOffset="3"))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.remark == "offset 3 is past the end of queue 0 of topic T, 2"
    assert desk.meta.offsets.table() == {}
    assert (await desk.ask(COMMIT, at(commitOffset="2"))).code == 0
    assert (await desk.ask(COMMIT, at(1, commitOffset="1"))).code == ResponseCode.PULL_OFFSET_MOVED
    assert (await desk.ask(COMMIT, at(1, commitOffset="0"))).code == 0


async def test_an_acting_slave_that_lags_takes_an_offset_past_its_end() -> None:
    desk = desk_with_topic(messages=2, broker_id=1, broker_role="SLAVE")
    assert (await desk.ask(COMMIT, at(commitOffset="30"))).code == 0
    assert (await desk.ask(QUERY, at())).ext == {"offset": 30}


async def test_an_offset_of_a_deleted_topic_is_refused_whichever_it_is() -> None:
    for broker_id, role in ((0, "ASYNC_MASTER"), (1, "SLAVE")):
        desk = desk_with_topic(messages=5, broker_id=broker_id, broker_role=role)
        desk.meta.topics.put_as_is(TopicConfig("T", 4, 4, created_ms=2_000))
        answer = await desk.ask(COMMIT, at(commitOffset="3", topicCreatedMs="1000"))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.remark == "offset 3 is of a topic T that was deleted: the present one is another"
        assert desk.meta.offsets.table() == {}
        assert (await desk.ask(COMMIT, at(commitOffset="3", topicCreatedMs="2000"))).code == 0
        assert (await desk.ask(COMMIT, at(commitOffset="4"))).code == 0
        assert (await desk.ask(QUERY, at())).ext == {"offset": 4, "topicCreatedMs": 2_000}


async def test_an_offset_with_a_stamp_is_taken_for_a_topic_without_one() -> None:
    desk = desk_with_topic(messages=5)
    assert (await desk.ask(COMMIT, at(commitOffset="3", topicCreatedMs="1000"))).code == 0
    assert (await desk.ask(QUERY, at())).ext == {"offset": 3}


@pytest.mark.parametrize("may_create", [False, True])
async def test_commits_for_unknown_groups_topics_and_queues_are_refused(may_create: bool) -> None:
    desk = Desk(options(auto_create_subscription_group=may_create))
    desk.meta.topics.create_on_send("T", "TBW102", 4)
    answer = await desk.ask(COMMIT, at(commitOffset=1))
    assert (answer.code, answer.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group g not exist!")
    desk = desk_with_topic()
    answer = await desk.ask(COMMIT, at(topic="U", commitOffset=1))
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "Topic U not exist!")
    for queue_id in (-1, 1 << 30):
        answer = await desk.ask(COMMIT, at(queue_id, commitOffset=1))
        assert answer.code == ResponseCode.INVALID_PARAMETER
    assert desk.meta.offsets.table() == {}


async def test_a_new_group_starts_at_zero_while_the_queue_is_at_hand() -> None:
    desk = desk_with_topic()
    assert (await desk.ask(QUERY, at())).ext == {"offset": 0}
    put(desk.store, "T", 0, b"x")
    assert (await desk.ask(QUERY, at())).ext == {"offset": 0}


async def test_a_new_group_is_told_that_there_is_no_offset_when_asked_so() -> None:
    answer = await desk_with_topic().ask(QUERY, at(setZeroIfNotFound="false"))
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_queue_that_began_long_ago_has_no_offset_for_a_new_group() -> None:
    desk = desk_with_topic()
    for _ in range(50):  # the log grows beyond 40 % of the 10,000 bytes of memory
        put(desk.store, "T", 0, bytes(100))
    put(desk.store, "T", 1, b"recent")
    answer = await desk.ask(QUERY, at())
    # golden: 14.RESP_code22
    assert answer.code == 22
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    assert (await desk.ask(QUERY, at(1))).ext == {"offset": 0}


async def test_offsets_and_times_of_a_queue() -> None:
    desk = desk_with_topic()
    start_ms = desk.clock.now_ms()
    for _ in range(5):
        put(desk.store, "T", 0, b"x")
        desk.clock.advance(1000)
    queue = {"topic": "T", "queueId": "0"}
    assert (await desk.ask(GET_MAX_OFFSET.code, queue)).ext == {"offset": 5}
    assert (await desk.ask(GET_MIN_OFFSET.code, queue)).ext == {"offset": 0}
    assert (await desk.ask(GET_EARLIEST_MSG_STORETIME.code, queue)).ext == {"timestamp": start_ms}
    search = {**queue, "timestamp": str(start_ms + 1500)}
    assert (await desk.ask(SEARCH_OFFSET_BY_TIMESTAMP.code, search)).ext == {"offset": 2}
    exact = {**queue, "timestamp": start_ms + 2000, "boundaryType": "LOWER"}
    assert (await desk.ask(SEARCH_OFFSET_BY_TIMESTAMP.code, exact)).ext == {"offset": 2}


async def test_a_queue_without_messages() -> None:
    desk = desk_with_topic()
    queue = {"topic": "T", "queueId": "3"}
    assert (await desk.ask(GET_MAX_OFFSET.code, queue)).ext == {"offset": 0}
    assert (await desk.ask(GET_MIN_OFFSET.code, queue)).ext == {"offset": 0}
    assert (await desk.ask(GET_EARLIEST_MSG_STORETIME.code, queue)).ext == {"timestamp": -1}
    assert (await desk.ask(SEARCH_OFFSET_BY_TIMESTAMP.code, {**queue, "timestamp": 1})).ext == {"offset": 0}


async def test_delay_offsets_that_were_taken_over_are_told() -> None:
    desk = desk_with_topic()
    desk.meta.metadata.delay_offsets.put(DelayOffsetTable({3: 7}))
    answer = await desk.ask(GET_ALL_DELAY_OFFSET.code, {})
    assert decode_body(DelayOffsetTable, answer.body).offset_table == {3: 7}
