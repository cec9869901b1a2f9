"""Admin's messages, offsets, queues and stores, against fakes."""

import pytest

from mqcommon.errors import UserError
from mqcommon.message.ids import encode_host
from mqcommon.message.message import MessageExt
from remoting.protocol.requests.clients import ConsumeMessageDirectlyResult
from remoting.protocol.requests.query import ConsumeQueueData, ConsumeQueueEntries
from sdk.admin.client import LONG_MAX
from tests.sdk.admin.two_brokers import cluster, ext, mq
from tests.sdk.fakes import record

# Where a record has it.
STORE_HOST = slice(64, 72)


async def test_messages_by_key() -> None:
    async with cluster() as it:
        late, early = record("t", 0, 9, b"late", KEYS="k x"), record("t", 0, 1, b"early", KEYS="k")
        clash, other = record("t", 0, 2, b"clash", KEYS="kk"), record("u", 0, 3, b"other", KEYS="k")
        it.a.on(12, lambda request: request.respond(body=late + clash + other))
        it.b.on(12, lambda request: request.respond(body=early))
        found = await it.admin.query_message_by_key("t", "k", 10, 5, 6)
        assert [message.body for message in found] == [b"early", b"late"]
        assert [message.broker_name for message in found] == ["broker-b", "broker-a"]
        assert ext(it.a.asked(12)[0]) == {
            "topic": "t", "key": "k", "maxNum": "10", "beginTimestamp": "5", "endTimestamp": "6",
            "_UNIQUE_KEY_QUERY": "false",
        }  # fmt: skip
        assert [message.body for message in await it.admin.query_message_by_key("t", "k", 1)] == [b"early"]
        it.b.on(12, lambda request: request.respond(22, "can not find message, maybe time range not correct"))
        assert [message.body for message in await it.admin.query_message_by_key("t", "k")] == [b"late"]


async def test_messages_by_unique_key() -> None:
    async with cluster() as it:
        it.a.on(12, lambda request: request.respond(body=record("t", 0, 1, b"hit", UNIQ_KEY="A1")))
        it.b.on(12, lambda request: request.respond(body=record("t", 0, 1, b"clash", UNIQ_KEY="B2")))
        assert [message.body for message in await it.admin.query_by_unique_key("t", "A1")] == [b"hit"]
        asked = ext(it.a.asked(12)[0])
        assert (asked["_UNIQUE_KEY_QUERY"], asked["endTimestamp"]) == ("true", str(LONG_MAX))


async def test_a_message_by_its_offset_id() -> None:
    async with cluster() as it:
        it.a.on(33, lambda request: request.respond(body=record("t", 0, 1, b"hit")))
        port = int(it.a.addr.rpartition(":")[2])
        message = await it.admin.view_message(f"7F000001{port:08X}{1000:016X}")
        assert message.body == b"hit"
        assert ext(it.a.asked(33)[0])["offset"] == "1000"
        for text in ("", "7F", "Z" * 32):
            with pytest.raises(UserError):
                await it.admin.view_message(text)


async def test_a_message_is_given_to_a_consumer_by_its_broker() -> None:
    result = ConsumeMessageDirectlyResult(consume_result="CR_SUCCESS", spent_time_mills=3)
    async with cluster() as it:
        host, _, port = it.b.addr.rpartition(":")
        raw = bytearray(record("t", 1, 0, b"x"))
        raw[STORE_HOST] = encode_host(host, int(port))
        stored = MessageExt(bytes(raw), 0, "broker-b")
        it.b.on(309, lambda request: result)
        assert await it.admin.consume_message_directly("g", "c@1", stored) == result
        [request] = it.b.asked(309)
        assert ext(request) == {
            "consumerGroup": "g", "clientId": "c@1", "topic": "t", "msgId": stored.offset_msg_id,
        }  # fmt: skip


async def test_offsets_of_a_queue() -> None:
    async with cluster() as it:
        it.b.put("t", 1, b"x", b"y")
        assert await it.admin.max_offset(mq("broker-b", 1)) == 2
        assert await it.admin.min_offset(mq("broker-b", 1)) == 0
        assert await it.admin.search_offset(mq("broker-b", 1), 4000) == 4
        await it.admin.search_offset(mq("broker-b", 1), 4000, "UPPER")
        assert [ext(request)["boundaryType"] for request in it.b.asked(29)] == ["LOWER", "UPPER"]
        times = iter([7, -1])
        it.b.on(32, lambda request: {"timestamp": next(times)})
        assert await it.admin.earliest_store_time(mq("broker-b", 1)) == 7
        assert await it.admin.earliest_store_time(mq("broker-b", 1)) is None


async def test_entries_of_a_queue() -> None:
    stored = ConsumeQueueEntries(queue_data=[ConsumeQueueData(5, 100, 7)], max_queue_index=4, min_queue_index=3)
    async with cluster() as it:
        it.a.on(321, lambda request: stored)
        assert await it.admin.query_consume_queue(it.a.addr, "t", 1, 3) == stored
        await it.admin.query_consume_queue(it.a.addr, "t", 1, 3, 2, "g")
        first, second = it.a.asked(321)
        assert ext(first) == {"topic": "t", "queueId": "1", "index": "3", "count": "10"}
        assert ext(second) == {"topic": "t", "queueId": "1", "index": "3", "count": "2", "consumerGroup": "g"}


async def test_a_brokers_store_is_cleaned() -> None:
    async with cluster() as it:
        for code in (306, 316, 329):
            it.a.on(code, lambda request: {})
        await it.admin.clean_expired_consume_queue(it.a.addr)
        assert [len(it.a.asked(code)) for code in (306, 316, 329)] == [1, 0, 0]
        await it.admin.clean_unused_topic(it.a.addr)
        assert [len(it.a.asked(code)) for code in (306, 316, 329)] == [1, 1, 0]
        await it.admin.delete_expired_commit_log(it.a.addr)
        assert [len(it.a.asked(code)) for code in (306, 316, 329)] == [1, 1, 1]
