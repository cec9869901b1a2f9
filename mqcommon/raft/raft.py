"""A node of a Raft group and its three roles. A driver gives it messages, time and proposals, and obeys `ready`.

`Raft` has what all roles share: term, vote, log, the messages to send, and the change from role to role. Its ``role``
is a `Follower`, a `Candidate` or a `Leader`, and takes the messages of the present term.
Written from Ongaro's and Ousterhout's paper and Ongaro's thesis; the division into ``step`` and ``ready`` is etcd's.
Neighbours: log.py, progress.py (what a leader knows of each follower), ready.py (the order of the driver's duties).
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

from skylark.mqcommon.raft.config import Config
from skylark.mqcommon.raft.errors import ChangeRefused, NotLeader, Overloaded, RaftError
from skylark.mqcommon.raft.log import Entries, RaftLog
from skylark.mqcommon.raft.membership import Change, Members, Promote, changed
from skylark.mqcommon.raft.messages import (
    APPLICATION,
    EMPTY,
    MEMBERSHIP,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    RaftEntry,
    RaftMessage,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from skylark.mqcommon.raft.plausible import why_absurd
from skylark.mqcommon.raft.progress import PendingReads, Progress, State
from skylark.mqcommon.raft.ready import HardState, Persist, Read, Ready


def majority(count: int) -> int:
    """How many of ``count`` voters are a majority."""
    return count // 2 + 1


def reached(voters: Collection[str], value: Callable[[str], int]) -> int:
    """The highest index that a majority of ``voters`` has reached."""
    values = sorted(map(value, voters), reverse=True)
    return values[majority(len(values)) - 1] if values else 0


def won(voters: Collection[str], votes: dict[str, bool]) -> bool:
    """Whether a majority of ``voters`` has voted for the candidate."""
    return sum(votes.get(voter, False) for voter in voters) >= majority(len(voters))


def lost(voters: Collection[str], votes: dict[str, bool]) -> bool:
    """Whether the missing votes cannot make a majority any more."""
    return sum(votes.get(voter, True) for voter in voters) < majority(len(voters))


class Absurd(NamedTuple):
    """A message that was dropped, and what is wrong with it."""

    message: RaftMessage
    reason: str


class FollowerState(NamedTuple):
    """A member, as the leader sees it.

    ``match``: the last entry that is known to be on the member's disk. ``answers``: whether the member is alive.
    """

    match: int
    answers: bool


# Nodes that lose their leader in one moment stand for election within this fraction of the election time.
SPREAD = 4

Role: TypeAlias = "Follower | Candidate | Leader"
FROM_LEADER = (AppendRequest, Heartbeat, InstallSnapshot)


class Raft:
    """A node. ``snapshot`` and ``entries`` are as stored; in a new group a snapshot at 0 names the first members."""

    def __init__(
        self, config: Config, hard_state: HardState, snapshot: Snapshot, entries: Entries, now_ms: int = 0
    ) -> None:
        self.config = config
        self.node = config.node
        self.term = hard_state.term
        #: The node that this node voted for in ``term``; "" if it has not voted.
        self.vote = hard_state.vote
        self.log = RaftLog(snapshot, entries)
        self.now_ms = now_ms
        #: The leader of ``term`` as far as this node knows, "" while it knows of none.
        self.leader = ""
        # Messages that wait for `ready`, reads that are decided, and a leader's snapshot for the application.
        self.outbox: list[RaftMessage] = []
        self.reads: list[Read] = []
        #: The last message that was dropped because no honest node sends it.
        self.absurd: Absurd | None = None
        self._restore: Snapshot | None = None
        # What is on disk, and what is being written: the state, and the index and term of the last entry.
        self._saved_state = hard_state
        self._unsaved_snapshot: Snapshot | None = None
        self._writing: tuple[HardState, int, int] | None = None
        self.role: Role = Follower(self)

    # --- the state of the node

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, and knows all that former leaders committed."""
        return isinstance(self.role, Leader) and self.role.established

    @property
    def is_voter(self) -> bool:
        return self.node in self.log.members.voters

    @property
    def members(self) -> Members:
        return self.log.members

    def lag(self, node: str) -> int | None:
        """How many entries ``node`` lacks, as far as this leader knows; None when it does not know."""
        progress = self.role.progress.get(node) if isinstance(self.role, Leader) else None
        return None if progress is None else self.log.last - progress.match

    def followers(self) -> dict[str, FollowerState]:
        """The other members, as this leader knows them; none when it does not lead."""
        return self.role.followers() if isinstance(self.role, Leader) else {}

    # --- events

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.role.tick()

    def unreachable(self, node: str) -> None:
        """Stand for election soon if ``node`` led: nothing listens at its address any more.

        This node first asks which nodes would vote for it, so a leader that others hear stays.
        """
        if node and node == self.leader and isinstance(self.role, Follower):
            self.role.lost_leader()

    def stand_first(self) -> None:
        """Stand for election without waiting for a leader. For a new group, in which one member is told to do this."""
        if self.term == 0 and isinstance(self.role, Follower):
            self.role.lost_leader()

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append an entry with ``data``; returns the index and the term that the entry has if it gets committed.

        Another entry may get the index instead, if another node becomes the leader. Raises NotLeader; Overloaded if
        too many bytes wait to be committed or the leadership is being handed over.
        """
        return self._leading().propose(APPLICATION, data), self.term

    def change(self, change: Change) -> tuple[int, int]:
        return self._leading().change(change), self.term

    def transfer(self, to: str) -> None:
        """Hand the leadership over, or give up after ``election_ms``; proposals are refused meanwhile."""
        self._leading().transfer(to)

    def read_index(self, context: object) -> None:
        """Ask for a linearizable read; a later ``ready`` has its `Read`, with ``context``."""
        self._leading().read_index(context)

    def _leading(self) -> "Leader":
        if not isinstance(self.role, Leader):
            raise NotLeader(self.leader)
        return self.role

    def step(self, message: RaftMessage) -> None:
        """Handle a message of another node."""
        if message.to != self.node:
            return  # meant for the node that had this address before it lost its disk
        if reason := why_absurd(message, self.term, self.log.last):
            self.absurd = Absurd(message, reason)
            return
        # The term decides before the content does: a later term is adopted first, an older term is answered with the
        # current term. So a role sees messages of its own term only, in which there is at most one leader.
        if message.term > self.term and not self._adopt(message):
            return
        if message.term < self.term:
            self._answer_older(message)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._answer_vote(message)
        else:
            self.role.step(message)

    def _adopt(self, message: RaftMessage) -> bool:
        """Adopt the later term of ``message``. Returns whether the role is to handle the message."""
        if isinstance(message, VoteRequest):
            # A node that was cut off comes back in a later term. Voters that hear a leader do not help to depose it.
            if self.role.hears_leader() and not message.forced:
                return False
            if message.pre:
                self._answer_vote(message)
                return False
        if isinstance(message, VoteResponse) and message.pre and message.granted:
            return True  # its term is the term of the election to come
        self.become_follower(message.term, message.sender if isinstance(message, FROM_LEADER) else "")
        return True

    def _answer_older(self, message: RaftMessage) -> None:
        """Answer a message of an older term with the current term, so that a deposed leader steps down."""
        if isinstance(message, FROM_LEADER):
            self.send(AppendResponse(self.node, message.sender, self.term, 0, refused=True))
        elif isinstance(message, VoteRequest):
            self.refuse_vote(message)

    def _answer_vote(self, request: VoteRequest) -> None:
        log = self.log
        # One vote a term, kept on disk before the answer is sent: two candidates cannot both get a majority. And only
        # for a log that is at least as new as this node's: a leader has every committed entry.
        free = request.pre or self.vote == request.sender or (not self.vote and not self.leader)
        granted = free and (request.last_term, request.last_index) >= (log.last_term, log.last)
        if granted and not request.pre:
            self.vote = request.sender
            self.role.voted()
        term = request.term if granted else self.term
        self.send(VoteResponse(self.node, request.sender, term, granted, request.pre))

    # --- methods for the roles

    def send(self, message: RaftMessage) -> None:
        self.outbox.append(message)

    def refuse_vote(self, request: VoteRequest) -> None:
        self.send(VoteResponse(self.node, request.sender, self.term, False, request.pre))

    def election_deadline_ms(self) -> int:
        return self.now_ms + self.config.election_ms + self.config.random.randrange(self.config.election_ms)

    def _enter(self, term: int, leader: str) -> None:
        if isinstance(self.role, Leader):
            self.role.close()
        if term != self.term:
            self.term = term
            self.vote = ""
            # A promise of the old term may not be true any more when it is on disk.
            self.outbox.clear()
        self.leader = leader

    def become_follower(self, term: int, leader: str = "") -> None:
        self._enter(term, leader)
        self.role = Follower(self)

    def stand(self, *, pre: bool, forced: bool = False) -> None:
        """Stand for election. ``pre``: first ask who would vote, so that a node that cannot win deposes no leader.

        ``forced``: the leader has asked for it, so that voters need not have missed the leader.
        """
        if not self.is_voter:
            self.become_follower(self.term)
            return
        if pre:
            self._enter(self.term, "")
        else:
            self._enter(self.term + 1, "")
            self.vote = self.node
        self.role = Candidate(self, pre, forced)
        self.role.begin()

    def become_leader(self) -> None:
        self._enter(self.term, self.node)
        self.role = Leader(self)
        self.role.begin()

    def restore_from(self, snapshot: Snapshot) -> int:
        """Take a leader's snapshot unless its entries are here. Returns the last index that matches the leader's."""
        log = self.log
        if snapshot.index <= log.commit:
            return log.commit
        if log.term(snapshot.index) == snapshot.term:
            # The entry is here, so all entries before it equal the leader's: the log is worth more than the snapshot.
            log.commit_to(snapshot.index)
            return snapshot.index
        if snapshot.index < log.entries.base:
            raise RaftError("a snapshot of before the log's beginning was not committed")
        log.restore(snapshot)
        self._restore = snapshot
        return snapshot.index

    # --- the duties of the driver

    def ready(self) -> Ready:
        if isinstance(self.role, Leader):
            self.role.flush()
        if self._restore is not None:
            self._unsaved_snapshot = self._restore
        restore, self._restore = self._restore, None
        messages, waiting = self._sort_messages()
        persist = self._take_persist(waiting) if self._writing is None else None
        self.outbox = [] if persist is not None else waiting
        reads, self.reads = tuple(self.reads), []
        return Ready(tuple(messages), persist, restore, self.log.take_committed(), reads)

    def _sort_messages(self) -> tuple[list[RaftMessage], list[RaftMessage]]:
        """Messages that may be sent at once, and messages that promise something that is not on disk yet."""
        # While the term or the vote is not on disk, any message may promise it: after a crash this node could vote for
        # another candidate in a term in which it has spoken already. Later, only an acknowledgement of entries can
        # promise too much. A leader's own entries go out before they are on disk here: it counts itself separately.
        if HardState(self.term, self.vote) != self._saved_state:
            return [], self.outbox
        persisted = self.log.persisted
        now: list[RaftMessage] = []
        waiting: list[RaftMessage] = []
        for message in self.outbox:
            promises = isinstance(message, AppendResponse) and not message.refused and message.index > persisted
            (waiting if promises else now).append(message)
        return now, waiting

    def _take_persist(self, waiting: list[RaftMessage]) -> Persist | None:
        state = HardState(self.term, self.vote)
        entries = self.log.take_unsaved()
        snapshot, self._unsaved_snapshot = self._unsaved_snapshot, None
        if state == self._saved_state and not entries and snapshot is None:
            return None
        last = self.log.last
        self._writing = (state, last, self.log.term(last) or 0)
        changed = state if state != self._saved_state else None
        return Persist(changed, entries, snapshot, tuple(waiting))

    def persisted(self) -> None:
        """Record that everything in the last ``persist`` is on disk."""
        if self._writing is None:
            return
        self._saved_state, index, term = self._writing
        self._writing = None
        # While it was written, another leader's entries may have replaced some of it: `saved` compares the terms.
        self.log.saved(index, term)
        if isinstance(self.role, Leader):
            self.role.advance_commit()
        elif isinstance(self.role, Candidate) and self._saved_state == HardState(self.term, self.vote):
            self.role.vote_saved()

    @property
    def has_more(self) -> bool:
        """Whether ``ready`` would bring more committed entries at once: it hands them out in slices."""
        return self.log.has_more_to_apply()

    def forget_after(self, index: int) -> None:
        """Forget the entries after ``index``, which a leader does not have, before others replace them.

        For a node that needs time to remove the entries from its disk. This is safe, as if new entries had replaced
        them and had been lost again: a majority that does not need these entries has deposed the leader that made them.
        """
        self.log.forget_after(index)

    # --- snapshots of this node's state

    def make_snapshot(self, index: int, data: bytes) -> Snapshot:
        """A snapshot with ``data``, the application's state after entry ``index``, which ``ready`` has handed out."""
        return Snapshot(index, self.log.term(index) or self.log.snapshot.term, self.log.members_at(index), data)

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """Drop the entries that ``snapshot``, now on disk, covers, except the last ``keep`` for slow members."""
        self.log.compact(snapshot, keep)


class Follower:
    """A node that follows a leader, or waits for one."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._heard_ms = raft.now_ms
        self._deadline_ms = raft.election_deadline_ms()

    def hears_leader(self) -> bool:
        raft = self._raft
        return bool(raft.leader) and raft.now_ms - self._heard_ms < raft.config.election_ms

    def voted(self) -> None:
        """Restart the election timer, so that the candidate has time to win."""
        self._deadline_ms = self._raft.election_deadline_ms()

    def lost_leader(self) -> None:
        config = self._raft.config
        self._heard_ms = self._raft.now_ms - config.election_ms
        # Other followers lose the leader in the same moment, and should not all stand at once.
        soon_ms = self._raft.now_ms + config.random.randrange(1 + config.election_ms // SPREAD)
        self._deadline_ms = min(self._deadline_ms, soon_ms)

    def tick(self) -> None:
        if self._raft.now_ms >= self._deadline_ms:
            self._raft.stand(pre=True)

    def step(self, message: RaftMessage) -> None:
        raft = self._raft
        match message:
            case AppendRequest():
                self._hear(message.sender)
                raft.send(self._append(message))
            case Heartbeat():
                self._hear(message.sender)
                raft.log.commit_to(message.commit)
                raft.send(HeartbeatResponse(raft.node, message.sender, raft.term, message.round))
            case InstallSnapshot():
                self._hear(message.sender)
                index = raft.restore_from(message.snapshot)
                raft.send(AppendResponse(raft.node, message.sender, raft.term, index))
            case TimeoutNow():
                raft.stand(pre=False, forced=True)
            case VoteRequest():  # a pre-vote request of the present term: that election is over
                raft.refuse_vote(message)

    def _hear(self, leader: str) -> None:
        raft = self._raft
        raft.leader = leader
        self._heard_ms = raft.now_ms
        self._deadline_ms = raft.election_deadline_ms()

    def _append(self, request: AppendRequest) -> AppendResponse:
        raft, log = self._raft, self._raft.log
        if request.prev_index < log.commit:
            # An old request: up to the commit index all logs are the same.
            return AppendResponse(raft.node, request.sender, raft.term, log.commit)
        if log.accept(request.prev_index, request.prev_term, request.entries):
            index = request.prev_index + len(request.entries)
            log.commit_to(min(request.commit, index))
            return AppendResponse(raft.node, request.sender, raft.term, index)
        # The hint skips a whole term of entries that cannot match, where Raft's paper goes back entry by entry.
        hint = log.last_not_after(request.prev_index, request.prev_term)
        return AppendResponse(raft.node, request.sender, raft.term, request.prev_index, True, hint, log.term(hint) or 0)


class Candidate:
    """A node that asks for votes: first whether it would get them (``pre``), then for the votes themselves."""

    def __init__(self, raft: Raft, pre: bool, forced: bool) -> None:
        self._raft = raft
        self._pre = pre
        self._forced = forced
        # This node's vote counts once it is on disk: after a crash a lone voter would begin the same term once more.
        self._votes = {raft.node: True} if pre else {}
        self._deadline_ms = raft.election_deadline_ms()

    def begin(self) -> None:
        raft, log = self._raft, self._raft.log
        term = raft.term + 1 if self._pre else raft.term
        for voter in log.members.voters:
            if voter != raft.node:
                raft.send(VoteRequest(raft.node, voter, term, log.last, log.last_term, self._pre, self._forced))
        self._count()

    def vote_saved(self) -> None:
        self._votes[self._raft.node] = True
        self._count()

    def hears_leader(self) -> bool:
        return False

    def voted(self) -> None:
        """Unreachable: a candidate voted for itself."""

    def tick(self) -> None:
        if self._raft.now_ms >= self._deadline_ms:
            self._raft.stand(pre=True)

    def step(self, message: RaftMessage) -> None:
        raft = self._raft
        match message:
            case VoteResponse(pre=pre) if pre == self._pre:
                self._votes[message.sender] = message.granted
                self._count()
            case AppendRequest() | Heartbeat() | InstallSnapshot():
                raft.become_follower(raft.term, message.sender)
                raft.role.step(message)
            case TimeoutNow():
                raft.stand(pre=False, forced=True)
            case VoteRequest():
                raft.refuse_vote(message)

    def _count(self) -> None:
        raft = self._raft
        voters = raft.log.members.voters
        if won(voters, self._votes):
            if self._pre:
                raft.stand(pre=False)
            else:
                raft.become_leader()
        elif lost(voters, self._votes):
            raft.become_follower(raft.term)


# Bytes of an entry in memory and in a request, besides its data.
ENTRY_BYTES = 32


class Leader:
    """A node that leads: it takes proposals, replicates its log to the other members, and commits entries.

    Requests to other members are built in ``flush``, once for all proposals since the last one, so that proposals share
    a request.
    """

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.progress: dict[str, Progress] = {}
        self._reads = PendingReads()
        self._round = 0
        self._heartbeat_ms = raft.now_ms
        self._checked_ms = raft.now_ms
        self._transferee = ""
        self._transfer_ends_ms = 0
        self._sizes: deque[int] = deque()  # of the entries that are not committed
        self._uncommitted_bytes = 0

    def begin(self) -> None:
        log = self._raft.log
        # Entries of former leaders count as committed only when an entry of this term is, so one is needed at once.
        # Until it is committed this node does not know what former leaders have committed, and answers no reads.
        self._first_index = log.last + 1
        self._sizes.extend(0 for _ in range(log.last - log.commit))
        self._append(EMPTY, b"")

    def close(self) -> None:
        self._raft.reads += self._reads.give_up()

    def hears_leader(self) -> bool:
        return True

    def voted(self) -> None:
        """Unreachable: a leader voted for itself in its term."""

    @property
    def established(self) -> bool:
        """Whether everything that former leaders committed is known to be committed."""
        return self._raft.log.commit >= self._first_index

    def followers(self) -> dict[str, FollowerState]:
        # Answers may be under way: a member that answered a heartbeat within the last election time is alive.
        config = self._raft.config
        rounds = config.election_ms // config.heartbeat_ms
        return {
            node: FollowerState(progress.match, self._round - progress.round <= rounds)
            for node, progress in self.progress.items()
        }

    # --- requests of the application

    def propose(self, kind: int, data: bytes) -> int:
        if self._transferee:
            raise Overloaded(f"the leadership is being handed to {self._transferee}; try again")
        limit = self._raft.config.max_uncommitted_bytes
        size = self._raft.config.travelling_bytes(data)
        if self._uncommitted_bytes + size > limit and self._sizes:
            raise Overloaded(f"{self._uncommitted_bytes} bytes wait to be committed, the limit is {limit}; try again")
        return self._append(kind, data)

    def change(self, change: Change) -> int:
        log = self._raft.log
        if not self.established:
            raise ChangeRefused("the leader is new; try again in a moment")
        if log.members_index > log.commit:
            raise ChangeRefused(f"the change at {log.members_index} is not committed yet; try again in a moment")
        # One change at a time, and only after an entry of this term: then the majorities before and after it overlap.
        members = changed(log.members, change)
        if isinstance(change, Promote):
            lag = log.last - self.progress[change.node].match
            if lag > self._raft.config.promotion_lag:
                raise ChangeRefused(f"{change.node} lacks {lag} entries; try again when it has caught up")
        return self.propose(MEMBERSHIP, members.encode())

    def transfer(self, to: str) -> None:
        raft = self._raft
        if to not in raft.log.members.voters:
            raise ChangeRefused(f"{to} is not a voter; voters: {', '.join(raft.log.members.voters)}")
        if to == raft.node or self._transferee:
            return
        self._transferee = to
        self._transfer_ends_ms = raft.now_ms + raft.config.election_ms
        self._hand_over()

    def read_index(self, context: object) -> None:
        self._reads.add(context)

    # --- time

    def tick(self) -> None:
        raft = self._raft
        if self._transferee and raft.now_ms >= self._transfer_ends_ms:
            self._transferee = ""
        if raft.now_ms - self._checked_ms >= raft.config.election_ms:
            self._checked_ms = raft.now_ms
            if not self._has_majority():
                raft.become_follower(raft.term)
                return
        if raft.now_ms - self._heartbeat_ms >= raft.config.heartbeat_ms:
            self._send_heartbeats()

    def _has_majority(self) -> bool:
        raft = self._raft
        voters = raft.log.members.voters
        # A leader that is cut off steps down: its clients then look for the leader that the others have elected.
        active = sum(voter == raft.node or self.progress[voter].active for voter in voters)
        for progress in self.progress.values():
            progress.active = False
        return active >= majority(len(voters))

    def _send_heartbeats(self) -> None:
        raft = self._raft
        self._heartbeat_ms = raft.now_ms
        self._round += 1
        for node, progress in self.progress.items():
            raft.send(Heartbeat(raft.node, node, raft.term, min(progress.match, raft.log.commit), self._round))

    # --- answers of other members

    def step(self, message: RaftMessage) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        match message:
            case AppendResponse() if not message.refused and message.index > self._raft.log.last:
                # If believed, this member would get no entry from this leader any more.
                reason = f"it claims entry {message.index} of a leader whose log ends at {self._raft.log.last}"
                self._raft.absurd = Absurd(message, reason)
            case HeartbeatResponse() if message.round > self._round:
                # If believed, this answer would confirm all future reads.
                reason = f"it answers heartbeat {message.round} of a leader that has sent {self._round}"
                self._raft.absurd = Absurd(message, reason)
            case AppendResponse():
                self._answered(message, progress)
            case HeartbeatResponse():
                behind = progress.match < self._raft.log.last
                progress.answered_heartbeat(message.round, behind, self._raft.now_ms)
                self._confirm_reads()
            case VoteRequest():
                raft = self._raft
                raft.refuse_vote(message)

    def _answered(self, answer: AppendResponse, progress: Progress) -> None:
        log = self._raft.log
        progress.active = True
        if answer.refused:
            progress.refused(answer.index, log.last_not_after(answer.hint_index, answer.hint_term) + 1)
        elif progress.accepted(answer.index, log.entries.base):
            self.advance_commit()
            self._hand_over()

    def advance_commit(self) -> None:
        """Commit what a majority has on disk, if the last of it is of this term: the rule of the paper's figure 8.

        An entry of an older term may be on a majority's disks and yet be replaced, by a leader that was elected without
        it. An entry of this term cannot: each later leader has it, and so all entries before it.
        """
        raft, log = self._raft, self._raft.log
        index = reached(log.members.voters, self._on_disk)
        before = log.commit
        if log.term(index) != raft.term or not log.commit_to(index):
            return
        for _ in range(index - before):
            self._uncommitted_bytes -= self._sizes.popleft()
        # Members learn of a commit with the next request to them, even if that has no entries.
        for progress in self.progress.values() if raft.config.tells_commits or not raft.is_voter else ():
            progress.due = True
        if not raft.is_voter and log.commit >= log.members_index:
            # The change that removes this leader is committed: tell the others so, then step down.
            self.flush()
            raft.become_follower(raft.term)

    def _on_disk(self, node: str) -> int:
        return self._raft.log.persisted if node == self._raft.node else self.progress[node].match

    def _confirm_reads(self) -> None:
        raft = self._raft
        round = reached(raft.log.members.voters, self._round_of)
        raft.reads += self._reads.confirmed(round)

    def _round_of(self, node: str) -> int:
        return self._round if node == self._raft.node else self.progress[node].round

    def _hand_over(self) -> None:
        raft = self._raft
        progress = self.progress.get(self._transferee)
        if progress is not None and progress.match == raft.log.last:
            raft.send(TimeoutNow(raft.node, self._transferee, raft.term))

    # --- requests to other members

    def _append(self, kind: int, data: bytes) -> int:
        raft, log = self._raft, self._raft.log
        entry = RaftEntry(log.last + 1, raft.term, kind, data)
        log.append((entry,))
        size = raft.config.travelling_bytes(data) + ENTRY_BYTES
        self._sizes.append(size)
        self._uncommitted_bytes += size
        if kind != 0:
            self._meet_members()
        return entry.index

    def _meet_members(self) -> None:
        raft = self._raft
        others = [node for node in raft.log.members.all if node != raft.node]
        self.progress = {node: self.progress.get(node) or Progress(raft.config, raft.log.last) for node in others}

    def flush(self) -> None:
        raft = self._raft
        # A read is answered from this node's state once a majority has answered a heartbeat that was sent after the
        # read came: until then another leader may have committed more.
        if self._reads.needs_round and self.established:
            self._reads.asked(self._round + 1, raft.log.commit)
            self._send_heartbeats()
            self._confirm_reads()
        for node, progress in self.progress.items():
            self._replicate(node, progress)

    def _replicate(self, node: str, progress: Progress) -> None:
        raft, log = self._raft, self._raft.log
        while progress.due or (progress.next <= log.last and progress.may_send()):
            prev_term = log.term(progress.next - 1)
            if prev_term is None:  # the entries that the member needs were compacted: only a snapshot helps
                if progress.state is not State.SNAPSHOT:
                    raft.send(InstallSnapshot(raft.node, node, raft.term, log.snapshot))
                    progress.sent_snapshot(raft.now_ms)
                progress.due = False
                return
            # Without room in its window the member still learns of commits, by a request without entries.
            entries: tuple[RaftEntry, ...] = ()
            if progress.may_send():
                entries = log.entries.read(progress.next, log.last + 1, raft.config.max_append_bytes)
            last = progress.next - 1 + len(entries)
            raft.send(AppendRequest(raft.node, node, raft.term, progress.next - 1, prev_term, entries, log.commit))
            travelling = raft.config.travelling_bytes
            progress.sent(last, sum(travelling(entry.data) for entry in entries) + ENTRY_BYTES * len(entries))
