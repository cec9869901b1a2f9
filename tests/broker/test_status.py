"""What brokerStatus and consumerProgress tell of a whole broker that works."""

from typing import Any

import pytest
import trio

from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.clients import HEART_BEAT, ConsumerData, HeartbeatData, SubscriptionData
from skylark.remoting.protocol.requests.groups import GET_CONSUME_STATS, ConsumeStats
from skylark.remoting.protocol.requests.offsets import UPDATE_CONSUMER_OFFSET
from tests.broker.running import pull_request, running, send_request
from tests.support.memory_files import MemoryFiles

DEADLINE_S = 60


async def status(client: RemotingClient, addr: str) -> dict[str, str]:
    answer = await client.invoke(addr, Command(GET_BROKER_RUNTIME_INFO.code))
    return dict(decode_body(KVTable, answer.body, answer.codec).table)


def counted(table: dict[str, str]) -> int:
    return sum(int(part.rpartition(":")[2]) for part in table["putMessageDistributeTime"].split())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, ResponseCode.SUCCESS),
        ({"flush_disk_type": "SYNC_FLUSH"}, ResponseCode.SUCCESS),
        ({"broker_role": "SYNC_MASTER", "ha_listen_port": 0}, ResponseCode.SLAVE_NOT_AVAILABLE),
    ],
)
async def test_sends_are_measured(options: dict[str, Any], code: int) -> None:
    async with running(**options) as (client, addr):
        assert counted(await status(client, addr)) == 0
        for _ in range(3):
            assert (await client.invoke(addr, send_request("t", b"x"))).code == code
        batch = send_request("t", encode_batch([(0, b"x", b""), (0, b"y", b"")]), m=True)
        assert (await client.invoke(addr, batch)).code == code
        assert (await client.invoke(addr, send_request("t", b"", queue_id=9))).code == ResponseCode.INVALID_PARAMETER
        table = await status(client, addr)
        assert counted(table) == 4, table["putMessageDistributeTime"]
        assert table["putMessageDistributeTime"].startswith("[<=0ms]:")
        assert float(table["putLatency999"]) >= float(table["putLatency99"]) > 0
        assert table["putMessageFailedTimes"] == "0"
        limited = "broker_role" in options
        assert table["sendThreadPoolQueueCapacity"] == ("32768" if limited else "2147483647")
        assert table["sendThreadPoolQueueSize"] == table["sendThreadPoolQueueHeadWaitTimeMills"] == "0"
        for pool in ("pull", "litePull", "query"):
            assert table[f"{pool}ThreadPoolQueueCapacity"] == "1000"


async def test_a_send_that_finds_no_room_has_failed() -> None:
    files = MemoryFiles()
    async with running(files) as (client, addr):
        assert (await client.invoke(addr, send_request("t", b"x"))).code == 0
        files.capacity = files.used()
        codes = [(await client.invoke(addr, send_request("t", bytes(30_000)))).code for _ in range(8)]
        refused = codes.count(ResponseCode.SERVICE_NOT_AVAILABLE)
        assert refused > 0
        assert (await status(client, addr))["putMessageFailedTimes"] == str(refused)
        files.capacity *= 100


async def test_messages_pulled_and_not_committed_are_in_flight() -> None:
    def heartbeat() -> Command:
        data = ConsumerData("group", subscription_data_set=[SubscriptionData("t")])
        body = encode_body(HeartbeatData("client", consumer_data_set=[data]), Dialect.STANDARD)
        return Command(HEART_BEAT.code, None, body)

    async def progress(client: RemotingClient) -> tuple[int, int, int]:
        answer = await client.invoke(addr, Command(GET_CONSUME_STATS.code, {"consumerGroup": "group", "topic": "t"}))
        one = decode_body(ConsumeStats, answer.body, answer.codec).offset_table[MessageQueue("t", "broker-a", 0)]
        return one.broker_offset, one.consumer_offset, one.pull_offset

    async with running() as (operator, addr):
        for _ in range(5):
            await operator.invoke(addr, send_request("t", b"x"))
        async with open_client() as consumer:
            await consumer.invoke(addr, heartbeat())
            await consumer.invoke(addr, pull_request("t", 0, maxMsgNums=3))
            assert await progress(operator) == (5, 0, 3)
            commit = {"consumerGroup": "group", "topic": "t", "queueId": 0, "commitOffset": 2}
            await consumer.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, commit))
            assert await progress(operator) == (5, 2, 3)
            # A client that reads without being a member has nothing in flight.
            await operator.invoke(addr, pull_request("t", 0, maxMsgNums=5))
            assert await progress(operator) == (5, 2, 3)
            commit["commitOffset"] = 4
            await consumer.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, commit))
            assert await progress(operator) == (5, 4, 4)
            await consumer.invoke(addr, pull_request("t", 4, wait_ms=10_000))
            assert await progress(operator) == (5, 4, 5)
        with trio.fail_after(DEADLINE_S):
            # The broker sees a moment later that the connection has ended.
            while (await progress(operator)) != (5, 4, 4):
                await trio.lowlevel.checkpoint()
