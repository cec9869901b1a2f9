"""How a node begins: a new group once, with all of its nodes; after that an empty disk is a lost disk."""

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.raft.errors import ChangeRefused
from skylark.mqcommon.raft.membership import AddLearner, Change, Members, Promote, Remove
from skylark.remoting.raft.bootstrap import Bootstrap, PeerStatus, how_to_bootstrap, may_stand, name_of, next_step
from skylark.remoting.raft.group import NodeOptions

OTHERS = ("n1", "n2")
NEW, BEGUN, OLD = PeerStatus(False, 0), PeerStatus(True, 0), PeerStatus(True, 3)


@pytest.mark.parametrize(
    ("seen", "how"),
    [
        ({}, Bootstrap.WAIT),
        ({"n1": NEW}, Bootstrap.WAIT),
        ({"n1": NEW, "n2": NEW}, Bootstrap.BEGIN),
        ({"n1": BEGUN, "n2": NEW}, Bootstrap.BEGIN),
        ({"n1": OLD}, Bootstrap.JOIN),
        ({"n1": NEW, "n2": OLD}, Bootstrap.JOIN),
    ],
)
def test_an_empty_disk(seen: dict[str, PeerStatus], how: Bootstrap) -> None:
    assert how_to_bootstrap(OTHERS, seen) is how


def test_a_group_of_one_begins_at_once() -> None:
    assert how_to_bootstrap((), {}) is Bootstrap.BEGIN
    assert may_stand((), {})


@pytest.mark.parametrize(
    ("seen", "may"),
    [
        ({"n1": BEGUN}, False),
        ({"n1": BEGUN, "n2": NEW}, False),
        ({"n1": BEGUN, "n2": BEGUN}, True),
        ({"n1": OLD}, True),
    ],
)
def test_nobody_stands_while_another_could_still_begin(seen: dict[str, PeerStatus], may: bool) -> None:
    assert may_stand(OTHERS, seen) is may


def test_a_node_that_lost_its_disk_takes_the_place_of_its_old_id() -> None:
    members = Members({"n0": "a", "n1": "b", "n2": "c"})
    steps: list[Change | None] = []
    while True:
        step = next_step(members, ("n0", "n1", "n2"), "n1.f00", "b", 0)
        steps.append(step)
        if step is None:
            break
        match step:
            case AddLearner():
                members = Members(members.voters, {"n1.f00": "b"})
            case Remove():
                members = Members({"n0": "a", "n2": "c"}, members.learners)
            case Promote():
                members = Members({**members.voters, "n1.f00": "b"})
    assert steps == [AddLearner("n1.f00", "b"), Remove("n1"), Promote("n1.f00"), None]


@pytest.mark.parametrize("lag", [None, 101])
def test_a_learner_is_promoted_only_when_it_has_caught_up(lag: int | None) -> None:
    with pytest.raises(ChangeRefused, match="caught up"):
        next_step(Members({"n0": "a"}, {"n1.f00": "b"}), ("n0", "n1"), "n1.f00", "b", lag)


def test_a_stranger_is_refused_until_an_administrator_adds_it() -> None:
    with pytest.raises(ChangeRefused, match="controllerMembers"):
        next_step(Members({"n0": "a"}), ("n0",), "x.f00", "b", 0)
    assert next_step(Members({"n0": "a"}, {"x.f00": "b"}), ("n0",), "x.f00", "b", 0) == Promote("x.f00")


def test_names() -> None:
    assert (name_of("n1"), name_of("n1.f00")) == ("n1", "n1")
    with pytest.raises(ConfigError, match="no dot"):
        NodeOptions("g", "n.0", {"n.0": "a:1"})
    with pytest.raises(ConfigError, match="not among"):
        NodeOptions("g", "n9", {"n0": "a:1"})
