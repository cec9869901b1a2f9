"""A node that leads: it takes proposals, brings the logs of the others to its own, and says what is committed.

What goes to other members is made in ``flush``, once for all that came before, so that proposals gather.
"""

from collections import deque
from typing import TYPE_CHECKING

from mqcommon.raft.errors import ChangeRefused, NotLeader, Overloaded
from mqcommon.raft.membership import Change, Promote, changed
from mqcommon.raft.messages import (
    EMPTY,
    MEMBERSHIP,
    AppendRequest,
    AppendResponse,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from mqcommon.raft.progress import Progress, State
from mqcommon.raft.quorum import majority, reached
from mqcommon.raft.reads import PendingReads

if TYPE_CHECKING:
    from mqcommon.raft.core import Core

# What an entry takes in memory and in a request beside its data.
ENTRY_BYTES = 32


class Leader:
    def __init__(self, core: "Core") -> None:
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
        """It cannot have: its own vote is its own."""

    @property
    def established(self) -> bool:
        """Whether everything that former leaders committed is known to be committed."""
        return self._core.log.commit >= self._first_index

    # What the application asks for.

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

    def step(self, message: Message) -> None:
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
            self.flush()  # tells of the commit
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
        entry = Entry(log.last + 1, core.term, kind, data)
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
            if prev_term is None:
                if progress.state is not State.SNAPSHOT:
                    core.send(InstallSnapshot(core.node, node, core.term, log.snapshot))
                    progress.sent_snapshot(core.now_ms)
                progress.due = False
                return
            entries: tuple[Entry, ...] = ()
            if progress.may_send():
                entries = log.entries.read(progress.next, log.last + 1, core.config.max_append_bytes)
            last = progress.next - 1 + len(entries)
            core.send(AppendRequest(core.node, node, core.term, progress.next - 1, prev_term, entries, log.commit))
            progress.sent(last, sum(len(entry.data) for entry in entries) + ENTRY_BYTES * len(entries))


def require_leader(role: object, leader: str) -> Leader:
    if not isinstance(role, Leader):
        raise NotLeader(leader)
    return role
