"""One entry in a file of a consume queue: that of a message, or in a batch queue that of a whole batch.

message: physicalOffset 8 | size 4 | tagsCode 8
batch:   physicalOffset 8 | size 4 | tagsCode 8 | storeTime 8 | queue offset of its first message 8 | messages 2
         | compactedOffset 4 (-1) | reserved 4
"""

import struct

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size
# The size in a blank entry. RocketMQ fills a file with them before the first message of a queue.
BLANK_SIZE = 0x7FFFFFFF

BATCH_ENTRY = struct.Struct(">qiqqqhii")
BATCH_ENTRY_BYTES = BATCH_ENTRY.size
NOT_COMPACTED = -1
