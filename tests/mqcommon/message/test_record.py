"""Records: the golden one, round trips, and what is no record."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.layout import MAGIC_V2
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.record import decode_record, encode_record, topic_field

VECTORS = json.loads((Path(__file__).parents[2] / "golden/vectors.json").read_text())
GOLDEN = bytes.fromhex(VECTORS["record_v1"]["hex"])

hosts = st.sampled_from([encode_host("127.0.0.1", 10911), encode_host("::1", 65535)])
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    born, store = draw(hosts), draw(hosts)
    sys_flag = (BORN_HOST_V6 if len(born) > 8 else 0) | (STORE_HOST_V6 if len(store) > 8 else 0)
    topic = draw(st.text("abcXYZ_-%|09", min_size=1, max_size=200))
    return encode_record(
        *topic_field(topic),
        draw(int32), draw(int64), draw(int64), draw(st.binary(max_size=300)), draw(st.binary(max_size=100)),
        draw(int32), sys_flag, draw(int64), born, draw(int64), store, draw(int32), draw(int64),
    )  # fmt: skip


def encoded_again(raw: bytes) -> bytes:
    record = decode_record(raw)
    return encode_record(
        *topic_field(record.topic), record.queue_id, record.queue_offset, record.physical_offset, record.body,
        record.properties, record.flag, record.sys_flag, record.born_timestamp, record.born_host,
        record.store_timestamp, record.store_host, record.reconsume_times, record.prepared_transaction_offset,
    )  # fmt: skip


def test_the_golden_record() -> None:
    message = MessageExt(GOLDEN, 0, "broker-a")
    expected = VECTORS["record_v1"]
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 3, 7)
    assert message.physical_offset == expected["physicalOffset"]
    assert (message.born_timestamp, message.store_timestamp) == (expected["bornTimestamp"], expected["storeTimestamp"])
    assert message.born_host == message.store_host == expected["host"]
    assert message.body == b"hello" and message.properties == expected["properties"]
    assert message.offset_msg_id == VECTORS["offsetMsgId"]
    assert message.msg_id == expected["properties"]["UNIQ_KEY"]
    assert encoded_again(GOLDEN) == GOLDEN


@given(records())
def test_a_record_survives_decoding(raw: bytes) -> None:
    assert encoded_again(raw) == raw
    message = MessageExt(raw, 0, "")
    assert message.body == decode_record(raw).body, "the short way to the body gives the same"


@given(st.lists(records(), max_size=5))
def test_records_one_after_another(raws: list[bytes]) -> None:
    data = b"".join(raws)
    starts = [*record_starts(data), len(data)]
    assert [data[start:end] for start, end in pairwise(starts)] == raws
    assert [message.record for message in decode_messages(data)] == [decode_record(raw) for raw in raws]


@given(st.binary(max_size=300))
def test_garbage_is_one_error(data: bytes) -> None:
    for decode in (decode_record, decode_messages):
        try:
            decode(data)
        except ProtocolError:
            continue
        assert not data


@given(records(), st.data())
def test_a_damaged_record_is_one_error_or_still_a_record(raw: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(raw) - 1))
    damaged = raw[:at] + bytes((raw[at] ^ data.draw(st.integers(1, 255)),)) + raw[at + 1 :]
    try:
        decode_record(damaged)
    except ProtocolError:
        return
    body_at = raw.find(decode_record(raw).body) if decode_record(raw).body else len(raw)
    assert not body_at <= at < body_at + len(decode_record(raw).body) or raw.count(decode_record(raw).body) > 1


@given(records(), st.integers(1, 400))
def test_a_cut_record_is_an_error(raw: bytes, cut: int) -> None:
    with pytest.raises(ProtocolError):
        decode_record(raw[: max(len(raw) - cut, 0)])


def test_long_topics_make_v2_records() -> None:
    assert topic_field("t" * 128)[0] == MAGIC_V2


def test_compression_that_is_not_known_is_said() -> None:
    new = encode_record(*topic_field("t"), 0, 0, 0, b"x", b"", 0, COMPRESSED | 0x400, 0, bytes(8), 0, bytes(8), 0, 0)
    with pytest.raises(ProtocolError, match="compressed in a way that is not known"):
        _ = MessageExt(new, 0, "").body


def test_a_record_is_read_within_a_buffer_that_is_not_bytes() -> None:
    data = bytearray(b"before" + GOLDEN + b"after")
    record = decode_record(memoryview(data), len(b"before"))
    data[:] = bytes(len(data))
    assert record == decode_record(GOLDEN), "it has no part of the buffer, which may change"
