"""What an application gives to a group: a state that changes by committed entries only, the same on each node."""

from typing import Any, Protocol


class StateMachine(Protocol):
    """Called from the loop, one call after another. ``apply`` must not depend on time, chance or the node."""

    def apply(self, index: int, data: bytes) -> Any:
        """The result goes to who proposed the entry here. An exception ends the node, as it would all nodes."""

    def snapshot(self) -> bytes:
        """The whole state. Called between two ``apply``."""

    def restore(self, data: bytes) -> None:
        """Replace the state by that of a ``snapshot``."""
