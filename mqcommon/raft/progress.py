"""What a leader keeps track of: the replication progress of each member, and reads that wait for a heartbeat round.

A member's `State` changes so:

    PROBE -- the member accepts --> REPLICATE -- it refuses --> PROBE
    PROBE, REPLICATE -- its entries were compacted here --> SNAPSHOT -- it has them --> REPLICATE, or after long: PROBE
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum

from skylark.mqcommon.raft.config import Config
from skylark.mqcommon.raft.ready import Read


class State(Enum):
    """How requests are sent to a member.

    PROBE: it is not known where the logs match, so one request is in flight at a time. REPLICATE: requests are sent
    ahead of their answers, up to the window. SNAPSHOT: the leader has no longer the entries that the member needs;
    nothing is sent until the member has the snapshot.
    """

    PROBE = 1
    REPLICATE = 2
    SNAPSHOT = 3


class Progress:
    """One other member, as the leader knows it, and whether the leader may send to it."""

    def __init__(self, config: Config, next_index: int) -> None:
        self._config = config
        self.state = State.PROBE
        # All entries up to `match` are on the member's disk and equal the leader's: only they count for a commit.
        # `match` never falls, since a member forgets nothing that it has acknowledged.
        self.match = 0
        # The first entry of the next request; above `match`. In PROBE a guess, which each refusal lowers. In REPLICATE
        # what follows the last request, answered or not. In SNAPSHOT it stays until the snapshot is there.
        self.next = next_index
        # Whether the member has answered since the leader last checked that a majority answers.
        self.active = True
        # The last heartbeat that the member answered.
        self.round = 0
        # Send a request even without entries: to find where the logs match, or to announce commits.
        self.due = True
        # PROBE only: a request is in flight, or may be lost; the next answer to a heartbeat allows another request.
        self._probing = False
        # SNAPSHOT only: when the snapshot was sent. It may be lost, so the leader probes again after some time.
        self._snapshot_sent_ms = 0
        # REPLICATE only: the last index and the bytes of each unanswered request.
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0

    def may_send(self) -> bool:
        if self.state is State.REPLICATE:
            config = self._config
            return (
                self._in_flight_bytes < config.max_in_flight_bytes
                and len(self._in_flight) < config.max_in_flight_requests
            )
        return self.state is State.PROBE and not self._probing

    def sent(self, last_index: int, size_bytes: int) -> None:
        self.due = False
        if self.state is State.PROBE:
            self._probing = True
        elif last_index >= self.next:
            self.next = last_index + 1
            self._in_flight.append((last_index, size_bytes))
            self._in_flight_bytes += size_bytes

    def sent_snapshot(self, now_ms: int) -> None:
        self.state = State.SNAPSHOT
        self.due = False
        self._snapshot_sent_ms = now_ms

    def accepted(self, index: int, base: int) -> bool:
        """Record that the member has all entries up to ``index``; returns whether this is news.

        ``base``: the base of the leader's log.
        """
        news = index > self.match
        # Answers may come late or twice.
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self._in_flight and self._in_flight[0][0] <= index:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        found = self.state is State.PROBE and index >= self.match
        if found or (self.state is State.SNAPSHOT and self.match >= base):
            self._reset(State.REPLICATE, self.match + 1)
        return news

    def refused(self, index: int, next_index: int) -> None:
        """Go back, because the member has another entry at ``index``, or none.

        ``next_index``: where the logs may match, as the answer hints.

        A refusal at or below `match`, or in PROBE of another request than the last, is out of date and ignored.
        """
        if self.state is State.REPLICATE and index > self.match:
            self._reset(State.PROBE, self.match + 1)
        elif self.state is State.PROBE and index == self.next - 1:
            self._reset(State.PROBE, max(min(index, next_index), self.match + 1))

    def answered_heartbeat(self, round: int, behind: bool, now_ms: int) -> None:
        self.active = True
        self.round = max(self.round, round)
        self._probing = False
        if self.state is State.SNAPSHOT and now_ms - self._snapshot_sent_ms > 4 * self._config.election_ms:
            self._reset(State.PROBE, self.match + 1)
        # The last request may have been lost. Only another request, even an empty one, shows that entries are missing.
        self.due = self.due or behind

    def _reset(self, state: State, next_index: int) -> None:
        self.state = state
        self.next = next_index
        self.due = True
        self._probing = False
        self._in_flight.clear()
        self._in_flight_bytes = 0


class PendingReads:
    """Linearizable reads: each waits until a majority confirms, after the read came, that the leader still leads.

    Reads that come while a heartbeat round is under way share the next round.
    """

    def __init__(self) -> None:
        self._waiting: list[object] = []
        self._round = 0
        self._index = 0
        self._asked: Sequence[object] = ()

    def add(self, context: object) -> None:
        self._waiting.append(context)

    @property
    def needs_round(self) -> bool:
        return bool(self._waiting) and not self._asked

    def asked(self, round: int, commit: int) -> None:
        """Let waiting reads wait for heartbeat ``round``, sent now; they must see everything up to ``commit``."""
        self._round, self._index = round, commit
        self._asked, self._waiting = self._waiting, []

    def confirmed(self, round: int) -> list[Read]:
        """Returns the reads that may be answered, as a majority has answered heartbeat ``round``."""
        if not self._asked or round < self._round:
            return []
        done, self._asked = self._asked, ()
        return [Read(context, self._index) for context in done]

    def give_up(self) -> list[Read]:
        done = [*self._asked, *self._waiting]
        self._asked, self._waiting = (), []
        return [Read(context, None) for context in done]
