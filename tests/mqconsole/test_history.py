from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqconsole.watching.history import DAY_S, GAP_S, HOUR_S, SLOT_S, STEP_S, History, Run, Series

# In five minutes of the day there is at most one whole run, and at most one run that goes on into the next five
# minutes.
MOST_RUNS = HOUR_S // STEP_S + 2 * DAY_S // SLOT_S + 4

# Pauses between measurements, and values of which many are equal, as a lag of 0 is.
measurements = st.lists(
    st.tuples(
        st.integers(0, 60) | st.integers(60, 4_000) | st.just(2 * DAY_S),
        st.sampled_from((0.0, 0.0, 1.0, 7.0)) | st.floats(0, 1e9),
    ),
    max_size=120,
)


def noted(steps: list[tuple[int, float]], start_s: int = 1_000_000) -> tuple[Series, list[tuple[int, float]]]:
    """The series, and what it has taken: measurements that come too soon are left out."""
    series, now_s, taken = Series(), start_s, list[tuple[int, float]]()
    for pause_s, value in steps:
        now_s += pause_s
        if not taken or now_s >= taken[-1][0] + STEP_S:
            taken.append((now_s, value))
        series.add(now_s, value)
    return series, taken


@given(measurements)
def test_runs_are_in_order_and_do_not_overlap(steps: list[tuple[int, float]]) -> None:
    runs = list(noted(steps)[0])
    assert all(run.first_s <= run.last_s for run in runs)
    assert all(one.last_s < two.first_s for one, two in pairwise(runs))


@given(measurements)
def test_the_last_hour_is_kept_as_it_was_measured(steps: list[tuple[int, float]]) -> None:
    series, taken = noted(steps)
    for at_s, value in taken:
        if at_s >= taken[-1][0] - HOUR_S:
            assert [run.value for run in series if run.first_s <= at_s <= run.last_s] == [value]


@given(measurements)
def test_every_measurement_of_the_day_is_below_the_value_of_its_slot(steps: list[tuple[int, float]]) -> None:
    series, taken = noted(steps)
    for at_s, value in taken:
        if at_s > taken[-1][0] - DAY_S + SLOT_S:
            around = [run.value for run in series if run.first_s <= at_s <= run.last_s]
            assert around and max(around) >= value


@given(measurements)
def test_nothing_is_shown_that_was_not_measured(steps: list[tuple[int, float]]) -> None:
    """A peak must not spread over the hours before it."""
    series, taken = noted(steps)
    for run in series:
        inside = [value for at_s, value in taken if run.first_s <= at_s <= run.last_s]
        assert run.value in inside
        # A run that was put together of several is no longer than the five minutes; any other has one value.
        assert len(set(inside)) == 1 or run.first_s // SLOT_S == run.last_s // SLOT_S


def test_memory_is_bounded_when_every_value_is_another_one() -> None:
    series = Series()
    for number in range(2 * DAY_S // STEP_S):
        series.add(number * STEP_S, float(number))
    assert len(series) <= MOST_RUNS
    assert series.since(0)[0].last_s >= DAY_S - SLOT_S


def test_a_value_that_stays_takes_one_run() -> None:
    series = Series()
    for now_s in range(0, DAY_S, STEP_S):
        series.add(now_s, 0.0)
    assert list(series) == [Run(0, DAY_S - STEP_S, 0.0)]


def test_a_gap_is_no_value() -> None:
    series = Series()
    series.add(100, 5.0)
    series.add(100 + GAP_S + 1, 5.0)
    assert [run.first_s for run in series] == [100, 101 + GAP_S]


def test_a_history_has_no_more_series_than_it_may_and_forgets_old_ones() -> None:
    history = History(most=2)
    history.add(1_000, [("a", 1), ("b", 2), ("c", 3)])
    assert (history.names(""), history.refused) == (["a", "b"], 1)
    history.add(1_000 + DAY_S + 1, [("b", 2)])
    history.add(1_010 + DAY_S, [("c", 3)])
    assert history.names("") == ["b", "c"]
    assert history.get("a") == []


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2 * DAY_S)), max_size=60))
def test_the_bound_of_a_history_holds(steps: list[tuple[str, int]]) -> None:
    history, now_s = History(most=3), 0
    for name, pause_s in steps:
        now_s += pause_s
        history.add(now_s, [(name, 1.0)])
        assert len(history) <= 3
