"""What is asked to be told of changes: 7100, between Skylark and Skylark."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, required
from remoting.protocol.scalars import read_long


@dataclass(slots=True)
class WatchMetadataRequestHeader(Header):
    """7100: answer when something changed, or after this time."""

    hold_millis: int = required(read_long)
