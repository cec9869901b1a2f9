"""How a node begins, and under which id. Pure.

A node with an empty disk is either new or has lost its disk; it cannot know which. In a group that never elected a
leader all nodes are new: they begin together, each with its name as its id, and no node stands for election before all
others have written their ids to disk. So after the first election, a node with an empty disk has lost its disk. Under
its old id it may have voted, and a majority for an entry may have counted it; so it must not speak for its old id any
more. It takes a new id and joins as a learner; when it has caught up it becomes a voter, and its old id is removed.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.errors import ChangeRefused
from skylark.mqcommon.raft.membership import AddLearner, Change, Members, Promote, Remove

# A learner that lacks more entries than this is not made a voter yet.
PROMOTION_LAG = 100


@lazy_dataclass(frozen=True, slots=True)
class PeerStatus:
    """What another node has reported: its term, and whether it keeps its votes on disk already (``begun``)."""

    begun: bool
    term: int


class Bootstrap(Enum):
    WAIT = 1
    BEGIN = 2
    JOIN = 3


def how_to_bootstrap(others: Collection[str], seen: Mapping[str, PeerStatus]) -> Bootstrap:
    """What a node with an empty disk must do; ``seen``: the answers of ``others``."""
    if any(each.term > 0 for each in seen.values()):
        return Bootstrap.JOIN
    return Bootstrap.BEGIN if all(name in seen for name in others) else Bootstrap.WAIT


def may_stand(others: Collection[str], seen: Mapping[str, PeerStatus]) -> bool:
    """Whether a node that has begun may take part in elections: only when no other node can begin later than it did."""
    return any(each.term > 0 for each in seen.values()) or all(name in seen and seen[name].begun for name in others)


def name_of(node: str) -> str:
    """The name in the conf of the node with this id."""
    return node.partition(".")[0]


def next_step(members: Members, known: Collection[str], node: str, addr: str, lag: int | None) -> Change | None:
    """What the leader does next for a node that wants to be a voter; None when the node is a voter.

    ``known``: names in the leader's conf. ``lag``: how many entries the node lacks.
    """
    name = name_of(node)
    earlier = [each for each in members.all if each != node and name_of(each) == name]
    if node in members.voters:
        return Remove(earlier[0]) if earlier else None
    if node not in members.learners:
        if not earlier and name not in known:
            raise ChangeRefused(
                f"{name} is not in the conf of the leader: add it by mqadmin controllerMembers or dledgerMembers first"
            )
        return AddLearner(node, addr)
    if lag is None or lag > PROMOTION_LAG:
        raise ChangeRefused(f"{node} has not caught up yet; try again")
    # The old id goes first: until then it counts in each majority, and can never answer.
    return Remove(earlier[0]) if earlier else Promote(node)
