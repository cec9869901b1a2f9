"""A stranger's broker, NameServer or Controller, with wire code of its own; nothing of Skylark is imported.

It answers whatever it is asked, keeps each frame that it gets, and may forward frames to a real server, its victim. A
frame of RocketMQ: length (4 bytes), kind of header (1), length of header (3), header, body; the kind 0 is JSON. What is
no JSON is kept and forwarded as it is, too.
"""

import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

TIMEOUT_S = 60.0
#: The request for a challenge, and what it says about the server that is meant.
CHALLENGE, MEANT = 7103, "server"
NOT_SUPPORTED = 3
#: What the fake server does with the question for a challenge: it knows no such request, as servers of RocketMQ; it
#: forwards it as it is; or without the address that is meant; or with its victim's, and hides that in the answer.
REFUSES, FORWARDS, STRIPS, LIES = "refuses", "forwards", "strips", "lies"
WAYS = (REFUSES, FORWARDS, STRIPS, LIES)
_REFUSALS = (b"signature", b"has no permission", b"not new", b"username cannot be null", b"not known to be reached at")


class Frame(NamedTuple):
    """One frame. ``header`` is empty if it is no JSON."""

    raw: bytes
    header: dict[str, Any]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.header.get("code", -1))

    @property
    def ext(self) -> dict[str, Any]:
        return dict(self.header.get("extFields") or {})

    @property
    def is_refusal(self) -> bool:
        """Whether it is the answer to a request that was not served because of who sent it."""
        return any(text in self.raw for text in _REFUSALS)

    @property
    def is_signed(self) -> bool:
        return b"Signature" in self.raw


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """The bytes of a frame with a JSON header."""
    head = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body


def request(code: int, ext: Mapping[str, Any], body: bytes = b"", number: int = 1) -> bytes:
    """A request as RocketMQ's clients send it."""
    header = {"code": code, "extFields": dict(ext), "flag": 0, "language": "JAVA", "opaque": number, "version": 479}
    return frame(header, body)


def read(stream: socket.socket) -> Frame | None:
    """The next frame; None when the peer has closed the connection."""
    start = _exactly(stream, 4)
    rest = start and _exactly(stream, int.from_bytes(start, "big"))
    if not start or not rest:
        return None
    size = int.from_bytes(rest[1:4], "big")
    header = json.loads(rest[4 : 4 + size]) if rest[0] == 0 else {}
    return Frame(start + rest, header, rest[4 + size :])


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        some = stream.recv(size - len(data))
        if not some:
            return b""
        data += some
    return data


def ask(addr: str, *frames: bytes) -> list[Frame]:
    """The answers to requests that are sent one after another on a new connection."""
    with connect(addr) as stream:
        return [_asked(stream, each) for each in frames]


def connect(addr: str) -> socket.socket:
    host, port = addr.rsplit(":", 1)
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def _asked(stream: socket.socket, data: bytes) -> Frame:
    stream.sendall(data)
    answer = read(stream)
    assert answer is not None, "the server has closed the connection"
    return answer


#: Code, ext fields and body of the answer to a request.
Answering = Callable[[Frame], tuple[int, Mapping[str, Any], bytes]]


def knows_nothing(asked: Frame) -> tuple[int, Mapping[str, Any], bytes]:
    return NOT_SUPPORTED, {}, b""


class FakeServer:
    """Serves at ``addr`` in threads; ``frames`` are what it got, and ``learned`` what its victim answered."""

    def __init__(self, way: str, victim: str = "", answering: Answering = knows_nothing) -> None:
        self.way, self._victim, self._answering = way, victim, answering
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.addr = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.frames: list[Frame] = []
        self.learned: list[Frame] = []
        #: The connection over which it has registered.
        self.registration: socket.socket | None = None
        self._start(self._accept)

    @property
    def signed(self) -> list[Frame]:
        return [each for each in self.frames if each.is_signed]

    @property
    def challenges(self) -> int:
        return sum(each.code == CHALLENGE for each in self.frames)

    def close(self) -> None:
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in list(self._threads):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._open.append(stream)
            self._start(self._serve, stream)

    def _serve(self, stream: socket.socket) -> None:
        victim = connect(self._victim) if self._victim and self.way != REFUSES else None
        if victim is not None:
            self._open.append(victim)
        with suppress(OSError):
            while (asked := read(stream)) is not None:
                self.frames.append(asked)
                if victim is not None:
                    stream.sendall(self._forwarded(victim, asked))
                elif asked.header and not asked.header.get("flag", 0) & 2:
                    code, ext, body = (NOT_SUPPORTED, {}, b"") if asked.code == CHALLENGE else self._answering(asked)
                    stream.sendall(self._answer(asked, code, ext, body))
        stream.close()

    def _answer(self, asked: Frame, code: int, ext: Mapping[str, Any], body: bytes) -> bytes:
        header = {
            "code": code, "extFields": dict(ext), "flag": 1, "language": "JAVA", "opaque": asked.header["opaque"],
            "remark": f" request type {asked.code} not supported" if code == NOT_SUPPORTED else None, "version": 479,
        }  # fmt: skip
        return frame(header, body)

    def _forwarded(self, victim: socket.socket, asked: Frame) -> bytes:
        """The victim's answer."""
        if asked.code != CHALLENGE or self.way == FORWARDS:
            answer = _asked(victim, asked.raw)
            self.learned.append(answer)
            return answer.raw
        ext = asked.ext
        meant = ext.pop(MEANT, None)
        if self.way == LIES:
            ext[MEANT] = self._victim
        answer = _asked(victim, frame({**asked.header, "extFields": ext}))
        told = {**answer.ext, **({MEANT: meant} if self.way == LIES else {})}
        return frame({**answer.header, "extFields": told})

    def register(self, nameserver: str, name: str = "broker-fake", topic: str = "lure", broker_id: int = 0) -> Frame:
        """Register as a broker, which stays while this server is open; the answer."""
        # NameServers take a table of one topic for a change of what they know.
        topics = {
            each: {
                "order": False, "perm": 6, "readQueueNums": 2, "topicFilterType": "SINGLE_TAG", "topicName": each,
                "topicSysFlag": 0, "writeQueueNums": 2,
            }
            for each in (topic, f"{topic}-2")
        }  # fmt: skip
        body = {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": topics
            },
        }  # fmt: skip
        data = json.dumps(body).encode()
        ext = {
            "brokerAddr": self.addr, "brokerId": str(broker_id), "brokerName": name, "clusterName": "DefaultCluster",
            "compressed": "false", "haServerAddr": self.addr, "bodyCrc32": str(zlib.crc32(data) & 0x7FFF_FFFF),
        }  # fmt: skip
        self.registration = connect(nameserver)
        self._open.append(self.registration)
        return _asked(self.registration, request(103, ext, data))


@contextmanager
def fake_server(way: str, victim: str = "", answering: Answering = knows_nothing) -> Iterator[FakeServer]:
    """A fake server that serves until the end of the block."""
    made = FakeServer(way, victim, answering)
    try:
        yield made
    finally:
        made.close()
