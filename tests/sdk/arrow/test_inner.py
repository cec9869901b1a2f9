"""Inner batches as columns: the same rows as those of the SDK's messages; damage names its record."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import ProtocolError
from mqcommon.message.columns import DamagedRecord
from mqcommon.message.compression import COMPRESSIONS
from mqcommon.message.layout import HEAD_V4
from mqcommon.message.message import decode_messages
from sdk.arrow import inner
from sdk.arrow.decode import TooMuchContent, check_order, decode
from sdk.arrow.inner import holds_batches, unwrapped
from sdk.arrow.records import Records
from tests.sdk.arrow.records import HOST, PROPERTIES, Stored
from tests.sdk.arrow.test_decode import ALL, plain, rows
from tests.support.inner import inner_batch, rows_of

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


def decoded(data: bytes, low: int = 0, high: int | None = None) -> list[dict[str, Any]]:
    messages, _ = unwrapped(Records(data))
    check_order(messages)
    batch = decode(messages.part(low, len(messages) if high is None else high), "broker-a", ALL)
    batch.validate(full=True)
    return rows(batch)


@given(buffers(), st.data())
def test_rows_are_those_of_the_messages(data: bytes, choice: st.DataObject) -> None:
    expected = [plain(message) for message in decode_messages(data, "broker-a")]
    assert decoded(data) == expected
    low = choice.draw(st.integers(0, len(expected)))
    high = choice.draw(st.integers(low, len(expected)))
    assert decoded(data, low, high) == expected[low:high]
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
def test_damage_is_reported_or_harmless_but_never_another_exception(
    data: bytes, changes: list[tuple[int, int]]
) -> None:
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
    monkeypatch.setattr(inner, "CONTENT_BYTES", 5_000)
    parts = [inner_batch([(0, bytes(2_000), b"")], at, compression="zlib") for at in range(3)]
    assert len(unwrapped(Records(b"".join(parts[:2])))[0]) == 2
    with pytest.raises(TooMuchContent):
        unwrapped(Records(b"".join(parts)))
    monkeypatch.setattr(inner, "CONTENT_BYTES", 1)
    assert np.array_equal(unwrapped(Records(parts[2]))[0].body_lengths, [2_000])
