"""Who is alive: compared with a list of all that was heard."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.namesrv.controller.commands import Candidate
from skylark.namesrv.controller.liveness import Liveness, LiveReplica
from skylark.namesrv.controller.replicas import elect

IDS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hear"), IDS, st.sampled_from("ab"), st.sampled_from([100, 300])),
        st.tuples(st.just("close"), IDS, st.sampled_from("ab"), st.just(0)),
        st.tuples(st.just("forget"), IDS, st.just("a"), st.just(0)),
        st.tuples(st.just("sleep"), st.integers(1, 200), st.just("a"), st.just(0)),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_broker_is_alive_until_it_was_silent_for_its_timeout(steps: list[tuple[str, int, str, int]]) -> None:
    liveness = Liveness[str]()
    heard: dict[int, tuple[int, int, str]] = {}
    now_ms = 0
    for kind, number, connection, timeout_ms in steps:
        key = ("b", number)
        if kind == "hear":
            is_new = liveness.hear(LiveReplica(key, connection, now_ms, timeout_ms, Candidate(number)))
            assert is_new == (number not in heard)
            heard[number] = (now_ms, timeout_ms, connection)
        elif kind == "close":
            for _, broker_id in liveness.closed(connection):
                assert heard[broker_id][2] == connection
        elif kind == "forget":
            liveness.forget(key)
            heard.pop(number, None)
        else:
            now_ms += number
            silent = {each for each, (at_ms, limit_ms, _) in heard.items() if now_ms - at_ms > limit_ms}
            assert {broker_id for _, broker_id in liveness.pop_silent(now_ms)} == silent
            heard = {each: row for each, row in heard.items() if each not in silent}
        assert {row.key[1] for row in liveness.alive("b", [1, 2, 3])} == set(heard)


CANDIDATES = st.lists(
    st.builds(Candidate, st.integers(1, 5), st.integers(-1, 2), st.integers(0, 9), st.integers(0, 2)),
    unique_by=lambda each: each.broker_id,
)


@given(CANDIDATES, st.frozensets(st.integers(1, 5)), st.none() | st.integers(1, 5), st.none() | st.integers(1, 5))
def test_who_is_elected(
    candidates: list[Candidate], in_sync: frozenset[int], old: int | None, designated: int | None
) -> None:
    found = elect(candidates, in_sync, old, designated, unclean=False)
    by_id = {each.broker_id: each for each in candidates}
    able = in_sync & by_id.keys()
    if designated is not None:
        assert found == (designated if designated in able else None)
    elif old in able:
        assert found == old
    elif able:
        assert found is not None
        best, most = by_id[found], max((by_id[each].epoch, by_id[each].max_offset) for each in able)
        assert (best.epoch, best.max_offset) == most
        assert best.priority == min(
            by_id[each].priority for each in able if (by_id[each].epoch, by_id[each].max_offset) == most
        )
    else:
        assert found is None
    # An unclean election has the same result wherever a clean one has any.
    unclean = elect(candidates, in_sync, old, designated, unclean=True)
    assert unclean == found if found is not None else (unclean is None or unclean in by_id.keys() - able)


def test_brokers_of_one_connection_are_known_by_it_until_each_has_gone() -> None:
    liveness = Liveness[str]()
    for number in (1, 2):
        liveness.hear(LiveReplica(("b", number), "shared", 0, 100, Candidate(number)))
    liveness.forget(("b", 1))
    assert liveness.closed("shared") == [("b", 2)] and liveness.closed("shared") == []
