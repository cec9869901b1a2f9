"""Batches of messages, whole and damaged."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import ProtocolError
from mqcommon.message.batch import decode_batch, encode_batch

MESSAGES = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=50), st.binary(max_size=20)), max_size=6)


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
