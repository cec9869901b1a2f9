"""What may be saved: only what is delivered and on disk."""

from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.delay.delayed_delivery import MAX_ROWS, LevelProgress


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5))), st.integers(0, 9))
def test_an_offset_is_safe_when_the_log_is_on_disk_past_its_copies(steps: list[tuple[bool, int]], first: int) -> None:
    progress, end, reached, ends = LevelProgress(first), 0, 0, {first: 0}
    for delivers, count in steps:
        if delivers:
            end += count
            progress.delivered(progress.next_offset + count, end)
            ends[progress.next_offset] = end
        else:
            reached = min(reached + count, end)
            safe = progress.flushed(reached)
            assert safe == max(offset for offset, its_end in ends.items() if its_end <= reached)
    assert progress.flushed(end) == progress.next_offset
    assert progress.is_saved


def test_what_waits_is_bounded_and_the_last_offset_counts() -> None:
    progress = LevelProgress(0)
    for number in range(1, 3 * MAX_ROWS):
        progress.delivered(number, number * 10)
    assert len(progress._rows) == MAX_ROWS
    assert progress.flushed(10 * MAX_ROWS) < 3 * MAX_ROWS
    assert progress.flushed(30 * MAX_ROWS) == 3 * MAX_ROWS - 1
