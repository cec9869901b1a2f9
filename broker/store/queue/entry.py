"""One message in a file of a consume queue: physicalOffset 8 | size 4 | tagsCode 8."""

import struct

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size
# What RocketMQ fills the places before the first message of a queue with.
BLANK_SIZE = 0x7FFFFFFF
