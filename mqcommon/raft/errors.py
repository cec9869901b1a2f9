"""Why the group does not do what it is asked for."""

from skylark.mqcommon.errors import RaftError as RaftError


class NotLeader(RaftError):
    """This node does not lead, and only the leader does this.

    ``leader``: the id to ask; empty while there is no leader.
    """

    def __init__(self, leader: str) -> None:
        super().__init__(f"not the leader; ask {leader}" if leader else "there is no leader at the moment; try again")
        self.leader = leader


class Overloaded(RaftError):
    """Too much waits to be committed: try again later."""


class ChangeRefused(RaftError):
    """The membership cannot be changed like that, or not now."""


class Unknown(RaftError):
    """A proposal has no result in time, or its leader was deposed: the proposal may be committed, or not."""
