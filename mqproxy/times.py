"""Times between RocketMQ's numbers and protobuf's. Pure.

RocketMQ's times are any 64-bit numbers that a client writes: microseconds, nanoseconds, nothing at all. Protobuf knows
the years 1 to 9999, and raises ValueError for others.
"""

from google.protobuf.timestamp_pb2 import Timestamp

from skylark.mqproxy.wire.fields import FIRST_MS, LAST_MS

_MOST_NANOS = 999_999_999


def ms_of(field: Timestamp) -> int | None:
    """The milliseconds of a client's time; None when protobuf has no such time."""
    seconds, nanos = field.seconds, field.nanos
    if not (FIRST_MS <= seconds * 1_000 <= LAST_MS and 0 <= nanos <= _MOST_NANOS):
        return None
    return seconds * 1_000 + nanos // 1_000_000
