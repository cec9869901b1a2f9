"""A table of text (28, 219, and the answer to 103)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import TEXT, map_of


@dataclass(slots=True)
class KVTable(Body):
    """Keys and values."""

    table: dict[str, str] = member(map_of(TEXT))
