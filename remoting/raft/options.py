"""What an application chooses for its node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from mqcommon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """``peers``: names and addresses of the first members, this node's own too; ``group``: several share a server."""

    group: str
    name: str
    peers: Mapping[str, str]
    election_ms: int = 1_000
    heartbeat_ms: int = 100
    # A snapshot of the state is made after so many entries; as many remain for slow members.
    snapshot_entries: int = 10_000
    kept_entries: int = 1_000
    random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        for name in self.peers:
            if not name or "." in name:
                raise ConfigError(f"{name!r} cannot name a node of a group: a name is not empty and has no dot")
        if self.name not in self.peers:
            raise ConfigError(f"{self.name} is not among the nodes of its group: {', '.join(self.peers)}")

    @property
    def addr(self) -> str:
        return self.peers[self.name]
