"""Plans for static topics: from any state, also a state left by killed commands, they reach the goal; keys stay."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import UserError
from skylark.remoting.protocol.logical_queues import check_follows, check_stretches
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem as Stretch
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicQueueMappingDetail
from skylark.sdk.admin.remapping import (
    BLOCK,
    Part,
    State,
    begun,
    block_after,
    changed_parts,
    check,
    decided,
    given_away,
    grown,
    led,
    levelled,
    moves,
)

NAMES = ("a", "b", "c", "d")
NEW = State("t", {}, NAMES)


def is_level(state: State) -> bool:
    """Whether all brokers have the same number of logical queues and the same epoch."""
    marks = {(part.mapping.total_queues, part.mapping.epoch) for part in state.parts.values()}
    return len(marks) <= 1 and set(state.brokers) <= set(state.parts)


class Cluster:
    """Brokers that take parts one by one, as real ones do, and may miss some of them: the command was killed."""

    def __init__(self) -> None:
        self.state = NEW
        self.lengths: dict[tuple[str, int], int] = {}
        self.now_ms = 1_000_000

    def put(self, changed: Mapping[str, Part], most: int = 99) -> bool:
        """Whether all of ``changed`` were put."""
        for name, part in list(changed.items())[:most]:
            known = self.state.parts.get(name)
            hosted = dict(part.mapping.hosted_queues)
            if known is not None:
                assert part.mapping.epoch >= known.mapping.epoch
                same = part.mapping.epoch == known.mapping.epoch
                assert not same or known.mapping.hosted_queues.keys() <= hosted.keys()
                for number, stretches in known.mapping.hosted_queues.items():
                    if number in hosted:
                        check_follows(stretches, hosted[number], same_epoch=same)
                    hosted.setdefault(number, stretches)
            for stretches in hosted.values():
                check_stretches(stretches)
            mapping = replace(part.mapping, hosted_queues=hosted)
            self.state = self.state.with_part(name, replace(part, mapping=mapping))
        return len(changed) <= most

    def run(self, targets: tuple[str, ...], kills: list[int]) -> None:
        """remappingStaticTopic, killed after each of ``kills`` puts, and run again."""
        for kill in [*kills, 99]:
            self.now_ms += 10
            steps = self._steps(targets)
            if all(self.put(step(), kill) for step in steps):
                return

    def _steps(self, targets: tuple[str, ...]):  # type: ignore[no-untyped-def]
        def finish_away():  # type: ignore[no-untyped-def]
            return changed_parts(self.state, given_away(self.state))

        def finish_decide():  # type: ignore[no-untyped-def]
            ends = {
                queue.queue_id: self.lengths.get((queue.stretches[-2].bname, queue.stretches[-2].queue_id), 0)
                for queue in self.state.undecided
            }
            return changed_parts(self.state, decided(self.state, ends))

        def begin():  # type: ignore[no-untyped-def]
            return changed_parts(self.state, begun(self.state, moves(self.state, targets), self.now_ms))

        def level():  # type: ignore[no-untyped-def]
            after = levelled(self.state, self.state.total, self.state.epoch)
            return changed_parts(self.state, after)

        return [finish_away, finish_decide, begin, finish_away, finish_decide, level]


def made(state: State, targets: tuple[str, ...], total: int, now_ms: int) -> State:
    """updateStaticTopic."""
    led = grown(state, targets, total, now_ms)
    return levelled(led, total, led.epoch)


def test_a_new_topic_is_spread_evenly() -> None:
    state = made(NEW, ("a", "b", "c"), 8, 5_000)
    check(state)
    assert led(state.parts.values()) == {"a": 3, "b": 3, "c": 2}
    assert is_level(state)
    assert state.parts["d"].config == TopicConfig("t", 0, 0)  # so that no send creates the topic there
    assert {part.mapping.epoch for part in state.parts.values()} == {5_000}
    assert [queue.leader.queue_id for queue in state.queues.values()] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_more_queues_leave_the_others_where_they_are() -> None:
    before = made(NEW, ("a",), 4, 5_000)
    after = made(before, ("a", "b"), 6, 5_001)
    for number, queue in before.queues.items():
        assert after.queues[number] == queue
    assert led(after.parts.values()) == {"a": 4, "b": 2}
    assert {part.mapping.epoch for part in after.parts.values()} == {6_000}
    with pytest.raises(UserError, match="does not get fewer"):
        grown(after, ("a",), 5, 0)


def test_a_growth_that_was_killed_goes_on() -> None:
    after = grown(NEW, ("a", "b", "c"), 6, 5_000)
    half = State("t", {"b": after.parts["b"]}, NAMES)
    check(half)
    assert half.total == 0
    again = made(half, ("a", "b", "c"), 6, 5_001)
    check(again)
    assert again.queues[1] == after.queues[1]
    assert led(again.parts.values()) == {"a": 2, "b": 2, "c": 2}


def test_nothing_is_planned_while_a_leader_is_away() -> None:
    state = made(NEW, ("a", "b"), 3, 5_000)
    for away, headless in (("a", "0, 2"), ("b", "1")):
        parts = {name: part for name, part in state.parts.items() if name != away}
        with pytest.raises(UserError, match=f"leads logical queues {headless} of topic t: a broker is away"):
            check(State("t", parts, tuple(parts)))


def test_one_move() -> None:
    cluster = Cluster()
    cluster.put(made(NEW, ("a",), 2, 5_000).parts)
    cluster.lengths = {("a", 0): 12, ("a", 1): 7_000}
    cluster.run(("b",), [])
    queues = cluster.state.queues
    assert [
        [(one.bname, one.queue_id, one.logic_offset, one.end_offset) for one in queue.stretches]
        for queue in queues.values()
    ] == [[("a", 0, 0, 12), ("b", 0, BLOCK, -1)], [("a", 1, 0, 7_000), ("b", 1, 2 * BLOCK, -1)]]
    assert is_level(cluster.state)
    assert cluster.state.parts["b"].config.write_queue_nums == 2


def test_as_few_queues_as_possible_move() -> None:
    state = made(NEW, ("a", "b"), 8, 5_000)
    assert moves(state, ("a", "b")) == {}
    to_three = moves(state, ("a", "b", "c"))
    assert list(to_three.values()) == ["c", "c"]
    assert set(moves(state, ("a",)).values()) == {"a"}
    assert len(moves(state, ("a",))) == 4
    with pytest.raises(UserError):
        moves(state, ())


@given(st.data())
def test_any_row_of_changes_and_kills_ends_in_the_asked_shape(data: st.DataObject) -> None:
    cluster = Cluster()
    subsets = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted).map(tuple)
    total = 0
    for _ in range(data.draw(st.integers(1, 4))):
        targets = data.draw(subsets)
        kills = data.draw(st.lists(st.integers(0, 3), max_size=4))
        if not total or data.draw(st.booleans()):
            total = max(total, data.draw(st.integers(1, 9)))
            for kill in [*kills, 99]:
                cluster.now_ms += 10
                led_by_all = grown(cluster.state, targets, total, cluster.now_ms)
                if cluster.put(changed_parts(cluster.state, led_by_all), kill):
                    after = levelled(cluster.state, total, cluster.state.epoch)
                    cluster.put(changed_parts(cluster.state, after), kill)
                check(cluster.state)
        else:
            # Messages come between the steps.
            random = data.draw(st.randoms(use_true_random=False))
            for place in product(NAMES, range(9)):
                more = random.choice([0, 1, 4_999, 5_000, 25_000])
                cluster.lengths[place] = cluster.lengths.get(place, 0) + more
            cluster.run(targets, kills)
            counts = led(cluster.state.parts.values())
            assert set(counts) <= set(targets)
            assert max(counts.values()) - min((counts[name] for name in targets), default=0) <= 1
        check(cluster.state)
        assert is_level(cluster.state)
        assert sorted(cluster.state.queues) == list(range(total))
        assert cluster.state.undecided == []
        for queue in cluster.state.queues.values():
            for earlier, later in zip(queue.stretches, queue.stretches[1:], strict=False):
                # No message of the earlier stretch has a logical offset of the later one.
                length = cluster.lengths.get((earlier.bname, earlier.queue_id), 0)
                assert later.logic_offset > earlier.logic_offset + min(length, max(earlier.end_offset, 0))


@given(st.integers(0, 1 << 40))
def test_a_block_leaves_room(offset: int) -> None:
    after = block_after(offset)
    assert after % BLOCK == 0
    assert BLOCK // 2 < after - offset <= 2 * BLOCK


def test_what_no_command_makes_is_refused() -> None:
    state = made(NEW, ("a",), 2, 5_000)
    part = state.parts["a"]

    def changed(**fields: object) -> State:
        return state.with_part("a", replace(part, mapping=replace(part.mapping, **fields)))

    shared = {0: [Stretch(0, 0, "a")], 1: [Stretch(0, 0, "a")]}
    for bad in (
        changed(dirty=True), changed(bname="b"), changed(hosted_queues=shared),
        changed(hosted_queues={0: [Stretch(1, 0, "a"), Stretch(0, 1, "a", 5)]}),
    ):  # fmt: skip
        with pytest.raises(UserError):
            check(bad)


def test_details_are_those_of_rocketmq() -> None:
    part = made(NEW, ("a",), 1, 5_000).parts["a"]
    assert part.mapping == TopicQueueMappingDetail(
        "t", "__global__", 1, "a", 5_000, hosted_queues={0: [Stretch(0, 0, "a", 0, 0, -1, -1, -1)]}
    )
