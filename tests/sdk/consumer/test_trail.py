"""What tells a reader that its queue is another one."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.broker_api import PullAnswer
from skylark.sdk.consumer.given import GivenOffsets
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.position import Position
from tests.sdk.fakes import queue, record

FOUND, MOVED, EMPTY = ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND
AGAIN = "the topic was deleted and made again"
PAST = "the queue begins anew, and ends before that offset"
BACK = "the queue begins anew in the broker's log"
RECORD = record("t", 0, 0, b"x")


def found(
    offset: int, count: int = 1, *, place: int = 0, created_ms: int | None = None, broker_id: int = 0
) -> PullAnswer:
    data = RECORD[:28] + place.to_bytes(8) + RECORD[36:] + RECORD * (count - 1)
    return PullAnswer(FOUND, data, offset + count, 0, 99, 0, broker_id, created_ms=created_ms)


def moved(next_offset: int, low: int, high: int, created_ms: int | None = None) -> PullAnswer:
    return PullAnswer(MOVED, b"", next_offset, low, high, 0, created_ms=created_ms)


stamps = st.sampled_from([None, 1_000, 2_000])


@given(st.lists(stamps))
def test_a_stamp_tells_only_against_another_stamp(seen: list[int | None]) -> None:
    trail, known = Trail(), None
    for number, stamp in enumerate(seen):
        changed = trail.change(found(number, place=number * 1_000, created_ms=stamp), number)
        assert changed == (AGAIN if stamp is not None and known not in (None, stamp) else "")
        known = known if stamp is None else stamp
        assert trail.created_ms == known


def test_a_slave_with_an_older_stamp_is_outdated_and_a_newer_one_is_believed() -> None:
    trail = Trail(2_000)
    assert trail.is_outdated(found(0, created_ms=1_000, broker_id=1))
    # The master knows best, and a slave cannot have made the topic itself.
    assert not trail.is_outdated(found(0, created_ms=1_000))
    assert not trail.is_outdated(found(0, created_ms=3_000, broker_id=1))
    assert not trail.is_outdated(found(0, broker_id=1))


def test_an_offset_past_the_end_tells_when_the_queue_had_it_once() -> None:
    assert Trail(has_been_there=True).change(moved(5, 0, 5), 20) == PAST
    assert Trail(has_been_there=True).change(moved(0, 0, 0), 20) == PAST
    # A caller may ask for any offset.
    trail = Trail()
    assert trail.change(moved(5, 0, 5), 20) == ""
    assert trail.change(PullAnswer(EMPTY, b"", 5, 0, 5, 0), 5) == ""
    assert trail.change(moved(3, 0, 3), 5) == PAST
    # An old queue has lost its end. An administrator has moved the group. The topic is known to be the same.
    assert Trail(has_been_there=True).change(moved(5, 3, 5), 20) == ""
    assert Trail(has_been_there=True).change(moved(2, 0, 5), 20) == ""
    assert Trail(1_000, has_been_there=True).change(moved(5, 0, 5, 1_000), 20) == ""


def test_places_that_go_back_tell() -> None:
    trail = Trail()
    assert trail.change(found(0, 3, place=5_000), 0) == ""
    end = 5_000 + 3 * len(RECORD)
    assert trail.copy().change(found(3, place=end), 3) == ""
    assert trail.copy().change(found(3, place=end - 1), 3) == BACK
    # A reader that goes back finds earlier places, of course.
    assert trail.copy().change(found(1, place=100), 1) == ""
    # With a known stamp they tell nothing.
    stamped = Trail()
    assert stamped.change(found(0, place=5_000, created_ms=7), 0) == ""
    assert stamped.change(found(1, place=100, created_ms=7), 1) == ""


def test_places_that_go_back_at_the_same_offset_again_do_not_stop_a_reader() -> None:
    """As in a log that a broker compacts."""
    trail = Trail()
    for expected in (BACK, "", ""):
        assert trail.change(found(0, place=5_000), 0) == ""
        assert trail.change(found(1, place=100), 1) == expected
    assert trail.change(found(5, place=7_000), 5) == ""
    assert trail.change(found(6, place=100), 6) == BACK


def test_logical_queues_move_between_brokers() -> None:
    trail = Trail(1_000, has_been_there=True)
    answer = PullAnswer(MOVED, b"", 0, 0, 5, 0, offset_delta=0, created_ms=2_000)
    assert (trail.change(answer, 20), trail.created_ms) == ("", 1_000)


def test_an_offset_that_is_given_back_is_one_of_the_topic_that_was_read_last() -> None:
    offsets, mq = GivenOffsets(), queue()
    assert offsets.position(mq, 5) == Position(5)
    assert offsets.note_asked(mq, Position(7, 1_000)) == 7
    assert offsets.position(mq, 7) == Position(7, 1_000)
    offsets.note_read(mq, 1_000)
    # To ask for an end is not to read up to it.
    offsets.note_asked(mq, Position(50, 2_000))
    assert offsets.position(mq, 7) == Position(7, 1_000)
    offsets.note_read(mq, None)
    offsets.note_read(mq, 2_000)
    assert offsets.position(mq, 7) == Position(7, 2_000)
