"""Junk of every type in every field of every request: a code, no traceback, and the connection serves on."""

from typing import Any

import pytest
import trio

from skylark.broker import broker as broker_module
from skylark.broker.wiring.wiring import Wiring, wire
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, JSON, Command
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC
from tests.broker.running import running, send_request
from tests.broker.wiring.parts import server_of
from tests.namesrv.test_junk import VERSION
from tests.support.amounts import share_of
from tests.support.junk import Junk

GOOD: dict[str, Any] = {
    "topic": "TopicTest", "queueId": "0", "consumerGroup": "g", "producerGroup": "p", "group": "g", "groupName": "g",
    "clientID": "c", "clientId": "c", "msgId": "7F00000100002A9F0000000000000000", "key": "k", "maxNum": "1",
    "beginTimestamp": "0", "endTimestamp": "1", "offset": "0", "index": "0", "count": "1", "queueOffset": "0",
    "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
    "subscription": "*", "expressionType": "TAG", "defaultTopic": "TBW102", "readQueueNums": "4",
    "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false", "timestamp": "0",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": "TopicTest", "masterFlushOffset": "0", "holdMillis": "0",
    "username": "anna", "subject": "User:anna", "policyType": "Custom", "resource": "Topic:T",
    "bornTimestamp": "0", "flag": "0", "defaultTopicQueueNums": "4",
    "a": "p", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "KEYS\1k\2",
    "j": "0", "k": "false", "l": "0", "m": "false", "n": "broker-a",
}  # fmt: skip
SUBSCRIPTION = {"topic": "TopicTest", "subString": "*", "expressionType": "TAG", "tagsSet": ["a"], "codeSet": [97]}
CONSUMER = {
    "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [SUBSCRIPTION], "unitMode": False,
}  # fmt: skip
POLICY = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1]}, "exponentialRetryPolicy": {"initial": 1}}
ACL = {
    "subject": "User:anna",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [{"resource": "Topic:T", "actions": ["Pub"], "sourceIps": ["10.0.0.1"], "decision": "Allow"}],
        }
    ],
}
USER = {"username": "anna", "password": "secret", "userType": "Normal", "userStatus": "enable"}
BODIES: dict[int, Any] = {
    10: b"x", 310: b"x", 320: b"x",
    25: b"brokerPermission=6\n",
    34: {
        "clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [CONSUMER],
        "heartbeatFingerprint": 0, "withoutSub": False,
    },
    200: {
        "groupName": "g", "retryQueueNums": 1, "retryMaxTimes": 16, "groupRetryPolicy": POLICY, "brokerId": 0,
        "subscriptionDataSet": [{"topic": "T"}], "attributes": {"+a": "b"},
    },
    3001: USER, 3002: USER, 3006: ACL, 3007: ACL,
    7100: {"topics": VERSION, "groups": VERSION, "consumerOffsets": VERSION, "delayOffsets": VERSION},
}  # fmt: skip


@pytest.mark.parametrize("codec", [JSON, CBOR])
async def test_every_request_answers_junk_with_a_code(
    codec: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built: list[Wiring] = []
    monkeypatch.setattr(broker_module, "wire", lambda *args: built.append(wire(*args)) or built[0])
    async with running() as (_, addr):
        host, _, port = addr.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        junk = Junk(stream, GOOD, BODIES, monkeypatch, caplog)
        await junk.throw(SEND_MESSAGE_V2.code, codec)  # makes the topic
        # The codec matters to what reads the head of any request, so a share of the requests shows it for CBOR.
        codes = server_of(built[0]).codes if codec == JSON else share_of(server_of(built[0]).codes, 5)
        thrown = {code: await junk.throw(code, codec) for code in codes}
        await stream.aclose()
    assert sum(thrown.values()) > (2_000 if codec == JSON else 200)


async def test_a_topic_without_queues_is_sent_to(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (client, addr):
        topic = {**GOOD, "topic": "Empty", "readQueueNums": 0, "writeQueueNums": 0}
        assert (await client.invoke(addr, Command(UPDATE_AND_CREATE_TOPIC.code, topic))).code == 0
        for queue_id in (-1, 0, 1):
            answer = await client.invoke(addr, send_request("Empty", b"x", queue_id=queue_id))
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert f"request queueId[{queue_id}] is illegal" in (answer.remark or "")
    assert not [record for record in caplog.records if record.exc_info]
