"""A client that keeps no rules: frames are written by hand, and the frames of the server are read without judgement."""

from typing import NamedTuple

from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.errors import ErrorCode, Http2Error
from skylark.remoting.http2.events import Event
from skylark.remoting.http2.limits import Http2Limits
from tests.remoting.http2.peer import REQUEST
from tests.support.http2 import END_HEADERS, END_STREAM, GOAWAY, HEADERS, frame, headers, opened

FIELDS = [(name.encode(), value.encode()) for name, value in REQUEST]


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frames_of(sent: list[bytes]) -> list[Frame]:
    data, found = b"".join(sent), []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append(Frame(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def request(stream_id: int, flags: int = END_STREAM) -> bytes:
    """HEADERS of a valid request; without END_STREAM in ``flags`` its data follows."""
    return frame(HEADERS, END_HEADERS | flags, stream_id, headers(FIELDS))


class Raw:
    """A connection whose SETTINGS were exchanged."""

    def __init__(self, limits: Http2Limits | None = None) -> None:
        self.server = ServerConnection(limits or Http2Limits())
        self.now_s = 1000.0
        self.receive(opened())
        self.server.take()

    def receive(self, *sent: bytes) -> list[Event]:
        return self.server.receive(b"".join(sent), self.now_s)

    def answers(self) -> list[Frame]:
        return frames_of(self.server.take())

    def error_of(self, *sent: bytes) -> tuple[ErrorCode, str]:
        """Why these frames end the connection. The peer learns it by a GOAWAY, which is the last frame."""
        try:
            self.receive(*sent)
        except Http2Error as error:
            goaway = self.answers()[-1]
            assert (goaway.kind, goaway.payload[4:8]) == (GOAWAY, error.code.to_bytes(4, "big"))
            assert goaway.payload[8:].decode() == error.text
            assert (self.server.open_streams, self.server.pending_bytes, self.server.queued_bytes) == (0, 0, 0)
            return error.code, error.text
        raise AssertionError("the frames were accepted")
