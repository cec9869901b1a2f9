"""The layout of an index file, RocketMQ's hash table on disk.

header 40: beginTimestamp 8 | endTimestamp 8 | beginPhysical 8 | endPhysical 8 | slotCount 4
           | indexCount 4 (starts at 1)
slots:     newest index of the slot 4, each
entries:   keyHash 4 | physicalOffset 8 | seconds since beginTimestamp 4 | previous index of the slot 4, each
"""

import struct

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
SLOTS_AT = HEADER.size
# A slot is one int. index_file.py reads and writes all slots as one array.
SLOT_BYTES = 4
ENTRY_BYTES = ENTRY.size
MAX_SECONDS = 0x7FFFFFFF


def entries_at(slots: int) -> int:
    """Where entry 0 is in a file with ``slots`` slots."""
    return SLOTS_AT + slots * SLOT_BYTES


def index_file_bytes(slots: int, capacity: int) -> int:
    """The size of a file with this many slots and entries."""
    return entries_at(slots) + capacity * ENTRY_BYTES
