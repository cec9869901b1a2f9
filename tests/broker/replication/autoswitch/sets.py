"""A master and slaves of a set with Controllers, over a network in memory; what decides about the set is left out."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.autoswitch.frames import SlaveHello
from skylark.broker.replication.autoswitch.link import ElectedLog, MasterEnd
from skylark.broker.replication.autoswitch.log_epochs import LogEpochs
from skylark.broker.replication.autoswitch.session import (
    Followers,
    RegisteredReplicas,
    SlaveLog,
    SwitchDialogue,
    switch_sessions,
)
from skylark.broker.replication.copying import CopiedLog
from skylark.broker.replication.hello import LinkTerms
from skylark.broker.replication.link import Claim, Newcomer
from skylark.broker.replication.master import HaServer
from skylark.broker.replication.plain_dialogue import bounds_of
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.session import MasterTarget, Peer
from skylark.broker.replication.slave import HaClient, MasterAccess
from skylark.broker.replication.stats import SlaveProgress
from skylark.broker.store.store import StoreOptions
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tasks.truncate import LogTruncation
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.remoting.net.transport import Connect, Transport
from tests.broker.store.support import SMALL, open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles
from tests.support.memory_transport import MemoryNetwork, MemoryTransport

EPOCH_FILE = "/store/epochFileCheckpoint"


class Copies:
    """What the master's end reports of its slaves: how far each slave is, and the slaves that left, in order."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.learners: set[int] = set()
        self.left: list[int] = []

    def acked(self, broker_id: int, end: int, is_learner: bool) -> None:
        self.ends[broker_id] = end
        if is_learner:
            self.learners.add(broker_id)

    def disconnected(self, broker_id: int) -> None:
        # A slave that is refused because of its log has reported nothing.
        if self.ends.pop(broker_id, None) is not None:
            self.left.append(broker_id)


class Member:
    """A broker's log with its epochs. It can lead (`serving`) and follow (`following`)."""

    def __init__(self, fs: MemoryFiles | None = None, options: StoreOptions = SMALL, *, rate: int = 0) -> None:
        self.fs = fs or MemoryFiles()
        self.store = open_store(self.fs, options=options)
        #: Where clients would reach this broker.
        self.addr = "10.0.0.2:10911"
        self.epochs = LogEpochs(self.fs, EPOCH_FILE, self.store.log)
        self.epochs.load()
        self.copies, self.acks = Copies(), AckLedger(1 << 20)
        self.terms = LinkTerms("c", "b")
        #: The brokers of the set, by id; None: all that come.
        self.registered: dict[int, str] | None = None
        #: What is confirmed: as the master it says so, as a slave it was told.
        self.confirmed = 0
        #: Where the log was cut, and what was reported.
        self.cuts: list[int] = []
        self.promised: list[int] = []
        self.followers = Followers(self.acks, self.copies)
        self.registered_replicas = RegisteredReplicas(self._ask, frozenset())
        self.master = HaServer(self.store.log, switch_sessions(self._end, self.followers), self._examine, lambda: rate)

    def put(self, body: bytes) -> None:
        put(self.store, "A", 0, body)
        self.master.wake()

    async def lead(self, epoch: int, bodies: int, random: Random | None = None) -> None:
        """Write messages in a new epoch."""
        await self.epochs.begin(epoch)
        for number in range(bodies):
            self.put(b"%d in %d" % (number, epoch) + bytes(random.randrange(300) if random else 0))

    @asynccontextmanager
    async def serving(self, network: "Wires") -> AsyncIterator[MasterTarget]:
        listener = network.listen()
        async with trio.open_nursery() as nursery:
            address = await nursery.start(self.master.serve_on, [listener])
            yield MasterTarget(address, hello=True)
            nursery.cancel_scope.cancel()
        await listener.aclose()

    @asynccontextmanager
    async def following(
        self, target: MasterTarget, connect: Connect, broker_id: int = 2, *, is_learner: bool = False,
        from_last_file: bool = False, flush: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncIterator[HaClient]:  # fmt: skip
        """``flush``: with SYNC_FLUSH."""

        async def find() -> MasterTarget:
            return target

        def confirmed(offset: int) -> None:
            self.confirmed = max(self.confirmed, offset)

        async def settle() -> None:
            await trio.lowlevel.checkpoint()

        replica = Replica(self.store)
        flusher = Flusher(self.store, LogWaits(), Admission(), BrokerOptions(), settle)
        cutter = LogTruncation(self.fs, "/store", self.store, flusher)

        async def cut(offset: int) -> None:
            self.cuts.append(offset)
            await cutter.cut(offset)

        dialogue = SwitchDialogue(
            SlaveLog(replica, self.epochs, cut, confirmed, self.promised.append), self.terms,
            lambda: SlaveHello(from_last_file, is_learner, broker_id), self.addr, lambda: (1 << 31) - 1,
            sync_flush=flush is not None,
        )  # fmt: skip
        slave = HaClient(
            CopiedLog(replica, lambda: None, flusher.one_at_a_time, flush),
            MasterAccess(find, dialogue, lambda: None, connect), SlaveProgress(), ManualClock(), random=Random(1),
        )  # fmt: skip
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slave.run)
            yield slave
            nursery.cancel_scope.cancel()
        await slave.finish()

    def _end(self, peer: Peer) -> MasterEnd:
        log, epochs = self.store.log, self.epochs
        served = ElectedLog(lambda: bounds_of(log), epochs.now, epochs.last, lambda: self.confirmed)
        return MasterEnd(self.terms, served, b"nonce", peer.addr, peer.since)

    async def _examine(self, newcomer: Claim) -> str:
        assert isinstance(newcomer, Newcomer)
        return "" if self.registered is None else await self.registered_replicas.objection(newcomer)

    async def _ask(self) -> dict[int, str]:
        assert self.registered is not None
        return self.registered


class Wires(MemoryNetwork):
    """A network that remembers the connections to the one address that listens."""

    def __init__(self, *, capacity: int = 1 << 20) -> None:
        super().__init__(capacity=capacity)
        self.connections: list[MemoryTransport] = []

    async def open(self, host: str, port: int) -> Transport:
        self.connections.append(await self.connect(host, port))
        return self.connections[-1]
