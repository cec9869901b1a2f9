"""Frames of HTTP/2 as a hostile client of gRPC sends them, whole and broken."""

import struct
from random import Random

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4

Metadata = list[tuple[bytes, bytes]]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; ``length``: a wrong length of the payload."""
    claimed = len(payload) if length is None else length
    return struct.pack(">I", claimed)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(fields: Metadata) -> bytes:
    """A block of literal fields, none of them indexed or compressed."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    left, encoded = len(text) - 127, b"\x7f"
    while left >= 128:
        encoded += bytes([left % 128 + 128])
        left //= 128
    return encoded + bytes([left]) + text


def call(path: bytes, body: bytes, metadata: Metadata, stream: int = 1, length: int | None = None) -> bytes:
    """A unary call, whole; ``length`` is what the prefix of its message claims."""
    fields = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"proxy"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc"), *metadata,
    ]  # fmt: skip
    prefix = struct.pack(">BI", 0, len(body) if length is None else length)
    return frame(HEADERS, END_HEADERS, stream, headers(fields)) + frame(DATA, END_STREAM, stream, prefix + body)


def opened(*frames: bytes) -> bytes:
    """A connection's first bytes, then these frames."""
    return PREFACE + frame(SETTINGS) + b"".join(frames)


def flood(random: Random, count: int) -> bytes:
    """Many frames of one kind that a server has to answer or to remember."""
    kind = random.choice([PING, SETTINGS, RST_STREAM, HEADERS, CONTINUATION, WINDOW_UPDATE, PRIORITY])
    if kind == RST_STREAM:
        # A call that is given up at once, again and again.
        path = b"/apache.rocketmq.v2.MessagingService/Heartbeat"
        one = [call(path, b"", [], 2 * n + 1) + frame(kind, 0, 2 * n + 1, bytes(4)) for n in range(count)]
        return opened(*one)
    payload = {PING: bytes(8), SETTINGS: b"\0\4" + bytes(4), WINDOW_UPDATE: b"\0\0\0\1", PRIORITY: bytes(5)}
    streams = range(1, 2 * count, 2) if kind == HEADERS else [1 if kind in (CONTINUATION, PRIORITY) else 0] * count
    return opened(*(frame(kind, 0, stream, payload.get(kind, b"")) for stream in streams))


def broken(random: Random) -> bytes:
    """Frames that are none, or that may not come."""
    frames = []
    for _ in range(random.choice([1, 3, 10])):
        payload = random.randbytes(random.choice([0, 1, 4, 5, 8, 100, 16_384]))
        length = random.choice([None, None, None, 0, 1, 2**14 + 1, 2**24 - 1])
        stream = random.choice([0, 1, 2, 3, 2**31 - 1, 2**32 - 1])
        frames.append(frame(random.choice([*range(10), 255]), random.getrandbits(8), stream, payload, length))
    return opened(*frames)
