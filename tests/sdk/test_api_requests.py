"""What each function of the APIs and method of Admin puts on the wire: its code, its fields, its body."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import encode_body, loads
from skylark.remoting.protocol.requests.clients import HeartbeatData, ProducerData
from skylark.remoting.protocol.requests.consuming import LockBatchRequestBody
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk import broker_api, namesrv_api
from skylark.sdk.admin.client import Admin
from skylark.sdk.endpoint import Endpoint
from tests.sdk.admin_at import admin_at

QUEUE = {"topic": "T", "queueId": 3}
PULL = {
    "consumerGroup": "g", **QUEUE, "queueOffset": 7, "maxMsgNums": 32, "sysFlag": 260, "commitOffset": 0,
    "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG", "maxMsgBytes": 99,
}  # fmt: skip
TOPIC = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 5, "perm": 6, "order": True,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 1, "attributes": "+a=1,-b,+c=2", "force": False,
}  # fmt: skip
CONFIG = TopicConfig("T", 4, 5, 6, order=True, topic_sys_flag=1, attributes={"a": "1", "-b": "", "+c": "2"})

LOCK = LockBatchRequestBody("g", "id", False, [MessageQueue("T", "b", 3)])
HEARTBEAT = HeartbeatData("id", [ProducerData("p")])

Ask = Callable[[Endpoint], Awaitable[Any]]
MESSAGES: list[tuple[Ask, int, dict[str, Any] | None]] = [
    (lambda at: broker_api.pull(at, "g", "T", 3, 7, max_count=32, max_bytes=99), 11, PULL),
    (
        lambda at: broker_api.pull(
            at, "g", "T", 3, 7, max_count=32, max_bytes=99, expression="a || b", wait_ms=500, commit_offset=3
        ),
        11,
        {**PULL, "sysFlag": 263, "commitOffset": 3, "suspendTimeoutMillis": 500, "subscription": "a || b"},
    ),
    (lambda at: broker_api.max_offset(at, "T", 3), 30, {**QUEUE, "committed": True}),
    (lambda at: broker_api.min_offset(at, "T", 3), 31, QUEUE),
    (lambda at: broker_api.topic_offsets(at, "T"), 202, {"topic": "T"}),
    (
        lambda at: broker_api.search_offset(at, "T", 3, 1000, boundary="UPPER"),
        29,
        {**QUEUE, "timestamp": 1000, "boundaryType": "UPPER"},
    ),
    (lambda at: broker_api.earliest_store_time(at, "T", 3), 32, QUEUE),
    (
        lambda at: broker_api.committed_offset(at, "g", "T", 3),
        14,
        {"consumerGroup": "g", **QUEUE, "setZeroIfNotFound": False},
    ),
    (lambda at: broker_api.commit_offset(at, "g", "T", 3, 9), 15, {"consumerGroup": "g", **QUEUE, "commitOffset": 9}),
    (
        lambda at: broker_api.query_messages(at, "T", "k", max_num=4, begin_ms=1, end_ms=5, unique=True),
        12,
        {
            "topic": "T", "key": "k", "maxNum": 4, "beginTimestamp": 1, "endTimestamp": 5, "_UNIQUE_KEY_QUERY": True,
        },
    ),
    (lambda at: broker_api.view_messages(at, 77), 33, {"offset": 77, "takesBatches": True}),
    (
        lambda at: broker_api.send_back(at, "g", 77, "ID", "T", 3, 16),
        36,
        {
            "offset": 77, "group": "g", "delayLevel": 3, "originMsgId": "ID", "originTopic": "T", "unitMode": False,
            "maxReconsumeTimes": 16,
        },
    ),
    (lambda at: broker_api.unregister_client(at, "id"), 35, {"clientID": "id"}),
    (
        lambda at: broker_api.unregister_client(at, "id", producer_group="p", consumer_group="c"),
        35,
        {"clientID": "id", "producerGroup": "p", "consumerGroup": "c"},
    ),
]  # fmt: skip
NAMESRV: list[tuple[Ask, int, dict[str, Any] | None]] = [
    (lambda at: namesrv_api.topic_route(at, "T"), 105, {"topic": "T", "acceptStandardJsonOnly": True}),
    (lambda at: namesrv_api.cluster_info(at), 106, None),
]
Do = Callable[[Admin], Awaitable[Any]]
ADMIN: list[tuple[Do, int, dict[str, Any] | None]] = [
    (lambda admin: admin.topic_list(), 206, None),
    (lambda admin: admin.topics_by_cluster("c"), 224, {"cluster": "c"}),
    (lambda admin: admin.system_topics(), 304, None),
    (lambda admin: admin.delete_topic_in_namesrv("T"), 216, {"topic": "T"}),
    (lambda admin: admin.delete_topic_in_namesrv("T", "c"), 216, {"topic": "T", "clusterName": "c"}),
    (lambda admin: admin.wipe_write_perm("b"), 205, {"brokerName": "b"}),
    (lambda admin: admin.add_write_perm("b"), 327, {"brokerName": "b"}),
    (lambda admin: admin.namesrv_config(), 319, None),
    (lambda admin: admin.put_kv("n", "k", "v"), 100, {"namespace": "n", "key": "k", "value": "v"}),
    (lambda admin: admin.get_kv("n", "k"), 101, {"namespace": "n", "key": "k"}),
    (lambda admin: admin.delete_kv("n", "k"), 102, {"namespace": "n", "key": "k"}),
    (lambda admin: admin.kv_list("n"), 219, {"namespace": "n"}),
    (lambda admin: admin.query_consume_queue("a", "T", 3, 2, 5), 321, {**QUEUE, "index": 2, "count": 5}),
    (
        lambda admin: admin.query_consume_queue("a", "T", 3, 2, 5, "g"),
        321,
        {**QUEUE, "index": 2, "count": 5, "consumerGroup": "g"},
    ),
    (lambda admin: admin.create_topic("a", CONFIG), 17, TOPIC),
    (lambda admin: admin.delete_topic_in_broker("a", "T"), 215, {"topic": "T"}),
    (lambda admin: admin.all_topic_config("a"), 21, None),
    (lambda admin: admin.topic_config("a", "T"), 351, {"topic": "T", "lo": True}),
    (lambda admin: admin.system_topics_of_broker("a"), 305, None),
    (lambda admin: admin.topic_stats("T"), 202, {"topic": "T"}),
    (lambda admin: admin.groups_of_topic("T"), 300, {"topic": "T"}),
    (lambda admin: admin.delete_group("a", "g", clean_offset=True), 207, {"groupName": "g", "cleanOffset": True}),
    (lambda admin: admin.all_groups("a"), 201, None),
    (lambda admin: admin.consume_stats("g"), 208, {"consumerGroup": "g"}),
    (lambda admin: admin.consume_stats("g", "T"), 208, {"consumerGroup": "g", "topic": "T"}),
    (lambda admin: admin.delete_expired_commit_log("a"), 329, None),
    (lambda admin: admin.clean_expired_consume_queue("a"), 306, None),
    (lambda admin: admin.clean_unused_topic("a"), 316, None),
    (lambda admin: admin.switch_timer_engine("a", "F"), 5001, {"E_T": "F"}),
    (lambda admin: admin.broker_runtime_info("a"), 28, None),
    (lambda admin: admin.broker_config("a"), 26, None),
    (lambda admin: admin.broker_ha_status("a"), 907, None),
    (lambda admin: admin.reset_master_flush_offset("a", 5), 908, {"masterFlushOffset": 5}),
    (lambda admin: admin.broker_stats("a", "N", "K"), 315, {"statsName": "N", "statsKey": "K"}),
    (lambda admin: admin.consumer_connection("g"), 203, {"consumerGroup": "g"}),
    (lambda admin: admin.producer_connection("g", "T"), 204, {"producerGroup": "g"}),
    (
        lambda admin: admin.consumer_running_info("g", "id", jstack=True),
        307,
        {"consumerGroup": "g", "clientId": "id", "jstackEnable": True},
    ),
    (
        lambda admin: admin.reset_offsets("g", "T", -1, force=False),
        222,
        {"group": "g", "topic": "T", "timestamp": -1, "isForce": False, "queueId": -1, "offset": -1},
    ),
    (
        lambda admin: admin.clone_group_offsets("g", "h", "T", offline=True),
        314,
        {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": True},
    ),
    (lambda admin: admin.consume_time_spans("g", "T"), 303, {"topic": "T", "group": "g"}),
    (lambda admin: admin.broker_consume_stats("a", only_ordered=True), 317, {"isOrder": True}),
    (lambda admin: admin.consumer_status("g", "T"), 223, {"topic": "T", "group": "g"}),
    (lambda admin: admin.consumer_status("g", "T", "c"), 223, {"topic": "T", "group": "g", "clientAddr": "c"}),
    (lambda admin: admin.group_config("a", "g"), 201, None),
    (lambda admin: admin.all_producers("a"), 328, None),
]
WITH_BODY: list[tuple[Ask, int, bytes]] = [
    (lambda at: broker_api.heartbeat(at, HEARTBEAT), 34, encode_body(HEARTBEAT)),
    (lambda at: broker_api.lock_queues(at, "g", "id", [MessageQueue("T", "b", 3)]), 41, encode_body(LOCK)),
    (lambda at: broker_api.unlock_queues(at, "g", "id", [MessageQueue("T", "b", 3)]), 42, encode_body(LOCK)),
    (
        lambda at: admin_at(at).create_group("a", SubscriptionGroupConfig("g")),
        200,
        encode_body(SubscriptionGroupConfig("g")),
    ),
    (lambda at: admin_at(at).update_broker_config("a", {"a": "b\\"}), 25, b"a=b\\\\\n"),
    (lambda at: admin_at(at).update_namesrv_config({"a": "b"}), 318, b"a=b\n"),
]


class Remembering:
    """A fake client that remembers requests, and gives empty answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, Any] | None, bytes]] = []

    async def invoke(
        self, addr: str, command: Command, timeout_ms: float, *, body: Body | bytes | None = None
    ) -> Command:
        data = encode_body(body) if isinstance(body, Body) else body or command.body
        self.asked.append((command.code, command.ext, data))
        return Command(0, {}, b"{}")

    def broker_name_at(self, addr: str) -> str:
        return ""


async def asked(ask: Ask, broker_name: str = "") -> tuple[int, dict[str, Any] | None, bytes]:
    client: Any = Remembering()
    with suppress(SkylarkError):  # some want more of an answer
        await ask(Endpoint(client, "10.0.0.1:1", broker_name=broker_name))
    (found,) = client.asked
    return found


@pytest.mark.parametrize(("ask", "code", "ext"), [*MESSAGES, *NAMESRV])
async def test_fields(ask: Ask, code: int, ext: dict[str, Any] | None) -> None:
    assert await asked(ask) == (code, ext, b"")


@pytest.mark.parametrize(("do", "code", "ext"), ADMIN)
async def test_fields_of_admin(do: Do, code: int, ext: dict[str, Any] | None) -> None:
    assert await asked(lambda at: do(admin_at(at))) == (code, ext, b"")


async def test_access_is_explained_for_names_in_the_namespace() -> None:
    def explain(at: Endpoint) -> Awaitable[Any]:
        return admin_at(at, "n").explain_access("a", "u", "10.0.0.2", 10, topic="T", group="g")

    _, ext, _ = await asked(explain)
    assert ext is not None and (ext["topic"], ext["group"]) == ("n%T", "n%g")


@pytest.mark.parametrize(("ask", "code", "body"), WITH_BODY)
async def test_bodies(ask: Ask, code: int, body: bytes) -> None:
    assert await asked(ask) == (code, None, body)


async def test_the_broker_that_is_meant_is_named() -> None:
    assert await asked(lambda at: broker_api.view_messages(at, 77), "b") == (
        33, {"offset": 77, "takesBatches": True, "bname": "b"}, b"",
    )  # fmt: skip
    code, ext, body = await asked(lambda at: broker_api.heartbeat(at, HEARTBEAT), "b")
    assert (code, ext, loads(body)["clientID"]) == (34, {"bname": "b"}, "id")
