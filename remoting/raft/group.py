"""What an application sees of its group. node.py has the group of real disks and networks."""

from collections.abc import Callable
from typing import Any, Protocol

from mqcommon.raft.membership import Change, Members
from remoting.raft.waiting import Done


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
        """Whether it leads, and knows all that former leaders committed. It may be deposed already: see ``read``."""

    @property
    def term(self) -> int: ...

    @property
    def members(self) -> Members: ...

    async def propose(self, data: bytes, timeout_ms: float) -> Any:
        """Commit ``data``; the result is what the state machine's ``apply`` returned for it here.

        Raises NotLeader or Overloaded (it was not taken), or Unknown (it may come into force yet).
        """

    def submit(self, data: bytes, done: Done) -> None:
        """As ``propose``, for many at once: ``done`` gets the result or the RaftError. Raises NotLeader, Overloaded."""

    async def read(self, timeout_ms: float) -> None:
        """Return when the state machine shows all that was committed before the call: linearizable reads."""

    async def change(self, change: Change, timeout_ms: float) -> None:
        """Add, promote or remove a member; returns when that is committed."""

    async def add(self, addr: str, timeout_ms: float) -> str:
        """Make the node that listens at ``addr`` a learner, which becomes a voter by itself. Returns its id."""

    async def transfer(self, to: str, timeout_ms: float) -> None:
        """Hand the leadership to the voter ``to``; returns when this node is not the leader any more."""

    def on_leadership(self, observer: Callable[[bool], None]) -> None:
        """``observer`` is called on the loop when ``is_leader`` changes."""
