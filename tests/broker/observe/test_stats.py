"""Counters over time; the clock is moved by hand."""

from collections.abc import Collection
from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.observe.meter import Meter, SampleWindow
from skylark.broker.observe.stats import BOUNDS, GET_FROM_DISK, SEND_BACK, SLICE, BrokerStats, SizedStats
from skylark.remoting.protocol.requests.brokers import BrokerStatsItem
from tests.support.clock import ManualClock

START_MS = 1_700_000_000_000


def sample_rows(stats: BrokerStats, gone: Collection[str] = ()) -> int:
    """Returns in how many turns of the loop."""
    return 1 + len(list(stats.sample_rows(lambda topic: topic not in gone, lambda group: group not in gone)))


def run_for(stats: BrokerStats, clock: ManualClock, seconds: int, puts_a_second: int = 0) -> None:
    for second in range(1, seconds + 1):
        for _ in range(puts_a_second):
            stats.put("T", 1, 100)
        clock.advance(1000)
        stats.sample()
        if second % 10 == 0:
            sample_rows(stats)


def test_nothing_counted_does_not_exist() -> None:
    stats = BrokerStats(ManualClock())
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("GROUP_GET_NUMS", "T@g") is None
    stats.put("T", 1, 100)
    assert stats.view("NO_SUCH_NUMS", "T") is None
    assert stats.view("TOPIC_PUT_TIMES", "T") is None


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
    window = SampleWindow(60_000, 1, now, (0,))
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


def test_rare_counters_by_topic_and_group() -> None:
    stats = BrokerStats(ManualClock())
    stats.count(GET_FROM_DISK, "g", "T", 5, 500)
    stats.count(GET_FROM_DISK, "h", "T", 1, 100)
    stats.count(SEND_BACK, "g", "T", 2, 0)
    seen = {
        name: data.stats_day.sum
        for name, key in (
            ("GROUP_GET_FROM_DISK_NUMS", "T@g"),
            ("GROUP_GET_FROM_DISK_SIZE", "T@g"),
            ("BROKER_GET_FROM_DISK_NUMS", "DefaultCluster"),
            ("SNDBCK_PUT_NUMS", "T@g"),
        )
        if (data := stats.view(name, key)) is not None
    }
    assert list(seen.values()) == [5, 500, 6, 2]
    assert stats.view("SNDBCK_PUT_NUMS", "T@h") is None


def test_idle_rows_of_what_is_gone_vanish() -> None:
    stats = BrokerStats(ManualClock())
    stats.put("T", 1, 1)
    stats.put("U", 1, 1)
    for group in "gh":
        stats.get(group, "T", 1, 1)
        stats.get(group, "U", 1, 1)
        stats.count(SEND_BACK, group, "U", 1, 0)
    gone = ("T", "h")
    sample_rows(stats, gone)
    assert stats.view("TOPIC_PUT_NUMS", "T") is not None  # it was used since the last sampling
    stats.get("h", "U", 1, 1)
    sample_rows(stats, gone)
    rows = (
        ("TOPIC_PUT_NUMS", ("T", "U")),
        *((f"{name}_NUMS", ("T@g", "U@g", "U@h")) for name in ("GROUP_GET", SEND_BACK)),
    )
    left = [(name, key) for name, keys in rows for key in keys if stats.view(name, key) is not None]
    assert left == [
        ("TOPIC_PUT_NUMS", "U"), ("GROUP_GET_NUMS", "U@g"), ("GROUP_GET_NUMS", "U@h"), ("SNDBCK_PUT_NUMS", "U@g"),
    ]  # fmt: skip
    sample_rows(stats, gone)
    assert stats.view("GROUP_GET_NUMS", "U@h") is None


def test_many_rows_are_sampled_in_many_turns() -> None:
    stats = BrokerStats(ManualClock())
    for number in range(2 * SLICE):
        stats.put(f"T{number}", 1, 1)
        stats.get("g", f"T{number}", 1, 1)
    assert sample_rows(stats) == 5


def test_rows_may_come_and_go_between_two_turns_of_a_sampling() -> None:
    stats = BrokerStats(ManualClock())
    for number in range(SLICE + 1):
        stats.get("g", f"T{number}", 1, 1)
    steps = stats.sample_rows(lambda topic: True, lambda group: True)
    next(steps)
    stats.drop_group("g")
    stats.get("g", "new", 1, 1)
    assert list(steps) == []
    assert stats.view("GROUP_GET_NUMS", "new@g") is not None


SPANS = {"stats_minute": (60, 10), "stats_hour": (3600, 600), "stats_day": (86_400, 3600)}
events = st.tuples(st.sampled_from(["put", "get", "disk", "back", "drop topic", "drop group"]), st.integers(1, 9))
idle = st.tuples(st.just("wait"), st.sampled_from([1, 7, 10, 55, 600, 3600, 40_000]))


@given(st.lists(events | idle, max_size=40))
def test_counters_agree_with_a_list_of_all_events(steps: list[tuple[str, int]]) -> None:
    """A sum is of the span, or of up to a step (and the time between two samplings) more before it."""
    clock = ManualClock()
    stats = BrokerStats(clock)
    history: dict[str, list[tuple[int, int]]] = {}
    second = 0
    for what, number in steps:
        if what == "wait":
            end = second + number
            while second < end:
                pause = min(10 - second % 10, end - second)
                second += pause
                clock.advance(pause * 1000)
                if second % 10 == 0:
                    sample_rows(stats)
        elif what == "drop topic":
            stats.drop_topic("T")
            history = {}
        elif what == "drop group":
            stats.drop_group("g")
            history = {name: all_of for name, all_of in history.items() if name == "TOPIC_PUT"}
        else:
            name = {"put": "TOPIC_PUT", "get": "GROUP_GET", "disk": GET_FROM_DISK, "back": SEND_BACK}[what]
            if what == "put":
                stats.put("T", number, number * 10)
            elif what == "get":
                stats.get("g", "T", number, number * 10)
            else:
                stats.count(name, "g", "T", number, number * 10)
            history.setdefault(name, []).append((second, number))
    for name in ("TOPIC_PUT", "GROUP_GET", GET_FROM_DISK, SEND_BACK):
        data = stats.view(f"{name}_NUMS", "T" if name == "TOPIC_PUT" else "T@g")
        assert (data is not None) == (name in history)
        for member, (span, step) in SPANS.items() if data else ():
            item: BrokerStatsItem = getattr(data, member)
            least = sum(number for at, number in history[name] if at > second - span)
            most = sum(number for at, number in history[name] if at > second - span - step - 10)
            assert least <= item.sum <= most
            assert item.sum == 0 or item.sum / span <= item.tps <= item.sum / step
            assert item.sum == 0 or item.avgpt >= 1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.integers(1, 1 << 25))))
def test_sizes_are_counted_where_prometheus_wants_them(puts: list[tuple[str, int, int]]) -> None:
    stats = SizedStats(ManualClock())
    for topic, count, size in puts:
        stats.put(topic, count, size * count)
    assert stats.puts.nums == sum(count for _, count, _ in puts)
    for topic, times in stats.sizes():
        mine = [(count, size) for name, count, size in puts if name == topic]
        below = 0
        for bound, counted in zip((*BOUNDS, float("inf")), times.counts, strict=True):
            below += counted
            assert below == sum(count for count, size in mine if size <= bound)
        assert times.total == sum(count * size for count, size in mine)


def test_a_topic_that_was_deleted_begins_again() -> None:
    stats = SizedStats(ManualClock())
    stats.put("a", 1, 100)
    stats.drop_topic("a")
    assert stats.sizes() == []
    stats.put("a", 1, 100)
    assert sum(stats.sizes()[0][1].counts) == 1


def test_a_clock_that_went_back_stops_no_samples() -> None:
    window = SampleWindow(60_000, 1_000, 10_000_000, (0,))
    for second in range(1, 100):
        window.sample(10_000_000 + second * 1_000, (second * 10,))
    before_ms = 10_000_000 - 3_600_000
    assert window.since(before_ms) == (1.0, (990,)), "nothing is known of the time since"
    for second in range(100):
        window.sample(before_ms + second * 1_000, (990 + second * 10,))
    assert window.since(before_ms + 99_000) == (60.0, (990 + 39 * 10,))
