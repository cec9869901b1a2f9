"""One message in a file of a consume queue: physicalOffset 8 | size 4 | tagsCode 8."""

import struct

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size
# The size in a blank entry. RocketMQ fills a file with them before the first message of a queue.
BLANK_SIZE = 0x7FFFFFFF
