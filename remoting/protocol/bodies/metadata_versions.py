"""The versions of a broker's metadata tables: those that a slave has, and those that its master has now."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import body_of


@dataclass(slots=True)
class MetadataVersions(Body):
    """The version of each table. That of consumer offsets rises with each commit, before the journal has the commit."""

    topics: DataVersion = member(body_of(DataVersion))
    groups: DataVersion = member(body_of(DataVersion))
    consumer_offsets: DataVersion = member(body_of(DataVersion))
    delay_offsets: DataVersion = member(body_of(DataVersion))
    request_modes: DataVersion = member(body_of(DataVersion))
    users: DataVersion = member(body_of(DataVersion))
    acls: DataVersion = member(body_of(DataVersion))
