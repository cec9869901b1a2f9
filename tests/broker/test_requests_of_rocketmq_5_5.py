"""What clients, proxies and slaves of RocketMQ 5.5 send besides what 5.3 sends: new fields do no harm."""

import json
from typing import Any

import pytest

from skylark.mqcommon.message.properties import encode_properties
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import GET_CONSUMER_CONNECTION_LIST, HEART_BEAT
from skylark.remoting.protocol.requests.pops import CHANGE_MESSAGE_INVISIBLETIME, NOTIFICATION, POP_MESSAGE
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.query import QUERY_MESSAGE
from tests.broker.running import running, send_request

QUEUE = {"topic": "T", "queueId": "0", "consumerGroup": "g"}
PULL = {
    **QUEUE, "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "subscription": "*", "commitOffset": "0",
    "subVersion": "0", "suspendTimeoutMillis": "0",
}  # fmt: skip
POP = {
    **QUEUE, "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0",
    "initMode": "0", "liteTopic": "",
}  # fmt: skip
NOTIFY = {**QUEUE, "pollTime": "0", "bornTime": "0", "clientId": "c", "isLiteConsumer": "false", "exp": "*"}
QUERY = {"topic": "T", "key": "order-1", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (PULL_MESSAGE.code, {**PULL, "liteTopic": ""}),
        (NOTIFICATION.code, {**NOTIFY, "expType": "TAG"}),
        (POP_MESSAGE.code, POP),
        (QUERY_MESSAGE.code, {**QUERY, "indexType": "K", "lastKey": "477777@T@K@order-1@u@0"}),
    ],
)
async def test_new_fields_are_let_pass(code: int, fields: dict[str, str]) -> None:
    async with running() as (client, addr):
        request = send_request("T", b"a", queue_id=0, properties=encode_properties({"KEYS": "order-1"}))
        await client.invoke(addr, request)
        answer = await client.invoke(addr, Command(code, fields))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.body or answer.ext


async def test_the_time_of_a_popped_message_is_changed_with_the_new_fields() -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("T", b"a", queue_id=0))
        popped: dict[str, Any] = (await client.invoke(addr, Command(POP_MESSAGE.code, POP))).ext or {}
        handle = f"0 {popped['popTime']} 60000 {popped['reviveQid']} 0 broker-a 0 0"
        fields = {
            **QUEUE,
            "extraInfo": handle,
            "offset": "0",
            "invisibleTime": "1",
            "liteTopic": "",
            "suspend": "false",
        }
        answer = await client.invoke(addr, Command(CHANGE_MESSAGE_INVISIBLETIME.code, fields))
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_query_by_tag_is_refused_by_name() -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(QUERY_MESSAGE.code, {**QUERY, "indexType": "T"}))
        assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, "this broker's index has keys, not tags")


async def test_a_consumer_of_lite_topics_does_not_keep_others_out_of_a_heartbeat() -> None:
    consumers = [
        {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [],
        }
        for group, model in (("lites", "LITE_SELECTIVE"), ("others", "CLUSTERING"))
    ]  # fmt: skip
    body = {"clientID": "of-a-proxy", "producerDataSet": [], "consumerDataSet": consumers}
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(HEART_BEAT.code, {}, json.dumps(body).encode()))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        for group in ("lites", "others"):
            members = await client.invoke(addr, Command(GET_CONSUMER_CONNECTION_LIST.code, {"consumerGroup": group}))
            assert b"of-a-proxy" in members.body
