"""Waiting for changes of metadata: 7100, between Skylark and Skylark."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, required
from remoting.protocol.scalars import read_long


@dataclass(slots=True)
class WatchMetadataRequestHeader(Header):
    """7100: asks for an answer when something changes, at the latest after this time."""

    hold_millis: int = required(read_long)
