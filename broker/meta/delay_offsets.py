"""How far the messages of each delay level were delivered: level to offset in the level's queue of SCHEDULE_TOPIC_XXXX.

Taken over from a Java broker and given back, and by a slave from its master; delayed messages are not delivered yet,
so nothing moves them here. Neighbours: journalled.py, json_import.py, json_export.py, handlers/offsets.py (45).
"""

from collections.abc import Callable

from broker.meta.journal import Journal
from broker.meta.journalled import JournalledValue
from remoting.protocol.bodies.offsets import DelayOffsetTable

KIND = "delay-offsets"


class DelayOffsets(JournalledValue[DelayOffsetTable]):
    """See the module. All of it is one small record, so it is a value and not a table of rows."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, KIND, DelayOffsetTable(), DelayOffsetTable.to_wire, DelayOffsetTable.from_wire)
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []

    @property
    def table(self) -> DelayOffsetTable:
        """All levels, and their version."""
        return self.value

    def put(self, value: DelayOffsetTable) -> bool:
        """Make it the table, and write it if it differs; returns whether it did."""
        differs = super().put(value)
        if differs:
            for callback in self.on_change:
                callback()
        return differs

    def advance(self, table: DelayOffsetTable) -> None:
        """Take what is further in ``table``, that of a slave which acted for this master."""
        ours, theirs = self.table.offset_table, table.offset_table
        further = {level: offset for level, offset in theirs.items() if offset > ours.get(level, -1)}
        if further:
            version = self.table.data_version
            timestamp = max(version.timestamp, table.data_version.timestamp)
            self.put(DelayOffsetTable(ours | further, version.next(timestamp)))
