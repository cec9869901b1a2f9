"""Which brokers are alive, by their heartbeats (904), and what each said last. Pure: time comes in.

Rows of the same timeout are in the order in which they were heard, so that a scan reads only the rows of silent
brokers.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.namesrv.controller.commands import Candidate

C = TypeVar("C")
Key = tuple[str, int]  # broker name, broker id


@lazy_dataclass(slots=True)
class LiveReplica(Generic[C]):
    """A living broker, by its last heartbeat. ``is_electable``: False for learners, and where the conf file says so."""

    key: Key
    connection: C
    heard_ms: int
    timeout_ms: int
    candidate: Candidate
    is_electable: bool = True
    #: When the lease that this Controller granted the broker as the master ends.
    granted_until_ms: int = 0


class Liveness(Generic[C]):
    """The brokers that are alive, as far as this Controller knows."""

    def __init__(self) -> None:
        self._rows: dict[Key, LiveReplica[C]] = {}
        self._by_timeout: dict[int, OrderedDict[Key, LiveReplica[C]]] = {}
        self._by_connection: dict[C, set[Key]] = {}

    def hear(self, heard: LiveReplica[C]) -> bool:
        """Record a heartbeat; returns whether the broker was not known to be alive."""
        known = self._rows.get(heard.key)
        if known is not None and known.connection is heard.connection and known.timeout_ms == heard.timeout_ms:
            known.heard_ms, known.candidate, known.is_electable = heard.heard_ms, heard.candidate, heard.is_electable
            self._by_timeout[known.timeout_ms].move_to_end(heard.key)
            return False
        if known is not None:
            # The broker still holds the lease that was granted on the old connection.
            heard.granted_until_ms = known.granted_until_ms
            self._drop(known)
        self._rows[heard.key] = heard
        self._by_timeout.setdefault(heard.timeout_ms, OrderedDict())[heard.key] = heard
        self._by_connection.setdefault(heard.connection, set()).add(heard.key)
        return known is None

    def get(self, key: Key) -> LiveReplica[C] | None:
        """A living broker; None when it is not alive."""
        return self._rows.get(key)

    def alive(self, name: str, broker_ids: Iterator[int] | list[int]) -> list[LiveReplica[C]]:
        """The living brokers of a set."""
        return [row for each in broker_ids if (row := self._rows.get((name, each))) is not None]

    def pop_silent(self, now_ms: int) -> list[Key]:
        """Remove and return the brokers that were silent for longer than their timeout."""
        found: list[LiveReplica[C]] = []
        for timeout_ms, rows in self._by_timeout.items():
            for row in rows.values():
                if now_ms - row.heard_ms <= timeout_ms:
                    break
                found.append(row)
        for row in found:
            self._drop(row)
        return [row.key for row in found]

    def closed(self, connection: C) -> list[Key]:
        """The brokers whose heartbeats came on a connection that is closed now. They still count as alive."""
        return sorted(self._by_connection.pop(connection, ()))

    def forget(self, key: Key) -> None:
        """Remove a dead broker."""
        row = self._rows.get(key)
        if row is not None:
            self._drop(row)

    def _drop(self, row: LiveReplica[C]) -> None:
        del self._rows[row.key]
        rows = self._by_timeout[row.timeout_ms]
        del rows[row.key]
        if not rows:
            del self._by_timeout[row.timeout_ms]
        keys = self._by_connection.get(row.connection)
        if keys is not None:
            keys.discard(row.key)
            if not keys:
                del self._by_connection[row.connection]
