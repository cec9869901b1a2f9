"""The broker's counters: by topic, by topic and group, and in all.

Transactions and pops have counters of their own, `TransactionCounts` and `PopCounts`. Handlers call `put`, `get`
and `miss` for each request, and `count` for rare events. stats_handlers.py samples the counters and reads them for
tools. Counters have the names of RocketMQ's BrokerStatsManager, as statsAll and exporters request them (code 315).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import NamedTuple

import trio

from skylark.broker.observe.meter import MINUTE_MS, SECOND_MS, Meter, SampleWindow
from skylark.broker.observe.put_times import PutTimes
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.ids import offset_msg_id
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.metrics.metric import Histogram
from skylark.remoting.protocol.requests.brokers import BrokerStatsData

logger = logging.getLogger(__name__)

#: Upper ends of the time from a half to its end, in milliseconds: up to a day.
FINISH_MS = (10.0, 100.0, 1_000.0, 5_000.0, 60_000.0, 600_000.0, 3_600_000.0, 43_200_000.0, 86_400_000.0)


TEN_SECONDS_MS = 10 * SECOND_MS
TEN_MINUTES_MS = 10 * MINUTE_MS
RATE_SPANS_MS = (TEN_SECONDS_MS, MINUTE_MS, TEN_MINUTES_MS)

#: Families of counters by topic and group, besides GROUP_GET: messages that had to be read from the disk first, and
#: messages that consumers sent back.
GET_FROM_DISK = "GROUP_GET_FROM_DISK"
SEND_BACK = "SNDBCK_PUT"
#: Messages that became dead letters; RocketMQ's statistics have no such counter.
DEAD_LETTER = "DEAD_LETTER"


# Rows that are sampled in one turn of the event loop: a few milliseconds when all of them have changed.
SLICE = 500
#: Whether a topic, or a group, exists.
Exists = Callable[[str], object]


class GroupRows:
    """Meters by topic and group. ``now_ms`` gives the time of a row's start.

    An administrator's key ``topic@group`` finds a row. A row is made by its first count. It is dropped with its topic
    or group: at once when this broker deletes them, otherwise (a slave's tables are copies) by the first sampling that
    finds the name gone and the row idle.
    """

    __slots__ = ("_now_ms", "_topics")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # By topic, then by group.
        self._topics: dict[str, dict[str, Meter]] = {}

    def meter(self, topic: str, group: str) -> Meter:
        """The row to raise; made if missing."""
        groups = self._topics.get(topic)
        if groups is None:
            groups = self._topics[topic] = {}
        meter = groups.get(group)
        if meter is None:
            meter = groups[group] = Meter(self._now_ms())
        return meter

    def find(self, key: str) -> Meter | None:
        """The row of ``topic@group``."""
        topic, _, group = key.partition("@")
        return self._topics.get(topic, {}).get(group)

    def all(self) -> Iterator[tuple[str, str, Meter]]:
        """Topic, group and meter of each row."""
        return ((topic, group, row) for topic, groups in self._topics.items() for group, row in groups.items())

    def drop_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def drop_group(self, group: str) -> None:
        for topic, groups in list(self._topics.items()):
            self._drop(topic, groups, group)

    def sample(self, now_ms: int, topic_exists: Exists, group_exists: Exists) -> Iterator[None]:
        """Sample all rows, and drop idle ones whose topic or group is gone. Yields after each SLICE of rows."""
        done = 0
        for topic, groups in list(self._topics.items()):
            for group, meter in list(groups.items()):
                # Only an idle row is dropped: if the topic was deleted and made again, its row has counted since.
                is_raised = meter.sample(now_ms)
                if not is_raised and not (topic_exists(topic) and group_exists(group)):
                    self._drop(topic, groups, group)
                done += 1
                if done % SLICE == 0:
                    yield

    def _drop(self, topic: str, groups: dict[str, Meter], group: str) -> None:
        groups.pop(group, None)
        if not groups and self._topics.get(topic) is groups:
            del self._topics[topic]


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
    """All counters of one broker. ``now`` gives the time in seconds, to measure how long sends take."""

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
        self.dropped = DroppedMessages()
        self._rates = SampleWindow(TEN_MINUTES_MS, SECOND_MS, now_ms, self._totals())
        self._today = self._day_of(now_ms)
        self._mornings = ((0, 0), (0, 0))

    # --- counting

    def put(self, topic: str, count: int, size: int) -> None:
        """Count ``count`` messages, of ``size`` stored bytes in all, that one request has put into ``topic``."""
        # Here and in `get` the code of the counters is inlined: a call for each would cost more than the counting.
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
        """Count ``count`` messages, of ``size`` stored bytes in all, that one answer has given to ``group``."""
        meter = self._groups.meter(topic, group)
        meter.nums += count
        meter.size += size
        meter.calls += 1
        gets = self.gets
        gets.nums += count
        gets.size += size
        gets.calls += 1

    def count(self, family: str, group: str, topic: str, count: int, size: int) -> None:
        """Count ``count`` messages, of ``size`` stored bytes in all, in ``family``, one of the families above."""
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
        self.dropped.drop_topic(topic)
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

        Yields after each SLICE of counters, as there may be very many.
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

    def view_of(self, meter: Meter) -> BrokerStatsData:
        """The messages that ``meter``, from one of the methods below, has counted."""
        return meter.view(self._clock.now_ms())

    def topic_meters(self) -> list[tuple[str, Meter]]:
        """The counters of stored messages, by topic."""
        return list(self._topics.items())

    def get_meters(self) -> Iterator[tuple[str, str, Meter]]:
        """Topic, group and counter of delivered messages. Do not keep the iterator over turns of the event loop."""
        return self._groups.all()

    def dead_letter_meters(self) -> Iterator[tuple[str, str, Meter]]:
        """Topic, group and counter of dead letters, as `get_meters`."""
        return self._rare[DEAD_LETTER].all()

    def topic_put_tps(self, topic: str) -> float:
        """Messages a second in the last minute."""
        return _minute_tps(self.view("TOPIC_PUT_NUMS", topic))

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages a second in the last minute."""
        return _minute_tps(self.view("GROUP_GET_NUMS", f"{topic}@{group}"))

    def rates(self) -> Rates:
        """The rates of the whole broker, over each span of RATE_SPANS_MS."""
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
        # RocketMQ's key of these counters is the cluster. There is one counter of each name, so any key finds it.
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
        # In the order of `Rates`: a pull that found messages counts once as found, and each message as transferred.
        return self.puts.nums, self.gets.calls, self.misses, self.gets.nums


def _minute_tps(data: BrokerStatsData | None) -> float:
    return data.stats_minute.tps if data else 0.0


def _local_day(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).date()


# Sizes are counted by powers of two: the number of bits of a size is its place, so no search is needed.
_FIRST, _LAST = 7, 23
#: Upper ends in bytes.
BOUNDS = tuple(float(1 << bits) for bits in range(_FIRST, _LAST))


class SizedStats(BrokerStats):
    """Also counts sizes of messages by topic, which only metrics show: a broker without metrics does not count them.

    The messages of one request count with their average size, as in RocketMQ.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # By topic; place n counts sizes up to 2 ** n.
        self._sizes: dict[str, list[int]] = {}

    def put(self, topic: str, count: int, size: int) -> None:
        # The same as in the base class, without the cost of a call. The number of bits of size - 1 is the exponent of
        # the smallest power of two that is not below the size.
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = Meter(self._clock.now_ms())
            self._sizes[topic] = [0] * 64
        meter.nums += count
        meter.size += size
        meter.calls += 1
        puts = self.puts
        puts.nums += count
        puts.size += size
        puts.calls += 1
        self._sizes[topic][(size // count - 1).bit_length()] += count

    def sizes(self) -> list[tuple[str, Histogram]]:
        """Stored sizes, by topic."""
        found = []
        for topic, meter in self.topic_meters():
            counts, times = self._sizes[topic], Histogram(BOUNDS)
            times.counts = [sum(counts[: _FIRST + 1]), *counts[_FIRST + 1 : _LAST], sum(counts[_LAST:])]
            times.total = float(meter.size)
            found.append((topic, times))
        return found


class TransactionCounts:
    """Counts transactions that ended, by the topic of their message."""

    def __init__(self) -> None:
        self.commits: Counter[str] = Counter()
        self.rollbacks: Counter[str] = Counter()
        #: How long halves waited for their commit.
        self.finish_ms: dict[str, Histogram] = {}

    def committed(self, topic: str, age_ms: int) -> None:
        """Count a commit: a half of the age ``age_ms`` became a message of ``topic``."""
        self.commits[topic] += 1
        times = self.finish_ms.get(topic)
        if times is None:
            times = self.finish_ms[topic] = Histogram(FINISH_MS)
        times.add(age_ms)

    def rolled_back(self, topic: str) -> None:
        """Count a rollback: a half ended without a message of ``topic``."""
        self.rollbacks[topic] += 1

    def drop_topic(self, topic: str) -> None:
        """Forget the counters of a deleted topic."""
        self.commits.pop(topic, None)
        self.rollbacks.pop(topic, None)
        self.finish_ms.pop(topic, None)


class PopCounts:
    """Records written to the revive log, and messages that were delivered again."""

    def __init__(self) -> None:
        self.checkpoints = 0
        self.acks = 0
        #: Messages whose invisible time was over, by group and topic.
        self.revived: Counter[tuple[str, str]] = Counter()

    def drop_topic(self, topic: str) -> None:
        """Forget the counters of a deleted topic."""
        self._drop(topic, 1)

    def drop_group(self, group: str) -> None:
        """Forget the counters of a deleted group."""
        self._drop(group, 0)

    def _drop(self, name: str, place: int) -> None:
        for key in [key for key in self.revived if key[place] == name]:
            del self.revived[key]


class DroppedMessages:
    """Counts messages that are not delivered at their time, as their topic was deleted after they had been stored.

    The first dropped message of each deleted topic is logged.
    """

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def add(self, topic: str, record: Record) -> None:
        """Count ``record``, which waited for its delivery to ``topic``, as dropped."""
        self.count += 1
        if topic not in self._logged:
            self._logged.add(topic)
            key = find_property(record.properties, b"UNIQ_KEY")
            logger.warning(
                "messages that waited to be delivered to %s are dropped, as it was deleted after they had been stored;"
                " the first is %s",
                topic,
                key.decode(errors="replace") if key else offset_msg_id(record.store_host, record.physical_offset),
            )

    def drop_topic(self, topic: str) -> None:
        """The topic is deleted once more: the first message dropped because of this deletion is logged again."""
        self._logged.discard(topic)
