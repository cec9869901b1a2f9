"""Linearizable reads without an entry: a majority confirms, after the read came, that the leader still leads."""

from collections.abc import Sequence

from mqcommon.raft.ready import Read


class PendingReads:
    """Reads that wait for a round of heartbeats; all that come while one is under way share the next."""

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
        """Heartbeat ``round`` goes out now, and ``commit`` is what a read must see."""
        self._round, self._index = round, commit
        self._asked, self._waiting = self._waiting, []

    def confirmed(self, round: int) -> list[Read]:
        """A majority answered heartbeat ``round``: the reads that may be answered."""
        if not self._asked or round < self._round:
            return []
        done, self._asked = self._asked, ()
        return [Read(context, self._index) for context in done]

    def give_up(self) -> list[Read]:
        done = [*self._asked, *self._waiting]
        self._asked, self._waiting = (), []
        return [Read(context, None) for context in done]
