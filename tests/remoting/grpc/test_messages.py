"""Messages in the bytes of a call, however these are cut."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.grpc.messages import PREFIX, MessageReader, framed, whole_message
from skylark.remoting.grpc.statuses import GrpcError, StatusCode

MAX_BYTES = 1_000
MESSAGES = st.lists(st.tuples(st.binary(max_size=200), st.booleans()), max_size=5)


def refused(data: bytes, *, gzip: bool = False) -> GrpcError:
    with pytest.raises(GrpcError) as caught:
        MessageReader(MAX_BYTES, gzip=gzip).feed(data)
    return caught.value


@given(messages=MESSAGES, data=st.data())
def test_any_cut_gives_the_same_messages(messages: list[tuple[bytes, bool]], data: st.DataObject) -> None:
    sent = b"".join(framed(message, gzip=gzip) for message, gzip in messages)
    reader = MessageReader(MAX_BYTES, gzip=True)
    at = 0
    while at < len(sent):
        size = data.draw(st.integers(1, len(sent) - at))
        reader.feed(sent[at : at + size])
        at += size
    assert list(reader.messages) == [message for message, _ in messages]
    assert reader.pending_bytes == 0
    for number, (message, _) in enumerate(messages):
        assert reader.buffered_bytes == sum(len(left) for left, _ in messages[number:])
        assert reader.take() == message
    assert reader.buffered_bytes == 0


@given(data=st.binary(max_size=100), gzip=st.booleans())
def test_any_bytes_give_messages_or_the_one_error(data: bytes, gzip: bool) -> None:
    reader = MessageReader(MAX_BYTES, gzip=gzip)
    try:
        reader.feed(data)
    except GrpcError as error:
        assert error.status in (StatusCode.INTERNAL, StatusCode.RESOURCE_EXHAUSTED)
    else:
        assert reader.buffered_bytes <= len(data)


def test_a_message_above_the_limit_is_refused_by_its_prefix() -> None:
    reader = MessageReader(MAX_BYTES)
    reader.feed(framed(bytes(MAX_BYTES)))
    assert list(reader.messages) == [bytes(MAX_BYTES)]
    error = refused(PREFIX.pack(0, MAX_BYTES + 1))
    assert error.status == StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max (1001 vs. 1000)" in error.text


def test_a_compressed_message_is_not_expanded_above_the_limit() -> None:
    bomb = framed(bytes(500_000), gzip=True)
    error = refused(bomb, gzip=True)
    assert (error.status, "(1001 vs. 1000)" in error.text) == (StatusCode.RESOURCE_EXHAUSTED, True)


def test_a_compressed_message_of_the_limit_is_read() -> None:
    reader = MessageReader(MAX_BYTES, gzip=True)
    reader.feed(framed(bytes(MAX_BYTES), gzip=True))
    assert list(reader.messages) == [bytes(MAX_BYTES)]
    assert refused(framed(bytes(MAX_BYTES + 1), gzip=True), gzip=True).status == StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "broken",
    [b"no gzip", zlib.compress(b"tea", wbits=31)[:-1], zlib.compress(b"tea", wbits=31) + b"x"],
    ids=["other bytes", "cut off", "more bytes"],
)
def test_a_broken_compressed_message_is_refused(broken: bytes) -> None:
    error = refused(PREFIX.pack(1, len(broken)) + broken, gzip=True)
    assert (error.status, "is broken" in error.text) == (StatusCode.INTERNAL, True)


@pytest.mark.parametrize(("flag", "gzip"), [(1, False), (2, True), (255, True)])
def test_a_flag_without_an_encoding_is_refused(flag: int, gzip: bool) -> None:
    assert f"flag {flag}" in refused(PREFIX.pack(flag, 0), gzip=gzip).text


def test_a_whole_message_in_one_piece_needs_no_reader() -> None:
    assert whole_message(framed(b"tea"), 3) == b"tea"
    assert whole_message(framed(b""), 0) == b""
    for odd in (b"", framed(b"tea")[:-1], framed(b"tea") + b"x", framed(b"tea", gzip=True), PREFIX.pack(1, 0)):
        assert whole_message(odd, 1_000) is None
    assert whole_message(framed(b"tea"), 2) is None
