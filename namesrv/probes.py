"""Which silent brokers are asked whether they live, and which are taken for dead. Pure.

A Skylark broker sends a heartbeat every 30 s, and a dead process closes its connections. But a stopped broker (SIGSTOP,
a debugger, a machine without memory) does neither, and clients would be sent to it until its heartbeat timeout. So a
broker from whose connection nothing has come for SILENT_S gets a request; any answer shows that it lives. Without an
answer in ANSWER_S it is taken for dead. It registers again when it runs on.
Neighbour: namesrv.py sends the questions, and removes the brokers.
"""

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

SILENT_S = 3.0
ANSWER_S = 5.0
# The time between two polls.
INTERVAL_S = 0.5

C = TypeVar("C")


class Verdict(NamedTuple, Generic[C]):
    """Connections to ask on, and connections whose brokers are taken for dead."""

    ask: list[C]
    dead: list[C]


class Probes(Generic[C]):
    """The probes that were not answered yet. Times are in seconds, of one clock."""

    def __init__(self) -> None:
        self._asked: dict[C, float] = {}
        self._polled_at = 0.0

    def poll(self, now: float, heard: Iterable[tuple[C, float]]) -> Verdict[C]:
        """Which connections to probe now.

        ``heard``: each connection of a broker that can be probed, and when something last came from it.
        """
        if now - self._polled_at > 2 * INTERVAL_S + 1:
            # This process was stopped, not the brokers: their answers wait in the sockets. Start over.
            self._asked.clear()
            self._polled_at = now
            return Verdict([], [])
        self._polled_at = now
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
