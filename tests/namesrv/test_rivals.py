"""Two brokers that claim one place are remembered for a while."""

from namesrv.routes import CONTEST_MS, MAX_PLACES, Rivals


def test_the_last_one_that_lost_a_place_is_named_until_its_time_is_over() -> None:
    rivals = Rivals()
    rivals.note("b", 0, "one", 0)
    rivals.note("b", 0, "two", 10)
    rivals.note("a", 1, "three", 20)
    assert rivals.contested(CONTEST_MS) == {"a": {1: "three"}, "b": {0: "two"}}
    assert rivals.contested(CONTEST_MS + 11) == {"a": {1: "three"}}
    assert rivals.contested(CONTEST_MS + 21) == {}


def test_one_that_is_gone_claims_nothing() -> None:
    rivals = Rivals()
    rivals.note("a", 0, "one", 0)
    rivals.note("b", 0, "two", 0)
    rivals.gone("one")
    rivals.gone("never there")
    assert rivals.contested(0) == {"b": {0: "two"}}


def test_no_more_than_so_many_are_remembered() -> None:
    rivals = Rivals()
    for number in range(MAX_PLACES + 5):
        rivals.note("a", number, "one", 0)
    (places,) = rivals.contested(0).values()
    assert sorted(places) == list(range(5, MAX_PLACES + 5))
