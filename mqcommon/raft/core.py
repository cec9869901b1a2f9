"""A node of a Raft group and its three roles.

`Core` has what all roles share: term, vote, log, the messages to send, and the change from role to role. Its ``role``
is a `Follower`, a `Candidate` or a `Leader`, and takes the messages of the present term.
Neighbours: log.py, progress.py (what a leader knows of each follower), raft.py (the way in).
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import TypeAlias

from mqcommon.raft.config import Config
from mqcommon.raft.errors import ChangeRefused, NotLeader, Overloaded, RaftError
from mqcommon.raft.log import RaftLog
from mqcommon.raft.membership import Change, Promote, changed
from mqcommon.raft.messages import (
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
from mqcommon.raft.progress import PendingReads, Progress, State
from mqcommon.raft.ready import HardState, Read


def majority(count: int) -> int:
    """How many of ``count`` voters are a majority."""
    return count // 2 + 1


def reached(voters: Collection[str], value: Callable[[str], int]) -> int:
    """The highest number that a majority of ``voters`` has reached."""
    values = sorted(map(value, voters), reverse=True)
    return values[majority(len(values)) - 1] if values else 0


def won(voters: Collection[str], votes: dict[str, bool]) -> bool:
    """Whether a majority of ``voters`` has voted for the candidate."""
    return sum(votes.get(voter, False) for voter in voters) >= majority(len(voters))


def lost(voters: Collection[str], votes: dict[str, bool]) -> bool:
    """Whether the missing votes cannot make a majority any more."""
    return sum(votes.get(voter, True) for voter in voters) < majority(len(voters))


Role: TypeAlias = "Follower | Candidate | Leader"
FROM_LEADER = (AppendRequest, Heartbeat, InstallSnapshot)


class Core:
    """The state of a node that outlives its roles."""

    def __init__(self, config: Config, hard_state: HardState, log: RaftLog, now_ms: int) -> None:
        self.config = config
        self.node = config.node
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.log = log
        self.now_ms = now_ms
        self.leader = ""
        self.outbox: list[RaftMessage] = []
        self.reads: list[Read] = []
        self.restore: Snapshot | None = None
        self.role: Role = Follower(self)

    @property
    def is_voter(self) -> bool:
        return self.node in self.log.members.voters

    def election_deadline_ms(self) -> int:
        return self.now_ms + self.config.election_ms + self.config.random.randrange(self.config.election_ms)

    def send(self, message: RaftMessage) -> None:
        self.outbox.append(message)

    # From role to role.

    def _enter(self, term: int, leader: str) -> None:
        if isinstance(self.role, Leader):
            self.role.close()
        if term != self.term:
            self.term = term
            self.vote = ""
            # What was promised in the old term may not be true any more when it is on disk.
            self.outbox.clear()
        self.leader = leader

    def become_follower(self, term: int, leader: str = "") -> None:
        self._enter(term, leader)
        self.role = Follower(self)

    def stand(self, *, pre: bool, forced: bool = False) -> None:
        """Stand for election. ``pre``: first ask who would vote, so that a node that cannot win deposes no leader."""
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

    # Messages.

    def step(self, message: RaftMessage) -> None:
        if message.to != self.node:
            return  # for the node that had this address before it lost its disk
        if message.term > self.term and not self._newer(message):
            return
        if message.term < self.term:
            self._older(message)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._answer_vote(message)
        else:
            self.role.step(message)

    def _newer(self, message: RaftMessage) -> bool:
        """Adopt the later term of ``message``. Returns whether the role is to handle the message."""
        if isinstance(message, VoteRequest):
            # A node that was cut off comes back in a later term. Voters that hear a leader do not help to depose it.
            if self.role.hears_leader() and not message.forced:
                return False
            if message.pre:
                self._answer_vote(message)
                return False
        if isinstance(message, VoteResponse) and message.pre and message.granted:
            return True  # its term is the one that the election would have
        self.become_follower(message.term, message.sender if isinstance(message, FROM_LEADER) else "")
        return True

    def _older(self, message: RaftMessage) -> None:
        """Answer a message of an older term with the current term, so that a deposed leader steps down."""
        if isinstance(message, FROM_LEADER):
            self.send(AppendResponse(self.node, message.sender, self.term, 0, refused=True))
        elif isinstance(message, VoteRequest):
            self.send(VoteResponse(self.node, message.sender, self.term, False, message.pre))

    def _answer_vote(self, request: VoteRequest) -> None:
        log = self.log
        # One vote a term, kept on disk before the answer is sent: two candidates cannot both get a majority. And only
        # for a log that is at least as new as this one: a leader has every committed entry.
        free = request.pre or self.vote == request.sender or (not self.vote and not self.leader)
        granted = free and (request.last_term, request.last_index) >= (log.last_term, log.last)
        if granted and not request.pre:
            self.vote = request.sender
            self.role.voted()
        term = request.term if granted else self.term
        self.send(VoteResponse(self.node, request.sender, term, granted, request.pre))

    # The log.

    def commit_to(self, index: int) -> bool:
        return self.log.commit_to(index)

    def restore_from(self, snapshot: Snapshot) -> int:
        """Take a leader's snapshot unless its entries are here. Returns the last index that matches the leader's."""
        log = self.log
        if snapshot.index <= log.commit:
            return log.commit
        if log.term(snapshot.index) == snapshot.term:
            log.commit_to(snapshot.index)
            return snapshot.index
        if snapshot.index < log.entries.base:
            raise RaftError("a snapshot of before the log's beginning was not committed")
        log.restore(snapshot)
        self.restore = snapshot
        return snapshot.index


class Follower:
    """A node that follows a leader, or waits for one."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._heard_ms = core.now_ms
        self._deadline_ms = core.election_deadline_ms()

    def hears_leader(self) -> bool:
        core = self._core
        return bool(core.leader) and core.now_ms - self._heard_ms < core.config.election_ms

    def voted(self) -> None:
        """Restart the election timer, so that the candidate has time to win."""
        self._deadline_ms = self._core.election_deadline_ms()

    def tick(self) -> None:
        if self._core.now_ms >= self._deadline_ms:
            self._core.stand(pre=True)

    def step(self, message: RaftMessage) -> None:
        core = self._core
        match message:
            case AppendRequest():
                self._hear(message.sender)
                core.send(self._append(message))
            case Heartbeat():
                self._hear(message.sender)
                core.commit_to(message.commit)
                core.send(HeartbeatResponse(core.node, message.sender, core.term, message.round))
            case InstallSnapshot():
                self._hear(message.sender)
                index = core.restore_from(message.snapshot)
                core.send(AppendResponse(core.node, message.sender, core.term, index))
            case TimeoutNow():
                core.stand(pre=False, forced=True)
            case VoteRequest():  # a pre-vote request of the present term: that election is over
                core.send(VoteResponse(core.node, message.sender, core.term, False, message.pre))

    def _hear(self, leader: str) -> None:
        core = self._core
        core.leader = leader
        self._heard_ms = core.now_ms
        self._deadline_ms = core.election_deadline_ms()

    def _append(self, request: AppendRequest) -> AppendResponse:
        core, log = self._core, self._core.log
        if request.prev_index < log.commit:
            # An old request: up to the commit index all logs are the same.
            return AppendResponse(core.node, request.sender, core.term, log.commit)
        if log.accept(request.prev_index, request.prev_term, request.entries):
            index = request.prev_index + len(request.entries)
            log.commit_to(min(request.commit, index))
            return AppendResponse(core.node, request.sender, core.term, index)
        hint = log.last_not_after(request.prev_index, request.prev_term)
        return AppendResponse(core.node, request.sender, core.term, request.prev_index, True, hint, log.term(hint) or 0)


class Candidate:
    """A node that asks for votes: first whether it would get them (``pre``), then for the votes themselves."""

    def __init__(self, core: Core, pre: bool, forced: bool) -> None:
        self._core = core
        self._pre = pre
        self._forced = forced
        # This node's vote counts once it is on disk: after a crash a lone voter would begin the same term once more.
        self._votes = {core.node: True} if pre else {}
        self._deadline_ms = core.election_deadline_ms()

    def begin(self) -> None:
        core, log = self._core, self._core.log
        term = core.term + 1 if self._pre else core.term
        for voter in log.members.voters:
            if voter != core.node:
                core.send(VoteRequest(core.node, voter, term, log.last, log.last_term, self._pre, self._forced))
        self._count()

    def vote_saved(self) -> None:
        self._votes[self._core.node] = True
        self._count()

    def hears_leader(self) -> bool:
        return False

    def voted(self) -> None:
        """Unreachable: a candidate voted for itself."""

    def tick(self) -> None:
        if self._core.now_ms >= self._deadline_ms:
            self._core.stand(pre=True)

    def step(self, message: RaftMessage) -> None:
        core = self._core
        match message:
            case VoteResponse(pre=pre) if pre == self._pre:
                self._votes[message.sender] = message.granted
                self._count()
            case AppendRequest() | Heartbeat() | InstallSnapshot():
                core.become_follower(core.term, message.sender)
                core.role.step(message)
            case TimeoutNow():
                core.stand(pre=False, forced=True)
            case VoteRequest():
                core.send(VoteResponse(core.node, message.sender, core.term, False, message.pre))

    def _count(self) -> None:
        core = self._core
        voters = core.log.members.voters
        if won(voters, self._votes):
            if self._pre:
                core.stand(pre=False)
            else:
                core.become_leader()
        elif lost(voters, self._votes):
            core.become_follower(core.term)


# Bytes of an entry in memory and in a request, besides its data.
ENTRY_BYTES = 32


class Leader:
    """A node that leads: it takes proposals, replicates its log to the other members, and commits entries.

    Requests to other members are built in ``flush``, once for all proposals since the last one, so that proposals share
    a request.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.progress: dict[str, Progress] = {}
        self._reads = PendingReads()
        self._round = 0
        self._heartbeat_ms = core.now_ms
        self._checked_ms = core.now_ms
        self._transferee = ""
        self._transfer_ends_ms = 0
        self._sizes: deque[int] = deque()  # of the entries that are not committed
        self._uncommitted_bytes = 0

    def begin(self) -> None:
        log = self._core.log
        # Entries of former leaders count as committed only when an entry of this term is, so one is needed at once.
        self._first_index = log.last + 1
        self._sizes.extend(0 for _ in range(log.last - log.commit))
        self._append(EMPTY, b"")

    def close(self) -> None:
        self._core.reads += self._reads.give_up()

    def hears_leader(self) -> bool:
        return True

    def voted(self) -> None:
        """Unreachable: a leader voted for itself in its term."""

    @property
    def established(self) -> bool:
        """Whether everything that former leaders committed is known to be committed."""
        return self._core.log.commit >= self._first_index

    # Requests of the application.

    def propose(self, kind: int, data: bytes) -> int:
        if self._transferee:
            raise Overloaded(f"the leadership is being handed to {self._transferee}; try again")
        limit = self._core.config.max_uncommitted_bytes
        if self._uncommitted_bytes + len(data) > limit and self._sizes:
            raise Overloaded(f"{self._uncommitted_bytes} bytes wait to be committed, the limit is {limit}; try again")
        return self._append(kind, data)

    def change(self, change: Change) -> int:
        log = self._core.log
        if not self.established:
            raise ChangeRefused("the leader is new; try again in a moment")
        if log.members_index > log.commit:
            raise ChangeRefused(f"the change at {log.members_index} is not committed yet; try again in a moment")
        members = changed(log.members, change)
        if isinstance(change, Promote):
            lag = log.last - self.progress[change.node].match
            if lag > self._core.config.promotion_lag:
                raise ChangeRefused(f"{change.node} lacks {lag} entries; try again when it has caught up")
        return self.propose(MEMBERSHIP, members.encode())

    def transfer(self, to: str) -> None:
        core = self._core
        if to not in core.log.members.voters:
            raise ChangeRefused(f"{to} is not a voter; voters: {', '.join(core.log.members.voters)}")
        if to == core.node or self._transferee:
            return
        self._transferee = to
        self._transfer_ends_ms = core.now_ms + core.config.election_ms
        self._hand_over()

    def read_index(self, context: object) -> None:
        self._reads.add(context)

    # Time.

    def tick(self) -> None:
        core = self._core
        if self._transferee and core.now_ms >= self._transfer_ends_ms:
            self._transferee = ""
        if core.now_ms - self._checked_ms >= core.config.election_ms:
            self._checked_ms = core.now_ms
            if not self._has_majority():
                core.become_follower(core.term)
                return
        if core.now_ms - self._heartbeat_ms >= core.config.heartbeat_ms:
            self._send_heartbeats()

    def _has_majority(self) -> bool:
        core = self._core
        voters = core.log.members.voters
        active = sum(voter == core.node or self.progress[voter].active for voter in voters)
        for progress in self.progress.values():
            progress.active = False
        return active >= majority(len(voters))

    def _send_heartbeats(self) -> None:
        core = self._core
        self._heartbeat_ms = core.now_ms
        self._round += 1
        for node, progress in self.progress.items():
            core.send(Heartbeat(core.node, node, core.term, min(progress.match, core.log.commit), self._round))

    # Answers.

    def step(self, message: RaftMessage) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        match message:
            case AppendResponse():
                self._answered(message, progress)
            case HeartbeatResponse():
                behind = progress.match < self._core.log.last
                progress.answered_heartbeat(message.round, behind, self._core.now_ms)
                self._confirm_reads()
            case VoteRequest():
                core = self._core
                core.send(VoteResponse(core.node, message.sender, core.term, False, message.pre))

    def _answered(self, answer: AppendResponse, progress: Progress) -> None:
        log = self._core.log
        progress.active = True
        if answer.refused:
            progress.refused(answer.index, log.last_not_after(answer.hint_index, answer.hint_term) + 1)
        elif progress.accepted(answer.index, log.entries.base):
            self.advance_commit()
            self._hand_over()

    def advance_commit(self) -> None:
        """Commit what a majority has on disk, if the last of it is of this term: the rule of the paper's figure 8."""
        core, log = self._core, self._core.log
        index = reached(log.members.voters, self._on_disk)
        before = log.commit
        if log.term(index) != core.term or not core.commit_to(index):
            return
        for _ in range(index - before):
            self._uncommitted_bytes -= self._sizes.popleft()
        for progress in self.progress.values():
            progress.due = True
        if not core.is_voter and log.commit >= log.members_index:
            # The change that removes this leader is committed: tell the others so, then step down.
            self.flush()
            core.become_follower(core.term)

    def _on_disk(self, node: str) -> int:
        return self._core.log.persisted if node == self._core.node else self.progress[node].match

    def _confirm_reads(self) -> None:
        core = self._core
        round = reached(core.log.members.voters, self._round_of)
        core.reads += self._reads.confirmed(round)

    def _round_of(self, node: str) -> int:
        return self._round if node == self._core.node else self.progress[node].round

    def _hand_over(self) -> None:
        core = self._core
        progress = self.progress.get(self._transferee)
        if progress is not None and progress.match == core.log.last:
            core.send(TimeoutNow(core.node, self._transferee, core.term))

    # What goes out.

    def _append(self, kind: int, data: bytes) -> int:
        core, log = self._core, self._core.log
        entry = RaftEntry(log.last + 1, core.term, kind, data)
        log.append((entry,))
        size = len(data) + ENTRY_BYTES
        self._sizes.append(size)
        self._uncommitted_bytes += size
        if kind != 0:
            self._meet_members()
        return entry.index

    def _meet_members(self) -> None:
        core = self._core
        others = [node for node in core.log.members.all if node != core.node]
        self.progress = {node: self.progress.get(node) or Progress(core.config, core.log.last) for node in others}

    def flush(self) -> None:
        core = self._core
        if self._reads.needs_round and self.established:
            self._reads.asked(self._round + 1, core.log.commit)
            self._send_heartbeats()
            self._confirm_reads()
        for node, progress in self.progress.items():
            self._replicate(node, progress)

    def _replicate(self, node: str, progress: Progress) -> None:
        core, log = self._core, self._core.log
        while progress.due or (progress.next <= log.last and progress.may_send()):
            prev_term = log.term(progress.next - 1)
            if prev_term is None:  # the entries that the member needs were compacted: only a snapshot helps
                if progress.state is not State.SNAPSHOT:
                    core.send(InstallSnapshot(core.node, node, core.term, log.snapshot))
                    progress.sent_snapshot(core.now_ms)
                progress.due = False
                return
            entries: tuple[RaftEntry, ...] = ()
            if progress.may_send():
                entries = log.entries.read(progress.next, log.last + 1, core.config.max_append_bytes)
            last = progress.next - 1 + len(entries)
            core.send(AppendRequest(core.node, node, core.term, progress.next - 1, prev_term, entries, log.commit))
            progress.sent(last, sum(len(entry.data) for entry in entries) + ENTRY_BYTES * len(entries))


def require_leader(role: object, leader: str) -> Leader:
    if not isinstance(role, Leader):
        raise NotLeader(leader)
    return role
