"""How far the messages of each delay level were delivered: level to offset in the level's queue of SCHEDULE_TOPIC_XXXX.

Taken over from a Java broker and given back; delayed messages are not delivered yet, so nothing moves them here.
Neighbours: journal.py, json_import.py, json_export.py, handlers/offsets.py (45).
"""

from collections.abc import Iterator
from typing import Any

from remoting.protocol.bodies.offsets import DelayOffsetTable

PUT = "delay-offsets"


class DelayOffsets:
    """See the module; ``table`` is one journal record."""

    def __init__(self) -> None:
        self.table = DelayOffsetTable()

    def apply(self, kind: str, payload: Any) -> None:
        """One record at recovery."""
        self.table = DelayOffsetTable.from_wire(payload)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Records that make this table."""
        return iter([(PUT, self.table.to_wire())] if self.table != DelayOffsetTable() else [])
