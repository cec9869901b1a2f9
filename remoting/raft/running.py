"""A node that has begun, on a real disk and network.

One task does what ``Raft.ready`` wants after everything that came since it last ran; another writes to disk in a
thread, with one fsync for all that gathered; each peer has one that sends (peers.py).
"""

import logging
import zlib
from collections.abc import Callable
from typing import Any

import trio

from mqcommon.clock import Clock
from mqcommon.raft.config import Config
from mqcommon.raft.errors import NotLeader, RaftError, Unknown
from mqcommon.raft.log import MemoryEntries
from mqcommon.raft.membership import Change
from mqcommon.raft.messages import APPLICATION, RaftMessage
from mqcommon.raft.raft import Raft
from mqcommon.raft.ready import Persist, Ready
from mqcommon.signal import Signal
from remoting.raft.options import NodeOptions
from remoting.raft.peers import Peers
from remoting.raft.state_machine import StateMachine
from remoting.raft.storage import Storage, Stored
from remoting.raft.waiting import Done, Proposals, Reads, Result

logger = logging.getLogger(__name__)

# A snapshot goes in one frame.
MAX_SNAPSHOT_BYTES = 12 << 20


class Running:
    """The parts of a node that has begun: Raft, who waits, what is written."""

    def __init__(
        self, options: NodeOptions, storage: Storage, stored: Stored, machine: StateMachine, peers: Peers, clock: Clock
    ) -> None:
        self._options = options
        self._storage = storage
        self._machine = machine
        self._peers = peers
        self._clock = clock
        self.may_tick = False
        # Whether the log of this node lacks what it promised to have.
        self._lost = False
        self._wake = Signal()
        self._to_write: Persist | None = None
        self._to_compact: tuple[int, bytes] | None = None  # an index, and the state after it
        self._write = Signal()
        self._proposals = Proposals()
        self._reads = Reads()
        self._addresses: dict[str, str] = {}
        self._observers: list[Callable[[bool], None]] = []
        self._led = False
        self._deposed = trio.Event()
        self.applied = stored.snapshot.index
        config = Config(storage.node, options.random, options.election_ms, options.heartbeat_ms)
        entries = MemoryEntries(*stored.base, stored.entries)
        self.raft = Raft(config, stored.hard_state, stored.snapshot, entries, clock.monotonic_ms())
        if stored.snapshot.index:
            machine.restore(zlib.decompress(stored.snapshot.data))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tick)
                nursery.start_soon(self._work)
                nursery.start_soon(self._write_to_disk)
                task_status.started()
        finally:
            self._proposals.close()

    # What comes in.

    async def _tick(self) -> None:
        while True:
            if (self.may_tick or self.raft.term > 0) and not self._lost:
                self.raft.tick(self._clock.monotonic_ms())
                self._wake.set()
            await trio.sleep(self._options.heartbeat_ms / 2000)

    def receive(self, sender: str, addr: str, messages: list[RaftMessage]) -> None:
        if len(self._addresses) < 100 or sender in self._addresses:
            self._addresses[sender] = addr
        if self._lost:
            return
        try:
            for message in messages:
                self.raft.step(message)
        except RaftError as error:
            # It does not know what it promised: it must neither vote nor lead.
            self._lost = True
            logger.error(
                "%s takes no part in its group any more: %s. While the other nodes are a majority and whole, stop this "
                "node, remove the directory of its Raft log and start it: it joins them anew (docs/raft.md)",
                self.raft.node,
                error,
            )
            return
        self._wake.set()

    def submit(self, data: bytes, done: Done) -> None:
        """``done`` gets what ``apply`` returned, or a RaftError. Raises NotLeader and Overloaded."""
        index, term = self.raft.propose(data)
        self._proposals.add(index, term, done)
        self._wake.set()

    async def change(self, change: Change, timeout_ms: float) -> None:
        await self._wait(lambda done: self._proposals.add(*self.raft.change(change), done), timeout_ms)

    async def propose(self, data: bytes, timeout_ms: float) -> Any:
        return await self._wait(lambda done: self.submit(data, done), timeout_ms)

    async def read(self, timeout_ms: float) -> None:
        await self._wait(self.raft.read_index, timeout_ms)

    async def _wait(self, begin: Callable[[Done], None], timeout_ms: float) -> Any:
        event = trio.Event()
        result = Result(event.set)
        begin(result)
        self._wake.set()
        with trio.move_on_after(timeout_ms / 1000):
            await event.wait()
        return result.get()

    async def transfer(self, to: str, timeout_ms: float) -> None:
        self.raft.transfer(to)
        self._wake.set()
        with trio.move_on_after(timeout_ms / 1000):
            while self.raft.leader == self.raft.node:
                self._deposed = trio.Event()
                await self._deposed.wait()
            return
        raise Unknown(f"{to} has not taken over within {timeout_ms:.0f} ms; see who leads, and try again")

    def observe(self, observer: Callable[[bool], None]) -> None:
        self._observers.append(observer)

    # What goes out.

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._do(self.raft.ready())
            while self.raft.has_more:
                await trio.lowlevel.checkpoint()
                self._do(self.raft.ready())

    def _do(self, ready: Ready) -> None:
        for message in ready.messages:
            self._send(message)
        if ready.persist is not None:
            self._to_write = ready.persist
            self._write.set()
        if ready.restore is not None:
            self._machine.restore(zlib.decompress(ready.restore.data))
            self.applied = ready.restore.index
            self._proposals.restored(self.applied)
        for entry in ready.committed:
            result = self._machine.apply(entry.index, entry.data) if entry.kind == APPLICATION else None
            self._proposals.applied(entry.index, entry.term, result)
            self.applied = entry.index
        for read in ready.reads:
            done: Any = read.context
            if read.index is None:
                done(NotLeader(self.raft.leader))
            else:
                self._reads.add(read.index, done)
        self._reads.applied(self.applied)
        self._consider_snapshot()
        self._tell_observers()

    def _send(self, message: RaftMessage) -> None:
        addr = self.address(message.to)
        if addr:
            self._peers.send(addr, message)

    def address(self, node: str) -> str:
        """Where ``node`` listens: as the members say, else as it said itself."""
        return self.raft.members.all.get(node) or self._addresses.get(node, "")

    def _tell_observers(self) -> None:
        if self.raft.leader != self.raft.node:
            self._deposed.set()
        leads = self.raft.is_leader
        if leads != self._led:
            self._led = leads
            logger.info("%s %s in term %d", self.raft.node, "leads" if leads else "does not lead", self.raft.term)
            for observer in self._observers:
                observer(leads)

    # The disk.

    def _consider_snapshot(self) -> None:
        if self._to_compact is not None or self.applied - self.raft.log.snapshot.index < self._options.snapshot_entries:
            return
        self._to_compact = (self.applied, self._machine.snapshot())
        self._write.set()

    async def _write_to_disk(self) -> None:
        while True:
            await self._write.wait()
            persist, self._to_write = self._to_write, None
            if persist is not None:
                await trio.to_thread.run_sync(self._storage.write, persist)
                for message in persist.messages:
                    self._send(message)
                self.raft.persisted()
                self._wake.set()
            elif self._to_compact is not None:
                await self._compact(*self._to_compact)
                self._to_compact = None
            if self._to_write is not None or self._to_compact is not None:
                self._write.set()

    async def _compact(self, index: int, state: bytes) -> None:
        data = await trio.to_thread.run_sync(zlib.compress, state, 1)
        if len(data) > MAX_SNAPSHOT_BYTES:
            raise RaftError(f"a snapshot of {len(data)} bytes is longer than {MAX_SNAPSHOT_BYTES}")
        log = self.raft.log
        if index <= log.snapshot.index:
            return  # the leader sent a newer one meanwhile
        snapshot = self.raft.make_snapshot(index, data)
        base = max(snapshot.index - self._options.kept_entries, log.entries.base)
        entries = log.entries.read(base + 1, log.persisted + 1, 1 << 62)
        await trio.to_thread.run_sync(self._storage.compact, snapshot, (base, log.term(base) or 0), entries)
        self.raft.compact(snapshot, self._options.kept_entries)
