"""How far each delay level was delivered: level to offset in the level's queue of SCHEDULE_TOPIC_XXXX.

Imported from a Java broker, exported to one, and copied by a slave from its master.
Neighbours: delivery/delayed_delivery.py (raises them), table.py, json_files.py, offset_handlers.py.
"""

from collections.abc import Callable

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import JournalledValue
from skylark.remoting.protocol.requests.offsets import DelayOffsetTable

KIND = "delay-offsets"


class DelayOffsets(JournalledValue[DelayOffsetTable]):
    """The offsets of all delay levels. They are one small record, so this is a value and not a table of rows."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, KIND, DelayOffsetTable(), DelayOffsetTable.to_wire, DelayOffsetTable.from_wire)
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []

    @property
    def table(self) -> DelayOffsetTable:
        """All levels, and their version."""
        return self.value

    def put(self, value: DelayOffsetTable) -> bool:
        """Replace the table; it is written only if it differs. Returns whether it was written."""
        differs = super().put(value)
        if differs:
            for callback in self.on_change:
                callback()
        return differs

    def advance(self, table: DelayOffsetTable) -> None:
        """Adopt the offsets that are higher in ``table``, which is from a slave that acted for this master."""
        # An offset never goes back: messages before it were delivered, and would be delivered once more.
        ours, theirs = self.table.offset_table, table.offset_table
        further = {level: offset for level, offset in theirs.items() if offset > ours.get(level, -1)}
        if further:
            version = self.table.data_version
            timestamp = max(version.timestamp, table.data_version.timestamp)
            self.put(DelayOffsetTable(ours | further, version.next(timestamp)))
