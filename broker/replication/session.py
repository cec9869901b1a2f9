"""The steps of both ends of an HA connection: which slaves count as copies, what is sent, what is reported when. Pure.

`MasterSession` is driven by the connection's two tasks, `SlaveSession` by those that copy and flush; tests/sim drives
both. Times are in seconds. After a ProtocolError the connection must be closed.
Neighbours: session_interfaces.py (what master.py and slave.py need of a session), link.py (the protocol),
writing/waits.py (sends that wait); autoswitch/session.py (sets with a Controller).
"""

from collections.abc import Sequence

from broker.replication.frames import CHUNK_BYTES, LogPiece
from broker.replication.hello import LogClaim
from broker.replication.link import MasterLink, Range, SlaveLink
from broker.replication.session_interfaces import MasterSide, Objection, Peer, SlaveSide
from broker.writing.waits import AckLedger, ConnectedSlave
from mqcommon.errors import ProtocolError


class MasterSession(MasterSide):
    """The master's end. The slave is in ``acks`` from the moment when it is accepted until `ended`.

    One task calls `receive`. The other calls `next_step` in a loop and does what it returns: send bytes; compare a
    claim with the log and call `judge`; send a range and call `sent`. On None it waits for `receive`, for the log to
    grow or for ``link.beat_at()``.
    """

    def __init__(self, link: MasterLink, acks: AckLedger, peer: Peer) -> None:
        self.link = link
        # Set while the slave follows.
        self.slave: ConnectedSlave | None = None
        self._acks = acks
        self._peer = peer

    @property
    def who(self) -> str:
        """The slave, for the log."""
        hello = self.link.hello
        return f"broker {hello.broker_id} at {hello.addr}" if hello else "a plain peer"

    @property
    def idle(self) -> bool:
        """Whether only new bytes of the log give the sender something to do."""
        return self.link.idle

    @property
    def next_offset(self) -> int:
        """Where the next range begins."""
        return self.link.next_offset

    def lags(self, end: int) -> bool:
        """Whether this is a slave without all before ``end``."""
        return self.link.ready and self.link.acked < end

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave."""
        link = self.link
        link.receive(data, now)
        if self.slave is None:
            self._follow_when_ready()
        if link.acked >= 0:
            self._acks.acked(self._peer.addr, link.acked)

    def next_step(self, now: float, most: int = CHUNK_BYTES) -> bytes | LogClaim | Range | None:
        """What to send or do next; a range has up to ``most`` bytes."""
        link = self.link
        if output := link.take_output():
            return output
        if link.refusal:
            raise ProtocolError(f"refused: {link.refusal}")
        return link.claim or link.next_range(now, most)

    def next_range(self, now: float) -> Range | None:
        """As `next_step`, for new bytes of the log only."""
        return self.link.next_range(now)

    def judge(self, objection: Objection, now: float) -> None:
        """Answer the claim; ``objection``: a piece in which the slave's log differs from the master's."""
        assert not isinstance(objection, str)
        self.link.judge(objection, now)
        self._follow_when_ready()

    def sent(self, size: int) -> None:
        """``size`` bytes of the log were sent."""
        if self.slave is not None:
            self.slave.next_offset = self.link.next_offset
            self.slave.sent_bytes += size

    def check(self, now: float) -> None:
        """ProtocolError when the slave has been silent for too long."""
        self.link.check(now)

    def beat_at(self) -> float:
        """When `next_step` gives a heartbeat."""
        return self.link.beat_at()

    def silent_at(self) -> float:
        """When `check` raises, unless something comes before."""
        return self.link.silent_at()

    def ended(self) -> None:
        """The connection is closed: the slave no longer counts as a copy."""
        self._acks.gone(self._peer.addr)

    def _follow_when_ready(self) -> None:
        link = self.link
        if link.ready:
            self._peer.admit(link.hello is not None)
            identity = link.hello.addr if link.hello else ""
            self.slave = self._acks.connected(self._peer.addr, self._peer.since, identity, link.start)


class SlaveSession(SlaveSide):
    """The slave's end. With ``sync_flush`` it reports what is on disk, else what is appended."""

    def __init__(self, link: SlaveLink, *, sync_flush: bool) -> None:
        self.link = link
        self._sync_flush = sync_flush

    @property
    def ready(self) -> bool:
        """Whether the master sends the log."""
        return self.link.ready

    async def receive(self, data: memoryview, now: float) -> Sequence[LogPiece]:
        """The pieces to append."""
        return self.link.receive(data, now)

    def appended(self, end: int, now: float) -> None:
        """The log was appended up to ``end``, perhaps in memory only."""
        if not self._sync_flush:
            self.link.report(end, now)

    @property
    def must_cut(self) -> bool:
        """Whether `cut` is to be called: never, an administrator decides about a log that differs."""
        return False

    async def cut(self) -> None:
        """Cut what the master does not have."""
        raise NotImplementedError

    def settle(self) -> None:
        """What was received is appended."""

    def flushed(self, end: int, now: float) -> None:
        """An fsync ended: the log is on disk up to ``end``."""
        if self._sync_flush:
            self.link.report(end, now)

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is due. ProtocolError when the master has been silent for too long."""
        self.link.tick(now)

    def wake_at(self) -> float:
        """When `tick` has something to do."""
        return self.link.wake_at()

    def take_output(self) -> bytes:
        """The bytes to send."""
        return self.link.take_output()
