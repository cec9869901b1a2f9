"""Who may connect to the HA port when many do."""

from hypothesis import given
from hypothesis import strategies as st

from broker.replication.admission import (
    MAX_FOLLOWERS,
    MAX_FOLLOWERS_OF_A_NETWORK,
    MAX_KNOWN_NETWORKS,
    MAX_STRANGERS,
    MAX_STRANGERS_OF_A_NETWORK,
    Admission,
)


def test_silent_strangers_of_one_address_keep_no_slave_of_the_same_address_out() -> None:
    door: Admission[int] = Admission()
    victims = [door.arrived(number, "a") for number in range(100)]
    assert victims == [None] * MAX_STRANGERS_OF_A_NETWORK + list(range(100 - MAX_STRANGERS_OF_A_NETWORK))
    assert door.arrived(1000, "a") is not None
    assert door.follows(1000, said_hello=True) == (True, None)


def test_of_many_strangers_those_go_first_that_come_from_where_no_slave_came_from() -> None:
    door: Admission[int] = Admission()
    door.arrived(0, "slave")
    assert door.follows(0, said_hello=True) == (True, None)
    door.gone(0)
    door.arrived(1, "slave")
    for number in range(2, MAX_STRANGERS + 1):
        assert door.arrived(number, f"other{number}") is None
    assert [door.arrived(number, f"other{number}") for number in range(200, 210)] == list(range(2, 12))
    assert door.follows(1, said_hello=True) == (True, None)


def test_a_slave_with_a_hello_takes_the_place_of_a_plain_peer() -> None:
    door: Admission[int] = Admission()
    for number in range(MAX_FOLLOWERS):
        door.arrived(number, f"other{number}")
        assert door.follows(number, said_hello=number % 2 == 0) == (True, None)
    door.arrived(500, "plain")
    assert door.follows(500, said_hello=False) == (False, None)
    door.arrived(501, "slave")
    assert door.follows(501, said_hello=True) == (True, 1)


def test_an_address_has_so_many_followers() -> None:
    door: Admission[int] = Admission()
    for number in range(MAX_FOLLOWERS_OF_A_NETWORK):
        door.arrived(number, "a")
        assert door.follows(number, said_hello=True) == (True, None)
    door.arrived(500, "a")
    assert door.follows(500, said_hello=True) == (False, None)
    door.arrived(501, "b")
    assert door.follows(501, said_hello=True) == (True, None)


def test_one_that_had_to_go_does_not_follow() -> None:
    door: Admission[int] = Admission()
    for number in range(MAX_STRANGERS_OF_A_NETWORK + 1):
        door.arrived(number, "a")
    assert door.follows(0, said_hello=True) == (False, None)


addresses = st.sampled_from([f"10.0.0.{number}" for number in range(8)])
steps = st.one_of(
    st.tuples(st.just("arrives"), addresses),
    st.tuples(st.just("follows"), st.booleans()),
    st.tuples(st.just("goes"), st.integers(0, 200)),
)


@given(st.lists(steps, max_size=400))
def test_there_are_never_too_many_and_a_slave_that_is_quick_gets_in(
    history: list[tuple[str, str | bool | int]],
) -> None:
    door: Admission[int] = Admission()
    strangers: dict[int, str] = {}
    followers: dict[int, tuple[str, bool]] = {}
    last = -1
    for number, (what, value) in enumerate(history):
        if what == "arrives":
            last = number
            if (victim := door.arrived(number, str(value))) is not None:
                del strangers[victim]
            strangers[number] = str(value)
        elif what == "follows" and last in strangers:
            ip = strangers.pop(last)
            admitted, victim = door.follows(last, said_hello=bool(value))
            if victim is not None:
                assert value and not followers.pop(victim)[1]
            if admitted:
                followers[last] = ip, bool(value)
            else:
                here = [said for its_ip, said in followers.values() if its_ip == ip]
                assert len(here) == MAX_FOLLOWERS_OF_A_NETWORK or len(followers) == MAX_FOLLOWERS
        elif what == "goes":
            door.gone(int(value))
            strangers.pop(int(value), None)
            followers.pop(int(value), None)
        assert len(strangers) <= MAX_STRANGERS and len(followers) <= MAX_FOLLOWERS
        for ip in {*strangers.values()}:
            assert list(strangers.values()).count(ip) <= MAX_STRANGERS_OF_A_NETWORK
        for ip in {its_ip for its_ip, _ in followers.values()}:
            assert sum(its_ip == ip for its_ip, _ in followers.values()) <= MAX_FOLLOWERS_OF_A_NETWORK


def test_no_more_than_so_many_addresses_are_remembered() -> None:
    door: Admission[int] = Admission()
    for number in range(MAX_KNOWN_NETWORKS + 5):
        door.arrived(number, f"slave{number}")
        assert door.follows(number, said_hello=True) == (True, None)
        door.gone(number)
    assert len(door._known) == MAX_KNOWN_NETWORKS
