"""What must hold after each event: the paper's properties, and linearizable reads and writes."""

from skylark.mqcommon.raft.messages import RaftEntry, Snapshot
from skylark.mqcommon.raft.raft import Leader, Raft

Value = tuple[int, bytes]


class Checks:
    """Knows all that ever was in a log, committed, applied or answered in one history."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int | None, int, bytes]] = {}
        self._leaders: dict[int, str] = {}
        self._committed: dict[int, int] = {0: 0}
        self._applied: dict[int, RaftEntry] = {}
        self._states: dict[int, bytes] = {}
        self.elections = 0
        self.done = 0
        # The last index that a finished operation showed.
        self.floor = 0

    def appended(self, entry: RaftEntry, prev_term: int | None) -> None:
        """Log matching: index and term name one entry with one history."""
        content = (prev_term, entry.kind, entry.data)
        known = self._entries.setdefault(entry[:2], content)
        assert known == content, f"log matching: {entry} after term {prev_term}, elsewhere {known}"

    def look(self, raft: Raft, committed_before: int) -> None:
        log = raft.log
        for index in range(committed_before + 1, log.commit + 1):
            term = log.term(index)
            if term is None:
                continue  # before a snapshot that came from the leader
            known = self._committed.setdefault(index, term)
            assert known == term, f"state machine safety: {raft.node} committed {index} of term {term}, others {known}"
        if isinstance(raft.role, Leader) and raft.term not in self._leaders:
            self._leaders[raft.term] = raft.node
            self.elections += 1
            self._check_completeness(raft)
        elif isinstance(raft.role, Leader):
            assert self._leaders[raft.term] == raft.node, f"election safety: two leaders in term {raft.term}"

    def _check_completeness(self, raft: Raft) -> None:
        log = raft.log
        for index in range(log.entries.base, max(self._committed) + 1):
            term = log.term(index)
            known = self._committed.get(index, term)
            assert term == known, f"leader completeness: {raft.node} has term {term} at {index}, committed was {known}"

    def applied(self, entry: RaftEntry, state: bytes) -> None:
        known = self._applied.setdefault(entry.index, entry)
        assert known == entry, f"state machine safety: applied {entry}, others {known}"
        assert self._states.setdefault(entry.index, state) == state, f"another state at {entry.index}"

    def restored(self, snapshot: Snapshot) -> None:
        if snapshot.index:
            assert self._states[snapshot.index] == snapshot.data, f"a snapshot at {snapshot.index} that nobody had"

    def wrote(self, floor: int, index: int) -> None:
        assert index > floor, f"a write went to {index}, before {floor}, which was seen when it began"
        self._finished(index)

    def read(self, floor: int, index: int) -> None:
        assert index >= floor, f"a read saw {index}, older than {floor}, which was seen when it began"
        self._finished(index)

    def _finished(self, index: int) -> None:
        self.done += 1
        self.floor = max(self.floor, index)
