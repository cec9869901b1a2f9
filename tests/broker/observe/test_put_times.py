"""How long sends take: counted by turns of the loop, or by one send of each turn when they wait."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.observe.meter import Meter
from skylark.broker.observe.put_times import PutTimes

NONE = (
    "[<=0ms]:0 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 "
    "[3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 "
)


class Times:
    def __init__(self) -> None:
        self.now = 100.0
        self.puts = Meter(0)
        self.times = PutTimes(self.puts, lambda: self.now)

    def turn(self, count: int, took_s: float) -> None:
        """One turn of the loop, which stores ``count`` messages."""
        self.begin(count)
        self.now += took_s
        self.times.end_turn()

    def begin(self, count: int) -> None:
        for _ in range(count):
            if self.times.turn is None:
                self.times.begin()
            self.puts.calls += 1

    @property
    def steps(self) -> dict[str, int]:
        """The steps that are not empty."""
        parts = [part.rpartition(":") for part in self.times.table()["putMessageDistributeTime"].split()]
        return {name: int(count) for name, _, count in parts if count != "0"}


def test_times_are_zero_before_the_first_send() -> None:
    times = Times()
    times.times.end_turn()
    assert times.times.table() == {
        "putMessageEntireTimeMax": "0",
        "putMessageDistributeTime": NONE,
        "putLatency99": "0.00",
        "putLatency999": "0.00",
        "putMessageFailedTimes": "0",
    }


def test_all_of_a_turn_count_with_its_time() -> None:
    times = Times()
    times.turn(980, 0.0005)
    times.turn(15, 0.0125)
    times.turn(5, 3.5)
    assert times.steps == {"[<=0ms]": 980, "[10~50ms]": 15, "[3~4s]": 5}
    table = times.times.table()
    assert table["putMessageEntireTimeMax"] == "3500"
    assert (table["putLatency99"], table["putLatency999"]) == ("15.00", "3500.00")


def test_a_turn_in_which_nothing_was_stored_counts_nothing() -> None:
    times = Times()
    times.times.begin()
    times.turn(0, 5.0)
    assert times.steps == {}


def test_a_send_that_waits_stands_for_its_turn() -> None:
    times = Times()
    times.begin(3)
    answered = times.times.follow()
    assert answered is not None
    assert times.times.follow() is None, "one of a turn is enough"
    times.now += 0.001
    times.times.end_turn()
    assert times.steps == {}
    times.now += 0.3
    times.turn(2, 0.002)
    assert times.times.head_wait_ms() == 303
    answered("late")
    assert times.steps == {"[0~10ms]": 2, "[200~500ms]": 3}
    assert times.times.head_wait_ms() == 0


def test_a_send_that_is_answered_within_its_turn_takes_the_turn() -> None:
    times = Times()
    times.begin(2)
    answered = times.times.follow()
    assert answered is not None
    answered("at once")
    times.now += 0.02
    times.times.end_turn()
    assert times.steps == {"[10~50ms]": 2}


def test_the_distribution_covers_the_last_minute_or_two() -> None:
    times = Times()
    times.times.sample(0)
    times.turn(1, 20.0)
    times.times.sample(60_000)
    times.turn(1, 0.0)
    assert times.steps == {"[<=0ms]": 1, "[10s~]": 1}
    times.times.sample(119_000)
    assert times.steps == {"[<=0ms]": 1, "[10s~]": 1}
    times.times.sample(120_000)
    assert times.steps == {"[<=0ms]": 1}
    times.times.sample(180_000)
    assert times.steps == {}
    assert times.times.table()["putMessageEntireTimeMax"] == "20000", "since the start"


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 30)), min_size=1, max_size=30))
def test_steps_and_percentiles_fit_what_was_measured(turns: list[tuple[int, float]]) -> None:
    times = Times()
    took_us = []
    for count, took_s in turns:
        before = times.now
        times.turn(count, took_s)
        took_us += [int((times.now - before) * 1_000_000)] * count
    assert sum(times.steps.values()) == len(took_us)
    assert times.steps.get("[<=0ms]", 0) == sum(took < 1_000 for took in took_us)
    table = times.times.table()
    took_us.sort()
    for part, key in ((0.99, "putLatency99"), (0.999, "putLatency999")):
        true = took_us[ceil(len(took_us) * part) - 1] / 1_000
        assert true - 0.01 <= float(table[key]) <= true * 1.51 + 0.02
