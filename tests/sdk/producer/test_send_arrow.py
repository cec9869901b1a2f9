"""`Producer.send_arrow` against brokers that store, refuse and fall silent."""

import sys

import pyarrow as pa
import pytest

from skylark import Producer
from skylark.mqcommon.errors import InvalidArgument, SendFailed, UserError
from skylark.mqcommon.message.batch import decode_batch, encode_batch
from skylark.mqcommon.message.properties import decode_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2
from skylark.sdk.producer.wire import EncodedRows, unique_key
from tests.sdk.producer.test_producer import StoringBroker, bodies, two_brokers


def batch_requests(*brokers: StoringBroker) -> list[bytes]:
    return [request.body for broker in brokers for request in broker.asked(SEND_BATCH_MESSAGE.code)]


async def test_rows_of_a_table_are_stored() -> None:
    sent = [b"%d" % n for n in range(5_000)]
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        results = await producer.send_arrow("t", pa.table({"body": sent}))
        assert sorted(bodies(a, b)) == sorted(sent)
        assert len(results) == len({result.msg_id for result in results}) == 5_000
        rows = {row[1]: row for body in batch_requests(a, b) for row in decode_batch(body)[0]}
        assert [unique_key(rows[body]) for body in sent] == [result.msg_id for result in results]
        assert results[0].queue_offset == 0


async def test_a_table_of_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that were kept since the check, and parts that are made again."""
    monkeypatch.setattr("skylark.sdk.arrow.encode.PART_ROWS", 7)
    monkeypatch.setattr("skylark.sdk.producer.batches.KEPT_PARTS", 3)
    sent = [b"%d" % n for n in range(100)]
    async with two_brokers() as (names, a, _), Producer(names) as producer:
        queue = next(each for each in await producer.queues("t") if each.broker_name == a.name)
        assert len(await producer.send_arrow("t", pa.table({"body": sent}), queue=queue)) == 100
        assert [body for _, body in a.stored] == sent


async def test_all_columns() -> None:
    batch = pa.record_batch(
        {
            "text": ["x", "y"],
            "tag": ["A", None],
            "key": pa.array([["k1", "k2"], None], pa.list_(pa.string())),
            "more": pa.array([[("shop", "é"), ("UNIQ_KEY", "old")], []], pa.map_(pa.string(), pa.string())),
            "number": pa.array([7, None], pa.int16()),
            "unused": [1, 2],
        }
    )
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        results = await producer.send_arrow(
            "t", batch, body="text", tags="tag", keys="key", properties="more", flag="number"
        )
        ((first, second),) = [decode_batch(body)[0] for body in batch_requests(a, b)]
    assert (first[:2], second[:2]) == ((7, b"x"), (0, b"y"))
    found = decode_properties(first[2].decode())
    assert found == {"shop": "é", "KEYS": "k1 k2", "TAGS": "A", "UNIQ_KEY": results[0].msg_id}
    assert decode_properties(second[2].decode()) == {"UNIQ_KEY": results[1].msg_id}


async def test_one_row_and_none() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        (result,) = await producer.send_arrow("t", pa.table({"body": ["x"]}))
        assert len(await producer.send_arrow("t", pa.table({"body": pa.array([], pa.string())}))) == 0
        (request,) = a.asked(SEND_MESSAGE_V2.code) + b.asked(SEND_MESSAGE_V2.code)
        assert request.body == b"x" and result.msg_id in (request.ext or {})["i"]


async def test_large_bodies_are_requests_of_their_own() -> None:
    large = b"x" * 200_000
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        assert len(await producer.send_arrow("t", pa.table({"body": [large, b"y", large, large]}))) == 4
        assert sorted(bodies(a, b)) == sorted([large, b"y", large, large])
        assert a.requests_of + b.requests_of == 3


async def test_one_queue_keeps_the_order() -> None:
    sent = [b"%d" % n for n in range(6_000)]
    async with two_brokers() as (names, a, _), Producer(names) as producer:
        queue = next(each for each in await producer.queues("t") if each.broker_name == a.name)
        results = await producer.send_arrow("t", pa.table({"body": sent}), queue=queue)
        assert a.stored == [(queue.queue_id, body) for body in sent]
        assert {result.queue for result in results} == {queue}
        with pytest.raises(InvalidArgument, match="queue must be a queue of topic 't'"):
            await producer.send_arrow("t", pa.table({"body": ["x"]}), queue=MessageQueue("u", a.name, 0))


async def test_a_bad_row_keeps_all_from_being_sent() -> None:
    table = pa.table({"body": ["x"] * 30_000 + [None]})
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        with pytest.raises(InvalidArgument, match="row 30000, column 'body': it is null"):
            await producer.send_arrow("t", table)
        with pytest.raises(InvalidArgument, match="row 0, column 'body': 5 bytes are more than 4"):
            async with Producer(names, max_message_bytes=4) as small:
                await small.send_arrow("t", pa.table({"body": ["12345"]}))
        assert a.requests_of + b.requests_of == 0


async def test_a_retry_sends_the_same_bytes() -> None:
    async with two_brokers() as (names, a, b), Producer(names, send_timeout_ms=300) as producer:
        a.is_silent = b.is_silent = True
        with pytest.raises(SendFailed):
            await producer.send_arrow("t", pa.table({"body": ["x", "y"]}))
        tries = batch_requests(a, b)
        assert len(tries) > 1 and len(set(tries)) == 1


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    async with two_brokers() as (names, _, _b), Producer(names) as producer:
        table = pa.table({"body": ["x"]})
        monkeypatch.setitem(sys.modules, package, None)
        said = rf"send_arrow needs Skylark's extra arrow \(.*{package}"
        with pytest.raises(UserError, match=said):
            await producer.send_arrow("t", table)


def test_rows_that_are_encoded_already() -> None:
    head = b"UNIQ_KEY\x01" + b"0" * 28
    rows = [(number, b"x" * number, b"a\x01b\x02%s%04X\x02" % (head, 65_535 + number & 0xFFFF)) for number in range(3)]
    encoded = EncodedRows(encode_batch(rows), 3, head, 65_535)
    assert list(encoded) == encoded[:] == rows and encoded[-1] == rows[-1] and len(encoded) == 3
    encoded.drop_bodies()
    assert [unique_key(encoded[number]) for number in (0, 1, -1)] == [unique_key(rows[number]) for number in (0, 1, 2)]
    assert list(map(unique_key, encoded)) == list(map(unique_key, encoded[:])) == list(map(unique_key, rows))
    with pytest.raises(IndexError):
        encoded[3]
