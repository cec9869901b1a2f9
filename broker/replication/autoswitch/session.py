"""The steps of both ends of an auto-switch HA connection: as session.py above, with epochs and the confirm offset.

The master tells `Leading` which broker has the log up to where. The slave cuts what its master's log does not have, and
saves each new epoch before the first byte of it is appended.
Neighbours: link.py (the protocol), ../session_interfaces.py (what the transports need), wiring/replication.py makes
these.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import trio

from broker.replication.autoswitch.frames import EpochPiece, SlaveHello
from broker.replication.autoswitch.link import MasterEnd, Newcomer, SlaveEnd
from broker.replication.autoswitch.log_epochs import LogEpochs
from broker.replication.autoswitch.registered_replicas import copied_identity
from broker.replication.frames import CHUNK_BYTES
from broker.replication.hello import NONCE_BYTES, VERSION, Hello, LinkTerms, LogClaim, PieceCrc
from broker.replication.link import Range
from broker.replication.replica import Replica
from broker.replication.session_interfaces import (
    Dialogue,
    MasterSide,
    MasterTarget,
    NewMasterSide,
    Objection,
    Peer,
    SlaveSide,
)
from broker.writing.waits import AckLedger, ConnectedSlave
from mqcommon.errors import ProtocolError


class ReportListener(Protocol):
    """Is told how far slaves are."""

    def acked(self, broker_id: int, end: int, is_learner: bool) -> None: ...
    def gone(self, broker_id: int) -> None: ...


class Followers:
    """The connected slaves by their ids: one connection for each id.

    A slave that connects again from the same place replaces its old connection, which may be dead without an error. A
    connection from another place is refused while the first one lives: it is a broker with a copied identity file.
    """

    def __init__(self, acks: AckLedger, copies: ReportListener) -> None:
        self.acks = acks
        self._copies = copies
        self._by_id: dict[int, tuple[str, SwitchMasterSession]] = {}
        #: The id of this broker, which no slave of it has, and its address for clients; None before it has an id.
        self.own: tuple[int, str] | None = None

    def rival(self, newcomer: Newcomer) -> str:
        """Why ``newcomer`` may not follow now: its id is another slave's, or this broker's. "" when it may."""
        if self.own is not None and newcomer.broker_id == self.own[0]:
            return copied_identity(*self.own, newcomer.where)
        where, _ = self._by_id.get(newcomer.broker_id, (newcomer.where, None))
        if where == newcomer.where:
            return ""
        return copied_identity(newcomer.broker_id, where, newcomer.where)

    def follows(self, session: "SwitchMasterSession", newcomer: Newcomer) -> None:
        """A slave is accepted."""
        _, before = self._by_id.get(newcomer.broker_id, ("", None))
        self._by_id[newcomer.broker_id] = newcomer.where, session
        if before is not None:
            # It may have started again, with a shorter log.
            self._copies.gone(newcomer.broker_id)
            before.close("the same broker has connected again")

    def acked(self, session: "SwitchMasterSession", hello: SlaveHello, end: int) -> None:
        """It has the log up to ``end``."""
        if self._is_of(session, hello.broker_id):
            self._copies.acked(hello.broker_id, end, hello.is_learner)

    def ended(self, session: "SwitchMasterSession", newcomer: Newcomer) -> None:
        """Its connection is closed."""
        if self._is_of(session, newcomer.broker_id):
            del self._by_id[newcomer.broker_id]
            self._copies.gone(newcomer.broker_id)

    def forget_others(self, replicas: Mapping[int, str]) -> None:
        """Close the connections of brokers that the Controllers do not list in ``replicas``."""
        for broker_id, (_, session) in list(self._by_id.items()):
            if broker_id not in replicas:
                session.close(f"the Controllers do not know a broker {broker_id} of this set any more")

    def _is_of(self, session: "SwitchMasterSession", broker_id: int) -> bool:
        return self._by_id.get(broker_id, ("", None))[1] is session


class SwitchMasterSession(MasterSide):
    """The master's end; see `MasterSession`. A learner is no copy in the ledger."""

    def __init__(self, end: MasterEnd, followers: Followers, peer: Peer) -> None:
        self.slave: ConnectedSlave | None = None
        self.close = peer.close
        self._end = end
        self._followers = followers
        self._peer = peer
        # Set when it is accepted.
        self._newcomer: Newcomer | None = None

    @property
    def who(self) -> str:
        """The slave, for the log."""
        hello, newcomer = self._end.slave, self._newcomer
        if hello is None or newcomer is None:
            return "nobody yet"
        kind = "learner" if hello.is_learner else "broker"
        return f"{kind} {hello.broker_id} at {newcomer.addr}" if newcomer.addr else f"{kind} {hello.broker_id}, plain"

    @property
    def idle(self) -> bool:
        """Whether only new bytes of the log give the sender something to do."""
        return self._end.is_idle

    @property
    def next_offset(self) -> int:
        """Where the next range begins."""
        return self._end.next_offset

    def lags(self, end: int) -> bool:
        """Whether this is a slave without all before ``end``."""
        return 0 <= self._end.acked < end

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave."""
        self._end.receive(data, now)
        self._take_reports()

    def _take_reports(self) -> None:
        end, peer = self._end, self._peer
        hello = end.slave
        if hello is None or end.acked < 0:
            return
        acks = self._followers.acks
        if self.slave is None:
            begin = 0 if end.acked else end.next_offset
            self.slave = acks.connected(peer.addr, peer.since, str(hello.broker_id), begin)
        if not hello.is_learner:
            acks.acked(peer.addr, end.acked)
        self._followers.acked(self, hello, end.acked)

    def next_step(self, now: float, most: int = CHUNK_BYTES) -> bytes | Newcomer | Range | None:
        """What to send or do next; a range has up to ``most`` bytes."""
        end = self._end
        if output := end.take_output():
            return output
        if end.refusal:
            raise ProtocolError(f"refused: {end.refusal}")
        return end.newcomer or end.next_range(now, most)

    def next_range(self, now: float) -> Range | None:
        """As `next_step`, for new bytes of the log only."""
        return self._end.next_range(now)

    def judge(self, objection: Objection, now: float) -> None:
        """Accept the newcomer, or refuse it with the reason ``objection``. ProtocolError when it may try again soon."""
        newcomer = self._end.newcomer
        assert newcomer is not None and not isinstance(objection, PieceCrc)
        if not objection and (rival := self._followers.rival(newcomer)):
            raise ProtocolError(rival)
        if not objection:
            self._peer.admit(True)
        self._end.judge(objection or "", now)
        if self._end.refusal:
            return
        self._newcomer = newcomer
        self._followers.follows(self, newcomer)
        self._take_reports()

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
        self._followers.acks.gone(self._peer.addr)
        if self._newcomer is not None:
            self._followers.ended(self, self._newcomer)


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

    async def receive(self, data: memoryview, now: float) -> Sequence[EpochPiece]:
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
        self, replica: Replica, terms: LinkTerms, epochs: LogEpochs, hello: Callable[[], SlaveHello], addr: str,
        cut: Callable[[int], Awaitable[None]], confirmed: Callable[[int], None], *, sync_flush: bool,
    ) -> None:  # fmt: skip
        """``addr``: where clients reach this broker."""
        self._replica = replica
        self._addr = addr
        self._terms = terms
        self._epochs = epochs
        self._hello = hello
        self._cut = cut
        self._confirmed = confirmed
        self._sync_flush = sync_flush

    async def begin(self, target: MasterTarget) -> SwitchSlaveSession:
        """The session of a new connection. ReplicationRefused when the master cannot prove who it is."""
        self._epochs.cover_log()
        log, terms, said = self._replica.log, self._terms, self._hello()
        proof = None
        if target.hello:
            nonce = os.urandom(NONCE_BYTES)
            hello = Hello(VERSION, terms.cluster, terms.broker, said.broker_id, self._addr, nonce)
            claim = LogClaim(b"", log.start, log.raw_end, log.chain.segment_bytes, said.from_last_file, ())
            proof = hello, claim
        else:
            terms.check_plain_master(target.ha_addr)
        end = SlaveEnd(
            terms, said, self._epochs.now, start=log.start, end=log.raw_end, now=trio.current_time(), proof=proof
        )
        return SwitchSlaveSession(
            end, self._replica, self._epochs, self._cut, self._confirmed, sync_flush=self._sync_flush
        )


def switch_sessions(end: Callable[[Peer], MasterEnd], followers: Followers) -> NewMasterSide:
    """Makes the sessions of a master, whose connection to a peer begins with ``end``."""
    return lambda peer: SwitchMasterSession(end(peer), followers, peer)
