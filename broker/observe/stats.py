"""The broker's counters: by topic, by topic and group, and in all.

Handlers call `put`, `get` and `miss` for each request; a task calls `sample` each second; admin requests read.
Counters have the names of RocketMQ's BrokerStatsManager, as statsAll and exporters request them (code 315).
"""

from collections.abc import Callable
from datetime import date, datetime
from typing import NamedTuple

import trio

from broker.observe.meter import MINUTE_MS, SECOND_MS, Meter, Window
from broker.observe.put_times import PutTimes
from mqcommon.clock import Clock
from remoting.protocol.bodies.stats import BrokerStatsData

TEN_SECONDS_MS = 10 * SECOND_MS
TEN_MINUTES_MS = 10 * MINUTE_MS
RATE_SPANS_MS = (TEN_SECONDS_MS, MINUTE_MS, TEN_MINUTES_MS)


class Rates(NamedTuple):
    """Rates per second, over the last 10 seconds, minute and 10 minutes."""

    put: list[float]
    found: list[float]
    missed: list[float]
    transferred: list[float]


class DayTotals(NamedTuple):
    """Messages since the start of the process: up to yesterday's midnight, up to today's, and up to now."""

    yesterday_morning: int
    today_morning: int
    now: int


class BrokerStats:
    """``now`` gives the time in seconds, to measure how long sends take."""

    def __init__(
        self,
        clock: Clock,
        day_of: Callable[[int], date] | None = None,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self._clock = clock
        self._day_of = day_of or _local_day
        now_ms = clock.now_ms()
        self._topics: dict[str, Meter] = {}
        self._groups: dict[str, Meter] = {}
        self.puts = Meter(now_ms)
        self.put_times = PutTimes(self.puts, now)
        self.gets = Meter(now_ms)
        self.misses = 0
        self._rates = Window(TEN_MINUTES_MS, SECOND_MS, now_ms, self._totals())
        self._last_sample_ms = now_ms
        self._today = self._day_of(now_ms)
        self._mornings = ((0, 0), (0, 0))

    # --- counting

    def put(self, topic: str, count: int, size: int) -> None:
        """``count`` messages of ``size`` stored bytes went into ``topic`` with one request."""
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = Meter(self._clock.now_ms())
        meter.nums += count
        meter.size += size
        meter.calls += 1
        puts = self.puts
        puts.nums += count
        puts.size += size
        puts.calls += 1

    def get(self, group: str, topic: str, count: int, size: int) -> None:
        """``count`` messages of ``size`` stored bytes went to ``group`` with one answer."""
        key = f"{topic}@{group}"
        meter = self._groups.get(key)
        if meter is None:
            meter = self._groups[key] = Meter(self._clock.now_ms())
        meter.nums += count
        meter.size += size
        meter.calls += 1
        gets = self.gets
        gets.nums += count
        gets.size += size
        gets.calls += 1

    def miss(self) -> None:
        """Count a pull that found nothing."""
        self.misses += 1

    def drop_topic(self, topic: str) -> None:
        """Forget the counters of a deleted topic."""
        self._topics.pop(topic, None)
        start = f"{topic}@"
        for key in [key for key in self._groups if key.startswith(start)]:
            del self._groups[key]

    def drop_group(self, group: str) -> None:
        """Forget the counters of a deleted group."""
        end = f"@{group}"
        for key in [key for key in self._groups if key.endswith(end) and key.partition("@")[2] == group]:
            del self._groups[key]

    def sample(self) -> None:
        """Call this once a second: sample the counters."""
        now_ms = self._clock.now_ms()
        self.put_times.sample(now_ms)
        self._rates.sample(now_ms, self._totals())
        today = self._day_of(now_ms)
        if today != self._today:
            self._today = today
            self._mornings = (self._mornings[1], (self.puts.nums, self.gets.nums))
        if now_ms - self._last_sample_ms >= TEN_SECONDS_MS:
            self._last_sample_ms = now_ms
            for meter in (self.puts, self.gets, *self._topics.values(), *self._groups.values()):
                meter.sample(now_ms)

    # --- reading

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """A counter by RocketMQ's name and key; None if it has counted nothing."""
        tables = {
            "TOPIC_PUT": self._topics,
            "GROUP_GET": self._groups,
            "BROKER_PUT": {key: self.puts},
            "BROKER_GET": {key: self.gets},
        }
        what, _, unit = name.rpartition("_")
        meter = tables.get(what, {}).get(key)
        if meter is None or unit not in ("NUMS", "SIZE"):
            return None
        return meter.view(self._clock.now_ms(), of_size=unit == "SIZE")

    def topic_put_tps(self, topic: str) -> float:
        """Messages a second in the last minute."""
        return _minute_tps(self.view("TOPIC_PUT_NUMS", topic))

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages a second in the last minute."""
        return _minute_tps(self.view("GROUP_GET_NUMS", f"{topic}@{group}"))

    def rates(self) -> Rates:
        """The rates of the whole broker."""
        now, totals = self._clock.now_ms(), self._totals()
        rates = Rates([], [], [], [])
        for span_ms in RATE_SPANS_MS:
            seconds, base = self._rates.since(now, span_ms)
            for rate, total, before in zip(rates, totals, base, strict=True):
                rate.append((total - before) / seconds)
        return rates

    def put_totals(self) -> DayTotals:
        return DayTotals(self._mornings[0][0], self._mornings[1][0], self.puts.nums)

    def get_totals(self) -> DayTotals:
        return DayTotals(self._mornings[0][1], self._mornings[1][1], self.gets.nums)

    def _totals(self) -> tuple[int, int, int, int]:
        return self.puts.nums, self.gets.calls, self.misses, self.gets.nums


def _minute_tps(data: BrokerStatsData | None) -> float:
    return data.stats_minute.tps if data else 0.0


def _local_day(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).date()
