"""Random histories of a DLedger group with the store's real code, on disks that lose power, also within a step.

Raft, the side file, the commit log, its queues, truncation and recovery are the product's. The network, the order of
events, and the moments of crashes are the seed's. Each of these holds after each event:
no two members lead in one term; an entry that is committed is the same at all members, for ever.
In the end, without faults: all logs are equal byte for byte, what was acknowledged is in them and in the queues, and
each queue has exactly the messages of its log.
"""

from collections.abc import Awaitable, Callable
from random import Random

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.copying import CopiedLog, QueueBuilding
from skylark.broker.replication.dledger.log_disk import CopyingTo, GroupLog, LogDisk
from skylark.broker.replication.dledger.log_entries import reference_of
from skylark.broker.replication.dledger.proposing import Proposing
from skylark.broker.replication.replica import Replica
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tasks.truncate import LogTruncation
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.raft.config import Config
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import APPLICATION, AppendRequest, Heartbeat, InstallSnapshot, RaftMessage, Snapshot
from skylark.mqcommon.raft.raft import Leader, Raft
from skylark.mqcommon.raft.ready import Persist
from skylark.remoting.raft.group import Done
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles
from tests.support.rounds import report

STEPS = 500
PEACE_STEPS = 3_000
TOPIC, QUEUES = "topic", 2
TICK_MS = 25
OPTIONS = BrokerOptions(broker_name="group", flush_disk_type="SYNC_FLUSH")

Acked = tuple[int, int, bytes]  # queue, offset, body


class Changes:
    """No tables."""

    has_pending = False

    def propose(self, node: object) -> None:
        raise AssertionError("there is nothing to propose")


class Member:
    """One member while it lives. It is its own `GroupNode`."""

    def __init__(self, history: "History", name: str, fs: MemoryFiles) -> None:
        self._history = history
        self.name = name
        self.fs = fs
        self.raft: Raft
        self.now_ms = 0
        self.leads = False
        self.is_dead = False
        # Where the log is confirmed; what was put in this leadership and is not confirmed.
        self.confirmed = 0
        self.waiting: list[tuple[int, Acked]] = []
        self.persist: Persist | None = None

    async def start(self) -> None:
        self.store = store = open_store(self.fs)
        self.flusher = Flusher(store, LogWaits(), Admission(), OPTIONS, trio.lowlevel.checkpoint)
        truncation = LogTruncation(self.fs, "/store", store, self.flusher)
        sync_flush = self._history.sync_flush
        self.disk = LogDisk(self.fs, "/store", GroupLog(store.log, self.flusher.flush, truncation.cut, sync_flush))
        await self._follow()
        loaded = await self.disk.load()
        if loaded is None:
            await self.disk.begin(self.name, Snapshot(0, 0, self._history.members, b""))
            loaded = await self.disk.load()
        assert loaded is not None
        config = Config(
            self.name, Random(self._history.random.random()), 100, TICK_MS, max_append_bytes=2_000,
            max_in_flight_requests=4, tells_commits=False, travelling_bytes=self.disk.travelling_bytes,
        )  # fmt: skip
        self.raft = Raft(config, loaded.hard_state, loaded.snapshot, loaded.entries, self.now_ms)
        self.confirmed = self.disk.committed_position
        self.proposing = Proposing(
            store.log, lambda: self, lambda: self.leads, lambda: self.disk.entries.position, lambda: self.confirmed,
            lambda: 0, Changes(),
        )  # fmt: skip

    def close(self) -> None:
        self.disk.close()
        self.store.close()

    # --- GroupNode

    @property
    def is_leader(self) -> bool:
        return self.raft.is_leader

    def submit(self, data: bytes, done: Done) -> None:
        self.raft.propose(data)

    def turn(self) -> None:
        """The history does it next."""

    # --- events

    async def tick(self) -> None:
        self.now_ms += TICK_MS
        self.raft.tick(self.now_ms)
        await self.do()

    async def receive(self, body: bytes) -> None:
        for message in self.disk.decode(body):
            if isinstance(message, AppendRequest | InstallSnapshot) and message.term >= self.raft.term:
                if message.term > self.raft.term:
                    self.raft.step(Heartbeat(message.sender, message.to, message.term, 0, 0))
                # Without a writer the node would wait; here it is as if the message was lost.
                can_wait = self.disk.entries.writer is not None
                if not self.disk.is_ready(self.raft, message) and not (
                    can_wait and await self.disk.prepare(self.raft, message)
                ):
                    continue
            self.raft.step(message)
        await self.do()

    async def put(self) -> None:
        random, store = self._history.random, self.store
        if not self.leads:
            return
        for _ in range(random.choice((1, 1, 2, 6))):
            queue = random.randrange(QUEUES)
            body = self._history.next_body()
            offset = put(store, TOPIC, queue, body)
            self.waiting.append((store.log.end, (queue, offset, body)))
        if random.random() < 0.9:
            self.proposing.wake()
        await self.do()

    async def flush(self) -> None:
        """Flush, as `LogDisk.flush_often` does."""
        await self.disk.flush()

    async def finish_write(self) -> None:
        persist, self.persist = self.persist, None
        if persist is None:
            return
        await self.disk.write(persist)
        await self._send(persist.messages)
        self.raft.persisted()
        await self.do()

    async def take_role(self) -> None:
        if self.raft.is_leader and not self.leads:
            await self.disk.end_following(self._copying)
            await self.disk.align()
            assert self.store.log.end == self.disk.entries.position
            self.leads = True
        elif not self.raft.is_leader and self.leads:
            self.leads = False
            self.waiting.clear()
            await self._follow()

    async def checkpoint(self) -> None:
        await self.flusher.checkpoint(note_ends=self._history.random.random() < 0.3)

    async def compact(self) -> None:
        """Compact the log, as the driver does after some entries."""
        if self.persist is None and self._applied > self.raft.log.snapshot.index:
            snapshot = self.raft.make_snapshot(self._applied, b"")
            await self.disk.compact(self.raft.log, snapshot, 0)
            self.raft.compact(snapshot, 0)

    async def build(self) -> None:
        if not self.leads:
            await self._copying.queues.build_rest()

    # --- inside

    _applied = 0

    async def _follow(self) -> None:
        replica = Replica(self.store)
        guard = self.flusher.one_at_a_time
        self._copying = CopyingTo(replica, QueueBuilding(CopiedLog(replica, lambda: None, guard)), guard)
        await self.disk.follow(self._copying)

    async def do(self) -> None:
        while True:
            ready = self.raft.ready()
            await self._send(ready.messages)
            if ready.persist is not None and self.disk.write_now(ready.persist):
                await self._send(ready.persist.messages)
                self.raft.persisted()
                continue
            if ready.persist is not None:
                self.persist = ready.persist
            for entry in ready.committed:
                self._applied = entry.index
                found = reference_of(entry.data) if entry.kind == APPLICATION else None
                if not self.is_dead:
                    self._history.committed(self, entry.index)
                if found is not None:
                    self.confirmed = max(self.confirmed, found.start + found.size)
            is_leader = self.raft.is_leader and not self.is_dead
            while self.waiting and self.waiting[0][0] <= self.confirmed and is_leader:
                self._history.acked.append(self.waiting.pop(0)[1])
            if not self.raft.has_more:
                return

    async def _send(self, messages: tuple[RaftMessage, ...]) -> None:
        for message in messages if not self.is_dead else ():
            body = self.disk.encode_now([message])
            self._history.sent(self.name, message.to, body or await self.disk.encode([message]))


class History:
    """One seed."""

    #: With ASYNC_FLUSH members are killed, and lose no power: what they promised survives that.
    sync_flush = True
    member_class: type[Member] = Member
    #: How many members a group has: one of these.
    sizes = (1, 3, 3, 3, 5)
    steps = STEPS
    #: After how many steps of peace it is looked whether all is settled.
    settle_steps = 50

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.trace: list[str] = []
        names = [f"n{number}" for number in range(random.choice(self.sizes))]
        self.members = Members(dict.fromkeys(names, ""))
        self.disks = {name: MemoryFiles() for name in names}
        self.alive: dict[str, Member] = {}
        self.acked: list[Acked] = []
        self._bodies = 0
        self._is_peace = False
        self._network: list[tuple[str, str, bytes]] = []
        self._cut: set[tuple[str, str]] = set()
        self._loss = random.choice((0.0, 0.05, 0.2))
        # By index: term and chain of the entry. By term: who leads.
        self._committed: dict[int, tuple[int, int]] = {}
        self._leaders: dict[int, str] = {}

    def run(self) -> None:
        trio.run(self._run)

    def next_body(self) -> bytes:
        self._bodies += 1
        return b"%d" % self._bodies + bytes(self.random.choice((1, 1, 100, 900)))

    def sent(self, sender: str, to: str, body: bytes) -> None:
        while self.random.random() >= self._loss:
            self._network.append((sender, to, body))
            if self.random.random() >= 0.05:
                return

    def committed(self, member: Member, index: int) -> None:
        entry = member.disk.index.entry(index)
        known = self._committed.setdefault(index, (entry.term, entry.chain))
        assert known == (entry.term, entry.chain), f"entry {index} of {member.name} is not the committed entry"

    @property
    def elections(self) -> int:
        return len(self._leaders)

    async def _run(self) -> None:
        for _ in range(self.steps):
            await self._step()
        self._note("peace")
        self._is_peace = True
        self._loss, self._cut = 0.0, set()
        for name in self.disks:
            if name not in self.alive:
                await self._start(name)
        for number in range(PEACE_STEPS):
            await self._quiet_step(number)
            if number % self.settle_steps == self.settle_steps - 1 and self._is_settled():
                break
        else:
            raise AssertionError(f"no peace: {[(m.name, m.raft.term, m.disk.index.last) for m in self.alive.values()]}")
        await self._check_end()
        for member in self.alive.values():
            member.close()

    # --- what happens

    async def _step(self) -> None:
        random = self.random
        if random.random() < 0.02:
            await self._misfortune()
        if not self.alive:
            await self._start(random.choice(list(self.disks)))
        member = random.choice(list(self.alive.values()))
        leaders = [each for each in self.alive.values() if each.leads]
        kind = random.random()
        if kind < 0.4 and self._network:
            await self._deliver()
        elif kind < 0.6:
            await self._event(member, member.finish_write)
        elif kind < 0.7:
            await self._event(member, member.take_role)
        elif kind < 0.85 and leaders:
            leader = random.choice(leaders)
            await self._event(leader, leader.put)
        elif kind < 0.95:
            await self._event(member, member.tick)
        else:
            await self._event(member, random.choice((member.checkpoint, member.compact, member.build, member.flush)))

    async def _quiet_step(self, number: int) -> None:
        for member in list(self.alive.values()):
            await member.tick()
            if number % 20 == 0:
                await member.put()
            member.proposing.wake()
            await member.do()
            await member.take_role()
        await self._drain()
        self._check()

    async def _drain(self) -> None:
        """Let everything that is under way arrive."""
        while self._network or any(member.persist for member in self.alive.values()):
            for member in list(self.alive.values()):
                await member.finish_write()
                await member.take_role()
            if self._network:
                await self._deliver()

    async def _deliver(self) -> None:
        sender, to, body = self._network.pop(self.random.randrange(len(self._network)))
        member = self.alive.get(to)
        if member is not None and (sender, to) not in self._cut:
            await self._event(member, lambda: member.receive(body))

    async def _event(self, member: Member, what: Callable[[], Awaitable[None]]) -> None:
        """Now and then the machine dies within ``what``, before one of its calls of the disk."""
        random, fs = self.random, member.fs
        left: list[MemoryFiles] = []
        calls = random.randrange(12) if not self._is_peace and random.random() < 0.03 else -1

        def before_call(operation: str, path: str) -> None:
            nonlocal calls
            if calls == 0:
                # What it does from now on happened to nobody.
                member.is_dead = True
                left.append(self._left(fs, 0.5))
            calls -= 1

        fs.before_call = before_call if calls >= 0 else None
        await what()
        fs.before_call = None
        if left:
            self._note(f"{member.name} dies in {getattr(what, '__name__', 'receive')}")
            self._ended(member, left[0])
        self._check()

    async def _misfortune(self) -> None:
        random = self.random
        dead = [name for name in self.disks if name not in self.alive]
        if dead and random.random() < 0.6:
            await self._start(random.choice(dead))
            return
        kind = random.random()
        if kind < 0.25:
            names = list(self.disks)
            side = set(random.sample(names, random.randint(0, len(names))))
            self._cut = {(a, b) for a in names for b in names if (a in side) != (b in side)}
            self._note(f"cut: {sorted(side)}")
        elif kind < 0.45:
            self._cut = set()
        elif kind < 0.55:
            for member in list(self.alive.values()):
                self._ended(member, self._left(member.fs, 0.0))
            self._note("all end at once")
        elif self.alive:
            member = random.choice(list(self.alive.values()))
            self._note(f"{member.name} ends")
            self._ended(member, self._left(member.fs, 0.4))

    def _left(self, fs: MemoryFiles, kills: float) -> MemoryFiles:
        """The disk of a member that was killed, in this part of the cases, or lost power."""
        is_kill = self.random.random() < kills or not self.sync_flush
        return fs.killed() if is_kill else fs.crash(self.random)

    def _ended(self, member: Member, left: MemoryFiles) -> None:
        del self.alive[member.name]
        self.disks[member.name] = left

    async def _start(self, name: str) -> None:
        self._note(f"{name} starts")
        member = self.member_class(self, name, self.disks[name])
        await member.start()
        self.alive[name] = member

    def _note(self, what: str) -> None:
        self.trace.append(what)

    # --- what must hold

    def _check(self) -> None:
        for member in self.alive.values():
            raft = member.raft
            if isinstance(raft.role, Leader):
                assert self._leaders.setdefault(raft.term, member.name) == member.name, f"two lead in term {raft.term}"

    def _is_settled(self) -> bool:
        members = list(self.alive.values())
        leading = [each for each in members if each.leads]
        if len(leading) != 1 or self._network:
            return False
        last = leading[0].disk.index.last
        end = leading[0].store.log.end
        return all(
            each.disk.index.last == last and each.raft.log.commit == last and each.store.log.raw_end == end
            for each in members
        )

    async def _check_end(self) -> None:
        first, *others = self.alive.values()
        for member in self.alive.values():
            await member.build()
        for other in others:
            assert other.disk.index.chain == first.disk.index.chain
        found = {member.name: _messages(member.store) for member in self.alive.values()}
        for name, messages in found.items():
            assert messages == found[first.name], f"{name} and {first.name} differ"
            lost = [each for each in self.acked if messages.get(each[:2]) != each[2]]
            report(lost=len(lost))
            assert lost == [], f"{len(lost)} of {len(self.acked)} acknowledged messages are not at {name}"


def _messages(store: MessageStore) -> dict[tuple[int, int], bytes]:
    """The messages by queue and offset, read through the queues; each must be the message that the log has there."""
    found: dict[tuple[int, int], bytes] = {}
    for queue in store.queues:
        for offset in range(queue.min_offset, queue.next_offset):
            # Entries that name other messages are mended by their readers.
            store.get(queue.topic, queue.queue_id, offset, 1, 1)
            physical, size, _ = queue.entry(offset)
            if size == BLANK_SIZE:
                continue
            record = decode_record(store.log.copy(physical, size))
            assert (record.queue_id, record.queue_offset) == (queue.queue_id, offset)
            found[queue.queue_id, offset] = record.body
    return found


class AsyncHistory(History):
    """A history with ASYNC_FLUSH."""

    sync_flush = False
