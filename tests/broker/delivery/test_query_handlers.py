"""12, 33, 321."""

from dataclasses import replace
from typing import Any

import pytest

from skylark.broker.delivery.query_handlers import MAX_ENTRIES
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, JSON, Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    ConsumerData,
    HeartbeatData,
    parse_subscription,
)
from skylark.remoting.protocol.requests.query import (
    QUERY_CONSUME_QUEUE,
    QUERY_MESSAGE,
    VIEW_MESSAGE_BY_ID,
    ConsumeQueueEntries,
)
from tests.broker.desk import Desk
from tests.broker.store.support import BORN_HOST, HOST, put, put_inner
from tests.support.caller import Caller

FOREVER = {"beginTimestamp": 0, "endTimestamp": 2**63 - 1}


def desk_with(count: int = 0, tags: tuple[str, ...] = ("",)) -> Desk:
    desk = Desk()
    for n in range(count):
        tag = tags[n % len(tags)]
        put(desk.store, "T", 0, b"%d" % n, f"TAGS\x01{tag}\x02".encode() if tag else b"")
    return desk


def entries(answer: Command) -> ConsumeQueueEntries:
    assert answer.code == 0, answer.remark
    return decode_body(ConsumeQueueEntries, answer.body, answer.codec)


async def ask_entries(desk: Desk, index: int, count: int, codec: int = JSON, **more: Any) -> Command:
    queue = {"topic": "T", "queueId": 0, "index": index, "count": count, **more}
    return await desk.ask(QUERY_CONSUME_QUEUE.code, queue, codec=codec)


# --- what stands in a queue


@pytest.mark.parametrize("codec", [JSON, CBOR])
async def test_entries_over_several_files(codec: int) -> None:
    desk = desk_with(60, ("TagA", "TagB"))
    found = entries(await ask_entries(desk, 10, 45, codec))
    assert (found.min_queue_index, found.max_queue_index) == (0, 60)
    queue = desk.store.queues.get("T", 0)
    expected = [queue.entry(n) for n in range(10, 55)]
    assert [(row.physic_offset, row.physic_size, row.tags_code) for row in found.queue_data] == expected
    assert found.queue_data[0].tags_code == java_hash("TagA")
    assert found.subscription_data is None and found.filter_data is None


async def test_the_members_are_rocketmqs() -> None:
    desk = desk_with(1)
    answer = await ask_entries(desk, 0, 1)
    assert answer.body == (
        b'{"maxQueueIndex":1,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":0,"physicSize":'
        + str(desk.store.log.end).encode()
        + b',"tagsCode":0}]}'
    )


async def test_more_than_there_are_and_more_than_one_answer_takes() -> None:
    desk = desk_with(5)
    assert len(entries(await ask_entries(desk, 3, 32)).queue_data) == 2
    assert entries(await ask_entries(desk, 0, 0)).queue_data == []
    assert entries(await ask_entries(desk, 0, -4)).queue_data == []
    desk.store.queues.get("T", 0).append_many(ENTRY.pack(0, 100, 0) * MAX_ENTRIES)
    assert len(entries(await ask_entries(desk, 0, MAX_ENTRIES + 5)).queue_data) == MAX_ENTRIES


@pytest.mark.parametrize("index", [-1, 1, 5, 2**62])
async def test_an_index_out_of_range_is_said_with_the_bounds(index: int) -> None:
    desk = desk_with(5)
    desk.store.queues.get("T", 0).min_offset = 2
    answer = await ask_entries(desk, index, 10)
    assert answer.remark == f"Index {index} of 0@T is not exist!"
    found = entries(answer)
    assert (found.min_queue_index, found.max_queue_index, found.queue_data) == (2, 5, [])


async def test_a_queue_that_is_not_there() -> None:
    answer = await ask_entries(desk_with(1), 0, 1, queueId=7)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "7@T is not exist!")


async def test_a_blank_place_is_said_to_be_one() -> None:
    desk = desk_with(3)
    desk.store.checkpoint()
    segment = desk.store.queues.get("T", 0).chain.at(0)
    assert segment is not None
    ENTRY.pack_into(segment.file.view, ENTRY_BYTES, 0, BLANK_SIZE, 0)
    rows = entries(await ask_entries(desk, 0, 3)).queue_data
    assert [row.msg for row in rows] == [None, "blank: no message has this offset", None]


@pytest.mark.parametrize(
    ("expression", "kind", "taken"),
    [("*", "TAG", [True, True]), ("TagB || TagC", "TAG", [False, True]), ("a > 1", "SQL92", [False, False])],
)
async def test_what_a_group_would_take(expression: str, kind: str, taken: list[bool]) -> None:
    desk = desk_with(2, ("TagA", "TagB"))
    consumer = ConsumerData("g", subscription_data_set=[parse_subscription("T", expression, kind)])
    channel = Caller().channel
    await desk.ask(HEART_BEAT.code, {}, HeartbeatData("c1", consumer_data_set=[consumer]), channel=channel)
    found = entries(await ask_entries(desk, 0, 2, consumerGroup="g"))
    assert found.subscription_data is not None and found.subscription_data.sub_string == expression
    assert [row.eval for row in found.queue_data] == taken
    assert found.filter_data is None
    # The last subscription of a group is shown when its members have left, too.
    await desk.ask(UNREGISTER_CLIENT.code, {"clientID": "c1", "consumerGroup": "g"}, channel=channel)
    left = entries(await ask_entries(desk, 0, 2, consumerGroup="g"))
    assert left == replace(found, filter_data="g@T is not online!")


async def test_a_group_that_is_not_there() -> None:
    found = entries(await ask_entries(desk_with(1), 0, 1, consumerGroup="g"))
    assert found.filter_data == "g@T is not online!"
    assert [row.eval for row in found.queue_data] == [False]


# --- messages


async def bodies_by_key(desk: Desk, key: str, **more: Any) -> list[bytes]:
    header = {"topic": "T", "key": key, "maxNum": 64, **FOREVER, **more}
    answer = await desk.ask(QUERY_MESSAGE.code, header)
    assert answer.code in (0, ResponseCode.QUERY_NOT_FOUND)
    assert bool(answer.body) == (answer.code == 0)
    return [message.body for message in decode_messages(answer.body)]


def desk_with_keys() -> Desk:
    desk = Desk()
    put(desk.store, "T", 0, b"1", b"UNIQ_KEY\x01id1\x02KEYS\x01k id2\x02TAGS\x01TagA\x02")
    put(desk.store, "T", 1, b"2", b"UNIQ_KEY\x01id2\x02KEYS\x01k\x02")
    return desk


async def test_by_key_of_each_kind() -> None:
    desk = desk_with_keys()
    assert await bodies_by_key(desk, "k") == [b"2", b"1"]
    assert await bodies_by_key(desk, "id2", indexType="K") == [b"2", b"1"]
    assert await bodies_by_key(desk, "id2", indexType="U") == [b"2"]
    assert await bodies_by_key(desk, "TagA", indexType="T") == []
    assert await bodies_by_key(desk, "k", maxNum=1) == [b"2"]
    assert await bodies_by_key(desk, "k", maxNum=0) == []
    assert await bodies_by_key(desk, "k", endTimestamp=1) == []


async def test_a_unique_key_is_asked_for_with_the_brokers_own_limit() -> None:
    desk = desk_with_keys()
    flag = {"_UNIQUE_KEY_QUERY": "true"}
    assert await bodies_by_key(desk, "id2", maxNum=0, **flag) == [b"2"]
    assert await bodies_by_key(desk, "k", **flag) == []


def desk_with_a_batch() -> Desk:
    desk = Desk()
    desk.store.queues.use_kinds({"T"}.__contains__)
    put_inner(desk.store, "T", 0, [(0, b"%d" % n, b"UNIQ_KEY\x01id%d\x02KEYS\x01k k%d\x02" % (n, n)) for n in range(5)])
    return desk


async def test_a_message_of_a_batch_is_found_by_its_own_keys() -> None:
    desk = desk_with_a_batch()
    put(desk.store, "T", 1, b"alone", b"KEYS\x01k\x02")
    assert await bodies_by_key(desk, "k") == [b"alone", b"4", b"3", b"2", b"1", b"0"]
    assert await bodies_by_key(desk, "k", maxNum=3) == [b"alone", b"4", b"3"]
    assert await bodies_by_key(desk, "k3") == [b"3"]
    assert await bodies_by_key(desk, "id2", indexType="U") == [b"2"]
    assert await bodies_by_key(desk, "k2", indexType="U") == []
    answer = await desk.ask(QUERY_MESSAGE.code, {"topic": "T", "key": "id3", "maxNum": 9, **FOREVER})
    (message,) = decode_messages(answer.body)
    assert (message.queue_offset, message.msg_id, message.is_inner) == (3, "id3", False)


async def test_who_cannot_take_a_batch_apart_gets_its_first_message_by_id() -> None:
    desk = desk_with_a_batch()
    (first,) = decode_messages((await desk.ask(VIEW_MESSAGE_BY_ID.code, {"offset": 0})).body)
    assert (first.body, first.is_inner) == (b"0", False)
    whole = await desk.ask(VIEW_MESSAGE_BY_ID.code, {"offset": 0, "takesBatches": "true"})
    assert [message.body for message in decode_messages(whole.body)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_message_at_an_offset_and_none_within_another() -> None:
    desk = Desk()
    magic, tail = topic_field("T")
    inner = encode_record(magic, tail, 0, 0, 0, b"secret", b"", 0, 0, 1, BORN_HOST, 1, HOST, 0, 0)
    put(desk.store, "T", 0, b"first")
    outer = desk.store.log.end
    put(desk.store, "T", 0, inner)
    [message] = decode_messages((await desk.ask(VIEW_MESSAGE_BY_ID.code, {"offset": outer})).body)
    assert message.body == inner
    within = outer + desk.store.log.read(outer, message.store_size).index(inner)
    for offset in (within, 1, -1, desk.store.log.end, 2**62):
        answer = await desk.ask(VIEW_MESSAGE_BY_ID.code, {"offset": offset})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"can not find message by the offset, {offset}"
