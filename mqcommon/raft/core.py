"""What all roles of a node share: term, vote, log, what it wants to send; and the change from role to role."""

from mqcommon.raft.candidate import Candidate
from mqcommon.raft.config import Config
from mqcommon.raft.errors import RaftError
from mqcommon.raft.follower import Follower
from mqcommon.raft.leader import Leader
from mqcommon.raft.log import Log
from mqcommon.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    InstallSnapshot,
    Message,
    Snapshot,
    VoteRequest,
    VoteResponse,
)
from mqcommon.raft.ready import HardState, Read

Role = Follower | Candidate | Leader
FROM_LEADER = (AppendRequest, Heartbeat, InstallSnapshot)


class Core:
    def __init__(self, config: Config, hard_state: HardState, log: Log, now_ms: int) -> None:
        self.config = config
        self.node = config.node
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.log = log
        self.now_ms = now_ms
        self.leader = ""
        self.outbox: list[Message] = []
        self.reads: list[Read] = []
        self.restore: Snapshot | None = None
        self.role: Role = Follower(self)

    @property
    def is_voter(self) -> bool:
        return self.node in self.log.members.voters

    def election_deadline_ms(self) -> int:
        return self.now_ms + self.config.election_ms + self.config.random.randrange(self.config.election_ms)

    def send(self, message: Message) -> None:
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
        """Ask for votes. ``pre``: ask who would vote first, so that one whom nobody elects does not depose a leader."""
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

    def step(self, message: Message) -> None:
        if message.to != self.node:
            return  # to the one that had this address before it lost its disk
        if message.term > self.term and not self._newer(message):
            return
        if message.term < self.term:
            self._older(message)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._answer_vote(message)
        else:
            self.role.step(message)

    def _newer(self, message: Message) -> bool:
        """A message of a later term. Says whether to go on with it."""
        if isinstance(message, VoteRequest):
            # Who hears of a leader does not help to depose it: a node that was cut off comes back in a later term.
            if self.role.hears_leader() and not message.forced:
                return False
            if message.pre:
                self._answer_vote(message)
                return False
        if isinstance(message, VoteResponse) and message.pre and message.granted:
            return True  # of the term that the election would have
        self.become_follower(message.term, message.sender if isinstance(message, FROM_LEADER) else "")
        return True

    def _older(self, message: Message) -> None:
        """Tell who is behind what the term is, so that a deposed leader gives up and nobody waits for it."""
        if isinstance(message, FROM_LEADER):
            self.send(AppendResponse(self.node, message.sender, self.term, 0, refused=True))
        elif isinstance(message, VoteRequest):
            self.send(VoteResponse(self.node, message.sender, self.term, False, message.pre))

    def _answer_vote(self, request: VoteRequest) -> None:
        log = self.log
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
        """Take a leader's snapshot unless its entries are here. Says up to where this log matches the leader's."""
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
