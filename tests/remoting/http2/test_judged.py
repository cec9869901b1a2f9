"""h2 as the judge: it reads the same bytes as a server, and it reads what our server sends."""

from itertools import pairwise
from typing import Any

from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.errors import ErrorCode
from skylark.remoting.http2.events import (
    DataReceived,
    Event,
    PingReceived,
    RequestReceived,
    StreamReset,
    WindowOpened,
)
from skylark.remoting.http2.limits import Http2Limits
from tests.remoting.http2.peer import HEAD_BLOCK, REQUEST, TRAILERS_BLOCK, Pair

# Examples change SETTINGS again and again, at once.
LIMITS = Http2Limits(settings_a_second=200)

# --- the client's frames: our events are the judge's

# What a client does to one of four streams, in the order in which it is allowed.
steps = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["data", "data", "padded", "end", "trailers", "reset", "ping", "settings", "priority"]),
    st.binary(max_size=40),
)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)


class Client:
    """h2 as a client that takes ``steps``, if they are allowed."""

    def __init__(self) -> None:
        self.connection = H2Connection(H2Configuration(client_side=True))
        self.connection.initiate_connection()
        self._open: dict[int, int] = {}  # number of a step → its stream

    def take(self, number: int, step: str, data: bytes, extra: dict[str, str]) -> None:
        connection = self.connection
        if step == "ping":
            connection.ping(data[:8].ljust(8))
        elif step == "settings":
            connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 65_535 + len(data)})
        elif number not in self._open:
            self._open[number] = connection.get_next_available_stream_id()
            connection.send_headers(self._open[number], [*REQUEST, *extra.items()], end_stream=step == "end")
            if step == "end":
                del self._open[number]
        elif step == "priority":
            connection.prioritize(self._open[number], weight=7)
        elif step == "reset":
            connection.reset_stream(self._open.pop(number), ErrorCodes.CANCEL)
        elif step == "trailers":
            connection.send_headers(self._open.pop(number), [("checksum", "1"), *extra.items()], end_stream=True)
        else:
            padding = len(data) if step == "padded" else None
            connection.send_data(self._open[number], data, end_stream=step == "end", pad_length=padding)
            if step == "end":
                del self._open[number]


def judged(events: list[h2_events.Event]) -> list[tuple[Any, ...]]:
    """The judge's events in words; streams' data is joined where nothing is between it."""
    found: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case h2_events.RequestReceived():
                found.append(("request", event.stream_id, dict(event.headers or [])))
            case h2_events.DataReceived():
                found.append(("data", event.stream_id, event.data))
            case h2_events.StreamEnded():
                found.append(("end", event.stream_id))
            case h2_events.StreamReset():
                found.append(("reset", event.stream_id, int(event.error_code or 0)))
            case h2_events.PingReceived():
                found.append(("ping",))
    return [event for event in found if event[0] != "data" or event[2]]


def ours(events: list[Event]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case RequestReceived(stream_id, headers, is_last, _):
                found += [("request", stream_id, headers)] + [("end", stream_id)] * is_last
            case DataReceived(stream_id, data, is_last):
                found += [("data", stream_id, data)] * bool(data) + [("end", stream_id)] * is_last
            case StreamReset(stream_id, code):
                found.append(("reset", stream_id, code))
            case PingReceived():
                found.append(("ping",))
    return found


@given(
    st.lists(st.tuples(steps, st.dictionaries(st.sampled_from(["a", "b-c", "x-mq-id"]), values)), max_size=30),
    st.lists(st.integers(0), max_size=8),
    st.booleans(),
)
def test_valid_streams_give_the_same_events_however_they_are_split(
    taken: list[tuple[tuple[int, str, bytes], dict[str, str]]], cuts: list[int], says_goodbye: bool
) -> None:
    client = Client()
    for (number, step, data), extra in taken:
        client.take(number, step, data, extra)
    if says_goodbye:
        client.connection.close_connection()
    sent = client.connection.data_to_send()
    judge = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
    judge.initiate_connection()
    expected = judged(judge.receive_data(sent))
    server = ServerConnection(Http2Limits())
    places = [0, *sorted(cut % (len(sent) + 1) for cut in cuts), len(sent)]
    assert ours([event for at, end in pairwise(places) for event in server.receive(sent[at:end], 0.0)]) == expected
    byte_by_byte = ServerConnection(Http2Limits())
    assert (
        ours([event for at in range(len(sent)) for event in byte_by_byte.receive(sent[at : at + 1], 0.0)]) == expected
    )


# --- the server's frames: the judge reads what was meant

answers = st.tuples(
    st.sampled_from(["respond", "head", "data", "data", "trailers", "reset", "grow", "grow", "shrink", "go", "ping"]),
    st.integers(0, 3),
    st.integers(1, 40_000),
)


@given(st.lists(answers, max_size=40), st.sampled_from([0, 1, 1_000, 65_535]))
def test_answers_are_read_by_h2_within_its_windows(taken: list[tuple[str, int, int]], window: int) -> None:
    """h2 raises when a frame breaks a rule or a window; at the end its windows open, and all data has arrived."""
    pair = Pair(LIMITS)
    client, server = pair.client, pair.server
    client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
    streams = [pair.request() for _ in range(4)]
    pair.exchange()
    meant: dict[int, bytes] = dict.fromkeys(streams, b"")
    got, has_head, ended, reset = dict(meant), set[int](), set[int](), set[int]()
    waits, opened = set[int](), set[int]()

    def exchange() -> None:
        seen, events = pair.exchange()
        opened.update(event.stream_id for event in seen if isinstance(event, WindowOpened))
        for event in events:
            match event:
                case h2_events.DataReceived():
                    got[event.stream_id or 0] += event.data or b""
                case h2_events.StreamEnded():
                    assert event.stream_id in ended
                case h2_events.StreamReset():
                    assert event.stream_id in reset
        waits.update(stream_id for stream_id in streams if server.unsent_bytes(stream_id))

    for step, number, size in taken:
        stream_id = streams[number]
        data = bytes([number]) * size
        is_open = stream_id not in ended | reset
        if step == "grow" and is_open:
            client.increment_flow_control_window(size, stream_id)
        elif step == "shrink":
            client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})
        elif step == "ping":
            server.ping()
        elif step == "go":
            exchange()
        elif not is_open or step == "grow":
            client.increment_flow_control_window(size)
        elif step == "reset":
            server.reset(stream_id, ErrorCode.CANCEL)
            reset.add(stream_id)
        elif stream_id not in has_head:
            has_head.add(stream_id)
            if step == "respond":
                meant[stream_id] += data
                server.respond(stream_id, HEAD_BLOCK, data, TRAILERS_BLOCK)
                ended.add(stream_id)
            else:
                server.send_head(stream_id, HEAD_BLOCK)
        elif step in ("trailers", "respond"):
            server.send_trailers(stream_id, TRAILERS_BLOCK)
            ended.add(stream_id)
        else:
            meant[stream_id] += data
            server.send_data(stream_id, data)
    exchange()
    client.increment_flow_control_window(2**24)
    client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**24})
    exchange()
    assert server.queued_bytes == 0
    for stream_id in set(streams) - reset:
        assert got[stream_id] == meant[stream_id]
    assert server.open_streams == len(set(streams) - ended - reset)
    # Streams that waited learn that they need not wait any more.
    assert waits - reset <= opened


def test_the_judge_sees_a_request() -> None:
    pair = Pair()
    stream_id = pair.request()
    seen = pair.exchange()[0]
    assert ours(seen) == [("request", stream_id, dict(REQUEST)), ("data", stream_id, b"body"), ("end", stream_id)]
