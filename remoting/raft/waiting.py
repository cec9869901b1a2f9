"""Who waits for an entry to be applied, and for a read: rows, without a task each."""

from collections import deque
from collections.abc import Callable
from typing import Any

from mqcommon.raft.errors import NotLeader, RaftError, Unknown

Done = Callable[[Any], None]  # given the result, or a RaftError


class Proposals:
    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Done]] = {}

    def add(self, index: int, term: int, done: Done) -> None:
        if index in self._rows:  # of a leadership that this node has lost
            self._rows.pop(index)[1](NotLeader(""))
        self._rows[index] = (term, done)

    def applied(self, index: int, term: int, result: Any) -> None:
        row = self._rows.pop(index, None)
        if row is not None:
            row[1](result if row[0] == term else NotLeader(""))

    def restored(self, index: int) -> None:
        """A snapshot stands for all entries up to ``index``: whether those that wait are among them is not known."""
        for each in [each for each in self._rows if each <= index]:
            self._rows.pop(each)[1](Unknown("its entry came with a snapshot of another leader, or was replaced"))

    def close(self) -> None:
        for _, done in self._rows.values():
            done(Unknown("this node stops"))
        self._rows.clear()

    def __bool__(self) -> bool:
        return bool(self._rows)


class Reads:
    """Reads that were confirmed and wait for their index."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, Done]] = deque()

    def add(self, index: int, done: Done) -> None:
        self._rows.append((index, done))

    def applied(self, index: int) -> None:
        # Indexes rise from row to row, except after a change of the leader; those then wait a little longer.
        while self._rows and self._rows[0][0] <= index:
            self._rows.popleft()[1](None)


class Result:
    """Waits for one call of itself, in a task."""

    __slots__ = ("_set", "_value")

    def __init__(self, set_event: Callable[[], None]) -> None:
        self._set = set_event
        self._value: Any = Unknown("no answer in time; it may come into force yet")

    def __call__(self, value: Any) -> None:
        self._value = value
        self._set()

    def get(self) -> Any:
        if isinstance(self._value, RaftError):
            raise self._value
        return self._value
