"""Steps of the clock are seen, and the age of each message is right in spite of them."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.clock_steps import LEAST_STEP_MS, MAX_STEPS, ClockSteps

# What happens: time passes, the clock is set, a message is stored (with the size of its record), or somebody looks.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 1_000)),
        st.tuples(st.just("set"), st.integers(5_000, 10**9) | st.integers(-(10**9), -5_000)),
        st.tuples(st.just("store"), st.integers(1, 500)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_no_message_counts_as_older_than_it_is_and_none_as_much_younger(events: list[tuple[str, int]]) -> None:
    steps, wall_ms, steady_ms, end, seen_at = ClockSteps(), 10**12, 0, 0, 0
    # (place, store time by the clock, true time)
    stored: list[tuple[int, int, int]] = []
    steps.see(wall_ms, steady_ms, end)
    moves = 0
    for what, number in [*events, ("look", 0)]:
        if what == "pass":
            wall_ms, steady_ms = wall_ms + number, steady_ms + number
        elif what == "set" and not moves:
            wall_ms, moves = wall_ms + number, 1
        elif what == "store":
            stored.append((end, wall_ms, steady_ms))
            end += number
        if what == "look" or steady_ms - seen_at >= 1_000:
            # The broker looks at least once a second.
            steps.see(wall_ms, steady_ms, end)
            seen_at, moves = steady_ms, 0
    for physical, stored_ms, true_ms in stored:
        age_ms = wall_ms - stored_ms - steps.moved_since(0, physical, stored_ms)
        assert age_ms == steady_ms - true_ms


def test_a_difference_that_two_reads_make_is_no_step() -> None:
    steps = ClockSteps()
    steps.see(1_000, 1_000, 0)
    assert steps.see(2_000 - LEAST_STEP_MS + 1, 2_000, 0) is None
    assert steps.count == 0


def test_steps_are_counted_and_old_ones_are_put_together() -> None:
    steps, wall_ms = ClockSteps(), 10**12
    steps.see(wall_ms, 0, 0)
    for number in range(1, 2 * MAX_STEPS):
        wall_ms += -3_000 if number % 2 else 1_000
        step = steps.see(wall_ms, 0, number)
        assert step is not None and step.number == steps.count == number
    assert len(steps.since(0)) == MAX_STEPS
    assert [step.number for step in steps.since(steps.count - 2)] == [steps.count - 1, steps.count]
    assert (steps.times_back, steps.back_ms) == (MAX_STEPS, 3_000 * MAX_STEPS)
    assert steps.moved_since(0, 0, 0) == wall_ms - 10**12


def test_a_step_does_not_precede_what_follows_the_cut_end_of_a_log() -> None:
    steps = ClockSteps()
    steps.see(10**12, 0, 1_000)
    # The log was cut to 400 meanwhile, and the clock set back by an hour within the same second.
    step = steps.see(10**12 - 3_600_000 + 1_000, 1_000, 400)
    assert step is not None
    assert steps.moved_since(0, 399, 10**12 - 5_000) == -3_600_000
    assert steps.moved_since(0, 400, 10**12 - 3_600_000 + 2_000) == 0
