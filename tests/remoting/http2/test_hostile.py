"""Peers that want to keep a server busy, or to fill its memory: each pattern meets a limit."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from skylark.remoting.http2.errors import ErrorCode
from skylark.remoting.http2.events import StreamReset, WindowOpened
from skylark.remoting.http2.limits import Allowance, Http2Limits
from tests.remoting.http2.peer import HEAD_BLOCK, TRAILERS_BLOCK
from tests.remoting.http2.raw import FIELDS, Raw, request
from tests.remoting.http2.test_rules import setting
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
)

CALM = ErrorCode.ENHANCE_YOUR_CALM
CANCEL = ErrorCode.CANCEL.to_bytes(4, "big")
ONE = b"\0\0\0\1"
TEN = Http2Limits(
    max_concurrent_streams=10, resets_a_second=10, useless_frames_a_second=10, settings_a_second=10, pings_a_second=10,
    priorities_a_second=10, window_updates_a_second=10,
)  # fmt: skip


Flood = Callable[[], Iterator[bytes]]


def on_each_stream(made: Callable[[int], bytes]) -> Flood:
    def flood() -> Iterator[bytes]:
        yield b""
        for stream_id in itertools.count(1, 2):
            yield made(stream_id)

    return flood


def on_one(again: bytes, first: bytes = b"") -> Flood:
    return lambda: itertools.chain([first], itertools.repeat(again))


FLOODS = {
    "rapid reset (CVE-2023-44487)": (
        on_each_stream(lambda stream: request(stream) + frame(RST_STREAM, 0, stream, CANCEL)), 10
    ),
    "resets that the server is made to send (CVE-2025-8671, CVE-2019-9514)": (
        on_each_stream(lambda stream: request(stream) + frame(WINDOW_UPDATE, 0, stream, bytes(4))), 10
    ),
    "malformed requests (CVE-2019-9516)": (
        on_each_stream(lambda stream: frame(HEADERS, END_HEADERS, stream, headers([*FIELDS, (b"", b"")]))), 10
    ),
    "more streams than allowed": (on_each_stream(request), 20),
    "resets of streams that have ended": (
        on_one(frame(RST_STREAM, 0, 1, CANCEL), first=request(1) + frame(RST_STREAM, 0, 1, CANCEL)), 10
    ),
    "pings (CVE-2019-9512)": (on_one(frame(PING, payload=bytes(8))), 10),
    "answers to no pings": (on_one(frame(PING, 1, payload=bytes(8))), 10),
    "settings (CVE-2019-9515)": (on_one(frame(SETTINGS)), 9),  # the first was in the preface
    "acknowledged settings": (on_one(frame(SETTINGS, 1)), 9),
    "priorities (CVE-2019-9513)": (on_one(frame(PRIORITY, 0, 3, bytes(5))), 10),
    "window updates, byte by byte (CVE-2019-9511)": (
        on_one(frame(WINDOW_UPDATE, 0, 1, ONE), first=setting(4, 0) + request(1)), 10
    ),
    "window updates of streams that have ended": (
        on_one(
            frame(WINDOW_UPDATE, 0, 1, ONE), first=request(1) + frame(RST_STREAM, 0, 1, CANCEL)
        ), 10,
    ),
    "empty data (CVE-2019-9518)": (on_one(frame(DATA, 0, 1), first=request(1, 0)), 10),
    "data of padding (CVE-2019-9518)": (
        on_one(frame(DATA, 8, 1, b"\1\0"), first=request(1, 0)), 10
    ),
    "empty data of a stream that has ended": (
        on_one(frame(DATA, 0, 1), first=request(1, 0) + frame(RST_STREAM, 0, 1, CANCEL)), 10
    ),
    "empty continuations (CVE-2019-9518)": (
        on_one(frame(CONTINUATION, 0, 1), first=frame(HEADERS, 0, 1)), 10
    ),
    "frames of unknown kinds": (on_one(frame(99, 0, 1)), 10),
    "goodbyes": (on_one(frame(GOAWAY, payload=bytes(8))), 10),
}  # fmt: skip


@pytest.mark.parametrize(("flood", "most"), FLOODS.values(), ids=FLOODS)
def test_a_flood_ends_the_connection(flood: Flood, most: int) -> None:
    raw = Raw(TEN)
    sent = flood()
    for _ in range(1 + most):
        raw.receive(next(sent))
    assert raw.error_of(next(sent))[0] == CALM


@pytest.mark.parametrize("one", [frame(PING, payload=bytes(8)), frame(SETTINGS), frame(99)])
def test_the_same_frames_are_served_as_time_passes(one: bytes) -> None:
    raw = Raw(TEN)
    for _ in range(100):
        raw.now_s += 0.1
        raw.receive(one)
        raw.server.take()


def test_a_client_may_cancel_all_of_its_calls_at_once() -> None:
    raw = Raw()
    streams = range(1, 2_001, 2)
    raw.receive(*map(request, streams))
    events = raw.receive(*(frame(RST_STREAM, 0, stream_id, CANCEL) for stream_id in streams))
    assert events == [StreamReset(stream_id, ErrorCode.CANCEL) for stream_id in streams]


def test_streams_beyond_the_limit_are_refused_and_the_others_served() -> None:
    raw = Raw(TEN)
    raw.receive(*map(request, range(1, 23, 2)))
    (refused,) = raw.answers()
    assert refused == (RST_STREAM, 0, 21, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))
    raw.server.respond(1, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    raw.server.take()
    raw.receive(request(23))
    assert (raw.answers(), raw.server.open_streams) == ([], 10)


def test_a_block_that_never_ends_meets_the_limit() -> None:
    """CVE-2024-27316."""
    raw = Raw()
    raw.receive(frame(HEADERS, 0, 1, headers(FIELDS)))
    piece = frame(CONTINUATION, 0, 1, bytes(1_000))
    for _ in range(65):
        raw.receive(piece)
    assert raw.server.pending_bytes <= 66_000
    assert raw.error_of(piece) == (CALM, "a header block is longer than 65536 bytes")


def test_a_block_in_small_pieces_is_bounded_by_its_bytes() -> None:
    raw = Raw()
    raw.receive(frame(HEADERS, 0, 1))
    raw.receive(*[frame(CONTINUATION, 0, 1, b"\0")] * 65_536)
    assert raw.error_of(frame(CONTINUATION, 0, 1, b"\0"))[0] == CALM


def bomb(count: int) -> bytes:
    """A block whose entry of 4,000 bytes is named again and again, one byte each time."""
    return headers(FIELDS) + b"\x40\1a\x7f\xa1\x1e" + b"v" * 4_000 + b"\xbe" * count


def test_a_small_block_of_many_headers_meets_the_limit() -> None:
    raw = Raw()
    assert raw.receive(frame(HEADERS, END_HEADERS, 1, bomb(1_000))) == []
    assert raw.answers() == [(RST_STREAM, 0, 1, CALM.to_bytes(4, "big"))]
    # The table is as the peer believes, so its next request is served.
    assert len(raw.receive(frame(HEADERS, END_HEADERS, 3, headers(FIELDS) + b"\xbe"))) == 1


def test_headers_within_the_limit_are_served() -> None:
    assert len(Raw().receive(frame(HEADERS, END_HEADERS, 1, bomb(2)))) == 1


def test_many_empty_headers_meet_the_limit() -> None:
    raw = Raw()
    assert raw.receive(frame(HEADERS, END_HEADERS, 1, b"\0\1a\0" * 600)) == []
    assert raw.answers() == [(RST_STREAM, 0, 1, CALM.to_bytes(4, "big"))]


def test_a_block_of_table_sizes_is_refused() -> None:
    assert Raw().receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x20" * 10 + headers(FIELDS)))
    raw = Raw()
    assert raw.error_of(frame(HEADERS, END_HEADERS, 1, b"\x20" * 600))[0] == ErrorCode.COMPRESSION_ERROR


def test_a_peer_that_reads_no_answers_meets_the_limit() -> None:
    """CVE-2019-9512 and 9515: the caller takes nothing while the transport is full."""
    raw = Raw(Http2Limits(max_control_bytes=1_000))
    pings = frame(PING, payload=bytes(8))
    raw.receive(*[pings] * 58)
    raw.server.take()
    raw.receive(*[pings] * 58)
    assert raw.error_of(pings) == (CALM, "the peer does not read answers to its control frames")


def test_answers_for_a_window_of_zero_are_bounded() -> None:
    raw = Raw(Http2Limits(max_unsent_bytes=10_000))
    raw.receive(setting(4, 0), request(1), request(3))
    raw.server.take()
    raw.server.respond(1, HEAD_BLOCK, bytes(6_000), TRAILERS_BLOCK)
    assert raw.server.send_data(3, bytes(4_000))
    assert not raw.server.send_data(3, bytes(2_000))
    reset = (RST_STREAM, 0, 3, CALM.to_bytes(4, "big"))
    assert raw.answers()[-1] == reset
    assert (raw.server.queued_bytes, raw.server.open_streams) == (6_000, 1)
    assert not raw.server.send_data(3, b"late")
    assert raw.receive(frame(WINDOW_UPDATE, 0, 1, b"\0\1\0\0")) == [WindowOpened(1)]
    assert (raw.server.queued_bytes, raw.server.open_streams) == (0, 0)


def test_a_window_opened_byte_by_byte_sends_no_more_frames_than_it_got() -> None:
    """CVE-2019-9511 and 9517."""
    raw = Raw()
    raw.receive(setting(4, 0), request(1))
    raw.server.respond(1, HEAD_BLOCK, bytes(10_000), TRAILERS_BLOCK)
    raw.server.take()
    raw.receive(*[frame(WINDOW_UPDATE, 0, 1, ONE)] * 100)
    assert [(answer.kind, len(answer.payload)) for answer in raw.answers()] == [(DATA, 1)] * 100


def test_windows_that_change_many_times_in_one_frame_count_once() -> None:
    raw = Raw()
    raw.receive(setting(4, 0), request(1))
    raw.server.respond(1, HEAD_BLOCK, bytes(10_000), TRAILERS_BLOCK)
    raw.server.take()
    sizes = b"".join(b"\0\4" + size.to_bytes(4, "big") for size in range(2_000))
    raw.receive(frame(SETTINGS, payload=sizes))
    assert [len(answer.payload) for answer in raw.answers() if answer.kind == DATA] == [1_999]


def test_requests_of_one_second_leave_nothing_behind() -> None:
    """The names, blocks and streams of a long connection do not add up."""
    raw = Raw()
    for stream_id in range(1, 4_001, 2):
        field = (b"key-%d" % stream_id, b"v" * 50)
        raw.receive(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, headers([*FIELDS, field])))
        raw.server.respond(stream_id, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
        raw.server.take()
    raw.receive(frame(HEADERS, END_HEADERS | END_STREAM, 4_001, headers([*FIELDS, (b"key", b"v" * 1_024)])))
    raw.server.take()
    raw.server.respond(4_001, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    decoder = raw.server._decoder
    assert raw.server.open_streams == 0
    assert len(decoder._names) <= 128
    assert len(decoder._blocks) <= 8
    assert max(map(len, decoder._blocks)) <= 1_024


def test_an_allowance_comes_back_with_time_up_to_its_burst() -> None:
    allowance = Allowance(a_second=2, burst=3)
    assert [allowance.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [allowance.take(10.4), allowance.take(10.5), allowance.take(10.5)] == [False, True, False]
    assert [allowance.take(99.0) for _ in range(4)] == [True, True, True, False]
