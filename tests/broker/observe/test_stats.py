"""Counters over time; the clock is moved by hand."""

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from broker.observe.meter import Meter, Window
from broker.observe.stats import BrokerStats
from tests.support.clock import ManualClock

START_MS = 1_700_000_000_000


def run_for(stats: BrokerStats, clock: ManualClock, seconds: int, puts_a_second: int = 0) -> None:
    for _ in range(seconds):
        for _ in range(puts_a_second):
            stats.put("T", 1, 100)
        clock.advance(1000)
        stats.sample()


def test_nothing_counted_does_not_exist() -> None:
    stats = BrokerStats(ManualClock())
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("GROUP_GET_NUMS", "T@g") is None
    stats.put("T", 1, 100)
    assert stats.view("NO_SUCH_NUMS", "T") is None
    assert stats.view("TOPIC_PUT_TIMES", "T") is None


def test_sums_over_minute_hour_and_day() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock)
    run_for(stats, clock, 7200, puts_a_second=1)
    seen = stats.view("TOPIC_PUT_NUMS", "T")
    assert seen is not None
    assert 60 <= seen.stats_minute.sum <= 70
    assert 3600 <= seen.stats_hour.sum <= 4200
    assert seen.stats_day.sum == 7200
    assert 0.9 < seen.stats_minute.tps < 1.2
    assert seen.stats_minute.avgpt == 1.0
    size = stats.view("TOPIC_PUT_SIZE", "T")
    assert size is not None
    assert size.stats_day.sum == 720_000
    assert size.stats_day.avgpt == 100.0


def test_a_counter_that_stands_still_falls_out_of_the_minute() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock)
    run_for(stats, clock, 30, puts_a_second=2)
    run_for(stats, clock, 90)
    seen = stats.view("TOPIC_PUT_NUMS", "T")
    assert seen is not None
    assert seen.stats_minute.sum == 0
    assert seen.stats_hour.sum == 60
    assert stats.topic_put_tps("T") == 0.0


def test_gets_are_counted_by_topic_and_group() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock)
    stats.get("g", "T", 32, 3200)
    stats.miss()
    seen = stats.view("GROUP_GET_NUMS", "T@g")
    assert seen is not None
    assert seen.stats_minute.sum == 32
    assert stats.group_get_tps("g", "T") == 3.2  # over at least ten seconds
    broker = stats.view("BROKER_GET_NUMS", "DefaultCluster")
    assert broker is not None
    assert broker.stats_minute.sum == 32


def test_rates_have_three_spans() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock)
    run_for(stats, clock, 600, puts_a_second=10)
    run_for(stats, clock, 20)
    ten_seconds, minute, ten_minutes = stats.rates().put
    assert ten_seconds == 0.0
    assert 6.0 <= minute <= 7.0
    assert 9.0 <= ten_minutes <= 10.0


def test_deleted_topics_and_groups_are_forgotten() -> None:
    stats = BrokerStats(ManualClock())
    stats.put("T", 1, 1)
    stats.get("g", "T", 1, 1)
    stats.get("g", "U", 1, 1)
    stats.get("h", "U", 1, 1)
    stats.drop_topic("T")
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("GROUP_GET_NUMS", "T@g") is None
    stats.drop_group("g")
    assert stats.view("GROUP_GET_NUMS", "U@g") is None
    assert stats.view("GROUP_GET_NUMS", "U@h") is not None


def test_totals_of_the_days() -> None:
    clock = ManualClock()
    days = [0]
    stats = BrokerStats(clock, lambda now_ms: date(2026, 1, 1) + timedelta(days=days[0]))
    stats.put("T", 5, 1)
    days[0] = 1
    stats.sample()
    stats.put("T", 2, 1)
    stats.get("g", "T", 1, 1)
    assert stats.put_totals() == (0, 5, 7)
    days[0] = 2
    stats.sample()
    assert stats.put_totals() == (5, 7, 7)
    assert stats.get_totals() == (0, 1, 1)


@given(st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 5)), max_size=60))
def test_a_window_sees_what_a_list_of_all_values_sees(steps: list[tuple[int, int]]) -> None:
    """Within one step of the sampling, and never more than was counted."""
    now, value = START_MS, 0
    window = Window(60_000, 1, now, (0,))
    history = [(now, 0)]
    for wait_ms, more in steps:
        now, value = now + wait_ms, value + more
        window.sample(now, (value,))
        history.append((now, value))
    expected = [at for at in history if at[0] <= now - 60_000] or history[:1]
    assert window.since(now)[1] == (expected[-1][1],)


def test_a_meter_keeps_a_bounded_number_of_samples() -> None:
    meter = Meter(START_MS)
    for second in range(0, 200_000, 10):
        meter.nums += 1
        meter.sample(START_MS + second * 1000)
    assert all(len(window._samples) <= 26 for window in meter._windows)
