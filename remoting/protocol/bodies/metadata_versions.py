"""The versions of all that a broker keeps besides messages: what a slave knows of its master, and what there is now."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import body_of


@dataclass(slots=True)
class MetadataVersions(Body):
    """Of each table. That of the consumer offsets goes up with each commit, before the journal has it."""

    topics: DataVersion = member(body_of(DataVersion))
    groups: DataVersion = member(body_of(DataVersion))
    consumer_offsets: DataVersion = member(body_of(DataVersion))
    delay_offsets: DataVersion = member(body_of(DataVersion))
