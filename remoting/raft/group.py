"""The interface between an application and its group: `NodeOptions`, `StateMachine` and `Group`.

node.py implements the group with real disks and networks.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from random import Random
from typing import Any, Protocol

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.membership import Change, Members


@lazy_dataclass(frozen=True, slots=True)
class NodeOptions:
    """The settings of a node.

    ``peers``: names and addresses of the first members, this node's own too; ``group``: several share a server.
    """

    group: str
    name: str
    peers: Mapping[str, str]
    election_ms: int = 1_000
    heartbeat_ms: int = 100
    # A snapshot of the state is made after this many entries; as many remain for slow members.
    snapshot_entries: int = 10_000
    kept_entries: int = 1_000
    # The most entries that are taken and not committed yet; beyond that, proposals are refused.
    max_uncommitted_bytes: int = 64 << 20
    # Whether members learn of each commit at once; if not, with the next entries or heartbeat, which saves messages.
    tells_commits: bool = True
    # Whether the application calls `RaftNode.turn` after each turn with messages or proposals, which saves turns.
    calls_turn: bool = False
    # Where clients of the application reach this node, if not at its own address.
    client_addr: str = ""
    random: Random = field(default_factory=Random)
    # Why this node, as the leader, cannot send entries; "" if it can. Nodes that want to join get this text.
    problem: Callable[[], str] = lambda: ""
    # Whether another node should lead, see `RaftNode.fit_to_lead`.
    is_unfit: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        for name in self.peers:
            if not name or "." in name:
                raise ConfigError(f"{name!r} cannot name a node of a group: a name is not empty and has no dot")
        if self.name not in self.peers:
            raise ConfigError(f"{self.name} is not among the nodes of its group: {', '.join(self.peers)}")

    @property
    def addr(self) -> str:
        return self.peers[self.name]


Done = Callable[[Any], None]  # given the result, or a RaftError


class Group(Protocol):
    """One node's view. Methods that only the leader can carry out raise NotLeader with the leader's id."""

    @property
    def node(self) -> str:
        """The id of this node: its name in the conf, with a suffix of its own after it lost its disk."""

    @property
    def leader(self) -> str:
        """The id of the leader as far as this node knows; empty when it knows of none."""

    @property
    def leader_addr(self) -> str: ...

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, and knows all that former leaders committed. It may be deposed: see ``read``."""

    @property
    def term(self) -> int: ...

    @property
    def members(self) -> Members: ...

    @property
    def heir(self) -> str:
        """The voter that has the most besides this leader: `transfer` to it at a stop. "" when this is no leader."""

    async def propose(self, data: bytes, timeout_ms: float) -> Any:
        """Commit ``data``; the result is what the state machine's ``apply`` returned for it here.

        Raises NotLeader or Overloaded (``data`` was not taken), or Unknown (``data`` may still be committed).
        """

    def submit(self, data: bytes, done: Done) -> None:
        """As ``propose``, for many at once: ``done`` gets the result or the RaftError. Raises NotLeader, Overloaded."""

    async def read(self, timeout_ms: float) -> None:
        """Return when the state machine shows all that was committed before the call: linearizable reads."""

    async def change(self, change: Change, timeout_ms: float) -> None:
        """Add, promote or remove a member; returns when the change is committed."""

    async def add(self, addr: str, timeout_ms: float) -> str:
        """Make the node that listens at ``addr`` a learner, which becomes a voter by itself. Returns its id."""

    async def transfer(self, to: str, timeout_ms: float) -> None:
        """Hand the leadership over to the voter ``to``; returns when this node is not the leader any more."""

    def on_leadership(self, observer: Callable[[bool], None]) -> None:
        """Call ``observer`` on the loop, with the new ``is_leader``, at each change of it."""


class StateMachine(Protocol):
    """What an application gives to a group: a state that only committed entries change, the same on each node.

    Called from the loop, one call after another. ``apply`` must not depend on time, chance or the node.
    """

    def apply(self, index: int, data: bytes) -> Any:
        """Apply an entry; its proposer on this node gets the result.

        An exception ends the node, as it would all nodes.
        """

    def snapshot(self) -> bytes:
        """The whole state. Called between two ``apply``."""

    def restore(self, data: bytes) -> None:
        """Replace the state by a ``snapshot``."""
