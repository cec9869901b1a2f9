"""Sizes of messages by topic, which only metrics show: a broker without metrics does not count them."""

from broker.observe.meter import Meter
from broker.observe.stats import BrokerStats
from mqcommon.clock import Clock
from mqcommon.metrics.metric import Histogram

# Sizes are counted by powers of two: the place of a size is a number of bits, so no bounds are searched.
_FIRST, _LAST = 7, 23
#: Upper ends in bytes.
BOUNDS = tuple(float(1 << bits) for bits in range(_FIRST, _LAST))


class SizedStats(BrokerStats):
    """The messages of one request count with their average size, as in RocketMQ."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # By topic; place n counts sizes up to 2 ** n.
        self._sizes: dict[str, list[int]] = {}

    def put(self, topic: str, count: int, size: int) -> None:
        # What the base class does, too, without its call: this runs for each request.
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
