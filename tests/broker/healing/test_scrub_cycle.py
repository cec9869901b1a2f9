"""A cycle checks each block once, whatever becomes of the log meanwhile; its rate ends it in time."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.healing.scrub_cycle import DAY_S, LEAST_BYTES_PER_S, Cycle, Pace, cycle_rate
from skylark.broker.store.sums.block_sums import BLOCK_BYTES, BlockSums

FILE_BYTES = 4 * BLOCK_BYTES + 100


@given(
    st.integers(0, 5),
    st.integers(1, 6),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), max_size=20),
)
def test_a_cycle_checks_each_block_that_is_there_all_the_time_once(
    first_file: int, files: int, begin: int, changes: list[tuple[int, int]]
) -> None:
    """Files are removed from the front, the log grows and is cut."""
    sums = BlockSums(FILE_BYTES)
    start, end = first_file * FILE_BYTES, (first_file + files) * FILE_BYTES
    cycle = Cycle.begun(start + begin % files * FILE_BYTES, end, 0)
    lowest_end, highest_start = end, start
    seen: list[int] = []
    moves = iter(changes)
    for _ in range(1_000):
        removed, grown = next(moves, (0, 0))
        end = max(end + grown * FILE_BYTES, 0)
        start = min(start + removed * FILE_BYTES, max(end - FILE_BYTES, 0))
        lowest_end, highest_start = min(lowest_end, end), max(highest_start, start)
        cycle = cycle.within(start, end)
        assert 0 <= cycle.percent(start) <= 100
        if cycle.is_done:
            break
        assert start <= cycle.at < cycle.limit <= end
        block = sums.block_at(cycle.at)
        seen.append(block.start)
        cycle = cycle.after(block.end)
    else:
        raise AssertionError("the cycle does not end")
    assert cycle.percent(start) == 100 and cycle.left_bytes(start) == 0
    # A file that was cut off and came again is another file.
    must = {block.start for block in sums.blocks(highest_start, lowest_end)}
    assert must <= set(seen)
    assert len(seen) == len(set(seen))


def test_percent_tells_how_much_is_checked() -> None:
    cycle = Cycle.begun(300, 400, 0)
    assert cycle.percent(0) == 0
    assert cycle.after(350).percent(0) == 12
    assert cycle.after(400).within(0, 400).percent(0) == 25
    assert cycle.after(400).within(0, 400).after(299).percent(0) == 99


@given(st.integers(0, 1 << 50), st.integers(1, 365))
def test_the_rate_ends_a_cycle_in_time(total: int, days: int) -> None:
    rate = cycle_rate(total, days)
    assert rate >= LEAST_BYTES_PER_S and total / rate <= days * DAY_S


def test_ten_terabytes_in_two_weeks_are_some_nine_megabytes_a_second() -> None:
    assert 8.2e6 < cycle_rate(10 * 10**12, 14) < 9.2e6


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 10_000)), min_size=1, max_size=50), st.integers(100, 10_000))
def test_the_pace_is_kept_and_time_that_was_lost_is_caught_up_only_a_little(
    steps: list[tuple[float, int]], rate: int
) -> None:
    pace, now, spent, began = Pace(), 0.0, 0, 0.0
    assert pace.wait_s(0.0) == 0.0
    for late_s, size in steps:
        now += late_s + pace.wait_s(now)
        # All that was spent before this step fits into the time since the beginning, and two seconds.
        assert spent <= rate * (now - began + 2.0) * 1.000001
        pace.spend(size, rate, now)
        spent += size
