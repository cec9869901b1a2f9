"""Changes of the members of a group that make no sense are refused, with what there is."""

import pytest

from skylark.mqcommon.raft.errors import ChangeRefused
from skylark.mqcommon.raft.membership import AddLearner, Change, Members, Promote, Remove, changed


@pytest.mark.parametrize(
    ("members", "change", "text"),
    [
        (Members({"a": "1"}), AddLearner("a", "2"), "a is a voter already"),
        (Members({"a": "1"}), Promote("a"), "a is not a learner; learners: none"),
        (Members({"a": "1"}, {"b": "2", "c": "3"}), Promote("d"), "d is not a learner; learners: b, c"),
        (Members({"a": "1"}, {"b": "2"}), Remove("c"), "c is not a member; members: a, b"),
        (Members({"a": "1"}, {"b": "2"}), Remove("a"), "a is the only voter: add another one first"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(members: Members, change: Change, text: str) -> None:
    with pytest.raises(ChangeRefused, match=text):
        changed(members, change)


def test_members_come_and_go_one_at_a_time() -> None:
    members = Members({"a": "1"})
    for change, voters, learners in (
        (AddLearner("b", "2"), {"a": "1"}, {"b": "2"}),
        (AddLearner("b", "3"), {"a": "1"}, {"b": "3"}),
        (Promote("b"), {"a": "1", "b": "3"}, {}),
        (Remove("a"), {"b": "3"}, {}),
    ):
        members = changed(members, change)
        assert members == Members(voters, learners)
