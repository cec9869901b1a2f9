"""Who is the lowest member of a set, as NameServers say that may differ, be silent, or have forgotten."""

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.members import Members

NAMESRVS = ("n1", "n2")
addrs = st.sets(st.integers(0, 3)).map(lambda ids: {broker_id: f"b{broker_id}" for broker_id in sorted(ids)})
answers = st.lists(st.tuples(st.sampled_from(NAMESRVS), st.none() | addrs), max_size=20)


def told(broker_id: int, *says: Mapping[int, str] | None) -> Members:
    members = Members(broker_id)
    for number, each in enumerate(says):
        members.reported(f"n{number}", each)
    return members


def test_a_slave_acts_while_no_lower_id_lives() -> None:
    members = told(1, {0: "m", 1: "s1", 2: "s2"})
    assert (members.is_acting, members.master_addr) == (False, "m")
    members.reported("n0", {1: "s1", 2: "s2"})
    assert (members.is_acting, members.master_addr) == (True, None)
    members.reported("n0", {0: "m", 1: "s1"})
    assert (members.is_acting, members.master_addr) == (False, "m")


def test_the_second_slave_acts_when_the_first_is_gone_too() -> None:
    members = told(2, {1: "s1", 2: "s2"})
    assert not members.is_acting
    members.reported("n0", {2: "s2"})
    assert members.is_acting


def test_one_nameserver_that_sees_the_master_is_enough() -> None:
    assert not told(1, {1: "s1"}, {0: "m", 1: "s1"}).is_acting


def test_a_nameserver_that_forgot_this_slave_or_is_silent_has_no_say() -> None:
    for says in ({}, None, {0: "m"}):
        assert not told(1, says).is_acting
        assert told(1, says, {1: "s1"}).is_acting


def test_when_all_are_silent_nothing_changes() -> None:
    acting, idle = told(1, {1: "s1"}), told(1, {0: "m", 1: "s1"})
    for members in (acting, idle):
        members.reported("n0", None)
    assert (acting.is_acting, idle.is_acting, idle.master_addr) == (True, False, "m")


def test_a_master_is_the_lowest_once_it_is_online_and_never_acts() -> None:
    members = Members(0)
    assert not members.is_lowest
    members.came_online()
    assert (members.is_lowest, members.is_acting) == (True, False)


@given(st.integers(1, 3), answers)
def test_a_slave_acts_exactly_when_it_knows_of_no_lower_id(
    broker_id: int, says: list[tuple[str, dict[int, str]]]
) -> None:
    members = Members(broker_id)
    seen: list[tuple[bool, str | None]] = []
    members.on_change.append(lambda: seen.append((members.is_acting, members.master_addr)))
    views: dict[str, dict[int, str]] = {}
    expected, terms = False, 0
    for by, addrs in says:
        members.reported(by, addrs)
        views.pop(by, None)
        if addrs is not None and broker_id in addrs:
            views[by] = addrs
        if views:
            known = set().union(*views.values())
            terms += min(known) == broker_id and not expected
            expected = min(known) == broker_id
            assert (members.master_addr is not None) == (0 in known)
        assert members.is_acting is expected
        assert members.terms == terms
    assert all(before != after for before, after in pairwise(seen))
    assert not seen or seen[-1] == (members.is_acting, members.master_addr)
