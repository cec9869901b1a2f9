"""What both ends of an HA connection do: who counts as a copy, what is sent, what is reported and when. Pure.

`MasterSession` is driven by the connection's two tasks, `SlaveSession` by those that copy and flush; tests/sim drives
both. Times are in seconds. ProtocolError: the connection can only be closed.
Neighbours: link.py (what is said), writing/acks.py (who waits for copies), master.py and slave.py (the transports).
"""

from collections.abc import Callable

from broker.replication.frames import CHUNK_BYTES
from broker.replication.hello import Claim, Tail
from broker.replication.link import MasterLink, Range, SlaveLink
from broker.writing.acks import AckLedger, Slave
from mqcommon.errors import ProtocolError


class MasterSession:
    """The master's end. The slave is in ``acks`` from the moment that it follows until `ended`.

    `receive` what came. Do what `next_step` says, again and again: send bytes; compare a claim with the log and call
    `judge`; send a range and call `sent`; with None, wait for `receive`, for more of the log or for ``link.beat_at()``.
    """

    def __init__(
        self, link: MasterLink, acks: AckLedger, addr: str, since: float, admit: Callable[[bool], None]
    ) -> None:
        """``admit`` is called when the slave is about to follow, with whether it said hello; it may refuse."""
        self.link = link
        # Set while the slave follows.
        self.slave: Slave | None = None
        self._acks = acks
        self._addr = addr
        self._since = since
        self._admit = admit

    def receive(self, data: bytes, now: float) -> None:
        """What the slave sent."""
        link = self.link
        link.receive(data, now)
        if self.slave is None:
            self._follow_when_ready()
        if link.acked >= 0:
            self._acks.acked(self._addr, link.acked)

    def next_step(self, now: float, most: int = CHUNK_BYTES) -> bytes | Claim | Range | None:
        """What to do next; a range has up to ``most`` bytes."""
        link = self.link
        if output := link.take_output():
            return output
        if link.refusal:
            raise ProtocolError(f"refused: {link.refusal}")
        return link.claim or link.next_range(now, most)

    def judge(self, difference: Tail | None, now: float) -> None:
        """``difference``: a piece of the claim of which the slave's log holds other bytes than ours."""
        self.link.judge(difference, now)
        self._follow_when_ready()

    def sent(self, size: int) -> None:
        """So many bytes of the log are on their way."""
        if self.slave is not None:
            self.slave.next_offset = self.link.next_offset
            self.slave.sent_bytes += size

    def ended(self) -> None:
        """The connection is closed: what the slave has reported counts no longer."""
        self._acks.gone(self._addr)

    def _follow_when_ready(self) -> None:
        link = self.link
        if link.ready:
            self._admit(link.hello is not None)
            identity = link.hello.addr if link.hello else ""
            self.slave = self._acks.connected(self._addr, self._since, identity, link.start)


class SlaveSession:
    """The slave's end. With ``sync_flush`` the master hears of what is on disk, else of what is in the log."""

    def __init__(self, link: SlaveLink, *, sync_flush: bool) -> None:
        self.link = link
        self._sync_flush = sync_flush

    def appended(self, end: int, now: float) -> None:
        """The log is here up to ``end``, perhaps in memory only."""
        if not self._sync_flush:
            self.link.report(end, now)

    def flushed(self, end: int, now: float) -> None:
        """An fsync ended: the log is on disk up to ``end``."""
        if self._sync_flush:
            self.link.report(end, now)
