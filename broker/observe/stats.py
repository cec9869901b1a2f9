"""The broker's counters: by topic, by topic and group, and in all.

Handlers call `put`, `get` and `miss` for each request, and `count` for what is rare; sampler.py samples; admin requests
read. Counters have the names of RocketMQ's BrokerStatsManager, as statsAll and exporters request them (code 315).
"""

from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import NamedTuple

import trio

from broker.observe.delivered import PopCounts, TransactionCounts
from broker.observe.meter import MINUTE_MS, SECOND_MS, Meter, Window
from broker.observe.put_times import PutTimes
from broker.observe.rows import SLICE, Exists, GroupRows
from mqcommon.clock import Clock
from remoting.protocol.requests.brokers import BrokerStatsData

TEN_SECONDS_MS = 10 * SECOND_MS
TEN_MINUTES_MS = 10 * MINUTE_MS
RATE_SPANS_MS = (TEN_SECONDS_MS, MINUTE_MS, TEN_MINUTES_MS)

#: Families of counters by topic and group, besides GROUP_GET: messages that had to be read from the disk first, and
#: messages that consumers sent back.
GET_FROM_DISK = "GROUP_GET_FROM_DISK"
SEND_BACK = "SNDBCK_PUT"
#: Messages that became dead letters; of no name in RocketMQ's statistics.
DEAD_LETTER = "DEAD_LETTER"


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
        self._groups = GroupRows(clock.now_ms)
        self._rare = {family: GroupRows(clock.now_ms) for family in (GET_FROM_DISK, SEND_BACK, DEAD_LETTER)}
        self.puts = Meter(now_ms)
        self.put_times = PutTimes(self.puts, now)
        self.gets = Meter(now_ms)
        self._disk_gets = Meter(now_ms)
        self.misses = 0
        self.transactions = TransactionCounts()
        self.pops = PopCounts()
        self._rates = Window(TEN_MINUTES_MS, SECOND_MS, now_ms, self._totals())
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
        meter = self._groups.meter(topic, group)
        meter.nums += count
        meter.size += size
        meter.calls += 1
        gets = self.gets
        gets.nums += count
        gets.size += size
        gets.calls += 1

    def count(self, family: str, group: str, topic: str, count: int, size: int) -> None:
        """``count`` messages of ``size`` stored bytes for one of the families above."""
        meters = [self._rare[family].meter(topic, group)]
        if family == GET_FROM_DISK:
            meters.append(self._disk_gets)
        for meter in meters:
            meter.nums += count
            meter.size += size
            meter.calls += 1

    def miss(self) -> None:
        """Count a pull that found nothing."""
        self.misses += 1

    def drop_topic(self, topic: str) -> None:
        """Forget the counters of a deleted topic."""
        self._topics.pop(topic, None)
        self.transactions.drop_topic(topic)
        self.pops.drop_topic(topic)
        for rows in self._group_rows():
            rows.drop_topic(topic)

    def drop_group(self, group: str) -> None:
        """Forget the counters of a deleted group."""
        self.pops.drop_group(group)
        for rows in self._group_rows():
            rows.drop_group(group)

    def sample(self) -> None:
        """Call this once a second: sample the counters of the whole broker, for its rates."""
        now_ms = self._clock.now_ms()
        self.put_times.sample(now_ms)
        self._rates.sample(now_ms, self._totals())
        today = self._day_of(now_ms)
        if today != self._today:
            self._today = today
            self._mornings = (self._mornings[1], (self.puts.nums, self.gets.nums))

    def sample_rows(self, topic_exists: Exists, group_exists: Exists) -> Iterator[None]:
        """Call this every ten seconds: sample each counter, and forget idle ones whose topic or group is gone.

        Yields after each SLICE of them, as there may be very many.
        """
        now_ms = self._clock.now_ms()
        for meter in (self.puts, self.gets, self._disk_gets):
            meter.sample(now_ms)
        for number, (topic, meter) in enumerate(list(self._topics.items()), 1):
            if not meter.sample(now_ms) and not topic_exists(topic):
                self._topics.pop(topic, None)
            if number % SLICE == 0:
                yield
        for rows in self._group_rows():
            yield from rows.sample(now_ms, topic_exists, group_exists)

    # --- reading

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """A counter by RocketMQ's name and key; None if it has counted nothing."""
        family, _, unit = name.rpartition("_")
        meter = self._find(family, key)
        if meter is None or unit not in ("NUMS", "SIZE"):
            return None
        return meter.view(self._clock.now_ms(), of_size=unit == "SIZE")

    def topic_meters(self) -> list[tuple[str, Meter]]:
        """What was put, by topic."""
        return list(self._topics.items())

    def get_meters(self) -> Iterator[tuple[str, str, Meter]]:
        """What was got: topic, group, counter. Not to be used over turns of the event loop."""
        return self._groups.all()

    def dead_letter_meters(self) -> Iterator[tuple[str, str, Meter]]:
        """What became dead letters, in the same form."""
        return self._rare[DEAD_LETTER].all()

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

    def _find(self, family: str, key: str) -> Meter | None:
        # The key of a broker's counters is its cluster; there is only one of each.
        totals = {"BROKER_PUT": self.puts, "BROKER_GET": self.gets, "BROKER_GET_FROM_DISK": self._disk_gets}
        if family == "TOPIC_PUT":
            return self._topics.get(key)
        if family == "GROUP_GET":
            return self._groups.find(key)
        rows = self._rare.get(family)
        return rows.find(key) if rows is not None else totals.get(family)

    def _group_rows(self) -> tuple[GroupRows, ...]:
        return (self._groups, *self._rare.values())

    def _totals(self) -> tuple[int, int, int, int]:
        return self.puts.nums, self.gets.calls, self.misses, self.gets.nums


def _minute_tps(data: BrokerStatsData | None) -> float:
    return data.stats_minute.tps if data else 0.0


def _local_day(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).date()
