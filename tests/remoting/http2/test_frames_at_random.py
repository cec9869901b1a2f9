"""Frames at random, valid and broken, from a client whose streams are answered at random: only one error, no growth."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.errors import ErrorCode, Http2Error
from skylark.remoting.http2.events import DataReceived, Event, RequestReceived, StreamReset
from skylark.remoting.http2.limits import Http2Limits
from tests.remoting.http2.peer import HEAD_BLOCK, TRAILERS_BLOCK
from tests.remoting.http2.raw import FIELDS
from tests.support.amounts import amount
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    broken,
    flood,
    frame,
    headers,
    opened,
)

LIMITS = Http2Limits(
    connection_window_bytes=100_000, initial_window_bytes=70_000, max_concurrent_streams=20, max_unsent_bytes=50_000,
    max_control_bytes=10_000,
)  # fmt: skip
GOOD, TRAILERS = headers(FIELDS), headers([(b"a", b"1")])
# Without a method, in the wrong place, with or without the entries of a table.
BAD = [headers(FIELDS[:2]), TRAILERS, b"\x82\x87\x84", b"\x40\1k\1v", b"\xbe", b"\x20", b""]
CANCEL = ErrorCode.CANCEL.to_bytes(4, "big")
LIKELY = {
    DATA: 30, HEADERS: 40, RST_STREAM: 5, SETTINGS: 3, PING: 3, GOAWAY: 1, WINDOW_UPDATE: 15, PRIORITY: 1, 99: 1
}  # fmt: skip


def setting(random: Random) -> bytes:
    key, value = random.choice([(1, 0), (3, 1), (4, 0), (4, 100), (4, 65_535), (4, 200_000), (5, 20_000), (99, 0)])
    return key.to_bytes(2, "big") + value.to_bytes(4, "big")


def likely_frame(random: Random, newest: int) -> tuple[bytes, int]:
    """Frames that a valid connection might have at the right time; and the newest stream of the client."""
    (kind,) = random.choices(list(LIKELY), list(LIKELY.values()))
    stream = random.choice([newest, newest, max(newest - 2, 1), max(newest - 20, 1)])
    if kind == DATA:
        payload = bytes(random.choice([1, 1, 100, 10_000, 16_384]))
        return frame(DATA, random.choice([0, 0, 0, 1, 8]), stream, payload), newest
    if kind == HEADERS:
        if random.random() < 0.1:
            return frame(HEADERS, 5, stream, TRAILERS), newest
        newest += random.choice([2, 2, 2, 4])
        if random.random() < 0.1:
            return frame(HEADERS, 0, newest, GOOD[:7]) + frame(CONTINUATION, 4, newest, GOOD[7:]), newest
        return frame(HEADERS, random.choice([4, 4, 5]), newest, GOOD), newest
    if kind == SETTINGS:
        return frame(SETTINGS, 0, 0, setting(random) * random.randrange(3)), newest
    if kind == WINDOW_UPDATE:
        size = random.choice([1, 100, 60_000])
        return frame(WINDOW_UPDATE, 0, random.choice([0, stream]), size.to_bytes(4, "big")), newest
    payload = {RST_STREAM: CANCEL, PING: bytes(8), GOAWAY: bytes(8), PRIORITY: bytes(5)}.get(kind, b"")
    return frame(kind, 0, stream if kind in (RST_STREAM, PRIORITY) else 0, payload), newest


def unlikely_frame(random: Random, newest: int) -> bytes:
    kind = random.choice([DATA, HEADERS, CONTINUATION, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, PRIORITY])
    stream = random.choice([0, 1, 2, newest, newest + 2, newest + 2])
    payload = random.choice([*BAD, bytes(4), bytes(5), bytes(8), random.randbytes(6)])
    return frame(kind, random.choice([0, 1, 4, 5, 8, 0x2C]), stream, payload)


class Caller:
    """Answers streams at random, and checks that events come as they may."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.server = ServerConnection(LIMITS)
        self.newest = 0
        self.open: set[int] = set()  # streams whose client has not ended
        self.unread: Counter[int] = Counter()  # bytes of events that were not consumed
        self.seen: Counter[str] = Counter()

    def on(self, events: list[Event]) -> None:
        for event in events:
            self.seen[type(event).__name__] += 1
            if isinstance(event, RequestReceived):
                assert event.stream_id > self.newest
                self.newest = event.stream_id
                if not event.is_whole:
                    self.open.add(event.stream_id)
            elif isinstance(event, DataReceived):
                assert event.stream_id in self.open
                self.unread[event.stream_id] += len(event.data)
                if event.is_last:
                    self.open.remove(event.stream_id)
            elif isinstance(event, StreamReset):
                assert event.stream_id <= self.newest
                self.open.discard(event.stream_id)

    def act(self) -> None:
        random, server = self.random, self.server
        streams = list(server._streams)
        for stream_id in random.sample(streams, min(len(streams), random.randrange(4))):
            step = random.randrange(6)
            if step == 0:
                server.respond(stream_id, HEAD_BLOCK, bytes(random.choice([10, 20_000])), TRAILERS_BLOCK)
            elif step == 1:
                server.send_data(stream_id, bytes(random.choice([10, 20_000])))
            elif step == 2:
                server.send_trailers(stream_id, TRAILERS_BLOCK, drop_queued=random.random() < 0.5)
            elif step == 3:
                server.reset(stream_id, ErrorCode.CANCEL)
            else:
                server.consumed(stream_id, self.unread.pop(stream_id, 0))
        if random.random() < 0.01:
            random.choice([server.ping, server.go_away, server.go_away_now])()

    def check(self) -> None:
        """Windows and memory add up."""
        server = self.server
        streams = server._streams.values()
        assert server.queued_bytes == sum(stream.unsent for stream in streams) <= LIMITS.max_unsent_bytes
        assert server._window + server._consumed + sum(stream.unread for stream in streams) == 100_000
        assert len(server._streams) <= LIMITS.max_concurrent_streams
        assert server.pending_bytes <= LIMITS.max_header_block_bytes + LIMITS.max_frame_bytes
        assert all(stream.unsent for stream in server._waiting.values())
        assert not server._waiting or server._send_window <= 0
        for stream_id, stream in server._streams.items():
            assert stream.unsent == sum(map(len, stream.queued))
            assert not stream.unsent or stream.send_window <= 0 or stream_id in server._waiting


def serve(random: Random) -> Caller:
    """A connection until its first error, or 300 frames."""
    caller = Caller(random)
    server, newest, now_s = caller.server, 1, 0.0
    caller.on(server.receive(opened(frame(HEADERS, 4, newest, GOOD)), now_s))
    try:
        for _ in range(300):
            sent, newest = likely_frame(random, newest)
            if random.random() < 0.01:
                sent = unlikely_frame(random, newest)
            now_s += 0.01
            cut = random.randrange(len(sent) + 1)
            caller.on(server.receive(sent[:cut], now_s))
            caller.on(server.receive(sent[cut:], now_s))
            caller.act()
            caller.check()
            server.take()
    except Http2Error:
        caller.seen["errors"] += 1
        assert (server.open_streams, server.queued_bytes, server.pending_bytes) == (0, 0, 0)
        assert server.take()
    return caller


def test_frames_at_random_give_events_or_the_one_error(seed: int) -> None:
    seen: Counter[str] = Counter()
    for number in range(amount(150, 30_000)):
        try:
            seen += serve(Random(f"{seed}-{number}")).seen
        except Exception as error:
            error.add_note(f"connection {number} of seed {seed}")
            raise
    # The connections live long enough to get somewhere.
    assert min(seen[kind] for kind in ("RequestReceived", "DataReceived", "StreamReset", "WindowOpened", "errors")) > 20


def noise(random: Random) -> bytes:
    return opened(random.randbytes(500))


def many_frames(random: Random) -> bytes:
    return flood(random, 3_000)


@pytest.mark.parametrize("made", [broken, many_frames, noise])
def test_broken_frames_and_floods_give_events_or_the_one_error(made: Callable[[Random], bytes], seed: int) -> None:
    random = Random(seed)
    for _ in range(amount(20, 3_000)):
        server = ServerConnection(Http2Limits())
        sent = made(random)
        try:
            server.receive(sent, 0.0)
        except Http2Error:
            assert server.open_streams == 0
        assert sum(map(len, server.take())) < 1_000 + 2 * len(sent)
