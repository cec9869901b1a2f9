import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.protocol.logical_queues import (
    LogicalQueue,
    check_follows,
    check_stretches,
    led_by,
    logical_broker_name,
    logical_queues,
    own_end,
    to_logical,
    to_own,
)
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem as Stretch
from skylark.remoting.protocol.requests.topics import TopicQueueMappingDetail


def stretch(gen: int, logic: int, broker: str = "a", queue_id: int = 0, **more: int) -> Stretch:
    return Stretch(gen, queue_id, broker, logic, **more)


MOVED = (stretch(0, 0), stretch(1, 10_000, "b"), stretch(2, 30_000, "a", 1))
MOVING = (*MOVED, stretch(3, -1, "c"))


def test_broker_names_of_logical_queues() -> None:
    assert logical_broker_name("__global__") == "__syslo__global__"
    assert logical_broker_name("cluster-a") == "__syslo__cluster-a"


@pytest.mark.parametrize("stretches", [MOVED, MOVING])
def test_an_offset_is_in_the_last_stretch_that_begins_at_it_or_before(stretches: tuple[Stretch, ...]) -> None:
    queue = LogicalQueue(0, stretches)
    found = {offset: queue.at(offset) for offset in (0, 9_999, 10_000, 29_999, 30_000, 1 << 60)}
    assert [one.gen for one in found.values() if one is not None] == [0, 0, 1, 1, 2, 2]
    assert queue.after(MOVED[0]) is MOVED[1]
    assert queue.after(MOVED[2]) is None


def test_a_stretch_that_is_not_decided_is_only_written() -> None:
    queue = LogicalQueue(0, MOVING)
    assert queue.leader is MOVING[-1]
    assert list(queue.decided) == list(MOVED)
    assert LogicalQueue(0, MOVING[-1:]).at(5) is None


def test_what_has_expired_is_before_the_first_stretch() -> None:
    queue = LogicalQueue(0, MOVED[1:])
    first = queue.at(3)
    assert first is MOVED[1]
    assert to_own(first, 3) < 0


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_offsets_come_back(logic: int, start: int, more: int) -> None:
    one = stretch(0, logic, start_offset=start)
    assert to_own(one, to_logical(one, start + more)) == start + more
    assert to_logical(one, 0) == logic


def test_the_end_of_a_stretch_is_its_own_or_that_of_the_queue() -> None:
    assert own_end(stretch(0, 0), 12) == 12
    assert own_end(stretch(0, 0, end_offset=10), 12) == 10
    assert own_end(stretch(0, 0, end_offset=0), 12) == 0


@pytest.mark.parametrize("stretches", [MOVED, MOVING, MOVED[1:], (stretch(0, 0, end_offset=9_999), MOVED[1])])
def test_stretches_that_can_be(stretches: tuple[Stretch, ...]) -> None:
    check_stretches(stretches)


@pytest.mark.parametrize(
    "stretches",
    [
        (stretch(-1, 0),), (stretch(0, 0, queue_id=-1),), (stretch(0, 0, start_offset=-1),), (stretch(0, -2),),
        (stretch(0, -1), stretch(1, 5)), (stretch(1, 0), stretch(1, 5)), (stretch(0, 5), stretch(1, 5)),
        (stretch(0, 0, end_offset=10), stretch(1, 10)), (stretch(0, 0, start_offset=5, end_offset=4),),
    ],
)  # fmt: skip
def test_stretches_that_cannot_be(stretches: tuple[Stretch, ...]) -> None:
    with pytest.raises(ValueError):
        check_stretches(stretches)


def test_what_is_decided_stays() -> None:
    decided = (*MOVED, stretch(3, 50_000, "c"))
    check_follows((), MOVED, same_epoch=False)
    check_follows(MOVED, MOVING, same_epoch=False)
    check_follows(MOVING, decided, same_epoch=True)
    check_follows(decided, decided[2:], same_epoch=True)  # what has expired is gone
    check_follows(decided[2:], decided, same_epoch=True)
    for known, new, same_epoch in (
        (MOVED, (), False),
        (MOVED, MOVING, True),
        (decided, MOVING, True),
        (MOVED, (*MOVED[:2], stretch(2, 30_000, "b", 1)), False),
        (MOVED, (*MOVED[:2], stretch(2, 30_001, "a", 1)), False),
        (MOVED, (*MOVED[:2], stretch(2, 30_000, "a", 2)), False),
    ):
        with pytest.raises(ValueError):
            check_follows(known, new, same_epoch=same_epoch)


def test_brokers_lead_what_their_last_stretches_say() -> None:
    a = TopicQueueMappingDetail("t", bname="a", epoch=1, hosted_queues={1: list(MOVED), 0: list(MOVED[:2]), 2: []})
    b = TopicQueueMappingDetail("t", bname="b", epoch=1, hosted_queues={0: list(MOVED[:2])})
    assert led_by(a) == {1: 1}
    assert led_by(b) == {0: 0}
    assert {number: queue.leader.bname for number, queue in logical_queues([a, b]).items()} == {0: "b", 1: "a"}
    # A command was killed between two brokers: both lead a queue for a while.
    newer = TopicQueueMappingDetail("t", bname="c", epoch=2, hosted_queues={1: list(MOVING)})
    assert logical_queues([newer, a])[1].leader.bname == "c"
