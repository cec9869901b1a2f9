"""Encoded answers to route queries (105), each kept until its route changes. Pure.

A route is asked for far more often than it changes, and encoding it costs several times as much as all the rest of the
answer.
Bound: MAX_BYTES of answers; the oldest are forgotten first.
Neighbours: topic_queues.py and routes.py say which topics change; handlers.py asks.
"""

from collections.abc import Collection
from typing import NamedTuple

from skylark.remoting.protocol.dialect import Dialect

MAX_BYTES = 64 * 1024 * 1024
# About how many bytes the objects around an answer take.
_ENTRY_BYTES = 300


class Form(NamedTuple):
    """The properties of a request, besides its topic, on which the answer depends."""

    dialect: Dialect
    acting_master: bool


class RouteAnswers:
    """Bodies of answers, by topic and form."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bodies: dict[str, dict[Form, bytes]] = {}
        self.size_bytes = 0

    def get(self, topic: str, form: Form) -> bytes | None:
        """The answer, if it is kept here."""
        bodies = self._bodies.get(topic)
        return None if bodies is None else bodies.get(form)

    def put(self, topic: str, form: Form, body: bytes) -> None:
        """Keep an answer that `get` did not find. The caller must make it in the turn in which it reads the route."""
        self._bodies.setdefault(topic, {})[form] = body
        self.size_bytes += len(body) + _ENTRY_BYTES
        while self.size_bytes > self._max_bytes:
            self._forget(next(iter(self._bodies)))

    def forget(self, topics: Collection[str]) -> None:
        """Drop the answers about ``topics``, whose routes have changed."""
        known = self._bodies
        # Loop over the smaller collection: a set may have a million topics of which clients ask for a few.
        if len(topics) <= len(known):
            gone = [topic for topic in topics if topic in known]
        else:
            gone = [topic for topic in known if topic in topics]
        for topic in gone:
            self._forget(topic)

    def clear(self) -> None:
        """Drop all answers: any route may have changed."""
        self._bodies.clear()
        self.size_bytes = 0

    def _forget(self, topic: str) -> None:
        self.size_bytes -= sum(len(body) + _ENTRY_BYTES for body in self._bodies.pop(topic).values())
