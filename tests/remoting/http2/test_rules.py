"""What the RFC calls an error of the connection, or of one stream."""

import gc
import weakref

import pytest

from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.errors import ErrorCode, Http2Error
from skylark.remoting.http2.events import DataReceived, Event, PingAnswered, RequestReceived, StreamReset
from skylark.remoting.http2.limits import Http2Limits
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import encode
from tests.remoting.http2.peer import HEAD_BLOCK, REQUEST, REQUEST_BYTES, TRAILERS_BLOCK
from tests.remoting.http2.raw import FIELDS, Raw, request
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
)

PADDED, PRIORITY_FLAG, ACK = 0x8, 0x20, 0x1
OPEN = request(1, flags=0)
PROTOCOL, SIZE, FLOW = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.FLOW_CONTROL_ERROR


def setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, payload=key.to_bytes(2, "big") + value.to_bytes(4, "big"))


BROKEN = {
    "a frame longer than allowed": (frame(DATA, stream=1, length=16_385), SIZE),
    "DATA of the connection": (frame(DATA), PROTOCOL),
    "DATA of a stream that was not opened": (frame(DATA, stream=1), PROTOCOL),
    "DATA of a stream of the server": (OPEN + frame(DATA, stream=2), PROTOCOL),
    "DATA of padding only, and too much": (OPEN + frame(DATA, PADDED, 1, b"\1"), PROTOCOL),
    "DATA without its padding": (OPEN + frame(DATA, PADDED, 1), PROTOCOL),
    "HEADERS of the connection": (frame(HEADERS, END_HEADERS, 0, headers(FIELDS)), PROTOCOL),
    "HEADERS of a stream of the server": (frame(HEADERS, END_HEADERS, 2, headers(FIELDS)), PROTOCOL),
    "HEADERS without their priority": (frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, b"\0"), SIZE),
    "a header block that is none": (frame(HEADERS, END_HEADERS, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR),
    "a block that another frame interrupts": (frame(HEADERS, 0, 1) + frame(PING, payload=bytes(8)), PROTOCOL),
    "a block that an unknown frame interrupts": (frame(HEADERS, 0, 1) + frame(99), PROTOCOL),
    "a block that another stream continues": (frame(HEADERS, 0, 1) + frame(CONTINUATION, END_HEADERS, 3), PROTOCOL),
    "CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1), PROTOCOL),
    "PRIORITY of the connection": (frame(PRIORITY, payload=bytes(5)), PROTOCOL),
    "PRIORITY of a wrong size": (frame(PRIORITY, stream=1, payload=bytes(4)), SIZE),
    "RST_STREAM of the connection": (frame(RST_STREAM, payload=bytes(4)), PROTOCOL),
    "RST_STREAM of a stream that was not opened": (frame(RST_STREAM, stream=1, payload=bytes(4)), PROTOCOL),
    "RST_STREAM of a wrong size": (OPEN + frame(RST_STREAM, stream=1, payload=bytes(3)), SIZE),
    "SETTINGS of a stream": (frame(SETTINGS, stream=1), PROTOCOL),
    "SETTINGS of a wrong size": (frame(SETTINGS, payload=bytes(5)), SIZE),
    "SETTINGS acknowledged with settings": (frame(SETTINGS, ACK, payload=bytes(6)), SIZE),
    "a push setting of 2": (setting(2, 2), PROTOCOL),
    "a window that is too large": (setting(4, 2**31), FLOW),
    "frames that are too small": (setting(5, 16_383), PROTOCOL),
    "frames that are too large": (setting(5, 2**24), PROTOCOL),
    "a window of a stream that SETTINGS make too large": (
        OPEN + frame(WINDOW_UPDATE, stream=1, payload=b"\x7f\xff\0\0") + setting(4, 2**31 - 1),
        FLOW,
    ),
    "PUSH_PROMISE": (frame(PUSH, stream=1, payload=bytes(4)), PROTOCOL),
    "PING of a stream": (frame(PING, stream=1, payload=bytes(8)), PROTOCOL),
    "PING of a wrong size": (frame(PING, payload=bytes(7)), SIZE),
    "GOAWAY of a stream": (frame(GOAWAY, stream=1, payload=bytes(8)), PROTOCOL),
    "GOAWAY of a wrong size": (frame(GOAWAY, payload=bytes(7)), SIZE),
    "WINDOW_UPDATE of a stream that was not opened": (frame(WINDOW_UPDATE, stream=1, payload=b"\0\0\0\1"), PROTOCOL),
    "WINDOW_UPDATE of a wrong size": (frame(WINDOW_UPDATE, payload=bytes(3)), SIZE),
    "WINDOW_UPDATE of nothing": (frame(WINDOW_UPDATE, payload=bytes(4)), PROTOCOL),
    "a window of the connection that is too large": (frame(WINDOW_UPDATE, payload=b"\x7f\xff\xff\xff"), FLOW),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_ends_the_connection(sent: bytes, code: ErrorCode) -> None:
    assert Raw().error_of(sent)[0] == code


def test_more_data_than_the_connections_window_ends_the_connection() -> None:
    raw = Raw(Http2Limits(connection_window_bytes=65_535, initial_window_bytes=1_000_000))
    sent = [frame(DATA, stream=1, payload=bytes(16_384))] * 4
    assert raw.error_of(OPEN, *sent)[0] == FLOW


@pytest.mark.parametrize("first", [b"POST /", PREFACE[:-1] + b"x"])
def test_another_protocol_is_refused_at_once(first: bytes) -> None:
    raw = Raw()
    raw.server = ServerConnection(Http2Limits())
    assert raw.receive(first[:1]) == []
    assert raw.error_of(first[1:]) == (PROTOCOL, "the peer does not speak HTTP/2")


def test_a_client_of_rocketmq_4_is_told_what_it_speaks() -> None:
    raw = Raw()
    raw.server = ServerConnection(Http2Limits())
    found = raw.error_of(encode(Command(105, {"topic": "t"})))
    assert found == (PROTOCOL, "the peer speaks RocketMQ's remoting protocol, not HTTP/2")


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1", b"\x16\x03\1"])
def test_another_protocol_is_refused_at_its_first_byte(first: bytes) -> None:
    raw = Raw()
    raw.server = ServerConnection(Http2Limits())
    assert raw.error_of(first[:1])[0] == PROTOCOL


@pytest.mark.parametrize("first", [frame(PING, payload=bytes(8)), frame(99), frame(CONTINUATION)])
def test_the_first_frame_must_be_settings(first: bytes) -> None:
    raw = Raw()
    raw.server = ServerConnection(Http2Limits())
    assert raw.error_of(PREFACE, first) == (PROTOCOL, "the first frame is not SETTINGS")


def test_a_dead_connection_stays_dead() -> None:
    raw = Raw()
    assert raw.error_of(frame(DATA))[0] == PROTOCOL
    with pytest.raises(Http2Error, match="DATA of stream 0"):
        raw.receive(request(1))
    assert raw.answers() == []


def test_a_goodbye_names_the_last_stream_that_was_taken() -> None:
    """The client may try streams after it elsewhere."""
    malformed = frame(HEADERS, END_HEADERS | END_STREAM, 5, headers(FIELDS[:2]))
    raw = Raw()
    raw.receive(request(3), malformed)
    raw.server.take()
    raw.server.go_away_now()
    assert [answer.payload[:4] for answer in raw.answers()] == [b"\0\0\0\3"]
    raw = Raw()
    raw.receive(request(3), malformed)
    raw.server.take()
    raw.server.close(ErrorCode.NO_ERROR, "")
    assert [answer.payload[:4] for answer in raw.answers()] == [b"\0\0\0\3"]


# --- errors of one stream: others go on


def reset_by_server(raw: Raw, events: list[Event], code: ErrorCode) -> None:
    """Stream 1 was reset with this code, and stream 3 is served."""
    assert [event for event in events if isinstance(event, StreamReset)] == [StreamReset(1, code)]
    assert [answer for answer in raw.answers() if answer.kind == RST_STREAM] == [
        (RST_STREAM, 0, 1, code.to_bytes(4, "big"))
    ]
    assert raw.receive(request(3)) == [RequestReceived(3, dict(REQUEST), True, REQUEST_BYTES)]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(DATA, END_STREAM, 1) + frame(DATA, 0, 1, b"late"), ErrorCode.STREAM_CLOSED),
        (frame(DATA, END_STREAM, 1) + request(1), ErrorCode.STREAM_CLOSED),
        (frame(DATA, 0, 1, bytes(16_384)) * 4, FLOW),
        (frame(WINDOW_UPDATE, 0, 1, bytes(4)), PROTOCOL),
        (frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), FLOW),
        (frame(HEADERS, END_HEADERS, 1, headers([(b"a", b"1")])), PROTOCOL),  # trailers that end nothing
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, headers([(b":path", b"/")])), PROTOCOL),
    ],
)
def test_a_broken_rule_of_a_stream_resets_it(sent: bytes, code: ErrorCode) -> None:
    raw = Raw()
    reset_by_server(raw, raw.receive(OPEN, sent), code)


METHOD, SCHEME, PATH, AUTHORITY = FIELDS[:4]
MALFORMED = {
    "no method": [SCHEME, PATH],
    "no scheme": [METHOD, PATH],
    "no path": [METHOD, SCHEME],
    "an empty path": [METHOD, SCHEME, (b":path", b"")],
    "two paths": [METHOD, SCHEME, PATH, PATH],
    "an unknown pseudo header": [METHOD, SCHEME, PATH, (b":protocol", b"websocket")],
    "a pseudo header of answers": [METHOD, SCHEME, PATH, (b":status", b"200")],
    "a late pseudo header": [METHOD, SCHEME, (b"te", b"trailers"), PATH],
    "a name in capitals": [*FIELDS, (b"Key", b"1")],
    "an empty name": [*FIELDS, (b"", b"1")],  # CVE-2019-9516
    "a name with a space": [*FIELDS, (b"a key", b"1")],
    "a header of the connection": [*FIELDS, (b"connection", b"close")],
    "a transfer encoding": [*FIELDS, (b"transfer-encoding", b"chunked")],
    "another te than trailers": [METHOD, SCHEME, PATH, (b"te", b"gzip")],
    "a value of two lines": [*FIELDS, (b"key", b"1\r\nother: 2")],
    "a value with a zero": [*FIELDS, (b"key", b"\0")],
    "a value that begins with a space": [*FIELDS, (b"key", b" 1")],
    "a value that ends with a tab": [*FIELDS, (b"key", b"1\t")],
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_reset(fields: list[tuple[bytes, bytes]]) -> None:
    raw = Raw()
    assert raw.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, headers(fields))) == []
    assert raw.answers() == [(RST_STREAM, 0, 1, PROTOCOL.to_bytes(4, "big"))]
    assert raw.receive(request(3)) == [RequestReceived(3, dict(REQUEST), True, REQUEST_BYTES)]


def test_values_may_have_tabs_and_characters_beyond_ascii() -> None:
    raw = Raw()
    (event,) = raw.receive(
        frame(HEADERS, END_HEADERS | END_STREAM, 1, headers([*FIELDS, (b"key", b"a\tb\xe9\xa0"), (b"none", b"")]))
    )
    assert isinstance(event, RequestReceived)
    assert (event.headers["key"], event.headers["none"]) == ("a\tb\xe9\xa0", "")


# --- what is no error


def test_padding_and_priorities_are_left_out() -> None:
    raw = Raw()
    block = headers(FIELDS)
    padded = b"\3" + bytes(5) + block + bytes(3)
    events = raw.receive(
        frame(HEADERS, END_HEADERS | PADDED | PRIORITY_FLAG, 1, padded),
        frame(PRIORITY, 0, 5, bytes(5)),
        frame(DATA, PADDED | END_STREAM, 1, b"\2body\0\0"),
    )
    assert events == [RequestReceived(1, dict(REQUEST), False, REQUEST_BYTES), DataReceived(1, b"body", True)]


def test_unknown_frames_and_settings_are_ignored() -> None:
    raw = Raw()
    assert raw.receive(frame(99, 0xFF, 2**31 - 1, b"payload"), setting(77, 1)) == []
    assert [answer.kind for answer in raw.answers()] == [SETTINGS]


def test_the_reserved_bit_of_a_stream_id_means_nothing() -> None:
    raw = Raw()
    assert raw.receive(OPEN, frame(DATA, END_STREAM, 2**31 + 1, b"body"))[1:] == [DataReceived(1, b"body", True)]


def test_empty_data_may_end_a_stream() -> None:
    assert Raw().receive(OPEN, frame(DATA, END_STREAM, 1))[1:] == [DataReceived(1, b"", True)]


def test_frames_are_as_long_as_the_client_takes_them() -> None:
    raw = Raw()
    raw.receive(setting(5, 20_000), request(1), request(3))
    raw.server.take()
    raw.server.respond(1, HEAD_BLOCK, bytes(20_000), TRAILERS_BLOCK)
    raw.server.respond(3, HEAD_BLOCK, bytes(20_001), TRAILERS_BLOCK)
    sizes = [(answer.stream_id, len(answer.payload)) for answer in raw.answers() if answer.kind == DATA]
    assert sizes == [(1, 20_000), (3, 20_000), (3, 1)]


def test_answers_in_one_go_use_up_the_connections_window() -> None:
    raw = Raw()
    raw.receive(*map(request, range(1, 11, 2)))
    for stream_id in range(1, 11, 2):
        raw.server.respond(stream_id, HEAD_BLOCK, bytes(16_000), TRAILERS_BLOCK)
    assert raw.server.queued_bytes == 5 * 16_000 - 65_535
    assert sum(len(answer.payload) for answer in raw.answers() if answer.kind == DATA) == 65_535


def test_an_answer_without_data_has_no_data_frame() -> None:
    raw = Raw()
    raw.receive(request(1))
    raw.server.respond(1, HEAD_BLOCK, b"", TRAILERS_BLOCK)
    assert [(answer.kind, answer.flags) for answer in raw.answers()] == [
        (HEADERS, END_HEADERS), (HEADERS, END_HEADERS | END_STREAM)
    ]  # fmt: skip


def test_only_the_first_block_says_that_the_table_is_not_used() -> None:
    raw = Raw()
    raw.receive(setting(1, 100), request(1), request(3))
    raw.server.take()
    for stream_id in (1, 3):
        raw.server.respond(stream_id, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    blocks = [answer.payload for answer in raw.answers() if answer.kind == HEADERS]
    assert blocks == [b"\x20" + HEAD_BLOCK, TRAILERS_BLOCK, HEAD_BLOCK, TRAILERS_BLOCK]


def test_a_request_that_is_over_needs_no_window() -> None:
    raw = Raw()
    raw.receive(OPEN, *[frame(DATA, 0, 1, bytes(16_000))] * 3, frame(DATA, END_STREAM, 1, b"x"))
    raw.server.take()
    raw.server.consumed(1, 48_001)
    assert raw.answers() == []


def test_data_on_its_way_to_a_stream_that_was_reset_gives_its_window_back() -> None:
    raw = Raw(Http2Limits(connection_window_bytes=65_535))
    raw.receive(OPEN)
    raw.server.reset(1, ErrorCode.CANCEL)
    data = frame(DATA, 0, 1, bytes(16_384))
    assert raw.receive(*[data] * 3) == []
    assert (WINDOW_UPDATE, 0, 0, (32_768).to_bytes(4, "big")) in raw.answers()
    assert raw.receive(*[data] * 3, request(3)) == [RequestReceived(3, dict(REQUEST), True, REQUEST_BYTES)]


def test_padding_gives_its_window_back() -> None:
    raw = Raw()
    raw.receive(OPEN)
    for _ in range(8):
        raw.receive(*[frame(DATA, PADDED, 1, b"\xff" + bytes(255))] * 100)
        raw.now_s += 1
    grown = [answer.stream_id for answer in raw.answers() if answer.kind == WINDOW_UPDATE]
    assert grown.count(1) >= 3


def test_data_after_a_queued_answer_is_dropped() -> None:
    raw = Raw()
    raw.receive(setting(4, 0), OPEN)
    raw.server.respond(1, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    raw.server.send_data(1, b"more")
    raw.server.send_trailers(1, TRAILERS_BLOCK)
    assert raw.receive(frame(DATA, 0, 1, b"body")) == []
    assert raw.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, headers([(b"a", b"1")]))) == []
    raw.server.take()
    raw.receive(frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\7"))
    assert [(answer.kind, answer.payload) for answer in raw.answers()] == [
        (DATA, b"answer"), (HEADERS, TRAILERS_BLOCK)
    ]  # fmt: skip


def test_the_reset_of_an_answer_that_waits_is_no_news() -> None:
    raw = Raw()
    raw.receive(setting(4, 0), request(1))
    raw.server.respond(1, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    assert raw.receive(frame(RST_STREAM, 0, 1, bytes(4))) == []
    assert (raw.server.open_streams, raw.server.queued_bytes) == (0, 0)


def test_only_the_answer_to_a_ping_is_seen() -> None:
    raw = Raw()
    raw.server.ping()
    (ping,) = raw.answers()
    other, answer = (frame(PING, ACK, payload=payload) for payload in (bytes(8), ping.payload))
    assert raw.receive(other) == []
    assert raw.receive(answer, answer) == [PingAnswered(is_leaving=False)]


def test_a_client_that_leaves_is_served_on() -> None:
    goaway = frame(GOAWAY, payload=bytes(8))
    assert Raw().receive(goaway, goaway, request(1)) == [RequestReceived(1, dict(REQUEST), True, REQUEST_BYTES)]


def test_after_an_error_nothing_more_is_sent() -> None:
    raw = Raw()
    assert raw.error_of(frame(DATA, 0, 0, b"x"))[0] == ErrorCode.PROTOCOL_ERROR
    for step in (raw.server.ping, raw.server.go_away, raw.server.go_away_now):
        step()
    assert raw.answers() == []


def test_a_table_above_the_limit_ends_the_connection_once_the_client_knows_it() -> None:
    raw = Raw(Http2Limits(header_table_bytes=0))
    assert raw.receive(request(1)) == [RequestReceived(1, dict(REQUEST), True, REQUEST_BYTES)]
    assert raw.error_of(frame(SETTINGS, ACK), request(3))[0] == ErrorCode.COMPRESSION_ERROR


def test_windows_below_the_first_ones_count_from_the_acknowledgement_on() -> None:
    raw = Raw(Http2Limits(initial_window_bytes=1_000))
    sent = frame(DATA, 0, 1, bytes(2_000))
    assert raw.receive(OPEN, sent)[1:] == [DataReceived(1, bytes(2_000), False)]
    events = raw.receive(frame(SETTINGS, ACK), frame(DATA, 0, 1, b"x"))
    reset_by_server(raw, events, FLOW)


def test_an_error_holds_no_objects_of_its_catcher() -> None:
    """Until a garbage collection, which may come late: the connection does not keep the error, nor its traceback."""
    raw = Raw()

    class Caller:
        def fail(self) -> None:
            with pytest.raises(Http2Error):
                raw.receive(frame(DATA))

    caller = Caller()
    caller.fail()
    ended = weakref.ref(caller)
    gc.disable()
    try:
        del caller
        assert ended() is None
    finally:
        gc.enable()
