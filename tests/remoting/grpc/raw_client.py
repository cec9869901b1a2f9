"""A client that sends frames as a test wants them, to a server in memory, and sees all frames that come back."""

import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import hpack
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.remoting.grpc.call import Streaming, Unary
from skylark.remoting.grpc.limits import GrpcLimits
from skylark.remoting.grpc.server import GrpcServer
from skylark.remoting.net.limits import ConnectionBudget
from skylark.remoting.net.scanning import SCAN_INTERVAL_S
from tests.support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
    opened,
)
from tests.support.memory_transport import CAPACITY_BYTES, MemoryNetwork, MemoryTransport

FRAME_HEAD_BYTES = 9
#: Frames that give the server the largest windows, of streams and of the connection.
WINDOWS = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1)) + frame(
    WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)
)


class Frame(NamedTuple):
    """A frame of the server."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Answer(NamedTuple):
    """What has come on one stream: headers and trailers together, data, and the code of its reset."""

    headers: dict[str, str]
    data: bytes
    has_ended: bool
    reset: int | None


class RawClient:
    """One connection; the preface and empty settings are sent with the first bytes."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self.frames: list[Frame] = []
        self._unread = b""
        self._decoder = hpack.Decoder()
        self._answers: dict[int, Answer] = {}

    async def send(self, *frames: bytes) -> list[Frame]:
        """Send, and return the frames that the server sends before it waits."""
        for data in frames:
            await self.transport.send_all(data)
        return await self.seen()

    async def seen(self) -> list[Frame]:
        """The frames that have come since the last call, once all tasks wait."""
        await wait_all_tasks_blocked()
        data, at = self._unread + self.transport.take(), 0
        found = []
        while len(data) - at >= FRAME_HEAD_BYTES:
            start = at + FRAME_HEAD_BYTES
            end = start + int.from_bytes(data[at : at + 3])
            if len(data) < end:
                break
            found.append(Frame(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : start]), data[start:end]))
            at = end
        self._unread = data[at:]
        for one in found:
            self._follow(one)
        self.frames += found
        return found

    def answer(self, stream: int = 1) -> Answer:
        """What has come on a stream."""
        return self._answers.get(stream, Answer({}, b"", False, None))

    def status(self, stream: int = 1) -> str | None:
        """grpc-status of a stream."""
        return self.answer(stream).headers.get("grpc-status")

    def goaways(self) -> list[tuple[int, int, bytes]]:
        """(last stream, code, text) of each GOAWAY."""
        payloads = [one.payload for one in self.frames if one.kind == GOAWAY]
        return [(int.from_bytes(one[:4]), int.from_bytes(one[4:8]), one[8:]) for one in payloads]

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self.transport._incoming.ended

    def _follow(self, one: Frame) -> None:
        before = self.answer(one.stream)
        has_ended = before.has_ended or bool(one.kind in (DATA, HEADERS) and one.flags & END_STREAM)
        if one.kind == HEADERS:
            assert one.flags & END_HEADERS
            fields = {str(name): str(value) for name, value in self._decoder.decode(one.payload)}
            # Trailers have no status of HTTP/2.
            assert (":status" in fields) == (not before.headers)
            self._answers[one.stream] = before._replace(headers={**before.headers, **fields}, has_ended=has_ended)
        elif one.kind == DATA:
            self._answers[one.stream] = before._replace(data=before.data + one.payload, has_ended=has_ended)
        elif one.kind == RST_STREAM:
            self._answers[one.stream] = before._replace(reset=int.from_bytes(one.payload))


class Raw(NamedTuple):
    """A server in memory, and the way to it."""

    server: GrpcServer
    network: MemoryNetwork
    clock: MockClock

    async def connect(self, *frames: bytes, begins: bool = True) -> RawClient:
        """A new connection that has sent these frames after the first ones; ``begins``: with the first ones."""
        client = RawClient(await self.network.connect("127.0.0.1", 10911))
        await client.send(opened(*frames) if begins else b"".join(frames))
        return client

    async def wait(self, seconds: float) -> None:
        """Let time pass, with all scans that belong to it."""
        while seconds > 0:
            step = min(seconds, SCAN_INTERVAL_S)
            self.clock.jump(step)
            await wait_all_tasks_blocked()
            seconds -= step


@asynccontextmanager
async def raw(
    methods: Mapping[str, Unary | Streaming],
    clock: MockClock,
    limits: GrpcLimits | None = None,
    connections: ConnectionBudget | None = None,
    capacity: int = CAPACITY_BYTES,
) -> AsyncIterator[Raw]:
    """A server of ``methods`` in memory; ``capacity``: the bytes that a connection takes before its client reads."""
    network = MemoryNetwork(capacity=capacity)
    server = GrpcServer(methods, limits=limits, connections=connections)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve_on, [network.listen()])
        yield Raw(server, network, clock)
        nursery.cancel_scope.cancel()


def begun(path: bytes, *metadata: tuple[bytes, bytes], stream: int = 1, flags: int = END_HEADERS) -> bytes:
    """The headers of a call."""
    fields = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"server"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc"), *metadata,
    ]  # fmt: skip
    return frame(HEADERS, flags, stream, headers(fields))
