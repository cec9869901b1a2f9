"""A node that asks for votes: first whether it would get them, then in earnest."""

from typing import TYPE_CHECKING

from mqcommon.raft.messages import (
    AppendRequest,
    Heartbeat,
    InstallSnapshot,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from mqcommon.raft.quorum import lost, won

if TYPE_CHECKING:
    from mqcommon.raft.core import Core


class Candidate:
    def __init__(self, core: "Core", pre: bool, forced: bool) -> None:
        self._core = core
        self._pre = pre
        self._forced = forced
        # The own vote counts when it is on disk: after a crash a lone voter would begin the same term once more.
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
        """It cannot have: its own vote is its own."""

    def tick(self) -> None:
        if self._core.now_ms >= self._deadline_ms:
            self._core.stand(pre=True)

    def step(self, message: Message) -> None:
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
