import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.mqcommon.errors import InvalidArgument, ProtocolError
from skylark.mqcommon.message.columns import DamagedRecord
from skylark.mqcommon.message.compression import COMPRESSIONS
from skylark.mqcommon.message.flags import COMPRESSED, WRAPPED
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.sdk.arrow import decode as decoding
from skylark.sdk.arrow.decode import (
    TooMuchContent,
    check_bodies,
    check_order,
    decode,
    holds_batches,
    record_batch,
    unwrapped,
)
from skylark.sdk.arrow.records import Records
from skylark.sdk.arrow.schema import COLUMNS, MAX_TIME_MS, USUAL, microseconds, schema_of
from tests.sdk.arrow.records import BUFFERS, HOST, PROPERTIES, Stored
from tests.support.inner import inner_batch, rows_of

ALL = schema_of(tuple(COLUMNS))
GOLDEN = (
    "000000a5daa320a73610a686000000030000000000000000000000070000000000001000000000000000018bcfe568007f00000100002a9f"
    "0000018bcfe568017f00000100002a9f0000000000000000000000000000000568656c6c6f09546f70696354657374003c4b455953016b31"
    "0254414753015461674102554e49515f4b455901374630303030303132413939313842344141433231364535413030353030303002"
)


def decoded(data: bytes, schema: pa.Schema = ALL) -> pa.RecordBatch:
    batch = decode(Records(data), "broker-a", schema)
    batch.validate(full=True)
    assert batch.schema.equals(schema, check_metadata=True)
    return batch


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """As Python values; timestamps as microseconds."""
    columns = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns[field.name] = column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column
    return pa.table(columns).to_pylist()


def plain(message: MessageExt) -> dict[str, Any]:
    """The row of one message, by the codec that the SDK uses."""
    return {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "body": message.body,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": microseconds(message.born_timestamp),
        "storeTimestamp": microseconds(message.store_timestamp),
        "bornHost": message.born_host,
        "reconsumeTimes": message.reconsume_times,
        "properties": list(message.properties.items()),
    }


@given(BUFFERS)
@example([Stored(properties=b"UNIQ_KEY\x01ab\x02")] * 3)
@example([Stored(properties=b"TAGS\x01a"), Stored(properties=b"\x02KEYS\x01b\x02")])
@example([Stored(properties=b"TAGS\x01a\x02TAGS\x01b\x02"), Stored(), Stored(properties=b"\x01\x02KEYS\x01\x02")])
def test_decodes_to_what_a_plain_loop_does(buffer: list[Stored]) -> None:
    data = b"".join(stored.encode() for stored in buffer)
    assert rows(decoded(data)) == [plain(message) for message in decode_messages(data, "broker-a")]


@given(BUFFERS, st.data())
def test_some_rows_and_columns_are_a_part_of_all(buffer: list[Stored], data: st.DataObject) -> None:
    raw = b"".join(stored.encode() for stored in buffer)
    low = data.draw(st.integers(0, len(buffer) - 1))
    high = data.draw(st.integers(low + 1, len(buffer)))
    fields = data.draw(st.lists(st.sampled_from(list(ALL)), unique_by=lambda field: field.name, min_size=1))
    whole = decoded(raw)
    assert decoded(raw, pa.schema(fields)).equals(whole.select([field.name for field in fields]))
    part = decode(Records(raw).part(low, high), "broker-a", ALL)
    assert rows(part) == rows(whole)[low:high]
    # What is made of messages that were pulled is the same.
    found = record_batch(decode_messages(raw, "broker-a")[low:high], ALL)
    found.validate(full=True)
    assert found.equals(part)


def test_the_golden_record() -> None:
    (row,) = decoded(bytes.fromhex(GOLDEN)).to_pylist()
    born = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert row == {
        "topic": "TopicTest",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 7,
        "msgId": "7F0000012A9918B4AAC216E5A0050000",
        "offsetMsgId": "7F00000100002A9F0000000000001000",
        "keys": "k1",
        "tags": "TagA",
        "body": b"hello",
        "flag": 0,
        "sysFlag": 0,
        "bornTimestamp": born,
        "storeTimestamp": born + timedelta(milliseconds=1),
        "bornHost": "127.0.0.1:10911",
        "reconsumeTimes": 0,
        "properties": [("KEYS", "k1"), ("TAGS", "TagA"), ("UNIQ_KEY", "7F0000012A9918B4AAC216E5A0050000")],
    }


def test_the_golden_record_is_the_shared_one() -> None:
    shared = Path(__file__).resolve().parents[2] / "golden" / "vectors.json"
    assert json.loads(shared.read_text())["record_v1"]["hex"] == GOLDEN


# Microseconds and nanoseconds instead of milliseconds, and the first times that are out of pandas' range.
ODD_TIMES = [1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1, -(2**63), MAX_TIME_MS + 1, -MAX_TIME_MS - 1]


@pytest.mark.parametrize("ms", ODD_TIMES)
def test_a_time_that_python_or_pandas_does_not_have_is_null_and_costs_no_other_row(ms: int) -> None:
    odd = Stored(born_timestamp=ms, store_timestamp=ms)
    batch = decoded(odd.encode() + Stored(queue_offset=1).encode())
    for name, us in (("bornTimestamp", 0), ("storeTimestamp", 1_000)):
        assert batch.column(name).to_pylist() == [None, datetime(2023, 11, 14, 22, 13, 20, us, tzinfo=UTC)]


@pytest.mark.parametrize("ms", [MAX_TIME_MS, -MAX_TIME_MS])
def test_the_first_and_the_last_time_can_be_shown_by_pandas(ms: int) -> None:
    column = decoded(Stored(born_timestamp=ms).encode()).column("bornTimestamp")
    assert column.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_pylist() == [ms * 1_000_000]
    assert column[0].as_py() is not None


def test_a_tag_that_is_no_utf8_shows_as_the_sdk_shows_it() -> None:
    (row,) = decoded(Stored(properties=b"TAGS\x01\xff\xfe\x02").encode()).to_pylist()
    assert row["tags"] == "\ufffd\ufffd"
    assert row["properties"] == [("TAGS", "\ufffd\ufffd")]


@given(BUFFERS, st.data())
def test_damage_is_reported_or_harmless_but_never_another_exception(buffer: list[Stored], data: st.DataObject) -> None:
    raw = bytearray(b"".join(stored.encode() for stored in buffer))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        decoded(cut)
    except DamagedRecord as error:
        assert 0 <= error.at <= len(cut)


@given(BUFFERS, st.data())
def test_a_torn_buffer_is_never_shortened_in_silence(buffer: list[Stored], data: st.DataObject) -> None:
    encoded = [stored.encode() for stored in buffer]
    raw = b"".join(encoded)
    cut = data.draw(st.integers(1, len(raw) - 1))
    whole = {sum(map(len, encoded[:n])) for n in range(len(encoded))}
    if cut in whole:
        assert len(Records(raw[:cut])) in range(1, len(encoded))
    else:
        with pytest.raises(DamagedRecord):
            Records(raw[:cut])


def test_damage_names_the_row_and_the_reason() -> None:
    good = Stored().encode()
    bad = bytearray(good)
    bad[5] ^= 0xFF
    with pytest.raises(DamagedRecord, match=rf"record 1 at byte {len(good)}: its magic is not a record's magic"):
        Records(good + bytes(bad))


def test_compression_that_is_not_known_names_the_record() -> None:
    new = Stored(compressed=0x400).encode()
    with pytest.raises(DamagedRecord, match=r"record 1 at .*compressed in a way that is not known"):
        decoded(Stored().encode() + new)


def test_a_damaged_compressed_body_names_the_record() -> None:
    flagged = bytearray(Stored().encode())
    flagged[39] |= COMPRESSED
    with pytest.raises(DamagedRecord, match="record 0 at byte 0: the compressed body is damaged"):
        decoded(bytes(flagged))


def test_an_inner_batch_that_was_not_unwrapped_is_not_shown_as_one_message() -> None:
    inner = bytearray(Stored().encode())
    inner[39] |= WRAPPED
    with pytest.raises(DamagedRecord, match="BatchCQ"):
        decoded(bytes(inner))


@pytest.mark.parametrize("lengths", [[20, 20, 20], [20, 21, 20], [0, 0, 0], [20, 20, 20_000], [9_000, 9_000, 9_001]])
def test_a_flipped_bit_in_a_body_fails_its_crc(lengths: list[int]) -> None:
    # Bodies that end in zeros, which a numpy string would lose.
    raw = [Stored(body=(b"x" * length)[:-3] + bytes(min(length, 3))).encode() for length in lengths]
    check_bodies(Records(b"".join(raw)))
    check_bodies(Records(memoryview(b"".join(raw))).part(1, 3))
    for row, length in enumerate(lengths):
        if length:
            flipped = bytearray(raw[row])
            flipped[88 + length - 1] ^= 1
            at = sum(map(len, raw[:row]))
            with pytest.raises(DamagedRecord, match=f"record {row} at byte {at}: the body does not match its CRC"):
                check_bodies(Records(b"".join([*raw[:row], flipped, *raw[row + 1 :]])))


def test_queue_offsets_must_ascend() -> None:
    raw = b"".join(Stored(queue_offset=offset).encode() for offset in (3, 4, 4))
    with pytest.raises(DamagedRecord, match=r"record 2 at byte .*: queue offset 4 follows 4"):
        check_order(Records(raw))
    assert check_order(Records(raw).part(0, 2)).tolist() == [3, 4]


def test_damage_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        Records(b"\0" * 100)


def test_messages_of_several_pulls() -> None:
    parts = [b"".join(Stored(body=body).encode() for body in bodies) for bodies in ((b"a", b"b"), (b"c",))]
    found = record_batch([message for part in parts for message in decode_messages(part, "b")], ALL)
    assert found.column("body").to_pylist() == [b"a", b"b", b"c"]


def test_what_messages_say_now() -> None:
    first, second = decode_messages(Stored().encode() + Stored(reconsume_times=2).encode(), "b")
    first.show_topic("other")
    second.count_failure()
    found = record_batch([first, second], schema_of(["reconsumeTimes", "topic", "body"]))
    assert found.to_pylist() == [
        {"reconsumeTimes": 0, "topic": "other", "body": b"hello"},
        {"reconsumeTimes": 3, "topic": "bench", "body": b"hello"},
    ]


def test_messages_of_inner_batches() -> None:
    data = inner_batch(rows_of(3), 4, topic="bench") + Stored(queue_offset=7, body=b"plain").encode()
    messages = decode_messages(data, "b")
    messages[1].show_topic("other")
    found = record_batch(messages[1:], schema_of(["topic", "queueOffset", "body", "msgId", "sysFlag"])).to_pylist()
    assert [(row["topic"], row["queueOffset"], row["body"], row["sysFlag"]) for row in found] == [
        ("other", 5, b"1", 0), ("bench", 6, b"2", 0), ("bench", 7, b"plain", 0),
    ]  # fmt: skip
    assert [row["msgId"] for row in found] == [message.msg_id for message in messages[1:]]


def test_a_body_that_was_decompressed_is_not_again() -> None:
    (message,) = decode_messages(Stored(compressed=0, body=b"x" * 100).encode(), "b")
    message._content = b"kept"
    assert record_batch([message], schema_of(["body"])).column("body").to_pylist() == [b"kept"]


def test_columns() -> None:
    assert schema_of(None).names == list(USUAL)
    assert "properties" not in USUAL and len(USUAL) == 15
    wanted: list[tuple[list[Any], str]] = [
        (["body", "text"], r"columns\[1\] is 'text'; a message has topic, brokerName"),
        (["body", "body"], r"columns\[1\] is 'body', which is in columns before"),
    ]
    for columns, said in wanted:
        with pytest.raises(InvalidArgument, match=said):
            schema_of(columns)
    assert schema_of(["body"]) == pa.schema([("body", pa.binary())])


ROW = st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=20), PROPERTIES)
# One producer's messages are mostly of one size.
ROWS = st.one_of(
    st.lists(ROW, min_size=1, max_size=6), st.builds(lambda row, count: [row] * count, ROW, st.integers(1, 9))
)


@st.composite
def buffers(draw: st.DrawFn) -> bytes:
    """Batches and plain records that follow one another."""
    parts, offset = [], draw(st.integers(0, 2**40))
    for number in range(draw(st.integers(1, 5))):
        if number and draw(st.booleans()):
            parts.append(Stored(queue_offset=offset, properties=draw(PROPERTIES), born_host=draw(HOST)).encode())
            offset += 1
            continue
        messages = draw(ROWS)
        parts.append(inner_batch(
            messages, offset, topic=draw(st.sampled_from(["bench", "t" * 200])), physical=number,
            compression=draw(st.sampled_from([None, None, *COMPRESSIONS])), born_host=draw(HOST), store_host=draw(HOST),
        ))  # fmt: skip
        offset += len(messages)
    return b"".join(parts)


def decoded_batches(data: bytes, low: int = 0, high: int | None = None) -> list[dict[str, Any]]:
    messages, _ = unwrapped(Records(data))
    check_order(messages)
    batch = decode(messages.part(low, len(messages) if high is None else high), "broker-a", ALL)
    batch.validate(full=True)
    return rows(batch)


@given(buffers(), st.data())
def test_rows_are_those_of_the_messages(data: bytes, choice: st.DataObject) -> None:
    expected = [plain(message) for message in decode_messages(data, "broker-a")]
    assert decoded_batches(data) == expected
    low = choice.draw(st.integers(0, len(expected)))
    high = choice.draw(st.integers(low, len(expected)))
    assert decoded_batches(data, low, high) == expected[low:high]
    view = memoryview(b"before" + data)
    heads = Records(data)
    placed = Records(view, heads.starts + len(b"before"))
    assert rows(decode(unwrapped(placed)[0], "broker-a", ALL)) == expected


def test_each_row_knows_the_record_that_it_comes_from() -> None:
    data = Stored(queue_offset=0).encode() + inner_batch(rows_of(3), 1) + Stored(queue_offset=4).encode()
    messages, which = unwrapped(Records(data))
    assert which.tolist() == [0, 1, 1, 1, 2]
    assert check_order(messages).tolist() == [0, 1, 2, 3, 4]
    assert not holds_batches(Records(Stored().encode()))
    assert not holds_batches(messages)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (inner_batch(rows_of(3), count=2), "its 2 messages do not end where its body does"),
        (inner_batch(rows_of(3), count=4), "its 4 messages do not end where its body does"),
        (inner_batch([], count=0), "its property INNER_NUM is b'0'"),
        (inner_batch([*rows_of(2), (0, b"longer", b"")], count=4), "its 4 messages do not end"),
        (inner_batch([(0, b"1", b""), (0, b"22", b"")]).replace(b"\0\0\0\x18", b"\0\0\0\x01"), "a size of 1 bytes"),
        (inner_batch(rows_of(2), compression="zlib").replace(b"\x78\x5e", b"\x78\x00"), "compressed body is damaged"),
    ],
)  # fmt: skip
def test_damage_names_the_record(raw: bytes, reason: str) -> None:
    before = Stored().encode()
    with pytest.raises(DamagedRecord, match=f"record 1 at byte {len(before)}: .*{reason}"):
        unwrapped(Records(before + raw))


@given(buffers(), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_of_batches_is_reported_or_harmless(data: bytes, changes: list[tuple[int, int]]) -> None:
    raw = bytearray(data)
    for at, value in changes:
        raw[at % len(raw)] = value
    try:
        records = Records(bytes(raw))
        messages = unwrapped(records)[0] if holds_batches(records) else records
        batch = decode(messages, "broker-a", ALL)
    except DamagedRecord as error:
        assert 0 <= error.at <= len(raw)
    else:
        assert isinstance(batch, pa.RecordBatch)


def test_a_message_whose_parts_do_not_fit() -> None:
    raw = bytearray(inner_batch(rows_of(2)))
    for value, reason in ((0xFF, "the body does not fit into it"), (0, "its properties do not end where it does")):
        raw[HEAD_V4.size + 16] = 0
        raw[HEAD_V4.size + 19] = 0
        raw[HEAD_V4.size + (16 if value else 19)] = value
        with pytest.raises(DamagedRecord, match=f"record 0 .*message 0 of its batches: {reason}"):
            unwrapped(Records(bytes(raw)))
        with pytest.raises(ProtocolError):
            decode_messages(bytes(raw))


def test_what_compressed_batches_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CONTENT_BYTES", 5_000)
    parts = [inner_batch([(0, bytes(2_000), b"")], at, compression="zlib") for at in range(3)]
    assert len(unwrapped(Records(b"".join(parts[:2])))[0]) == 2
    with pytest.raises(TooMuchContent):
        unwrapped(Records(b"".join(parts)))
    monkeypatch.setattr(decoding, "CONTENT_BYTES", 1)
    assert np.array_equal(unwrapped(Records(parts[2]))[0].body_lengths, [2_000])
