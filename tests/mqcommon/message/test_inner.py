"""Inner batches: their messages are those that were put in, at their offsets; damage is refused."""

import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message import inner
from skylark.mqcommon.message.columns import MIN_RUN, record_starts
from skylark.mqcommon.message.compression import COMPRESSIONS
from skylark.mqcommon.message.flags import INNER_BATCH, WRAPPED
from skylark.mqcommon.message.ids import offset_msg_id
from skylark.mqcommon.message.inner import inner_count, may_hold_batches
from skylark.mqcommon.message.layout import CRC_MASK, HEAD_V4
from skylark.mqcommon.message.message import MessageExt, decode_messages, packed_in
from skylark.mqcommon.message.properties import decode_properties
from skylark.mqcommon.message.record import decode_record
from tests.support.inner import BORN_HOST, STORED_MS, Row, inner_batch, rows_of

PROPERTIES = st.lists(
    st.tuples(
        st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "own"]), st.text(st.characters(codec="ascii", min_codepoint=32))
    )
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode())
ROWS = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=30), PROPERTIES), min_size=1, max_size=5)
HOSTS = st.sampled_from([BORN_HOST, bytes(range(20))])
PLACE = HEAD_V4.places("sys_flag")[-1]


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[bytes, int, list[Row]]]:
    """(record, first offset, rows) of batches that follow one another."""
    found, offset = [], draw(st.integers(0, 2**40))
    for number in range(draw(st.integers(1, 5))):
        rows = draw(ROWS)
        raw = inner_batch(
            rows, offset, topic=draw(st.sampled_from(["t", "é", "t" * 200])), queue_id=3, physical=1000 * number,
            compression=draw(st.sampled_from([None, *COMPRESSIONS])), born_host=draw(HOSTS), store_host=draw(HOSTS),
        )  # fmt: skip
        found.append((raw, offset, rows))
        offset += len(rows)
    return found


def seen(message: MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic, "place": (message.queue_id, message.queue_offset, message.physical_offset),
        "flag": message.flag, "sys_flag": message.sys_flag & 0xFCF, "body": message.body,
        "properties": message.properties, "msg_id": message.msg_id, "offset_msg_id": message.offset_msg_id,
        "times": (message.born_timestamp, message.store_timestamp), "born_host": message.record.born_host,
        "others": (message.broker_name, message.is_inner, message.reconsume_times),
    }  # fmt: skip


def expected(raw: bytes, offset: int, rows: list[Row]) -> list[dict[str, Any]]:
    """The messages that a plain reading of the batch gives."""
    whole = decode_record(raw)
    found = []
    for number, (flag, body, text) in enumerate(rows):
        properties = decode_properties(text.decode())
        place_id = offset_msg_id(whole.store_host, whole.physical_offset)
        found.append({
            "topic": whole.topic, "place": (3, offset + number, whole.physical_offset), "flag": flag, "sys_flag": 0,
            "body": body, "properties": properties, "msg_id": properties.get("UNIQ_KEY") or place_id,
            "offset_msg_id": place_id, "times": (STORED_MS - 1, STORED_MS), "born_host": whole.born_host,
            "others": ("b", True, 0),
        })  # fmt: skip
    return found


@given(batches(), st.integers(0, 12))
def test_messages_of_batches_are_those_of_the_plain_encoder(
    stored: list[tuple[bytes, int, list[Row]]], skipped: int
) -> None:
    data = b"".join([raw for raw, _, _ in stored])
    every = [each for one in stored for each in expected(*one)]
    assert [seen(message) for message in decode_messages(data, "b")] == every
    first = stored[0][1] + skipped
    assert [seen(message) for message in decode_messages(data, "b", first)] == every[skipped:]


def test_plain_messages_among_batches_stay_what_they_are() -> None:
    plain = bytearray(inner_batch(rows_of(1), 5))
    plain[PLACE] &= ~WRAPPED & 0xFF
    opaque = bytearray(plain)
    opaque[PLACE] |= INNER_BATCH
    data = inner_batch(rows_of(2), 3) + bytes(plain) + bytes(opaque)
    found = decode_messages(data)
    assert [(message.queue_offset, message.is_inner) for message in found] == [
        (3, True), (4, True), (5, False), (5, False),
    ]  # fmt: skip
    assert found[2].body == found[3].body == decode_record(bytes(plain)).body
    assert [message.held_bytes for message in found] == [len(data)] * 4


@pytest.mark.parametrize("more", [b"", b"longer"])
def test_batches_are_noticed_among_records_of_one_size_and_of_several(more: bytes) -> None:
    batch = inner_batch([(0, b"x", b""), (0, bytes(3000), b"")])
    plain = bytearray(batch)
    plain[PLACE] &= ~WRAPPED & 0xFF
    odd = bytearray(inner_batch([(0, b"x" + more, b""), (0, bytes(3000), b"")]))
    odd[PLACE] &= ~WRAPPED & 0xFF
    few = bytes(plain) * MIN_RUN + bytes(odd)
    assert isinstance(record_starts(few), range) is (not more)
    assert not may_hold_batches(few, record_starts(few))
    assert may_hold_batches(few + batch, record_starts(few + batch))
    assert not may_hold_batches(b"", record_starts(b""))


def test_what_a_compressed_batch_holds_is_not_compressed() -> None:
    found = decode_messages(inner_batch(rows_of(3), compression="zlib"))
    assert len(packed_in(found)) == 3  # so that what it takes is counted
    for number, message in enumerate(found):
        assert message.keep_content() == 1
        assert message.body == b"%d" % number
        message.drop_content()
        assert message.body == b"%d" % number


def test_a_message_keeps_its_offset_when_its_topic_is_replaced() -> None:
    _, second = decode_messages(inner_batch(rows_of(2), 7))
    second.show_topic("other")
    second.count_failure()
    assert (second.topic, second.queue_offset, second.reconsume_times) == ("other", 8, 1)


def changed(raw: bytes, at: int, value: bytes) -> bytes:
    """The batch with other bytes at ``at`` of its body, and their CRC."""
    record = decode_record(raw)
    body = record.body[:at] + value + record.body[at + len(value) :]
    crc = (zlib.crc32(body) & CRC_MASK).to_bytes(4, "big")
    return (raw[:8] + crc + raw[12:]).replace(record.body, body)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (inner_batch(rows_of(4), 9, count=2), "queue offset 9 is damaged: it holds more than 2 messages"),
        (inner_batch(rows_of(3), count=4), "it holds 3 messages where its property INNER_NUM says 4"),
        (inner_batch([], count=0), "INNER_NUM is b'0', not a number from 1 to 32767"),
        (inner_batch(rows_of(1), count=32_768), "not a number from 1"),
        (inner_batch(rows_of(1), count=-1), "not a number from 1"),
        (changed(inner_batch(rows_of(2)), 0, b"\x7f\xff\xff\xff"), "message 0 of the batch does not add up"),
        (changed(inner_batch(rows_of(2)), 0, b"\x80\0\0\0"), "message 0 of the batch does not add up"),
        (changed(inner_batch(rows_of(2)), 16, b"\x7f\xff\xff\xff"), "the batch ends within message 0"),
        (changed(inner_batch(rows_of(2)), 16, b"\xff\xff\xff\xff"), "message 0 of the batch does not add up"),
        (inner_batch(rows_of(2)).replace(b"INNER_NUM", b"INNER_NUX"), "INNER_NUM is b''"),
    ],
)
def test_damage_is_named(raw: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_messages(raw)


def test_a_damaged_body_fails_its_crc() -> None:
    raw = bytearray(inner_batch(rows_of(2)))
    raw[HEAD_V4.size + 20] ^= 1
    with pytest.raises(ProtocolError, match="CRC"):
        decode_messages(bytes(raw))


def test_what_compressed_batches_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner, "CONTENT_BYTES", 5_000)
    one = inner_batch([(0, bytes(2_000), b"")], compression="zlib")
    assert len(decode_messages(one * 2)) == 2
    with pytest.raises(ProtocolError, match="hold more than 5000 bytes"):
        decode_messages(one * 3)
    assert len(decode_messages(inner_batch([(0, bytes(6_000), b"")]))) == 1


def test_how_many_messages_a_record_stands_for() -> None:
    raw = bytearray(inner_batch(rows_of(3)))
    assert inner_count(decode_record(bytes(raw))) == 3
    raw[PLACE] &= ~WRAPPED & 0xFF
    assert inner_count(decode_record(bytes(raw))) == 1


@given(batches(), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_refused_or_read(stored: list[tuple[bytes, int, list[Row]]], changes: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join([raw for raw, _, _ in stored]))
    for at, value in changes:
        data[at % len(data)] = value
    with suppress(ProtocolError):
        for message in decode_messages(bytes(data)):
            str(message)
