"""17, 21, 215, 305, 351, 5002."""

from typing import Any

import pytest
import trio
import trio.testing

from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.topics import (
    DELETE_TOPIC_IN_BROKER,
    DELETE_TOPIC_IN_BROKER_LIST,
    GET_ALL_TOPIC_CONFIG,
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    GET_TOPIC_CONFIG,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_AND_CREATE_TOPIC_LIST,
    TopicConfig,
    TopicConfigTable,
    TopicList,
)
from tests.broker.desk import Desk
from tests.broker.meta.support import MetadataDir
from tests.support.caller import Caller

UPDATE = UPDATE_AND_CREATE_TOPIC.code
DELETE = DELETE_TOPIC_IN_BROKER.code


def create(topic: str = "AdminT", **changes: Any) -> dict[str, Any]:
    """The request of mqadmin 5.3.3 (golden)."""
    return {
        "topicFilterType": "SINGLE_TAG", "order": "false", "topicSysFlag": "0", "force": "false", "attributes": "",
        "writeQueueNums": "4", "topic": topic, "perm": "6", "defaultTopic": "TBW102", "readQueueNums": "4", **changes,
    }  # fmt: skip


async def test_a_topic_is_created_and_on_disk_when_answered() -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE, create())
    assert answer.code == ResponseCode.SUCCESS
    assert desk.meta.topics.get("AdminT") == TopicConfig("AdminT", 4, 4, 6)
    desk.meta.power_loss()
    assert desk.meta.topics.get("AdminT") == TopicConfig("AdminT", 4, 4, 6)


async def test_the_same_again_is_no_change_but_still_answered_durably() -> None:
    desk = Desk()
    await desk.ask(UPDATE, create())
    version, used = desk.meta.topics.data_version, desk.meta.fs.used()
    assert (await desk.ask(UPDATE, create())).code == ResponseCode.SUCCESS
    assert desk.meta.topics.data_version == version
    assert desk.meta.fs.used() == used
    assert desk.syncs == 2


async def test_a_topic_is_changed() -> None:
    desk = Desk()
    await desk.ask(UPDATE, create())
    await desk.ask(UPDATE, create(perm=4, readQueueNums=8, order=True, attributes="+message.type=FIFO"))
    expected = TopicConfig("AdminT", 8, 4, 4, order=True, attributes={"message.type": "FIFO"})
    assert desk.meta.topics.get("AdminT") == expected
    await desk.ask(UPDATE, create(attributes="-message.type"))
    config = desk.meta.topics.get("AdminT")
    assert config is not None
    assert config.attributes == {}


@pytest.mark.parametrize(
    ("ext", "remark"),
    [
        (create(""), "The specified topic is blank."),
        (create("a b"), "The specified topic contains illegal characters"),
        (create("x" * 128), "longer than topic max length"),
        (create("TBW102"), "The topic[TBW102] is conflict with system topic."),
        (create("rmq_sys_x"), "conflict with system topic"),
        (create(perm=8), "perm is 0 to 7"),
        (create(readQueueNums=-1), "0 to 65536 queues"),
        (create(writeQueueNums=1 << 30), "0 to 65536 queues"),
        (create(topicFilterType="ANY"), "SINGLE_TAG"),
        (create(attributes="message.type=FIFO"), "add/alter attribute format is wrong"),
        (create(attributes="+nonsense=1"), "unsupported key: nonsense"),
        (create(attributes="+queue.type=RocksDBConsumeQueue"), "value is not supported"),
        (create(attributes="-message.type"), "only add attribute is supported while creating topic"),
        (create(attributes="+message.type=FIFO,-message.type"), "key duplication"),
    ],
)
async def test_a_wrong_topic_is_refused(ext: dict[str, Any], remark: str) -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE, ext)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert remark in (answer.remark or "")
    assert desk.syncs == 0


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ("+cleanup.policy=DELETE", ""),
        ("+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("-cleanup.policy", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        ("+queue.type=BatchCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("-queue.type", "attempt to delete a nonexistent key: queue.type"),
        ("+message.type=FIFO,+max.message.size=5", ""),
        ("+reserve.time=72", ""),
        ("+reserve.time=-1", ""),
        ("+reserve.time=3d", "value is not supported: reserve.time=3d; give hours, or -1 for the broker's default"),
    ],
)
async def test_some_attributes_are_settled_when_a_topic_is_made(changes: str, remark: str) -> None:
    desk = Desk()
    made = create(attributes="+cleanup.policy=DELETE,+message.type=NORMAL")
    assert (await desk.ask(UPDATE, made)).code == ResponseCode.SUCCESS
    answer = await desk.ask(UPDATE, create(attributes=changes, perm=4))
    assert (answer.code, answer.remark or "") == (ResponseCode.INVALID_PARAMETER if remark else 0, remark)
    config = desk.meta.topics.get("AdminT")
    assert config is not None
    assert (config.attributes["cleanup.policy"], config.perm) == ("DELETE", 6 if remark else 4)


async def test_a_missing_field_is_refused_with_rocketmqs_words() -> None:
    answer = await Desk().ask(UPDATE, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the custom field <defaultTopic> is null" in (answer.remark or "")


async def test_a_full_disk_is_said_and_nothing_changes() -> None:
    desk = Desk()
    desk.meta.fs.capacity = desk.meta.fs.used()
    answer = await desk.ask(UPDATE, create())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not changed" in (answer.remark or "")
    assert "make room" in (answer.remark or "")
    assert desk.meta.topics.get("AdminT") is None


async def test_a_topic_is_deleted_with_its_offsets_counters_and_messages() -> None:
    desk = Desk()
    await desk.ask(UPDATE, create())
    desk.meta.offsets.commit("g", "AdminT", 0, 1)
    desk.meta.offsets.commit("g", "Other", 0, 1)
    desk.stats.put("AdminT", 1, 1)
    answer = await desk.ask(DELETE, {"topic": "AdminT"})
    assert answer.code == ResponseCode.SUCCESS
    assert desk.meta.topics.get("AdminT") is None
    assert finish(desk.meta.offsets.topics_of("g")) == ["Other"]
    assert desk.stats.view("TOPIC_PUT_NUMS", "AdminT") is None
    assert desk.deleted == ["AdminT"]
    assert MetadataDir(fs=desk.meta.fs.killed()).topics.get("AdminT") is None


async def test_a_topic_is_not_created_again_while_its_messages_are_removed() -> None:
    desk = Desk()
    topics = desk.meta.topics
    await desk.ask(UPDATE, create("%RETRY%g"))
    seen: list[TopicConfig | None] = []

    async def delete_messages(topic: str, before: int | None) -> int:
        await trio.lowlevel.checkpoint()
        seen.extend([topics.create_on_send("%RETRY%g", "TBW102", 1), topics.create_retry_topic("g")])
        return 0

    desk.delete_messages = delete_messages  # type: ignore[method-assign]
    assert (await desk.ask(DELETE, {"topic": "%RETRY%g"})).code == ResponseCode.SUCCESS
    assert seen == [None, None]
    assert topics.create_retry_topic("g") is not None


async def test_changes_share_the_wait_for_the_disk_and_wait_for_deletions() -> None:
    desk = Desk()
    disk, waiting = trio.Event(), 0

    async def durable() -> None:
        nonlocal waiting
        waiting += 1
        await disk.wait()

    desk.durable = durable  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        for number in range(9):
            nursery.start_soon(desk.ask, UPDATE, create(f"T{number}"))
        await trio.testing.wait_all_tasks_blocked()
        assert waiting == 9
        nursery.start_soon(desk.ask, DELETE, {"topic": "T0"})
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(desk.ask, UPDATE, create("T0", perm=4))
        await trio.testing.wait_all_tasks_blocked()
        assert desk.meta.topics.get("T0") is None
        disk.set()
    config = desk.meta.topics.get("T0")
    assert config is not None
    assert config.perm == 4


async def test_deleting_what_is_not_there_succeeds_and_system_topics_are_refused() -> None:
    desk = Desk()
    assert (await desk.ask(DELETE, {"topic": "%DLQ%admin_group"})).code == ResponseCode.SUCCESS
    answer = await desk.ask(DELETE, {"topic": "SCHEDULE_TOPIC_XXXX"})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert desk.deleted == ["%DLQ%admin_group"]


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_topics_are_listed_whole(codec: int) -> None:
    desk = Desk()
    await desk.ask(UPDATE, create())
    answer = await desk.ask(GET_ALL_TOPIC_CONFIG.code, codec=codec)
    table = decode_body(TopicConfigTable, answer.body, codec)
    assert table.topic_config_table == desk.meta.topics.all()
    assert table.data_version == desk.meta.topics.data_version


async def test_topics_are_listed_in_parts() -> None:
    desk = Desk()
    seen: dict[str, TopicConfig] = {}
    while True:
        answer = await desk.ask(GET_ALL_TOPIC_CONFIG.code, {"topicSeq": len(seen), "maxTopicNum": 5})
        part = decode_body(TopicConfigTable, answer.body).topic_config_table
        if not part:
            break
        assert len(part) <= 5
        seen |= part
    assert (answer.ext or {})["totalTopicNum"] == len(seen)
    assert seen == desk.meta.topics.all()


async def test_a_topic_is_shown_as_java_reads_it() -> None:
    desk = Desk()
    desk.meta.topics.put_as_is(TopicConfig("WireTopic", 4, 4))  # a Java broker has no creation stamp
    answer = await desk.ask(GET_TOPIC_CONFIG.code, {"lo": "true", "topic": "WireTopic"})
    # golden: 351 of admin_5.3.3
    assert answer.body == (
        b'{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"WireTopic","topicSysFlag":0,"writeQueueNums":4}'
    )
    missing = await desk.ask(GET_TOPIC_CONFIG.code, {"topic": "U"})
    assert (missing.code, missing.remark) == (17, "No topic in this broker. topic: U")


async def test_system_topics_are_listed_without_those_of_users() -> None:
    desk = Desk()
    await desk.ask(UPDATE, create())
    answer = await desk.ask(GET_SYSTEM_TOPIC_LIST_FROM_BROKER.code, channel=Caller().channel)
    names = decode_body(TopicList, answer.body).topic_list
    assert "TBW102" in names
    assert "broker-a" in names
    assert "AdminT" not in names


async def test_a_list_of_topics_is_created_and_changed() -> None:
    desk = Desk()
    await desk.ask(UPDATE, create(attributes="+message.type=FIFO"))
    body = (
        b'{"topicConfigList":[{"topicName":"AdminT","perm":4,"attributes":{"-message.type":""}},'
        b'{"topicName":"B","readQueueNums":2,"writeQueueNums":2,"attributes":{"+message.type":"DELAY"}}]}'
    )
    assert (await desk.ask(UPDATE_AND_CREATE_TOPIC_LIST.code, body=body)).code == 0
    desk.meta.power_loss()
    assert desk.meta.topics.get("AdminT") == TopicConfig("AdminT", 16, 16, 4)
    assert desk.meta.topics.get("B") == TopicConfig("B", 2, 2, 6, attributes={"message.type": "DELAY"})


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"{}", 29, "topicConfigList names no topic"),
        (b"", 1, "cannot be read"),
        (b'{"topicConfigList":[{"topicName":"B"},{"topicName":"a b"}]}', 29, "illegal characters"),
        (b'{"topicConfigList":[{"topicName":"B"},{"topicName":"TBW102"}]}', 29, "TBW102"),
        (b'{"topicConfigList":[{"topicName":"B"},{"topicName":"C","perm":9}]}', 29, "perm is 0 to 7, not 9"),
        (b'{"topicConfigList":[{"topicName":"B","attributes":{"a":"1"}}]}', 29, "unsupported key: a"),
    ],
)
async def test_a_list_of_topics_with_a_mistake_changes_nothing(body: bytes, code: int, text: str) -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE_AND_CREATE_TOPIC_LIST.code, body=body)
    assert answer.code == code
    assert text in (answer.remark or "")
    assert desk.meta.topics.get("B") is None


async def test_a_list_of_topics_is_deleted_as_each_of_them() -> None:
    desk = Desk()
    for topic in ("A", "B", "C"):
        await desk.ask(UPDATE, create(topic))
    answer = await desk.ask(DELETE_TOPIC_IN_BROKER_LIST.code, body=b'{"topicList":["A","B","A","Missing"]}')
    assert answer.code == ResponseCode.SUCCESS
    assert [name for name in ("A", "B", "C") if desk.meta.topics.get(name)] == ["C"]


@pytest.mark.parametrize("names", [b'["A","SCHEDULE_TOPIC_XXXX"]', b'["A","a b"]', b"[]"])
async def test_a_list_with_a_topic_that_may_not_be_deleted_deletes_none(names: bytes) -> None:
    desk = Desk()
    await desk.ask(UPDATE, create("A"))
    answer = await desk.ask(DELETE_TOPIC_IN_BROKER_LIST.code, body=b'{"topicList":%s}' % names)
    assert answer.code != ResponseCode.SUCCESS
    assert desk.meta.topics.get("A") is not None
