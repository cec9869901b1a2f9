"""Batches of messages, whole and damaged."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import decode_batch, encode_batch
from skylark.mqcommon.message.columns import MIN_RUN

MESSAGES = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=50), st.binary(max_size=20)), max_size=6)


# Messages of one shape, as most producers send: they are decoded together.
ALIKE = st.builds(
    lambda flags, body, properties: [
        (flag, bytes([number % 256]) * body, bytes([number % 7]) * properties) for number, flag in enumerate(flags)
    ],
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=MIN_RUN - 1, max_size=3 * MIN_RUN),
    st.integers(0, 300),
    st.integers(0, 300),
)


@given(ALIKE, st.integers(1, 4 * MIN_RUN), MESSAGES)
def test_messages_of_one_shape(
    messages: list[tuple[int, bytes, bytes]], most: int, others: list[tuple[int, bytes, bytes]]
) -> None:
    """From any place on, with any limit, and with other messages before or after them."""
    before, data = encode_batch(others), encode_batch(messages)
    some = messages[:most]
    assert decode_batch(before + data, len(before), most) == (some, len(before) + len(encode_batch(some)))
    assert decode_batch(data + before) == (messages + others, len(data + before))


@given(ALIKE, st.data())
def test_one_byte_more_or_less_among_messages_of_one_shape(
    messages: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    """Whatever is changed, what is decoded is what is there."""
    raw = bytearray(encode_batch(messages))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        rows, end = decode_batch(bytes(raw))
        again = bytearray(encode_batch(rows))
        at = 0
        for _, body, properties in rows:
            raw[at + 4 : at + 12] = bytes(8)  # magic and CRC are not read
            at += 22 + len(body) + len(properties)
        assert (again, end) == (raw, len(raw))


@given(MESSAGES)
def test_a_batch_comes_back(messages: list[tuple[int, bytes, bytes]]) -> None:
    data = encode_batch(messages)
    assert decode_batch(data) == (messages, len(data)) or not messages


@given(MESSAGES, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=4), st.integers(0, 500))
def test_a_damaged_batch_is_refused_or_read(
    messages: list[tuple[int, bytes, bytes]], changes: list[tuple[int, int]], end: int
) -> None:
    data = bytearray(encode_batch(messages))
    for at, value in changes:
        if at < len(data):
            data[at] = value
    with suppress(ProtocolError):
        decode_batch(bytes(data[: end or None]))


@pytest.mark.parametrize("more", [-1, 1])
def test_a_first_message_whose_properties_have_another_length_than_it_says_is_refused(more: int) -> None:
    size = len(encode_batch([(7, b"body", b"p")]))
    raw = bytearray(encode_batch([(7, b"body", b"p")] * MIN_RUN))
    raw[size - 2] += more
    with pytest.raises(ProtocolError):
        decode_batch(bytes(raw))
