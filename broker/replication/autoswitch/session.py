"""The steps of both ends of an auto-switch HA connection, and which brokers may be at its other end.

Like ../session.py, with epochs and the confirm offset. The master reports to `Leading` how far each broker has the log.
The slave cuts bytes that its master's log does not have, and saves each new epoch before the first byte of the epoch is
appended.
A slave claims its id on the HA link, where anybody can claim any id. So the master compares the id with the brokers
that the Controllers have registered (`RegisteredReplicas`): only these may copy the log and count as copies.
Neighbours: link.py (the protocol), ../session.py (what the transports need), wiring/replication.py makes these.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Protocol

import trio

from skylark.broker.replication.autoswitch.frames import EpochPiece, SlaveHello
from skylark.broker.replication.autoswitch.link import MasterEnd, SlaveEnd
from skylark.broker.replication.autoswitch.log_epochs import LogEpochs
from skylark.broker.replication.hello import NONCE_BYTES, VERSION, Hello, LinkTerms, LogClaim, PieceCrc
from skylark.broker.replication.link import Newcomer
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.session import (
    Dialogue,
    MasterSide,
    MasterTarget,
    NewMasterSide,
    Objection,
    Peer,
    SlaveSide,
)
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

# The Controllers are asked at most this often, however many strangers connect.
ASK_S = 0.5


def copied_identity(broker_id: int, known: str, other: str) -> str:
    """The text about two brokers with ``broker_id``, one ``known`` at its address and one at the ``other`` address."""
    return (
        f"broker {broker_id} is at {known}, and another one with this id at {other}: one of the two runs with a copied"
        " brokerIdentity file. Stop the wrong one and remove the file from its store"
    )


class RegisteredReplicas:
    """The brokers of this set that the Controllers have registered.

    ``ask`` sends 1006 and returns the addresses for clients by broker id. An earlier answer is good enough for a slave
    that it lists. Before any other slave is refused, ``ask`` is called again: the slave may just have registered.
    """

    def __init__(self, ask: Callable[[], Awaitable[Mapping[int, str]]], plain_hosts: frozenset[str]) -> None:
        """``plain_hosts``: hosts from the options, whose plain peers may have any address."""
        self._ask = ask
        self._plain_hosts = plain_hosts
        #: The last answer of the Controllers.
        self.replicas: Mapping[int, str] = {}
        self._asked_at = -inf
        self._asking = trio.Lock()

    async def objection(self, newcomer: Newcomer) -> str:
        """Why the slave must not be served; "" when it may. ProtocolError when it may try again soon."""
        if not self._fault(newcomer):
            return ""
        # A fault may come from an old list: the slave may have registered, or moved, since the Controllers were asked.
        try:
            await self.refresh()
        except (BrokerError, RemotingError, ProtocolError) as error:
            raise ProtocolError(
                f"whether broker {newcomer.broker_id} belongs to this set is not known: {error}"
            ) from None
        if newcomer.broker_id not in self.replicas:
            raise ProtocolError(
                f"it says that it is broker {newcomer.broker_id}, which the Controllers do not know in this set; they"
                f" know {', '.join(map(str, sorted(self.replicas))) or 'none'}"
            )
        return self._fault(newcomer)

    async def refresh(self) -> None:
        """Ask the Controllers, at most every `ASK_S`. Raises the errors of ``ask``."""
        async with self._asking:
            await trio.sleep_until(self._asked_at + ASK_S)
            self._asked_at = trio.current_time()
            self.replicas = await self._ask()

    def _fault(self, newcomer: Newcomer) -> str:
        broker_id, addr, peer = newcomer
        registered = self.replicas.get(broker_id)
        if registered is None:
            return f"broker {broker_id} is not registered"
        if addr:
            return "" if addr == registered else copied_identity(broker_id, registered, addr)
        host = split_address(peer)[0]
        if host in self._plain_hosts or host == split_address(registered)[0]:
            return ""
        return (
            f"broker {broker_id} is registered at {registered}, but this connection comes from {host}. If it is this"
            " broker nevertheless, add the host to haPlainPeerAddresses of the master"
        )


class ReportListener(Protocol):
    """Gets the reports of slaves."""

    def acked(self, broker_id: int, end: int, is_learner: bool) -> None: ...
    def disconnected(self, broker_id: int) -> None: ...


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
        """Record that a slave is accepted."""
        # The new session takes the id before the old session is closed: reports and the end of the old session must not
        # count for the new one.
        _, before = self._by_id.get(newcomer.broker_id, ("", None))
        self._by_id[newcomer.broker_id] = newcomer.where, session
        if before is not None:
            # The slave may have started again, with a shorter log.
            self._copies.disconnected(newcomer.broker_id)
            before.close("the same broker has connected again")

    def acked(self, session: "SwitchMasterSession", hello: SlaveHello, end: int) -> None:
        """Record that the slave has the log up to ``end``."""
        if self._is_of(session, hello.broker_id):
            self._copies.acked(hello.broker_id, end, hello.is_learner)

    def ended(self, session: "SwitchMasterSession", newcomer: Newcomer) -> None:
        """Remove the slave, whose connection is closed."""
        if self._is_of(session, newcomer.broker_id):
            del self._by_id[newcomer.broker_id]
            self._copies.disconnected(newcomer.broker_id)

    def forget_others(self, replicas: Mapping[int, str]) -> None:
        """Close the connections of brokers that the Controllers do not list in ``replicas``."""
        for broker_id, (_, session) in list(self._by_id.items()):
            if broker_id not in replicas:
                session.close(f"the Controllers do not know a broker {broker_id} of this set any more")

    def _is_of(self, session: "SwitchMasterSession", broker_id: int) -> bool:
        return self._by_id.get(broker_id, ("", None))[1] is session


class SwitchMasterSession(MasterSide):
    """The master's end. A learner is no copy in the ledger."""

    link: MasterEnd

    def __init__(self, end: MasterEnd, followers: Followers, peer: Peer) -> None:
        super().__init__(end, followers.acks, peer)
        self.close = peer.close
        self._followers = followers
        # Set when the slave is accepted.
        self._newcomer: Newcomer | None = None

    @property
    def who(self) -> str:
        hello, newcomer = self.link.slave, self._newcomer
        if hello is None or newcomer is None:
            return "nobody yet"
        kind = "learner" if hello.is_learner else "broker"
        return f"{kind} {hello.broker_id} at {newcomer.addr}" if newcomer.addr else f"{kind} {hello.broker_id}, plain"

    def receive(self, data: bytes, now: float) -> None:
        self.link.receive(data, now)
        self._take_reports()

    def _take_reports(self) -> None:
        link, peer = self.link, self._peer
        hello = link.slave
        if hello is None or link.acked < 0:
            return
        # The ledger counts a slave from its first report on: before that the master does not know what the slave has.
        if self.slave is None:
            begin = 0 if link.acked else link.next_offset
            self.slave = self._acks.connected(peer.addr, peer.since, str(hello.broker_id), begin)
        if not hello.is_learner:
            self._acks.acked(peer.addr, link.acked)
        self._followers.acked(self, hello, link.acked)

    def judge(self, objection: Objection, now: float) -> None:
        """Accept the newcomer, or refuse it with the reason ``objection``. ProtocolError when it may try again soon."""
        newcomer = self.link.claimed
        assert newcomer is not None and not isinstance(objection, PieceCrc)
        if not objection and (rival := self._followers.rival(newcomer)):
            raise ProtocolError(rival)
        if not objection:
            self._peer.admit(True)
        self.link.judge(objection or "", now)
        if self.link.refusal:
            return
        self._newcomer = newcomer
        self._followers.follows(self, newcomer)
        self._take_reports()

    def ended(self) -> None:
        super().ended()
        if self._newcomer is not None:
            self._followers.ended(self, self._newcomer)


@lazy_dataclass(frozen=True, slots=True)
class SlaveLog:
    """The log of a slave that follows elected masters.

    ``cut`` saves and cuts the log after an offset. ``confirmed`` gets the confirm offset within the log.
    ``promised`` gets each end of the log before it is reported.
    """

    replica: Replica
    epochs: LogEpochs
    cut: Callable[[int], Awaitable[None]]
    confirmed: Callable[[int], None]
    promised: Callable[[int], None]


class SwitchSlaveSession(SlaveSide):
    """The slave's end."""

    link: SlaveEnd

    def __init__(self, end: SlaveEnd, log: SlaveLog, *, sync_flush: bool) -> None:
        super().__init__(end, sync_flush=sync_flush)
        self._log = log

    async def receive(self, data: memoryview, now: float) -> Sequence[EpochPiece]:
        epochs = self._log.epochs
        before = epochs.last
        pieces = self.link.receive(data, now)
        # The epoch is on disk before its bytes are in the log. In the other order, after a crash, the bytes would count
        # as an earlier master's, and the next comparison with a master's epochs would keep bytes that must be cut.
        if epochs.last != before:
            await epochs.save()
        return pieces

    @property
    def must_cut(self) -> bool:
        return self.link.cut_at is not None

    async def cut(self) -> None:
        link, replica = self.link, self._log.replica
        if link.cut_at is not None and not replica.is_empty and link.cut_at < replica.raw_end:
            await self._log.cut(link.cut_at)
        self._log.promised(replica.raw_end)
        # Only now the slave reports where the master must continue, so no byte can arrive before the cut.
        link.cut(trio.current_time())
        await self._log.epochs.save()

    def appended(self, end: int, now: float) -> None:
        if not self._sync_flush:
            self._log.promised(end)
        super().appended(end, now)

    def flushed(self, end: int, now: float) -> None:
        if self._sync_flush:
            self._log.promised(end)
        super().flushed(end, now)

    def settle(self) -> None:
        # The master may have confirmed more than this log has: this broker promises only the bytes that it has.
        self._log.confirmed(min(self.link.confirm_offset, self._log.replica.raw_end))


class SwitchDialogue(Dialogue):
    """Begins connections to the master. ``addr``: where clients reach this broker; ``known_epoch`` as `SlaveEnd`."""

    def __init__(
        self,
        log: SlaveLog,
        terms: LinkTerms,
        hello: Callable[[], SlaveHello],
        addr: str,
        known_epoch: Callable[[], int],
        *,
        sync_flush: bool,
    ) -> None:
        self._log = log
        self._terms = terms
        self._hello = hello
        self._addr = addr
        self._known_epoch = known_epoch
        self._sync_flush = sync_flush

    async def begin(self, target: MasterTarget) -> SwitchSlaveSession:
        """The session of a new connection. ReplicationRefused when the master cannot prove who it is."""
        self._log.epochs.cover_log()
        log, terms, said = self._log.replica.log, self._terms, self._hello()
        proof = None
        if target.hello:
            nonce = os.urandom(NONCE_BYTES)
            hello = Hello(VERSION, terms.cluster, terms.broker, said.broker_id, self._addr, nonce)
            claim = LogClaim(b"", log.start, log.raw_end, log.chain.segment_bytes, said.from_last_file, ())
            proof = hello, claim
        else:
            terms.check_plain_master(target.ha_addr)
        end = SlaveEnd(
            terms,
            said,
            self._log.epochs.now,
            start=log.start,
            end=log.raw_end,
            now=trio.current_time(),
            proof=proof,
            known_epoch=self._known_epoch,
        )
        return SwitchSlaveSession(end, self._log, sync_flush=self._sync_flush)


def switch_sessions(end: Callable[[Peer], MasterEnd], followers: Followers) -> NewMasterSide:
    """Makes the sessions of a master, whose connection to a peer begins with ``end``."""
    return lambda peer: SwitchMasterSession(end(peer), followers, peer)
