"""A node with a disk that loses what is not synced, and an application whose state is a hash of all that it applied."""

import hashlib
from collections.abc import Callable, Sequence
from random import Random

from skylark.mqcommon.raft.config import Config
from skylark.mqcommon.raft.errors import ChangeRefused, NotLeader, Overloaded
from skylark.mqcommon.raft.log import MemoryEntries
from skylark.mqcommon.raft.membership import Change, Members
from skylark.mqcommon.raft.messages import APPLICATION, RaftEntry, RaftMessage, Snapshot
from skylark.mqcommon.raft.raft import Raft
from skylark.mqcommon.raft.ready import HardState, Persist
from tests.sim.raft.checks import Checks
from tests.sim.scheduler import Process, Scheduler

Send = Callable[[RaftMessage], None]
TICK_MS = 25


class Disk:
    """The state that survives a crash."""

    def __init__(self, members: Members) -> None:
        self.hard_state = HardState()
        self.snapshot = Snapshot(0, 0, members, b"")
        self.base = (0, 0)
        self.entries: list[RaftEntry] = []
        # The log after each of its records, and how many it had when the mark was written last.
        self.records: list[tuple[HardState, tuple[RaftEntry, ...]]] = []
        self.marked = 0
        self._begin_log()

    def write(self, persist: Persist, entries: int) -> None:
        """The hard state, the snapshot, and the first ``entries`` of the entries."""
        if persist.hard_state is not None:
            self.hard_state = persist.hard_state
        if persist.snapshot is not None:
            self.snapshot = persist.snapshot
            self.base, self.entries = (persist.snapshot.index, persist.snapshot.term), []
            self._begin_log()
        for entry in persist.entries[:entries]:
            del self.entries[entry.index - self.base[0] - 1 :]
            self.entries.append(entry)
        self.records.append((self.hard_state, tuple(self.entries)))

    def _begin_log(self) -> None:
        self.records = [(self.hard_state, tuple(self.entries))]
        self.marked = 1

    def note_size(self) -> None:
        """All records are on disk."""
        self.marked = len(self.records)

    @property
    def is_short(self) -> bool:
        """Whether the log has lost records; such a node does not start."""
        return len(self.records) < self.marked

    def damage(self, random: Random) -> None:
        """The log is cut between two records; all of them may go."""
        del self.records[random.randrange(len(self.records)) :]
        self.hard_state, entries = self.records[-1] if self.records else (HardState(), ())
        self.entries = list(entries)

    def compact(self, snapshot: Snapshot, base: tuple[int, int]) -> None:
        del self.entries[: base[0] - self.base[0]]
        self.snapshot, self.base = snapshot, base
        self._begin_log()


class WatchedEntries(MemoryEntries):
    def __init__(self, base: int, base_term: int, entries: Sequence[RaftEntry], checks: Checks) -> None:
        super().__init__(base, base_term, entries)
        self._checks = checks

    def append(self, entries: Sequence[RaftEntry]) -> None:
        super().append(entries)
        for entry in entries:
            self._checks.appended(entry, self.term(entry.index - 1))


class Node(Process):
    def __init__(self, scheduler: Scheduler, random: Random, name: str, checks: Checks, send: Send) -> None:
        super().__init__(scheduler, name)
        self._random = random
        self._checks = checks
        self._send = send
        self.disk = Disk(Members())
        self.raft: Raft
        self.start_ms = 0.0

    # Life.

    def start(self) -> None:
        self.begin()
        disk = self.disk
        config = Config(
            self.name, Random(self._random.random()), 100, 25, max_append_bytes=200, max_in_flight_requests=4
        )
        entries = WatchedEntries(*disk.base, disk.entries, self._checks)
        self.raft = Raft(config, disk.hard_state, disk.snapshot, entries, int(self.scheduler.now))
        self.state = disk.snapshot.data
        self.applied = disk.snapshot.index
        self._writes: dict[int, tuple[int, int]] = {}  # index: its term, and the floor when it began
        self._reads: list[tuple[int, int]] = []  # the index to wait for, and the floor when it began
        self._looked = self.raft.log.commit
        self._persist: Persist | None = None
        self._gathering = False
        self.later(self._random.random() * TICK_MS, self._tick)

    def crash(self) -> None:
        """Crash: the write in progress is on disk as a whole, in part, or not at all."""
        if self._persist is not None and self._random.random() < 0.5:
            persist = self._persist
            whole = persist.snapshot is not None
            count = len(persist.entries) if whole else self._random.randint(0, len(persist.entries))
            self.disk.write(persist, count)
        self.end()

    # Events.

    def _tick(self) -> None:
        self.raft.tick(int(self.scheduler.now))
        self.after_event()
        self.later(TICK_MS, self._tick)

    def receive(self, message: RaftMessage) -> None:
        if self.alive:
            self.raft.step(message)
            self.after_event()

    def write(self, value: bytes) -> None:
        self._ask(lambda: self._wrote(self.raft.propose(value)))

    def _wrote(self, place: tuple[int, int]) -> None:
        self._writes[place[0]] = (place[1], self._checks.floor)

    def read(self) -> None:
        self._ask(lambda: self.raft.read_index(self._checks.floor))

    def change(self, change: Change) -> None:
        self._ask(lambda: self.raft.change(change))

    def transfer(self, to: str) -> None:
        self._ask(lambda: self.raft.transfer(to))

    def _ask(self, what: Callable[[], object]) -> None:
        try:
            what()
        except (NotLeader, ChangeRefused, Overloaded):
            return
        self.after_event()

    def after_event(self) -> None:
        raft = self.raft
        self._checks.look(raft, self._looked)
        self._looked = raft.log.commit
        self._gathering = not self._gathering and self._random.random() < 0.2
        if self._gathering:
            return  # until the next event
        ready = raft.ready()
        for message in ready.messages:
            self._send(message)
        if ready.persist is not None:
            self._persist = ready.persist
            self.later(self._random.choice((0.1, 1, 5, 40)), self._persisted)
        if ready.restore is not None:
            self._checks.restored(ready.restore)
            self.state, self.applied = ready.restore.data, ready.restore.index
        for entry in ready.committed:
            self._apply(entry)
        for read in ready.reads:
            if read.index is not None:
                self._reads.append((read.index, read.context))  # type: ignore[arg-type]
        self._answer_reads()
        self._checks.look(raft, self._looked)
        self._looked = raft.log.commit

    def _persisted(self) -> None:
        persist, self._persist = self._persist, None
        assert persist is not None
        self.disk.write(persist, len(persist.entries))
        self.disk.note_size()
        for message in persist.messages:
            self._send(message)
        self.raft.persisted()
        self.after_event()

    # The application.

    def _apply(self, entry: RaftEntry) -> None:
        assert entry.index == self.applied + 1, f"{self.name} applied {entry.index} after {self.applied}"
        self.applied = entry.index
        if entry.kind == APPLICATION:
            self.state = hashlib.blake2b(self.state + entry.data, digest_size=8).digest()
        self._checks.applied(entry, self.state)
        term, floor = self._writes.pop(entry.index, (0, 0))
        if term == entry.term:
            self._checks.wrote(floor, entry.index)

    def _answer_reads(self) -> None:
        waiting = []
        for index, floor in self._reads:
            if index <= self.applied:
                self._checks.read(floor, self.applied)
            else:
                waiting.append((index, floor))
        self._reads = waiting

    def compact(self, keep: int) -> None:
        """A snapshot of the own state, written at once."""
        log = self.raft.log
        if self._persist is not None or self.applied <= self.disk.snapshot.index:
            return
        snapshot = self.raft.make_snapshot(self.applied, self.state)
        self.raft.compact(snapshot, keep)
        self.disk.compact(snapshot, (log.entries.base, log.term(log.entries.base) or 0))
