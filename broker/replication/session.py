"""The steps of both ends of an HA connection: which slaves count as copies, what to send, when to report. Pure.

`MasterSide` and `SlaveSide` are what the transports need of a session (master.py, slave.py), whatever its protocol.
`MasterSession` and `SlaveSession` are for sets without a Controller; autoswitch/session.py has the others. A
`MasterSide` is driven by its connection's two tasks, a `SlaveSide` by the tasks that copy and flush; tests/sim drives
both. Times are in seconds. After a ProtocolError the connection must be closed.
Neighbours: link.py (the protocol), plain_dialogue.py (how a connection begins), writing/waits.py (sends that wait).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from skylark.broker.replication.frames import CHUNK_BYTES, LogPiece
from skylark.broker.replication.hello import PieceCrc
from skylark.broker.replication.link import Claim, LinkToMaster, LinkToSlave, MasterLink, Range, SlaveLink
from skylark.broker.writing.waits import AckLedger, ConnectedSlave
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass


class Bytes(Protocol):
    """A piece of the log."""

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> memoryview: ...


#: An objection against a slave: without a Controller a piece of its log that differs, with a Controller a text.
Objection = PieceCrc | str | None


@lazy_dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection to the HA port: its address, and since when it is connected.

    ``admit`` is called before it is accepted as a slave, with whether it said hello, and may raise ProtocolError.
    ``close`` ends the connection for a reason.
    """

    addr: str
    since: float
    admit: Callable[[bool], None]
    close: Callable[[str], None]


class MasterSide(ABC):
    """A master's session with one slave, which is in ``acks`` from the moment when it is accepted until `ended`.

    One task calls `receive`. The other calls `next_step` in a loop and does what it returns: send bytes; examine what
    the slave claims and call `judge`; send a range and call `sent`. On None it waits for `receive`, for the log to
    grow or for ``link.beat_at()``.
    """

    def __init__(self, link: LinkToSlave, acks: AckLedger, peer: Peer) -> None:
        self.link = link
        #: Its row in the ledger while it follows.
        self.slave: ConnectedSlave | None = None
        self._acks = acks
        self._peer = peer

    @property
    @abstractmethod
    def who(self) -> str:
        """The slave, for the log."""

    def lags(self, end: int) -> bool:
        """Whether this is a slave without all before ``end``."""
        return self.link.next_offset >= 0 and self.link.acked < end

    @abstractmethod
    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave."""

    def next_step(self, now: float, most: int = CHUNK_BYTES) -> bytes | Claim | Range | None:
        """What to send or do next; a range has up to ``most`` bytes."""
        link = self.link
        if output := link.take_output():
            return output
        if link.refusal:
            raise ProtocolError(f"refused: {link.refusal}")
        return link.claimed or link.next_range(now, most)

    @abstractmethod
    def judge(self, objection: Objection, now: float) -> None:
        """Answer what the slave claims, with what speaks against it. ProtocolError when it may try again soon."""

    def sent(self, size: int) -> None:
        """Count ``size`` bytes of the log as sent."""
        if self.slave is not None:
            self.slave.next_offset = self.link.next_offset
            self.slave.sent_bytes += size

    def ended(self) -> None:
        """Stop counting the slave as a copy, because its connection is closed."""
        self._acks.disconnected(self._peer.addr)


class MasterSession(MasterSide):
    """The master's end of a connection in a set without a Controller."""

    link: MasterLink

    @property
    def who(self) -> str:
        hello = self.link.hello
        return f"broker {hello.broker_id} at {hello.addr}" if hello else "a plain peer"

    def receive(self, data: bytes, now: float) -> None:
        link = self.link
        link.receive(data, now)
        if self.slave is None:
            self._follow_when_ready()
        if link.is_leaving and self.slave is not None:
            self._acks.leaving(self.slave)
        # A slave counts as a copy from its first report on: before that it may have nothing of what it was sent.
        if link.acked >= 0:
            self._acks.acked(self._peer.addr, link.acked)

    def judge(self, objection: Objection, now: float) -> None:
        """Answer the claim; ``objection``: a piece in which the slave's log differs from the master's."""
        assert not isinstance(objection, str)
        self.link.judge(objection, now)
        self._follow_when_ready()

    def _follow_when_ready(self) -> None:
        link = self.link
        if link.ready:
            self._peer.admit(link.hello is not None)
            identity = link.hello.addr if link.hello else ""
            self.slave = self._acks.connected(self._peer.addr, self._peer.since, identity, link.start)


class SlaveSide(ABC):
    """A slave's session with its master. With ``sync_flush`` it reports the flushed end of the log, else its end."""

    def __init__(self, link: LinkToMaster, *, sync_flush: bool) -> None:
        self.link = link
        self._sync_flush = sync_flush

    @abstractmethod
    async def receive(self, data: memoryview, now: float) -> Sequence[Bytes]:
        """The pieces to append."""

    @property
    @abstractmethod
    def must_cut(self) -> bool:
        """Whether `cut` must be called now, because the log has bytes that differ from the master's."""

    @abstractmethod
    async def cut(self) -> None:
        """Cut bytes that the master does not have; nothing builds queues meanwhile."""

    @abstractmethod
    def settle(self) -> None:
        """Confirm what the master says is confirmed; called when all received bytes are appended."""

    def appended(self, end: int, now: float) -> None:
        """Report that the log was appended up to ``end``, perhaps in memory only; with ``sync_flush`` do nothing."""
        if not self._sync_flush:
            self.link.report(end, now)

    def flushed(self, end: int, now: float) -> None:
        """With ``sync_flush``, report that the log is on disk up to ``end``; called when an fsync has ended."""
        # The master counts the reported bytes as copied. With SYNC_FLUSH a copy survives a power loss of both brokers.
        if self._sync_flush:
            self.link.report(end, now)


class SlaveSession(SlaveSide):
    """The slave's end in a set without a Controller. It never cuts its log: administrators decide on differences.

    ``met`` is called with the address of the master for requests, if the master says it.
    """

    link: SlaveLink

    def __init__(self, link: SlaveLink, *, sync_flush: bool, met: Callable[[str], None] = lambda addr: None) -> None:
        super().__init__(link, sync_flush=sync_flush)
        self._met = met

    async def receive(self, data: memoryview, now: float) -> Sequence[LogPiece]:
        was_ready, pieces = self.link.ready, self.link.receive(data, now)
        if not was_ready and self.link.ready and (addr := self.link.client_addr):
            self._met(addr)
        return pieces

    @property
    def must_cut(self) -> bool:
        return False

    async def cut(self) -> None:
        """Never called, see `must_cut`."""

    def settle(self) -> None:
        """Do nothing: without a Controller no part of the log is confirmed."""


#: Makes the session of a connection.
NewMasterSide = Callable[[Peer], MasterSide]

#: Finds what speaks against a slave; None or "" when nothing does. May raise ProtocolError: the slave may try again.
Examine = Callable[[Claim], Awaitable[Objection]]


class MasterTarget(NamedTuple):
    """Where a slave connects: the master's HA address; ``hello``: it is a Skylark broker.

    ``begin``: where its log begins; None when that is unknown or the log is empty.
    """

    ha_addr: str
    hello: bool
    begin: int | None = None


class Dialogue(Protocol):
    """How a slave begins a connection: plain_dialogue.py without a Controller, autoswitch/session.py with one."""

    async def begin(self, target: MasterTarget) -> SlaveSide:
        """The session of a new connection to ``target``."""
