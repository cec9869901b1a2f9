"""HTTP/2 of gRPC calls without a network: header blocks and whole calls beside hpack and h2.

    python -m bench.header_blocks [--json] [--rounds N]

The blocks were recorded from grpcio's client (tests/golden/http2): 24 calls of one connection, each with a new date,
request id and timeout; signed calls have a new signature, too. Go's and Node's clients compress texts and add new
values to the dynamic table: hpack's encoder makes their blocks from the same headers. The limit decodes with hpack, or
is h2 for whole calls: requests of 200 bytes in one read, and their answers. These are 24 requests, signed or unsigned;
with equal blocks 64.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived as H2Request
from hpack import Decoder, Encoder

from bench.harness import Row, command, row
from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.events import RequestReceived
from skylark.remoting.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, frame, settings
from skylark.remoting.http2.header_blocks import HeaderDecoder, Headers, block
from skylark.remoting.http2.limits import Http2Limits

RECORDED = Path(__file__).parents[1] / "tests" / "golden" / "http2" / "grpcio-1.85.3.jsonl"
REQUEST, ANSWER = bytes(205), bytes(35)
HEAD, TRAILERS = [(":status", "200"), ("content-type", "application/grpc")], [("grpc-status", "0")]
HEAD_BLOCK, TRAILERS_BLOCK = block(HEAD), block(TRAILERS)


class HpackDecoder:
    """hpack in the place of `HeaderDecoder`."""

    def __init__(self) -> None:
        self._decoder = Decoder()

    def limit_table(self, max_table_bytes: int) -> None:
        self._decoder.max_allowed_table_size = max_table_bytes

    def decode(self, data: bytes) -> Headers:
        fields = self._decoder.decode(data, raw=True)
        return Headers({name.decode("latin-1"): value.decode("latin-1") for name, value in fields}, "", "", 0)


def recorded(kind: str) -> list[bytes]:
    rows = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return [bytes.fromhex(each["hex"]) for each in rows if each["name"].startswith(kind)]


def compressed(blocks: list[bytes]) -> list[bytes]:
    decoder, encoder = Decoder(), Encoder()
    return [encoder.encode(decoder.decode(each), huffman=True) for each in blocks]


def one_read(blocks: list[bytes]) -> bytes:
    """Unary calls, in one connection's first bytes."""
    calls = [
        frame(HEADERS, END_HEADERS, stream_id, each) + frame(DATA, END_STREAM, stream_id, REQUEST)
        for stream_id, each in zip(itertools.count(1, 2), blocks)
    ]
    return b"".join((PREFACE, settings([]), *calls))


def micros(work: Callable[[], object], count: int) -> float:
    """Microseconds of the processor for each of ``count``: the fastest of 20 times."""
    best = float("inf")
    for _ in range(20):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best / count * 1e6


def decoded_by(make: Callable[[], HeaderDecoder | HpackDecoder], blocks: list[bytes]) -> None:
    decoder = make()
    for each in blocks:
        decoder.decode(each)


def served(sent: bytes, make: Callable[[], HpackDecoder] | None = None) -> None:
    connection = ServerConnection(Http2Limits())
    if make is not None:
        connection._decoder = make()  # type: ignore[assignment]  # the library in place of our cache
    for event in connection.receive(sent, 0.0):
        if isinstance(event, RequestReceived):
            connection.respond(event.stream_id, HEAD_BLOCK, ANSWER, TRAILERS_BLOCK)
    b"".join(connection.take())


def served_by_h2(sent: bytes) -> None:
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    for event in connection.receive_data(sent):
        if isinstance(event, H2Request):
            assert event.stream_id is not None
            connection.send_headers(event.stream_id, HEAD)
            connection.send_data(event.stream_id, ANSWER)
            connection.send_headers(event.stream_id, TRAILERS, end_stream=True)
    connection.data_to_send()


def rows(rounds: int) -> Iterator[Row]:
    signed, unsigned = recorded("signed"), recorded("unsigned")
    fields = Decoder().decode(unsigned[0], raw=True)
    equal = [block((name.decode(), value.decode()) for name, value in fields)] * 64
    for name, blocks in (
        ("signed", signed),
        ("unsigned", unsigned),
        ("signed, compressed", compressed(signed)),
        ("unsigned, compressed", compressed(unsigned)),
    ):
        yield measured(
            f"a header block, {name}; limit: hpack",
            partial(decoded_by, lambda: HeaderDecoder(4_096, 16_384), blocks),
            partial(decoded_by, HpackDecoder, blocks),
            len(blocks),
            rounds,
        )
    for name, blocks in (("signed", signed), ("unsigned", unsigned), ("of equal blocks", equal)):
        ours = partial(served, one_read(blocks))
        for limit, served_so in (("hpack", partial(served, make=HpackDecoder)), ("h2", served_by_h2)):
            theirs = partial(served_so, one_read(blocks))
            yield measured(f"whole calls, {name}; limit: {limit}", ours, theirs, len(blocks), rounds)


def measured(name: str, ours: Callable[[], None], limit: Callable[[], None], count: int, rounds: int) -> Row:
    """Both sides in turn; ``count`` calls or blocks each time."""
    pairs = [(micros(ours, count), micros(limit, count)) for _ in range(rounds)]
    return row(name, "us", [one for one, _ in pairs], [other for _, other in pairs], count, smaller_is_better=True)


if __name__ == "__main__":
    command(__doc__ or "", 5, rows)
