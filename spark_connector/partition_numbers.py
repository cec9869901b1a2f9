"""The column ``partition`` of ``schemaStyle=kafka``: one number for a broker's name and the id of its queue.

It depends on nothing else, so it stays the same when brokers and queues are added, and in every job: the upper 19 bits
are from the CRC-32 of the broker's name, the lower 12 are the id. Two names may have equal upper bits; a job that reads
both is refused when it is planned (reading/choosing.py).
"""

import zlib

QUEUE_BITS = 12
MAX_QUEUES = 1 << QUEUE_BITS  # of one broker and topic
_BROKER_BITS = 19


def partition_number(broker_name: str, queue_id: int) -> int:
    """The number of a queue: an int that is not negative."""
    return (zlib.crc32(broker_name.encode()) & ((1 << _BROKER_BITS) - 1)) << QUEUE_BITS | queue_id
