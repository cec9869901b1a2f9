"""A node of a Raft group. The driver gives it messages, time and proposals, and does what ``ready`` says.

Written from Ongaro's and Ousterhout's paper and Ongaro's thesis; the cut into ``step`` and ``ready`` is that of etcd's.
"""

from mqcommon.raft.config import Config
from mqcommon.raft.core import Candidate, Core, Leader, require_leader
from mqcommon.raft.log import Entries, RaftLog
from mqcommon.raft.membership import Change, Members
from mqcommon.raft.messages import APPLICATION, AppendResponse, RaftMessage, Snapshot
from mqcommon.raft.ready import HardState, Persist, Ready


class Raft:
    """``snapshot`` and ``entries`` are what was stored; in a new group a snapshot at 0 that names its first members."""

    def __init__(
        self, config: Config, hard_state: HardState, snapshot: Snapshot, entries: Entries, now_ms: int = 0
    ) -> None:
        self._core = Core(config, hard_state, RaftLog(snapshot, entries), now_ms)
        self._saved_state = hard_state
        self._unsaved_snapshot: Snapshot | None = None
        # What is being written: the state, and the index and term of the last entry.
        self._writing: tuple[HardState, int, int] | None = None

    # What it is.

    @property
    def node(self) -> str:
        return self._core.node

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def leader(self) -> str:
        return self._core.leader

    @property
    def is_leader(self) -> bool:
        """Leads, and knows all that former leaders committed."""
        role = self._core.role
        return isinstance(role, Leader) and role.established

    @property
    def members(self) -> Members:
        return self._core.log.members

    @property
    def log(self) -> RaftLog:
        return self._core.log

    # What happens to it.

    def tick(self, now_ms: int) -> None:
        self._core.now_ms = now_ms
        self._core.role.tick()

    def step(self, message: RaftMessage) -> None:
        self._core.step(message)

    def propose(self, data: bytes) -> tuple[int, int]:
        """The index and the term that the entry has if it gets committed; another entry may get the index instead."""
        return self._leader().propose(APPLICATION, data), self._core.term

    def change(self, change: Change) -> tuple[int, int]:
        return self._leader().change(change), self._core.term

    def transfer(self, to: str) -> None:
        """Hand the leadership over, or give up after ``election_ms``; proposals are refused meanwhile."""
        self._leader().transfer(to)

    def read_index(self, context: object) -> None:
        """``context`` comes back in a Ready."""
        self._leader().read_index(context)

    def _leader(self) -> Leader:
        return require_leader(self._core.role, self._core.leader)

    def lag(self, node: str) -> int | None:
        """How many entries ``node`` lacks, as far as this leader knows; None when it does not know."""
        role = self._core.role
        progress = role.progress.get(node) if isinstance(role, Leader) else None
        return None if progress is None else self.log.last - progress.match

    # What it wants.

    def ready(self) -> Ready:
        core = self._core
        if isinstance(core.role, Leader):
            core.role.flush()
        if core.restore is not None:
            self._unsaved_snapshot = core.restore
        restore, core.restore = core.restore, None
        messages, waiting = self._sort_messages()
        persist = self._take_persist(waiting) if self._writing is None else None
        core.outbox = [] if persist is not None else waiting
        reads, core.reads = tuple(core.reads), []
        return Ready(tuple(messages), persist, restore, core.log.take_committed(), reads)

    def _sort_messages(self) -> tuple[list[RaftMessage], list[RaftMessage]]:
        """Messages that may go at once, and those that promise what is not on disk yet."""
        core = self._core
        if HardState(core.term, core.vote) != self._saved_state:
            return [], core.outbox
        persisted = core.log.persisted
        now: list[RaftMessage] = []
        waiting: list[RaftMessage] = []
        for message in core.outbox:
            promises = isinstance(message, AppendResponse) and not message.refused and message.index > persisted
            (waiting if promises else now).append(message)
        return now, waiting

    def _take_persist(self, waiting: list[RaftMessage]) -> Persist | None:
        core = self._core
        state = HardState(core.term, core.vote)
        entries = core.log.take_unsaved()
        snapshot, self._unsaved_snapshot = self._unsaved_snapshot, None
        if state == self._saved_state and not entries and snapshot is None:
            return None
        last = core.log.last
        self._writing = (state, last, core.log.term(last) or 0)
        changed = state if state != self._saved_state else None
        return Persist(changed, entries, snapshot, tuple(waiting))

    def persisted(self) -> None:
        """What the last ``persist`` named is on disk."""
        if self._writing is None:
            return
        self._saved_state, index, term = self._writing
        self._writing = None
        core = self._core
        core.log.saved(index, term)
        if isinstance(core.role, Leader):
            core.role.advance_commit()
        elif isinstance(core.role, Candidate) and self._saved_state == HardState(core.term, core.vote):
            core.role.vote_saved()

    @property
    def has_more(self) -> bool:
        """Whether ``ready`` would bring more committed entries at once: it hands them out in slices."""
        return self.log.has_more_to_apply()

    # Snapshots of the own state.

    def make_snapshot(self, index: int, data: bytes) -> Snapshot:
        """``data``: the application's state after the entry at ``index``, which ``ready`` handed out."""
        return Snapshot(index, self.log.term(index) or self.log.snapshot.term, self.log.members_at(index), data)

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """``snapshot`` is on disk: entries that it covers are not needed, except the last ``keep`` for slow members."""
        self.log.compact(snapshot, keep)
