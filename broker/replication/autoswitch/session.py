"""The steps of both ends of an auto-switch HA connection: as session.py above, with epochs and the confirm offset.

The master tells `Leading` which broker has the log up to where. The slave cuts what its master's log does not have, and
saves each new epoch before the first byte of it is appended.
Neighbours: link.py (the protocol), sides.py (what the transports need), wiring/controller.py makes these.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from broker.replication.autoswitch.frames import Piece, SlaveHello
from broker.replication.autoswitch.link import MasterEnd, SlaveEnd, SwitchTerms
from broker.replication.autoswitch.log_epochs import LogEpochs
from broker.replication.dialogue import Dialogue
from broker.replication.find_master import Target
from broker.replication.frames import CHUNK_BYTES
from broker.replication.hello import Tail
from broker.replication.link import Range
from broker.replication.replica import Replica
from broker.replication.sides import MasterSide, NewMasterSide, SlaveSide
from broker.writing.acks import AckLedger, Slave


class Copies(Protocol):
    """Who is told how far slaves are."""

    def acked(self, broker_id: int, end: int, is_learner: bool) -> None: ...
    def gone(self, broker_id: int) -> None: ...


class Followers:
    """The connected slaves by their ids. Of two connections of one broker the one that began last counts."""

    def __init__(self, acks: AckLedger, copies: Copies) -> None:
        self.acks = acks
        self._copies = copies
        self._by_id: dict[int, SwitchMasterSession] = {}

    def follows(self, session: "SwitchMasterSession", hello: SlaveHello) -> None:
        """A slave has said where its log ends."""
        before = self._by_id.get(hello.broker_id)
        if before is None or before.since <= session.since:
            self._by_id[hello.broker_id] = session
            if before is not None:
                # It may have started again, with a shorter log.
                self._copies.gone(hello.broker_id)

    def acked(self, session: "SwitchMasterSession", hello: SlaveHello, end: int) -> None:
        """It has the log up to ``end``."""
        if self._by_id.get(hello.broker_id) is session:
            self._copies.acked(hello.broker_id, end, hello.is_learner)

    def ended(self, session: "SwitchMasterSession", hello: SlaveHello) -> None:
        """Its connection is closed."""
        if self._by_id.get(hello.broker_id) is session:
            del self._by_id[hello.broker_id]
            self._copies.gone(hello.broker_id)


class SwitchMasterSession(MasterSide):
    """The master's end; see `MasterSession`. A learner is no copy in the ledger."""

    def __init__(
        self, end: MasterEnd, followers: Followers, addr: str, since: float, admit: Callable[[bool], None]
    ) -> None:
        self.slave: Slave | None = None
        self._end = end
        self._followers = followers
        self._addr = addr
        self.since = since
        self._admit = admit

    @property
    def who(self) -> str:
        """The slave, for the log."""
        hello = self._end.slave
        return "nobody yet" if hello is None else f"{'learner' if hello.is_learner else 'broker'} {hello.broker_id}"

    @property
    def idle(self) -> bool:
        """Whether only new bytes of the log give the sender something to do."""
        return self._end.has_no_output

    @property
    def next_offset(self) -> int:
        """Where the next range begins."""
        return self._end.next_offset

    def lags(self, end: int) -> bool:
        """Whether this is a slave without all before ``end``."""
        return 0 <= self._end.acked < end

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave."""
        end = self._end
        end.receive(data, now)
        hello = end.slave
        if hello is None or end.acked < 0:
            return
        acks = self._followers.acks
        if self.slave is None:
            self._admit(True)
            begin = 0 if end.acked else end.next_offset
            self.slave = acks.connected(self._addr, self.since, str(hello.broker_id), begin)
            self._followers.follows(self, hello)
        if not hello.is_learner:
            acks.acked(self._addr, end.acked)
        self._followers.acked(self, hello, end.acked)

    def next_step(self, now: float, most: int = CHUNK_BYTES) -> bytes | Range | None:
        """What to send next; a range has up to ``most`` bytes."""
        return self._end.take_output() or self._end.next_range(now, most)

    def next_range(self, now: float) -> Range | None:
        """As `next_step`, for new bytes of the log only."""
        return self._end.next_range(now)

    def judge(self, difference: Tail | None, now: float) -> None:
        """Never called: this protocol has no claims."""
        raise NotImplementedError

    def sent(self, size: int) -> None:
        """``size`` bytes of the log were sent."""
        if self.slave is not None:
            self.slave.next_offset = self._end.next_offset
            self.slave.sent_bytes += size

    def check(self, now: float) -> None:
        """ProtocolError when the slave has been silent for too long."""
        self._end.check(now)

    def beat_at(self) -> float:
        """When `next_step` gives a heartbeat."""
        return self._end.beat_at()

    def silent_at(self) -> float:
        """When `check` raises, unless something comes before."""
        return self._end.silent_at()

    def ended(self) -> None:
        """The connection is closed: the slave no longer counts as a copy."""
        self._followers.acks.gone(self._addr)
        if self._end.slave is not None:
            self._followers.ended(self, self._end.slave)


class SwitchSlaveSession(SlaveSide):
    """The slave's end; see `SlaveSession`."""

    def __init__(
        self, end: SlaveEnd, replica: Replica, epochs: LogEpochs, cut: Callable[[int], Awaitable[None]],
        confirmed: Callable[[int], None], *, sync_flush: bool,
    ) -> None:  # fmt: skip
        """``cut`` saves and cuts what the log has after an offset."""
        self._end = end
        self._replica = replica
        self._epochs = epochs
        self._cut = cut
        self._confirmed = confirmed
        self._sync_flush = sync_flush

    @property
    def ready(self) -> bool:
        """Whether the master sends the log."""
        return self._end.follows

    async def receive(self, data: memoryview, now: float) -> Sequence[Piece]:
        """The pieces to append."""
        before = self._epochs.last
        pieces = self._end.receive(data, now)
        if self._epochs.last != before:
            await self._epochs.save()
        return pieces

    @property
    def must_cut(self) -> bool:
        """Whether the log ends where it parts from the master's only after `cut`."""
        return self._end.cut_at is not None

    async def cut(self) -> None:
        """Cut what the master does not have; nothing builds queues meanwhile."""
        end, replica = self._end, self._replica
        if end.cut_at is not None and not replica.is_empty and end.cut_at < replica.raw_end:
            await self._cut(end.cut_at)
        end.cut(trio.current_time())
        await self._epochs.save()

    def settle(self) -> None:
        """What was received is appended."""
        self._confirmed(min(self._end.confirm_offset, self._replica.raw_end))

    def appended(self, end: int, now: float) -> None:
        """The log was appended up to ``end``, perhaps in memory only."""
        if not self._sync_flush:
            self._end.report(end, now)

    def flushed(self, end: int, now: float) -> None:
        """An fsync ended: the log is on disk up to ``end``."""
        if self._sync_flush:
            self._end.report(end, now)

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is due. ProtocolError when the master has been silent for too long."""
        self._end.tick(now)

    def wake_at(self) -> float:
        """When `tick` has something to do."""
        return self._end.wake_at()

    def take_output(self) -> bytes:
        """The bytes to send."""
        return self._end.take_output()


class SwitchDialogue(Dialogue):
    """Begins connections to the master; see `SwitchSlaveSession`."""

    def __init__(
        self, replica: Replica, terms: SwitchTerms, epochs: LogEpochs, hello: Callable[[], SlaveHello],
        cut: Callable[[int], Awaitable[None]], confirmed: Callable[[int], None], *, sync_flush: bool,
    ) -> None:  # fmt: skip
        self._replica = replica
        self._terms = terms
        self._epochs = epochs
        self._hello = hello
        self._cut = cut
        self._confirmed = confirmed
        self._sync_flush = sync_flush

    async def begin(self, target: Target) -> SwitchSlaveSession:
        """The session of a new connection."""
        self._epochs.cover_log()
        log = self._replica.log
        end = SlaveEnd(
            self._terms, self._hello(), self._epochs.now, start=log.start, end=log.raw_end, now=trio.current_time()
        )
        return SwitchSlaveSession(
            end, self._replica, self._epochs, self._cut, self._confirmed, sync_flush=self._sync_flush
        )


def switch_sessions(end: Callable[[float], MasterEnd], followers: Followers) -> NewMasterSide:
    """Makes the sessions of a master, whose link begins with ``end`` (of the time)."""

    def new_session(addr: str, now: float, admit: Callable[[bool], None]) -> SwitchMasterSession:
        return SwitchMasterSession(end(now), followers, addr, now, admit)

    return new_session
