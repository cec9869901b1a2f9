"""Header blocks; hpack's decoder is the judge: the same headers, or both refuse."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.http2 import huffman
from skylark.remoting.http2.errors import ErrorCode, Http2Error
from skylark.remoting.http2.header_blocks import TOO_LARGE, HeaderDecoder, Headers, block
from tests import golden
from tests.remoting.http2.peer import HEAD, REQUEST

RECORDED = Path(golden.__file__).parent / "http2" / "grpcio-1.85.3.jsonl"
TABLE_BYTES, LIST_BYTES = 4_096, 16_384

names = st.sampled_from(["grpc-timeout", "x-mq-request-id", "authorization", ":path", "te", "Bad", ""]) | st.text(
    st.characters(max_codepoint=0xFF), max_size=20
)
values = st.sampled_from(["trailers", "3S", "", "v" * 127, "w" * 300]) | st.text(
    st.characters(max_codepoint=0xFF), max_size=20
)
fields = st.tuples(names, values)


def recorded(kind: str) -> list[bytes]:
    """Blocks of one connection of grpcio's client, in order; each call has a new time, id and timeout."""
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    return [bytes.fromhex(row["hex"]) for row in rows if row["name"].startswith(kind)]


def joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """What the judge read, in our form."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    # A repeated pseudo header is malformed anyway: the first value stays.
    return {name: each[0] if name in PSEUDO else ",".join(each) for name, each in found.items()}


PSEUDO = (":method", ":scheme", ":path", ":authority")


class Judged:
    """Our decoder and hpack's, which read the same blocks."""

    def __init__(self) -> None:
        self.ours, self.judge = HeaderDecoder(TABLE_BYTES, LIST_BYTES), Decoder(LIST_BYTES)

    def decode(self, data: bytes) -> Headers | None:
        """The block as both read it; None: both refuse it."""
        try:
            expected = joined(self.judge.decode(data, raw=True))
        except OversizedHeaderListError:
            # The judge reads no further; this decoder keeps its table right, so that the next request is served.
            assert self.ours.decode(data).request_fault is TOO_LARGE
            return None
        except HPACKError:
            with pytest.raises(Http2Error):
                self.ours.decode(data)
            return None
        found = self.ours.decode(data)
        assert found.values == expected
        return found


def test_a_block_is_counted_as_http2_counts_it() -> None:
    data = block([(":path", "/t"), ("x", ""), ("x", "ab")])
    decoder = HeaderDecoder(TABLE_BYTES, LIST_BYTES)
    assert [decoder.decode(data).size_bytes for _ in range(2)] == [7 + 1 + 3 + 3 * 32] * 2


@pytest.mark.parametrize("kind", ["signed", "unsigned"])
def test_blocks_of_grpcs_client_are_read(kind: str) -> None:
    judged = Judged()
    blocks = recorded(kind)
    assert len(blocks) == 24
    for one in blocks:
        headers = judged.decode(one)
        assert headers is not None
        assert headers.request_fault == ""
        assert headers.values[":path"] == "/apache.rocketmq.v2.MessagingService/SendMessage"


# Headers, whether they are compressed, and the new size of the table.
encoded = st.tuples(st.lists(fields, max_size=6), st.booleans(), st.sampled_from([None, 0, 100, 4_096]))


@given(st.lists(encoded))
def test_encoded_headers_are_read_as_by_hpack(sent: list[tuple[list[tuple[str, str]], bool, int | None]]) -> None:
    encoder, judged = Encoder(), Judged()
    for headers, is_compressed, table_bytes in sent:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        assert judged.decode(encoder.encode(pairs, huffman=is_compressed)) is not None


PIECES = [
    *(b"\x82", b"\xbe", b"\xbf", b"\xff\x00", b"\x80", b"\x7e\1c", b"\0\1a\1b", b"\x0f\x2f\1d", b"\x10\1a\1b"),
    *(b"\x40\1a\1b", b"\x40\1a\x82\x1f\x8f", b"\x41\3abc", b"\x40\x81\x1f\1b", b"\0\x7f\0" + b"n" * 127 + b"\1b"),
    # Sizes of the table: 0, the largest, and one more.
    *(b"\x20", b"\x3f\xe1\x1f", b"\x3f\xe2\x1f"),
    # Long numbers, and one that is too long.
    *(b"\x3f\x80\x80\x80\x80\x10", b"\0\x7f\x80\x80\x80\x80\0" + b"n" * 127 + b"\1b"),
    b"\0\x7f\x80\x80\x80\x80\x80\0" + b"n" * 127 + b"\1b",
    # Long names that begin alike.
    *(b"\0\x7f\x10" + b"n" * 142 + last + b"\1b" for last in (b"a", b"b")),
]


@pytest.mark.parametrize("first", PIECES)
def test_fields_are_read_or_refused_as_by_hpack(first: bytes) -> None:
    for second in PIECES:
        judged = Judged()
        for one in (first, first, second, first + second, first):
            if judged.decode(one) is None:
                break


def test_a_table_that_is_too_large_for_a_moment_is_refused() -> None:
    assert Judged().decode(b"\x3f\xe2\x1f\x20") is None


@given(st.lists(st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=8).map(b"".join), max_size=5))
def test_any_bytes_are_read_or_refused_as_by_hpack(blocks: list[bytes]) -> None:
    judged = Judged()
    for one in blocks:
        if judged.decode(one) is None:
            break


@given(st.data())
def test_broken_blocks_of_grpcs_client_are_read_or_refused_as_by_hpack(data: st.DataObject) -> None:
    judged = Judged()
    for one in recorded("signed")[:4]:
        changed = bytearray(one)
        for at, byte in data.draw(
            st.dictionaries(st.integers(0, len(one) - 1), st.integers(0, 255), max_size=2)
        ).items():
            changed[at] = byte
        if judged.decode(bytes(changed)) is None:
            break


@given(st.binary(max_size=40))
def test_compressed_texts_are_read_again(data: bytes) -> None:
    compressed = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(data)
    assert huffman.decode(compressed) == data.decode("latin-1")


@pytest.mark.parametrize("data", [b"\xff", b"\xff" * 4, b"\0\0\0", b"\x1f\xff"])
def test_compressed_texts_end_within_a_byte_with_ones(data: bytes) -> None:
    with pytest.raises(ValueError, match="a compressed text"):
        huffman.decode(data)


def test_a_block_is_decoded_once_while_the_table_stays() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(TABLE_BYTES, LIST_BYTES)
    decoder.decode(encoder.encode(REQUEST))
    again = encoder.encode(REQUEST)
    assert decoder.decode(again) is decoder.decode(again)
    before = decoder.decode(again)
    # A new entry moves the others: the same bytes would now mean other headers.
    decoder.decode(encoder.encode([("key", "value")]))
    assert decoder.decode(again) is not before


def test_a_table_must_shrink_to_a_new_limit() -> None:
    decoder = HeaderDecoder(TABLE_BYTES, LIST_BYTES)
    decoder.decode(Encoder().encode(REQUEST))
    decoder.limit_table(100)
    with pytest.raises(Http2Error, match="cannot be decoded") as refused:
        decoder.decode(b"\x82")
    assert refused.value.code == ErrorCode.COMPRESSION_ERROR
    assert decoder.decode(b"\x3f\x45\x82").values == {":method": "GET"}


def test_prepared_blocks_change_no_table() -> None:
    decoder = Decoder()
    for _ in range(2):
        assert decoder.decode(block([*HEAD, ("long", "v" * 1_000), ("exact", "v" * 127)])) == [
            *HEAD, ("long", "v" * 1_000), ("exact", "v" * 127)
        ]  # fmt: skip
    assert not decoder.header_table.dynamic_entries
