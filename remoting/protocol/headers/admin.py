"""A broker itself: 26, 315, 908."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, required
from remoting.protocol.scalars import read_long, read_text


@dataclass(slots=True)
class GetBrokerConfigResponseHeader(Header):
    """The answer to 26: a DataVersion as JSON text."""

    version: str = required(read_text)


@dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader(Header):
    """315: one counter, like TOPIC_PUT_NUMS of a topic."""

    stats_name: str = required(read_text)
    stats_key: str = required(read_text)


@dataclass(slots=True)
class ResetMasterFlushOffsetHeader(Header):
    """908: sets a slave's record of how far the log is on the master's disk."""

    master_flush_offset: int = required(read_long)
