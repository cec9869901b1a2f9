"""200, 201, 207, 352, 5003."""

import pytest

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.groups import (
    DELETE_SUBSCRIPTION_GROUP_LIST,
    DELETE_SUBSCRIPTIONGROUP,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_SUBSCRIPTIONGROUP_CONFIG,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from tests.broker.desk import Desk
from tests.broker.meta.support import options

UPDATE = UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code
DELETE = DELETE_SUBSCRIPTIONGROUP.code
# golden: 200 of admin_5.3.3
GOLDEN = (
    b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,"consumeFromMinEnable":false,'
    b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"admin_group",'
    b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
    b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)


async def test_a_group_is_created_and_on_disk_when_answered() -> None:
    desk = Desk()
    assert (await desk.ask(UPDATE, body=GOLDEN)).code == ResponseCode.SUCCESS
    desk.meta.power_loss()
    config = desk.meta.groups.get("admin_group")
    assert config is not None
    assert not config.consume_broadcast_enable
    assert config.retry_max_times == 16


async def test_a_group_is_changed_by_a_skylark_client() -> None:
    desk = Desk()
    await desk.ask(UPDATE, body=GOLDEN)
    config = SubscriptionGroupConfig("admin_group", retry_max_times=3, attributes={"+a": "1"})
    assert (await desk.ask(UPDATE, body=config, codec=CBOR)).code == ResponseCode.SUCCESS
    changed = desk.meta.groups.get("admin_group")
    assert changed is not None
    assert changed.retry_max_times == 3
    assert changed.attributes == {"a": "1"}
    await desk.ask(UPDATE, body=SubscriptionGroupConfig("admin_group", attributes={"-a": ""}), codec=CBOR)
    changed = desk.meta.groups.get("admin_group")
    assert changed is not None
    assert changed.attributes == {}


async def test_the_same_again_is_no_change() -> None:
    desk = Desk()
    await desk.ask(UPDATE, body=GOLDEN)
    used = desk.meta.fs.used()
    assert (await desk.ask(UPDATE, body=GOLDEN)).code == ResponseCode.SUCCESS
    assert desk.meta.fs.used() == used


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", 1), (b"[]", 1), (b"{", 1), (b'{"groupName":""}', 29), (b'{"groupName":"a b"}', 29), (b"{}", 29)],
)
async def test_a_group_that_cannot_be_read_or_named_is_refused(body: bytes, code: int) -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE, body=body)
    assert answer.code == code
    assert answer.remark
    assert desk.syncs == 0


@pytest.mark.parametrize("clean", [{"cleanOffset": "true"}, {"removeOffset": "true"}, {"cleanOffset": "false"}, {}])
async def test_a_group_is_deleted_with_its_offsets_when_asked(clean: dict[str, str]) -> None:
    desk = Desk()
    await desk.ask(UPDATE, body=GOLDEN)
    desk.meta.offsets.commit("admin_group", "T", 0, 5)
    answer = await desk.ask(DELETE, {"groupName": "admin_group", **clean})
    assert answer.code == ResponseCode.SUCCESS
    assert desk.meta.groups.get("admin_group") is None
    assert desk.meta.offsets.query("admin_group", "T", 0) == (-1 if "true" in clean.values() else 5)


async def test_groups_are_listed_whole_and_in_parts() -> None:
    desk = Desk()
    await desk.ask(UPDATE, body=GOLDEN)
    answer = await desk.ask(GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code)
    table = decode_body(SubscriptionGroupTable, answer.body)
    assert table.subscription_group_table == desk.meta.groups.all()
    assert table.data_version == desk.meta.groups.data_version
    assert answer.ext is None
    answer = await desk.ask(GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code, {"groupSeq": "2", "maxGroupNum": "3"})
    part = decode_body(SubscriptionGroupTable, answer.body).subscription_group_table
    assert list(part) == desk.meta.groups.names()[2:5]
    assert answer.ext == {"totalGroupNum": len(desk.meta.groups.names())}


async def test_a_group_is_shown_or_refused() -> None:
    desk = Desk(options(auto_create_subscription_group=False))
    answer = await desk.ask(GET_SUBSCRIPTIONGROUP_CONFIG.code, {"group": "TOOLS_CONSUMER"})
    assert decode_body(SubscriptionGroupConfig, answer.body) == SubscriptionGroupConfig("TOOLS_CONSUMER")
    missing = await desk.ask(GET_SUBSCRIPTIONGROUP_CONFIG.code, {"group": "g"})
    assert (missing.code, missing.remark) == (26, "No group in this broker. group: g")


@pytest.mark.parametrize(("length", "code"), [(248, ResponseCode.SUCCESS), (249, ResponseCode.INVALID_PARAMETER)])
async def test_a_group_whose_retry_topic_would_have_too_long_a_name_is_not_created(length: int, code: int) -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE, body=SubscriptionGroupConfig("g" * length), codec=CBOR)
    assert answer.code == code
    assert (desk.meta.groups.get("g" * length) is not None) is (code == ResponseCode.SUCCESS)
    if code != ResponseCode.SUCCESS:
        assert "too long for its retry topic" in (answer.remark or "")


async def test_a_group_that_has_no_retry_topic_can_still_be_changed() -> None:
    desk = Desk()
    desk.meta.groups.put(SubscriptionGroupConfig("g" * 255))
    config = SubscriptionGroupConfig("g" * 255, retry_max_times=3)
    assert (await desk.ask(UPDATE, body=config, codec=CBOR)).code == ResponseCode.SUCCESS


async def test_a_list_of_groups_is_created_and_changed() -> None:
    desk = Desk()
    await desk.ask(UPDATE, body=GOLDEN)
    body = b'{"groupConfigList":[{"groupName":"admin_group","attributes":{"+a":"1"}},{"groupName":"g2"}]}'
    assert (await desk.ask(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.code, body=body)).code == 0
    desk.meta.power_loss()
    first, second = desk.meta.groups.get("admin_group"), desk.meta.groups.get("g2")
    assert first is not None and second is not None
    assert first.attributes == {"a": "1"}


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"{}", 29, "groupConfigList names no group"),
        (b'{"groupConfigList":[{"groupName":"g2"},{"groupName":"a b"}]}', 29, "illegal characters"),
        (b'{"groupConfigList":{}}', 1, "not an array"),
        (b'{"groupConfigList":[' + b",".join([b'{"groupName":"g"}'] * 6000) + b"]}", 1, "at most 65536"),
    ],
)
async def test_a_list_of_groups_with_a_mistake_changes_nothing(body: bytes, code: int, text: str) -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.code, body=body)
    assert answer.code == code
    assert text in (answer.remark or "")
    assert desk.meta.groups.get("g2") is None


@pytest.mark.parametrize("clean", [False, True])
async def test_a_list_of_groups_is_deleted_as_each_of_them(clean: bool) -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        await desk.ask(UPDATE, body=b'{"groupName":"%s"}' % name.encode())
        desk.meta.offsets.commit(name, "T", 0, 7)
    body = b'{"groupNameList":["a","b","missing"],"cleanOffset":%s}' % (b"true" if clean else b"false")
    answer = await desk.ask(DELETE_SUBSCRIPTION_GROUP_LIST.code, body=body)
    assert answer.code == ResponseCode.SUCCESS
    assert [name for name in ("a", "b", "c") if desk.meta.groups.get(name)] == ["c"]
    assert desk.meta.offsets.query("a", "T", 0) == (-1 if clean else 7)
    none = await desk.ask(DELETE_SUBSCRIPTION_GROUP_LIST.code, body=b'{"groupNameList":[]}')
    assert (none.code, none.remark) == (ResponseCode.INVALID_PARAMETER, "groupNameList names no group")


@pytest.mark.parametrize(
    ("factor", "is_taken"), [("0", True), ("100", True), ("101", False), ("x", False), ("", False)]
)
async def test_the_share_of_pops_by_priority_is_a_percentage(factor: str, is_taken: bool) -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE, body=b'{"groupName":"a","attributes":{"+priority.factor":"%s"}}' % factor.encode())
    assert (answer.code == ResponseCode.SUCCESS) == is_taken
    assert (desk.meta.groups.get("a") is not None) == is_taken
