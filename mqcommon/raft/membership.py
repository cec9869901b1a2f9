"""Who belongs to the group. Members change one at a time, so that the majorities before and after a change overlap."""

import json
from collections.abc import Mapping
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.errors import ChangeRefused


@lazy_dataclass(frozen=True, slots=True)
class Members:
    """Ids and addresses. Voters elect and commit; learners only receive.

    An id belongs to one disk: a node that lost its disk comes back with another id, since it forgot its votes.
    """

    voters: Mapping[str, str] = field(default_factory=dict)
    learners: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, node: object) -> bool:
        return node in self.voters or node in self.learners

    @property
    def all(self) -> dict[str, str]:
        return {**self.voters, **self.learners}

    def encode(self) -> bytes:
        return json.dumps({"voters": dict(self.voters), "learners": dict(self.learners)}, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Members":
        """The members in ``data``. Raises ValueError, KeyError or TypeError when `encode` did not make ``data``."""
        read = json.loads(data)
        return cls(dict(read["voters"]), dict(read["learners"]))


@lazy_dataclass(frozen=True, slots=True)
class AddLearner:
    node: str
    address: str


@lazy_dataclass(frozen=True, slots=True)
class Promote:
    """A learner becomes a voter."""

    node: str


@lazy_dataclass(frozen=True, slots=True)
class Remove:
    node: str


Change = AddLearner | Promote | Remove


def changed(members: Members, change: Change) -> Members:
    """The members after ``change``."""
    voters, learners = dict(members.voters), dict(members.learners)
    match change:
        case AddLearner(node=node, address=address):
            if node in voters:
                raise ChangeRefused(f"{node} is a voter already")
            learners[node] = address
        case Promote(node=node):
            if node not in learners:
                raise ChangeRefused(f"{node} is not a learner; learners: {', '.join(learners) or 'none'}")
            voters[node] = learners.pop(node)
        case Remove(node=node):
            if node not in members:
                raise ChangeRefused(f"{node} is not a member; members: {', '.join(members.all)}")
            if list(voters) == [node]:
                raise ChangeRefused(f"{node} is the only voter: add another one first")
            voters.pop(node, None)
            learners.pop(node, None)
    return Members(voters, learners)
