"""A node that follows a leader, or waits for one."""

from typing import TYPE_CHECKING

from mqcommon.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

if TYPE_CHECKING:
    from mqcommon.raft.core import Core


class Follower:
    def __init__(self, core: "Core") -> None:
        self._core = core
        self._heard_ms = core.now_ms
        self._deadline_ms = core.election_deadline_ms()

    def hears_leader(self) -> bool:
        core = self._core
        return bool(core.leader) and core.now_ms - self._heard_ms < core.config.election_ms

    def voted(self) -> None:
        """Give the candidate time."""
        self._deadline_ms = self._core.election_deadline_ms()

    def tick(self) -> None:
        if self._core.now_ms >= self._deadline_ms:
            self._core.stand(pre=True)

    def step(self, message: Message) -> None:
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
            case VoteRequest():  # a preliminary one of this very term: that election is over
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
