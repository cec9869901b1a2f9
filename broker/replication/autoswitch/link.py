"""Both ends of an auto-switch HA connection, without sockets: bytes and the time go in, bytes to send come out. Pure.

The slave says who it is, the master which epochs its log has. Then the slave finds where its log leaves the master's:
the owner cuts it there (`SlaveEnd.cut_at`, `SlaveEnd.cut`), and only then the slave tells from where it wants the log.
So the master never sends what does not follow. Pieces carry the epoch that wrote them and the confirm offset.
Both send something every ``heartbeat_s``; a peer that was silent for ``timeout_s`` is gone. After a ProtocolError the
connection must be closed. Times are in seconds.
Neighbours: frames.py (the bytes), epochs.py; replication/link.py (the same for a set without a Controller).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from broker.replication.autoswitch.epochs import Epochs, common_end
from broker.replication.autoswitch.frames import (
    MasterHello,
    MasterReader,
    Piece,
    SlaveHello,
    SlaveReader,
    encode_ack,
    encode_header,
    encode_master_hello,
    encode_slave_hello,
)
from broker.replication.frames import CHUNK_BYTES
from broker.replication.link import RESYNC, Bounds, Range
from mqcommon.errors import ProtocolError, ReplicationRefused

# A slave is told of a confirm offset that has moved after this time, if nothing else is sent to it.
CONFIRM_S = 0.1


@dataclass(frozen=True)
class SwitchTerms:
    """The settings of both ends."""

    heartbeat_s: float = 5.0
    timeout_s: float = 20.0


class MasterEnd:
    """The master's end of one connection: `receive` bytes, send `take_output`, then `next_range` until it is None.

    ``bounds`` and ``confirm_offset`` are asked each time; ``epochs`` are those of the master's log, ``epoch`` its own.
    """

    def __init__(
        self, terms: SwitchTerms, bounds: Callable[[], Bounds], epochs: Epochs, epoch: int,
        confirm_offset: Callable[[], int], now: float,
    ) -> None:  # fmt: skip
        self._terms = terms
        self._bounds = bounds
        self._epochs = epochs
        self._epoch = epoch
        self._confirm_offset = confirm_offset
        self._heard = self._said = now
        # The confirm offset that was sent last.
        self._told = -1
        self._reader = SlaveReader()
        self._output = b""
        self._shook_hands = False
        # Where the next piece begins; -1 until the slave has said that.
        self.next_offset = -1
        # The slave has the log up to here; -1 before its first report.
        self.acked = -1

    @property
    def has_no_output(self) -> bool:
        """Whether `take_output` would return nothing."""
        return not self._output

    @property
    def slave(self) -> SlaveHello | None:
        """Who it is, as soon as it has said so."""
        return self._reader.hello

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave."""
        self._heard = now
        offsets = self._reader.receive(data)
        if self._reader.hello is not None and not self._shook_hands:
            self._shook_hands = True
            hello = MasterHello(self._bounds().end, self._epoch, tuple(self._epochs))
            self._output += encode_master_hello(hello)
            self._said = now
        for offset in offsets:
            self._reported(offset)

    def take_output(self) -> bytes:
        """The bytes to send before any range."""
        output, self._output = self._output, b""
        return output

    def next_range(self, now: float, most: int = CHUNK_BYTES) -> Range | None:
        """What to send now: up to ``most`` bytes of one epoch and one file, a heartbeat (size 0), or None."""
        bounds, at = self._bounds(), self.next_offset
        if at < 0 or (at >= bounds.end and now < self.beat_at()):
            return None
        if at < bounds.start:
            raise ProtocolError(f"the slave is at {at}, but the log before {bounds.start} was deleted meanwhile")
        epoch = self._epochs.at(at)
        file_left = bounds.file_bytes - (at - bounds.start) % bounds.file_bytes
        epoch_left = self._epochs.end_of(epoch.epoch, bounds.end) - at
        size = max(min(most, file_left, epoch_left), 0)
        self._said, self._told = now, self._confirm_offset()
        self.next_offset = at + size
        return Range(encode_header(at, size, epoch, self._told), at, size)

    def check(self, now: float) -> None:
        """ProtocolError when the slave has been silent for too long."""
        if now >= self.silent_at():
            raise ProtocolError(f"nothing was received from it for {self._terms.timeout_s:.0f} s")

    def beat_at(self) -> float:
        """When `next_range` gives a heartbeat: soon when the slave does not know the confirm offset."""
        if self.next_offset < 0:
            return inf
        return self._said + (CONFIRM_S if self._confirm_offset() > self._told else self._terms.heartbeat_s)

    def silent_at(self) -> float:
        """When `check` raises, unless something comes before."""
        return self._heard + self._terms.timeout_s

    def _reported(self, offset: int) -> None:
        slave, bounds = self._reader.hello, self._bounds()
        assert slave is not None
        if self.next_offset < 0:
            if offset > bounds.end:
                raise ProtocolError(f"it has the log up to {offset}, but the master only up to {bounds.end}")
            empty_begins = bounds.last_file if slave.from_last_file else bounds.start
            self.next_offset = offset or empty_begins
        elif offset > self.next_offset:
            raise ProtocolError(f"it reports offset {offset}, but was sent the log only up to {self.next_offset}")
        self.acked = max(self.acked, offset)


class SlaveEnd:
    """The slave's end. When ``cut_at`` is set, the owner cuts the log there and calls `cut`; then pieces come.

    ``epochs`` are those of the slave's log, and are kept up to date here: save them before the bytes are appended.
    """

    def __init__(
        self, terms: SwitchTerms, hello: SlaveHello, epochs: Epochs, *, start: int, end: int, now: float
    ) -> None:
        """The slave's log has the bytes from ``start`` to ``end``."""
        self._terms = terms
        self._heard = self._said = now
        self._reader = MasterReader()
        self._epochs = epochs
        self._start = start
        # None: the log is empty, and will begin where the first piece does.
        self._end = end if end > start else None
        self._reported = -1
        self._output = encode_slave_hello(hello)
        # Whether the master was told from where on it is to send the log.
        self.follows = False
        # Where the log must be cut before it can follow; None when that is not known, or done.
        self.cut_at: int | None = None
        # All before this is in each log that an election can choose.
        self.confirm_offset = 0

    def receive(self, data: bytes | memoryview, now: float) -> list[Piece]:
        """The pieces to append, without gaps. ReplicationRefused when the two logs have nothing in common."""
        self._heard = now
        pieces = []
        for piece in self._reader.receive(data):
            self._check(piece)
            if self.follows:
                # Before the cut this log may have other bytes there.
                self.confirm_offset = max(self.confirm_offset, piece.confirm_offset)
            if piece.data:
                self._epochs.begin(piece.epoch, piece.epoch_start)
                self._end = piece.offset + len(piece.data)
                pieces.append(piece)
        if self._reader.hello is not None and not self.follows and self.cut_at is None:
            self.cut_at = self._common_end(self._reader.hello)
        return pieces

    def cut(self, now: float) -> None:
        """The log now ends at ``cut_at``: tell the master to send what follows."""
        at, self.cut_at = self.cut_at, None
        assert at is not None
        self._epochs.cut_to(at)
        self._end = at or None
        self.follows = True
        self._report(at, now)

    def report(self, offset: int, now: float) -> None:
        """Report that this slave has the log up to ``offset``."""
        # An empty log may lie at any offset before the first piece.
        if self.follows and self._end is not None and self._reported < offset <= self._end:
            self._report(offset, now)

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is due. ProtocolError when the master has been silent for too long."""
        if now >= self._heard + self._terms.timeout_s:
            raise ProtocolError(f"nothing was received from the master for {self._terms.timeout_s:.0f} s")
        if self.follows and now >= self._said + self._terms.heartbeat_s:
            self._report(self._reported, now)

    def wake_at(self) -> float:
        """When `tick` has something to do."""
        return min(self._heard + self._terms.timeout_s, self._said + self._terms.heartbeat_s if self.follows else inf)

    def take_output(self) -> bytes:
        output, self._output = self._output, b""
        return output

    def _report(self, offset: int, now: float) -> None:
        self._reported, self._said = offset, now
        self._output += encode_ack(offset)

    def _common_end(self, master: MasterHello) -> int:
        if self._end is None:
            return 0
        found = common_end(self._epochs, self._end, Epochs(master.epochs), master.end)
        if found is None:
            raise ReplicationRefused(
                f"no epoch of this log {[tuple(entry) for entry in self._epochs]} is one of the master's"
                f" {[tuple(entry) for entry in master.epochs]}: the two logs have nothing in common; {RESYNC}"
            )
        if found < self._start:
            raise ReplicationRefused(
                f"this log begins at {self._start}, but is the master's only up to {found}: nothing of it can be kept;"
                f" {RESYNC}"
            )
        return found

    def _check(self, piece: Piece) -> None:
        hello = self._reader.hello
        if not self.follows and (piece.data or piece.offset >= 0):
            raise ProtocolError("the master sent the log before it was told where to begin")
        if hello is not None and piece.epoch > hello.epoch:
            raise ProtocolError(f"the master of epoch {hello.epoch} sent a piece of epoch {piece.epoch}")
        if self._end is not None and piece.offset >= 0 and piece.offset != self._end:
            raise ProtocolError(f"the master goes on at {piece.offset}, but this log ends at {self._end}")
