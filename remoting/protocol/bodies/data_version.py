"""The version of a broker's metadata, raised with every change."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import LONG


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """Equal only when all three agree. ``state_version`` is the controller's epoch, else 0."""

    state_version: int = member(LONG, 0)
    timestamp: int = member(LONG, 0)
    counter: int = member(LONG, 0)

    def next(self, now_ms: int) -> "DataVersion":
        """The version after one more change."""
        return DataVersion(self.state_version, now_ms, self.counter + 1)

    def newer_than(self, other: "DataVersion") -> bool:
        """Whether what has this version should replace what has ``other``.

        Within one state version any difference counts: a broker that lost its counter starts again at 0.
        """
        if self.state_version != other.state_version:
            return self.state_version > other.state_version
        return self != other
