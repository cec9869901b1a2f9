"""41 and 42 over the network: golden bodies, bad ones, and every role."""

import json

import pytest

from mqcommon.message.queue import MessageQueue
from remoting.net.client import open_client
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.dialect import decode_body, encode_body
from remoting.protocol.requests.consuming import (
    LOCK_BATCH_MQ,
    UNLOCK_BATCH_MQ,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from sdk import broker_api
from sdk.endpoint import Endpoint
from tests.broker.running import running

ONE, TWO = MessageQueue("T", "broker-a", 1), MessageQueue("T", "broker-a", 2)
JAVA = b'{"clientId":"192.0.2.2@order","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":1,"topic":"T"}]}'


@pytest.mark.parametrize("options", [{}, {"broker_role": "SLAVE", "broker_id": 1}], ids=["master", "slave"])
async def test_a_queue_has_one_owner(options: dict[str, object]) -> None:
    async with running(**options) as (client, addr):
        at = Endpoint(client, addr)
        assert await broker_api.lock_queues(at, "g", "a", [ONE, TWO]) == [ONE, TWO]
        assert await broker_api.lock_queues(at, "g", "b", [ONE, TWO]) == []
        assert await broker_api.lock_queues(at, "other", "b", [ONE]) == [ONE]
        await broker_api.unlock_queues(at, "g", "b", [ONE])
        await broker_api.unlock_queues(at, "g", "a", [TWO])
        assert await broker_api.lock_queues(at, "g", "b", [ONE, TWO]) == [TWO]
        async with open_client() as java:
            answer = await java.invoke(addr, Command(LOCK_BATCH_MQ.code, None, JAVA))
            assert decode_body(LockBatchResponseBody, answer.body, answer.codec).lock_ok_mq_set == []


async def test_a_connection_that_ends_keeps_its_locks() -> None:
    async with running() as (client, addr):
        assert await broker_api.lock_queues(Endpoint(client, addr), "g", "a", [ONE]) == [ONE]
        client.close_connection(addr, "a new one")
        assert await broker_api.lock_queues(Endpoint(client, addr), "g", "b", [ONE]) == []
        assert await broker_api.lock_queues(Endpoint(client, addr), "g", "a", [ONE]) == [ONE]


@pytest.mark.parametrize("code", [LOCK_BATCH_MQ.code, UNLOCK_BATCH_MQ.code])
@pytest.mark.parametrize(
    ("body", "refusal", "text"),
    [
        (b"", ResponseCode.SYSTEM_ERROR, "the body cannot be read"),
        (b'{"consumerGroup":"g","clientId":"a","mqSet":[1]}', ResponseCode.SYSTEM_ERROR, "not a message queue"),
        (encode_body(LockBatchRequestBody("", "a")), ResponseCode.INVALID_PARAMETER, "group is blank"),
        (encode_body(LockBatchRequestBody("a b", "a")), ResponseCode.INVALID_PARAMETER, "illegal characters"),
        (encode_body(LockBatchRequestBody("g", "")), ResponseCode.INVALID_PARAMETER, "the clientId has 0 characters"),
        (
            json.dumps({"consumerGroup": "g", "clientId": "x" * 2_000}).encode(), ResponseCode.INVALID_PARAMETER,
            "the clientId has 2000 characters",
        ),
    ],
)  # fmt: skip
async def test_a_malformed_request_is_refused(code: int, body: bytes, refusal: int, text: str) -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(code, None, body))
        assert (answer.code, text in (answer.remark or "")) == (refusal, True), answer
