"""Both ends of an HA connection, without sockets: bytes and the time go in, bytes to send come out. Pure.

The master sends the log from the slave's end on, as fast as the slave takes it; the slave reports how far it has it.
Both send something every ``heartbeat_s``, and a peer that was silent for ``timeout_s`` is considered gone. Times are in
seconds. Between two Skylark brokers a handshake comes first. After a ProtocolError the connection must be closed.
Neighbours: frames.py and hello.py (the bytes), master.py and slave.py (the sockets), tests/sim.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from skylark.broker.replication.frames import (
    CHUNK_BYTES,
    LEAVING,
    REPORT_BYTES,
    FrameReader,
    LogPiece,
    ReportReader,
    encode_header,
    encode_report,
)
from skylark.broker.replication.hello import (
    MAGIC,
    Hello,
    LinkTerms,
    LogClaim,
    MasterHandshake,
    PieceCrc,
    SlaveHandshake,
)
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import ProtocolError

# A new confirm offset is sent to a slave after this time, if nothing else is sent to the slave before.
CONFIRM_S = 0.1
RESYNC = "to copy the master's log from the start, stop this slave and run: broker resyncSlave STORE_DIR"
NO_HELLO = (
    "it sent no hello, and this master does not serve plain peers: give both the same haSharedSecret, or list the"
    " address in haPlainPeerAddresses when it is a Java broker"
)


class LogBounds(NamedTuple):
    """The master's log: bytes ``start`` to ``end``, in files of ``file_bytes``."""

    start: int
    end: int
    file_bytes: int

    @property
    def last_file(self) -> int:
        """Where the last file begins."""
        return max(self.end - (self.end - self.start) % self.file_bytes, self.start)


class Range(NamedTuple):
    """Send ``header``, then ``size`` bytes of the log from ``offset`` on."""

    header: bytes
    offset: int
    size: int


class Newcomer(NamedTuple):
    """Who asks a master that Controllers have elected to be served.

    ``addr`` is the address of broker ``broker_id`` for clients, "" when a plain peer did not say it; ``peer`` is the
    other end of the connection, host:port.
    """

    broker_id: int
    addr: str
    peer: str

    @property
    def where(self) -> str:
        """The address for clients, or of a plain peer the host: two brokers with one id differ in it."""
        return self.addr or split_address(self.peer)[0]


#: What a slave says of itself and its master judges: its log, or with Controllers which broker it is.
Claim = LogClaim | Newcomer


class LinkToSlave(ABC):
    """The shared part of the master's ends of both protocols: the handshake, the times of both sides, the slave's ends.

    Sets with Controllers have the other subclass, in autoswitch/link.py.
    """

    def __init__(self, terms: LinkTerms, bounds: Callable[[], LogBounds], nonce: bytes, now: float) -> None:
        self._terms = terms
        self._bounds = bounds
        self._handshake = MasterHandshake(terms, nonce)
        self._began = self._heard = self._said = now
        self._output = b""
        #: Where the next range begins; -1 until the slave has reported its log's end, or was assigned a start.
        self.next_offset = -1
        #: All before this is in the slave's log, as far as the slave has said; -1 before its first report. Never above
        #: `next_offset` and never lower than before: a send that was acknowledged because of it stays acknowledged.
        self.acked = -1

    def accepted_at(self, addr: str) -> None:
        """Set the address of this end of the connection, ``ip:port``, before the first bytes come."""
        self._handshake.local = addr

    @property
    def refusal(self) -> str:
        """Why the slave is refused, "" if it is not. It is in the output: close the connection when that is sent."""
        return self._handshake.refusal

    def take_output(self) -> bytes:
        """The bytes to send before any range."""
        output, self._output = self._output, b""
        return output

    def check(self, now: float) -> None:
        """ProtocolError when the slave has been silent for too long."""
        if now >= self.times_out_at():
            if self._must_identify:
                raise ProtocolError(f"it did not identify itself in {self._terms.hello_s:g} s")
            raise ProtocolError(f"nothing was received from it for {self._terms.timeout_s:.0f} s")

    def times_out_at(self) -> float:
        """When `check` raises, unless something comes before."""
        if self._must_identify:
            # Counted from the start of the connection: a peer gains no time by sending byte after byte.
            return self._began + min(self._terms.hello_s, self._terms.timeout_s)
        return self._heard + self._terms.timeout_s

    @property
    @abstractmethod
    def _must_identify(self) -> bool:
        """Whether the handshake waits for the peer."""

    @property
    @abstractmethod
    def claimed(self) -> Claim | None:
        """The claim to be judged; None before it is known, and after it was judged."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether there is nothing to send but ranges, and nothing to judge."""

    @abstractmethod
    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave. After a ProtocolError the connection must be closed."""

    @abstractmethod
    def next_range(self, now: float, most: int = CHUNK_BYTES) -> Range | None:
        """What to send now: up to ``most`` bytes of the log, a heartbeat (size 0), or None."""

    @abstractmethod
    def beat_at(self) -> float:
        """When `next_range` gives a heartbeat."""


class MasterLink(LinkToSlave):
    """The master's end of one connection, in a set without a Controller.

    The owner repeats: `receive` the bytes from the slave, send `take_output`, send `next_range`. When ``claimed`` is
    set, it compares the claim's CRCs with the log and calls `judge`.
    """

    def __init__(
        self, terms: LinkTerms, bounds: Callable[[], LogBounds], nonce: bytes, now: float, *, serves_plain: bool = True
    ) -> None:
        """``serves_plain``: whether this peer needs no hello."""
        super().__init__(terms, bounds, nonce, now)
        self._serves_plain = serves_plain
        # The peer's first bytes, until they tell a hello from an offset; None afterwards.
        self._first: bytes | None = b""
        self._reports = ReportReader()
        self._chunk_bytes = CHUNK_BYTES
        # Where the slave's log begins, as far as that is known.
        self.start = 0
        #: Whether the slave has said that it is about to stop.
        self.is_leaving = False
        # The slave may go when it was sent the log up to here, and a heartbeat; -1: it is not about to.
        self._leaves_at = -1
        # The slave may go, and is sent nothing more: a connection that is closed with unread bytes is reset, and its
        # last reports may be lost.
        self._may_go = False

    @property
    def hello(self) -> Hello | None:
        """Who the slave is; None before that is known, and for a plain peer."""
        return self._handshake.hello

    @property
    def claimed(self) -> LogClaim | None:
        """The claim that `judge` is to be called for."""
        return self._handshake.claim

    @property
    def ready(self) -> bool:
        """Whether the slave is accepted, so that the log can be sent."""
        return self.next_offset >= 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send until the log grows or a heartbeat is due."""
        waits = self._output or self.claimed is not None or self.refusal or self._leaves_at >= 0
        return not waits and (self._may_go or self.next_offset == self._bounds().end)

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave. After a ProtocolError the connection must be closed."""
        if not data:
            return
        self._heard = now
        if self._first is not None:
            self._first += data
            # The first byte tells: the magic is negative as an offset, and no plain slave is at a negative one.
            says_hello = self._first[:1] == MAGIC[:1]
            if not says_hello and len(self._first) < REPORT_BYTES:
                return
            data, self._first = self._first, None
            if not says_hello:
                self._begin_plain(data[:REPORT_BYTES])
        if self.next_offset < 0:
            self._handshake.receive(data)
            self._output += self._handshake.take_output()
            return
        for offset in self._reports.receive(data):
            self._reported(offset)

    def next_range(self, now: float, most: int = CHUNK_BYTES) -> Range | None:
        """What to send now: up to ``most`` bytes of the log, a heartbeat (size 0), or None."""
        at = self.next_offset
        if at < 0 or self._may_go:
            return None
        if now >= self.beat_at() or 0 <= self._leaves_at <= at:
            if 0 <= self._leaves_at <= at:
                self._leaves_at, self._may_go = -1, True
            self._said = now
            return Range(encode_header(at, 0), at, 0)
        bounds = self._bounds()
        if at < bounds.start:
            raise ProtocolError(f"the slave is at {at}, but the log before {bounds.start} was deleted meanwhile")
        file_left = bounds.file_bytes - (at - bounds.start) % bounds.file_bytes
        size = min(bounds.end - at, self._chunk_bytes, most, file_left)
        if size <= 0:
            return None
        self._said = now
        self.next_offset = at + size
        return Range(encode_header(at, size), at, size)

    def beat_at(self) -> float:
        """When `next_range` gives a heartbeat."""
        return self._said + self._terms.heartbeat_s if self.ready and not self._may_go else inf

    @property
    def _must_identify(self) -> bool:
        return not self.ready and self.claimed is None

    def judge(self, difference: PieceCrc | None, now: float) -> None:
        """Answer the claim; ``difference``: a piece in which the slave's log differs from the master's."""
        claim = self.claimed
        assert claim is not None
        bounds = self._bounds()
        # The slave goes on at its own end. Only an empty log may begin elsewhere: at the last file, or where the log
        # does.
        start = claim.end
        if claim.start == claim.end:
            start = bounds.last_file if claim.last_file else bounds.start
        if refusal := _refusal(claim, bounds, difference):
            self._handshake.refuse(refusal)
        else:
            self._handshake.welcome(start)
            self.next_offset = start
            self.start = min(claim.start, start) if claim.end > claim.start else start
        self._said = now
        self._output += self._handshake.take_output()

    def _begin_plain(self, first: bytes) -> None:
        if not self._serves_plain:
            raise ProtocolError(NO_HELLO)
        (offset,) = ReportReader().receive(first)
        bounds = self._bounds()
        if offset and not bounds.start <= offset <= bounds.end:
            raise ProtocolError(
                f"its first 8 bytes, {first.hex()}, are not an offset of the log from {bounds.start} to {bounds.end}:"
                " it is not a slave of this broker, or its log is a different one"
            )
        self._chunk_bytes = self._terms.plain_chunk_bytes
        self.next_offset = self.start = offset or bounds.last_file

    def _reported(self, offset: int) -> None:
        if offset == LEAVING and self.hello is not None:
            # No send waits for this slave any more, except for what is in the log now.
            self.is_leaving, self._leaves_at = True, self._bounds().end
            return
        # A report past the sent bytes could acknowledge a send that no slave has.
        if not 0 <= offset <= self.next_offset:
            raise ProtocolError(f"it reports offset {offset}, but was sent the log only up to {self.next_offset}")
        self.acked = max(self.acked, offset)


def file_size_refusal(claim: LogClaim, bounds: LogBounds) -> str:
    """Why a slave with files of another size is refused; "" when they have the same."""
    if claim.file_bytes == bounds.file_bytes:
        return ""
    return (
        f"its commit log files have {claim.file_bytes} bytes, but the master's {bounds.file_bytes}:"
        " set mappedFileSizeCommitLog to the same value"
    )


def _refusal(claim: LogClaim, bounds: LogBounds, difference: PieceCrc | None) -> str:
    if sizes := file_size_refusal(claim, bounds):
        return sizes
    if claim.start == claim.end:
        return ""
    # The slave has bytes that the master lacks: one of the two logs has lost bytes, and it is unknown which is right.
    if claim.end > bounds.end:
        return (
            f"it has the log up to {claim.end}, but the master only up to {bounds.end}:"
            f" {claim.end - bounds.end:,} bytes that the master lacks. Nothing is overwritten; {RESYNC}"
        )
    if difference is not None:
        return (
            f"its log differs from the master's somewhere in {difference.offset} to"
            f" {difference.offset + difference.size} (the slave ends at {claim.end}, the master at {bounds.end})."
            f" Nothing is overwritten; {RESYNC}"
        )
    if claim.end < bounds.start:
        return f"it has the log up to {claim.end}, but the master's begins at {bounds.start}; {RESYNC}"
    return ""


class LinkToMaster(ABC):
    """The shared part of the slave's ends of both protocols: the handshake, the times of both sides, the reports."""

    #: Encodes a report of this protocol.
    encode_report: Callable[[int], bytes]

    def __init__(
        self, terms: LinkTerms, start: int, end: int, now: float, proof: tuple[Hello, LogClaim] | None
    ) -> None:
        """The slave's log has the bytes from ``start`` to ``end``. ``proof``: begin with a handshake."""
        self._terms = terms
        self._heard = self._said = now
        self._handshake = None if proof is None else SlaveHandshake(terms, *proof)
        # None: the log is empty, and will begin where the master's first piece does.
        self._end = end if end > start else None
        self._reported = -1
        self._output = b""
        #: Whether the master knows from where on it must send the log.
        self.ready = False

    def connected_to(self, addr: str) -> None:
        """Set the address of the other end of the connection, ``ip:port``, before the first bytes come."""
        if self._handshake is not None:
            self._handshake.remote = addr

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is due. ProtocolError when the master has been silent for too long."""
        if now >= self._heard + self._terms.timeout_s:
            raise ProtocolError(f"nothing was received from the master for {self._terms.timeout_s:.0f} s")
        if self.ready and now >= self._said + self._terms.heartbeat_s:
            self._report(max(self._reported, 0), now)

    def wake_at(self) -> float:
        """When `tick` has something to do."""
        return min(self._heard + self._terms.timeout_s, self._said + self._terms.heartbeat_s if self.ready else inf)

    def take_output(self) -> bytes:
        """The bytes to send."""
        output, self._output = self._output, b""
        return output if self._handshake is None else self._handshake.take_output() + output

    @abstractmethod
    def report(self, offset: int, now: float) -> None:
        """Report that this slave has the log up to ``offset``."""

    def leave(self, now: float) -> bool:
        """Say that this slave is about to stop; returns whether the master will say when it may (`may_leave`)."""
        return False

    @property
    def may_leave(self) -> bool:
        """Whether the master has sent all that sends wait for, after `leave`."""
        return True

    def _report(self, offset: int, now: float) -> None:
        self._reported, self._said = offset, now
        self._output += self.encode_report(offset)


class SlaveLink(LinkToMaster):
    """The slave's end of one connection. ``end``: the end of its log; ``proof``: begin with a handshake.

    ``begin``: where an empty log begins when the master is plain; 0: with the master's last file.
    `receive` returns the pieces to append; `report` and `tick` add to the bytes that `take_output` returns.
    """

    encode_report = staticmethod(encode_report)

    def __init__(
        self,
        terms: LinkTerms,
        now: float,
        *,
        start: int,
        end: int,
        begin: int = 0,
        proof: tuple[Hello, LogClaim] | None = None,
    ) -> None:
        super().__init__(terms, start, end, now, proof)
        self._frames = FrameReader()
        self._leaves: bool | None = None
        if proof is None:
            self.ready = True
            self._report(begin if self._end is None else end, now)

    def receive(self, data: bytes | memoryview, now: float) -> list[LogPiece]:
        """The pieces of the log in ``data``, without gaps. ReplicationRefused when the master refuses this slave."""
        self._heard = now
        if not self.ready:
            data = self._shake_hands(bytes(data), now)
            if not data:
                return []
        pieces: list[LogPiece] = []
        for piece in self._frames.receive(data):
            if self._end is not None and piece.offset != self._end:
                raise ProtocolError(f"the master goes on at {piece.offset}, but this log ends at {self._end}")
            if piece.data:
                self._end = piece.offset + len(piece.data)
                pieces.append(piece)
            elif self._leaves is False:
                self._leaves = True
        return pieces

    def leave(self, now: float) -> bool:
        if self._handshake is None or not self.ready:
            return False
        self._output += encode_report(LEAVING)
        self._leaves = False
        return True

    @property
    def may_leave(self) -> bool:
        return self._leaves is not False

    @property
    def client_addr(self) -> str:
        """Where the master takes requests, as the master says itself; "" if it has not said so."""
        welcome = self._handshake and self._handshake.welcome
        return welcome.client_addr if welcome else ""

    def report(self, offset: int, now: float) -> None:
        """Report that this slave has the log up to ``offset``: the master counts it as a copy up to there."""
        if self.ready and offset > self._reported:
            self._report(offset, now)

    def _shake_hands(self, data: bytes, now: float) -> bytes:
        assert self._handshake is not None
        rest = self._handshake.receive(data)
        welcome = self._handshake.welcome
        if welcome is None:
            return b""
        if self._end is not None and welcome.offset != self._end:
            raise ProtocolError(f"the master goes on at {welcome.offset}, but this log ends at {self._end}")
        self.ready = True
        # At once: a SYNC_MASTER does not count a slave before its first report, and the log may not grow for long.
        self._report(self._end or 0, now)
        return rest
