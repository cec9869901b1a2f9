"""Nodes whose messages the test delivers: all of them, or those between some nodes only."""

from collections.abc import Collection
from random import Random

from skylark.mqcommon.raft.config import Config
from skylark.mqcommon.raft.log import MemoryEntries
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import RaftEntry, RaftMessage, Snapshot
from skylark.mqcommon.raft.raft import Raft
from skylark.mqcommon.raft.ready import HardState, Read, Ready

ELECTION_MS = 100


class HandNode:
    def __init__(self, name: str, members: Members) -> None:
        self.name = name
        self.hard_state = HardState()
        self.stored: list[RaftEntry] = []
        self.snapshot = Snapshot(0, 0, members, b"")
        self.applied: list[bytes] = []
        self.reads: list[Read] = []
        self.start(0)

    def start(self, now_ms: int) -> None:
        config = Config(self.name, Random(self.name), ELECTION_MS, 10)
        entries = MemoryEntries(self.snapshot.index, self.snapshot.term, self.stored)
        self.raft = Raft(config, self.hard_state, self.snapshot, entries, now_ms)
        self.applied = []

    def work(self) -> list[RaftMessage]:
        """Do what it wants, with a disk that is at once."""
        messages: list[RaftMessage] = []
        while True:
            ready = self.raft.ready()
            messages += ready.messages
            self.take(ready)
            if ready.persist is None:
                return messages
            messages += ready.persist.messages
            self.write(ready)
            self.raft.persisted()

    def take(self, ready: Ready) -> None:
        self.applied += [entry.data for entry in ready.committed if entry.kind == 0]
        self.reads += ready.reads
        if ready.restore is not None:
            self.applied = [ready.restore.data]

    def write(self, ready: Ready) -> None:
        assert ready.persist is not None
        self.hard_state = ready.persist.hard_state or self.hard_state
        if ready.persist.snapshot is not None:
            self.snapshot, self.stored = ready.persist.snapshot, []
        for entry in ready.persist.entries:
            del self.stored[entry.index - self.snapshot.index - 1 :]
            self.stored.append(entry)


class Hand:
    """``down``: nodes that neither send nor receive; ``loses``: kinds of messages that do not arrive."""

    def __init__(self, *names: str) -> None:
        members = Members(dict.fromkeys(names, ""))
        self.nodes = {name: HandNode(name, members) for name in names}
        self.down: set[str] = set()
        self.loses: tuple[type[RaftMessage], ...] = ()
        self.now_ms = 0
        self.sent: list[RaftMessage] = []

    def __getitem__(self, name: str) -> Raft:
        return self.nodes[name].raft

    def add(self, name: str) -> None:
        self.nodes[name] = HandNode(name, Members())

    def deliver(self, only: Collection[str] = ()) -> None:
        """Deliver messages until no node has any. ``only``: messages to other nodes get lost."""
        for _ in range(1000):
            messages = [
                message for name, node in self.nodes.items() if name not in self.down for message in node.work()
            ]
            if not messages:
                return
            self.sent += messages
            for message in messages:
                is_up = message.to in self.nodes and message.to not in self.down
                if is_up and (not only or message.to in only) and not isinstance(message, self.loses):
                    self[message.to].step(message)
        raise AssertionError("the nodes talk without end")

    def tick(self, name: str, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self[name].tick(self.now_ms)

    def elect(self, name: str, only: Collection[str] = ()) -> None:
        """Time passes for all, and ``name`` stands for election."""
        self.now_ms += 2 * ELECTION_MS
        for each, node in self.nodes.items():
            if each != name:
                node.raft.now_ms = self.now_ms
        self[name].tick(self.now_ms)
        self.deliver(only)

    def heartbeat(self, name: str) -> None:
        self.tick(name, 10)
        self.deliver()

    def crash(self, name: str) -> None:
        self.nodes[name].start(self.now_ms)

    def applied(self) -> dict[str, list[bytes]]:
        return {name: node.applied for name, node in self.nodes.items()}
