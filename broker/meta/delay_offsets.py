"""How far the messages of each delay level were delivered: level to offset in the level's queue of SCHEDULE_TOPIC_XXXX.

Taken over from a Java broker and given back, and by a slave from its master; delayed messages are not delivered yet,
so nothing moves them here. Neighbours: journal.py, json_import.py, json_export.py, handlers/offsets.py (45).
"""

from collections.abc import Callable, Iterator
from typing import Any

from broker.meta.journal import Journal
from remoting.protocol.bodies.offsets import DelayOffsetTable

PUT = "delay-offsets"


class DelayOffsets:
    """See the module; ``table`` is one journal record."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.table = DelayOffsetTable()
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []

    def put(self, table: DelayOffsetTable) -> None:
        """Make it the table, and write it if it differs."""
        if table == self.table:
            return
        self._journal.append(PUT, table.to_wire())
        self.table = table
        for callback in self.on_change:
            callback()

    def advance(self, table: DelayOffsetTable) -> None:
        """Take what is further in ``table``, that of a slave which acted for this master."""
        ours, theirs = self.table.offset_table, table.offset_table
        further = {level: offset for level, offset in theirs.items() if offset > ours.get(level, -1)}
        if further:
            version = self.table.data_version
            timestamp = max(version.timestamp, table.data_version.timestamp)
            self.put(DelayOffsetTable(ours | further, version.next(timestamp)))

    def apply(self, kind: str, payload: Any) -> None:
        """One record at recovery."""
        self.table = DelayOffsetTable.from_wire(payload)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Records that make this table."""
        return iter([(PUT, self.table.to_wire())] if self.table != DelayOffsetTable() else [])
