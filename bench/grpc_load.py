"""Loads of bench.proxy on plain sockets, each a process of its own: HTTP/2 frames that are made before they are sent.

The client costs little, so the figures are the server's. Stable headers are in hpack's dynamic table; new values are
literals in each call, as grpcio sends them: grpc-timeout, x-mq-request-id, x-mq-date-time, and authorization when calls
are signed. Works with any gRPC server that has these methods. Prints one figure:

python -m bench.grpc_load rate ADDRESS CALLS AT_ONCE       SendMessage, calls a second
python -m bench.grpc_load signed ADDRESS CALLS AT_ONCE     the same, signed
python -m bench.grpc_load latency ADDRESS CALLS            SendMessage, one in flight, median in ms
python -m bench.grpc_load remoting ADDRESS CALLS           a send by remoting, one in flight, median in ms
python -m bench.grpc_load slowest ADDRESS CALLS            the same, p99
python -m bench.grpc_load receive ADDRESS MESSAGES AT_ONCE ReceiveMessage and AckMessage of 16, messages a second
python -m bench.grpc_load arrive ADDRESS MESSAGES          send to a waiting receiver, 100 a second, median in ms
python -m bench.grpc_load hold ADDRESS AT_ONCE             SendMessage until its stdin closes, calls a second
python -m bench.grpc_load hold_remoting ADDRESS AT_ONCE    sends by remoting until its stdin closes, sends a second
"""

import hmac
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, cycle
from statistics import median, quantiles
from typing import NamedTuple

import hpack

from bench.guard_auth import USER
from bench.traffic import TOPIC, send_frames
from skylark.mqcommon.addresses import split_address
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW_BYTES,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_WINDOW_BYTES,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
    window_update,
)

#: Topics of `receive` and of `arrive`, which get no other messages, and the group of both.
FULL, ARRIVALS = "full", "arrivals"
GROUP = "bench"
BODY = b"x" * 128
BATCH = 16
WARM_UP = 200
PAUSE_S = 0.01
DEADLINE_S = 30.0

_READ_BYTES = 262_144
# A status of RocketMQ's OK with its text, as an answer and each entry in it have.
_OK = wire.Status(code=wire.OK, message="OK").SerializeToString()
# The time in x-mq-date-time of the first call; each call is a second later.
_FIRST_TIME = 1_700_000_000


class Answer(NamedTuple):
    """The frames of one stream that has ended."""

    stream: int
    messages: list[bytes]


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing, as grpcio's client writes those whose values it does not know."""
    assert len(name) < 127 and len(value) < 254
    size = bytes((len(value),)) if len(value) < 127 else bytes((127, len(value) - 127))
    return b"\x00" + bytes((len(name),)) + name + size + value


def varying(number: int, *, is_signed: bool) -> bytes:
    """The fields of call ``number`` that no other call has."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(_FIRST_TIME + number)).encode()
    made = [
        _literal(b"grpc-timeout", b"%dm" % (9_000 - number % 1_000)),
        _literal(b"x-mq-date-time", date),
        _literal(b"x-mq-request-id", b"%08x-7777-4777-8777-0123456789ab" % number),
    ]
    if is_signed:
        digest = hmac.digest(USER.secret_key.encode(), date, "sha1").hex()
        value = f"MQv2-HMAC-SHA1 Credential={USER.access_key}, SignedHeaders=x-mq-date-time, Signature={digest}"
        made.append(_literal(b"authorization", value.encode()))
    return b"".join(made)


class Connection:
    """A connection to a gRPC server. It reads all that comes, and answers pings and settings."""

    def __init__(self, address: str, client_id: str = "bench") -> None:
        self._address = address
        self._client_id = client_id
        self.socket = _connected(address)
        # What was read last, and the part of it that is no whole frame yet.
        self._data = self._tail = b""
        self._encoder = hpack.Encoder()
        self._stream = -1
        self._window = FIRST_WINDOW_BYTES
        # The methods whose headers are in the table, and the blocks of indices of those.
        self._methods: set[str] = set()
        self._blocks: dict[str, bytes] = {}
        # Of streams that are open: the data that has come.
        self._open: dict[int, bytearray] = {}
        most = settings([(INITIAL_WINDOW_SIZE, MAX_WINDOW_BYTES)])
        self.socket.sendall(PREFACE + most + window_update(0, MAX_WINDOW_BYTES - FIRST_WINDOW_BYTES))
        # The server's settings come first, and may make its table of headers smaller.
        self._has_settings = False
        while not self._has_settings:
            self.read()

    def _stable(self, method: str) -> bytes:
        """The block of the headers that all calls of ``method`` share: indices only, after the first call."""
        if found := self._blocks.get(method):
            return found
        headers = [
            (":scheme", "http"),
            (":method", "POST"),
            (":authority", self._address),
            (":path", f"/{SERVICE}/{method}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-python/1.85.3 grpc-c/54.0.0 (linux; chttp2)"),
            ("grpc-accept-encoding", "identity, deflate, gzip"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "GRPC_V2"),
            ("x-mq-client-version", "5.1.2"),
            ("x-mq-client-id", self._client_id),
        ]
        if method not in self._methods:
            # New entries of the table move the others: all blocks are made again when they are needed next.
            self._methods.add(method)
            self._blocks.clear()
            return self._encoder.encode(headers)
        made = self._blocks[method] = self._encoder.encode(headers)
        return made

    def request(self, method: str, message: bytes, number: int, *, is_signed: bool = False) -> bytes:
        """The frames of a new call, which must be sent in the order in which they were made."""
        self._stream += 2
        block = self._stable(method) + varying(number, is_signed=is_signed)
        data = b"\x00" + len(message).to_bytes(4, "big") + message
        return frame(HEADERS, END_HEADERS, self._stream, block) + frame(DATA, END_STREAM, self._stream, data)

    def call(self, method: str, message: bytes, number: int) -> int:
        """Begin a call whose answer `answers` gives; returns its stream."""
        request = self.request(method, message, number)
        self._open[self._stream] = bytearray()
        self.send([request])
        return self._stream

    def send(self, requests: list[bytes]) -> None:
        """Send calls. The window of every server has room for the data of this load's calls in flight."""
        # A call is two frames, each with a header of nine bytes; only the second one counts.
        data_bytes = sum(len(each) - 18 - int.from_bytes(each[:3], "big") for each in requests)
        self._window -= data_bytes
        if self._window < 0:
            raise SystemExit("the server does not give its window back")
        self.socket.sendall(b"".join(requests))

    def read(self) -> tuple[int, int]:
        """Read once: how many streams have ended, and how many times RocketMQ's OK has come."""
        ended = 0
        for kind, flags, _, _ in self._frames():
            if kind == HEADERS:
                ended += flags & END_STREAM
        return ended, self._data.count(_OK, 0, len(self._data) - len(self._tail))

    def answers(self) -> list[Answer]:
        """Read once: the streams that have ended, of those that `call` began."""
        ended: list[Answer] = []
        for kind, flags, stream, payload in self._frames():
            if kind == DATA:
                self._open[int.from_bytes(stream, "big")] += payload
            elif flags & END_STREAM:
                number = int.from_bytes(stream, "big")
                ended.append(Answer(number, list(_messages(self._open.pop(number)))))
        return ended

    def _frames(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Read once: kind, flags, stream and payload of frames with data or headers; others are handled here."""
        received = self.socket.recv(_READ_BYTES)
        if not received:
            raise SystemExit("the server has closed the connection")
        self._data = data = self._tail + received
        at, end, replies = 0, len(data), b""
        while end - at >= 9:
            start = at + 9
            after = start + int.from_bytes(data[at : at + 3], "big")
            if after > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind in (HEADERS, DATA):
                if kind == DATA and flags & END_STREAM:
                    raise SystemExit("the server has ended a stream without trailers")
                yield kind, flags, data[at + 5 : start], data[start:after]
            else:
                replies += self._control(kind, flags, data[at + 5 : start], data[start:after])
            at = after
        self._tail = data[at:]
        if replies:
            self.socket.sendall(replies)

    def _control(self, kind: int, flags: int, stream: bytes, payload: bytes) -> bytes:
        """Handle a frame without an answer in it; returns the frames to send."""
        if kind == WINDOW_UPDATE:
            if stream == bytes(4):
                self._window += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == HEADER_TABLE_SIZE:
                    size = int.from_bytes(payload[at + 2 : at + 6], "big")
                    self._encoder.header_table_size = min(size, self._encoder.header_table_size)
            self._has_settings = True
            return frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            return frame(PING, ACK, 0, payload)
        elif kind in (RST_STREAM, GOAWAY):
            raise SystemExit(f"the server refused: frame {kind} with {payload!r}")
        return b""


def _messages(data: bytes | bytearray) -> Iterator[bytes]:
    """The messages of gRPC in the data of a stream."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        yield bytes(data[at + 5 : at + 5 + size])
        at += 5 + size


def _send_request(topic: str = TOPIC, body: bytes = BODY) -> bytes:
    system = wire.SystemProperties(message_id="0102FC0000000175170B1ABA8000000000", body_encoding=wire.IDENTITY)
    message = wire.Message(topic=wire.Resource(name=topic), body=body, system_properties=system)
    return wire.SendMessageRequest(messages=[message]).SerializeToString()


def _keep(connection: Connection, requests: Iterable[bytes], at_once: int) -> int:
    """Send ``requests`` with ``at_once`` in flight; returns how many were answered with OK."""
    left = deque(requests)
    in_flight = answered = oks = 0
    while left or in_flight:
        room = min(at_once - in_flight, len(left))
        # Several requests leave together, as with a client that has a loop of its own.
        if room and room >= min(max(at_once // 4, 1), len(left)):
            connection.send([left.popleft() for _ in range(room)])
            in_flight += room
        ended, found = connection.read()
        in_flight -= ended
        answered += ended
        oks += found
    if oks != 2 * answered:  # the status of the answer, and of its only entry
        raise SystemExit(f"only {oks // 2} of {answered} calls were answered with OK")
    return answered


def rate(address: str, calls: int, at_once: int, *, is_signed: bool = False) -> float:
    """SendMessage, 128 B: calls a second."""
    connection, message = Connection(address), _send_request()

    def made(count: int) -> list[bytes]:
        return [connection.request("SendMessage", message, number, is_signed=is_signed) for number in range(count)]

    _keep(connection, made(WARM_UP), at_once)
    requests = made(calls)
    began = time.perf_counter()
    answered = _keep(connection, requests, at_once)
    return answered / (time.perf_counter() - began)


def signed(address: str, calls: int, at_once: int) -> float:
    """As `rate`, with calls that are signed."""
    return rate(address, calls, at_once, is_signed=True)


def hold(address: str, at_once: int) -> float:
    """SendMessage until stdin closes: calls a second."""
    connection, message = Connection(address), _send_request()
    numbers = count()

    def send(calls: int) -> None:
        connection.send([connection.request("SendMessage", message, next(numbers)) for _ in range(calls)])

    return _held(at_once, send, lambda: connection.read()[0])


def hold_remoting(address: str, at_once: int) -> float:
    """Sends by remoting until stdin closes: sends a second."""
    connected, frames, tail = _connected(address), cycle(send_frames(10_000, BODY)), b""

    def send(calls: int) -> None:
        connected.sendall(b"".join([next(frames) for _ in range(calls)]))

    def read() -> int:
        nonlocal tail
        data, at, ended = tail + connected.recv(_READ_BYTES), 0, 0
        while len(data) - at >= 4 and (size := 4 + int.from_bytes(data[at : at + 4], "big")) <= len(data) - at:
            at, ended = at + size, ended + 1
        tail = data[at:]
        return ended

    return _held(at_once, send, read)


def _held(at_once: int, send: Callable[[int], None], read: Callable[[], int]) -> float:
    """Requests a second, ``at_once`` in flight, until stdin closes. Says when it begins."""
    print("loading", flush=True)
    began = time.perf_counter()
    in_flight = answered = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        room = at_once - in_flight
        if room >= max(at_once // 4, 1):
            send(room)
            in_flight += room
        ended = read()
        in_flight -= ended
        answered += ended
    return answered / (time.perf_counter() - began)


def _connected(address: str) -> socket.socket:
    made = socket.create_connection(split_address(address), DEADLINE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _times_ms(calls: int, once: Callable[[int], None]) -> list[float]:
    """The times of ``calls`` calls in ms, one after another."""
    times = []
    for number in range(WARM_UP + calls):
        began = time.perf_counter()
        once(number)
        times.append((time.perf_counter() - began) * 1_000)
    return times[WARM_UP:]


def latency(address: str, calls: int) -> float:
    """SendMessage, one in flight: the median in ms."""
    connection, message = Connection(address), _send_request()
    requests = [connection.request("SendMessage", message, number) for number in range(WARM_UP + calls)]

    def once(number: int) -> None:
        if _keep(connection, [requests[number]], 1) != 1:
            raise SystemExit("a call was not answered")

    return median(_times_ms(calls, once))


def _remoting_ms(address: str, calls: int) -> list[float]:
    connected = _connected(address)
    frames = send_frames(WARM_UP + calls, BODY)

    def once(number: int) -> None:
        connected.sendall(frames[number])
        data = connected.recv(_READ_BYTES)
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += connected.recv(_READ_BYTES)
        if b'"code":0,' not in data:
            raise SystemExit(f"a send was refused: {data!r}")

    return _times_ms(calls, once)


def remoting(address: str, calls: int) -> float:
    """A send by remoting, one in flight: the median in ms."""
    return median(_remoting_ms(address, calls))


def slowest(address: str, calls: int) -> float:
    """A send by remoting, one in flight: the time in ms that 99 of 100 sends do not exceed."""
    return quantiles(_remoting_ms(address, calls), n=100)[-1]


def _receive_request(topic: str, wait_s: int) -> bytes:
    asked = wire.ReceiveMessageRequest(group=wire.Resource(name=GROUP), batch_size=BATCH)
    asked.message_queue.topic.name = topic
    asked.message_queue.id = -1
    asked.filter_expression.expression = "*"
    asked.invisible_duration.FromSeconds(60)
    asked.long_polling_timeout.FromSeconds(wait_s)
    return asked.SerializeToString()


def _received(answer: Answer) -> list[wire.Message]:
    """The messages of an answer to ReceiveMessage."""
    parts = [wire.ReceiveMessageResponse.FromString(part) for part in answer.messages]
    statuses = [part.status for part in parts if part.HasField("status")]
    if [status.code for status in statuses] not in ([wire.OK], [wire.MESSAGE_NOT_FOUND]):
        raise SystemExit(f"a receive was refused: {statuses}")
    return [part.message for part in parts if part.HasField("message")]


def _ack_request(topic: str, messages: list[wire.Message]) -> bytes:
    entries = [
        wire.AckMessageEntry(
            message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
        )
        for each in messages
    ]
    asked = wire.AckMessageRequest(group=wire.Resource(name=GROUP), topic=wire.Resource(name=topic), entries=entries)
    return asked.SerializeToString()


def receive(address: str, messages: int, at_once: int) -> float:
    """ReceiveMessage and AckMessage of 16 messages, by ``at_once`` receivers: messages a second."""
    connection, wanted = Connection(address), _receive_request(FULL, 5)
    # Streams of AckMessage, and how many messages each acknowledges.
    acks: dict[int, int] = {}
    acked = number = 0

    def ask(method: str, message: bytes) -> int:
        nonlocal number
        number += 1
        return connection.call(method, message, number)

    began = time.perf_counter()
    for _ in range(at_once):
        ask("ReceiveMessage", wanted)
    while acked < messages:
        for answer in connection.answers():
            if answer.stream in acks:
                if b"".join(answer.messages).count(_OK) != 1 + acks[answer.stream]:
                    raise SystemExit("an acknowledgement was refused")
                acked += acks.pop(answer.stream)
                ask("ReceiveMessage", wanted)
            elif found := _received(answer):
                acks[ask("AckMessage", _ack_request(FULL, found))] = len(found)
            else:
                ask("ReceiveMessage", wanted)
    return acked / (time.perf_counter() - began)


def arrive(address: str, messages: int) -> float:
    """The median time in ms from a send to the arrival at a waiting receiver, at 100 sends a second."""
    receiver, sender = Connection(address, "receiver"), Connection(address, "sender")
    wanted = _receive_request(ARRIVALS, 20)
    times: list[float] = []
    numbers = count()

    def handle(answers: list[Answer]) -> None:
        now = time.perf_counter()
        for answer in answers:
            if answer.stream in acks:
                acks.discard(answer.stream)
                continue
            found = _received(answer)
            receiver.call("ReceiveMessage", wanted, next(numbers))
            if found:
                times.extend((now - float(each.body)) * 1_000 for each in found)
                acks.add(receiver.call("AckMessage", _ack_request(ARRIVALS, found), next(numbers)))

    acks: set[int] = set()
    receiver.call("ReceiveMessage", wanted, next(numbers))
    due = time.perf_counter()
    while len(times) < WARM_UP + messages:
        now = time.perf_counter()
        if now >= due:
            due = now + PAUSE_S
            body = b"%.9f" % time.perf_counter()
            sender.call("SendMessage", _send_request(ARRIVALS, body), next(numbers))
        ready, _, _ = select.select([receiver.socket, sender.socket], [], [], max(due - time.perf_counter(), 0))
        if receiver.socket in ready:
            handle(receiver.answers())
        if sender.socket in ready:
            sender.answers()
    return median(times[WARM_UP:])


def main() -> None:
    what, address, *numbers = sys.argv[1:]
    print(globals()[what](address, *map(int, numbers)))


if __name__ == "__main__":
    main()
