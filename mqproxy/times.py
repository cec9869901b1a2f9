"""Times between RocketMQ's numbers and protobuf's. Pure.

RocketMQ's times are any 64-bit numbers that a client writes: microseconds, nanoseconds, nothing at all. Protobuf knows
the years 1 to 9999, and raises ValueError for others.
"""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_MOST_NANOS = 999_999_999


def put_time(field: Timestamp, ms: int) -> None:
    """Set ``field``, or leave it out when protobuf has no such time."""
    if _FIRST_MS <= ms <= _LAST_MS:
        # A third of the time of `Timestamp.FromMilliseconds`.
        field.seconds, rest_ms = divmod(ms, 1_000)
        field.nanos = rest_ms * 1_000_000


def put_duration(field: Duration, ms: int) -> None:
    """Set ``field`` to a duration that is not negative."""
    field.seconds, rest_ms = divmod(ms, 1_000)
    field.nanos = rest_ms * 1_000_000


def ms_of(field: Timestamp) -> int | None:
    """The milliseconds of a client's time; None when protobuf has no such time."""
    seconds, nanos = field.seconds, field.nanos
    if not (_FIRST_MS <= seconds * 1_000 <= _LAST_MS and 0 <= nanos <= _MOST_NANOS):
        return None
    return seconds * 1_000 + nanos // 1_000_000
