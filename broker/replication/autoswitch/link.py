"""Both ends of an auto-switch HA connection, without sockets: bytes and the time go in, bytes to send come out. Pure.

Between two Skylark brokers the handshake of hello.py comes first, in which both prove that they know the secret. Then
the slave identifies itself, and the master sends the epochs of its log. The slave finds where its log diverges from the
master's: the owner cuts the log there (`SlaveEnd.cut_at`, `SlaveEnd.cut`), and only then the slave says from where it
wants the log. So the master never sends bytes that do not follow the slave's log. Pieces carry the epoch that wrote
them and the confirm offset.
A peer that claims a broker id is a `Newcomer` until the owner has asked the Controllers about that id, and called
`judge`. Before that the master reveals nothing about its log, and no report counts. Both ends send something every
``heartbeat_s``; a peer that was silent for ``timeout_s`` counts as gone. After a ProtocolError the connection must be
closed. Times are in seconds.
Neighbours: frames.py (the bytes), epochs.py; replication/link.py (the same for a set without a Controller).
"""

from collections.abc import Callable
from math import inf

from skylark.broker.replication.autoswitch.epochs import Epochs, common_end
from skylark.broker.replication.autoswitch.frames import (
    EpochPiece,
    MasterHello,
    MasterReader,
    SlaveHello,
    SlaveReader,
    encode_ack,
    encode_header,
    encode_master_hello,
    encode_slave_hello,
)
from skylark.broker.replication.frames import CHUNK_BYTES
from skylark.broker.replication.hello import MAGIC, Hello, LinkTerms, LogClaim
from skylark.broker.replication.link import (
    CONFIRM_S,
    NO_HELLO,
    RESYNC,
    LinkToMaster,
    LinkToSlave,
    LogBounds,
    Newcomer,
    Range,
    file_size_refusal,
)
from skylark.mqcommon.errors import ProtocolError, ReplicationRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

# Most bytes that a peer may send before the owner has judged it: a hello and a few reports.
MAX_EARLY_BYTES = 4096


@lazy_dataclass(frozen=True, slots=True)
class ElectedLog:
    """The log of an elected master. ``bounds`` and ``confirm_offset`` are called each time.

    ``epochs``: the epochs of the log; ``epoch``: the epoch in which the master leads.
    """

    bounds: Callable[[], LogBounds]
    epochs: Epochs
    epoch: int
    confirm_offset: Callable[[], int]


class MasterEnd(LinkToSlave):
    """The master's end of one connection: `receive` bytes, send `take_output`, then `next_range` until it is None.

    When ``claimed`` is set, the owner finds out whether that broker may be served, and calls `judge`.
    """

    def __init__(self, terms: LinkTerms, log: ElectedLog, nonce: bytes, peer: str, now: float) -> None:
        """``peer``: the other end of the connection, host:port."""
        super().__init__(terms, log.bounds, nonce, now)
        self._peer = peer
        # Whether the peer began with a hello; None before its first byte.
        self._says_hello: bool | None = None
        self._claim: LogClaim | None = None
        # What a plain peer sent before it was judged.
        self._early = b""
        self._is_accepted = False
        self._epochs = log.epochs
        self._epoch = log.epoch
        self._confirm_offset = log.confirm_offset
        # The confirm offset that was sent last.
        self._sent_confirm_offset = -1
        self._reader = SlaveReader()
        # The newcomer to be judged; None before it is known, and after it was judged.
        self._newcomer: Newcomer | None = None

    @property
    def claimed(self) -> Newcomer | None:
        return self._newcomer

    @property
    def idle(self) -> bool:
        """Whether only ranges of the log remain to be sent, and no newcomer has to be judged."""
        return not self._output and self.claimed is None and not self.refusal

    @property
    def slave(self) -> SlaveHello | None:
        """The hello of the slave that is served; None until it has come and the slave is accepted."""
        return self._reader.hello if self._is_accepted else None

    def receive(self, data: bytes, now: float) -> None:
        """Process bytes from the slave."""
        if not data:
            return
        self._heard = now
        if self._says_hello is None:
            self._says_hello = data[:1] == MAGIC[:1]
        if self._is_accepted:
            self._read_reports(data, now)
        elif self._says_hello:
            self._shake_hands(data)
        else:
            self._early += data
            if len(self._early) > MAX_EARLY_BYTES:
                raise ProtocolError("it sent more before it was accepted")
            self._find_plain()

    def judge(self, refusal: str, now: float) -> None:
        """Accept the ``claimed`` broker if ``refusal`` is "", otherwise refuse it with this reason."""
        self._newcomer = None
        if self._claim is not None:
            if refusal := refusal or file_size_refusal(self._claim, self._bounds()):
                self._handshake.refuse(refusal)
            else:
                self._handshake.welcome(self._claim.end)
            self._output += self._handshake.take_output()
        elif refusal:
            raise ProtocolError(refusal)
        # From here on the slave's reports count. Earlier bytes of a plain peer are read only now: a stranger's report
        # must not confirm anything.
        self._is_accepted = not refusal
        self._said = now
        early, self._early = self._early, b""
        if self._is_accepted and early:
            self._reader = SlaveReader()
            self._read_reports(early, now)

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
        self._said, self._sent_confirm_offset = now, self._confirm_offset()
        self.next_offset = at + size
        return Range(encode_header(at, size, epoch, self._sent_confirm_offset), at, size)

    def beat_at(self) -> float:
        """When `next_range` gives a heartbeat: soon when the slave does not know the confirm offset."""
        if self.next_offset < 0:
            return inf
        return self._said + (
            CONFIRM_S if self._confirm_offset() > self._sent_confirm_offset else self._terms.heartbeat_s
        )

    @property
    def _must_identify(self) -> bool:
        return not self._is_accepted and self.claimed is None

    def _shake_hands(self, data: bytes) -> None:
        handshake = self._handshake
        handshake.receive(data)
        self._output += handshake.take_output()
        if handshake.claim is not None and handshake.hello is not None:
            self._claim = handshake.claim
            self._newcomer = Newcomer(handshake.hello.broker_id, handshake.hello.addr, self._peer)

    def _find_plain(self) -> None:
        """Read the identity of a plain peer. Its bytes stay in ``_early`` until it is judged."""
        reader = SlaveReader()
        reader.receive(self._early)
        if reader.hello is None:
            return
        if not self._terms.trusts_plain(self._peer):
            raise ProtocolError(NO_HELLO)
        self._newcomer = Newcomer(reader.hello.broker_id, "", self._peer)

    def _read_reports(self, data: bytes, now: float) -> None:
        """Process bytes from an accepted slave."""
        knew = self._reader.hello is not None
        offsets = self._reader.receive(data)
        hello = self._reader.hello
        if hello is not None and not knew:
            said = self._handshake.hello
            if said is not None and said.broker_id != hello.broker_id:
                raise ProtocolError(f"it proved to be broker {said.broker_id}, and then says {hello.broker_id}")
            self._output += encode_master_hello(MasterHello(self._bounds().end, self._epoch, tuple(self._epochs)))
            self._said = now
        for offset in offsets:
            self._reported(offset)

    def _reported(self, offset: int) -> None:
        slave, bounds = self._reader.hello, self._bounds()
        assert slave is not None
        # The first report says where the slave's log ends after its cut, and so where the sending begins.
        if self.next_offset < 0:
            if offset > bounds.end:
                raise ProtocolError(f"it has the log up to {offset}, but the master only up to {bounds.end}")
            empty_begins = bounds.last_file if slave.from_last_file else bounds.start
            self.next_offset = offset or empty_begins
        elif offset > self.next_offset:
            raise ProtocolError(f"it reports offset {offset}, but was sent the log only up to {self.next_offset}")
        self.acked = max(self.acked, offset)


class SlaveEnd(LinkToMaster):
    """The slave's end. When ``cut_at`` is set, the owner cuts the log there and calls `cut`; then pieces come.

    ``epochs``: the epochs of the slave's log, kept up to date here: save them before the bytes are appended.
    """

    encode_report = staticmethod(encode_ack)

    def __init__(
        self,
        terms: LinkTerms,
        hello: SlaveHello,
        epochs: Epochs,
        *,
        start: int,
        end: int,
        now: float,
        proof: tuple[Hello, LogClaim] | None = None,
        known_epoch: Callable[[], int] | None = None,
    ) -> None:
        """``known_epoch``: the last epoch that the Controllers have reported; no later epoch's master is followed."""
        super().__init__(terms, start, end, now, proof)
        self._known_epoch = known_epoch
        self._reader = MasterReader()
        self._epochs = epochs
        self._start = start
        self._slave_hello = encode_slave_hello(hello)
        self._output = self._slave_hello if proof is None else b""
        # Where the log must be cut before it can follow; None while this is unknown, and after the cut.
        self.cut_at: int | None = None
        # All before this is in each log that an election can choose.
        self.confirm_offset = 0

    def receive(self, data: bytes | memoryview, now: float) -> list[EpochPiece]:
        """The pieces to append, without gaps. ReplicationRefused when the two logs have nothing in common."""
        self._heard = now
        handshake = self._handshake
        if handshake is not None and handshake.welcome is None:
            data = handshake.receive(bytes(data))
            if handshake.welcome is None:
                return []
            self._output += self._slave_hello
        pieces = []
        for piece in self._reader.receive(data):
            self._check(piece)
            if self.ready:
                # Before the cut this log may have other bytes there.
                self.confirm_offset = max(self.confirm_offset, piece.confirm_offset)
            if piece.data:
                self._epochs.begin(piece.epoch, piece.epoch_start)
                self._end = piece.offset + len(piece.data)
                pieces.append(piece)
        if self._reader.hello is not None and not self.ready and self.cut_at is None:
            self._check_hello(self._reader.hello)
            self.cut_at = self._common_end(self._reader.hello)
        return pieces

    def cut(self, now: float) -> None:
        """Ask the master for the bytes from ``cut_at`` on, where the owner has cut the log."""
        at, self.cut_at = self.cut_at, None
        assert at is not None
        self._epochs.cut_to(at)
        self._end = at or None
        self.ready = True
        self._report(at, now)

    def report(self, offset: int, now: float) -> None:
        """Report that this slave has the log up to ``offset``."""
        # Reports never go back: the master counts this log up to the highest one. An empty log may lie at any offset
        # before the first piece.
        if self.ready and self._end is not None and self._reported < offset <= self._end:
            self._report(offset, now)

    def _common_end(self, master: MasterHello) -> int:
        # Bytes after the common end were written by a replaced master, and were never confirmed: they are cut. If even
        # the beginning of the log differs from the master's, the whole log would be lost: an administrator decides.
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

    def _check_hello(self, hello: MasterHello) -> None:
        """ProtocolError when the master leads in an epoch that no Controller has reported.

        If an absurd epoch were kept with the log, it would be later than all epochs of the Controllers, and this broker
        would never follow any master again. A newly elected master is accepted once the Controllers have reported it.
        """
        if self._known_epoch is not None and hello.epoch > (known := self._known_epoch()):
            raise ProtocolError(f"the master says that it leads in epoch {hello.epoch}, the Controllers know {known}")

    def _check(self, piece: EpochPiece) -> None:
        hello = self._reader.hello
        if not self.ready and (piece.data or piece.offset >= 0):
            raise ProtocolError("the master sent the log before it was told where to begin")
        if hello is not None and piece.epoch > hello.epoch:
            raise ProtocolError(f"the master of epoch {hello.epoch} sent a piece of epoch {piece.epoch}")
        if self._end is not None and piece.offset >= 0 and piece.offset != self._end:
            raise ProtocolError(f"the master goes on at {piece.offset}, but this log ends at {self._end}")
