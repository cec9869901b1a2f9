"""Simulated brokers and clients of `bench/scale.py`: real frames on real connections, driven by one epoll.

They are plain sockets and frames that were encoded before, so that this side costs little beside the NameServer.
"""

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

from skylark.mqcommon.addresses import split_address
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.command import CBOR, JSON, OFFER_CBOR, OFFER_FIELD, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.dialect import Dialect, encode_body
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.registrations import (
    BROKER_HEARTBEAT,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    BrokerHeartbeatRequestHeader,
    RegisterBrokerBody,
)
from skylark.remoting.protocol.requests.routes import (
    GET_ROUTEINFO_BY_TOPIC,
    WATCH_ROUTES,
    BrokerRequestHeader,
    GetRouteInfoRequestHeader,
    RegisterBrokerRequestHeader,
    WatchRoutesRequestHeader,
    WatchRoutesResponseHeader,
)
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicList

CLUSTER = "DefaultCluster"
# The size of a part, as brokers send a large set (broker/registration/registration.py).
PART_TOPICS = 500
ANSWER_TIMEOUT_S = 120.0
RECEIVE_BYTES = 262_144
PROBE_PAUSE_S = 0.002
_PREFIX_BYTES = 4


def topic_name(number: int) -> str:
    """A name as long as names of topics usually are."""
    return f"orders-of-region-{number:06d}"


class Broker(NamedTuple):
    """One simulated master, and the frames that it sends."""

    name: str
    addr: str
    topics: Sequence[str]

    @classmethod
    def numbered(cls, number: int, brokers: int, topics: int, copies: int) -> "Broker":
        """``brokers`` simulated brokers; each of ``topics`` topics is on ``copies`` of them."""
        stride = brokers // copies
        residues = {(number - copy * stride) % brokers for copy in range(copies)}
        own = [topic_name(topic) for residue in sorted(residues) for topic in range(residue, topics, brokers)]
        # The addresses are of the network for documentation, so of no machine.
        return cls(f"broker-{number:04d}", f"192.0.2.{number % 250 + 1}:{10_000 + number // 250}", own)

    def join(self, version: int) -> list[bytes]:
        """The frames that the broker sends on a new connection, each after the answer to the frame before.

        A few topics are sent in one frame, which is JSON and offers to speak CBOR. Before many topics, the broker asks
        whether the NameServer takes parts.
        """
        if len(self.topics) <= PART_TOPICS:
            return [_offering(REGISTER_BROKER.command(self._header()), encode_body(self._body(version, self.topics)))]
        parts = [self.topics[at : at + PART_TOPICS] for at in range(0, len(self.topics), PART_TOPICS)]
        first = _offering(QUERY_DATA_VERSION.command(self._who()), encode_body(_version(version)))
        return [first, *(self._part(n, n == len(parts) - 1, version, part) for n, part in enumerate(parts))]

    def change(self, base: int, topics: Sequence[str]) -> bytes:
        """103 with ``topics``, which have changed since the version ``base``; the next version has them."""
        return self._part(0, True, base + 1, topics, base)

    def ask_version(self, version: int) -> bytes:
        """322: a heartbeat that asks whether the NameServer has this version."""
        body = encode_body(_version(version), Dialect.CBOR)
        return framed(QUERY_DATA_VERSION.command(self._who()), body, CBOR)

    def heartbeat(self) -> bytes:
        """904."""
        header = BrokerHeartbeatRequestHeader(CLUSTER, self.addr, self.name, 0)
        return framed(BROKER_HEARTBEAT.command(header), b"", CBOR)

    def _part(self, number: int, is_last: bool, version: int, topics: Sequence[str], base: int | None = None) -> bytes:
        header = self._header()
        header.part, header.is_last_part = number, is_last
        if base is not None:
            since = _version(base)
            header.base_state_version, header.base_timestamp = since.state_version, since.timestamp
            header.base_counter = since.counter
        return framed(REGISTER_BROKER.command(header), encode_body(self._body(version, topics), Dialect.CBOR), CBOR)

    def _header(self) -> RegisterBrokerRequestHeader:
        return RegisterBrokerRequestHeader(
            self.name, self.addr, CLUSTER, self.addr, 0, enable_acting_master=False, compressed=False
        )

    def _who(self) -> BrokerRequestHeader:
        return BrokerRequestHeader(self.name, self.addr, CLUSTER, 0)

    def _body(self, version: int, topics: Sequence[str]) -> RegisterBrokerBody:
        told = _version(version)
        # Each version has other queues.
        table = {name: TopicConfig(name, 7 + version, 7 + version) for name in topics}
        return RegisterBrokerBody(TopicConfigTable(told, table, told))


def _offering(command: Command, body: bytes) -> bytes:
    command.ext = {**(command.ext or {}), OFFER_FIELD: OFFER_CBOR}
    return framed(command, body)


def _version(counter: int) -> DataVersion:
    return DataVersion(0, 1_700_000_000_000, counter)


def framed(command: Command, body: bytes = b"", codec: int = JSON) -> bytes:
    """The frame of a request."""
    command.body, command.codec, command.opaque = body, codec, 7
    return encode(command)


def route_query(topic: str, codec: int = CBOR) -> bytes:
    """105."""
    return framed(GET_ROUTEINFO_BY_TOPIC.command(GetRouteInfoRequestHeader(topic)), b"", codec)


def watch(version: str, topics: Sequence[str]) -> bytes:
    """7104. Without a version the answer comes at once, and has the present version."""
    body = encode_body(TopicList(list(topics)), Dialect.CBOR)
    return framed(WATCH_ROUTES.command(WatchRoutesRequestHeader(version)), body, CBOR)


def version_of(answer: bytes) -> str:
    """The version in the answer to a watch."""
    (command,) = Connection().receive_data(answer)
    return WatchRoutesResponseHeader.from_answer(command.ext).version


class Peer:
    """One connection, with at most one request in flight. A broker's connection answers probes of the server (7105)."""

    __slots__ = ("got", "is_broker", "left", "socket")

    def __init__(self, addr: str, *, is_broker: bool) -> None:
        self.is_broker = is_broker
        self.socket = socket.create_connection(split_address(addr), ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        # The bytes that are still to be sent, and the part of the answer that has come.
        self.left = b""
        self.got = b""

    def send(self, frame: bytes) -> bool:
        """Send as much as the socket takes; True if nothing is left."""
        try:
            sent = self.socket.send(frame)
        except BlockingIOError:
            sent = 0
        self.left = frame[sent:]
        return not self.left

    def receive(self) -> bytes | None:
        """The whole answer, once it has come."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed a connection")
        if not self.is_broker and not self.got and len(data) == _PREFIX_BYTES + int.from_bytes(data[:4], "big"):
            return data  # almost always
        got, found = self.got + data, None
        while len(got) >= _PREFIX_BYTES and len(got) >= (end := _PREFIX_BYTES + int.from_bytes(got[:4], "big")):
            frame, got = got[:end], got[end:]
            if self.is_broker and (reply := _reply(frame)):
                self.socket.send(reply)
            else:
                found = frame
        self.got = got
        return found


def _reply(frame: bytes) -> bytes:
    """A broker's answer to a request; b"" for an answer."""
    (command,) = Connection().receive_data(frame)
    return b"" if command.is_response else encode(command.respond())


class Load:
    """Connections to one server."""

    def __init__(self, addr: str) -> None:
        self._addr = addr
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}

    def connect(self, count: int, *, are_brokers: bool = False) -> list[Peer]:
        """Open more connections."""
        made = [Peer(self._addr, is_broker=are_brokers) for _ in range(count)]
        for peer in made:
            self._epoll.register(peer.socket.fileno(), select.EPOLLIN)
            self._peers[peer.socket.fileno()] = peer
        return made

    def close(self) -> None:
        for peer in self._peers.values():
            peer.socket.close()
        self._epoll.close()

    def at_once(self, peers: Sequence[Peer], frames: Sequence[bytes]) -> list[bytes]:
        """Send each peer's frame, wait for all answers, and return them in the order of their arrival."""
        return self.in_order(peers, [[frame] for frame in frames])

    def in_order(self, peers: Sequence[Peer], frames: Sequence[Sequence[bytes]]) -> list[bytes]:
        """As `at_once`; each peer has several frames, and sends each after the answer to the frame before."""
        left: dict[int, Iterator[bytes]] = {}
        for peer, own in zip(peers, frames, strict=True):
            left[peer.socket.fileno()] = iter(own)
            self._send(peer, next(left[peer.socket.fileno()]))
        found: list[bytes] = []
        total = sum(map(len, frames))
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while len(found) < total:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{total - len(found)} of {total} requests were not answered")
            for fd, event in self._epoll.poll(1.0):
                peer = self._peers[fd]
                if event & select.EPOLLOUT and peer.send(peer.left):
                    self._epoll.modify(fd, select.EPOLLIN)
                if event & ~select.EPOLLOUT and (answer := peer.receive()) is not None:
                    found.append(answer)
                    if (frame := next(left[fd], None)) is not None:
                        self._send(peer, frame)
        return found

    def _send(self, peer: Peer, frame: bytes) -> None:
        if not peer.send(frame):
            self._epoll.modify(peer.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def idle(self, seconds: float) -> None:
        """Do nothing but answer the server's probes."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for fd, _ in self._epoll.poll(left):
                self._peers[fd].receive()

    def send_only(self, peers: Sequence[Peer], frames: Sequence[bytes]) -> None:
        """Send frames whose answers come later."""
        for peer, frame in zip(peers, frames, strict=True):
            self._send(peer, frame)

    def send_and_await_others(self, peer: Peer, frame: bytes, count: int) -> list[tuple[float, bytes]]:
        """Send one frame.

        Returns the next ``count`` answers to all peers but the sender, and after how many ms they came.
        """
        started = time.perf_counter()
        self._send(peer, frame)
        found: list[tuple[float, bytes]] = []
        is_answered = False
        while len(found) < count or not is_answered:
            if time.perf_counter() - started > ANSWER_TIMEOUT_S:
                raise TimeoutError(f"{len(found)} of {count} clients were told")
            for fd, _ in self._epoll.poll(1.0):
                answer = self._peers[fd].receive()
                if answer is not None and self._peers[fd] is peer:
                    is_answered = True
                elif answer is not None:
                    found.append(((time.perf_counter() - started) * 1000, answer))
        return found

    def one_by_one(self, peers: Sequence[Peer], frames: Sequence[bytes]) -> list[bytes]:
        """Send one frame, wait for its answer, and go on with the next peer."""
        return [self.at_once([peer], [frame])[0] for peer, frame in zip(peers, frames, strict=True)]

    def for_seconds(self, peers: Sequence[Peer], frames: Sequence[bytes], seconds: float) -> tuple[int, float]:
        """Each peer sends its next request as soon as its answer is there. Returns the answers, and the seconds."""
        at, count, started = 0, 0, time.perf_counter()
        until = started + seconds
        for number, peer in enumerate(peers):
            peer.send(frames[number % len(frames)])
        at, waiting = len(peers), len(peers)
        while waiting:
            is_over = time.perf_counter() > until
            for fd, _ in self._epoll.poll(1.0):
                peer = self._peers[fd]
                if peer.receive() is None:
                    continue
                count += 1
                if is_over:
                    waiting -= 1
                else:
                    peer.send(frames[at % len(frames)])
                    at += 1
        return count, time.perf_counter() - started


def check(answers: Sequence[bytes]) -> None:
    """Exit unless all answers are successes."""
    for answer in answers:
        (command,) = Connection().receive_data(answer)
        if command.code:
            raise AssertionError(f"the server refused: {command}")


# --- route queries meanwhile


class Probed(NamedTuple):
    """The experience of one client that asked for routes all the time."""

    found_ms: Sequence[float]
    #: Times of answers that no broker has registered the topic yet.
    not_found_ms: Sequence[float]


@contextmanager
def probing(addr: str, topics: Sequence[str]) -> Iterator[list[Probed]]:
    """A process asks for one route after the other while the block runs; its result is in the list afterwards."""
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(addr, [route_query(name) for name in topics], theirs))
    process.start()
    found: list[Probed] = []
    try:
        ours.recv()
        yield found
        ours.send("stop")
        found.append(ours.recv())
    finally:
        process.join(10)
        process.kill()


def _probe(addr: str, frames: Sequence[bytes], pipe: Pipe) -> None:
    found: list[float] = []
    not_found: list[float] = []
    with socket.create_connection(split_address(addr), ANSWER_TIMEOUT_S) as peer:
        pipe.send("started")
        at = 0
        while not pipe.poll():
            started = time.perf_counter()
            peer.sendall(frames[at % len(frames)])
            parser = Connection()
            while not (answers := parser.receive_data(peer.recv(RECEIVE_BYTES))):
                pass
            (found if answers[0].code == 0 else not_found).append((time.perf_counter() - started) * 1000)
            at += 1
            time.sleep(PROBE_PAUSE_S)
    pipe.send(Probed(found, not_found))
