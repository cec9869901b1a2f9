"""Topics with queue.type=BatchCQ, through a whole broker: sends, pulls of all kinds of clients, messages given back."""

from typing import Any

import pytest
import trio

from skylark.broker.delivery.held_pulls import HeldPulls
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.flags import WRAPPED
from skylark.mqcommon.message.inner import inner_records
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.record import Record, decode_record
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import GET_MAX_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP
from skylark.remoting.protocol.requests.pulls import PULL_SUBSCRIPTION, PULL_UNWRAPS
from skylark.remoting.protocol.requests.query import QUERY_CONSUME_QUEUE
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE
from skylark.remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER, UPDATE_AND_CREATE_TOPIC
from skylark.sdk import broker_api
from skylark.sdk.endpoint import Endpoint
from tests.broker.running import pull_request, running, send_request
from tests.broker.test_send_pull import HELD_MS, held
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

__all__ = ["held"]

ROWS = [(0, b"body %d" % number, b"UNIQ_KEY\x01%032d\x02" % number) for number in range(40)]
TAGGED = [(0, ROWS[at][1], b"%sTAGS\x01%s\x02" % (ROWS[at][2], tag)) for at, tag in enumerate([b"a", b"b", b"a", b"b"])]
JAVA_5, JAVA_4 = ("JAVA", 413), ("JAVA", 407)
CPP = ("CPP", 413)


async def make_topic(client: RemotingClient, addr: str, topic: str = "t") -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    answer = await client.invoke(addr, Command(UPDATE_AND_CREATE_TOPIC.code, fields))
    assert answer.code == 0, answer


async def send_batch(client: RemotingClient, addr: str, rows: Any = ROWS, properties: str = "", **ext: Any) -> Command:
    request = send_request("t", encode_batch(rows), properties=properties, m=True, **ext)
    request.code = SEND_BATCH_MESSAGE.code
    answer = await client.invoke(addr, request)
    assert answer.code == 0, answer
    return answer


async def pulled(
    client: RemotingClient, addr: str, offset: int = 0, who: tuple[str, int] = CPP, **ext: Any
) -> tuple[list[Record], Command]:
    request = pull_request("t", offset, **ext)
    request.language, request.version = who
    answer = await client.invoke(addr, request)
    starts = record_starts(answer.body) if answer.code == 0 else []
    return [decode_record(answer.body, at) for at in starts], answer


async def test_a_batch_is_one_record_and_a_single_message_another() -> None:
    async with running() as (client, addr):
        await make_topic(client, addr)
        answer = await send_batch(client, addr)
        assert answer.ext is not None and answer.ext["queueOffset"] == 0 and len(answer.body) == 8 * len(ROWS)
        single = await client.invoke(addr, send_request("t", b"alone"))
        assert single.ext is not None and single.ext["queueOffset"] == 40
        (batch, alone), answer = await pulled(client, addr, who=JAVA_5, maxMsgNums=100)
        assert answer.ext is not None
        assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"], answer.ext["minOffset"]) == (41, 41, 0)
        assert [record.body for record in inner_records(batch)] == [body for _, body, _ in ROWS]
        assert (alone.body, alone.queue_offset, alone.sys_flag & WRAPPED) == (b"alone", 40, 0x80)


@pytest.mark.parametrize(("who", "whole"), [(JAVA_5, True), (JAVA_4, False), (CPP, False), (("PYTHON", 479), False)])
async def test_java_5_gets_batches_and_other_clients_get_messages(who: tuple[str, int], whole: bool) -> None:
    async with running() as (client, addr):
        await make_topic(client, addr)
        await send_batch(client, addr)
        found, answer = await pulled(client, addr, who=who)
        assert answer.ext is not None and answer.ext["nextBeginOffset"] == (40 if whole else 32)
        assert len(found) == (1 if whole else 32)
        found, _ = await pulled(client, addr, who=who, sysFlag=PULL_SUBSCRIPTION | PULL_UNWRAPS)
        assert len(found) == 1
        # The rest of a batch is never sent as a batch.
        found, _ = await pulled(client, addr, 35, who=who)
        assert [record.body for record in found] == [body for _, body, _ in ROWS[35:]]


async def test_a_held_pull_gets_the_batch_that_comes(held: list[HeldPulls]) -> None:
    async with running() as (client, addr):
        await make_topic(client, addr)
        found: list[int] = []

        async def wait(who: tuple[str, int], subscription: str) -> None:
            request = pull_request("t", 0, wait_ms=HELD_MS, subscription=subscription)
            request.language, request.version = who
            answer = await client.invoke(addr, request, HELD_MS)
            found.append(len(record_starts(answer.body)))

        async with trio.open_nursery() as nursery:
            for who in (JAVA_5, CPP):
                for subscription in ("*", "a"):
                    nursery.start_soon(wait, who, subscription)
            await until(lambda: len(held) == 4, "held pulls")
            await send_batch(client, addr, TAGGED)
        assert sorted(found) == [1, 1, 2, 4]


async def test_filters_look_into_a_batch() -> None:
    async with running(enable_property_filter=True) as (client, addr):
        await make_topic(client, addr)
        rows = [(0, body, b"%sn\x01%d\x02" % (properties, at)) for at, (_, body, properties) in enumerate(TAGGED)]
        await send_batch(client, addr, rows)
        found, _ = await pulled(client, addr, subscription="b")
        assert [record.body for record in found] == [b"body 1", b"body 3"]
        found, _ = await pulled(client, addr, who=JAVA_5, subscription="n >= 2", expressionType="SQL92")
        assert [record.body for record in found] == [b"body 2", b"body 3"]
        found, answer = await pulled(client, addr, subscription="c")
        assert (found, answer.code) == ([], ResponseCode.PULL_RETRY_IMMEDIATELY)


async def test_a_java_producer_is_told_that_its_batch_is_one_record() -> None:
    async with running() as (client, addr):
        await make_topic(client, addr)
        answer = await send_batch(client, addr, properties="UNIQ_KEY\x01of the batch\x02INNER_BASE\x0177\x02TAGS\x01x")
        assert answer.ext is not None
        (batch,), _ = await pulled(client, addr, who=JAVA_5)
        properties = dict(pair.split(b"\x01") for pair in batch.properties.split(b"\x02") if pair)
        assert properties[b"UNIQ_KEY"] == b"of the batch" and b"TAGS" not in properties
        assert (properties[b"INNER_NUM"], properties[b"INNER_BASE"]) == (b"40", b"0")
        assert properties[b"CLUSTER"] == b"DefaultCluster"


@pytest.mark.parametrize("properties", [b"DELAY\x013\x02", b"TRAN_MSG\x01true\x02"])
async def test_no_message_of_a_batch_is_special(properties: bytes) -> None:
    async with running() as (client, addr):
        await make_topic(client, addr)
        request = send_request("t", encode_batch([(0, b"x", b""), (0, b"y", properties)]), m=True)
        answer = await client.invoke(addr, request)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await pulled(client, addr))[1].code == ResponseCode.PULL_NOT_FOUND


async def test_a_delayed_message_comes_when_it_is_due() -> None:
    async with running(message_delay_level="0s") as (client, addr):
        await make_topic(client, addr)
        assert (await client.invoke(addr, send_request("t", b"later", properties="DELAY\x011\x02"))).code == 0
        (found,), _ = await pulled(client, addr, wait_ms=60_000)
        assert (found.body, found.queue_offset, found.sys_flag & WRAPPED) == (b"later", 0, 0x80)


async def test_a_message_of_a_batch_can_be_given_back() -> None:
    async with running(message_delay_level="0s") as (client, addr):
        await make_topic(client, addr)
        await send_batch(client, addr)
        (batch,), _ = await pulled(client, addr, who=JAVA_5)
        at, key = Endpoint(client, addr), f"{7:032d}"
        await broker_api.send_back(at, "g", batch.physical_offset, key, "t", 0, 16)
        request = pull_request("%RETRY%g", 0, wait_ms=60_000, consumerGroup="TOOLS_CONSUMER")
        answer = await client.invoke(addr, request)
        message = MessageExt(answer.body, 0, "")
        assert (message.body, message.msg_id, message.sys_flag & WRAPPED) == (b"body 7", key, 0)


async def test_the_kind_stays_over_a_restart_and_ends_with_the_topic() -> None:
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        await make_topic(client, addr)
        await send_batch(client, addr)
    async with running(fs) as (client, addr):
        await send_batch(client, addr)
        found, _ = await pulled(client, addr, who=JAVA_5, maxMsgNums=100)
        assert [record.queue_offset for record in found] == [0, 40]
        gone = await client.invoke(addr, Command(DELETE_TOPIC_IN_BROKER.code, {"topic": "t"}))
        assert gone.code == 0
        # The next topic of this name is a plain one.
        await send_batch(client, addr)
        found, _ = await pulled(client, addr, who=JAVA_5)
        assert len(found) == 32
    async with running(fs) as (client, addr):
        found, _ = await pulled(client, addr, 38, who=JAVA_5)
        assert [record.body for record in found] == [b"body 38", b"body 39"]


async def test_time_and_ends_are_those_of_messages() -> None:
    async with running() as (client, addr):
        await make_topic(client, addr)
        await send_batch(client, addr)
        await send_batch(client, addr)
        fields = {"topic": "t", "queueId": 0}
        most = await client.invoke(addr, Command(GET_MAX_OFFSET.code, fields))
        assert most.ext is not None and most.ext["offset"] == 80
        (one, two), _ = await pulled(client, addr, who=JAVA_5, maxMsgNums=100)
        asked = {**fields, "timestamp": two.store_timestamp}
        found = await client.invoke(addr, Command(SEARCH_OFFSET_BY_TIMESTAMP.code, asked))
        assert found.ext is not None and found.ext["offset"] == (40 if two.store_timestamp > one.store_timestamp else 0)
        rows = await client.invoke(
            addr, Command(QUERY_CONSUME_QUEUE.code, {**fields, "index": 39, "count": 2, "consumerGroup": ""})
        )
        assert rows.code == 0
