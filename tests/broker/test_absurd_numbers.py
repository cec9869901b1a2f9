"""Offsets and times near 2^63 in requests of one client: the honest members of its group read and commit on."""

import pytest

from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import decode_record
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import RESET_MASTER_FLUSH_OFFSET
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.offsets import (
    INVOKE_BROKER_TO_RESET_OFFSET,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
)
from skylark.remoting.protocol.requests.pops import ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME, POP_MESSAGE
from skylark.remoting.protocol.requests.replication import EXCHANGE_BROKER_HA_INFO
from tests.broker.running import pull_request, running, send_request

BODIES = [b"1", b"2", b"3"]
QUEUE = {"consumerGroup": "group", "topic": "T", "queueId": 0}
POP = {**QUEUE, "maxMsgNums": 32, "bornTime": 0, "initMode": 0, "expType": "TAG", "exp": "*", "order": False}
HANDLE = "0 1700000000000 60000 0 0 broker-a 0 0"


def absurd(number: int) -> list[Command]:
    """Requests that mention the number where it would last."""
    return [
        Command(UPDATE_CONSUMER_OFFSET.code, {**QUEUE, "commitOffset": number}),
        pull_request("T", 0, sysFlag=5, commitOffset=number),
        pull_request("T", number),
        Command(
            INVOKE_BROKER_TO_RESET_OFFSET.code,
            {"group": "group", "topic": "T", "timestamp": 0, "isForce": True, "offset": number, "queueId": 0},
        ),
        Command(POP_MESSAGE.code, {**POP, "invisibleTime": number, "pollTime": 0}),
        Command(POP_MESSAGE.code, {**POP, "consumerGroup": "other", "invisibleTime": 1_000, "pollTime": number}),
        Command(ACK_MESSAGE.code, {**QUEUE, "extraInfo": HANDLE, "offset": number}),
        Command(
            CHANGE_MESSAGE_INVISIBLETIME.code, {**QUEUE, "extraInfo": HANDLE, "offset": 0, "invisibleTime": number}
        ),
        Command(
            CONSUMER_SEND_MSG_BACK.code,
            {"group": "group", "offset": number, "delayLevel": 1, "originMsgId": "x", "originTopic": "T"},
        ),
        Command(RESET_MASTER_FLUSH_OFFSET.code, {"masterFlushOffset": number}),
        Command(
            EXCHANGE_BROKER_HA_INFO.code,
            {"masterAddress": "127.0.0.1:1", "masterHaAddress": "127.0.0.1:2", "masterFlushOffset": number},
        ),
    ]


@pytest.mark.parametrize("number", [(1 << 63) - 1, 1 << 62, 1 << 48, -(1 << 63)])
async def test_a_group_goes_on_after_absurd_offsets_and_times(number: int) -> None:
    async with running() as (client, addr):
        for body in BODIES:
            assert (await client.invoke(addr, send_request("T", body))).code == ResponseCode.SUCCESS
        for request in absurd(number):
            await client.invoke(addr, request)
            kept = await client.invoke(addr, Command(QUERY_CONSUMER_OFFSET.code, QUEUE))
            assert (kept.ext or {})["offset"] == 0, request
        answer = await client.invoke(addr, pull_request("T", 0))
        assert [decode_record(answer.body, at).body for at in record_starts(answer.body)] == BODIES
        await client.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, {**QUEUE, "commitOffset": 3}))
        kept = await client.invoke(addr, Command(QUERY_CONSUMER_OFFSET.code, QUEUE))
        assert (kept.ext or {})["offset"] == 3
        popped = await client.invoke(
            addr, Command(POP_MESSAGE.code, {**POP, "consumerGroup": "third", "invisibleTime": 1_000, "pollTime": 0})
        )
        assert popped.code == ResponseCode.SUCCESS and popped.body
