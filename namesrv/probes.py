"""Which silent brokers are asked whether they live, and which are taken for dead. Pure.

A broker of ours sends a heartbeat every 30 s, and a dead process closes its connections. But one that is stopped
(SIGSTOP, a debugger, a machine without memory) does neither, and clients would be sent to it until its heartbeats are
missed. So a broker from whose connection nothing has come for SILENT_S is asked something; whatever it answers shows
that it lives. Without an answer in ANSWER_S it is taken for dead. It registers again when it goes on.
Neighbour: namesrv.py sends the questions, and removes the brokers.
"""

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

SILENT_S = 3.0
ANSWER_S = 5.0
# How often to look.
INTERVAL_S = 0.5

C = TypeVar("C")


class Verdict(NamedTuple, Generic[C]):
    """Connections to ask on, and those whose brokers are taken for dead."""

    ask: list[C]
    dead: list[C]


class Probes(Generic[C]):
    """The questions that were not answered yet. Times are in seconds, of one clock."""

    def __init__(self) -> None:
        self._asked: dict[C, float] = {}
        self._looked = 0.0

    def look(self, now: float, heard: Iterable[tuple[C, float]]) -> Verdict[C]:
        """``heard``: each connection of brokers that can be asked, and when something last came from it."""
        if now - self._looked > 2 * INTERVAL_S + 1:
            # This process was stopped, not the brokers: their answers wait in the sockets. All begins anew.
            self._asked.clear()
            self._looked = now
            return Verdict([], [])
        self._looked = now
        verdict: Verdict[C] = Verdict([], [])
        asked: dict[C, float] = {}
        for connection, last in heard:
            at = self._asked.get(connection)
            if now - last < SILENT_S or (at is not None and last > at):
                continue
            if at is None:
                asked[connection] = now
                verdict.ask.append(connection)
            elif now - at < ANSWER_S:
                asked[connection] = at
            else:
                verdict.dead.append(connection)
        self._asked = asked
        return verdict
