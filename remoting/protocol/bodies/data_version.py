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
