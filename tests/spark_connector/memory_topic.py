"""A topic in memory whose sends fail as a plan says, and clocks that only sleeping moves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from skylark.mqcommon.errors import ConnectionLost, SendFailed
from skylark.mqcommon.message.message import Message
from skylark.spark_connector.writing.once import CLOCKS_MS, Claim, FoundRows, Rows
from skylark.spark_connector.writing.rows import name_in


class Killed(BaseException):
    """The process of the attempt ended."""


class Fault(NamedTuple):
    """What happens to a send: how many of its messages are stored, how late, and how the sender learns of it.

    ``away``: how many questions find no broker after it.
    """

    stored: int
    late_ms: float = 0
    is_killed: bool = False
    away: int = 0


class Stored(NamedTuple):
    body: bytes
    key: str
    claim: str
    at_ms: float
    place: str


@dataclass
class Times:
    """Clocks; whoever sleeps lets the others run."""

    ms: float = 1_000_000
    while_asleep: list[Callable[[], None]] = field(default_factory=list)

    def now_ms(self) -> float:
        return self.ms

    def running_ms(self) -> float:
        return self.ms - 500_000

    def sleep_ms(self, ms: float) -> None:
        assert ms > 0
        for run in list(self.while_asleep):
            run()
        self.ms += ms


class MemoryTopic:
    """A topic in memory. ``faults``: of the next sends; ``away``: how many of the next requests find no broker."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.stored: list[Stored] = []
        self.on_the_way: list[Stored] = []
        self.faults: list[Fault | None] = []
        self.away = 0
        self.index_ms: float = 0
        self.sends = 0
        #: Since when the messages were searched for each claim that was asked for.
        self.searched_since: list[int] = []

    @property
    def bodies(self) -> list[bytes]:
        self.arrive()
        return sorted(one.body for one in self.stored)

    def arrive(self) -> None:
        self.stored += [one for one in self.on_the_way if one.at_ms <= self.times.ms]
        self.on_the_way = [one for one in self.on_the_way if one.at_ms > self.times.ms]


class Attempt:
    """The topic as one task sees it."""

    def __init__(self, topic: MemoryTopic, scope: str) -> None:
        self._topic = topic
        self._scope = scope
        self._read_to = 0

    def send(self, rows: Rows) -> None:
        topic = self._topic
        topic.sends += 1
        fault = topic.faults.pop(0) if topic.faults else None
        count = len(rows.messages) if fault is None else fault.stored
        at_ms = topic.times.ms + (fault.late_ms if fault else 0)
        for number, message in enumerate(rows.messages[:count]):
            body = message.body if isinstance(message, Message) else message
            key, claim = self._scope + rows.names[number], ""
            if rows.claim is not None:
                key, claim = rows.claim[0], f"{rows.names[number]} {rows.claim[1]}"
            place = f"{topic.sends:09d} {number:09d}"
            topic.on_the_way.append(Stored(body, key, claim, at_ms, place))
        topic.arrive()
        if fault is not None:
            if fault.is_killed:
                raise Killed
            topic.away = fault.away
            error = SendFailed("not stored in time")
            error.__cause__ = ConnectionLost("broker:1")
            raise error

    def claims(self, key: str, since_ms: int) -> list[Claim]:
        self._ask()
        self._topic.searched_since.append(since_ms)
        found = [one for one in self._topic.stored if one.key == key and one.at_ms >= since_ms - CLOCKS_MS]
        return [
            Claim(int(one.at_ms), one.place, *one.claim.split())
            for one in found
            if self._topic.times.ms >= one.at_ms + self._topic.index_ms
        ]

    def read(self, since_ms: int) -> FoundRows:
        self._ask()
        new = self._topic.stored[self._read_to :]
        self._read_to += len(new)
        ours = [one for one in new if one.key.startswith(self._scope)]
        return FoundRows({name_in(one.key) for one in ours}, max((int(one.at_ms) for one in ours), default=0))

    def _ask(self) -> None:
        self._topic.arrive()
        if self._topic.away:
            self._topic.away -= 1
            raise ConnectionLost("broker:1")
