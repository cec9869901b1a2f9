"""One connection with a peer that keeps the rules; the peer is h2."""

from typing import TypeVar

import pytest
from h2 import events as h2_events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.errors import ErrorCode, Http2Error
from skylark.remoting.http2.events import (
    DataReceived,
    PingAnswered,
    PingReceived,
    RequestReceived,
    StreamReset,
    WindowOpened,
)
from skylark.remoting.http2.frames import ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM
from skylark.remoting.http2.header_blocks import block
from skylark.remoting.http2.limits import Http2Limits
from tests.remoting.http2.peer import HEAD, HEAD_BLOCK, REQUEST, REQUEST_BYTES, TRAILERS, TRAILERS_BLOCK, Pair
from tests.support.http2 import frame, headers, opened

T = TypeVar("T")


def of_kind(kind: type[T], events: list[h2_events.Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def body_of(events: list[h2_events.Event], stream_id: int) -> bytes:
    found = [event.data or b"" for event in of_kind(h2_events.DataReceived, events) if event.stream_id == stream_id]
    return b"".join(found)


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.exchange()
    return pair


def test_a_unary_call_is_answered_in_one_go(pair: Pair) -> None:
    stream_id = pair.request()
    seen, _ = pair.exchange()
    assert seen == [
        RequestReceived(stream_id, dict(REQUEST), False, REQUEST_BYTES),
        DataReceived(stream_id, b"body", True),
    ]
    pair.server.respond(stream_id, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    _, answers = pair.exchange()
    head, data, trailers, ended = answers
    assert isinstance(head, h2_events.ResponseReceived) and head.headers == HEAD
    assert isinstance(data, h2_events.DataReceived) and data.data == b"answer"
    assert isinstance(trailers, h2_events.TrailersReceived) and trailers.headers == TRAILERS
    assert isinstance(ended, h2_events.StreamEnded)
    assert pair.server.open_streams == 0


def test_equal_blocks_share_their_headers(pair: Pair) -> None:
    # The first block fills the dynamic table; from the second one on they are equal.
    requests = []
    for _ in range(3):
        pair.request()
        seen, _ = pair.exchange()
        requests += [event for event in seen if isinstance(event, RequestReceived)]
    assert requests[1].headers == requests[2].headers == dict(REQUEST)
    assert requests[1].headers is requests[2].headers


def test_values_of_a_repeated_name_are_joined(pair: Pair) -> None:
    pair.request([*REQUEST, ("key", "a"), ("key", "b")])
    seen, _ = pair.exchange()
    assert isinstance(seen[0], RequestReceived)
    assert seen[0].headers["key"] == "a,b"


def test_a_request_without_data_is_whole(pair: Pair) -> None:
    pair.client.send_headers(1, REQUEST, end_stream=True)
    assert pair.exchange()[0] == [RequestReceived(1, dict(REQUEST), True, REQUEST_BYTES)]


def test_trailers_of_the_client_end_its_side(pair: Pair) -> None:
    pair.request(body=None)
    pair.client.send_data(1, b"body")
    pair.client.send_headers(1, [("checksum", "1")], end_stream=True)
    assert pair.exchange()[0][1:] == [DataReceived(1, b"body", False), DataReceived(1, b"", True)]


def test_an_answer_before_the_request_is_over_ends_the_stream(pair: Pair) -> None:
    pair.request(body=None)
    pair.exchange()
    pair.server.send_trailers(1, HEAD_BLOCK)
    pair.client.send_data(1, b"late")  # on its way meanwhile
    seen, answers = pair.exchange()
    assert seen == []
    assert [reset.error_code for reset in of_kind(h2_events.StreamReset, answers)] == [ErrorCodes.NO_ERROR]
    assert pair.server.open_streams == 0


def test_an_answer_larger_than_the_windows_waits_for_them(pair: Pair) -> None:
    pair.request()
    pair.exchange()
    answer = bytes(range(256)) * 1000
    pair.server.respond(1, HEAD_BLOCK, answer, TRAILERS_BLOCK)
    assert pair.server.unsent_bytes(1) == len(answer) - 65_535
    assert pair.server.open_streams == 1
    _, answers = pair.exchange()
    received = b""
    while not of_kind(h2_events.StreamEnded, answers):
        part = body_of(answers, 1)
        received += part
        pair.client.acknowledge_received_data(len(part), 1)
        seen, answers = pair.exchange()
    assert seen == [WindowOpened(1)]
    assert received + body_of(answers, 1) == answer
    assert pair.server.open_streams == 0


def test_a_stream_learns_that_its_data_has_gone_out(pair: Pair) -> None:
    pair.request()
    pair.exchange()
    pair.server.send_head(1, HEAD_BLOCK)
    pair.server.send_data(1, bytes(65_536))
    assert pair.exchange()[0] == []
    pair.client.increment_flow_control_window(1)
    pair.client.increment_flow_control_window(1, 1)
    assert pair.exchange()[0] == [WindowOpened(1)]
    assert pair.server.unsent_bytes(1) == 0


def test_streams_share_the_connections_window(pair: Pair) -> None:
    for _ in range(3):
        pair.request()
    pair.exchange()
    for stream_id in (1, 3, 5):
        pair.server.respond(stream_id, HEAD_BLOCK, bytes(60_000), TRAILERS_BLOCK)
    pair.exchange()
    sizes = []
    while pair.server.open_streams:
        pair.client.increment_flow_control_window(2 * 16_384)
        _, answers = pair.exchange()
        sizes.append([(event.stream_id, len(event.data or b"")) for event in of_kind(h2_events.DataReceived, answers)])
    # Stream 1 had the window that was open; the others take turns, so neither waits for the other.
    assert sizes[0] == sizes[1] == [(3, 16_384), (5, 16_384)]
    assert sum(size for sent in sizes for _, size in sent) == 3 * 60_000 - 65_535


def test_a_changed_window_of_the_client_counts_for_streams_that_are_open(pair: Pair) -> None:
    pair.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    pair.request()
    pair.exchange()
    pair.server.respond(1, HEAD_BLOCK, b"0123456789abc", TRAILERS_BLOCK)
    assert body_of(pair.exchange()[1], 1) == b"0123456789"
    pair.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 5})
    pair.exchange()
    assert pair.server.unsent_bytes(1) == 3
    pair.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 13})
    _, answers = pair.exchange()
    assert body_of(answers, 1) == b"abc"
    assert of_kind(h2_events.StreamEnded, answers)


def test_the_client_gets_its_window_back_as_data_is_consumed(pair: Pair) -> None:
    pair.request(body=None)
    sent = 0
    for _ in range(100):
        size = min(pair.client.local_flow_control_window(1), pair.client.max_outbound_frame_size)
        pair.client.send_data(1, bytes(size))
        sent += size
        for event in pair.exchange()[0]:
            if isinstance(event, DataReceived):
                pair.server.consumed(1, len(event.data))
        pair.exchange()
    assert sent > 1024 * 1024


def test_data_that_is_not_consumed_keeps_the_windows_closed() -> None:
    pair = Pair(Http2Limits(connection_window_bytes=100_000))
    pair.exchange()
    for stream_id in (1, 3):
        pair.request(body=None)
        while window := pair.client.local_flow_control_window(stream_id):
            pair.client.send_data(stream_id, bytes(min(window, 16_384)))
            pair.exchange()
    assert pair.client.outbound_flow_control_window == 0
    # The end of a stream gives back what it held.
    pair.server.reset(1, ErrorCode.CANCEL)
    pair.exchange()
    assert pair.client.outbound_flow_control_window == 65_535


def test_consuming_more_than_was_received_is_the_callers_mistake(pair: Pair) -> None:
    pair.request()
    pair.exchange()
    with pytest.raises(ValueError, match="stream 1 has 4 bytes"):
        pair.server.consumed(1, 5)


def test_answers_to_a_stream_that_the_client_reset_do_nothing(pair: Pair) -> None:
    pair.request()
    pair.exchange()
    pair.client.reset_stream(1, ErrorCodes.CANCEL)
    assert pair.exchange()[0] == [StreamReset(1, ErrorCode.CANCEL)]
    server = pair.server
    server.respond(1, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    server.send_head(1, HEAD_BLOCK)
    server.send_data(1, b"answer")
    server.send_trailers(1, TRAILERS_BLOCK)
    server.reset(1, ErrorCode.CANCEL)
    server.consumed(1, 4)
    assert (server.take(), server.unsent_bytes(1), server.open_streams) == ([], 0, 0)


def test_blocks_longer_than_a_frame_are_continued(pair: Pair) -> None:
    pair.request([*REQUEST, *((f"key-{number}", "v" * 100) for number in range(100))])
    seen, _ = pair.exchange()
    assert isinstance(seen[0], RequestReceived)
    assert seen[0].headers["key-99"] == "v" * 100


def test_long_blocks_of_answers_are_continued(pair: Pair) -> None:
    pair.request()
    pair.exchange()
    long = [*TRAILERS, ("grpc-message", "m" * 20_000)]
    pair.server.respond(1, HEAD_BLOCK, b"a", block(long))
    _, answers = pair.exchange()
    (trailers,) = of_kind(h2_events.TrailersReceived, answers)
    assert trailers.headers == long


def test_a_client_without_a_dynamic_table_reads_the_answers() -> None:
    pair = Pair()
    pair.client.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
    for _ in range(2):
        stream_id = pair.request()
        pair.exchange()
        pair.server.respond(stream_id, HEAD_BLOCK, b"a", TRAILERS_BLOCK)
        (head,) = of_kind(h2_events.ResponseReceived, pair.exchange()[1])
        assert head.headers == HEAD


def test_pings_of_both_sides_are_answered(pair: Pair) -> None:
    pair.client.ping(b"12345678")
    pair.server.ping()
    seen, answers = pair.exchange()
    assert seen == [PingReceived(), PingAnswered(is_leaving=False)]
    assert [event.ping_data for event in of_kind(h2_events.PingAckReceived, answers)] == [b"12345678"]


def test_a_failure_may_overtake_the_data_that_waits(pair: Pair) -> None:
    pair.request()
    pair.exchange()
    pair.server.send_head(1, HEAD_BLOCK)
    pair.server.send_data(1, bytes(100_000))
    assert pair.server.queued_bytes == 100_000 - 65_535
    pair.server.send_trailers(1, TRAILERS_BLOCK, drop_queued=True)
    _, answers = pair.exchange()
    assert of_kind(h2_events.TrailersReceived, answers)
    assert (len(body_of(answers, 1)), pair.server.queued_bytes, pair.server.open_streams) == (65_535, 0, 0)


def test_a_connection_that_the_caller_closes_is_dead(pair: Pair) -> None:
    pair.request()
    pair.exchange()
    pair.server.close(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
    pair.server.close(ErrorCode.INTERNAL_ERROR, "again")
    pair.server.respond(1, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    (goaway,) = frames_of(pair.server.take())
    assert goaway == (GOAWAY, 0, b"\0\0\0\1\0\0\0\x0btoo_many_pings")
    with pytest.raises(Http2Error, match="too_many_pings"):
        pair.server.receive(b"", 0.0)


def test_a_connection_begins_with_the_clients_settings() -> None:
    server = ServerConnection(Http2Limits())
    server.receive(opened()[:-1], 0.0)
    assert not server.has_begun
    server.receive(opened()[-1:], 0.0)
    assert server.has_begun


def frames_of(sent: list[bytes]) -> list[tuple[int, int, bytes]]:
    """Kind, stream and payload of each frame."""
    data, found = b"".join(sent), []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def test_a_server_that_leaves_serves_what_was_opened_before() -> None:
    # Not with h2, which ends a connection at the first GOAWAY.
    fields = [(name.encode(), value.encode()) for name, value in REQUEST]

    def request(stream_id: int) -> bytes:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, headers(fields))

    server = ServerConnection(Http2Limits())
    assert server.receive(opened(request(1)), 0.0) == [RequestReceived(1, dict(REQUEST), True, REQUEST_BYTES)]
    server.take()
    server.go_away()
    server.go_away()
    (goaway, ping) = frames_of(server.take())
    assert goaway == (GOAWAY, 0, b"\x7f\xff\xff\xff" + bytes(4))
    # This request was on its way, and the answer to the PING shows that the client has read the GOAWAY.
    seen = server.receive(request(3) + frame(PING, ACK, 0, ping[2]), 0.0)
    assert seen == [RequestReceived(3, dict(REQUEST), True, REQUEST_BYTES), PingAnswered(is_leaving=True)]
    server.go_away_now()
    assert server.receive(request(5), 0.0) == []
    refused = (RST_STREAM, 5, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))
    assert frames_of(server.take()) == [(GOAWAY, 0, b"\0\0\0\3" + bytes(4)), refused]
    for stream_id in (1, 3):
        server.respond(stream_id, HEAD_BLOCK, b"answer", TRAILERS_BLOCK)
    answered = [(kind, stream_id) for stream_id in (1, 3) for kind in (HEADERS, DATA, HEADERS)]
    assert [one[:2] for one in frames_of(server.take())] == answered
    assert server.open_streams == 0
