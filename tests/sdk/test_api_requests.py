"""What each function of the APIs puts on the wire: its code, its fields with their values, its body."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from mqcommon.errors import SkylarkError
from mqcommon.message.queue import MessageQueue
from remoting.protocol.body import Body
from remoting.protocol.command import Command
from remoting.protocol.dialect import encode_body, loads
from remoting.protocol.requests.clients import HeartbeatData, ProducerData
from remoting.protocol.requests.consuming import LockBatchRequestBody
from remoting.protocol.requests.groups import SubscriptionGroupConfig
from remoting.protocol.requests.topics import TopicConfig
from sdk import broker_api, namesrv_api
from sdk.admin import broker_admin_api as admin
from sdk.admin import offset_admin_api as offsets
from sdk.endpoint import Endpoint

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
    (lambda at: admin.query_consume_queue(at, "T", 3, 2, 5), 321, {**QUEUE, "index": 2, "count": 5}),
    (
        lambda at: admin.query_consume_queue(at, "T", 3, 2, 5, "g"),
        321,
        {**QUEUE, "index": 2, "count": 5, "consumerGroup": "g"},
    ),
]  # fmt: skip
NAMESRV: list[tuple[Ask, int, dict[str, Any] | None]] = [
    (lambda at: namesrv_api.topic_route(at, "T"), 105, {"topic": "T", "acceptStandardJsonOnly": True}),
    (lambda at: namesrv_api.cluster_info(at), 106, None),
    (lambda at: namesrv_api.topic_list(at), 206, None),
    (lambda at: namesrv_api.topics_by_cluster(at, "c"), 224, {"cluster": "c"}),
    (lambda at: namesrv_api.system_topics(at), 304, None),
    (lambda at: namesrv_api.delete_topic(at, "T"), 216, {"topic": "T"}),
    (lambda at: namesrv_api.delete_topic(at, "T", "c"), 216, {"topic": "T", "clusterName": "c"}),
    (lambda at: namesrv_api.wipe_write_perm(at, "b"), 205, {"brokerName": "b"}),
    (lambda at: namesrv_api.add_write_perm(at, "b"), 327, {"brokerName": "b"}),
    (lambda at: namesrv_api.namesrv_config(at), 319, None),
    (lambda at: namesrv_api.put_kv(at, "n", "k", "v"), 100, {"namespace": "n", "key": "k", "value": "v"}),
    (lambda at: namesrv_api.get_kv(at, "n", "k"), 101, {"namespace": "n", "key": "k"}),
    (lambda at: namesrv_api.delete_kv(at, "n", "k"), 102, {"namespace": "n", "key": "k"}),
    (lambda at: namesrv_api.kv_list(at, "n"), 219, {"namespace": "n"}),
]
ADMIN: list[tuple[Ask, int, dict[str, Any] | None]] = [
    (lambda at: admin.create_topic(at, CONFIG), 17, TOPIC),
    (lambda at: admin.delete_topic(at, "T"), 215, {"topic": "T"}),
    (lambda at: admin.all_topic_config(at), 21, None),
    (lambda at: admin.topic_config(at, "T"), 351, {"topic": "T", "lo": True}),
    (lambda at: admin.system_topics(at), 305, None),
    (lambda at: admin.topic_stats(at, "T"), 202, {"topic": "T"}),
    (lambda at: admin.groups_of_topic(at, "T"), 300, {"topic": "T"}),
    (lambda at: admin.delete_group(at, "g", clean_offset=True), 207, {"groupName": "g", "cleanOffset": True}),
    (lambda at: admin.all_groups(at), 201, None),
    (lambda at: admin.consume_stats(at, "g"), 208, {"consumerGroup": "g"}),
    (lambda at: admin.consume_stats(at, "g", "T"), 208, {"consumerGroup": "g", "topic": "T"}),
    (lambda at: admin.delete_expired_commit_log(at), 329, None),
    (lambda at: admin.clean_expired_consume_queue(at), 306, None),
    (lambda at: admin.clean_unused_topic(at), 316, None),
    (lambda at: admin.runtime_info(at), 28, None),
    (lambda at: admin.broker_config(at), 26, None),
    (lambda at: admin.ha_status(at), 907, None),
    (lambda at: admin.reset_master_flush_offset(at, 5), 908, {"masterFlushOffset": 5}),
    (lambda at: admin.broker_stats(at, "N", "K"), 315, {"statsName": "N", "statsKey": "K"}),
    (lambda at: admin.consumer_connection(at, "g"), 203, {"consumerGroup": "g"}),
    (lambda at: admin.producer_connection(at, "g"), 204, {"producerGroup": "g"}),
    (
        lambda at: admin.consumer_running_info(at, "g", "id", jstack=True),
        307,
        {"consumerGroup": "g", "clientId": "id", "jstackEnable": True},
    ),
    (
        lambda at: admin.consume_message_directly(at, "g", "id", "T", "ID"),
        309,
        {"consumerGroup": "g", "clientId": "id", "topic": "T", "msgId": "ID"},
    ),
]
OFFSETS: list[tuple[Ask, int, dict[str, Any] | None]] = [
    (
        lambda at: offsets.reset_offsets(at, "g", "T", -1, force=False),
        222,
        {"group": "g", "topic": "T", "timestamp": -1, "isForce": False, "queueId": -1, "offset": -1},
    ),
    (
        lambda at: offsets.clone_offsets(at, "g", "h", "T", offline=True),
        314,
        {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": True},
    ),
    (lambda at: offsets.time_spans(at, "g", "T"), 303, {"topic": "T", "group": "g"}),
    (lambda at: offsets.broker_consume_stats(at, is_order=True), 317, {"isOrder": True}),
    (lambda at: offsets.consumer_status(at, "g", "T", None), 223, {"topic": "T", "group": "g"}),
    (lambda at: offsets.consumer_status(at, "g", "T", "c"), 223, {"topic": "T", "group": "g", "clientAddr": "c"}),
    (lambda at: offsets.group_config(at, "g"), 201, None),
    (lambda at: offsets.all_producers(at), 328, None),
]
WITH_BODY: list[tuple[Ask, int, bytes]] = [
    (lambda at: broker_api.heartbeat(at, HEARTBEAT), 34, encode_body(HEARTBEAT)),
    (lambda at: broker_api.lock_queues(at, "g", "id", [MessageQueue("T", "b", 3)]), 41, encode_body(LOCK)),
    (lambda at: broker_api.unlock_queues(at, "g", "id", [MessageQueue("T", "b", 3)]), 42, encode_body(LOCK)),
    (lambda at: admin.create_group(at, SubscriptionGroupConfig("g")), 200, encode_body(SubscriptionGroupConfig("g"))),
    (lambda at: admin.update_broker_config(at, {"a": "b\\"}), 25, b"a=b\\\\\n"),
    (lambda at: namesrv_api.update_namesrv_config(at, {"a": "b"}), 318, b"a=b\n"),
]


class Remembering:
    """In place of a client: remembers requests, and answers with nothing in it."""

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


@pytest.mark.parametrize(("ask", "code", "ext"), [*MESSAGES, *NAMESRV, *ADMIN, *OFFSETS])
async def test_fields(ask: Ask, code: int, ext: dict[str, Any] | None) -> None:
    assert await asked(ask) == (code, ext, b"")


@pytest.mark.parametrize(("ask", "code", "body"), WITH_BODY)
async def test_bodies(ask: Ask, code: int, body: bytes) -> None:
    assert await asked(ask) == (code, None, body)


async def test_the_broker_that_is_meant_is_named() -> None:
    assert await asked(lambda at: broker_api.view_messages(at, 77), "b") == (
        33, {"offset": 77, "takesBatches": True, "bname": "b"}, b"",
    )  # fmt: skip
    code, ext, body = await asked(lambda at: broker_api.heartbeat(at, HEARTBEAT), "b")
    assert (code, ext, loads(body)["clientID"]) == (34, {"bname": "b"}, "id")
